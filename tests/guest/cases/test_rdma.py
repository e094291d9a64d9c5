# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb-swapd and donors by RDMA (Soft-RoCE): contents of pages, and failures of each part."""
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import parts
from cluster import Checker
from kmod_fixtures import roce  # noqa: F401
from kmodule import ADDRESS, run, rxe_add, rxe_remove
from machine import BIN, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))
from dataplane import PAGE, Pages, Server
from test_donor import Machine

PORT, RDMA_PORT = 7070, 7472
# Donors are emulated, on a busy machine.
PATIENT = ("--deadline", "5s")


class Lender(parts.Donor):
    """A donor on the RDMA device's address, for borrowers with the key."""

    def __init__(self, log, key, port=PORT, rdma=RDMA_PORT, options=(), **what):
        options = ["--keys", key, *(["--rdma", f"{ADDRESS}:{rdma}"] if rdma else []), *options]
        what = {"memory": "48M", "slab": "1M", **what}
        super().__init__(log, also=[f"{ADDRESS}:{port}"], options=options, port=port + 100, **what)
        self.address = f"rdma:{ADDRESS}:{port}"


@pytest.fixture(scope="session")
def key(roce):  # noqa: F811
    path = Path(tempfile.mkdtemp()) / "spark.key"
    run(BIN / "ebbctl", "key", "create", path, "--name", "spark")
    return path


@pytest.fixture
def lend(key, logs):
    made = []

    def make(**what):
        made.append(Lender(logs / f"donor{len(made)}.log", key, **what))
        return made[-1]

    yield make
    for d in made:
        if d.alive():
            d.signal(signal.SIGCONT)
        d.stop()


@pytest.fixture
def serve(key, logs, tmp_path):
    made = []

    def make(*donors, options=(), **what):
        made.append(Server(tmp_path, logs / f"swapd{len(made)}.log", donors,
                           options=["--key", key, *PATIENT, *options], **what))
        made[-1].pages = Pages(made[-1])
        return made[-1]

    yield make
    for s in made:
        s.pages.close()
        s.stop()


def settled(server):
    """Writes pages at random and checks all pages."""
    server.pages.write_random(60)
    server.pages.check()


def test_every_page_by_rdma_alone(lend, serve):
    """Pages are right, the donor counts no reads or writes, and the key is used."""
    donor = lend()
    s = serve(donor, durability="none")
    settled(s)
    told, status = s.stats(), s.status()
    assert told["pages_read_donor"] > 500 and told["pages_written_donor"] > 500
    assert told["donor_losses"] == told["pages_read_failed"] == told["pages_bad_donor"] == 0
    assert status["sealed"] is True
    assert (status["donors"][0]["transport"], status["donors"][0]["tls"]) == ("rdma", True)
    borrower, = donor.ask()["borrowers"]
    assert (borrower["key"], borrower["reads"], borrower["writes"]) == ("spark", 0, 0)


def test_who_is_not_let_in(lend, key, tmp_path):
    """Without a key, or at a donor without RDMA, the borrower is rejected with a remedy."""
    def swapd(donor, *options):
        p = subprocess.run([BIN / "ebb-swapd", "--name", "dp1", "--size", "8M", "--slab", "1M",
                            "--donor", donor, "--durability", "none", "--mount", tmp_path,
                            "--foreground", *options], capture_output=True, text=True, timeout=60)
        return p.returncode, p.stderr

    donor = lend(rdma=None)
    status, text = swapd(donor.address, "--key", key)
    assert status == 5 and "does not lend by RDMA" in text and "--rdma HOST:PORT" in text
    status, text = swapd(donor.address)
    assert status == 5 and "pass --key FILE" in text
    told = subprocess.run([BIN / "ebb-donord", "--memory", "4M", "--slab", "1M", "--listen",
                           "127.0.0.1:7099", "--rdma", f"{ADDRESS}:7480"], capture_output=True,
                          text=True, timeout=60)
    assert told.returncode == 2 and "pass --keys FILE" in told.stderr


