# SPDX-License-Identifier: GPL-2.0-or-later
"""
The ublk frontend: pages by /dev/ublkbN, and a program that swaps there while servers are killed.
Debian's 6.1 has no ublk_drv: there ebb rejects the frontend with a message.
"""
import contextlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import machine
import parts
from cluster import Checker
from machine import wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "system"))
from dataplane import MIB, PAGE, Pages, Server


SECONDS = int(os.environ.get("EBB_SOAK_SECONDS", 10))
SEED = int(os.environ.get("EBB_SOAK_SEED", 1))
MIB_USED, LIMIT = 48, 24


@pytest.fixture(autouse=True)
def ublk(series):
    """Whether the kernel has ublk."""
    subprocess.run(["modprobe", "ublk_drv"], check=series != "6.1", capture_output=True)
    return series != "6.1"


@pytest.fixture
def needs_ublk(ublk):
    if not ublk:
        pytest.skip("Debian's 6.1 has no ublk_drv")


@pytest.fixture
def server(donor_factory, logs, tmp_path):
    made = []

    def make(name="s", transport="tcp", **keywords):
        where = {"port": 7070} if transport == "tcp" else {"path": tmp_path / "donor.sock"}
        donor = donor_factory(memory="128M", slab="1M", **where)
        directory = tmp_path / name
        directory.mkdir()
        options = ["--frontend", "ublk", *keywords.pop("options", ())]
        s = Server(directory, logs / f"{name}.log", [donor], options=options, **keywords)
        made.append(s)
        s.file = Path(s.status()["file"])
        assert str(s.file).startswith("/dev/ublkb")
        return s

    yield make
    for s in made:
        s.stop()
        assert not s.file.exists()


class Block(Pages):
    """Pages of a block device, which differs from a file in size and discards."""

    def __init__(self, server, seed=1):
        super().__init__(server, seed)
        self.path = server.file
        self.size = os.lseek(self.fd, 0, os.SEEK_END)
        self.model = bytearray(self.size)

    def discard(self, page, count):
        subprocess.run(["blkdiscard", "-o", str(page * PAGE), "-l", str(count * PAGE),
                        self.path], check=True)
        self.model[page * PAGE:(page + count) * PAGE] = bytes(count * PAGE)


def test_pages(needs_ublk, server):
    s = server(transport="shm", size="16M", options=["--watchdog", "6s", "--deadline", "3s"])
    pages = Block(s)
    try:
        assert pages.size == 16 * MIB
        queues = os.listdir(f"/sys/block/{s.file.name}/mq")
        assert len(queues) == min(os.cpu_count(), 2)
        pages.check()
        pages.write_random(40)
        pages.discard(100, 300)
        pages.write(0, bytes(8 * PAGE))
        pages.check()
        for _ in range(2):
            pages.write_random(20)
            s.kill_server(60)
            pages.check()
        # A hung server is killed.
        os.kill(wait_for(s.ready, 20, "a standby")["server"], signal.SIGSTOP)
        pages.check()
        told = s.stats()
        assert told["pages_read_failed"] == told["pages_write_failed"] == 0
        assert s.status()["takeovers"] >= 3
        print(s.status()["takeover_ms"], "ms", flush=True)
        stop_is_refused(s)
        pages.check()
        # If the next server hangs, too, programs get errors instead of waiting.
        told = wait_for(s.ready, 20, "a standby")
        for who in "standby", "server":
            os.kill(told[who], signal.SIGSTOP)
        assert is_gone(pages)
        assert s.process.wait(120) == 1
        assert "no answer for too long, device aborted" in machine.read(s.log)
    finally:
        pages.close()


def is_gone(pages):
    """Returns whether the device was removed: reads end at its first byte, or fail."""
    with contextlib.suppress(OSError), mmap.mmap(-1, PAGE) as page:
        return os.preadv(pages.fd, [page], 0) == 0
    return True


def stop_is_refused(s):
    """Checks that stopping is rejected while the device is open exclusively, as by swap."""
    holder = os.open(s.file, os.O_RDONLY | os.O_EXCL)
    try:
        s.signal(signal.SIGTERM)
        wait_for(lambda: "cannot stop" in machine.read(s.log), 10, "a refusal")
        assert s.file.exists() and s.status()["frontend"] == "ublk"
    finally:
        os.close(holder)


def test_says_what_is_there(ublk, donor_factory):
    """doctor reports ublk, and a device that cannot be created leaves nothing."""
    rows = {c["name"]: c for c in json.loads(parts.ebbctl("doctor", "--json", check=False).stdout)["checks"]}
    assert (rows["/dev/ublk-control"]["state"] == "have") == ublk
    if ublk:
        return
    assert "modprobe ublk_drv" in rows["/dev/ublk-control"]["remedy"]
    donor = donor_factory(port=7070, memory="32M", slab="1M")
    done = parts.ebbctl("device", "create", "test0", "--size", "16M", "--donor", donor.address,
                        "--frontend", "ublk", check=False)
    assert done.returncode == 3 and "modprobe ublk_drv" in done.stderr


