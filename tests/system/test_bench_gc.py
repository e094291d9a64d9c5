# SPDX-License-Identifier: GPL-2.0-or-later
"""`make bench-gc` without swap: its arithmetic, its choice of modes, and how it resumes."""
import importlib.util
import json
import math
import statistics
import sys
from types import SimpleNamespace

import pytest

import machine

BENCH = machine.REPO / "tests" / "bench"
sys.path.insert(0, str(BENCH))

import benches
import gc_table
import measure
import render
from gc_programs import PROGRAMS

# `import gc` is Python's own.
spec = importlib.util.spec_from_file_location("bench_gc", BENCH / "gc.py")
gc = importlib.util.module_from_spec(spec)
sys.modules["bench_gc"] = gc
spec.loader.exec_module(gc)

pytestmark = pytest.mark.beside

STRONG = [p for p in PROGRAMS if not p.own]
MODES = (gc_table.BASE, *gc_table.OTHERS[:2], *gc_table.HEADLINE, "bdwgc")


class Place:
    """Stands in for road.Road: programs take `seconds(program, mode, percent)` and are never run."""
    seconds = staticmethod(lambda program, mode, percent: 1.0)
    runs, stop_after = [], None

    def __init__(self, directory, size, address=None):
        Place.address = address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, job, inputs, limit, policy, seconds):
        if Place.stop_after is not None and len(Place.runs) >= Place.stop_after:
            raise gc.road.Failure("the plug is pulled")
        percent = round(100 * limit / PEAK)
        Place.runs.append((job.program.name, job.mode.name, percent))
        took = Place.seconds(job.program.name, job.mode.name, percent)
        job.told.parent.mkdir(parents=True, exist_ok=True)
        job.told.write_text(json.dumps({"build_seconds": took / 4, "seconds": took * 3 / 4,
                                        "pause_max_ns": 1e6, "fetched_pages": 0}))
        counts = {"misses": 1000, "gc_misses": 100, "swapped_in": 2000,
                  "swapped_out": 1000 if job.mode.name == gc_table.BASE else 500,
                  "coverage": 0.5, "accuracy": 0.5}
        return gc.road.Outcome(took, "digest", counts)


PEAK = 1 << 30


@pytest.fixture
def place(monkeypatch, tmp_path):
    for name in (*benches.KNOBS, "SKIP", "FRESH", "MACHINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("MODES", ",".join(MODES)), ("RUNS", "2"), ("COMPUTE", "0"),
                        ("PERCENTS", "25,100")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measure, "BENCH", tmp_path)
    monkeypatch.setattr(gc, "ROOMY", 1)
    monkeypatch.setattr(gc.road, "Road", Place)
    monkeypatch.setattr(gc.road, "check_machine", lambda *_: None)
    monkeypatch.setattr(gc.road, "measure_peak", lambda *_: (PEAK, None))
    programs = tmp_path / "programs"
    programs.mkdir()
    for p in PROGRAMS:
        for build in ("", "-plain", "-bdwgc"):
            (programs / (p.binary + build)).write_text(p.binary + build)
    monkeypatch.setattr(gc, "PROGRAMS_DIR", programs)
    monkeypatch.setattr(Place, "runs", [])
    monkeypatch.setattr(Place, "stop_after", None)
    monkeypatch.setattr(Place, "seconds", staticmethod(lambda program, mode, percent: 1.0))
    return tmp_path


def measured(tmp_path, status=0):
    assert measure.main("gc", gc.bench) == status
    told = json.loads((tmp_path / "gc.json").read_text())
    assert render.wrong(told) is None and told["complete"] == (not status)
    return {r["name"]: r for r in told["rows"]}


# Another baseline is the best for some; ebb gains twofold over that, but pagerank 32 times as much.
def seconds(program, mode, percent):
    best = "address" if program in ("orders", "quads") else "growth3"
    times = {gc_table.BASE: 12, "address": 16, "growth3": 16, "bdwgc": 5, best: 8}
    gain = 64 if program == gc_table.OUTLIER else 2
    return times.get(mode, 8 / gain if mode == gc_table.FULL else 6) if percent < 100 else 1.0


