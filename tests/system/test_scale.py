# SPDX-License-Identifier: GPL-2.0-or-later
"""
A thousand attached cgroups: what an idle one costs ebbd, and an attach beside them.  Counts system
calls; `make bench-idle` also measures times, with ten thousand processes.
"""
import time

import pytest

import crowd
import machine
import parts
import policies

FEW, MANY = 10, 1000
SECONDS = 5
# Of ebbd's calls for one idle cgroup: it looks at its limit once a minute.
CALLS_A_SECOND = 0.6
BUSY = 0.02             # of a processor
# An attach beside many others needs no more calls; ticks add some, the more the slower it is.
ATTACH_GROWTH = 2


@pytest.fixture
def count(ebbd):
    with crowd.Count(ebbd.pid) as c:
        yield c


def attach(count, directories):
    """Attaches cgroups; returns ebbd's system calls per attach."""
    before = count.calls()
    took = crowd.attach(directories)
    return (count.calls() - before) / len(took)


def idle(count):
    time.sleep(3)       # cgroups are busy for 2 s
    return crowd.idle(count, SECONDS)


@pytest.mark.long
def test_idle_cgroups_cost_next_to_nothing(ebbd, count):
    with crowd.Crowd() as c:
        few = attach(count, c.grow(FEW))
        alone = idle(count)
        crowd.attach(c.grow(MANY - 100))
        time.sleep(3)   # these are busy, too
        many = attach(count, c.grow(MANY))
        more = lambda i: (i.calls / i.seconds - alone.calls / alone.seconds) / (MANY - FEW)
        cheap = lambda i: more(i) <= CALLS_A_SECOND and i.busy < BUSY
        # On a busy machine ebbd's ticks are late, and cgroups are busy for longer.
        beside = parts.tried(lambda: idle(count), cheap)
        assert cheap(beside), (alone, beside, more(beside))
        assert many <= ATTACH_GROWTH * few, (few, many)
        assert len(policies.attached()) == MANY

        # ebbd learns of a removed one from BPF.
        gone = c.directory(500)
        for root in c.roots:
            (root / "500").rmdir()
        machine.wait_for(lambda: len(policies.attached()) == MANY - 1, 3, f"{gone}: detached")


def test_cgroups_with_long_paths_are_taken_over(ebbd, logs, cgroup):
    """maps/cgroup_stats has no room for their paths, as for those of many containers."""
    made = [cgroup(name=c * 140) for c in "ab"]
    crowd.attach(c.path for c in made)
    made[0].remove()
    ebbd.stop()
    again = parts.Ebbd(logs / "again.log")
    try:
        assert set(policies.attached()) == {made[1].rel}
    finally:
        again.stop()
