# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-dsm` with small programs: each row is there, counts are right, and it resumes."""
import json
import sys

import pytest

import machine

sys.path.insert(0, str(machine.REPO / "tests" / "bench"))

import benches
import dsm
import measure
import render
import road

pytestmark = pytest.mark.beside

SIZES = {"matrix": 64, "group-by": 70_000, "social": 1, "store-a": 500, "store-b": 500, "store-c": 500}


@pytest.fixture
def short(monkeypatch, tmp_path):
    for name in (*benches.KNOBS, "SKIP", "FRESH", "MACHINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNS", "2")
    monkeypatch.setattr(measure, "BENCH", tmp_path)
    monkeypatch.setattr(dsm, "WORKERS", 2)
    monkeypatch.setattr(dsm, "MEMORY", "32M")
    monkeypatch.setattr(dsm, "SLAB", "8M")
    for name, size in SIZES.items():
        for kind in "full", "quick", "brief":
            monkeypatch.setattr(dsm.PROGRAMS[name], kind, size)
    return tmp_path


def told_of(directory):
    return json.loads((directory / "dsm.json").read_text())


@pytest.mark.long
def test_all_parts(short, monkeypatch):
    monkeypatch.setenv("DELAYS", "20")
    assert measure.main("dsm", dsm.bench) == 0
    told = told_of(short)
    rows = {r["name"]: r for r in told["rows"]}
    assert render.wrong(told) is None and told["complete"] and len(rows) == len(told["rows"])
    assert len(rows) == len(dsm.CALLS) + len(SIZES) * (3 * 3 + 1 + 3)
    for what, (trips, requests) in dsm.CALLS.items():
        row = rows[f"{what}: round trips"]
        assert row["met"] and row["ebb"] == trips and row["params"]["requests"] == requests
    # Two workers read 4 x 8 tiles of each other, as often by a directory, at each use by delegation.
    for way, trips in (("directory coherence", 66), ("delegation", 256), ("plain messages", 0)):
        row = rows[f"matrix product: round trips, {way}"]
        assert (row["baseline"], row["ebb"], row["runs"]) == (trips, 64, 2)
        assert row["met"] is (None if trips == 0 else True)
    for name, program in dsm.PROGRAMS.items():
        row = rows[next(n for n in rows if n.startswith(program.text) and "one machine" in n)]
        assert row["params"]["threads"] == 2 and row["ebb"] > 0 and row["met"] is not None
        assert all(r["met"] is None for n, r in rows.items() if n.startswith("store") and "one machine" not in n)
    assert not (short / "dsm-runs").exists()


def test_it_resumes(short, monkeypatch):
    """After the last run: what was measured is not measured again."""
    monkeypatch.setenv("ONLY", "counts,matrix,social")
    ran, run = [], dsm.run

    def fails(name, way, *rest):
        if len(ran) == 11:
            raise road.Failure("stopped")
        ran.append((name, way))
        return run(name, way, *rest)

    monkeypatch.setattr(dsm, "run", fails)
    assert measure.main("dsm", dsm.bench) == 1
    assert told_of(short)["complete"] is False and {name for name, _ in ran} == {"matrix", "social"}
    ran.clear()
    monkeypatch.setattr(dsm, "run", lambda *args: ran.append(args[:2]) or run(*args))
    assert measure.main("dsm", dsm.bench) == 0
    told = told_of(short)
    assert told["complete"] and len(told["rows"]) == 18 and len(ran) == 5
    assert {r["runs"] for r in told["rows"]} == {2}


def test_different_results_are_a_failure(short, monkeypatch, capsys):
    monkeypatch.setenv("ONLY", "counts,matrix")
    run = dsm.run
    monkeypatch.setattr(dsm, "run", lambda name, way, *rest: (
        {**run(name, way, *rest)[0], **({"digest": "1"} if way == "delegation" else {})}, ""))
    assert measure.main("dsm", dsm.bench) == 1
    assert "matrix: results differ" in capsys.readouterr().out


def test_unknown_names(short, monkeypatch, capsys):
    monkeypatch.setenv("ONLY", "counts,x")
    assert measure.main("dsm", dsm.bench) == 1
    assert "neither a part nor a program" in capsys.readouterr().out


def test_json(short, monkeypatch, capsys):
    monkeypatch.setenv("ONLY", "calls")
    monkeypatch.setattr(sys, "argv", ["dsm.py", "--json"])
    monkeypatch.setattr(road, "say", road.say)
    assert dsm.main() == 0
    assert json.loads(capsys.readouterr().out)["rows"] == told_of(short)["rows"]