def test_the_headline_is_the_geometric_mean_over_the_best_baselines(place, monkeypatch):
    monkeypatch.setattr(Place, "seconds", staticmethod(seconds))
    rows = measured(place)
    whole = rows["all, 25 %, auto, ebb+nursery+moving against the best baseline"]
    n = len(STRONG)
    assert whole["ratio"] == pytest.approx(math.exp(((n - 1) * math.log(2) + math.log(64)) / n), rel=1e-3)
    assert whole["target"] == ">= 1.6" and whole["met"] and whole["params"]["programs"] == n
    best = whole["params"]["best"]
    assert best["orders"] == best["quads"] == "address" and best["kv-read"] == "growth3"
    rest = rows["all, 25 %, auto, without pagerank, ebb+nursery+moving against the best baseline"]
    assert rest["ratio"] == pytest.approx(2) and rest["target"] == ">= 1.4" and rest["met"]
    assert rest["params"]["programs"] == n - 1 and "pagerank" not in rest["params"]["best"]
    # Over the plain baseline more would seem to be gained, and no target is there.
    plain = rows["all, 25 %, auto, ebb+nursery+moving"]
    assert plain["ratio"] == pytest.approx(1.5 * whole["ratio"], rel=1e-3) and plain["target"] is None
    ebb = rows["all, 25 %, auto, ebb against the best baseline"]
    assert ebb["ratio"] == pytest.approx(8 / 6, rel=1e-3) and ebb["met"] is False
    assert rows["all, 25 %, auto, moving against the best baseline"]["target"] is None
    # Of one program; and with all memory the plain baseline counts.
    assert rows["orders, 25 %, auto, ebb against the best baseline"]["params"]["best"] == {"orders": "address"}
    local = rows["all, 100 %, auto, ebb+nursery+moving"]
    assert local["target"] == ">= 0.97" and local["met"]


# (program, round): seconds of the baseline and of ebb; programs have different numbers of rounds.
ROUNDS = {("kv", i): (8, 8) for i in range(3)} | {("quads", i): (8, 4) for i in range(3)} | {
    ("orders", 0): (8, 2)}


def cells_of(rounds):
    """Cells of bench-gc in which the baseline and ebb took @rounds."""
    cells = {}
    for (program, _), taken in rounds.items():
        cell = cells.setdefault(program, gc.Cell(SimpleNamespace(name=program), 25, "auto", PEAK))
        for mode, took in zip((gc_table.BASE, gc_table.JUDGED), taken):
            counts = {"misses": 100 * took, "gc_misses": 0, "coverage": 1 / took}
            cell.runs.setdefault(mode, []).append(SimpleNamespace(seconds=took, cut=False, told={}, stats=counts))
    return list(cells.values())


def test_intervals_over_programs_are_of_one_ratio_of_each():
    """More rounds of a program make no interval narrower, and give it no more weight."""
    pairs = gc_table.pairs_of(cells_of(ROUNDS), gc_table.BASE, gc_table.JUDGED)
    half = measure.t975(2) * statistics.stdev([0, math.log(2), math.log(4)]) / math.sqrt(3)
    for told in (gc_table.time_row("all", {}, pairs, 1.6),
                 gc_table.count_row("all", {}, pairs, gc_table.program_misses, 1.6),
                 gc_table.share_row("all", {}, pairs, "coverage", 1.6)):
        assert told["ratio"] == pytest.approx(2, rel=1e-4) and told["met"]
        assert (told["low"], told["high"]) == pytest.approx((2 / math.exp(half), 2 * math.exp(half)), rel=1e-4)
        assert told["runs"] == 7 and told["params"]["interval_over"] == "programs"
    # Of one program rounds are all there is.
    [alone] = cells_of({key: taken for key, taken in ROUNDS.items() if key[0] == "kv"})
    told = gc_table.time_row("kv", {}, gc_table.pairs_of([alone], gc_table.BASE, gc_table.JUDGED))
    assert told["low"] == told["high"] == 1 and "interval_over" not in told["params"]


