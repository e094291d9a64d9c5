# SPDX-License-Identifier: GPL-2.0-or-later
"""What ebbd does beside plain prefetching, on cgroup v2: workers, mapping ahead, offloading."""
import machine
import parts
from machine import wait_for

# A 32 MiB program in 16 MiB: half of it is always elsewhere.
MIB, LIMIT = 32, 16


def test_several_workers(donor, device, cgroup, logs):
    """Two programs, each with a worker of its own or both with one: nothing is lost or counted twice."""
    conf = logs / "ebb.conf"
    conf.write_text("[prefetch]\nworkers = 3\n")
    ebbd = parts.Ebbd(logs / "ebbd.log", config=conf)
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


def test_map_ahead(donor, device, cgroup, logs):
    """Pages are mapped before the program comes; what was used of them is told by the others."""
    conf = logs / "ebb.conf"
    conf.write_text("[prefetch]\nmap_ahead = on\nexpire = 2s\n")
    ebbd = parts.Ebbd(logs / "ebbd.log", config=conf)
    try:
        def attempt():
            c = cgroup(limit_mib=LIMIT)
            parts.ebbctl("policy", "attach", "streams", c.path)
            mapped = parts.ebbctl_json("status")["executor"]["mapped"]
            told = parts.scan_json(mib=MIB, passes=3, write=True, cgroup=c)
            assert told["bad"] == 0
            mapped = parts.ebbctl_json("status")["executor"]["mapped"] - mapped
            stats = parts.stats(c)
            return c, told["pages"], mapped, stats["hits"] + stats["late"], stats["misses"]

        def good(told):
            _, pages, mapped, used, misses = told
            # On one emulated processor the program is often faster: a fifth of its pages were mapped.
            return mapped > pages / 16 and used > pages / 2 and used > 2 * misses

        told = parts.tried(attempt, good)
        assert good(told), told
        c = told[0]
        # The program is gone: all that was brought in is accounted for as used or wasted.
        wait_for(lambda: parts.stats(c)["outstanding"] == 0, 30, "pages nobody accounts for")
        stats = parts.stats(c)
        accounted = stats["hits"] + stats["late"] + stats["wasted"]
        assert abs(stats["prefetched"] - accounted) <= stats["prefetched"] / 100, stats
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_cold_memory_goes_to_the_donor(road):
    """slowdown=: what a program does not use goes, what it uses stays and is not missed."""
    # By the kernel's LRU it would be some fifty: what was written first is oldest.
    misses = parts.tried(lambda: misses_of_the_rest(road), lambda misses: misses < 16, 3)
    assert misses < 16


def misses_of_the_rest(road):
    c = road.make_cgroup()
    program = parts.Regions(c, 64, 16, 200)
    used = c.usage()
    parts.ebbctl("policy", "attach", "none", c.path, "slowdown=2%")
    try:
        # A quarter is used; emulation on a busy machine takes four times as long as needed.
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
