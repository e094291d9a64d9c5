# SPDX-License-Identifier: GPL-2.0-or-later
"""Shared memory (memfd, System V, MAP_SHARED, tmpfs) is swapped in ahead as private memory is."""
import json
import os
import subprocess
from pathlib import Path

import pytest

import machine
import parts
import policies
from machine import wait_for
from parts import ebbctl
from rows import few

MIB, LIMIT, PAGES = 32, 16, 2048
KINDS = few(["memfd", "sysv", "shared", "tmpfs"], "memfd")


def executor():
    return policies.call("status")["executor"]


def scan(cgroup, kind, file, **what):
    """Scans memory of @kind in @cgroup; returns (report, increase of each counter)."""
    before = parts.stats(cgroup)
    told = parts.scan_json(cgroup=cgroup, mib=MIB, passes=3,
                           options=("--memory", str(file) if kind == "tmpfs" else kind), **what)
    after = parts.stats(cgroup)
    if kind == "tmpfs":
        file.unlink()
    assert told["bad"] == 0
    return told, {k: v - before[k] for k, v in after.items() if isinstance(v, int)}


def prefetch(cgroup, kind, file):
    """
    Scans as often as needed: on a busy machine prefetches may be late.  Returns (coverage, accuracy,
    major faults by the kernel's count, prefetched pages of shared memory by ebbd's).
    """
    def attempt():
        before = executor()
        told, s = scan(cgroup, kind, file)
        used = s["hits"] + s["late"]
        return used / (used + s["misses"]), used / s["prefetched"], told["misses"], \
            executor()["shared"] - before["shared"]
    return parts.tried(attempt, lambda told: told[0] > 0.8 and told[1] > 0.8)


@pytest.fixture
def file():
    """A file on a tmpfs that may be swapped out."""
    path = Path("/dev/shm") / f"ebb-test-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_is_prefetched(ebbd, device, cgroup, file, kind):
    """Its faults call the policy; its pages are requested, arrive, and count when they are used."""
    c = cgroup(limit_mib=LIMIT)
    ebbctl("policy", "attach", "none", c.path)
    alone, counted = scan(c, kind, file)
    assert counted["misses"] > 500 and alone["misses"] > 500
    assert counted["prefetched"] == counted["hits"] == counted["late"] == 0
    assert counted["written"] > 500 and counted["swapped_out"] > 500
    # Epochs end by a share of the program's memory, of which all but a few pages are shared.
    assert 10 < counted["epochs"] < 1000

    ebbctl("policy", "attach", "auto", c.path)
    coverage, accuracy, major, shared = prefetch(c, kind, file)
    assert coverage > 0.5 and accuracy > 0.5
    assert major < alone["misses"]
    assert shared > 500


def test_a_scan_without_fentry(device, cgroup, logs, tmp_path):
    config = tmp_path / "ebb.conf"
    config.write_text("[bpf]\nhooks = tracepoints\n")
    ebbd = parts.Ebbd(logs / "ebbd.log", config=config)
    try:
        c = cgroup(limit_mib=LIMIT)
        ebbctl("policy", "attach", "auto", c.path)
        coverage, accuracy, _, shared = prefetch(c, "memfd", None)
        assert coverage > 0.5 and accuracy > 0.5 and shared > 500
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_its_faults_are_recorded(ebbd, device, tmp_path):
    trace, summary = tmp_path / "run.trace", tmp_path / "run.json"
    ebbctl("run", "--mem", "24M", "--policy", "auto", "--record", trace, "--json", summary, "--",
           *parts.scan_argv(mib=40, passes=3, options=("--memory", "memfd")))
    told, stats = parts.ebbctl_json("trace", "show", trace), json.loads(summary.read_text())["stats"]
    assert stats["hits"] + stats["late"] > 500
    assert told["hits"] + told["late"] >= 0.9 * (stats["hits"] + stats["late"])
    assert told["misses"] >= 0.9 * stats["misses"]


