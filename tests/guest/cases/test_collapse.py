# SPDX-License-Identifier: GPL-2.0-or-later
"""collapse=auto: what a dense stream has passed leaves as huge pages, where that pays."""
import subprocess
from pathlib import Path

import pytest

import machine
import parts
import statspage
from machine import read

THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def vmstat():
    return {k: int(v) for k, v in (line.split() for line in read("/proc/vmstat").splitlines())}


@pytest.fixture
def thp():
    """thp(setting): "madvise" for huge pages only where something asks for them, as ebbd does."""
    before = THP.read_text().split("[")[1].split("]")[0]
    yield THP.write_text
    THP.write_text(before)


@pytest.fixture
def collapsing(thp, device, cgroup, logs, tmp_path):
    """
    collapsing(run) calls run(cgroup), whose program needs one and a half times the cgroup's limit;
    returns the cgroup's statistics, and the growth of the kernel's counters.
    """
    thp("madvise")
    config = tmp_path / "ebb.conf"
    # On a busy machine requests are old: emulation makes no prefetch in time.
    config.write_text("[prefetch]\ncollapse = auto\nstale = 60s\n")
    d = parts.Ebbd(logs / "ebbd.log", config)

    def collapse(run):
        c = cgroup(limit_mib=64)
        parts.ebbctl("policy", "attach", "streams", c.path)
        before = vmstat()
        run(c)
        after = vmstat()
        told = parts.stats(c)["collapse"]
        print(told, parts.ebbctl_json("status")["executor"])
        for verb in ("stats", "status"):
            assert not statspage.differences(verb, parts.ebbctl_json(verb))
        return told, {k: after[k] - v for k, v in before.items()}
    try:
        yield collapse
    finally:
        d.stop()
        machine.pins_remove()


def scan(windows=0, **what):
    """As often as it takes for so many windows: with a slow processor ebbd comes late for most."""
    def run(c):
        for _ in range(8):
            assert parts.scan_json(cgroup=c, mib=96, passes=2, **what)["bad"] == 0
            if parts.stats(c)["collapse"]["windows"] >= windows:
                break
    return run


def test_dirty_windows_leave_as_huge_pages(collapsing):
    """The kernel counts huge pages that were collapsed, and those that left in one piece."""
    told, grown = collapsing(scan(windows=4, write=True))
    assert told["windows"] >= 4, told
    assert grown["thp_collapse_alloc"] >= told["windows"], (told, grown)
    # Each program ends with windows that are collapsed and have not left.
    assert grown["thp_swpout"] >= told["whole"] > 0 and told["reason"] != "scattered", (told, grown)
    assert grown["thp_swpout_fallback"] <= told["windows"] / 4, (told, grown)
    assert "COLLAPSED" in parts.ebbctl("stats").stdout


def test_clean_windows_stay_small(collapsing):
    """A program that only reads: as huge pages, its clean pages would be written once more."""
    told, grown = collapsing(scan())
    assert (told["state"], told["reason"]) == ("off", "clean") or told["state"] == "sampling", told
    assert told["windows"] <= 16, told
    assert grown["thp_swpout"] <= told["windows"], (told, grown)


# As an interpreter's heap: some pages have nothing that the pass needs.
HOLES = """
import mmap
PAGES = 96 << 8
m = mmap.mmap(-1, PAGES << 12, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for p in range(PAGES):
    m[p << 12] = p % 251
for turn in range(2):
    for p in range(PAGES):
        if p % 16 == 5:
            continue
        assert m[p << 12] == p % 251
        m[(p << 12) + 1] = turn
"""


def test_windows_with_holes_switch_it_off(collapsing):
    """Nothing is collapsed, and soon nothing is looked at any more."""
    def run(c):
        for _ in range(4):
            subprocess.run(["/usr/bin/python3", "-c", HOLES], check=True, timeout=1200, preexec_fn=c.enter)
            if parts.stats(c)["collapse"]["switched_off"]:
                break

    told, grown = collapsing(run)
    assert told["windows"] <= 2 and grown["thp_swpout"] <= 2, (told, grown)
    assert told["switched_off"] >= 1 and told["reason"] == "refused", told
    assert 9 <= told["rejected"] <= 32, told
