# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: repair, migration and drain of slabs, also when a donor or the device ends meanwhile."""
import errno
import random
import threading
import time

import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import BACKUP, DONOR
from kswap import NO_SESSION, Refused
from machine import wait_for

BOTH = DONOR | BACKUP


def fill(d, version):
    for first in range(0, d.pages, 64):
        d.write(first, 64, version)


def wait_free(d, session, mib):
    """Waits until the donor has its memory back, shortly after the last page has left."""
    wait_for(lambda: d.session(session)["donor_free"] == mib << 20, 20,
             f"session {session}: its donor has not {mib} MiB to lend")


def refused(d, command, **fields):
    with pytest.raises(Refused) as e:
        d.netlink.call(command, device=d.number, **fields)
    return e.value.errno, e.value.text


class Users:
    """Threads that write pages, read them back and track the version of each block."""

    def __init__(self, device, versions=(), count=3):
        self.device, self.versions, self.failed = device, dict(versions), []
        self.stopping = threading.Event()
        device.open()
        device.users.append(self)
        self.threads = [threading.Thread(target=self.use, args=(i, count)) for i in range(count)]
        for t in self.threads:
            t.start()

    def use(self, which, count):
        rnd = random.Random(which)
        blocks = range(which, self.device.pages // 16, count)
        try:
            while not self.stopping.is_set():
                block = rnd.choice(blocks)
                version = self.versions.get(block, 1) + 1
                self.device.write(block * 16, 8, version)
                self.versions[block] = version
                block = rnd.choice(blocks)
                if self.device.bad(block * 16, 8, self.versions.get(block, 1)):
                    self.failed.append(block)
        except OSError as e:
            self.failed.append(e)

    def end(self):
        self.stopping.set()
        for t in self.threads:
            t.join()

    def stop(self):
        self.end()
        assert self.failed == []

    def verify(self):
        """Checks every page of the device, which was filled with version 1 before."""
        for block in range(self.device.pages // 16):
            first = block * 16
            assert self.device.bad(first, 8, self.versions.get(block, 1)) == []
            assert self.device.bad(first + 8, 8, 1) == []


def test_repair_from_the_backup(kernel_device, donor, disk):
    """A new donor gets the lost donor's pages; then nothing is read from the backup any more."""
    first = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    fill(d, 1)
    d.wait_behind()
    first.kill()
    d.wait_closed()
    d.write(0, 8, 2)
    donor()
    d.map(d.connect(), BOTH)
    users = Users(d, {0: 2})
    d.wait_copied()
    users.stop()
    before = d.counts()
    assert 0 < before["copied"] <= d.pages
    users.verify()
    after = d.counts()
    assert after["read_backup"] == before["read_backup"]
    assert after["read_donor"] - before["read_donor"] == d.pages


def test_migrate_under_readers_and_writers(kernel_device, donor):
    """Slabs migrate to and fro without a backup: no page is lost, and the old donor is not needed."""
    _, two = donor(), donor(port=7472)
    d = kernel_device(mib=16)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    fill(d, 1)
    users = Users(d)
    for to in (b, a):
        for slab in range(d.slabs):
            d.netlink.call("migrate", device=d.number, slab=slab, session=to)
        d.wait_copied()
        assert {s["session"] for s in d.slab_table()} == {to}
    users.stop()
    n = d.counts()
    assert n["copied"] > d.pages and n["donor_errors"] == n["write_failed"] == 0
    wait_free(d, a, 64 - 16)
    wait_free(d, b, 64)
    d.netlink.call("disconnect", device=d.number, session=b)
    two.kill()
    users.verify()


def test_program_swaps_while_its_pages_migrate(kernel_device, donor, cgroup):
    donor(), donor(port=7472)
    d = kernel_device(mib=64)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    d.swap_on()
    scan = parts.Scan(mib=24, passes=2, pattern="random", write=True, cgroup=cgroup(12))
    scan.go()
    wait_for(lambda: d.counts()["read_donor"] > 200, 60, "no reads from the donor")
    for to in (b, a):
        for slab in range(d.slabs):
            d.netlink.call("migrate", device=d.number, slab=slab, session=to)
        d.wait_copied()
    assert scan.result()["bad"] == 0
    n = d.counts()
    assert n["copied"] > 0 and n["read_failed"] == n["write_failed"] == 0


def test_target_dies_while_slabs_come_to_it(kernel_device, donor):
    """The source becomes their donor again and still has every page."""
    donor()
    two = donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    fill(d, 1)
    for slab in range(d.slabs - 1):
        d.netlink.call("migrate", device=d.number, slab=slab, session=b)
        if d.counts()["copied"] > d.pages // 4:
            break
    two.kill()
    d.wait_closed(b)
    d.wait_copied()
    for index, slab in enumerate(d.slab_table()):
        # Only slabs that had left the source completely are lost with the target.
        if slab["session"] == a:
            first = index * d.pages // d.slabs
            assert d.bad(first, d.pages // d.slabs // 16, 1) == []
            d.write(first, 16, 2)
            assert d.bad(first, 16, 2) == []
        else:
            assert slab["session"] == NO_SESSION
    assert d.slab_table()[-1]["session"] == a


def test_no_write_fails_when_the_target_dies(kernel_device, donor):
    """Writes go to the source at once, even before all slabs are detached from the target."""
    # Donors of one slab: their start must not delay the remaining donor.
    settings = {"memory": "16M", "slab": "16M"}
    donor(**settings)
    d = kernel_device(mib=16, slab_mib=16)
    a = d.connect()
    d.map(a, DONOR)
    fill(d, 1)
    stop, failed = threading.Event(), []

    def write(which):
        while not stop.is_set():
            try:
                d.write(which * 64, 8, 2)
            except OSError as e:
                failed.append(e)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    try:
        for _ in range(4):
            two = donor(port=7472, **settings)
            b = d.connect(7472)
            d.netlink.call("migrate", device=d.number, slab=0, session=b)
            two.kill()
            d.wait_closed(b)
            slab, = d.slab_table()
            assert (slab["session"], slab["source"]) == (a, NO_SESSION)
            d.netlink.call("disconnect", device=d.number, session=b)
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert failed == [] and d.counts()["write_failed"] == 0


def test_source_dies_while_slabs_leave_it(kernel_device, donor, disk):
    """Pages not copied yet are read from the backup, while threads write."""
    one, _ = donor(), donor(port=7472)
    d = kernel_device(mib=16, backup=disk().path)
    a, b = d.connect(), d.connect(7472)
    d.map(a, BOTH)
    fill(d, 1)
    d.wait_behind()
    users = Users(d)
    for slab in range(d.slabs):
        d.netlink.call("migrate", device=d.number, slab=slab, session=b)
    one.kill()
    d.wait_closed(a)
    d.wait_copied()
    time.sleep(0.5)
    users.stop()
    assert {(s["session"], s["source"]) for s in d.slab_table()} == {(b, NO_SESSION)}
    before = d.counts()["read_backup"]
    users.verify()
    assert d.counts()["read_backup"] == before


def test_drain_to_another_donor_and_to_the_backup(kernel_device, donor, disk):
    """Drain moves pages that only the donor had, too; then it can be disconnected without loss."""
    one, _ = donor(), donor(port=7472, memory="16M")
    d = kernel_device(backup=disk().path)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    fill(d, 1)
    users = Users(d)
    # The target has memory for half of the slabs.
    with pytest.raises(Refused) as e:
        d.drain(a, b)
    assert (e.value.errno, e.value.text) == (errno.ENOSPC, "no free slab")
    d.wait_copied()
    assert sorted(s["session"] for s in d.slab_table()) == [a] * 4 + [b] * 4
    assert refused(d, "migrate", slab=0, session=a)[0] == errno.ESHUTDOWN
    assert refused(d, "disconnect", session=a)[0] == errno.EBUSY
    d.drain(a)
    d.wait_copied()
    assert sorted(s["session"] for s in d.slab_table()) == [b] * 4 + [NO_SESSION] * 4
    wait_free(d, a, 64)
    d.netlink.call("disconnect", device=d.number, session=a)
    one.kill()
    users.stop()
    users.verify()
    assert d.counts()["read_backup"] > 0


def test_disconnected_under_readers_and_writers(kernel_device, donor, disk):
    """No page is only at its donor, so no page and no write in flight is lost."""
    donor()
    d = kernel_device(mib=16, backup=disk().path)
    a = d.connect()
    d.map(a, BOTH)
    fill(d, 1)
    users = Users(d)
    before = d.counts()["write_donor"]
    wait_for(lambda: d.counts()["write_donor"] > before + 64, 30, "no writes")
    d.netlink.call("disconnect", device=d.number, session=a)
    users.stop()
    assert {(s["session"], s["donor_only"]) for s in d.slab_table()} == {(NO_SESSION, 0)}
    users.verify()
    n = d.counts()
    assert n["read_failed"] == n["write_failed"] == 0


def test_migrate_and_drain_refuse(kernel_device, donor):
    donor()
    d = kernel_device()
    a = d.connect()
    assert refused(d, "migrate", session=a) == (errno.EINVAL, "slab: not given")
    assert refused(d, "migrate", slab=d.slabs, session=a)[0] == errno.ERANGE
    assert refused(d, "migrate", slab=0, session=a + 9)[0] == errno.ENOENT
    assert refused(d, "migrate", slab=0, session=a) == (errno.ENOENT, "slab: not mapped")
    d.map(a, DONOR, [0])
    assert refused(d, "migrate", slab=0, session=a) == (errno.EEXIST, "session: already has the slab")
    assert refused(d, "migrate", slab=0) == \
        (errno.EINVAL, "session: not given, and the device has no backup")
    assert refused(d, "drain") == (errno.EINVAL, "session: not given")
    # With the target that clients of version 1 send.
    d.netlink.call("drain", device=d.number, session=a, target=a + 9)
    assert d.session(a)["draining"] and d.slab_table()[0]["session"] == a
    assert refused(d, "map", slab=1, session=a)[0] == errno.ESHUTDOWN
    d.write(0, 4, 1)
    assert d.bad(0, 4, 1) == []


def test_destroyed_while_it_copies(kernel_device, donor, disk):
    """The copier ends first, in any state."""
    one, _ = donor(), donor(port=7472)
    ram = disk()
    for i in range(3):
        d = kernel_device(backup=ram.path)
        a, b = d.connect(), d.connect(7472)
        d.map(a, BOTH)
        fill(d, 1)
        for slab in range(d.slabs):
            d.netlink.call("migrate", device=d.number, slab=slab, session=b)
        d.destroy()
    assert one.process.poll() is None
