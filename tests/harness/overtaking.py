# SPDX-License-Identifier: GPL-2.0-or-later
"""A program whose pages are swapped out, and pages that are entered as if ebbd requested them."""
import json
import os
import struct
import subprocess
import time

import machine
import parts

MAPS = machine.PINS / "maps"
# An age of a request that comes after the fault, however slow the machine is.
OVERTAKEN = -60 * 10**9
COUNTED = ("misses", "hits", "late", "wasted", "miss_ns", "late_ns")

# Seconds between the program's own request and its fault, longer than a miss takes.
REQUEST_AGE = 3

# Locks its own memory: only the pages of its area are swapped out.
PROGRAM = f"""
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mlockall(1 | 2 | 4) == 0 # MCL_CURRENT, _FUTURE, _ONFAULT
area = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
assert libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(len(area))) == 0
file = os.open("/var/tmp/ebb-test-direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
os.unlink("/var/tmp/ebb-test-direct")
assert os.pwrite(file, mmap.mmap(-1, 4096), 0) == 4096
os.fsync(file)
plain = os.open(f"/proc/self/fd/{{file}}", os.O_RDWR)
libc.mmap.restype = ctypes.c_void_p

def out():
    for at in range(0, len(area), 4096):
        area[at:at + 8] = (at + 1).to_bytes(8, "little")
    area.madvise(21) # MADV_PAGEOUT

def touch(page):
    return area[page << 12]

def direct(page):
    "Direct I/O faults in the page without an event."
    assert os.preadv(file, [memoryview(area)[page << 12:(page + 1) << 12]], 0) == 4096

def replace(page):
    "Maps a file, of which no page is cached, over the page."
    os.posix_fadvise(plain, 0, 0, os.POSIX_FADV_DONTNEED)
    at = address + (page << 12)
    # MAP_PRIVATE, MAP_FIXED
    assert libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(4096), 3, 2 | 16, plain,
                     ctypes.c_long(0)) == at

def want_then_touch(page, other):
    area.madvise(mmap.MADV_WILLNEED, page << 12, 4096)
    time.sleep({REQUEST_AGE})
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

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0


def growth(c, do):
    before = parts.stats(c)
    do()
    after = parts.stats(c)
    return {k: after[k] - before[k] for k in COUNTED}


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


def fault(program, pages, age_ns, by="touch"):
    """
    Lets the program touch one of @pages that was entered @age_ns before; returns the growth.  A page
    that the kernel has kept in memory causes no fault: then another one.
    """
    def touch(page):
        enter(program, page, age_ns)
        program.does(by, page)

    for page in pages:
        told = growth(program.cgroup, lambda page=page: touch(page))
        if told["late"] or told["wasted"] or told["misses"]:
            return told
    raise AssertionError("no page was swapped out, or its fault is counted nowhere")
