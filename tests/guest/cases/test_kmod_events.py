# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko sends events, and releases slabs that a donor recalls."""
import errno
import subprocess
import time

import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import DONOR
from kswap import NO_SESSION, Events
from machine import wait_for
from test_kmod_move import Users, fill, refused


@pytest.fixture
def events(module):
    heard = Events()
    yield heard
    heard.close()


def ended(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def test_end_of_a_session_is_told(kernel_device, donor, events):
    one, _ = donor(), donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    one.kill()
    told = events.next()
    assert (told["event"], told["device"], told["session"]) == ("ended", d.number, a)
    assert told["reason"] == d.session(a)["reason"] != ""
    assert told["cause"] == d.session(a)["cause"] == "closed" and "cause" not in d.session(b)
    assert d.session(a)["state"] == "closed"
    d.netlink.call("disconnect", device=d.number, session=b)
    assert events.next() == {"event": "ended", "device": d.number, "session": b,
                             "reason": "disconnected", "cause": "command"}


def test_end_of_a_migration_is_told(kernel_device, donor, events):
    donor(), donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    d.write(1024, 64, 1)
    d.netlink.call("migrate", device=d.number, slab=1, session=b)
    assert events.next() == {"event": "left", "device": d.number, "session": a, "slab": 1}
    assert d.slab_table()[1]["source"] == NO_SESSION


def test_donor_that_ends_gets_back_what_goes_to_the_backup(kernel_device, donor, disk):
    """Without a listener, pages that only the donor had are on the backup before it exits."""
    lender = donor(drain="120s")
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), DONOR)
    fill(d, 1)
    users = Users(d)
    lender.process.terminate()
    assert ended(lender.process, 100) == 0, (d.slab_table(), d.counts())
    users.stop()
    d.wait_closed()
    assert all(s["session"] == s["source"] == NO_SESSION for s in d.slab_table())
    users.verify()
    assert d.counts()["donor_errors"] == 0


def test_donor_that_ends_gets_back_what_migrates(kernel_device, donor, events):
    """A listener moves the slabs to another donor; there is no backup."""
    lender = donor(drain="120s")
    donor(port=7472)
    d = kernel_device(mib=16)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    fill(d, 1)
    users = Users(d)
    lender.process.terminate()
    asked = set()
    while len(asked) < d.slabs:
        told = events.next()
        if told["event"] == "evict":
            assert told["session"] == a and told["slab"] not in asked
            asked.add(told["slab"])
            d.netlink.call("migrate", device=d.number, slab=told["slab"], session=b)
    assert ended(lender.process, 100) == 0, (d.slab_table(), d.counts())
    users.stop()
    assert {s["session"] for s in d.slab_table()} == {b}
    users.verify()
    assert d.counts()["donor_errors"] == 0


def test_who_listens_and_does_nothing_is_not_waited_for(kernel_device, donor, disk, events):
    lender = donor(drain="60s")
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), DONOR, [0])
    d.write(0, 64, 1)
    began = time.monotonic()
    lender.process.terminate()
    assert events.next()["event"] == "evict"
    assert events.next()["event"] == "left"
    assert time.monotonic() - began > 0.9
    assert ended(lender.process, 50) == 0
    assert d.bad(0, 64, 1) == []


def test_without_anywhere_to_go_a_slab_stays(kernel_device, donor):
    """The recall is rejected, so the donor waits for its time-out; another donor helps."""
    lender = donor(drain="20s")
    donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR, [0])
    d.write(0, 64, 1)
    lender.process.terminate()
    assert ended(lender.process, 3) is None
    assert d.bad(0, 64, 1) == []
    assert d.session(a)["state"] == "live"
    d.netlink.call("migrate", device=d.number, slab=0, session=b)
    assert ended(lender.process, 50) == 0
    assert d.bad(0, 64, 1) == []


def test_events_need_privileges(module):
    """Users without the right to send commands cannot subscribe."""
    probe = """
import os, sys
sys.path.insert(0, "tests/harness")
from kswap import Kswap, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP
k = Kswap()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    k.socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, k.group)
    print("heard")
except PermissionError:
    print("refused")
"""
    done = subprocess.run(["/usr/bin/python3", "-c", probe], text=True, capture_output=True)
    assert done.stdout == "refused\n", done.stdout + done.stderr


def slabs_mib(has):
    """Returns (MiB of all slabs with memory, MiB of lent slabs) of a donor's status."""
    slabs, mib = has["slabs"], has["slab_size"] >> 20
    return (sum(slabs[k] for k in ("lent", "clean", "dirty", "coming", "going")) * mib,
            slabs["lent"] * mib)


class Shortage:
    """A donor's faked view of its machine: MIB in all, partly used by programs and its slabs."""

    MIB, HEADROOM = 256, 16

    def __init__(self, directory):
        self.directory = directory
        (directory / "pressure").mkdir(parents=True)
        (directory / "pressure/memory").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        self.tell(self.MIB)

    def tell(self, available):
        new = self.directory / "meminfo.new"
        new.write_text(f"MemTotal: {self.MIB << 10} kB\nMemAvailable: {available << 10} kB\n")
        new.rename(self.directory / "meminfo")

    def leaves(self, mib, lender, until):
        """Makes programs leave @mib plus HeadRoom until the slabs' MiB satisfy @until."""
        def look():
            total, lent = slabs_mib(lender.ask())
            self.tell(max(mib + self.HEADROOM - total, 0))
            return until(total, lent)
        wait_for(look, 60, f"{mib} MiB", interval=0.3)


def test_donor_gives_memory_back_to_its_machine(kernel_device, donor, disk, tmp_path):
    """It releases free slabs, then lent ones, whose pages go to the backup; later it lends again."""
    machine = Shortage(tmp_path / "proc")
    lender = donor(memory="32M", options=("--machine", machine.directory, "--headroom", "16M"))
    d = kernel_device(mib=16, backup=disk().path)
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    users = Users(d)
    machine.leaves(26, lender, lambda total, lent: lent == 16 and total in (20, 24))
    # The guest reports released memory late, which may cost another slab.
    machine.leaves(10, lender, lambda total, lent: total == lent <= 8)
    gone = [i for i, s in enumerate(d.slab_table()) if s["session"] == NO_SESSION]
    assert 2 <= len(gone) < 4
    assert refused(d, "map", slab=gone[0], session=session, copies=DONOR)[0] == errno.ENOSPC
    machine.leaves(200, lender, lambda total, lent: total == 32)
    d.map(session, DONOR, gone)
    users.stop()
    users.verify()
    assert d.counts()["donor_errors"] == 0 and d.session(session)["state"] == "live"


def test_drained_donor_stays_and_lends_again(kernel_device, donor, disk):
    lender = donor(memory="32M")
    d = kernel_device(mib=16, backup=disk().path)
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    users = Users(d)
    assert slabs_mib(lender.ask("drain"))[1] == 16
    wait_for(lambda: slabs_mib(lender.ask()) == (0, 0), 60, "memory is not released")
    assert all(s["session"] == NO_SESSION for s in d.slab_table())
    assert refused(d, "map", slab=0, session=session, copies=DONOR)[0] == errno.ENOSPC
    lender.ask("undrain")
    wait_for(lambda: lender.ask()["free"] == 32 << 20, 60, "memory is not back")
    d.map(session, DONOR)
    users.stop()
    users.verify()
    assert d.counts()["donor_errors"] == 0 and d.session(session)["state"] == "live"
