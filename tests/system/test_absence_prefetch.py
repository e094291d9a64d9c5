# SPDX-License-Identifier: GPL-2.0-or-later
"""What ebbd prefetches while a donor is away: nothing whose read would wait for it."""
import subprocess
import time

import pytest

import parts
import policies
from cluster import Cluster
from machine import wait_for
from parts import ebbctl

PAGES = 4096
# Pages whose contents are at a donor, then pages that ebb-swapd stores as a word each: reads of
# these need no donor.  Each line of input is a command: "out" pages all out, "FIRST END"
# reads these pages and prints the sum of their first words.
PROGRAM = f"""
import ctypes, mmap, sys
MCL_CURRENT = 1
assert ctypes.CDLL(None).mlockall(MCL_CURRENT) == 0     # it must not wait for its own pages
area = mmap.mmap(-1, {2 * PAGES} << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area.madvise(mmap.MADV_NOHUGEPAGE)
words = (ctypes.c_uint64 * ({2 * PAGES} << 9)).from_buffer(area)
for page in range({PAGES}):
    words[page << 9] = page
ctypes.memset(ctypes.addressof(words) + ({PAGES} << 12), 1, {PAGES} << 12)
print(ctypes.addressof(words) >> 12, flush=True)
for line in sys.stdin:
    if line.strip() == "out":
        area.madvise(21)
        print("out", flush=True)
    else:
        print(sum(words[page << 9] for page in range(*map(int, line.split()))), flush=True)
"""
# A read of page i of the second half prefetches those from page i of the first half on.
BODY = f"""
	if (f->vpn - p->v[AT] - {PAGES} < {PAGES})
		ebb_prefetch(f, f->vpn - {PAGES}, 1, 16);"""


class Program:
    def __init__(self, cgroup):
        self.cgroup = cgroup
        self.process = subprocess.Popen(["/usr/bin/python3", "-c", PROGRAM], text=True,
                                        preexec_fn=cgroup.enter, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.vpn = int(self.process.stdout.readline())
        self.at = PAGES     # the next page of the second half

    def do(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def read(self, pages=8):
        """Reads pages of the second half that were not read since they were paged out."""
        assert self.at + pages <= 2 * PAGES, "the test needs more pages"
        assert int(self.do(f"{self.at} {self.at + pages}")) == pages * 0x0101010101010101
        self.at += pages


@pytest.fixture
def borrower(swap_lock, tmp_path, logs):
    """A machine with swap at a donor on another machine, without a backup; .donor is that one."""
    cluster = Cluster(tmp_path / "cluster", logs, donors=1, memory="128M",
                      options=("--keep", "600s"))
    try:
        with cluster.node.inside():
            device = parts.Device(cluster.donors[0], size="64M", slab="1M",
                                  options=("--durability", "none"))
        device.donor = cluster.donors[0]
        try:
            yield device
        finally:
            cluster.node.plug()
            wait_for(lambda: device.status()["donors"][0]["state"] == "up", 30, "the donor")
            device.destroy()
    finally:
        cluster.close()


@pytest.fixture
def program(ebbd, borrower, cgroup, tmp_path):
    p = Program(cgroup(limit_mib=64))
    ebbctl("policy", "load", policies.compile_policy(tmp_path, policies.source(
        body=BODY, params=[("AT", 'EBB_PARAM(AT, "at", 0, 0, EBB_VPN_END, "page")')])))
    ebbctl("policy", "attach", "mine", p.cgroup.path)
    ebbctl("policy", "set", p.cgroup.path, f"at={p.vpn}")
    assert p.do("out") == "out"
    p.cgroup.evict()
    yield p
    p.process.communicate("", timeout=60)


def executor():
    return policies.call("status")["executor"]


def test_prefetching_pauses_while_a_donor_is_away(program, borrower):
    def grows(key, since):
        program.read()
        return executor()[key] > since[key]

    start = executor()
    wait_for(lambda: grows("pages", start), 10, "prefetches")
    assert executor()["held_back"] == start["held_back"]

    borrower.donor.node.unplug()
    wait_for(lambda: borrower.status()["donors"][0]["state"] == "away", 10, "absence")
    cut = executor()
    wait_for(lambda: grows("held_back", cut), 2 * 5, "pages that are held back")
    away = executor()
    for _ in range(10):
        program.read()
        time.sleep(0.1)
    assert executor()["pages"] == away["pages"]
    assert executor()["held_back"] > away["held_back"]

    borrower.donor.node.plug()
    wait_for(lambda: borrower.status()["donors"][0]["state"] == "up", 30, "the donor")
    back = executor()
    wait_for(lambda: grows("pages", back), 2 * 5, "prefetches again")
    assert int(program.do(f"0 {PAGES}")) == PAGES * (PAGES - 1) // 2
    assert borrower.stats()["donor_losses"] == 0 and borrower.stats()["pages_read_failed"] == 0