def test_stopped_donor_process_is_not_missed(lend, serve):
    """The data path is one-sided: a stopped donor serves until a PING is overdue."""
    donor = lend()
    s = serve(donor, durability="none", options=["--deadline", "200s", "--watchdog", "500s"])
    settled(s)
    # Existing slabs: the stopped donor could not grant a new one.
    for slab in range(8):
        s.pages.write(slab * 256, s.pages.random.randbytes(PAGE))
    before = s.stats()
    donor.signal(signal.SIGSTOP)
    try:
        for i in range(1000):
            page = i * 37 % 2048
            s.pages.write(page, s.pages.random.randbytes(PAGE))
            assert s.pages.read(page, 1) == s.pages.model[page * PAGE:(page + 1) * PAGE]
    finally:
        donor.signal(signal.SIGCONT)
    told = s.stats()
    assert told["pages_read_donor"] - before["pages_read_donor"] == 1000
    assert told["pages_written_donor"] - before["pages_written_donor"] == 1000
    assert told["donor_losses"] == 0
    s.pages.check()


def test_silent_donor_is_lost(lend, serve):
    """Its memory is still readable, but no process manages it: the deadline applies as with TCP."""
    donor = lend()
    s = serve(donor, options=["--deadline", "2s"])
    settled(s)
    donor.signal(signal.SIGSTOP)
    wait_for(lambda: s.stats()["donor_losses"] == 1, 30, "the deadline")
    s.pages.check()
    assert s.stats()["pages_read_backup"] > 0
    donor.signal(signal.SIGCONT)
    wait_for(lambda: s.donor_state() == "up", 30, "the donor")
    start = s.stats()["pages_read_donor"]
    settled(s)
    told = s.stats()
    assert told["pages_read_donor"] > start
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


def test_donor_killed_and_back(lend, serve):
    """Every page is read from the backup; then the donor is used again."""
    donor = lend()
    s = serve(donor)
    settled(s)
    donor.kill()
    s.pages.check()
    told = s.stats()
    assert told["pages_read_backup"] > 0 and told["donor_absences"] == 1
    assert told["pages_read_failed"] == 0
    lend()
    wait_for(lambda: s.donor_state() == "up", 30, "the donor")
    settled(s)
    wait_for(lambda: s.stats()["pages_repaired"] > 0, 30, "repair")
    s.pages.check()
    assert s.stats()["pages_read_failed"] == 0


def test_one_of_two_copies_is_lost(lend, serve):
    a, b = lend(), lend(port=PORT + 1, rdma=RDMA_PORT + 1)
    s = serve(a, b, durability="replicas=2")
    settled(s)
    a.kill()
    s.pages.check()
    settled(s)
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0
    assert told["donor_absences"] == 1


def test_slabs_leave_a_donor_that_is_told_to_end(lend, serve):
    """EVICT, copies from donor to donor and UNMAP work by RDMA, without loss."""
    a = lend(drain="60s")
    b = lend(port=PORT + 1, rdma=RDMA_PORT + 1)
    s = serve(a, b, durability="none")
    settled(s)
    a.signal(signal.SIGTERM)
    assert a.process.wait(90) == 0
    s.pages.check()
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0
    assert told["pages_repaired"] > 0


