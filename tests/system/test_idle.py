# SPDX-License-Identifier: GPL-2.0-or-later
"""`ebbctl advise --cgroup`: the idle memory of a cgroup, found without pressure."""
import re

import pytest

import parts
from idleness import Temperatures, Watch, is_right, watch_program
from parts import REFUSED, USAGE

MIB = 16


def refused(*argv, says, status=USAGE):
    done = parts.ebbctl("advise", *argv, check=False)
    assert done.returncode == status and says in done.stderr.splitlines()[-1], done.stderr
    assert done.stdout == ""


@pytest.fixture
def program(cgroup):
    """started(option...): Temperatures in a cgroup without a limit."""
    made = []

    def start(*options):
        c = cgroup(name=f"p{len(made)}")
        made.append(Temperatures(c, MIB, *options))
        return made[-1], c

    yield start
    for p in made:
        p.end()


def test_idle_memory(program):
    """Hot memory is not idle; warm memory comes back; nothing is swapped out or limited."""
    p, c = program()
    report = parts.tried(lambda: watch_program(p, c, "--page-cost", "100us", "--slab", "16M"),
                         lambda r: is_right(r, MIB))
    assert is_right(report, MIB), report
    row = report["idle"][0]
    assert row["idle_s"] >= 2 and row["donor"] == 48 << 20
    assert 0.6 < row["share"] < 0.75
    assert row["returned_per_s"] == pytest.approx(row["returned"] / 4096 / row["window_s"], rel=1e-3)
    assert row["cost"] == pytest.approx(row["returned_per_s"] * 100e-6, rel=1e-3)
    assert report["unreached"] == [3600] and report["cgroup"] == str(c.path)
    assert p.read("hot") == p.read("cold") == 0


def test_idle_memory_of_several_cgroups(cgroup, program):
    """Cgroups below the watched one count; those beside it do not, though the name begins alike."""
    p, c = program()
    beside = cgroup(name="p0beside")
    other = Temperatures(beside, MIB)
    below = cgroup(name="p0/below")
    inner = Temperatures(below, MIB)
    try:
        report = Watch(c, "--for", "2h").interrupt()
    finally:
        inner.end()
        other.end()
    assert 6 * MIB << 20 <= report["seen"] < 7 * MIB << 20


def test_watch_that_ends_early_reports(program):
    """By its own time, before any time that was asked for: the only reading is the report."""
    p, c = program()
    report = Watch(c, "--for", "500ms").report()
    assert [r["window_s"] for r in report["idle"]] == [0]
    assert report["idle"][0]["returned"] is None and report["idle"][0]["cost"] is None
    assert report["unreached"] == [60, 300]    # each less than the default --for
    assert report["seconds"] >= 0.5


def test_shared_memory_is_named(program):
    """Accessed bits say nothing of memory that several processes may map."""
    p, c = program("shared")
    w = Watch(c, "--for", "100ms")
    report = w.report()
    assert report["memory"] - report["seen"] >= 3 * MIB << 20
    said = parts.ebbctl("advise", "--cgroup", c.path, "--for", "100ms").stdout
    assert "locked or shared, and not examined" in said and "MiB of anonymous and shared" in said


def test_table(program):
    p, c = program()
    done = parts.ebbctl("advise", "--cgroup", c.path, "--idle", "200ms,1h", "--for", "400ms",
                        "--page-cost", "1ms")
    lines = done.stdout.splitlines()
    assert str(c.path) in lines[0]
    assert lines[2].split() == ["IDLE", "FOR", "COULD", "MOVE", "SHARE", "RETURNED", "COST", "DONOR"]
    # 0.2 s, or more where the reading is late.
    assert re.match(r" *\d+\.\d s ", lines[3]) and "ms/s" in lines[3] and "64.0 MiB" in lines[3]
    assert lines[-1] == "60.0 min: not reached; give a longer --for"
    assert len(done.stderr.splitlines()) == 3


def test_refusals(cgroup):
    refused("--cgroup", "no/such/cgroup", says="no/such/cgroup")
    refused("--for", "1s", "--", "/bin/true", says="require --cgroup without --seconds")
    refused("--cgroup", "x", "--seconds", "1s", "--idle", "1s", says="without --seconds")
    refused("--cgroup", "x", "--sizes", "100", says="require a recording")
    for idle in ("5m,1m", "0", "1m,,5m", "", "1,2,3,4,5,6,7,8,9", "1m,x"):
        refused("--cgroup", cgroup(name=f"i{len(idle)}{hash(idle) % 1000}").path, "--idle", idle, says="--idle")
    refused("--cgroup", cgroup(name="empty").path, "--for", "100ms", says="no anonymous memory", status=REFUSED)
