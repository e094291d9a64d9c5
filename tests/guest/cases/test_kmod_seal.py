# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: devices and classes whose pages are sealed before they leave the machine."""
import errno
import os
import re
import socket
import threading
import time

import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import BACKUP, DONOR, PAGE, SECOND, content, faults, module_path, run
from machine import read, wait_for
from test_kmod_class import assign, refused, scanned, swapping, within, written

BOTH = DONOR | BACKUP


def make_sealed(d, number, copies, cgroup=None):
    d.netlink.call("class", device=d.number, copies=copies, seal=True, **{"class": number})
    if cgroup:
        assign(d, cgroup, number)


def memory_of(process):
    """Returns all writable memory of a process, including memory shared with the kernel."""
    found = []
    with open(f"/proc/{process.pid}/mem", "rb", 0) as memory:
        for line in read(f"/proc/{process.pid}/maps").splitlines():
            start, end, how = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            if not how.startswith("rw"):
                continue
            try:
                found.append(os.pread(memory.fileno(), int(end, 16) - int(start, 16),
                                      int(start, 16)))
            except OSError: # a device's mapping
                pass
    return found


class Raw:
    """A backup disk, accessed without the device."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR)

    def get(self, page):
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(self.fd, PAGE, page * PAGE)

    def put(self, page, data):
        os.pwrite(self.fd, data, page * PAGE)
        os.fsync(self.fd)


@pytest.fixture
def raw():
    made = []

    def make(path):
        made.append(Raw(path))
        return made[-1]

    yield make
    for r in made:
        os.close(r.fd)


def test_who_has_a_page_sees_nothing_of_it(kernel_device, donor, disk, cgroup, raw):
    """Neither donor nor disk has the plain text; an unsealed neighbour's page is found at both."""
    lender = donor(memory="32M")
    g = cgroup()
    d = kernel_device(mib=16, backup=disk(16).path)
    make_sealed(d, 1, BOTH, g)
    d.map(d.connect(), BOTH)
    d.map(d.connect(of=1), BOTH)
    for block in range(8):
        within(g, d.write, block * 128, 64, version=1)
        d.write(block * 128 + 64, 64, version=2)
    d.wait_behind()
    assert (written(d), written(d, 1)) == (512, 512)
    backup, memory = raw("/dev/nullb0"), memory_of(lender.process)
    for page in (0, 63, 128 * 7):
        assert d.bad(page, 1, 1) == d.bad(page + 64, 1, 2) == []
        assert backup.get(page + 64) == content(page + 64, 2)
        assert content(page, 1)[:16] not in backup.get(page)
        assert backup.get(page) != bytes(PAGE)
        assert any(content(page + 64, 2) in m for m in memory)
        assert not any(content(page, 1)[:256] in m for m in memory)
    # Sealing equal content twice gives different ciphertexts.
    before = backup.get(0)
    within(g, d.write, 0, 1, version=1)
    d.wait_behind()
    assert backup.get(0) != before and d.bad(0, 1, 1) == []
    # Read all pages, in requests with both kinds, and without the donor.
    for block in range(8):
        assert d.read(block * 128, 128) == \
            [content(block * 128 + i, 1 if i < 64 else 2) for i in range(128)]
    lender.kill()
    for session in (0, 1):
        d.wait_closed(session)
    for block in range(8):
        assert d.bad(block * 128, 64, 1) == d.bad(block * 128 + 64, 64, 2) == []
    n = d.counts()
    assert n["seal_broken"] == n["read_failed"] == n["write_failed"] == 0


def test_what_was_changed_is_not_read(kernel_device, disk, cgroup, raw):
    """A changed bit, another page and an older version give EIO; a new write makes the page right."""
    g = cgroup()
    d = kernel_device(mib=16, backup=disk(16).path)
    make_sealed(d, 2, BACKUP, g)
    within(g, d.write, 0, 8, version=1)
    backup = raw("/dev/nullb0")
    old = backup.get(0)
    within(g, d.write, 0, 1, version=2)
    backup.put(0, old)
    backup.put(1, backup.get(2))
    flipped = bytearray(backup.get(3))
    flipped[4095] ^= 1
    backup.put(3, bytes(flipped))
    for page in (0, 1, 3):
        with pytest.raises(OSError) as e:
            d.read(page, 1)
        assert e.value.errno == errno.EIO
    assert d.counts()["seal_broken"] == 3
    assert d.bad(2, 1, 1) == d.bad(4, 4, 1) == []
    within(g, d.write, 0, 4, version=3)
    assert d.bad(0, 4, 3) == d.bad(4, 4, 1) == []
    run("/sbin/blkdiscard", "-l", 4 * PAGE, d.path)
    assert d.read(0, 4) == [bytes(PAGE)] * 4


