# SPDX-License-Identifier: GPL-2.0-or-later
"""
The whole machine runs out of memory while its swap is at two donors behind a network device, with TLS
and without a local copy: sockets, TLS and the driver need memory in order to free memory.  Then the
machine loses most of its memory, and at last its swap is full.  earlyoom, nohang and systemd-oomd
watch, with the settings of their packages.
"""
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import link
import parts
from key import shared_key
from machine import read, wait_for
from systemd import run

PEER = Path("/hostout/peer")
LOGS = Path("/hostout/logs")
MIN_FREE = Path("/proc/sys/vm/min_free_kbytes")
KILLERS = ("earlyoom", "nohang", "systemd-oomd")
# As each donor lends (lender_tcp.py).  systemd-oomd ends programs from 90 % of swap and memory on; a
# hog of twice the memory, which then shrinks, and others take 462 MiB.
DEVICE_MIB = 576
LEFT_MIB = 128   # beside locked memory, of which ebb has 200 MiB
PAGES = 30000    # that each load swaps in and checks
ALL = 1 << 20    # more than any load needs
STALL = 300      # seconds without any page on a busy machine

# Holds memory as if the machine did not have it; a line per chunk.
LOCKER = """
import ctypes, mmap, os, sys
open("/proc/self/oom_score_adj", "w").write("-1000")
size, chunk, libc = int(sys.argv[1]), 4 << 20, ctypes.CDLL(None, use_errno=True)
m = mmap.mmap(-1, size)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
for offset in range(0, size, chunk):
    if libc.mlock(ctypes.c_void_p(at + offset), ctypes.c_size_t(min(chunk, size - offset))):
        sys.exit(os.strerror(ctypes.get_errno()))
    print(offset, flush=True)
print("locked", flush=True)
sys.stdin.read()
"""


def tell(text):
    """Writes what is measured, and not judged, to a file."""
    with open(LOGS / "told", "a") as f:
        print(text, file=f, flush=True)


def meminfo_mib(key):
    return int(re.search(rf"^{key}:\s+(\d+)", read("/proc/meminfo"), re.M)[1]) >> 10


class Hog:
    """A scan without end in a cgroup of its own; it checks each word and rewrites it."""

    def __init__(self, cgroup, name, mib):
        self.errors = LOGS / f"{name}.err"

        def enter():
            cgroup.enter()
            Path("/proc/self/oom_score_adj").write_text("0")

        with open(self.errors, "w") as err, open(LOGS / f"{name}.out", "w") as out:
            self.process = subprocess.Popen(
                parts.scan_argv(mib=mib, passes=1000, write=True), stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, preexec_fn=enter)

    def alive(self):
        return self.process.poll() is None

    def end(self):
        self.process.kill()
        self.process.wait(STALL)
        assert "differ" not in read(self.errors)


class World:
    """A device at two donors of the other machine, and ebbd."""

    def __init__(self):
        link.up(link.GUEST)
        wait_for(self.lends, 60, "the other machine does not lend", 0.5)
        first, second = (f"{link.PEER}:{port}" for port in link.PORTS)
        self.device = parts.Device(SimpleNamespace(address=first), size=f"{DEVICE_MIB}M", options=(
            "--donor", second, "--durability", "replicas=2", "--key", shared_key().path))
        self.ebbd = parts.Ebbd(LOGS / "ebbd.log")
        wait_for(self.device.status_with_standby, 30, "a standby")
        self.servers = [*self.device.processes(), self.ebbd.pid]

    @staticmethod
    def lends():
        assert not (PEER / "rc").exists(), read(PEER / "output.log")
        return (PEER / "lent").exists()

    def moves(self, pages, until=lambda: False):
        """Waits for @pages swapped in, or @until; returns pages per second, in and out."""
        began = since = time.monotonic()
        first = last = self.device.block_pages()
        while last[0] - first[0] < pages and not until():
            time.sleep(0.5)
            now = self.device.block_pages()
            if now != last:
                last, since = now, time.monotonic()
            assert time.monotonic() - since < STALL, "no page moves"
        return (sum(last) - sum(first)) / (time.monotonic() - began)

    def intact(self):
        """Checks that no server of ebb ended, was swapped out or lost a page."""
        assert set(self.device.processes()) | {self.ebbd.pid} == set(self.servers)
        assert self.ebbd.alive()
        for pid in self.servers:
            assert re.search(r"^VmSwap:\s+0 kB", read(f"/proc/{pid}/status"), re.M), pid
        told = self.device.stats()
        assert told["donor_losses"] == 0, told

    def end(self):
        self.device.destroy()
        self.ebbd.stop()


