# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: pages at a donor (Soft-RoCE) and on a backup disk, and their failures."""
import ctypes
import errno
import fcntl
import mmap
import os
import random
import signal
import struct
import subprocess
import threading
import time

import machine
import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import BACKUP, DONOR, PAGE, content, run, rxe_add, rxe_remove
from machine import read, wait_for
from parts import noted
from test_kmod_seal import memory_of

BOTH = DONOR | BACKUP
BLKDISCARD, BLKZEROOUT = 0x1277, 0x127f
IO_SETUP, IO_DESTROY, IO_GETEVENTS, IO_SUBMIT = 206, 207, 208, 209 # system calls of x86-64


def test_every_page_by_the_donor_alone(kernel_device, donor):
    """Pages are right, both ways are one-sided, and there is one message per request."""
    donor()
    d = kernel_device()
    d.map(d.connect(), DONOR)
    for first in range(0, d.pages, 64):
        d.write(first, 64, version=7)
    assert sum((d.bad(first, 64, 7) for first in range(0, d.pages, 64)), []) == []
    n = d.counts()
    assert (n["write_donor"], n["read_donor"]) == (d.pages, d.pages)
    assert n["write_backup"] == n["read_backup"] == n["donor_errors"] == 0
    # At least sixteen pages per message, as many as are gathered, in both directions.
    assert n["messages"] == n["requests"] <= d.pages / 8
    assert n["doorbells"] <= n["messages"]
    assert [s["written"] for s in d.slab_table()] == [d.pages // d.slabs] * d.slabs
    assert all(s["writes"] == s["reads"] == d.pages // d.slabs for s in d.slab_table())


def test_program_swaps_to_a_donor(kernel_device, donor, cgroup):
    donor()
    d = kernel_device(mib=64)
    d.map(d.connect(), DONOR)
    d.swap_on()
    before = d.counts()
    told = parts.scan_json(mib=32, passes=2, pattern="random", write=True, cgroup=cgroup(16))
    n = d.counts()
    assert told["bad"] == 0
    # The pages that mkswap had written before are at the donor, too.
    assert n["write_donor"] - before["write_donor"] > 4096
    assert n["read_donor"] - before["read_donor"] > 2048
    assert n["read_backup"] == n["write_backup"] == n["read_failed"] == n["write_failed"] == 0
    print(f"messages a page: {n['messages'] / (n['read_donor'] + n['write_donor']):.2f}, "
          f"doorbells: {n['doorbells'] / (n['read_donor'] + n['write_donor']):.2f}")


def test_small_cgroup_waits_for_slow_writes(kernel_device, disk, cgroup):
    """Swap-outs in flight never fill a cgroup: reclaim would give up, and the OOM killer act."""
    d = kernel_device(mib=64, backup=disk(64, delay_us=200_000).path)
    d.swap_on()
    c = cgroup(12)
    most, filled = 0, threading.Event()

    def watch():
        nonlocal most
        while not filled.wait(0.005):
            stat = dict(line.split() for line in read(c.path / "memory.stat").splitlines())
            most = max(most, int(stat["file_writeback"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        parts.Scan(mib=40, cgroup=c).kill()
    finally:
        filled.set()
        watcher.join()
    assert d.counts()["write_backup"] > 24 << 8
    # 6 MiB were measured, and 11 MiB without the bound.
    assert 0 < most < 8 << 20
    assert c.events("oom_kill") == 0


def test_donor_killed_under_a_swapping_program(kernel_device, donor, disk, cgroup):
    """
    The kernel log has a line of it.  On a busy machine the session may end by itself before, with the
    same effect.
    """
    lender = donor()
    d = kernel_device(mib=64, backup=disk(64).path)
    session = d.connect()
    lines = lambda: run("dmesg").count(f"ebb{d.number}: session {session} ended: ")
    before = lines()                      # of an earlier test's device with this number
    d.map(session, BOTH)
    d.swap_on()
    scan = parts.Scan(mib=32, passes=3, pattern="random", write=True, cgroup=cgroup(16))
    scan.go()
    start = d.counts()["read_donor"]
    wait_for(lambda: d.counts()["read_donor"] > start + 500 or d.session()["state"] == "closed",
             60, "no reads from the donor")
    lender.kill()
    assert scan.result()["bad"] == 0
    n = d.counts()
    assert d.session()["state"] == "closed"
    assert n["read_backup"] > 0
    assert n["read_failed"] == n["write_failed"] == 0
    wait_for(lambda: lines() == before + 1, 5, "a line in the kernel log")


def test_stopped_donor_process_is_not_missed(kernel_device, donor):
    """The data path is one-sided: a donor under SIGSTOP serves as before."""
    lender = donor()
    d = kernel_device()
    d.map(d.connect(), DONOR)
    d.write(0, 64, version=1)
    lender.signal(signal.SIGSTOP)
    try:
        for i in range(1500):
            page = i * 37 % d.pages
            d.write(page, 1, version=i)
            assert d.bad(page, 1, version=i) == []
    finally:
        lender.signal(signal.SIGCONT)
    assert d.session()["state"] == "live"
    assert d.counts()["donor_errors"] == 0


def test_in_flight_requests_survive_their_session(kernel_device, donor, disk):
    """Killed at any moment: acknowledged content is read from the other copy."""
    lender = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    d.open()
    versions, failed, stop = [0] * 256, [], threading.Event()

    def writer(base):
        rnd = random.Random(base)
        try:
            while not stop.is_set():
                i = base + rnd.randrange(64)
                d.write(i * 16, 8, versions[i] + 1)
                versions[i] += 1
                if d.bad(i * 16, 8, versions[i]):
                    failed.append(i)
        except OSError as e:
            failed.append(e)

    threads = [threading.Thread(target=writer, args=(b,)) for b in (0, 64, 128, 192)]
    for t in threads:
        t.start()
    time.sleep(2)
    lender.kill()
    d.wait_closed()
    time.sleep(1)
    stop.set()
    for t in threads:
        t.join()
    assert failed == []
    for i, version in enumerate(versions):
        if version:
            assert d.bad(i * 16, 8, version) == []
    assert sum(versions) > 50
    assert d.counts()["read_backup"] > 0


def test_pages_of_the_donor_alone_die_with_it_and_are_not_read_stale(kernel_device, donor, disk):
    """An old version on the backup must not replace one that only the donor had."""
    lender = donor()
    d = kernel_device(backup=disk().path)
    d.write(0, 16, version=1)             # no donor yet: on the backup
    d.map(d.connect(), DONOR)
    d.write(0, 8, version=2)              # now only the donor has these
    assert d.bad(0, 8, 2) == d.bad(8, 8, 1) == []
    assert d.slab_table()[0]["donor_only"] == 8
    lender.kill()
    d.wait_closed()
    for page in range(8):
        with pytest.raises(OSError) as e:
            d.read(page, 1)
        assert e.value.errno == errno.EIO
    assert d.bad(8, 8, 1) == []
    d.write(0, 8, version=3)              # written again: to the backup
    assert d.bad(0, 8, 3) == []


def syscall(number, *arguments):
    result = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result


def read_merged(d, first, count):
    """Reads each page by a bio of its own, submitted together; returns bytes, or an errno, of each."""
    context = ctypes.c_ulong()
    syscall(IO_SETUP, count, ctypes.byref(context))
    try:
        with mmap.mmap(-1, count * PAGE) as memory:
            held = ctypes.c_char.from_buffer(memory)
            # struct iocb: number, opcode PREAD, file, buffer, length, offset
            blocks = [ctypes.create_string_buffer(struct.pack(
                "<QIiHhIQQqQII", i, 0, 0, 0, 0, d.open(), ctypes.addressof(held) + i * PAGE, PAGE,
                (first + i) * PAGE, 0, 0, 0), 64) for i in range(count)]
            pointers = (ctypes.c_void_p * count)(*map(ctypes.addressof, blocks))
            assert syscall(IO_SUBMIT, context, count, pointers) == count
            events = ctypes.create_string_buffer(32 * count)
            assert syscall(IO_GETEVENTS, context, count, count, events, None) == count
            got = {}
            for i, _, result, _ in struct.iter_unpack("<QQqq", events.raw):
                got[i] = memory[i * PAGE:(i + 1) * PAGE] if result == PAGE else -result
            del held
            return [got[i] for i in range(count)]
    finally:
        syscall(IO_DESTROY, context)


def test_lost_page_fails_alone(kernel_device, donor):
    """Pages that were merged into one request with it are read: they may be of other programs."""
    lender = donor()
    d = kernel_device()
    d.map(d.connect(), DONOR)
    d.write(0, 12, version=1)
    lender.kill()
    d.wait_closed()
    donor(port=7472)
    d.map(d.connect(7472), DONOR)
    for page in range(1, 12, 3):
        d.write(page, 2, version=2)
    before = d.counts()
    got = read_merged(d, 0, 16)
    requests, failed = (d.counts()[name] - before[name] for name in ("requests", "read_failed"))
    assert requests == failed == 1, "not merged"
    assert got == [bytes(PAGE) if page >= 12 else content(page, 2) if page % 3 else errno.EIO
                   for page in range(16)]
    # One bio of many pages fails as a whole.
    with pytest.raises(OSError):
        d.read(0, 4)


def test_write_to_a_lost_donor_goes_to_the_backup(kernel_device, donor, disk):
    lender = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), DONOR)
    lender.kill()
    d.write(0, 32, version=5)
    assert d.bad(0, 32, 5) == []
    assert d.counts()["write_backup"] == 32


def test_reads_keep_no_write_waiting(kernel_device, disk):
    """Reads that overlap a waiting write go behind it, however many there are."""
    d = kernel_device(mib=16, backup=disk(16, delay_us=20000).path)
    d.write(0, 64, version=1)
    limit, ended, wrong = [200], [0], []

    def reader(first):
        while ended[0] < limit[0]:
            try:
                # Each read overlaps others: at no time are the pages free.
                d.read(first, 33)
                ended[0] += 1
            except OSError as e:
                wrong.append(e)

    readers = [threading.Thread(target=reader, args=(i * 4,)) for i in range(8)]
    for r in readers:
        r.start()
    most = 0
    for version in range(2, 5):
        wait_for(lambda: ended[0] > version * 10, 60, "no reads")
        before = ended[0]
        d.write(16, 32, version)
        most = max(most, ended[0] - before)
    limit[0] = 0
    for r in readers:
        r.join()
    # Those in flight, and some that end before this thread runs again.
    assert wrong == [] and most <= 40
    assert d.bad(16, 32, 4) == [] and d.counts()["conflicts"] > 0


def test_link_down(kernel_device, donor, disk):
    """No packet announces the end: the transport's own time-out ends the session."""
    lender = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    d.write(0, 64, version=1)
    d.wait_behind()
    run("ip", "link", "set", "v0", "down")
    try:
        began = time.monotonic()
        assert d.bad(0, 64, 1) == []
        d.write(0, 64, version=2)
        assert time.monotonic() - began < 20
        assert d.bad(0, 64, 2) == []
        d.wait_closed()
    finally:
        run("ip", "link", "set", "v0", "up")
        # On 6.12 an rxe whose link was down accepts no new connections.
        lender.kill()
        rxe_remove()
        rxe_add()
    assert d.counts()["read_backup"] > 0


def test_network_device_removed(kernel_device, donor, disk):
    """Removing it while transfers are in flight does not hang."""
    lender = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    d.open()
    bad, errors, stop = [], [], threading.Event()

    def user():
        version = 0
        while not stop.is_set():
            version += 1
            d.write(0, 16, version)
            bad.extend(d.bad(0, 16, version))

    thread = threading.Thread(target=noted, args=(errors, user))
    removal = threading.Thread(target=noted, args=(errors, rxe_remove))
    thread.start()
    time.sleep(1)
    try:
        removal.start()
        d.wait_closed()
        lender.kill()
        removal.join()
        time.sleep(0.5)
    finally:
        stop.set()
        thread.join()
        rxe_add()
    assert errors == [] and bad == []
    assert d.counts()["read_backup"] > 0


def test_backup_errors_hurt_only_what_the_donor_loses(kernel_device, donor, disk):
    ram = disk()
    lender = donor()
    d = kernel_device(backup=ram.path)
    d.map(d.connect(), BOTH)
    d.write(0, 8, version=1)
    d.wait_behind()
    ram.fail()
    d.write(0, 4, version=2)              # acknowledged, since the donor has it
    d.wait_behind()
    ram.heal()
    assert d.bad(0, 4, 2) == d.bad(4, 4, 1) == []
    assert d.counts()["backup_errors"] >= 1
    assert d.slab_table()[0]["donor_only"] == 4
    lender.kill()
    d.wait_closed()
    for page in range(4):                 # version 1 is on the backup, but must not be read
        with pytest.raises(OSError):
            d.read(page, 1)
    assert d.bad(4, 4, 1) == []


def test_both_copies_failing_is_an_error_and_no_more(kernel_device, disk):
    ram = disk()
    d = kernel_device(backup=ram.path)
    d.write(0, 4, version=1)
    ram.fail()
    with pytest.raises(OSError) as e:
        d.write(0, 4, version=2)
    assert e.value.errno == errno.EIO
    ram.heal()
    d.write(0, 4, version=3)
    assert d.bad(0, 4, 3) == []
    assert d.counts()["write_failed"] == 1


def test_overlapping_writes_leave_both_copies_alike(kernel_device, donor, disk):
    """Whichever writer of a page is last, donor and backup have equal content."""
    lender = donor()
    # A slow disk: the donor has the next write before the disk has the first.
    d = kernel_device(backup=disk(delay_us=3000).path)
    d.map(d.connect(), BOTH)
    d.open()
    d.race(25)
    d.wait_behind()
    at_donor = d.read(0, 8)
    assert d.counts()["conflicts"] > 0
    lender.kill()
    d.wait_closed()
    assert d.read(0, 8) == at_donor
    assert d.counts()["read_backup"] >= 6


def test_mixed_places_in_one_request(kernel_device, donor, disk):
    """One request reads pages at the donor, on the backup and in no place."""
    donor()
    d = kernel_device(backup=disk().path)
    d.write(0, 16, version=1)
    d.map(d.connect(), DONOR)
    for page in range(0, 16, 4):
        d.write(page, 1, version=2)
    pages = d.read(0, 24)
    assert pages[:16] == [content(i, 1 if i % 4 else 2) for i in range(16)]
    assert pages[16:] == [bytes(PAGE)] * 8


def test_discarded_pages_are_zeros_and_free(kernel_device, donor):
    donor()
    d = kernel_device()
    d.map(d.connect(), DONOR)
    d.write(0, 64, version=1)
    run("/sbin/blkdiscard", "-o", 16 * PAGE, "-l", 16 * PAGE, d.path)
    assert d.bad(0, 16, 1) == d.bad(32, 32, 1) == []
    assert d.read(16, 16) == [bytes(PAGE)] * 16
    assert d.slab_table()[0]["written"] == 48
    run("/sbin/blkdiscard", d.path)
    assert all(s["written"] == 0 for s in d.slab_table())
    d.netlink.call("unmap", device=d.number, slab=0)


def test_requests_end_where_they_came_from(kernel_device, donor):
    """The block layer ends them, by its softirq, so that rq_affinity has an effect."""
    donor()
    d = kernel_device(queues=1)
    d.map(d.connect(), DONOR)

    def softirqs():
        row, = (line for line in read("/proc/softirqs").splitlines() if "BLOCK:" in line)
        return sum(int(n) for n in row.split()[1:])

    d.write(0, 1, version=1)
    before, start = softirqs(), d.counts()["requests"]
    for page in range(200):
        d.write(page, 1, version=1)
    ended = d.counts()["requests"] - start
    assert ended >= 200 and softirqs() - before >= ended / 2


def test_freed_slots_are_not_kept(kernel_device, donor, cgroup):
    """A program's slots have no page once it has ended, without any discard: nothing to copy."""
    donor()
    d = kernel_device(mib=64)
    d.map(d.connect(), DONOR)
    run("/sbin/mkswap", d.path)
    run("/sbin/swapon", d.path)
    written = lambda: sum(s["written"] for s in d.slab_table())
    scan = parts.Scan(mib=32, passes=1, pattern="random", write=True, cgroup=cgroup(12))
    scan.go()
    wait_for(lambda: written() > 2000, 60, "no pages on the device")
    assert scan.result()["bad"] == 0
    # The swap area's header stays; the kernel keeps up to 64 freed slots per CPU to itself
    # (SWAP_SLOTS_CACHE_SIZE).
    wait_for(lambda: written() <= 1 + 64 * os.cpu_count(), 60, "freed slots have pages")


def test_shallow_queue(kernel_device, donor):
    """Many threads share a queue depth of one."""
    donor()
    d = kernel_device(queues=1, depth=1)
    d.map(d.connect(), DONOR)
    d.open()
    bad, errors = [], []

    def user(which):
        for i in range(40):
            page = which * 1024 + i * 8
            d.write(page, 8, version=i)
            bad.extend(d.bad(page, 8, version=i))

    threads = [threading.Thread(target=noted, args=(errors, user, n)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == [] and bad == []


def test_donor_comes_back(kernel_device, donor, disk):
    """A new session to the old address must not return the old session's pages."""
    first = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    d.write(0, 32, version=1)
    d.wait_behind()
    first.kill()
    d.wait_closed()
    donor()
    again = d.connect()
    d.map(again, BOTH)
    assert d.bad(0, 32, 1) == []
    n = d.counts()
    assert n["read_backup"] + n["read_donor"] == 32
    d.write(0, 32, version=2)
    assert d.bad(0, 32, 2) == []
    assert d.counts()["read_donor"] == n["read_donor"] + 32
    d.netlink.call("disconnect", device=d.number, session=0)
    assert [s["session"] for s in d.netlink.status(d.number)["sessions"]] == [again]


def test_two_donors(kernel_device, donor, disk):
    """The loss of one donor does not affect the other."""
    one, _ = donor(), donor(port=7472)
    d = kernel_device(backup=disk().path)
    a, b = d.connect(), d.connect(7472)
    d.map(a, BOTH, range(0, d.slabs, 2))
    d.map(b, DONOR, range(1, d.slabs, 2))
    for first in range(0, d.pages, 64):
        d.write(first, 64, version=9)
    one.kill()
    d.wait_closed(a)
    assert sum((d.bad(first, 64, 9) for first in range(0, d.pages, 64)), []) == []
    assert d.session(b)["state"] == "live"


@pytest.mark.parametrize("how", [BLKDISCARD, BLKZEROOUT])
def test_large_range_is_zeroed_to_its_last_page(kernel_device, donor, how):
    """A range larger than any request is zeroed completely, and nothing beyond it."""
    donor()
    d = kernel_device(mib=4608)
    slab = d.pages // d.slabs
    boundary, first, end = 1 << 20, slab + 3, d.pages - slab - 3
    d.map(d.connect(), DONOR, [1, boundary // slab - 1, boundary // slab, d.slabs - 2])
    kept, zeroed = [first - 1, end], [first, boundary - 1, boundary, boundary + 1, end - 1]
    for page in kept + zeroed:
        d.write(page, 1, version=1)
    fcntl.ioctl(d.open(), how, struct.pack("<QQ", first * PAGE, (end - first) * PAGE))
    assert [d.read(page, 1)[0] for page in zeroed] == [bytes(PAGE)] * len(zeroed)
    assert [d.bad(page, 1, 1) for page in kept] == [[], []]
    assert d.counts()["discarded"] == end - first
    for start, length in ((512, PAGE), (0, PAGE + 512)):
        with pytest.raises(OSError) as e:
            fcntl.ioctl(d.open(), how, struct.pack("<QQ", kept[0] * PAGE + start, length))
        assert e.value.errno == errno.EINVAL
    assert d.bad(kept[0], 1, 1) == []
    for name in ("discard_max_bytes", "write_zeroes_max_bytes"):
        assert int(machine.read(f"/sys/block/ebb{d.number}/queue/{name}")) % PAGE == 0


def test_what_came_back_is_zeroed(kernel_device, donor):
    """A returned slab is zeroed before it is lent again, and soon in any case."""
    lender = donor(memory="64M", slab="16M")
    one = kernel_device(mib=64, slab_mib=16)
    two = kernel_device(mib=16, slab_mib=16)
    one.map(one.connect(), DONOR)
    session = two.connect()
    firsts = range(0, one.pages, one.pages // one.slabs)
    for first in firsts:
        one.write(first, 1, version=9)
    assert sum(content(0, 9) in m for m in memory_of(lender.process)) == 1
    one.destroy()
    two.map(session, DONOR)
    # The first that was free.
    assert not any(content(0, 9) in m for m in memory_of(lender.process))

    def left():
        found = memory_of(lender.process)
        return [f for f in firsts if any(content(f, 9) in m for m in found)]

    wait_for(lambda: not left(), 60, "not zeroed")


def test_tracepoint(kernel_device, donor):
    """The tracepoint fires once per request, with source and latency."""
    donor()
    d = kernel_device()
    d.map(d.connect(), DONOR)
    tracing = "/sys/kernel/tracing"
    event = f"{tracing}/events/ebb_swap/ebb_swap_io/enable"
    subprocess.run(["sh", "-c", f"echo > {tracing}/trace; echo 1 > {event}"], check=True)
    try:
        d.write(1024, 4, version=1)
        d.read(1024, 4)
        lines = [line for line in open(f"{tracing}/trace") if "ebb_swap_io:" in line]
    finally:
        subprocess.run(["sh", "-c", f"echo 0 > {event}"], check=True)
    assert len(lines) == 2
    assert "ebb0 slab 1 page 1024+4 write copies 1" in lines[0]
    assert "ebb0 slab 1 page 1024+4 read copies 1" in lines[1]
    assert lines[1].rstrip().endswith("ns error 0")