# Maps the file descriptor of its first argument, shared or as the second says, behind a hole, so
# that its pages have another address in each process.  Commands: "write FIRST END VALUE" and
# "read FIRST END", which prints the sum of the pages' first bytes.  Its other memory is locked.
PROGRAM = f"""
import ctypes, mmap, os, sys
MCL_CURRENT = 1
assert ctypes.CDLL(None).mlockall(MCL_CURRENT) == 0
hole = mmap.mmap(-1, (os.getpid() % 64 + 1) << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
area = mmap.mmap(int(sys.argv[1]), {PAGES} << 12, flags=getattr(mmap, sys.argv[2]))
print(ctypes.addressof(ctypes.c_char.from_buffer(area)) >> 12, flush=True)
for line in sys.stdin:
    command, first, end, *value = line.split()
    pages = range(int(first) << 12, int(end) << 12, 4096)
    if command == "write":
        for at in pages:
            area[at] = int(*value)
    print(sum(area[at] for at in pages) if command == "read" else 0, flush=True)
"""


class Program:
    """PROGRAM in a cgroup; .vpn is the page of its mapping."""

    def __init__(self, cgroup, memory, how="MAP_SHARED"):
        self.cgroup = cgroup
        self.process = subprocess.Popen(["/usr/bin/python3", "-c", PROGRAM, str(memory), how],
                                        text=True, pass_fds=[memory], preexec_fn=cgroup.enter,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.vpn = int(self.process.stdout.readline())

    def do(self, command):
        """Returns what the command printed, and the increase of each counter of its cgroup."""
        before = parts.stats(self.cgroup)
        print(command, file=self.process.stdin, flush=True)
        said = int(self.process.stdout.readline())
        after = parts.stats(self.cgroup)
        return said, {k: v - before[k] for k, v in after.items() if isinstance(v, int)}

    def end(self):
        self.process.communicate("", timeout=60)


@pytest.fixture
def memory():
    """A memfd of PAGES pages."""
    fd = os.memfd_create("ebb-test")
    os.ftruncate(fd, PAGES << 12)
    yield fd
    os.close(fd)


@pytest.fixture
def run(memory):
    """run(cgroup, how) starts a Program on the memfd."""
    made = []

    def start(*args):
        made.append(Program(args[0], memory, *args[1:]))
        return made[-1]

    yield start
    for p in made:
        p.end()


def attach(directory, cgroup, body):
    """Attaches a policy with the parameters "at" and "to": pages."""
    params = [(n, f'EBB_PARAM({n}, "{n.lower()}", 0, 0, EBB_VPN_END, "page")') for n in ("AT", "TO")]
    ebbctl("policy", "load", policies.compile_policy(
        directory, policies.source(body=body, params=params)))
    ebbctl("policy", "attach", "mine", cgroup.path)


FAR = PAGES - 64
ASKED = "if (f->vpn == p->v[AT]) ebb_prefetch(f, p->v[TO], 1, 64);"


def swap_out(program, *others):
    """Fills the memory and swaps it out; swaps in what the programs need to run."""
    assert program.do(f"write 0 {PAGES} 1")[0] == 0
    for p in 2 * (program, *others):
        p.cgroup.evict()
    for p in 2 * (program, *others):
        for command in f"read {FAR // 2} {FAR // 2 + 1}", f"write {FAR // 2} {FAR // 2 + 1} 1":
            p.do(command)


def prefetched(program):
    return parts.stats(program.cgroup)["prefetched"]


def ask(program):
    """Has the policy request the first 64 pages, at a page that the kernel has not read ahead."""
    for page in range(FAR, PAGES, 8):
        ebbctl("policy", "set", program.cgroup.path, f"at={program.vpn + page}",
               f"to={program.vpn}")
        if program.do(f"write {page} {page + 1} 1")[1]["requests"]:
            return
    pytest.fail("no fault of the last pages called the policy")


def test_processes_at_different_addresses(ebbd, device, cgroup, run, tmp_path):
    """What was prefetched for one is there for the other, which reads nothing and counts nothing."""
    a, b = run(cgroup()), run(cgroup())
    assert a.vpn != b.vpn
    attach(tmp_path, a.cgroup, ASKED)
    ebbctl("policy", "attach", "none", b.cgroup.path, "detect=1")
    swap_out(a, b)
    ask(a)
    wait_for(lambda: prefetched(a) == 64, 10, "prefetched pages")
    said, counted = b.do("read 0 32")
    assert said == 32
    assert counted["misses"] == counted["hits"] == counted["late"] == 0
    # Written: the kernel maps resident pages around one that is read, without a fault.
    said, counted = a.do("write 0 64 2")
    assert counted["hits"] + counted["late"] == 64 and counted["misses"] == 0
    assert b.do("read 0 64")[0] == 2 * 64


def test_pages_that_another_cgroup_is_charged_for(ebbd, device, cgroup, run, tmp_path):
    """They are prefetched for the process that faults; their memory stays the other cgroup's."""
    owner, user = run(cgroup()), run(cgroup())
    attach(tmp_path, user.cgroup, ASKED)
    ebbctl("policy", "attach", "none", owner.cgroup.path)
    swap_out(owner, user)
    before = parts.stats(owner.cgroup)["swapped_in"]
    ask(user)
    wait_for(lambda: prefetched(user) == 64, 10, "prefetched pages")
    wait_for(lambda: parts.stats(owner.cgroup)["swapped_in"] >= before + 64, 10, "reads")
    _, counted = user.do("write 0 64 2")
    assert counted["hits"] + counted["late"] == 64 and counted["swapped_in"] == 0


def test_only_pages_in_swap_are_requested(ebbd, device, cgroup, run, memory, tmp_path):
    """Neither holes nor resident pages that the process has not mapped: no fault tells of them."""
    a = run(cgroup())
    attach(tmp_path, a.cgroup, ASKED)
    swap_out(a)
    subprocess.run(["fallocate", "--punch-hole", "--offset", str(16 << 12), "--length",
                    str(8 << 12), f"/proc/self/fd/{memory}"], pass_fds=[memory], check=True)
    assert len(os.pread(memory, 4 << 12, 0)) == 4 << 12
    before = executor()
    ask(a)
    wait_for(lambda: prefetched(a) == 64 - 8 - 4, 10, "prefetched pages")
    assert executor()["not_swapped"] == before["not_swapped"] + 8 + 4
    assert executor()["shared"] == before["shared"] + 64 - 8 - 4
    said, counted = a.do("read 0 64")
    assert said == 64 - 8 and counted["misses"] == 0


def test_a_fault_without_a_read_is_not_a_files(ebbd, device, cgroup, run):
    """From Linux 6.12 on, swap keeps pages of zeros without writing them."""
    a = run(cgroup())
    ebbctl("policy", "attach", "none", a.cgroup.path)
    assert a.do(f"write 0 {PAGES} 0")[0] == 0
    a.cgroup.evict()
    said, counted = a.do(f"read 0 {PAGES}")
    assert said == 0
    assert counted["zero_majors"] + counted["misses"] > PAGES // 16
    assert counted["file_majors"] == 0


def test_a_private_mapping_of_shared_memory(ebbd, device, cgroup, run, tmp_path):
    """The file's pages are prefetched, not the copies that the process has written."""
    a = run(cgroup(), "MAP_PRIVATE")
    owner = run(a.cgroup)
    attach(tmp_path, a.cgroup, ASKED)
    a.do("write 0 32 3")
    swap_out(owner, a)
    before = executor()
    ask(a)
    wait_for(lambda: prefetched(a) == 64 - 32, 10, "prefetched pages")
    assert executor()["shared"] == before["shared"] + 64 - 32
    assert executor()["not_swapped"] == before["not_swapped"] + 32
    said, counted = a.do("read 0 64")
    assert said == 3 * 32 + 32
    assert counted["hits"] + counted["late"] == 64 - 32
