# SPDX-License-Identifier: GPL-2.0-or-later
"""
The two kinds of hooks for misses and swapped-out pages, fentry and tracepoints, count alike, and
agree with the kernel's counters, for a program whose memory is swapped out and in by pages.
"""
import json
import subprocess
import sys
from pathlib import Path

import machine
import parts

PAGES = 1024
# Counts of a process's swapped-out pages lag by each processor's unfolded part.
LAG = 128

# Locks its own memory: only the requested pages are swapped out.
PROGRAM = """
import array, ctypes, json, mmap, os, sys
pages, size = int(sys.argv[1]), int(sys.argv[1]) * 4096
libc = ctypes.CDLL(None, use_errno=True)
file = os.open("/var/tmp/ebb-test-hooks", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
os.truncate(file, size)
pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
assert libc.mlockall(1 | 2 | 4) == 0 # MCL_CURRENT, _FUTURE, _ONFAULT
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) == 0
present = (ctypes.c_ubyte * pages)()
for page in range(pages):
    memory[page * 4096:(page + 1) * 4096] = os.urandom(16) * 256
# A hole would be read by accesses that fault.
assert os.pwritev(file, [memory], 0) == size

def look():
    "Pages without a mapping, and those of them that are not in the swap cache either."
    entries = array.array("Q", os.pread(pagemap, pages * 8, address // 4096 * 8))
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), present) == 0
    unmapped = [bool(e >> 62 & 1) for e in entries]
    return {"unmapped": sum(unmapped),
            "absent": sum(1 for u, p in zip(unmapped, present) if u and not p & 1)}

def out():
    memory.madvise(21) # MADV_PAGEOUT

def read():
    sum(memory[at] for at in range(0, size, 4096))

def start():
    sum(memory[page * 4096] for page in range(64))

def renew():
    memory.madvise(4, 64 * 4096) # MADV_DONTNEED, from page 64 on
    for page in range(64, pages):
        memory[page * 4096] = 1

def direct():
    assert os.preadv(file, [memory], 0) == size

for line in sys.stdin:
    if line.strip() != "look":
        locals()[line.strip()]()
    print(json.dumps(look()), flush=True)
"""


class Program:
    def __init__(self, cgroup):
        self.process = subprocess.Popen([sys.executable, "-B", "-c", PROGRAM, str(PAGES)],
                                        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=cgroup.enter)

    def does(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0


def drop_swap_cache(cgroup, program):
    """Drops the swap cache, in which written pages stay until their memory is needed."""
    def gone():
        try:
            (cgroup.path / "memory.reclaim").write_text(str(PAGES * 4096))
        except OSError:
            pass # less was left
        told = program.does("look")
        return told["absent"] > PAGES * 0.9 and told
    return machine.wait_for(gone, 30, "pages to leave the swap cache")


def swapped_out(pid):
    done = subprocess.run(["/usr/sbin/bpftool", "-j", "map", "dump", "pinned",
                           str(machine.PINS / "maps" / "procs")],
                          text=True, capture_output=True, check=True)
    entries = [e.get("formatted", e) for e in json.loads(done.stdout)]
    return next(e["value"]["swapped_out"] for e in entries if e["key"] == pid)


def counted(cgroup, hooks, logs):
    """Returns ebbd's counts of the program with @hooks, each checked against the kernel's."""
    conf = logs / f"{hooks}.conf"
    conf.write_text(f"[bpf]\nhooks = {hooks}\n")
    ebbd = parts.Ebbd(logs / f"ebbd-{hooks}.log", config=conf)
    program = None
    try:
        used = parts.ebbctl_json("status")["hooks"]
        c = cgroup()
        parts.ebbctl("policy", "attach", "none", c.path)
        program = Program(c)
        assert program.does("look")["unmapped"] == 0

        assert program.does("out")["unmapped"] > PAGES * 0.9
        first = drop_swap_cache(c, program)
        assert program.does("read")["unmapped"] == 0
        told = parts.stats(c)
        assert told["misses"] == told["swapped_in"] == first["absent"], (first, told)
        assert told["written"] == first["unmapped"], (first, told)
        assert told["clean"] == (0 if used == "fentry" else None)

        # Nothing was written since: all pages are dropped clean.
        again = program.does("out")
        assert again["absent"] > PAGES * 0.9
        program.does("read")
        told = parts.stats(c)
        assert told["misses"] == first["absent"] + again["absent"], (first, again, told)
        assert told["written"] == first["unmapped"], (first, told)
        assert told["clean"] == (again["unmapped"] if used == "fentry" else None)
        left = swapped_out(program.process.pid) - first["unmapped"] - again["unmapped"]
        assert abs(left) <= (0 if used == "fentry" else LAG)

        # Direct I/O swaps pages in without a faulting access.
        direct = program.does("out")
        program.does("direct")
        missed = parts.stats(c)["misses"] - told["misses"]
        assert missed == (direct["absent"] if used == "fentry" else 0)
        return used, told
    finally:
        if program:
            program.end()
        Path("/var/tmp/ebb-test-hooks").unlink(missing_ok=True)
        ebbd.stop()
        machine.pins_remove()


def test_both_hooks_count_the_same(device, cgroup, logs):
    readahead = Path("/proc/sys/vm/page-cluster")
    before = readahead.read_text()
    try:
        readahead.write_text("0")
        told = dict(counted(cgroup, hooks, logs) for hooks in ("auto", "tracepoints"))
    finally:
        readahead.write_text(before)
    assert list(told) == ["fentry", "tracepoints"]
    # The kernel may keep a few of the requested pages in memory.
    for what, most in ("misses", PAGES / 10), ("swapped_in", PAGES / 10), ("written", PAGES / 10), ("epochs", 2):
        assert abs(told["fentry"][what] - told["tracepoints"][what]) <= most, (what, told)


def test_a_new_page_is_no_hit(device, cgroup, logs):
    """... where the program unmapped a prefetched page.  Only fentry tells them apart."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    program = None
    try:
        assert parts.ebbctl_json("status")["hooks"] == "fentry"
        c = cgroup()
        program = Program(c)
        program.does("out")
        drop_swap_cache(c, program)
        parts.ebbctl("policy", "attach", "leap", c.path)
        program.does("start")
        before = machine.wait_for(lambda: parts.stats(c)["outstanding"] > 4 and parts.stats(c), 20,
                                  "prefetched pages")
        program.does("renew")
        after = parts.stats(c)
        assert after["hits"] - before["hits"] == 0, (before, after)
        assert after["late"] - before["late"] == 0, (before, after)
    finally:
        if program:
            program.end()
        Path("/var/tmp/ebb-test-hooks").unlink(missing_ok=True)
        ebbd.stop()
        machine.pins_remove()
