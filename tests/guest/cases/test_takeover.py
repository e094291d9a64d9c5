# SPDX-License-Identifier: GPL-2.0-or-later
"""
The server of a swap device is killed while a program larger than its memory checks its pages:
the standby takes over, and the program sees no error.
"""
import ctypes
import os
import random
import signal
import time

import pytest

import machine
import parts
from cluster import Checker
from machine import wait_for

SECONDS = int(os.environ.get("EBB_SOAK_SECONDS", 18))
SEED = int(os.environ.get("EBB_SOAK_SEED", 1))
MIB, LIMIT = 48, 24
# system/test_takeover.py has all combinations, without swap.
SETUPS = [
    ("tcp", ["--durability", "none", "--seal", "on"]),
    ("shm", []),
]


@pytest.mark.parametrize("transport,options", SETUPS)
def test_swapping_while_servers_die(swap_lock, donor_factory, cgroup, logs, tmp_path, transport, options):
    where = {"port": 7070} if transport == "tcp" else {"path": tmp_path / "donor.sock"}
    donor, rnd = donor_factory(memory="128M", slab="1M", **where), random.Random(SEED)
    device = parts.Device(donor, size="96M", slab="1M", options=options)
    c = cgroup(limit_mib=LIMIT)
    checker = Checker(None, logs / "checker.log", ("--memory", MIB, "--pause", 200, "--progress", 10),
                      enter=c.enter)
    kills, end = 0, time.monotonic() + SECONDS
    try:
        wait_for(lambda: (device.used_kib() or 0) > 4 << 10, 60, "pages on the device")
        while time.monotonic() < end or kills < 5:
            assert not checker.failed(), checker.failed()
            told = wait_for(device.status_with_standby, 30, "a standby")
            both = kills % 5 == 4
            os.kill(told["server"], signal.SIGKILL)
            if both:
                time.sleep(rnd.uniform(0, 0.05))
                os.kill(told["standby"], signal.SIGKILL)
            kills += 1
            gone = (told["server"], told["standby"] if both else 0)
            device.successor(gone)
            time.sleep(rnd.uniform(0.2, 3))
        told = checker.stop(timeout=240)
        assert told["bad"] == 0 and told["verified"] == told["pages"]
        stats = device.stats()
        assert stats["pages_read_failed"] == stats["pages_write_failed"] == 0
        # An emulated donor may be late once or twice; a faulty next server would lose it each time.
        assert stats["donor_losses"] <= kills / 2
        print(f"{kills} servers killed", flush=True)
    finally:
        checker.kill()
        device.destroy()


def test_everything_else_may_be_paged_out(swap_lock, donor_factory, cgroup, logs):
    """A failover needs no process with pages on the device, which also has those of PID 1."""
    donor = donor_factory(port=7070, memory="128M", slab="1M")
    device = parts.Device(donor, size="96M", slab="1M", options=["--durability", "none"])
    c = cgroup(limit_mib=LIMIT)
    checker = Checker(None, logs / "checker.log", ("--memory", MIB, "--pause", 200), enter=c.enter)
    try:
        wait_for(lambda: (device.used_kib() or 0) > 4 << 10, 60, "pages on the device")
        for _ in range(5):
            told = wait_for(device.status_with_standby, 30, "a standby")
            page_out(1)
            page_out(os.getpid())
            os.kill(told["server"], signal.SIGKILL)
            now = device.successor([told["server"]])
            assert now["server"] == told["standby"]
            time.sleep(0.5)
            assert not checker.failed(), checker.failed()
        assert checker.stop(timeout=240)["bad"] == 0
    finally:
        checker.kill()
        device.destroy()


def page_out(pid):
    """Pages out a process, by process_madvise(MADV_PAGEOUT) of all private mappings."""
    class Span(ctypes.Structure):
        _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    libc, process_madvise, pageout = ctypes.CDLL(None), 440, 21
    pidfd = os.pidfd_open(pid)
    try:
        for line in machine.read(f"/proc/{pid}/maps").splitlines():
            span, flags = line.split()[:2]
            if not flags.startswith("rw") or not flags.endswith("p"):
                continue
            start, end = (int(x, 16) for x in span.split("-"))
            span = Span(start, end - start)
            libc.syscall(process_madvise, pidfd, ctypes.byref(span), ctypes.c_size_t(1), pageout, 0)
    finally:
        os.close(pidfd)