def test_servers_that_crash_again_and_again(needs_ublk, server):
    """The supervisor removes the device, and programs get errors."""
    s = server(size="16M")
    pages = Block(s)
    try:
        pages.write_random(20)
        for _ in range(9):
            told = wait_for(s.told, 20, "a server")
            os.kill(told["server"], signal.SIGSEGV)
            wait_for(lambda: (now := s.told()) and now["server"] != told["server"], 20, "another")
        pages.check()
        # The tenth kill, unless this machine is too busy for ten within a minute.
        for _ in range(30):
            server = wait_for(s.told, 20, "a server")["server"]
            os.kill(server, signal.SIGSEGV)
            wait_for(lambda: not s.alive() or ((now := s.told()) and now["server"] != server), 30, "the end")
            if not s.alive():
                break
        assert s.process.wait(120) == 1
        assert is_gone(pages)
    finally:
        pages.close()
    assert "its servers crash, 10 within 60 s" in machine.read(s.log)
    assert not s.file.exists() and not list((s.run / "devices").iterdir())


def test_swapping_while_servers_die(needs_ublk, swap_lock, donor_factory, cgroup, logs):
    donor, rnd = donor_factory(port=7070, memory="128M", slab="1M"), random.Random(SEED)
    device = parts.Device(donor, size="96M", slab="1M",
                          options=["--frontend", "ublk", "--seal", "on"])
    c = cgroup(limit_mib=LIMIT)
    checker = Checker(None, logs / "checker.log",
                      ("--memory", MIB_USED, "--pause", 200, "--progress", 10), enter=c.enter)
    kills, longest, end = 0, 0, time.monotonic() + SECONDS
    try:
        assert device.record["frontend"] == "ublk" and device.block.startswith("/dev/ublkb")
        # Some tags of each queue are kept free, and 8 MiB are in flight at most.
        queue = Path(f"/sys/block/{Path(device.block).name}/queue")
        assert int(machine.read(queue / "nr_requests")) == 64 // min(os.cpu_count(), 2)
        assert int(machine.read(queue / "max_sectors_kb")) == 128
        wait_for(lambda: (device.used_kib() or 0) > 4 << 10, 60, "pages on the device")
        while time.monotonic() < end:
            assert not checker.failed(), checker.failed()
            told = wait_for(device.status_with_standby, 30, "a standby")
            os.kill(told["server"], signal.SIGKILL)
            kills += 1
            now = device.successor([told["server"]], 40)
            longest = max(longest, now["takeover_ms"])
            time.sleep(rnd.uniform(0.2, 2))
        told = checker.stop(timeout=240)
        assert told["bad"] == 0 and told["verified"] == told["pages"]
        stats = device.stats()
        assert stats["pages_read_failed"] == stats["pages_write_failed"] == 0
        # An emulated donor may be late once or twice; a faulty next server would lose it each time.
        assert stats["donor_losses"] <= max(kills / 2, 1)
        print(f"{kills} servers killed, the longest takeover {longest} ms", flush=True)
    finally:
        checker.kill()
        device.destroy()
    assert not Path(device.block).exists()


def test_small_cgroup_waits_for_a_stalled_donor(needs_ublk, swap_lock, donor_factory, cgroup):
    """As in test_faults.py; two queues of 56 requests of 128 KiB hold 14 MiB."""
    donor, limit = donor_factory(port=7070, memory="128M", slab="1M"), 10
    device = parts.Device(donor, size="96M", slab="1M",
                          options=["--frontend", "ublk", "--durability", "none"])
    try:
        c = cgroup(limit_mib=limit)
        assert parts.fill_while_stalled(donor, c, 2 * limit) == 0
        assert device.block_pages()[1] > limit << 8
        assert c.events("oom_kill") == 0
    finally:
        device.destroy()


def test_nobody_is_left(needs_ublk, donor_factory, cgroup, logs):
    """With all processes dead, programs wait until the device is aborted; then they end."""
    donor = donor_factory(port=7070, memory="128M", slab="1M")
    device = parts.Device(donor, size="96M", slab="1M",
                          options=["--frontend", "ublk", "--durability", "none"])
    c = cgroup(limit_mib=LIMIT)
    checker = Checker(None, logs / "checker.log", ("--memory", MIB_USED, "--pause", 200), enter=c.enter)
    try:
        wait_for(lambda: (device.used_kib() or 0) > 4 << 10, 60, "pages on the device")
        told = wait_for(device.status_with_standby, 30, "a standby")
        for who in ("holder", "standby", "server"):
            os.kill(told[who], signal.SIGKILL)
        time.sleep(3)
        done = parts.ebbctl("device", "destroy", device.name, check=False)
        assert done.returncode == 5 and "ebb-swapd is dead" in done.stderr
        assert not checker.failed()
        parts.ebbctl("device", "abort", device.name, "--yes")
        # SIGKILL: out of memory, as no page can leave.
        assert checker.process.wait(240) in (*parts.UNREADABLE, -signal.SIGKILL)
    finally:
        checker.kill()
        done = parts.ebbctl("device", "destroy", device.name, "--force", check=False)
    assert done.returncode == 0, done.stderr
    assert not Path("/sys/block", Path(device.block).name).exists()
    # The kernel has no name left by which swap could be taken off.
    assert machine.read("/proc/swaps").count("(deleted)") == 1
