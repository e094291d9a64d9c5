# SPDX-License-Identifier: GPL-2.0-or-later
"""zswap of this machine, and a program whose pages are in zswap or on the device as a test says."""
import subprocess
from pathlib import Path

import machine
import parts
import policies
from machine import MachineError, wait_for

SETTINGS = Path("/sys/module/zswap/parameters")
READAHEAD = Path("/proc/sys/vm/page-cluster")


class Zswap:
    """Its settings: restore() restores all, also if a test has failed."""

    def __init__(self):
        self.before = {f.name: f.read_text().strip() for f in SETTINGS.iterdir()}
        self.readahead = READAHEAD.read_text()

    def set(self, **what):
        for name, value in what.items():
            (SETTINGS / name).write_text(str(value))

    def has(self, name):
        return name in self.before

    def is_empty(self):
        return held_kib() == 0

    def restore(self):
        for name, value in self.before.items():
            if (SETTINGS / name).read_text().strip() != value:
                self.set(**{name: value})
        READAHEAD.write_text(self.readahead)

    def finish(self):
        """The pool is empty after the programs that had pages there; swapoff has freed the rest."""
        self.restore()
        wait_for(self.is_empty, 30, "an empty pool of zswap")


def held_kib():
    """Returns the KiB of pages that zswap holds."""
    for line in machine.read("/proc/meminfo").splitlines():
        if line.startswith("Zswapped:"):
            return int(line.split()[1])
    raise MachineError("/proc/meminfo: no Zswapped: the kernel has no zswap")


# Commands: "write FIRST END", "out FIRST END" (page out) and "read FIRST END", which prints the
# number of pages with the right content.  A page compresses, and is not one repeated word.
PROGRAM = """
import ctypes, hashlib, mmap, sys
MCL_CURRENT, MADV_PAGEOUT = 1, 21
def content(page):
    return hashlib.sha256(b"%d" % page).digest() * 128
content(0)
assert ctypes.CDLL(None).mlockall(MCL_CURRENT) == 0
area = mmap.mmap(-1, int(sys.argv[1]) << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
print(ctypes.addressof(ctypes.c_char.from_buffer(area)) >> 12, flush=True)
for line in sys.stdin:
    command, first, end = line.split()
    good, pages = 0, range(int(first), int(end))
    if command == "out":
        area.madvise(MADV_PAGEOUT, pages[0] << 12, len(pages) << 12)
    else:
        for page in pages:
            at = page << 12
            if command == "write":
                area[at:at + 4096] = content(page)
            else:
                good += area[at:at + 4096] == content(page)
    print(good, flush=True)
"""


class Program:
    """PROGRAM with @pages in @cgroup; .vpn is the first."""

    def __init__(self, cgroup, pages):
        self.cgroup, self.pages = cgroup, pages
        self.process = subprocess.Popen(["/usr/bin/python3", "-c", PROGRAM, str(pages)], text=True,
                                        preexec_fn=cgroup.enter, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.vpn = int(self.process.stdout.readline())

    def do(self, command, first, end):
        print(command, first, end, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def end(self):
        self.process.communicate("", timeout=60)


def counts(cgroup):
    """Returns the counters of ebbd: of the cgroup, of its pages in zswap, of the executor."""
    s = parts.stats(cgroup)
    return {**{k: v for k, v in s.items() if isinstance(v, int)},
            **{f"zswap_{k}": v for k, v in s.get("zswap", {}).items()},
            **{f"executor_{k}": v for k, v in policies.call("status")["executor"].items()}}


def growth(before, after):
    return {k: v - (before.get(k) or 0) for k, v in after.items() if isinstance(v, int)}
