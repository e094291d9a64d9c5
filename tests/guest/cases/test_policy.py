# SPDX-License-Identifier: GPL-2.0-or-later
"""Prefetching for two programs and offloading, on cgroup v2."""
import machine
import parts
from machine import wait_for

# A 32 MiB program in 16 MiB: half of it is always swapped out.
MIB, LIMIT = 32, 16


def test_two_programs(donor, device, cgroup, logs):
    """Two programs of one cgroup: no page is lost or counted twice."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        c = cgroup(limit_mib=LIMIT)
        parts.ebbctl("policy", "attach", "streams", c.path)
        programs = [parts.Scan(c, mib=LIMIT, passes=3) for _ in range(2)]
        before = device.block_pages()[0]
        for p in programs:
            p.go()
        told = [p.result() for p in programs]
        read = device.block_pages()[0] - before
        stats = parts.stats(c)
        assert [t["bad"] for t in told] == [0, 0]
        assert stats["prefetched"] > told[0]["pages"], stats
        assert stats["hits"] + stats["late"] > 2 * stats["misses"], stats
        assert stats["swapped_in"] >= read * 0.99, (stats, read)
        accounted = stats["hits"] + stats["late"] + stats["wasted"] + stats["outstanding"]
        assert abs(stats["prefetched"] - accounted) <= stats["prefetched"] / 100
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_cold_memory_goes_to_the_donor(road):
    """slowdown=: unused memory is swapped out, used memory stays and causes no misses."""
    # By the kernel's LRU some fifty pages would miss: the pages written first are the oldest.
    misses = parts.tried(lambda: misses_of_the_rest(road), lambda misses: misses < 16, 3)
    assert misses < 16


def misses_of_the_rest(road):
    c = road.make_cgroup()
    program = parts.Regions(c, 64, 16, 200)
    used = c.usage()
    parts.ebbctl("policy", "attach", "none", c.path, "slowdown=2%")
    try:
        # A quarter is used; emulation on a busy machine takes four times as long.
        wait_for(lambda: c.usage() < used * 0.7 and program.resident() < 40 << 20, 120,
                 "the cold part to go")
        row = parts.stats(c)
        told = row["offload"]
        assert told["reclaimed_pages"] > 10 << 8, told
        assert program.resident() > 14 << 20, told
        assert road.device.used_kib() > 18 << 10, told
        return row["misses"]
    finally:
        program.stop()
