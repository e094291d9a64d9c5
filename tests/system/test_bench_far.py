# SPDX-License-Identifier: GPL-2.0-or-later
"""
`make bench-far` with runs of milliseconds and a member of a few hundred extents: each row is
there, counts are right, and figures that no machine reaches are not judged here.
"""
import json
import sys

import pytest

import machine

sys.path.insert(0, str(machine.REPO / "tests" / "bench"))

import benches
import far
import measure
import render

pytestmark = pytest.mark.beside

EXTENTS = 2500 # more than an arena of 8 MiB has


@pytest.fixture
def short(monkeypatch, tmp_path):
    for name in (*benches.KNOBS, "SKIP", "FRESH", "MACHINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNS", "2")
    monkeypatch.setattr(measure, "BENCH", tmp_path)
    monkeypatch.setattr(far, "SECONDS", 0.02)
    monkeypatch.setattr(far, "EXTENTS", EXTENTS)
    monkeypatch.setattr(far, "WORKERS", 3)
    monkeypatch.setattr(far, "MEMORY", "96M")
    monkeypatch.setattr(far, "SLAB", "8M")
    return tmp_path


def told_of(directory):
    return json.loads((directory / "far.json").read_text())


@pytest.mark.long
def test_all_parts(short):
    assert measure.main("far", far.bench) == 0
    told = told_of(short)
    rows = {r["name"]: r for r in told["rows"]}
    assert render.wrong(told) is None and told["complete"] and len(rows) == len(told["rows"])
    for name, row in rows.items():
        assert row["ebb"] is not None and row["ebb"] >= 0, name
        once = any(word in name for word in ("metadata", "memory for", "filled"))
        assert row["runs"] == (1 if once else 2), name
    # An allocation in an open section is one round trip of one compare-and-swap; others take more.
    trips = rows["tcp: round trips of an allocation"]
    assert 1 <= trips["ebb"] < 1.1 and trips["params"]["requests"]["cas"] > 0
    assert 1 < rows["tcp: round trips of an allocation while a pool is filled"]["ebb"] < 1.5
    small, large = (r for n, r in rows.items() if n.startswith("metadata of"))
    assert small["ebb"] > large["ebb"] > 0.25 and not small["met"], "arenas of 8 MiB have large tables"
    for how in "shm", "tcp":
        row = rows[f"{how}: {EXTENTS} extents of a dead member, free after the fence"]
        assert row["met"] and row["params"]["kill_to_log_ms"] > 0
    for size in far.SIZES:
        params = rows[f"tcp: READ of {far.SIZES[size]} against a bare exchange, one CPU"]["params"]
        assert (params["sent"], params["received"]) == (far.HEADER, far.HEADER + size)
    judged = [r for r in rows.values() if r["met"] is not None]
    assert len(judged) == 11 + 6 * len(far.CPUS) and all(r["target"] for r in judged)


def test_it_resumes(short, monkeypatch):
    """After ^C, runs that were measured are not measured again."""
    monkeypatch.setenv("ONLY", "tcp")
    runs, real = [], far.speed

    def speed(*argv, **what):
        if len(runs) == 4:
            raise measure.road.Stopped("SIGINT")
        runs.append(argv[0])
        return real(*argv, **what)

    monkeypatch.setattr(far, "speed", speed)
    assert measure.main("far", far.bench) == 130 and not (short / "far.json").exists()
    first = runs.copy()
    runs.clear()
    monkeypatch.setattr(far, "speed", lambda *argv, **what: runs.append(argv[0]) or real(*argv, **what))
    assert measure.main("far", far.bench) == 0
    # Each begins with one that tells the sizes.
    assert len(first) == 4 and len(runs) == 1 + 1 + 2 * 2 * len(far.CPUS) - 3
    assert told_of(short)["complete"] and not (short / "far-runs").exists()


@pytest.mark.parametrize("argv, says", [
    (["loop", "malloc", "frob", "processes", "2", "0.01"], "loop frob: there is none of that name"),
    (["allocate", "127.0.0.1:1", "1"], "donor 127.0.0.1:1"),
    (["exchange", "tcp", "threads", "0", "32", "32", "any", "1"], "0: not a number from 1 to 64"),
    (["loop", "unix:/nonexistent", "pairs", "processes", "2", "1"], "worker"), ([], "no such measurement")])
def test_what_fails_says_why(argv, says):
    done = far.subprocess.run([far.PROGRAM, *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and says in done.stderr


def test_parts(monkeypatch, short):
    monkeypatch.setenv("ONLY", "shm,frob")
    assert measure.main("far", far.bench) == 1 and not (short / "far.json").exists()
