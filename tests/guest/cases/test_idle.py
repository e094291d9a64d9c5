# SPDX-License-Identifier: GPL-2.0-or-later
"""
What `ebbctl advise --cgroup` reports is what happens then: the amount is reclaimed, and the
program's faults are counted.  By each source that a kernel has.
"""
import contextlib
import subprocess
from pathlib import Path

import pytest

import machine
import parts
from idleness import Temperatures, Watch, is_right, watch_program

MIB = 32
PAGES = MIB << 8
ENABLED = Path("/sys/kernel/mm/lru_gen/enabled")
SWITCHES = {"mglru": "y", "references": "n"}


def swapped_in():
    return int(next(l for l in machine.read("/proc/vmstat").splitlines()
                    if l.startswith("pswpin ")).split()[1])


@pytest.fixture
def switch():
    """switch(source) enables or disables the kernel's multi-gen LRU."""
    before = ENABLED.read_text()
    yield lambda source: ENABLED.write_text(SWITCHES[source])
    ENABLED.write_text(before)


@contextlib.contextmanager
def running(cgroup, *options):
    p = Temperatures(cgroup, MIB, *options)
    try:
        yield p
    finally:
        p.end()


@pytest.mark.parametrize("source", SWITCHES)
def test_report_is_what_happens(road, switch, source):
    switch(source)
    c = road.attached(policy="none", limit_mib=None)
    with running(c) as p:
        report = parts.tried(lambda: watch_program(p, c, "--page-cost", "50us"),
                             lambda r: is_right(r, MIB))
        print(report)
        assert report["source"] == source
        assert is_right(report, MIB), report
        row = report["idle"][0]
        with contextlib.suppress(BlockingIOError):
            c.set("memory.reclaim", row["bytes"])
        moved = int(machine.read(c.path / "memory.swap.current"))
        # All of it could move, and none of what is hot does.
        assert moved >= 0.9 * row["bytes"]
        assert p.read("hot") <= 0.02 * PAGES
        # What returned during the watch returns again, from the device.
        before = swapped_in()
        assert p.read("warm") > 0
        again = swapped_in() - before
        print({"moved": moved, "returned": row["returned"] >> 12, "again": again})
        assert 0.8 * (row["returned"] >> 12) <= again <= 1.2 * (row["returned"] >> 12)
        assert p.read("cold") > 0


def test_shared_memory_has_generations(cgroup, switch):
    switch("mglru")
    c = cgroup()
    with running(c, "shared") as p:
        report = parts.tried(lambda: watch_program(p, c), lambda r: is_right(r, MIB))
        assert report["source"] == "mglru" and is_right(report, MIB), report


def test_another_that_ages_ends_the_watch(cgroup, switch):
    """Its readings so far are reported, and the reason why there are no more."""
    switch("mglru")
    c = cgroup()
    with running(c):
        w = Watch(c, "--idle", "1s,1h", "--for", "2h")
        w.await_line("after .* idle")
        for _ in range(2):
            parts.ebbctl("advise", "--cgroup", c.path, "--for", "1ms")
        w.process.send_signal(2)
        out, said = w.process.communicate(timeout=60)
        assert w.process.returncode == 0 and "aged this memory itself" in said
        assert '"window_s":0' in out.replace(" ", "") and '"idle_s"' in out


def test_without_debugfs_the_accessed_bits_serve(cgroup, switch):
    switch("mglru")
    c = cgroup()
    subprocess.run(["umount", "/sys/kernel/debug"], check=True)
    try:
        with running(c):
            w = Watch(c, "--for", "100ms")
            assert w.source == "references"
            assert w.report()["seen"] >= 3 * MIB << 20
    finally:
        subprocess.run(["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"], check=True)
