# SPDX-License-Identifier: GPL-2.0-or-later
"""All parts together on cgroup v2: an unmodified program, a donor, a device, a policy."""
import json
import subprocess
import sys

import pytest

import parts

# A 32 MiB program in 16 MiB: half of it is always swapped out.
MIB, LIMIT = 32, 16


# Around a miss in shared memory the kernel reads its neighbours, whatever was prefetched: where
# prefetches lag, as under emulation, few pages are left for them.  The program rests after each page:
# without, a guest that gets little processor time prefetches too late.
@pytest.mark.parametrize("memory, least", [("private", 4), ("memfd", 1)])
def test_sequential_program_comes_back_before_it_asks(road, memory, least):
    def attempt():
        c = road.attached("leap", LIMIT)
        told = parts.scan_json(mib=MIB, passes=3, cgroup=c, options=("--memory", memory, "--rest-us", "200"))
        assert told["bad"] == 0
        stats = parts.stats(c)
        return stats["hits"] + stats["late"], told["pages"], stats["misses"]

    good = lambda told: told[0] > told[1] * least / 4 and told[0] > least * told[2]
    told = parts.tried(attempt, good)
    assert good(told), told


def test_rewritten_pages_are_right(road):
    c = road.attached("leap", LIMIT)
    told = parts.scan_json(mib=MIB, passes=2, pattern="stride:7", write=True, cgroup=c)
    assert told["bad"] == 0
    assert parts.stats(c)["swapped_out"] > told["pages"]


def test_random_program_is_left_alone(road):
    """Random accesses are not prefetched: prefetches stay below a hundredth of the misses."""
    c = road.attached("leap", LIMIT)
    told = parts.scan_json(mib=MIB, passes=2, pattern="random", cgroup=c)
    stats = parts.stats(c)
    assert told["bad"] == 0
    assert stats["misses"] > 1000
    assert stats["prefetched"] <= stats["misses"] // 100


def test_counters_reconcile_with_the_block_layer(road):
    """Only the program swaps in this guest, so all pages in bios are its own."""
    c = road.attached("leap", LIMIT)
    before = road.device.block_pages()
    told = parts.scan_json(mib=MIB, passes=2, write=True, cgroup=c)
    read, written = (now - then for now, then in zip(road.device.block_pages(), before))
    stats = parts.stats(c)
    assert told["bad"] == 0
    assert abs(stats["swapped_in"] - read) <= read / 100
    assert abs(stats["swapped_out"] - written) <= written / 100
    accounted = stats["hits"] + stats["late"] + stats["wasted"] + stats["outstanding"]
    assert abs(stats["prefetched"] - accounted) <= stats["prefetched"] / 100


def test_huge_pages_reconcile_too(road):
    c = road.attached("leap", LIMIT)
    before = road.device.block_pages()
    told = parts.scan_json(mib=MIB, passes=2, write=True, cgroup=c, options=["--thp"])
    read, written = (now - then for now, then in zip(road.device.block_pages(), before))
    stats = parts.stats(c)
    assert told["bad"] == 0
    assert abs(stats["swapped_in"] - read) <= read / 100
    assert abs(stats["swapped_out"] - written) <= written / 100


def test_run_verb(road):
    """One command sets cgroup, limit and policy, runs the program, and returns its exit status."""
    done = parts.ebbctl("run", "--mem", f"{LIMIT}M", "--policy", "leap", "--",
                        *parts.scan_argv(mib=MIB, passes=2, write=True))
    told = next(json.loads(line) for line in done.stdout.splitlines() if '"pattern"' in line)
    assert told["bad"] == 0
    assert "misses" in done.stderr + done.stdout
    failed = parts.ebbctl("run", "--mem", "32M", "--", "sh", "-c", "exit 7", check=False)
    assert failed.returncode == 7


def test_small_cgroup_is_not_killed_by_prefetch(road):
    """Prefetched pages are charged to the program: they must fit beside its used pages."""
    c = road.attached("leap", limit_mib=16)
    told = parts.scan_json(mib=48, passes=2, cgroup=c)
    assert told["bad"] == 0
    assert parts.stats(c)["prefetched"] > 1000
    assert c.events("oom") == 0 and c.events("oom_kill") == 0


# Writes to memory until little swap is left, says so, and keeps it.
FILLER = """
import sys
def free():
    return next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("SwapFree")) >> 10
kept = []
while free() > 16:
    kept.append(bytes([1]) * (1 << 20))
print(flush=True)
sys.stdin.read()
"""


def test_nothing_is_prefetched_while_swap_is_full(swap_lock, ebbd, donor, cgroup):
    """
    The kernel then finds no place for the pages that a prefetched one drives out, and kills the
    program.  Only a guest has no other programs that take and return swap meanwhile.
    """
    # ebbd keeps a sixteenth free, 28 MiB; the filler leaves 16.  The scan takes 8 of these when each
    # of its pages in memory is in swap, too, and returns what of that it held before.
    device = parts.Device(donor, size="448M")
    s = None
    try:
        c = cgroup(limit_mib=8)
        parts.ebbctl("policy", "attach", "leap", c.path)
        s = parts.Scan(cgroup=c, mib=24, passes=2)
        before = parts.stats(c)
        filler = subprocess.Popen([sys.executable, "-c", FILLER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  preexec_fn=cgroup(limit_mib=16).enter)
        try:
            assert filler.stdout.readline()
            s.go()
            assert s.result()["bad"] == 0
        finally:
            filler.kill()
            filler.communicate()
        after = parts.stats(c)
        assert after["misses"] - before["misses"] > 1000
        assert after["prefetched"] == before["prefetched"]
        assert c.events("oom_kill") == 0
    finally:
        if s:
            s.kill()
        device.destroy()


def test_memory_high_is_not_hit_more_often(road):
    """A cgroup over memory.high throttles its program; prefetching must not push it there."""
    def attempt():
        plain, fetched = road.make_cgroup(), road.make_cgroup()
        parts.ebbctl("policy", "attach", "leap", fetched.path)
        high = {}
        for c in (plain, fetched):
            c.set("memory.high", LIMIT << 20)
            assert parts.scan_json(mib=MIB, passes=3, cgroup=c)["bad"] == 0
            high[c] = c.events("high")
        assert parts.stats(fetched)["prefetched"] > 1000
        return high[fetched], high[plain]

    # Both are throttled by their own growth; runs differ by a few percent.
    good = lambda high: high[0] <= high[1] * 1.1
    told = parts.tried(attempt, good, 3)
    assert good(told), told