@pytest.fixture(scope="module")
def world():
    LOGS.mkdir(exist_ok=True)
    Path("/proc/self/oom_score_adj").write_text("-900")
    for unit in KILLERS:
        assert run("systemctl", "is-active", unit) == "active"
    assert "Total: 0B" in swap_of_oomd()
    w = World()
    yield w
    w.end()


def swap_of_oomd():
    return re.search(r"Swap: .*", run("oomctl"))[0]


def victims():
    """Returns what the kernel and the killers logged about processes that they ended."""
    log = run("journalctl", "--no-pager", "-b", "-o", "cat")
    return [l for l in log.splitlines() if re.search(r"killed process|sending SIG\w+ to|systemd-oomd killed|"
                                                     r"^Killed /|implementing a corrective", l, re.I)]


def test_oomd_sees_swap_that_came_after_it(world):
    assert "Total: 0B" not in swap_of_oomd()


def test_killers_spare_the_servers(world):
    for pid in world.device.processes():
        assert read(f"/proc/{pid}/oom_score").strip() == "0"
        where = read(f"/proc/{pid}/cgroup").strip().removeprefix("0::")
        assert os.getxattr(f"/sys/fs/cgroup{where}", "user.oomd_omit") == b"1"


@pytest.mark.parametrize("min_free", [0, 1024, 65536], ids=["stock", "least", "more"])
def test_hog_of_twice_the_memory(world, cgroup, min_free):
    stock = MIN_FREE.read_text()
    MIN_FREE.write_text(str(min_free) if min_free else stock)
    hog = Hog(cgroup(), f"hog-{min_free}", 2 * meminfo_mib("MemAvailable"))
    try:
        rate = world.moves(PAGES, lambda: not hog.alive())
        tell(f"min_free_kbytes {MIN_FREE.read_text().strip()}: {rate:.0f} pages/s, "
             f"{meminfo_mib('MemAvailable')} MiB available")
        assert hog.alive(), victims()
        world.intact()
    finally:
        hog.end()
        MIN_FREE.write_text(stock)


def test_memory_shrinks_and_swap_gets_full(world, cgroup):
    hog = Hog(cgroup(), "hog", 2 * meminfo_mib("MemAvailable"))
    locker = second = None
    try:
        world.moves(PAGES, lambda: not hog.alive())
        assert hog.alive(), victims()
        locker = subprocess.Popen(
            [sys.executable, "-c", LOCKER,
             str(meminfo_mib("MemTotal") - meminfo_mib("Unevictable") - LEFT_MIB << 20)],
            stdin=subprocess.PIPE, stdout=open(LOGS / "locker.out", "w"), text=True)
        locked = lambda: "locked" in read(LOGS / "locker.out")
        rate = world.moves(ALL, lambda: locked() or locker.poll() is not None)
        assert locked() and hog.alive(), victims()
        tell(f"shrinks: {rate:.0f} pages/s")
        rate = world.moves(PAGES, lambda: not hog.alive())
        tell(f"{LEFT_MIB} MiB: {rate:.0f} pages/s, {meminfo_mib('MemAvailable')} MiB available, "
             f"swap {meminfo_mib('SwapFree')} MiB free")
        tell(victims())
        assert hog.alive(), victims()
        world.intact()
        # More than there is.
        second = Hog(cgroup(), "second", DEVICE_MIB)
        rate = world.moves(ALL, lambda: not (hog.alive() and second.alive()))
        tell(f"until a victim: {rate:.0f} pages/s; {victims()}")
        world.intact()
        assert not (hog.alive() and second.alive())
        # It may end, too.
        world.moves(PAGES // 4, lambda: not (hog.alive() or second.alive()))
        world.intact()
    finally:
        for h in (second, hog):
            if h:
                h.end()
        if locker:
            locker.kill()
            locker.wait()
    assert not [l for l in victims() if re.search(r"\bebb(d\b|-swapd|-standby|-super|ctl)", l)]
