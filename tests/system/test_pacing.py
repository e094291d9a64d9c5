# SPDX-License-Identifier: GPL-2.0-or-later
"""Prefetches beside a program whose misses wait for them: limited, and in turns."""
import contextlib
import itertools

import pytest

import parts
from machine import wait_for
from parts import ebbctl, ebbctl_json


@contextlib.contextmanager
def filled(cgroup, scans=1, **what):
    """
    Scans in @cgroup for the duration of a `with`, which start() starts.  Each fills its memory
    before another reads: writes that wait behind reads would end in an OOM kill.
    """
    made = []
    try:
        for i in range(scans):
            made.append(parts.Scan(cgroup=cgroup, passes=1000, seed=i + 1, **what))
        yield made
    finally:
        for s in made:
            s.kill()


def start(*scans):
    for s in itertools.chain(*scans):
        s.go()


@pytest.fixture
def slow(swap_lock, donor_factory):
    """A device whose donor sends at most 4096 pages a second."""
    d = parts.Device(donor_factory(options=("--rate", "16M")), options=("--durability", "none"))
    yield d
    d.destroy()


@pytest.fixture
def tracked(ebbd, cgroup):
    """tracked(policy): a cgroup of 16 MiB with that policy, which is loaded while nothing else runs."""
    def make(policy):
        c = cgroup(limit_mib=16)
        ebbctl("policy", "attach", policy, c.path)
        return c

    return make


def pacing():
    (row,) = ebbctl_json("status")["pacing"]
    return row


def limited():
    return pacing()["limit"] is not None


def test_prefetches_are_limited_while_misses_wait(slow, tracked):
    missing, prefetched = tracked("none"), tracked("auto")
    with filled(missing, mib=32, pattern="random") as misses:
        with filled(prefetched, mib=32) as scans:
            start(misses)
            wait_for(lambda: pacing()["idle_miss_ns"], 60, "misses on the idle device")
            assert not limited()
            start(scans)
            wait_for(limited, 60, "a limit")
            told = ebbctl("status").stdout
            assert "prefetched pages in flight; misses take" in told, told
            row = pacing()
            assert row["device"] == slow.name and row["limit"] >= 8
            before = parts.stats(prefetched)
            wait_for(lambda: parts.stats(prefetched)["paced"] > before["paced"] + 100, 60, "a delay")
            # It is not starved.
            wait_for(lambda: parts.stats(prefetched)["hits"] > before["hits"] + 100, 60, "hits")
            assert ebbctl_json("status")["executor"]["paced"] >= before["paced"] + 100
            assert parts.stats(missing)["paced"] == 0
    wait_for(lambda: not limited(), 30, "the end of the limit")


@pytest.mark.long
def test_cgroups_have_equal_shares(slow, tracked):
    """One cgroup requests three times as much as the other, while a third one misses."""
    missing, one, three = tracked("none"), tracked("auto"), tracked("auto")
    counts = lambda: [parts.stats(c)["prefetched"] for c in (one, three)]

    def shares():
        start = counts()
        wait_for(lambda: sum(counts()) > sum(start) + 2000, 60, "prefetches")
        return [now - then for now, then in zip(counts(), start)]

    with filled(missing, mib=32, pattern="random") as a, filled(one, mib=32) as b, \
            filled(three, scans=3, mib=16) as c:
        start(a, b, c)
        wait_for(limited, 60, "a limit")
        fair = lambda pages: pages[0] > 0.5 * pages[1]
        pages = parts.tried(shares, fair)
        assert fair(pages), pages