def test_kept_rows_over_programs_are_rendered_by_programs():
    """From the programs' own rows; without these the interval is marked."""
    def row(name, ratio, runs, **params):
        return {**measure.plain_row(name, params, [1.0], "s"), "ratio": ratio, "low": ratio / 1.1,
                "high": ratio * 1.1, "runs": runs}

    own = [row(f"{program}, 25 %, auto, ebb", ratio, runs, program=program) for program, ratio, runs in (
        ("kv", 1.0, 3), ("quads", 2.0, 3), ("orders", 4.0, 1), ("weak", 9.0, 2))]
    pooled = math.exp((3 * math.log(2) + math.log(4)) / 7)
    whole = {**row("all, 25 %, auto, ebb", pooled, 7, programs=3), "target": ">= 1.9", "met": False}
    again = render.judged_again({"rows": [*own, whole]})["rows"]
    assert again[:-1] == own
    assert again[-1]["ratio"] == pytest.approx(2) and again[-1]["met"] is True
    assert again[-1]["low"] < 0.4 and again[-1]["high"] > 10
    for rows in ([*own[1:], whole], [whole]):
        last = render.judged_again({"rows": rows})["rows"][-1]
        assert render.interval(last).endswith(", pooled") and last["ratio"] == pooled and not last["met"]
    new = {**whole, "params": {"programs": 3, "interval_over": "programs"}}
    assert render.judged_again({"rows": [*own, new]})["rows"][-1] == new


def test_single_programs_have_targets(place, monkeypatch):
    monkeypatch.setattr(Place, "seconds", staticmethod(seconds))
    rows = measured(place)
    for mode in ("ebb", "ebb+nursery+moving"):
        assert rows[f"quads, 25 %, auto, {mode}, swap-outs"]["target"] == ">= 1.8"
        assert rows[f"quads, 25 %, auto, {mode}, swap-outs"]["ratio"] == 2
        assert rows[f"orders, 25 %, auto, {mode}, swap-outs"]["target"] is None
        assert rows[f"orders, 25 %, auto, {mode}, program's own misses"]["met"] is False
        assert rows[f"weak, 25 %, auto, {mode}, longest pause"]["met"]
    assert rows["kmeans, 25 %, auto, ebb against bdwgc"]["met"] is False
    assert rows["kmeans, 25 %, auto, ebb+nursery+moving against bdwgc"]["met"]


def test_a_mode_that_not_all_have_run_in_meets_no_target(place, monkeypatch):
    def ended(program, mode, percent):
        if (program, mode) == ("kmeans", gc_table.FULL):
            raise gc.road.OutOfMemory("killed")
        return seconds(program, mode, percent)
    monkeypatch.setattr(Place, "seconds", staticmethod(ended))
    row = measured(place)["all, 25 %, auto, ebb+nursery+moving against the best baseline"]
    assert row["target"] is None and row["params"]["programs"] == len(STRONG) - 1


def test_only_programs_with_the_barrier_let_objects_move():
    for mode in gc.MODES:
        assert ("-m" in mode.argv) == ("moving" in mode.name)
        assert mode.build == "" or not mode.argv
    by_name = {m.name: m for m in gc.MODES}
    assert {*gc_table.HEADLINE, *gc_table.OTHERS, gc_table.BASE} <= by_name.keys()
    # Only that they move distinguishes them.
    for mode in ("ebb", "ebb+nursery", "nursery"):
        moving = by_name[mode.replace("nursery", "nursery+moving") if "nursery" in mode else mode + "+moving"]
        assert moving.options == by_name[mode].options
    argv = gc.Job(PROGRAMS[0], by_name["moving"]).argv("")
    assert "-m" in argv and argv[1].endswith("mode=concurrent")


