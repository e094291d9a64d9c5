# SPDX-License-Identifier: GPL-2.0-or-later
"""What ebbd reads for other processes: swapped-out memory only, never the files that they map."""
import os
import subprocess

import pytest

import machine
import parts
import policies
from machine import wait_for
from parts import ebbctl

BARE = machine.BUILD / "tests" / "barefuse"
PAGES = 2048

# Areas of equal size: anonymous memory, a private mapping of a file with every page written,
# anonymous memory, shared memory.  Each line of input is a command: "out" pages all out, "N:FIRST:END ..." reads
# pages of area N and prints their number.  "over" reads the last page of area 0, moves 64 pages of
# the file to page 64 there, and reads the first page.
PROGRAM = f"""
import ctypes, mmap, os, sys
SIZE, MADV_PAGEOUT = {PAGES} << 12, 21
fd = os.open(sys.argv[1], os.O_RDWR)
anonymous = lambda: mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
areas = []
shared = lambda: mmap.mmap(-1, SIZE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
for make in anonymous, lambda: mmap.mmap(fd, SIZE, flags=mmap.MAP_PRIVATE), anonymous, shared:
    areas.append(make())
    anonymous()         # a hole, so that mappings do not merge
for area in areas:
    area.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, SIZE, 4096):
        area[at] = 1
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
print(*(ctypes.addressof(ctypes.c_char.from_buffer(a)) >> 12 for a in areas), flush=True)
for line in sys.stdin:
    if line.strip() == "out":
        for area in areas:
            area.madvise(MADV_PAGEOUT)
        print("out", flush=True)
    elif line.strip() == "over":
        libc = ctypes.CDLL(None)
        to, of = (ctypes.addressof(ctypes.c_char.from_buffer(a)) for a in areas[:2])
        length = ctypes.c_size_t(64 << 12)
        areas[0][(len(areas[0]) >> 12) - 1 << 12]
        # MREMAP_MAYMOVE, MREMAP_FIXED
        assert libc.mremap(ctypes.c_void_p(of), length, length, 1 | 2,
                           ctypes.c_void_p(to + (64 << 12))) != -1
        print(areas[0][0], flush=True)
    else:
        ranges = [map(int, word.split(":")) for word in line.split()]
        print(sum(areas[n][page << 12] for n, *r in ranges for page in range(*r)), flush=True)
"""