def test_revoking_slabs_does_not_end_the_session(lend, serve, tmp_path):
    """Their windows end at once; the borrower hears of that and uses them no more."""
    m = Machine(tmp_path, 1024, 512)
    donor = lend(options=m.options(4, "--revoke-after", "1s"))
    s = serve(donor, durability="none", size="8M")
    for slab in range(4):
        s.pages.write(slab * 256, s.pages.random.randbytes(PAGE))
    m.available(0)
    wait_for(lambda: donor.ask()["evictions"]["revoked"] == 4, 60, "slabs revoked")
    m.available(512)
    wait_for(lambda: s.status()["donors"][0]["free"], 60, "room at the donor")
    s.pages.write(6 * 256, s.pages.random.randbytes(PAGE))
    assert s.pages.read(6 * 256, 1) == s.pages.model[6 << 20:(6 << 20) + PAGE]
    told, = s.status()["donors"]
    assert (told["state"], told["connects"], told["losses"]) == ("up", 1, 0)
    with pytest.raises(OSError):
        s.pages.read(256, 1)
    told = s.stats()
    assert (told["donor_losses"], told["donor_absences"], told["slabs_revoked"]) == (0, 0, 4)


def test_server_killed(lend, serve):
    """The next server has the slabs again, by a new queue pair and new keys."""
    donor = lend()
    s = serve(donor, durability="none")
    settled(s)
    for _ in range(3):
        s.kill_server()
        settled(s)
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == told["donor_losses"] == 0


def test_link_down(lend, serve):
    """RDMA fails, TCP does not: pages are read from the backup, requests continue."""
    donor = lend()
    s = serve(donor)
    settled(s)
    run("ip", "link", "set", "v0", "down")
    try:
        settled(s)
        told = s.stats()
        assert told["donor_absences"] == 1 and told["pages_read_backup"] > 0
        assert told["pages_read_failed"] == told["pages_write_failed"] == 0
    finally:
        run("ip", "link", "set", "v0", "up")
        donor.stop()
        s.pages.check()
        s.pages.close()
        s.stop()
        # An rxe whose link was down accepts no new connections.
        rxe_remove()
        rxe_add()


class SwapDevice(parts.Device):
    """Swap of `ebbctl device create` with a donor by RDMA."""

    def __init__(self, donor, key, *options):
        super().__init__(donor, size="96M", slab="1M", options=["--key", key, *options])


def swapping(device, cgroup, logs):
    checker = Checker(None, logs / "checker.log", ("--memory", 48, "--pause", 200),
                      enter=cgroup(limit_mib=24).enter)
    try:
        wait_for(lambda: (device.used_kib() or 0) > 4 << 10, 60, "pages on the device")
    except BaseException:
        checker.kill()
        raise
    return checker


def test_program_swaps_while_its_donor_is_killed(swap_lock, lend, key, cgroup, logs):
    donor = lend(memory="128M")
    device = SwapDevice(donor, key)
    checker = swapping(device, cgroup, logs)
    try:
        start = device.stats()["pages_read_donor"]
        wait_for(lambda: device.stats()["pages_read_donor"] > start + 1000, 90, "reads by RDMA")
        donor.kill()
        wait_for(lambda: device.stats()["pages_read_backup"] > 500, 90, "reads of the backup")
        told = checker.stop(timeout=240)
        assert told["bad"] == 0 and told["verified"] == told["pages"]
        stats = device.stats()
        assert stats["pages_read_failed"] == stats["pages_write_failed"] == 0
    finally:
        checker.kill()
        device.destroy()


def test_program_swaps_while_servers_die(swap_lock, lend, key, cgroup, logs):
    donor = lend(memory="128M")
    device = SwapDevice(donor, key)
    checker = swapping(device, cgroup, logs)
    try:
        for _ in range(3):
            assert not checker.failed(), checker.failed()
            told = wait_for(device.status_with_standby, 30, "a standby")
            os.kill(told["server"], signal.SIGKILL)
            device.successor([told["server"]])
            # An emulated donor may be late and lost; then the disk has its pages.
            start = device.stats()["pages_read_donor"]
            wait_for(lambda: device.stats()["pages_read_donor"] > start + 200, 60, "reads by RDMA")
        told = checker.stop(timeout=240)
        assert told["bad"] == 0 and told["verified"] == told["pages"]
        stats = device.stats()
        assert stats["pages_read_failed"] == stats["pages_write_failed"] == 0
    finally:
        checker.kill()
        device.destroy()
