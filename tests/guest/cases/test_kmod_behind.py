# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: with write-behind, each page is at a donor, in the pool or on the disk at any time."""
import errno
import os
import re
import time
from pathlib import Path

import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import BACKUP, DONOR, PAGE, run
from machine import wait_for

BOTH = DONOR | BACKUP
SECOND = 1000000


def used(d):
    return d.netlink.status(d.number)["pool_used"]


def test_a_slow_backup_is_not_waited_for(kernel_device, donor, disk):
    lender = donor()
    d = kernel_device(backup=disk(delay_us=4 * SECOND).path)
    d.map(d.connect(), BOTH)
    began = time.monotonic()
    for first in range(0, 128, 8):
        d.write(first, 8, version=1)
    assert time.monotonic() - began < 3.5
    assert used(d) == 128 * PAGE
    n = d.counts()
    assert (n["behind"], n["write_backup"], n["pool_full"]) == (128, 0, 0)
    d.wait_behind()
    n = d.counts()
    assert (n["write_donor"], n["write_backup"], n["read_pool"]) == (128, 128, 0)
    lender.kill()
    d.wait_closed()
    assert d.bad(0, 128, 1) == []
    assert d.counts()["read_backup"] == 128


def queued(path, use):
    """Returns the flags of the bios that @path gets while use() runs, in the letters of blktrace."""
    tracing = Path("/sys/kernel/tracing")
    dev = os.stat(path).st_rdev
    (tracing / "trace").write_text("")
    (tracing / "events/block/block_bio_queue/enable").write_text("1")
    try:
        use()
        told = (tracing / "trace").read_text()
    finally:
        (tracing / "events/block/block_bio_queue/enable").write_text("0")
    return re.findall(rf"block_bio_queue: {os.major(dev)},{os.minor(dev)} (\w+) ", told)


def test_backup_does_not_throttle_swap_out(kernel_device, donor, disk):
    """Its writes are as urgent as the requests, and so are those of the pool."""
    donor()
    ram = disk()
    d = kernel_device(backup=ram.path)
    told = queued(ram.path, lambda: d.write(0, 8, version=1))
    assert told and set(told) == {"WS"}
    d.map(d.connect(), BOTH)

    def behind():
        d.write(0, 8, version=2)
        d.wait_behind()

    told = queued(ram.path, behind)
    assert d.counts()["behind"] == 8 and told and set(told) == {"WS"}


def test_backup_does_not_throttle_a_swapping_program(kernel_device, disk, cgroup):
    """Its swap-outs, which are not synchronous, go to the backup directly."""
    ram = disk(64)
    d = kernel_device(mib=64, backup=ram.path)
    d.swap_on()
    told = queued(ram.path, lambda: parts.Scan(mib=24, cgroup=cgroup(16)).kill())
    assert d.counts()["write_backup"] > 4 << 8
    assert {flags for flags in told if flags.startswith("W")} == {"WS"}


def test_donor_dies_while_the_backup_is_behind(kernel_device, donor, disk):
    """Acknowledged pages are read from the pool, then from the disk."""
    lender = donor()
    # 16 writes at a time: the second half is in the pool for at least two delays.  The disk
    # fails requests that take longer than five seconds.
    d = kernel_device(backup=disk(delay_us=4 * SECOND).path)
    d.map(d.connect(), BOTH)
    for first in range(0, 128, 2):
        d.write(first, 2, version=1)
    lender.kill()
    d.wait_closed()
    assert d.bad(64, 32, 1) == d.bad(100, 28, 1) == d.bad(97, 2, 1) == []
    assert d.counts()["read_pool"] == 62
    d.wait_behind()
    assert d.bad(0, 128, 1) == []
    n = d.counts()
    assert (n["read_pool"], n["read_backup"]) == (62, 128)
    assert n["read_failed"] == n["write_failed"] == 0