class Program:
    """PROGRAM in a cgroup; .vpn has the first page of each area."""

    def __init__(self, cgroup, file):
        self.cgroup = cgroup
        self.process = subprocess.Popen(["/usr/bin/python3", "-c", PROGRAM, file], text=True,
                                        preexec_fn=cgroup.enter, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        self.vpn = [int(n) for n in self.process.stdout.readline().split()]

    def do(self, command):
        print(command, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def out(self):
        assert self.do("out") == "out"
        self.cgroup.evict()

    def read(self, *ranges):
        """Reads pages (area, first, end) and so on; returns what this added to the counters."""
        before = parts.stats(self.cgroup)
        words = " ".join(f"{n}:{first}:{end}" for n, first, end in ranges)
        assert int(self.do(words)) == sum(end - first for _, first, end in ranges)
        after = parts.stats(self.cgroup)
        return {k: v - before[k] for k, v in after.items() if isinstance(v, int)}

    def end(self):
        self.process.communicate("", timeout=60)


class File:
    """A file whose reads are known."""

    def __init__(self, directory):
        self.at, self.log = directory / "mount", directory / "reads"
        self.at.mkdir()
        self.log.touch()
        self.server = subprocess.Popen([BARE, self.at, "16", self.log])
        wait_for(lambda: machine.read("/proc/mounts").find(f" {self.at} ") > 0, 30, "the mount")
        self.path = self.at / "swap"

    def reads(self):
        return self.log.read_text().splitlines()

    def end(self):
        subprocess.run(["umount", "--lazy", self.at], check=True)
        self.server.wait(60)


@pytest.fixture
def program(device, cgroup, tmp_path):
    """PROGRAM, with the file that it maps as .file."""
    file = File(tmp_path)
    try:
        p = Program(cgroup(limit_mib=64), file.path)
        p.file = file
        yield p
        p.end()
    finally:
        file.end()


def load_policy(directory, program, body):
    """Attaches a policy with the parameters "at" and "to": pages."""
    params = [(n, f'EBB_PARAM({n}, "{n.lower()}", 0, 0, EBB_VPN_END, "page")') for n in ("AT", "TO")]
    ebbctl("policy", "load", policies.compile_policy(
        directory, policies.source(body=body, params=params)))
    ebbctl("policy", "attach", "mine", program.cgroup.path)


def test_a_private_file_mapping_is_not_read_ahead(ebbd, program, tmp_path):
    """MADV_WILLNEED on its swapped-out pages would read the file, and wait for its server."""
    load_policy(tmp_path, program, "ebb_prefetch(f, f->vpn + 1, 1, 64);")
    program.out()
    before = program.file.reads()
    assert before
    assert program.read((1, 0, PAGES))["misses"] > 100
    assert program.file.reads() == before


def test_a_fault_elsewhere_reaches_memory_only(ebbd, program, tmp_path):
    """Pages of other mappings are prefetched if they are memory, which their last fault showed."""
    last = PAGES - 1
    load_policy(tmp_path, program, f"""
	if (f->vpn == p->v[TO] + {last})
		ebb_prefetch(f, f->vpn - 1, 1, 1);
	else if (f->vpn == p->v[AT])
		ebb_prefetch(f, p->v[TO], 1, 8);""")
    before = program.file.reads()
    for area, reached in (1, 0), (2, 8 + 1):
        program.out()
        ebbctl("policy", "set", program.cgroup.path, f"at={program.vpn[0]}",
               f"to={program.vpn[area]}")
        program.read((area, last, PAGES), (0, 0, 1))
        wait_for(lambda: parts.stats(program.cgroup)["requests"] >= 2 * area - 1, 10, "requests")
        wait_for(lambda: parts.stats(program.cgroup)["prefetched"] == reached, 10, "prefetches")
    assert program.file.reads() == before


def test_shared_memory_counts_as_memory(ebbd, program, tmp_path):
    """Though it is a mapping of a file, for the kernel."""
    executor = lambda: policies.call("status")["executor"]
    load_policy(tmp_path, program, f"""
	if (f->vpn - p->v[AT] < {PAGES})
		ebb_prefetch(f, p->v[AT], 1, 64);""")
    program.out()
    ebbctl("policy", "set", program.cgroup.path, f"at={program.vpn[3]}")
    before = executor()
    assert program.read((3, PAGES - 64, PAGES))["requests"] > 0
    wait_for(lambda: executor()["shared"] == before["shared"] + 64, 10, "prefetches")
    assert executor()["not_memory"] == before["not_memory"]


def test_a_file_that_has_just_replaced_memory_is_not_read_ahead(ebbd, program, tmp_path):
    """A thread tells what is memory four times a second; ebbd looks again before it reads."""
    if tuple(int(n) for n in os.uname().release.split(".")[:2]) < (6, 11):
        pytest.skip("this kernel does not tell quickly which pages are of a file")
    executor = lambda: policies.call("status")["executor"]
    load_policy(tmp_path, program, """
	if (f->vpn == p->v[AT])
		ebb_prefetch(f, p->v[TO], 1, 8);""")
    ebbctl("policy", "set", program.cgroup.path, f"at={program.vpn[0]}",
           f"to={program.vpn[0] + 64}")
    program.out()
    before, reads = executor(), program.file.reads()
    assert program.do("over") == "1"
    wait_for(lambda: executor()["not_memory"] == before["not_memory"] + 8, 10, "pages of a file")
    assert program.file.reads() == reads


# Maps a file over each chunk of 64 pages that offloading has unmapped, but for every fourth, until
# its input ends.
REPLACES = f"""
import ctypes, os, mmap, select, struct, sys
CHUNK, MAP_FIXED, RW = 64, 16, mmap.PROT_READ | mmap.PROT_WRITE
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long
fd = os.open(sys.argv[1], os.O_RDWR)
area = libc.mmap(None, {PAGES} << 14, RW, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
ctypes.memset(area, 1, {PAGES} << 14)
print(flush=True)
left = [i for i in range({PAGES} * 4 // CHUNK) if i % 4]
with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
    while not select.select([0], [], [], 0.1)[0]:
        for i in left[:]:
            entries = os.pread(pagemap.fileno(), 8 * CHUNK, (area >> 12) * 8 + i * 8 * CHUNK)
            if all(e >> 62 == 1 for e in struct.unpack(f"<{{CHUNK}}Q", entries)):
                at = area + (i * CHUNK << 12)
                assert libc.mmap(at, CHUNK << 12, RW, mmap.MAP_PRIVATE | MAP_FIXED, fd, 0) == at
                left.remove(i)
                print(i, flush=True)
"""


def test_offloading_reads_no_file_that_replaced_memory(ebbd, device, cgroup, tmp_path):
    """It unmaps idle pages, and a second later reads those that were not touched, to free them."""
    group, file = cgroup(), File(tmp_path)
    program = subprocess.Popen(["/usr/bin/python3", "-c", REPLACES, file.path], text=True,
                               preexec_fn=group.enter, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        assert program.stdout.readline() == "\n"
        ebbctl("policy", "attach", "none", group.path, "slowdown=10%")
        for _ in range(16):
            assert int(program.stdout.readline()) % 4
        # Those chunks are judged meanwhile.
        freed = parts.stats(group)["offload"]["reclaimed_pages"]
        wait_for(lambda: parts.stats(group)["offload"]["reclaimed_pages"] > freed + 512, 120,
                 "pages that are freed")
        assert file.reads() == []
    finally:
        program.communicate("", timeout=60)
        file.end()