def test_donor_is_not_blamed_for_errors_of_this_machine(kernel_device, donor, disk):
    """If decryption fails for lack of memory, the page is read again, and finally gives EIO."""
    donor()
    d = kernel_device(backup=disk().path, seal=True)
    d.map(d.connect(), BOTH)
    d.write(0, 64, version=1)
    d.wait_behind()
    with faults("ebb_seal_decrypt", errno.ENOMEM, 4) as left:
        assert d.bad(0, 64, 1) == []
        assert left() == 0
    assert d.counts()["read_failed"] == 0
    with faults("ebb_seal_decrypt", errno.ENOMEM, 1000) as left:
        with pytest.raises(OSError) as e:
            d.read(0, 1)
        assert e.value.errno == errno.EIO
        assert 0 < left() < 1000
    assert d.bad(0, 64, 1) == []
    n = d.counts()
    assert (n["seal_broken"], n["read_failed"], n["read_backup"]) == (0, 1, 0)
    assert d.session()["state"] == "live"


def test_write_that_cannot_be_sealed_is_tried_again(kernel_device, donor, disk):
    """It still goes to every place: an error of this machine must not cost the copy on the disk."""
    lender = donor()
    d = kernel_device(backup=disk().path, seal=True)
    with faults("ebb_seal_encrypt", errno.ENOMEM, 3) as left:
        d.write(0, 16, version=1)
        assert left() == 0
    d.map(d.connect(), BOTH)
    with faults("ebb_seal_encrypt", errno.ENOMEM, 3) as left:
        d.write(16, 16, version=1)
        assert left() == 0
    d.wait_behind()
    n = d.counts()
    assert (n["write_backup"], n["write_donor"], n["write_failed"], n["away_waits"]) == (32, 16, 0, 0)
    lender.kill()
    d.wait_closed()
    assert d.bad(0, 32, 1) == []
    with faults("ebb_seal_encrypt", errno.ENOMEM, 100000):
        with pytest.raises(OSError) as e:
            d.write(0, 4, version=2)
        assert e.value.errno == errno.EIO
    for page in range(4):
        with pytest.raises(OSError):
            d.read(page, 1)
    d.write(0, 4, version=3)
    assert d.bad(0, 4, 3) == d.bad(4, 28, 1) == []


def test_sealed_program_swaps_beside_another(kernel_device, donor, disk, cgroup):
    """Its donor is killed; the sealed pages are copied to another without re-encryption."""
    lender = donor()
    donor(port=7472)
    sealed, plain = cgroup(12), cgroup(12)
    d = kernel_device(mib=64, backup=disk(64).path)
    make_sealed(d, 1, BOTH, sealed)
    d.map(d.connect(7472), BOTH)
    d.map(d.connect(of=1), BOTH)
    scans = swapping(d, sealed, plain)
    assert written(d, 1) > 1000
    lender.kill()
    d.wait_closed(1)
    donor()
    d.map(d.connect(of=1), BOTH)
    assert scanned(scans) == [0, 0]
    d.wait_copied(120, of=1)
    n = d.counts()
    assert n["copied"] > 0
    assert n["seal_broken"] == n["read_failed"] == n["write_failed"] == 0


def test_more_requests_than_buffers(kernel_device, donor, cgroup):
    """Requests wait for buffers, and all of them end."""
    donor()
    g = cgroup()
    d = kernel_device(depth=64)
    make_sealed(d, 1, DONOR, g)
    d.map(d.connect(of=1), DONOR)

    def users():
        children = []
        for which in range(40):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    first = which * 128
                    for version in range(1, 4):
                        d.write(first, 64, version)
                        status = 1 if d.bad(first, 64, version) else 0
                        if status:
                            break
                finally:
                    os._exit(status)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 40

    within(g, users)
    assert d.counts()["seal_broken"] == 0


def test_hung_disk_leaves_buffers_for_reads(kernel_device, donor, disk):
    """Writes that wait for the disk, since the pool is full, do not delay reads from the donor."""
    donor()
    d = kernel_device(backup=disk(delay_us=4_000_000).path, pool=16 * PAGE, seal=True)
    d.map(d.connect(), BOTH)
    d.open()
    d.write(0, 16, version=1)
    writers = [threading.Thread(target=d.write, args=(64 + i * 4, 4, 2)) for i in range(24)]
    began = time.monotonic()
    for w in writers:
        w.start()
    try:
        wait_for(lambda: d.counts()["pool_full"] >= 12, 5, "the writes do not wait for the disk")
        assert d.bad(0, 16, 1) == []
        assert time.monotonic() - began < 3 and all(w.is_alive() for w in writers)
    finally:
        for w in writers:
            w.join()
    assert d.bad(64, 96, 2) == []
    n = d.counts()
    assert n["read_donor"] == 112 and n["write_failed"] == 0