def test_an_interrupted_run_resumes(place, monkeypatch, capsys):
    monkeypatch.setenv("ONLY", "quads,orders")
    monkeypatch.setattr(Place, "stop_after", 20)
    measured(place, status=1)
    first = list(Place.runs)
    assert len(first) == 20
    monkeypatch.setattr(Place, "stop_after", None)
    rows = measured(place)
    assert "resumes: " in capsys.readouterr().out
    assert len(Place.runs) == len(set(first)) + len(Place.runs[20:])
    wanted = 2 * 2 * 2 * len(MODES)
    assert len(Place.runs) == wanted
    for name in ("quads", "orders"):
        for percent in (25, 100):
            for mode in MODES:
                assert Place.runs.count((name, mode, percent)) == 2
    assert rows["quads, 25 %, auto, ebb"]["runs"] == 2
    # What was complete begins again; so does what is told to, or has other sizes.
    measured(place)
    assert len(Place.runs) == 2 * wanted


@pytest.mark.parametrize("change", ("FRESH", "MIB", "program"))
def test_other_runs_are_not_resumed(place, monkeypatch, change):
    monkeypatch.setenv("ONLY", "quads")
    monkeypatch.setenv("PERCENTS", "25")
    monkeypatch.setattr(Place, "stop_after", 5)
    measured(place, status=1)
    monkeypatch.setattr(Place, "stop_after", None)
    if change == "program":
        (gc.PROGRAMS_DIR / "quads").write_text("another")
    else:
        monkeypatch.setenv(change, "64")
    measured(place)
    assert len(Place.runs) == 5 + 2 * len(MODES)


def test_out_of_time_it_goes_on_with_the_next_call(place, monkeypatch):
    monkeypatch.setenv("ONLY", "quads,orders")
    monkeypatch.setenv("PERCENTS", "25")
    monkeypatch.setenv("MINUTES", "60")
    # The first round has no estimate.
    monkeypatch.setattr(gc.Estimate, "allows", lambda self, seconds: len(Place.runs) < len(MODES))
    assert measured(place)["quads, 25 %, auto, ebb"]["runs"] == 1
    assert len(Place.runs) == len(MODES)
    monkeypatch.setattr(gc.Estimate, "allows", lambda self, seconds: True)
    rows = measured(place)
    assert len(Place.runs) == 2 * 2 * len(MODES)
    assert rows["quads, 25 %, auto, ebb"]["runs"] == rows["orders, 25 %, auto, ebb"]["runs"] == 2


def test_quick_runs_what_the_headline_needs(place, monkeypatch):
    for name in ("MODES", "RUNS", "COMPUTE", "PERCENTS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUICK", "1")
    monkeypatch.setenv("ONLY", "quads,pagerank,orders")
    rows = measured(place)
    modes = {mode for _, mode, _ in Place.runs}
    assert modes == {"concurrent", "address", "growth3", "ebb", *gc_table.NEW}
    assert {percent for *_, percent in Place.runs} == {25, 13, 100}
    row = rows["3 programs, 25 %, auto, without pagerank, ebb+nursery+moving against the best baseline"]
    assert row["runs"] == 2 * 3 and row["params"]["live_mib"] == 128 and row["params"]["donor"] == "shm"
    assert Place.address == gc.road.SHM
    # A word of one's own wins.
    monkeypatch.setenv("MODES", "ebb")
    monkeypatch.setenv("FRESH", "1")
    Place.runs.clear()
    measured(place)
    assert {mode for _, mode, _ in Place.runs} == {"concurrent", "ebb"}


def test_runs_stay_in_their_rounds(place):
    """A round that had no time for some runs shifts none of the later ones."""
    modes = [m for m in gc.MODES if m.name in (gc_table.BASE, gc_table.JUDGED)]
    cell = gc.Cell(STRONG[0], 25, "auto", PEAK)
    b = gc.Bench([cell], modes, 4, 0, gc.Kept(place / "runs", {}))
    for i, some in enumerate((modes, modes[:1], modes[1:], modes)):
        b.round(Place(place, 0), cell, i, some)
    has = {name: [bool(run) for run in runs] for name, runs in cell.runs.items()}
    assert has == {gc_table.BASE: [True, True, False, True], gc_table.JUDGED: [True, False, True, True]}
    assert len(gc_table.pairs_of([cell], gc_table.BASE, gc_table.JUDGED)) == 2
