# SPDX-License-Identifier: GPL-2.0-or-later
"""
Two real donors trace the far generation of a libebbgc heap in far cycles: dead objects are freed,
live ones stay, and the heap reads nothing; a donor refuses, is slow, or is killed before and after
each message.
"""
import itertools
import json
import signal
import subprocess

import pytest

from machine import BUILD
from parts import tried
from ports import free_port
from rows import STEP, few

pytestmark = pytest.mark.beside

PROGRAM = BUILD / "tests/far_heap"
OPTIONS = ("--far", "48M", "--far-jobs", "4M", "--far-jobs-cpu", "100")
# Two rows of 32 regions at each donor.
GROUPS = 8000


@pytest.fixture
def make(donor_factory, tmp_path):
    """make(): a donor with jobs; .local is its unix socket."""
    made = []

    def donor(*options):
        local = f"unix:{tmp_path}/d{len(made)}.sock"
        made.append(donor_factory(port=free_port(), memory="48M", slab="8M", also=[local],
                                  options=options or OPTIONS))
        made[-1].local = local
        return made[-1]
    return donor


def run(*argv):
    done = subprocess.run([PROGRAM, *map(str, argv)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def jobs(donor):
    return donor.ask()["far"]["jobs"]


def donors_traced(told):
    """A donor has half a second in a pause, which a busy machine may not give it each time."""
    return told["donor_failures"] == 0 and told["last_donor_cycles"] == 2


def all_lives(told):
    return told["loaded"] == told["live"] and told["faults"] == 0


def all_is_freed(told):
    """Every second group of 16 nodes of 64 bytes."""
    return told["freed"] == GROUPS // 2 * 16 * 64


@pytest.mark.parametrize("places, cycle", few(itertools.product(("tcp", "shm", "both"), ("full", "beside")),
                                              ("tcp", "full"), ("shm", "beside"), ("both", "beside")))
def test_donors_trace(make, places, cycle):
    def attempt():
        both = make(), make()
        at = [d.local if place == "shm" else d.address
              for d, place in zip(both, {"both": ("tcp", "shm")}.get(places, (places, places)))]
        told = run("--cycle", cycle, "--check", "on" if places == "shm" else "off", GROUPS, *at)
        assert all_lives(told) and all_is_freed(told)
        assert min(told["at"]) >= 2 << 20
        counts = [jobs(d) for d in both]
        for d in both:
            d.stop()
        return told, counts
    told, counts = tried(attempt, lambda got: donors_traced(got[0]))
    assert (told["cycles"], told["donor_cycles"], told["donor_failures"]) == (1, 1, 0)
    assert told["donor_objects"] == told["live"] and told["read_objects"] == 0
    # So is the one after it, when a third has come back.
    assert told["last_donor_cycles"] == 2
    for now in counts:
        assert now["cycles"] == 2 and now["abandoned"] == 0 and now["heaps"] == now["used"] == 0
        assert now["marked"] > 10000


def test_the_heap_traces(make):
    """Without jobs it reads."""
    a, b = make("--far", "48M"), make("--far", "48M")
    told = run("--jobs", "off", GROUPS, a.local, b.local)
    assert all_lives(told) and all_is_freed(told)
    assert told["donor_cycles"] == 0 and told["read_objects"] == told["live"]


@pytest.mark.parametrize("place", ["shm", "both"])
def test_mapped_memory(make, place):
    """If all of it is mapped, the heap reads, unless the program wants otherwise."""
    a, b = make(), make()
    told = tried(lambda: run("--jobs", "auto", GROUPS, a.address if place == "both" else a.local, b.local),
                 lambda told: place == "shm" or donors_traced(told))
    assert all_lives(told) and all_is_freed(told)
    assert told["donor_cycles"] == (place == "both") and told["donor_failures"] == 0
    assert told["read_objects"] == (0 if place == "both" else told["live"])


def test_one_donor_runs_no_jobs(make):
    """The heap reads what both have."""
    a, b = make(), make("--far", "48M")
    told = run(GROUPS, a.local, b.local)
    assert all_lives(told) and all_is_freed(told)
    assert (told["donor_cycles"], told["donor_failures"]) == (0, 1)
    assert told["read_objects"] == told["live"]


@pytest.mark.parametrize("cycle", ["full", "beside"])
def test_a_share_of_a_processor(make, cycle):
    """Postponed by one of them: traced later, or read."""
    a, b = make(), make("--far", "48M", "--far-jobs", "4M", "--far-jobs-cpu", "1")
    told = run("--cycle", cycle, GROUPS, a.local, b.local)
    assert all_lives(told) and all_is_freed(told)
    assert told["donor_cycles"] + told["donor_failures"] == 1
    assert told["read_objects"] == (told["live"] if told["donor_failures"] else 0)
    assert jobs(b)["postponed"] >= 1


@pytest.mark.parametrize("cycle, place", few(itertools.product(("full", "beside"), ("tcp", "shm")),
                                             ("full", "tcp"), ("beside", "shm")))
def test_donors_compact(make, place, cycle):
    """Regions of which an eighth is left, without a read."""
    a, b = make(), make()
    at = [d.address if place == "tcp" else d.local for d in (a, b)]
    # On a busy machine the donors run out of their time, and the rest is left to a later cycle.
    told = tried(lambda: run("--cycle", cycle, "--nth", "8", "--check", "on" if place == "shm" else "off",
                             "--links", "0", GROUPS, *at),
                 lambda told: told["stored"] < sum(told["at"]) // 2)
    assert all_lives(told)
    assert (told["donor_cycles"], told["homed"], told["read_objects"]) == (1, 0, 0)
    assert told["compacted"] >= 8
    # It stays in the store, and is traced there.
    assert told["stored"] >= told["live"] * 64
    assert told["last_donor_cycles"] >= 2
    assert told["stored"] < sum(told["at"]) // 2
    assert min(jobs(d)["evacuated"] for d in (a, b)) > 0


@pytest.mark.parametrize("when, place", few(itertools.product(("before", "after"), ("tcp", "shm")),
                                            ("after", "tcp")))
def test_donor_killed_while_it_compacts(make, when, place):
    """Its regions are as before, and, over TCP, lost; the other one's are intact."""
    a, b = make(), make()
    told = run("--nth", "8", GROUPS, a.local, b.address if place == "tcp" else b.local)
    last, count = told["messages"], told["evacuations"]
    assert count >= 8
    for n in last - count + 1, last - count + 2, last - count // 2:
        b = make()
        told = run("--nth", "8", "--check", "on" if n % 2 else "off",
                   "--kill", f"{b.pid}:{n if when == 'before' else -n}", GROUPS, a.local,
                   b.address if place == "tcp" else b.local)
        assert b.process.wait(60) == -signal.SIGKILL
        assert told["faults"] == 0 and told["cycles"] == 1 and told["compacted"] > 0
        assert told["loaded"] == told["live"] if place == "shm" else \
            0 < told["loaded"] < told["live"]


@pytest.mark.parametrize("when, place", few(itertools.product(("before", "after"), ("tcp", "shm")),
                                            ("after", "tcp")))
def test_donor_killed_at_each_message(make, when, place):
    """
    Objects at the other donor stay intact.  Nothing is freed unless both donors returned their
    marks, or all objects were read: mapped memory stays readable.
    """
    a, n, messages = make(), 0, None
    where = lambda d: d.address if place == "tcp" else d.local

    def attempt():
        """Where the time is over before its message, the donor lives."""
        b = make()
        told = run("--cycle", "full" if n % 2 else "beside", "--check", "on" if n % 4 == 1 else "off",
                   "--kill", f"{b.pid}:{n if when == 'before' else -n}", GROUPS, a.local, where(b))
        return b.process.poll(), told
    while messages is None or n < messages:
        # The first, and the last, after which nothing is missing.
        n = min(n + STEP, messages) if messages else 1
        if messages is None:
            b = make()
            messages = tried(lambda: run(GROUPS, a.local, where(b)), donors_traced)["messages"]
            b.stop()
        status, told = tried(attempt, lambda got: got[0] is not None)
        assert status == -signal.SIGKILL
        assert told["faults"] == 0
        # All but what is at the second donor, or behind something that is.
        assert told["loaded"] == told["live"] if place == "shm" else \
            0 < told["loaded"] < told["live"]
        assert told["cycles"] + told["abandoned"] == 1
        if told["abandoned"]:
            assert place == "tcp" and (told["freed"], told["donor_cycles"]) == (0, 0)
            # The next cycle frees what is dead at the other one, without the lost one.
            assert told["last_freed"] >= told["at"][0] // 2
            assert told["lost"] > 0
        else:
            assert all_is_freed(told)
        # The replies to all messages, with the marks of both, have arrived: it is not needed.
        complete = when == "after" and n == messages
        assert told["donor_cycles"] == complete and told["donor_failures"] == (not complete)
    assert messages >= 5
