# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of a fault that is not simply a miss or a hit, and of the time it takes."""
import json
import os
import struct
import subprocess
import time

import pytest

import machine
import parts
import policies

MAPS = machine.PINS / "maps"
EVICTED_NS = 20_000_000     # EBB_EVICTED_NS of include/ebb/abi.h

# Locks its own memory: only the pages of its area are swapped out.
PROGRAM = """
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mlockall(1 | 2 | 4) == 0 # MCL_CURRENT, _FUTURE, _ONFAULT
area = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
assert libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(len(area))) == 0

def out():
    for at in range(0, len(area), 4096):
        area[at:at + 8] = (at + 1).to_bytes(8, "little")
    area.madvise(21) # MADV_PAGEOUT

def touch(page):
    return area[page << 12]

def want_then_touch(page, other):
    area.madvise(mmap.MADV_WILLNEED, page << 12, 4096)
    time.sleep(1.5)
    return touch(other)

print(address >> 12, flush=True)
for line in sys.stdin:
    word, *numbers = line.split()
    locals()[word](*map(int, numbers))
    print(flush=True)
"""


class Program:
    def __init__(self, cgroup):
        self.cgroup = cgroup
        self.process = subprocess.Popen(["/usr/bin/python3", "-B", "-c", PROGRAM], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=cgroup.enter)
        self.vpn = int(self.process.stdout.readline())
        self.does("out")

    def does(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "\n"

    def out(self):
        self.does("out")
        self.cgroup.evict()     # the swap cache, too


@pytest.fixture
def program(ebbd, device, cgroup):
    c = cgroup()
    policies.call("policy.attach", cgroup=str(c.path), policy="none")
    p = Program(c)
    p.out()
    yield p
    p.process.stdin.close()
    assert p.process.wait(30) == 0


def growth(c, do):
    before = parts.stats(c)
    do()
    after = parts.stats(c)
    return {k: after[k] - before[k] for k in ("misses", "hits", "late", "wasted", "miss_ns", "late_ns")}


def bpftool(*words):
    return subprocess.run(["/usr/sbin/bpftool", "-j", *words], text=True, capture_output=True,
                          check=True).stdout


def exec_id(pid):
    entries = [e.get("formatted", e) for e in json.loads(bpftool("map", "dump", "pinned", MAPS / "procs"))]
    return next(e["value"]["exec"] for e in entries if e["key"] == pid)


def enter(p, page, age_ns):
    """Enters a page, as ebbd does before it requests it."""
    key = struct.pack("<IIQ", p.process.pid, exec_id(p.process.pid), p.vpn + page)
    value = struct.pack("<QQ", time.monotonic_ns() - age_ns, os.stat(p.cgroup.path).st_ino)
    bpftool("map", "update", "pinned", MAPS / "prefetched", "key", "hex", *key.hex(" ").split(),
            "value", "hex", *value.hex(" ").split())


def fault(program, pages, age_ns):
    """
    Lets the program touch one of @pages that was entered @age_ns before; returns the growth, and how
    long that took.  A page that the kernel has kept in memory causes no fault: then another one.
    """
    took = 0

    def touch(page):
        nonlocal took
        since = time.monotonic_ns()
        enter(program, page, age_ns)
        program.does("touch", page)
        took = time.monotonic_ns() - since

    for page in pages:
        told = growth(program.cgroup, lambda page=page: touch(page))
        if told["late"] or told["wasted"] or told["misses"]:
            return told, took
    raise AssertionError("no page was swapped out")


def test_a_program_that_overtakes_ebbd_makes_its_prefetch_late(program):
    """It is not wasted: the policy was right, and the page was used."""
    program.does("touch", 0)
    # On a busy machine the program may be too slow to overtake anything.
    for first in range(128, 256, 16):
        told, took = fault(program, range(first, first + 16, 4), 0)
        if took < EVICTED_NS:
            break
    assert took < EVICTED_NS, f"the program took {took} ns"
    assert (told["late"], told["wasted"], told["misses"]) == (1, 0, 0), told
    # Long ago: read by ebbd, and evicted.
    told, _ = fault(program, range(512, 576, 16), 10**9)
    assert (told["late"], told["wasted"], told["misses"]) == (0, 1, 1), told


def test_a_miss_does_not_begin_at_a_request_of_the_programs_own(program):
    """MADV_WILLNEED reads without a fault."""
    told = growth(program.cgroup, lambda: program.does("want_then_touch", 0, 512))
    assert told["misses"] == 1 and told["miss_ns"] < 10**9, told


def test_a_miss_does_not_begin_at_an_earlier_fault(program):
    """... of the thread on the same page, while hits were detected."""
    def detect(on):
        policies.call("policy.attach", cgroup=str(program.cgroup.path), policy="none",
                      params={"detect": on})

    begin = time.monotonic_ns()
    detect(1)
    program.does("touch", 0)
    assert growth(program.cgroup, lambda: program.does("touch", 512))["misses"] == 1
    detect(0)
    time.sleep(3)           # detection goes off after 2 s
    for _ in range(3):
        program.cgroup.evict()
        told = growth(program.cgroup, lambda: program.does("touch", 512))
        assert told["misses"] == 1 and told["miss_ns"] < 10**9, told
    stats = parts.stats(program.cgroup)
    assert stats["miss_ns"] + stats["late_ns"] <= time.monotonic_ns() - begin