def test_hung_disk_leaves_buffers_while_it_is_read(kernel_device, donor, disk):
    """Reads of pages that only the disk has do not delay reads from the donor."""
    donor()
    d = kernel_device(backup=disk(delay_us=4_000_000).path, seal=True)
    d.map(d.connect(), DONOR, [1])
    first = d.pages // d.slabs
    d.write(0, 48, version=1)             # this slab has no donor
    d.write(first, 16, version=2)
    wrong, before = [], d.counts()["requests"]
    readers = [threading.Thread(target=lambda i=i: wrong.extend(d.bad(i * 2, 2, 1))) for i in range(24)]
    began = time.monotonic()
    for r in readers:
        r.start()
    try:
        wait_for(lambda: d.counts()["requests"] >= before + 24, 3, "the reads do not begin")
        assert d.bad(first, 16, 2) == []
        assert time.monotonic() - began < 3 and all(r.is_alive() for r in readers)
    finally:
        for r in readers:
            r.join()
    n = d.counts()
    assert wrong == [] and (n["read_donor"], n["read_backup"], n["read_failed"]) == (16, 48, 0)


def test_device_that_is_sealed(kernel_device, donor, disk, cgroup, raw):
    """All pages of class 0 are sealed; another class as configured."""
    lender = donor(memory="32M")
    g = cgroup()
    d = kernel_device(mib=16, backup=disk(16).path, seal=True)
    d.netlink.call("class", device=d.number, copies=BACKUP, **{"class": 1})
    assign(d, g, 1)
    told = d.netlink.status(d.number)
    assert told["seal"] and "seal" not in told["classes"][0]
    d.map(d.connect(), BOTH)
    for block in range(8):
        d.write(block * 128, 64, version=1)
        within(g, d.write, block * 128 + 64, 64, version=2)
    d.wait_behind()
    backup, memory = raw("/dev/nullb0"), memory_of(lender.process)
    for page in (0, 63, 128 * 7):
        assert content(page, 1)[:16] not in backup.get(page) != bytes(PAGE)
        assert not any(content(page, 1)[:256] in m for m in memory)
        assert backup.get(page + 64) == content(page + 64, 2)
    for block in range(8):
        assert d.read(block * 128, 128) == \
            [content(block * 128 + i, 1 if i < 64 else 2) for i in range(128)]
    assert d.counts()["read_donor"] == 512
    lender.kill()
    d.wait_closed()
    for block in range(8):
        assert d.bad(block * 128, 64, 1) == []
    backup.put(1, backup.get(2))
    with pytest.raises(OSError) as e:
        d.read(1, 1)
    assert e.value.errno == errno.EIO
    assert d.counts()["seal_broken"] == 1
    d.write(1, 1, version=3)
    assert d.bad(1, 1, 3) == d.bad(2, 62, 1) == []


def users_of(driver):
    """Returns the reference count of an algorithm; 1 without users."""
    block = next(b for b in read("/proc/crypto").split("\n\n") if re.search(rf"driver +: {driver}$", b, re.M))
    return int(re.search(r"refcnt +: (\d+)", block).group(1))


def test_an_algorithm_that_allocates_memory_is_passed_over(kernel_device, donor):
    """The module rejects it despite its priority: swap-out must not allocate."""
    run("insmod", module_path().parent / "fault/ebb_gcm.ko")
    try:
        with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as s:
            s.bind(("aead", "gcm(aes)"))
            assert users_of("gcm-aes-allocates") == 2, "the kernel does not prefer it"
        donor()
        d = kernel_device(seal=True)
        assert users_of("gcm-aes-allocates") == 1
        d.map(d.connect(), DONOR)
        d.write(0, 64, version=1)
        assert d.bad(0, 64, 1) == []
        d.destroy()
    finally:
        run("rmmod", "ebb_gcm")


def test_program_swaps_to_a_sealed_device(kernel_device, donor, cgroup):
    """One of two donors is killed: the other's pages can be opened and are copied to a third."""
    lender = donor()
    donor(port=7472)
    d = kernel_device(mib=64, copies=DONOR | SECOND, seal=True)
    for session in (d.connect(), d.connect(7472)):
        d.map(session, DONOR | SECOND)
    scans = swapping(d, cgroup(12))
    lender.kill()
    d.wait_closed()
    donor(port=7473)
    d.map(d.connect(7473), DONOR | SECOND)
    assert scanned(scans) == [0]
    d.wait_copied(120)
    n = d.counts()
    assert n["copied"] > 0
    assert n["seal_broken"] == n["read_failed"] == n["write_failed"] == 0


def test_seal_is_for_good(kernel_device):
    d = kernel_device()
    make_sealed(d, 1, DONOR)
    d.netlink.call("class", device=d.number, **{"class": 2})
    why = (errno.EEXIST, "seal: an existing class cannot change it")
    assert refused(d, "class", **{"class": 1}) == why
    assert refused(d, "class", seal=True, **{"class": 2}) == why
    assert d.netlink.status(d.number)["classes"] == \
        [{"class": 1, "copies": DONOR, "seal": True}, {"class": 2, "copies": DONOR}]