def test_a_full_pool_pushes_back(kernel_device, donor, disk):
    """At most the pool's size is behind; every write is always in some place."""
    lender = donor()
    d = kernel_device(backup=disk(delay_us=SECOND // 20).path, pool=16 * PAGE)
    d.map(d.connect(), BOTH)
    most = 0
    for i in range(40):
        d.write(i * 4, 4, version=1)
        most = max(most, used(d))
    assert 0 < most <= 16 * PAGE
    n = d.counts()
    assert n["pool_full"] > 0 and n["behind"] > 0
    lender.kill()
    assert d.bad(0, 160, 1) == []
    d.wait_behind()
    assert d.counts()["write_backup"] == 160


def test_without_a_pool(kernel_device, donor, disk):
    donor()
    d = kernel_device(backup=disk().path, pool=0)
    d.map(d.connect(), BOTH)
    d.write(0, 64, version=1)
    n = d.counts()
    assert (n["write_donor"], n["write_backup"], n["behind"], n["pool_full"]) == (64, 64, 0, 0)


def test_neither_donor_nor_backup(kernel_device, donor, disk):
    """Acknowledged pages stay in the pool until the disk takes them; no request hangs."""
    ram = disk(delay_us=4 * SECOND)
    lender = donor()
    d = kernel_device(backup=ram.path)
    d.map(d.connect(), BOTH)
    ram.fail()
    d.write(0, 8, version=1)
    lender.kill()
    d.wait_closed()
    wait_for(lambda: d.counts()["backup_errors"] > 0, 30, "the backup did not fail")
    assert d.bad(0, 8, 1) == []
    with pytest.raises(OSError) as e:
        d.write(0, 4, version=2)          # fails: no place takes it
    assert e.value.errno == errno.EIO
    with pytest.raises(OSError):
        d.read(0, 4)                      # version 1 must not be read any more
    assert d.bad(4, 4, 1) == []
    ram.heal()
    d.wait_behind()
    before = d.counts()
    assert d.bad(4, 4, 1) == []
    d.write(0, 4, version=3)
    assert d.bad(0, 4, 3) == d.bad(4, 4, 1) == []
    after = d.counts()
    assert after["read_backup"] - before["read_backup"] == 12
    assert after["read_pool"] == before["read_pool"] >= 12


def test_discarded_while_behind(kernel_device, donor, disk):
    """Pages discarded before they are on the disk are not read from it later."""
    lender = donor()
    d = kernel_device(backup=disk(delay_us=2 * SECOND).path)
    d.map(d.connect(), BOTH)
    d.write(0, 16, version=1)
    run("/sbin/blkdiscard", "-o", 4 * PAGE, "-l", 4 * PAGE, d.path)
    d.wait_behind()
    lender.kill()
    d.wait_closed()
    assert d.bad(0, 4, 1) == d.bad(8, 8, 1) == []
    assert d.read(4, 4) == [bytes(PAGE)] * 4
    d.write(4, 4, version=2)
    assert d.bad(4, 4, 2) == []


def test_destroyed_while_behind(kernel_device, donor, disk):
    """Destroying waits for the disk, unless it is broken."""
    ram = disk(delay_us=2 * SECOND)
    donor()
    for broken in (False, True):
        d = kernel_device(backup=ram.path)
        d.map(d.connect(), BOTH)
        if broken:
            ram.fail()
        d.write(0, 64, version=1)
        if broken:
            d.netlink.call("disconnect", device=d.number, session=0)
        d.destroy()
    ram.heal()
    d = kernel_device(backup=ram.path)
    assert d.netlink.status(d.number)["pool"] == 4 << 20


def test_program_swaps_with_a_small_pool(kernel_device, donor, disk, cgroup):
    """The pool is full and empty in turn, while the donor dies."""
    lender = donor()
    d = kernel_device(mib=64, backup=disk(64, delay_us=2000).path, pool=64 * PAGE)
    d.map(d.connect(), BOTH)
    d.swap_on()
    scan = parts.Scan(mib=24, passes=2, pattern="random", write=True, cgroup=cgroup(12))
    scan.go()
    wait_for(lambda: d.counts()["read_donor"] > 200, 60, "no reads from the donor")
    lender.kill()
    assert scan.result()["bad"] == 0
    n = d.counts()
    assert n["behind"] > 0 and n["pool_full"] > 0
    assert n["read_failed"] == n["write_failed"] == 0
