# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: prefetch reads, and demand reads, which overtake them."""
import ctypes
import errno
import functools
import mmap
import os
import random
import re
import statistics
import threading
from pathlib import Path

import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import BACKUP, DONOR, PAGE, content, run
from machine import wait_for
from test_kmod_class import within
from test_kmod_ctl import A, after, create, seen    # fixtures
from test_kmod_seal import make_sealed

BOTH = DONOR | BACKUP
PARAMETERS = Path("/sys/module/ebb_swap/parameters")
TRACING = Path("/sys/kernel/tracing")
BLOCK = 16        # pages: a request each, however scattered the reader's memory is
FLOOD = 32
FEW, READS = 4, 12
IOPRIO_SET, WHO_PROCESS, BEST_EFFORT = 251, 1, 2


def last_priority():
    """Sets this thread's I/O priority to that of ebbd's prefetches."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(IOPRIO_SET, WHO_PROCESS, 0, BEST_EFFORT << 13 | 7) == 0


def window(pages, beside=None):
    """Sets the in-flight limits of prefetch reads, alone and @beside others, in pages."""
    (PARAMETERS / "ahead_pages").write_text(str(pages))
    (PARAMETERS / "beside_pages").write_text(str(pages if beside is None else beside))


@functools.lru_cache(maxsize=None)
def block(first, versions):
    """Returns the content of pages; kept, as in a guest it takes longer than the read."""
    return b"".join(content(first + i, version) for i, version in enumerate(versions))


class Flood:
    """Threads that prefetch blocks of pages and compare them, for the duration of a `with`."""

    def __init__(self, device, versions, threads=FLOOD):
        self.device, self.versions = device, versions
        self.stop = threading.Event()
        self.wrong, self.errors, self.blocks = [], [], 0
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True)
                        for i in range(threads)]

    def run(self, seed):
        rnd = random.Random(seed)
        last_priority()
        with mmap.mmap(-1, BLOCK * PAGE) as buffer:
            while not self.stop.is_set():
                self.read(rnd.randrange(len(self.versions) // BLOCK) * BLOCK, buffer)

    def read(self, first, buffer):
        try:
            assert os.preadv(self.device.open(), [buffer], first * PAGE) == BLOCK * PAGE
        except OSError as e:
            self.errors.append(e.errno)
            return
        self.blocks += 1
        if buffer[:] != block(first, tuple(self.versions[first:first + BLOCK])):
            self.wrong.append(first)

    def __enter__(self):
        self.device.open()
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for t in self.threads:
            t.join(120)
        assert not any(t.is_alive() for t in self.threads), "a read hangs"

    def wait_held(self, count=100):
        before = self.device.counts()["ahead_held"]
        wait_for(lambda: self.device.counts()["ahead_held"] > before + count, 60, "nothing is held")


@pytest.fixture
def trace(module):
    """trace(): [(start, end, pages)] of the reads that have ended since its last call."""
    if not (TRACING / "trace").exists():
        run("mount", "-t", "tracefs", "tracefs", TRACING)
    enable, buffer = TRACING / "events/ebb_swap/ebb_swap_io/enable", TRACING / "trace"
    (TRACING / "trace_clock").write_text("mono")
    (TRACING / "buffer_size_kb").write_text("16384")
    enable.write_text("1")
    line = re.compile(r"(\d+\.\d+): ebb_swap_io: .* page \d+\+(\d+) read .* latency (\d+) ns error 0")

    def read():
        enable.write_text("0")
        found = [(float(end) - int(ns) / 1e9, float(end), int(pages))
                 for end, pages, ns in line.findall(buffer.read_text())]
        buffer.write_text("")
        enable.write_text("1")
        return found

    yield read
    enable.write_text("0")


def passed(reads):
    """Returns, for each one-page read, numbers of earlier blocks that ended before and after it."""
    blocks = [(start, end) for start, end, pages in reads if pages == BLOCK]
    return [(sum(s < start < e < end for s, e in blocks), sum(s < start and e > end for s, e in blocks))
            for start, end, pages in reads if pages == 1]


def filled(d, version=3):
    for first in range(0, d.pages, 64):
        d.write(first, 64, version)
    return [version] * d.pages


def among_blocks(d, versions, trace):
    """passed() of READS reads or more that began when FEW blocks were in flight."""
    trace()
    reads, found = [], []
    for _ in range(20):
        for page in range(0, 24 * 37, 37):
            assert d.bad(page, 1, versions[page]) == []
        reads += trace()
        found = [counts for counts in passed(reads) if sum(counts) >= FEW]
        if len(found) >= READS:
            return found
    raise AssertionError(f"{len(found)} reads began among {FEW} blocks: {passed(reads)}")


def test_reads_of_programs_go_past(kernel_device, donor, trace):
    """Demand reads overtake with a window of one block, but not without one, on one queue pair."""
    donor()
    d = kernel_device(mib=16, queues=1)
    d.map(d.connect(), DONOR)
    versions, told = filled(d), {}
    for pages in (BLOCK, 0):
        window(pages)
        with Flood(d, versions) as flood:
            wait_for(lambda: flood.blocks > 2 * FLOOD, 60, "no flood")
            before = d.counts()
            counts = among_blocks(d, versions, trace)
            n = d.counts()
        told[pages] = [statistics.median(column) for column in zip(*counts)]
        assert flood.wrong == flood.errors == []
        if pages:
            # Some threads may have no read in flight when a demand read begins.
            assert n["overtakes"] - before["overtakes"] >= READS
            assert n["ahead_held"] > before["ahead_held"]
        else:
            assert n["overtakes"] == before["overtakes"] and n["ahead"] > before["ahead"]
    print("blocks that ended before a page's read, and after, of those that were there first:", told)
    assert told[BLOCK][0] <= 2 and told[BLOCK][1] >= FEW / 2
    assert told[0][0] >= FEW / 2 and told[0][1] == 0


def test_a_program_without_a_priority_of_its_own_is_not_held(kernel_device, donor):
    donor()
    d = kernel_device(mib=16)
    d.map(d.connect(), DONOR)
    filled(d)
    window(1)
    d.bad(0, 64, 3)
    assert d.counts()["ahead"] == 0


def test_session_killed_while_reads_wait(kernel_device, donor, disk):
    lender = donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    versions = filled(d)
    d.wait_behind()
    window(1)
    with Flood(d, versions) as flood:
        flood.wait_held()
        lender.kill()
        d.wait_closed()
        at = flood.blocks
        wait_for(lambda: flood.blocks > at + 2 * FLOOD, 60, "no reads from the backup")
        for page in range(0, d.pages, 101):
            assert d.bad(page, 1, versions[page]) == []
    assert flood.wrong == flood.errors == []
    n = d.counts()
    assert n["read_failed"] == 0 and n["read_backup"] > 0


def test_pages_lost_with_their_donor_while_reads_wait(kernel_device, donor):
    lender = donor()
    d = kernel_device(mib=16)
    d.map(d.connect(), DONOR)
    versions = filled(d)
    window(1)
    with Flood(d, versions) as flood:
        flood.wait_held()
        lender.kill()
        d.wait_closed()
        at = len(flood.errors)
        wait_for(lambda: len(flood.errors) > at + 2 * FLOOD, 60, "no errors")
        with pytest.raises(OSError):
            d.write(0, 64, version=9)
    assert set(flood.errors) == {errno.EIO}


def test_window_changed_under_readers_and_writers(kernel_device, donor, disk):
    """Windows change between none and one page; writers wait for held reads of their pages."""
    donor()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    versions = filled(d)
    with Flood(d, versions) as flood:
        for turn in range(24):
            window((1, 0, 16, 300)[turn % 4], turn % 3)
            first = turn * 97 % (d.pages // BLOCK) * BLOCK
            d.write(first, BLOCK, 3)
            assert d.bad(first, BLOCK, 3) == []
    assert flood.wrong == flood.errors == []


def test_sealed_ones_that_wait_keep_no_buffer(kernel_device, donor, disk, cgroup):
    """
    More readers than buffers; parts of each block are sealed on the backup, sealed at the donor and
    open there, so that some reads are admitted before they need a buffer, others after.
    """
    donor()
    on_disk, away = cgroup(), cgroup()
    d = kernel_device(mib=16, backup=disk(16).path)
    make_sealed(d, 1, BACKUP, on_disk)
    make_sealed(d, 2, DONOR, away)
    d.map(d.connect(), DONOR)
    d.map(d.connect(of=2), DONOR)
    versions = filled(d)[:1024]

    def write(at, version):
        for block in range(len(versions) // BLOCK):
            d.write(block * BLOCK + (at if block % 2 else 6 - at), 5, version)

    within(on_disk, write, 0, 4)
    within(away, write, 6, 5)
    for first in range(0, len(versions), 2 * BLOCK):
        versions[first:first + 11] = 5 * [5] + [3] + 5 * [4]
        versions[first + BLOCK:first + BLOCK + 11] = 5 * [4] + [3] + 5 * [5]
    d.wait_behind()
    window(4)
    with Flood(d, versions, threads=24) as flood:
        flood.wait_held(10)
        for page in range(0, len(versions), 61):
            assert d.bad(page, 1, versions[page]) == []
        at = flood.blocks
        wait_for(lambda: flood.blocks > at + 48, 60, "no progress")
    assert flood.wrong == flood.errors == []
    assert d.counts()["read_backup"] > 0


def test_what_ebbd_fetches_ahead(ebbd, module, donor, after, seen, cgroup):
    """The priority of ebbd's prefetches passes process_madvise, swap cache and block layer."""
    donor(memory="128M")
    create("--durability", "none", donors=A)
    d, c = seen(), cgroup(16)
    parts.ebbctl("policy", "attach", "stride", c.path)
    window(1)
    told = parts.scan_json(mib=32, passes=3, pattern="seq", write=True, cgroup=c)
    n, done = d.counts(), parts.ebbctl_json("status")["executor"]
    assert told["bad"] == 0 and n["read_failed"] == 0
    assert done["pages"] > 1000, done
    assert n["ahead"] > 100 and n["ahead_held"] > 0, n
