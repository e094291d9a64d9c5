# SPDX-License-Identifier: GPL-2.0-or-later
"""
`make bench`: which benchmarks run, in which order, with which output, and the rendered page.
No benchmark runs here: a stand-in for make writes the results.
"""
import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import machine

sys.path.insert(0, str(machine.REPO / "tests" / "bench"))
import account
import advise
import apps
import benches
import contest
import cost
import cost_guest
import idle
import kept
import latency
import loads
import measure
import prefetch
import run_all as all_of_them
import scan
from render import runs_of, wrong
import workloads

pytestmark = pytest.mark.beside

BENCH = machine.REPO / "tests" / "bench"
KERNEL = "6.12.9-test"

# Says what it was called with, then does what the file of that name says, or writes a result.
MAKE = """#!/bin/sh
cd {directory} || exit 9
goal=
for word; do case $word in bench-*) goal=$word ;; esac; done
echo "$goal $* only=$ONLY runs=$RUNS" >>calls
if [ -x "do-$goal" ]; then exec "./do-$goal"; fi
[ "$goal" = bench-results ] || cp result "${{goal#bench-}}.json"
"""
# What a benchmark does with a signal: it takes swap off, which takes a while.
STOPPED = """#!/usr/bin/python3
import signal, sys, time
def stop(number, frame):
    signal.signal(number, signal.SIG_IGN)
    time.sleep(0.7)
    open("cleaned", "a").write(f"{number}\\n")
    sys.exit(130)
for n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, stop)
open("begun", "w").close()
time.sleep(60)
"""


def row(name, ratio=None, low=None, high=None, target=None, met=None, **params):
    return {"name": name, "params": params, "baseline": 2.0 if ratio else None, "ebb": 0.5, "unit": "s",
            "ratio": ratio, "low": low, "high": high, "runs": 5, "target": target, "met": met}


def app(name, percent, against, ratio, target=None, met=None):
    return row(f"{name}, {percent} %, 2 CPU, against {against}", ratio, ratio * 0.9, ratio * 1.1,
               target, met, workload=name, local_percent=percent, cpus=2,
               against="kernel readahead" if against == "kernel" else against, coverage=0.5)


def result(*rows, **facts):
    return {"kernel": KERNEL, "cpus": 2, "cpu": "A <Processor> & Co", "virtual": True,
            "memory_mib": 2048, "date": "2026-01-02T03:04Z", "commit": "0123456789ab", "knobs": {},
            "seconds": 600, "complete": True, "rows": list(rows), **facts}


SCAN = result(row("seq | front to back", 2.5, 2.0, 3.1, ">= 1.5", True),
              row("reverse", 1.2, 1.1, 1.3, ">= 1.5", False),
              row("stride:7", 0.9, 0.001, 900.0),
              row("random: prefetches a miss", target="<= 0.01", met=False))
APPS = result(app("sqlite3", 50, "kernel", 1.2, "interval not below 0.98", True),
              app("sqlite3", 50, "zram", 0.7), app("sqlite3", 25, "kernel", 0.8,
                                                   "interval not below 0.98", False),
              app("jq", 50, "kernel", 2.0, "interval not below 0.98", True))


@pytest.fixture
def build(tmp_path):
    directory = tmp_path / "bench"
    directory.mkdir()
    (directory / "result").write_text(json.dumps(SCAN))
    make = directory / "make"
    make.write_text(MAKE.format(directory=directory))
    make.chmod(0o755)
    return directory


# --- all of them -----------------------------------------------------------

def command(build, *options):
    programs = build.parent / "bin"
    if not programs.exists():
        programs.mkdir()
        (programs / "ebbd").touch()
        os.utime(programs / "ebbd", (1, 1))
    return [BENCH / "run_all.py", "--directory", build, "--programs", programs,
            "--make", build / "make", *options]


def environment(**variables):
    clean = {k: v for k, v in os.environ.items() if k not in (*benches.KNOBS, "SKIP", "FRESH", "MACHINE")}
    return {**clean, **variables}


def run_all(build, *options, **variables):
    return subprocess.run(command(build, *options), env=environment(**variables), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)


def called(build):
    return [line.split()[0].removeprefix("bench-") for line in (build / "calls").read_text().splitlines()]


def instead(build, name, text):
    path = build / f"do-bench-{name}"
    path.write_text(text)
    path.chmod(0o755)


def test_quick_ones_first_and_results_last(build):
    done = run_all(build)
    assert done.returncode == 0, done.stdout
    by_guess = [b.name for b in sorted(benches.ALL, key=lambda b: b.minutes)]
    assert called(build) == [*by_guess, "results"]
    left = [m[1] for m in re.finditer(r"a guess; about (.+) left in all", done.stdout)]
    assert len(left) == len(benches.ALL) and left[0].endswith("min") and " h " in left[0]
    assert left[-1] == "6 h 40 min"     # the longest alone
    assert f"[1/{len(benches.ALL)}] {by_guess[0]}" in done.stdout
    assert "4 rows, 1 of 3 targets met" in done.stdout and "MISSED reverse" in done.stdout


def test_choice_is_not_handed_down(build):
    """ONLY= is of benchmarks here, and of programs there; other knobs are handed down."""
    assert run_all(build, ONLY="bench-scan,hooks,gc", SKIP="gc", RUNS="2").returncode == 0
    assert called(build) == ["hooks", "scan", "results"]
    line = (build / "calls").read_text().splitlines()[0]
    assert "ONLY= SKIP= FRESH=" in line and line.endswith("only= runs=2")
    done = run_all(build, ONLY="scan,frob")
    assert done.returncode == 2 and "no benchmark frob" in done.stdout and "hooks" in done.stdout


def test_a_failure_is_told_and_the_rest_goes_on(build):
    instead(build, "hooks", "#!/bin/sh\necho no such hook\nexit 3\n")
    instead(build, "device", "#!/bin/sh\nexit 0\n")
    done = run_all(build, ONLY="hooks,device,scan")
    assert done.returncode == 1 and called(build) == ["hooks", "device", "scan", "results"]
    assert "no such hook" in done.stdout and re.search(r"hooks: FAILED after \d+ s", done.stdout)
    assert "device" in done.stdout and "it wrote no result" in done.stdout
    assert "bench: failed: hooks, device;" in done.stdout
    # Only these are run again.
    assert run_all(build, ONLY="hooks,device,scan").returncode == 1
    assert called(build)[4:] == ["hooks", "device", "results"] or \
        called(build)[4:] == ["device", "hooks", "results"]


def test_failed_rendering_is_a_failure(build):
    instead(build, "results", "#!/bin/sh\nexit 1\n")
    assert run_all(build, ONLY="scan").returncode == 1


def test_goes_on_where_it_was(build):
    assert run_all(build, ONLY="scan").returncode == 0
    done = run_all(build, ONLY="scan,hooks")
    assert "scan: measured since ebb was built" in done.stdout
    assert called(build) == ["scan", "results", "hooks", "results"]
    # Asked for; of other rounds; older than the build; and written by another run since.
    assert "scan: measured" not in run_all(build, ONLY="scan", FRESH="1").stdout
    assert "scan: measured" not in run_all(build, ONLY="scan", RUNS="1").stdout
    assert "scan: measured" not in run_all(build, ONLY="scan").stdout
    assert "scan: measured" in run_all(build, ONLY="scan").stdout
    (build.parent / "bin" / "ebbd").touch()
    assert "scan: measured" not in run_all(build, ONLY="scan").stdout
    time.sleep(0.02)
    (build / "scan.json").touch()
    assert "scan: measured" not in run_all(build, ONLY="scan").stdout


@pytest.mark.parametrize("changed, again", [
    ("build/tests/scan", True), ("build/tests/gc/kv", True), ("build/lib/libebbfar.so.1", True),
    ("build/policies/auto.bpf.o", True), ("tests/bench/scan.py", True), ("tests/bench/measure.py", True),
    ("tests/demo/road.py", True), ("tests/harness/parts.py", True), ("tests/demo/programs/reads.py", True),
    # What unit tests are linked with, and what a scan does not use.
    ("build/tests/libebb-test.a", False), ("build/policies/native.c", False), ("build/tests/scan.d", False), ("build/tests/unit/test_wire", False),
    ("tests/bench/render.py", False)])
def test_what_a_result_must_be_newer_than(tmp_path, changed, again):
    """Programs, libraries, programs under test and the sources that a benchmark imports."""
    for name, text in (("build/bin/ebbd", ""), ("tests/bench/scan.py", "import os\nimport measure\n"),
                       ("tests/bench/measure.py", "if True:\n    import road\n"),
                       ("tests/demo/road.py", "from parts import Donor\n"), ("tests/harness/parts.py", ""),
                       (changed, None)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
        path.touch()
        os.utime(path, (1, 1) if text is not None else (1000, 1000))
    [scan_] = [b for b in benches.ALL if b.name == "scan"]
    assert all_of_them.built(tmp_path / "build" / "bin", scan_, tmp_path / "tests") == (1000 if again else 1)


def test_each_benchmark_has_a_file():
    assert all((BENCH / b.script).exists() for b in benches.ALL)


def test_estimates_are_of_the_last_time(build):
    times = {"scan": {"seconds": 7200, "ended": 5, "knobs": {}},
             "gc": {"seconds": 60, "ended": 5, "knobs": {}}}
    (build / "times.json").write_text(json.dumps(times))
    done = run_all(build, ONLY="scan,gc")
    assert called(build) == ["gc", "scan", "results"]
    assert "-- about 60 s; about 2 h 01 min left in all" in done.stdout and "guess" not in done.stdout
    known = json.loads((build / "times.json").read_text())
    assert known["scan"]["seconds"] < 60 and known["scan"]["ended"] > 5
    (build / "times.json").write_text("{")
    done = run_all(build, ONLY="scan")
    assert done.returncode == 2 and "times.json" in done.stdout and "remove it" in done.stdout


def test_time_left_is_told_meanwhile(build):
    (build / "times.json").write_text(json.dumps(
        {"seal": {"seconds": 4, "ended": 5, "knobs": {}}, "scan": {"seconds": 80, "ended": 5, "knobs": {}}}))
    told = build / "told"
    # It takes as long as it takes to be told both.
    instead(build, "seal", f"#!/bin/sh\nuntil grep -q 'longer than' {told}; do sleep 0.1; done\n"
                           "cp result seal.json\n")
    with open(told, "w") as out:
        subprocess.run(command(build, "--every", "0.2"), env=environment(ONLY="seal,scan"), stdout=out,
                       stderr=subprocess.STDOUT, timeout=300, check=False)
    said = told.read_text()
    assert re.search(r"-- seal: [0-4] s of about 4 s; about 8[0-4] s left in all", said)
    assert re.search(r"-- seal: \d+ s, longer than last time; about 80 s left in all", said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_waits_until_all_is_cleaned_up(build, number):
    """The benchmark, not make, takes swap off; make may exit before that."""
    (build / "bench.py").write_text(STOPPED)
    instead(build, "hooks", "#!/bin/sh\n/usr/bin/python3 ./bench.py & wait\n")
    process = subprocess.Popen(command(build), env=environment(ONLY="hooks,scan"), text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    machine.wait_for((build / "begun").exists, 20, "the benchmark to begin")
    # A shell's job in the background ignores SIGINT until it says otherwise: it has.
    process.send_signal(number)
    time.sleep(0.1)
    process.send_signal(number)         # impatience changes nothing
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and (build / "cleaned").read_text() == f"{number}\n"
    assert called(build) == ["hooks"]
    assert f"stopped by {number.name}" in said and re.search(r"^scan +not run$", said, re.M)
    assert "hooks" not in json.loads(machine.read(build / "times.json", "{}"))


def test_table_of_benchmarks():
    """Each is a target of make that it helps to find, is documented, and there is no other."""
    told = subprocess.run(["make", "-s", "help"], cwd=machine.REPO, capture_output=True, text=True,
                          check=True).stdout
    document = "".join(p.read_text() for p in (machine.REPO / "docs" / "benchmarks.md",
                                               BENCH / "README.md", BENCH / "methods.md"))
    goals = {b.goal for b in benches.ALL}
    assert set(re.findall(r"make (bench-[\w-]+)", told)) == goals | {"bench-results"}
    assert re.search(r"sudo make bench  ", told)
    for b in benches.ALL:
        assert f"make {b.goal}`" in document
        assert not b.method or f"\n## {b.method}\n" in document.lower(), b.method


class Stops(Exception):
    """What ends a benchmark half way."""


def test_rows_of_a_stopped_benchmark_are_kept(tmp_path, monkeypatch):
    """And the file says that they are not all, with which machine, commit and knobs."""
    monkeypatch.setattr(measure, "BENCH", tmp_path)
    for k in benches.KNOBS:
        monkeypatch.delenv(k, raising=False)
    monkeypatch.setenv("RUNS", "2")

    def bench():
        yield row("first", 2.0)
        raise measure.road.Failure("no more")

    assert measure.main("scan", bench) == 1
    told = json.loads((tmp_path / "scan.json").read_text())
    assert [r["name"] for r in told["rows"]] == ["first"] and told["complete"] is False
    assert told["knobs"] == {"RUNS": "2"} and told["kernel"] == os.uname().release
    assert told["cpu"] and told["cpus"] >= 1 and told["memory_mib"] > 100
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ", told["date"])
    assert measure.main("scan", lambda: [row("second", 2.0)]) == 0
    assert json.loads((tmp_path / "scan.json").read_text())["complete"] is True


@pytest.mark.parametrize("what, values", [("live_mib", (128, 1024)), ("threads", (1, 2)), ("markers", (1, 2)),
                                          ("donor", ("shm", "tcp"))])
def test_rows_of_another_kind_are_others(tmp_path, monkeypatch, what, values):
    monkeypatch.setattr(measure, "BENCH", tmp_path)
    monkeypatch.setenv("KEEP", "1")
    one, other = values
    for value, ratio in ((one, 2.0), (other, 2.0), (one, 3.0)):
        assert measure.main("gc", lambda: [row("kv, 25 %", ratio, **{what: value})]) == 0
    told = json.loads((tmp_path / "gc.json").read_text())
    assert [(r["params"][what], r["ratio"]) for r in told["rows"]] == [(other, 2.0), (one, 3.0)]


def test_rows_measured_again_replace_those_before(tmp_path, monkeypatch):
    """Also where another of the kernel's settings was the better one this time."""
    monkeypatch.setattr(measure, "BENCH", tmp_path)
    monkeypatch.delenv("RUNS", raising=False)
    names = [["zipf: auto against kernel 0", "sort: ebb against zram"],
             ["zipf: auto against kernel 3", "sort: ebb against kernel 3"]]
    for keep, some in zip(("", "1"), names):
        monkeypatch.setenv("KEEP", keep)
        assert measure.main("scan", lambda: [row(name, 2.0) for name in some]) == 0
        monkeypatch.setenv("RUNS", "3")
    told = json.loads((tmp_path / "scan.json").read_text())
    assert [r["name"] for r in told["rows"]] == names[0][1:] + names[1]
    # Whose the row is that stayed, is told.
    [earlier] = told["earlier"]
    assert [r.get("measured") for r in told["rows"]] == [earlier["date"], None, None]
    assert "RUNS" not in earlier["knobs"] and told["knobs"]["RUNS"] == "3"
    assert [(run["knobs"].get("RUNS"), n) for run, n in runs_of(told)] == [("3", 2), (None, 1)]
    told["rows"][0]["measured"] = "1970-01-01T00:00Z"
    assert "row 1: nothing is known of its run" in wrong(told)


@pytest.mark.parametrize("points, at, said", [
    # us of a miss, ratio, lower end of its interval
    ([(100, 0.5, 0.4), (200, 2.0, 1.5), (300, 3.0, 2.0)], 150, "gains from 150 us on"),
    ([(100, 1.5, 1.2), (200, 2.0, 1.5)], 100, "gains from the device's own 100 us on"),
    ([(100, 0.5, 0.4), (200, 0.9, 0.7)], None, "no gain at any latency"),
    # The gain at 200 us is none from there on.
    ([(100, 0.5, 0.4), (200, 2.0, 1.5), (300, 0.5, 0.4), (400, 2.0, 1.5)], 350,
     "gains from 350 us on, and at some below: not monotonic"),
    ([(100, 1.5, 1.2), (200, 1.4, 0.9), (300, 2.0, 1.5)], 300,
     "gains from 300 us on, and at some below: not monotonic"),
    ([(100, 1.5, 1.2), (200, 1.4, 0.9)], None, "gains at some latencies, but not at the largest"),
    ([(100, 1.5, None), (200, 1.4, None)], None, "not decided: a single run has no interval")])
def test_gains_from_a_latency_on(points, at, said):
    rows = [(miss, 0, {"ratio": ratio, "low": low}) for miss, ratio, low in reversed(points)]
    told = latency.crossover_row(loads.ALL[0], 50, "auto", rows)
    assert told["ebb"] == (at and pytest.approx(at)) and told["params"]["said"] == said


ANSWER = {"seconds": 2.0, "needed": 64 << 20, "recorded": {"memory": 16 << 20, "misses": 900}}


def size_of(best, misses):
    return {"percent": 50, "memory": 32 << 20, "best": best, "policies": [
        {"policy": p, "misses": misses, "misses_low": misses // 2, "misses_high": misses * 2, "slowdown": 2.0}
        for p in ("auto", "leap", "none")]}


def outcomes(misses, *seconds):
    return [SimpleNamespace(stats={"misses": misses}, seconds=s) for s in seconds]


@pytest.mark.parametrize("said, counted, met", [(120, 100, True), (121, 100, False), (80, 100, True),
                                               (79, 100, False), (0, 0, True), (1, 0, False), (0, 5, False)])
def test_predicted_misses_are_judged(said, counted, met):
    told = advise.misses_row(SimpleNamespace(name="x"), size_of("auto", said), ANSWER,
                             outcomes(counted, 1, 1, 1), 0)
    assert told["met"] is met and told["ebb"] == said and told["baseline"] == counted


# Noise neither meets nor misses a target of no harm; a clear gain is none.
@pytest.mark.parametrize("ratios, met", [
    ((1.0, 1.001, 0.999), True), ((1.5, 1.51, 1.49), True), ((0.9, 0.901, 0.899), False),
    ((0.5, 2.0, 1.0), None), ((1.0, 0.95, 0.99), None), ((1.0,), None), ((0.5,), None)])
def test_no_harm_is_decided_by_the_whole_interval(ratios, met):
    text, decide = measure.not_below(measure.HARM)
    told = measure.row("x", {}, list(ratios), [1.0] * len(ratios), "s", text, decide)
    assert told["target"] == "interval not below 0.98" and told["met"] is met
    word = {True: "met", False: "missed", None: "not decided"}[met]
    assert measure.verdict(told) == word
    assert measure.verdict({**told, "target": None, "met": None}) == ""


def scanned(pattern, readahead, ebb):
    """Rows of bench-scan with these times, the same for both of the kernel's settings."""
    stats = {"misses": 1000, "prefetched": 0, "coverage": 1.0, "accuracy": 1.0}
    ran = [SimpleNamespace(stats=stats, cpu=0.1)] * len(ebb)
    rows = scan.rows_of(pattern, None, {"readahead 3": readahead, "readahead 0": readahead, "ebb": ebb}, ran)
    return next(r for r in rows if r["target"] and "against" in r["name"])


def loaded(kernel, ebb):
    """The judged row of bench-prefetch of a program that nothing can help."""
    def runs(seconds):
        return [contest.Run(s, dict.fromkeys(contest.COUNTED, 0), 0.1) for s in seconds]
    load = next(x for x in loads.ALL if x.kind == loads.HARMLESS)
    c = contest.Contest(SimpleNamespace(size=1 << 30), load, 64, 50, {"auto"})
    c.runs = {contest.KERNEL[0]: runs(kernel), contest.Mode("auto", "auto", "auto"): runs(ebb)}
    return next(r for r in prefetch.rows_of(c) if "against" in r["name"])


def compared(rounds=5, beside=(), **modes):
    """
    (rows of bench-apps, modes as run), of a program whose runs take the seconds in @modes, the last
    of them again and again; None: the OOM killer ends that run.
    """
    times, ran = {mode.replace("_", " "): list(some) for mode, some in modes.items()}, []

    def run(r, beside, mode, percent):
        ran.append(mode)
        some = times[mode]
        seconds = some.pop(0) if len(some) > 1 else some[0]
        if seconds is None:
            raise measure.road.OutOfMemory("killed")
        return SimpleNamespace(seconds=seconds, stats={}, cpu=0.1)

    program = SimpleNamespace(workload=SimpleNamespace(name="sort"), peak=64 << 20, run=run)
    return apps.Comparison(None, beside, program, 50, 2).hold(rounds), ran


def ran(kernel, ebb):
    """The judged row of bench-apps."""
    [told], _ = compared(len(ebb), kernel_3=kernel, kernel_0=[9.0], ebb=ebb)
    return told


@pytest.mark.parametrize("judged", [lambda *times: scanned("random", *times), loaded, ran])
def test_what_nothing_can_help_is_judged_by_the_interval(judged):
    assert judged([2.0, 2.01, 1.99], [1.0, 1.0, 1.0])["met"] is True
    assert judged([1.0, 1.0, 1.0], [1.2, 1.21, 1.19])["met"] is False
    assert judged([1.0, 2.0, 1.0], [2.0, 1.0, 1.0])["met"] is None
    assert judged([1.0], [1.0])["met"] is None


@pytest.mark.parametrize("attach, met", [((1.0, 1.1, 0.9), True), ((11.0, 11.1, 11.2), False),
                                         ((9.0, 11.0, 10.0), None), ((1.0,), None)])
def test_idle_values_are_of_several_rounds(monkeypatch, tmp_path, attach, met):
    """In turn the new or the old build first; a single round decides nothing."""
    sampled = []

    def sample(build, size):
        sampled.append(build.parent.name)
        n = sampled.count(build.parent.name) - 1
        return (0.5, 0, attach[n] if build == idle.machine.BUILD else 20.0, 3)

    monkeypatch.setattr(idle, "sample", sample)
    monkeypatch.setattr(idle, "SIZES", [10])
    monkeypatch.setenv("OLD", str(tmp_path / "old"))
    monkeypatch.setenv("RUNS", str(len(attach)))
    rows = {r["name"]: r for r in idle.bench()}
    new = idle.machine.BUILD.parent.name
    assert sampled == [new, "old", "old", new, new, "old"][:2 * len(attach)]
    told = rows["attach, time, 10 cgroups"]
    assert told["met"] is met and told["runs"] == len(attach) and told["baseline"] == 20
    assert told["ratio"] > 1 and rows["idle, system calls, 10 cgroups"]["target"] is None
    monkeypatch.delenv("OLD")
    sampled.clear()
    alone = {r["name"]: r for r in idle.bench()}["attach, time, 10 cgroups"]
    assert sampled == [new] * len(attach) and alone["met"] is met and alone["baseline"] is None


@pytest.mark.parametrize("three, zero, better", [([4.0], [2.0], 0), ([2.0], [4.0], 3),
                                                 # One slow trial alone rejects no setting.
                                                 ([9.0, 2.0], [3.0], 3), ([3.0], [2.0, 9.0, 2.0], 0)])
def test_programs_are_compared_with_the_better_kernel_setting(three, zero, better):
    [told], modes = compared(kernel_3=three, kernel_0=zero, ebb=[1.0])
    assert told["name"] == "sort, 50 %, 2 CPU, against kernel" and told["runs"] == 5
    assert told["params"]["page_cluster"] == better and told["baseline"] == 2
    # Two trials of each, then the better only.
    assert [modes.count(f"kernel {n}") for n in (better, 3 - better)] == [5, 2]
    assert all(len(t) == 2 for t in told["params"]["trial_seconds"].values())
    [told], modes = compared(1, kernel_3=[3.0], kernel_0=[2.0], ebb=[1.0])
    assert told["params"]["page_cluster"] == 0 and len(modes) == 3 and told["met"] is None


def test_runs_lost_to_the_oom_killer_are_counted_by_mode():
    [told], _ = compared(kernel_3=[2.0], kernel_0=[3.0], ebb=[None, 1.0, None, None, 1.0])
    assert told["params"]["oom_kills"] == 3 and told["params"]["oom_kills_baseline"] == 0
    rows, _ = compared(kernel_3=[None, 2.0], kernel_0=[3.0], ebb=[1.0], zram=[None, 1.0], beside=["zram"])
    # zram has no second try.
    assert [(r["params"]["oom_kills"], r["params"]["oom_kills_baseline"]) for r in rows] == [(0, 1)]
    # A setting that cannot run leaves the other.
    [told], _ = compared(kernel_3=[None], kernel_0=[3.0], ebb=[1.0])
    assert told["params"]["page_cluster"] == 0 and list(told["params"]["trial_seconds"]) == ["kernel 0"]
    for times, name, kills, met in (({"kernel_3": [None], "kernel_0": [None], "ebb": [1.0]}, "kernel", 6, None),
                                    ({"kernel_3": [None], "kernel_0": [2.0], "ebb": [None]}, "ebb", 3, False)):
        [told], _ = compared(**times)
        assert told["name"].endswith(f"OOM killer, {name}") and told["ebb"] == kills and told["met"] is met


@pytest.mark.parametrize("three, zero, dropped", [
    ([1.0], [2.0, 2.0], {"kernel 0"}), ([1.0], [2.0, 1.05], set()), ([1.0], [1.05], set()),
    # The second trial shows that the other was slow.
    ([1.0, 1.0], [2.0, 0.5], {"kernel 3"})])
def test_a_setting_is_dropped_after_two_slow_trials_only(monkeypatch, three, zero, dropped):
    times = {"kernel 3": list(three), "kernel 0": list(zero)}
    c = contest.Contest(SimpleNamespace(size=1 << 30), loads.ALL[0], 64, 50, {"auto"})
    monkeypatch.setattr(c, "one", lambda mode: contest.Run(times[mode.name].pop(0), {}, 0.1))
    left = c.qualify(list(contest.KERNEL), 5)
    assert {m.name for m in contest.KERNEL} - {m.name for m in left} == dropped
    assert not any(times.values()) and c.trial == {"kernel 3": three, "kernel 0": zero}


@pytest.mark.parametrize("factor, met", [(1.0, True), (1.04, True), (1.06, False)])
def test_advised_policy_is_judged(factor, met):
    """Against what was fastest in the same rounds, however much slower some of them were."""
    rounds = (2.0, 4.0, 3.0)
    taken = {"none": outcomes(1, 9, 9, 9), "leap": outcomes(1, *rounds),
             "auto": outcomes(1, *(s * factor for s in rounds))}
    told = advise.best_row(SimpleNamespace(name="x"), size_of("auto", 5), ANSWER, taken, 0)
    assert told["met"] is met and told["high"] - told["low"] < 0.01
    assert told["params"]["slowdown_measured"]["none"] == 4.5


# --- the cost of a page ----------------------------------------------------

INTERRUPTS = """           CPU0       CPU1
 24:          1          2  IO-APIC   5-edge      ACPI:Ged
 25:         10          0  PCI-MSIX  0-edge      virtio1
RES:        100         20   Rescheduling interrupts
TLB:          7          5   TLB shootdowns
ERR:          3
"""


def test_counters_of_the_machine_are_parsed():
    assert account.parse_interrupts(INTERRUPTS, 2) == {"device": 13, "RES": 120, "TLB": 12, "ERR": 3}
    # Of 2 CPUs for 1 s: 70 + 20 ticks of idle and iowait, 10 stolen.
    stat = "cpu  1 2 3 70 20 6 7 10 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n"
    assert account.parse_busy(stat, 2, 1e6) == 2e6 - 100 * account.TICK_US
    assert account.parse_switches("Name:\tx\nvoluntary_ctxt_switches:\t5\n"
                                  "nonvoluntary_ctxt_switches:\t7\n") == (5, 7)
    assert account.parse_switches("") == (0, 0)
    assert account.parse_words("nr_free 9\npswpin 3\npswpout 4\n", "pswpin", "pswpout") == {
        "pswpin": 3, "pswpout": 4}
    assert account.parse_faults("7 (a) b) R 1 2 3 4 5 6 11 12 13 14 15\n") == (11, 13)
    assert account.parse_faults("") == (0, 0)
    assert account.family(5, {5: 1, 6: 5, 7: 6, 8: 1}) == {5, 6, 7}


@pytest.mark.parametrize("pid, name, part", [
    (10, "scan", "program"), (20, "ebbd", "ebbd"), (20, "ebbd-prefetch", "executor"),
    (30, "ebb-backup", "ebb-swapd"), (40, "ebb-donord", "ebb-donord"), (50, "python3", "bench"),
    (60, "sshd", "other"), (3, "kworker/u8:6-loop0", "loop"), (3, "kworker/u8:6+loop12", "loop"),
    (3, "loop0", "loop"), (3, "kworker/0:1H-kblockd", "kernel"), (3, "kworker/u9:0", "kernel"),
    (3, "kworker/1:1-dio/vda", "kernel"), (3, "ksoftirqd/1", "kernel"),
    # A process cannot pass for a kernel thread by its name.
    (60, "kworker/u8:6-loop0", "other")])
def test_component_of_a_thread(pid, name, part):
    assert account.component(account.Thread(pid, name), ROLES, {2, 3})[0] == part


ROLES = {10: "program", 20: "ebbd", 30: "ebb-swapd", 40: "ebb-donord", 50: "bench"}
# tid: pid, name, us on a CPU before and after, voluntary and involuntary switches meanwhile.
THREADS = {10: (10, "scan", 100, 9100, 50, 3), 20: (20, "ebbd", 5, 15, 1, 0),
           21: (20, "ebbd-prefetch", 0, 2000, 40, 2), 30: (30, "ebb-swapd", 7, 3007, 60, 0),
           31: (30, "ebb-backup", 0, 500, 5, 0), 40: (40, "ebb-donord", 0, 1500, 30, 1),
           3: (3, "kworker/u8:6-loop0", 0, 1000, 20, 0), 4: (4, "kworker/0:1H-kblockd", 9, 109, 4, 0),
           50: (50, "python3", 0, 200, 2, 0), 60: (60, "sshd", 0, 300, 1, 1)}
PAGES = 1000


def snapshots(counting, slower=1):
    """Two snapshots, between which THREADS' time and @counting passed."""
    def snapshot(after):
        threads = {tid: account.Thread(pid, name, 1000 * (new * slower if after else old),
                                       voluntary if after else 0, involuntary if after else 0)
                   for tid, (pid, name, old, new, voluntary, involuntary) in THREADS.items()}
        return account.Snapshot(
            threads=threads, busy_us=1e6 + 20000 * after, at=5 + after / 4,
            interrupts={"RES": 10 + 700 * after, "TLB": 1000 * after, "CAL": 1000 * after},
            softirqs={"BLOCK": 2000 * after}, pages={"pswpin": PAGES * after, "pswpout": 9 + 500 * after},
            faults=(100 + 200 * after, 300 * after), ebb={"misses": 40 * after, "miss_ns": 8000000 * after},
            counted=answer(after) if counting else {})
    return snapshot(0), snapshot(1)


def answer(after):
    """Answers of tests/bench/count; process 60 and this benchmark do not belong to the page."""
    return {"calls": [[30, 0, 5 + 250 * after, 1024 * 1000 * after], [30, 321, 100 * after, 7],
                      [20, 321, 500 * after, 0], [50, 0, 900 * after, 900], [60, 0, 800 * after, 1]],
            "times": {"BLOCK": [2000 * after, 3e6 * after, 1e6 * after],
                      "call": [1000 * after, 2e6 * after, 5e5 * after], "device": [0, 0, 0]},
            "bpf": [[7, "fault_minor", 100 + 900000 * after, 3 + 600 * after], [8, "idle", 5, 5],
                    [9, "fault_minor", 1000 * after, after]]}


def used(counting, visits=1600):
    u = account.used(*snapshots(counting), ROLES, {2, 3, 4})
    u.visits = visits
    u.ebb = {"misses": 40, "miss_ns": 8000000, "late_ns": 0} if not counting else {}
    return u


def test_costs_of_a_page_have_a_known_sum():
    timed, counted = used(False), used(True)
    # The program itself needs 1 us a page of its 9.
    costs = account.page_costs(timed, counted, 1000)
    assert costs == pytest.approx({"program": 8, "executor": 2, "ebbd": 0.01, "ebb-swapd": 3.5,
                                   "ebb-donord": 1.5, "loop": 1, "kernel": 0.1, "interrupts": 1.5})
    assert sum(costs.values()) == pytest.approx(17.61)
    # All of the program's time counts here: 18.61 of 20 ms, and 0.5 ms of others.
    assert account.explained([timed] * 2, [counted] * 2) == pytest.approx((0.9305, 0.025))
    assert timed.threads["ebb-swapd/ebb-backup"] == 500 and timed.threads["kworker loop"] == 1000
    assert timed.switches["ebb-swapd"] == [65, 0] and timed.switches["program"] == [50, 3]
    assert timed.interrupts == {"RES": 700, "TLB": 1000, "CAL": 1000} and timed.out == 500
    assert timed.faults == (200, 300) and timed.seconds == 0.25


def test_calls_programs_and_handlers_are_attributed():
    counted = used(True)
    assert counted.calls == {"ebb-swapd": {"read": 250, "bpf": 100}, "ebbd": {"bpf": 500}}
    assert counted.moved == {"ebb-swapd": 1024000}      # what bpf() returned are no bytes
    assert counted.bpf == {"fault_minor": [901000, 601]}
    assert counted.handled == {"BLOCK": [2000, 3000, 1000], "call": [1000, 2000, 500]}


def test_threads_that_begin_and_end_meanwhile():
    before, after = snapshots(False)
    del before.threads[31], after.threads[40]
    us, names, _ = account.thread_costs(before.threads, after.threads, ROLES, {2, 3, 4})
    assert us["ebb-swapd"] == 3500 and "ebb-donord" not in us and names["ebb-swapd/ebb-backup"] == 500


@pytest.mark.parametrize("start, end, part", [
    ("loop0", "loop0", "loop"), ("loop0", "flush-254:0", "loop"), ("events_unbound", "loop0", "loop"),
    ("events_unbound", "flush-254:0", "kernel")])
def test_worker_that_served_the_loop_device(start, end, part):
    """A kworker serves several work queues; the last one at the end says little."""
    before, after = ({3: account.Thread(3, f"kworker/u8:6-{queue}", ns)}
                     for queue, ns in ((start, 1000), (end, 5000)))
    assert account.thread_costs(before, after, {}, {3})[0] == {part: 4.0}


def rounds_of(*builds):
    """Two rounds of one pattern: memory, zram and tcp, the old build at twice the cost."""
    patterns, modes = cost.PATTERNS[:1], [m for m in cost.MODES if m.name in ("memory", "zram", "tcp")]
    held = cost.Rounds(patterns, modes, builds[0] if builds else None)
    for build in (None, *builds):
        for mode in modes if not build else modes[-1:]:
            timed, counted = used(False), used(True)
            if mode.name == "memory":
                timed.us["program"] = 1000
            elif mode.name == "zram":
                timed.us, counted.us = {"program": 6000.0}, {}
            elif build:
                timed.us = {part: 2 * us for part, us in timed.us.items()}
            held.runs[build, mode, patterns[0]] = [(timed, counted)] * 2
    return held


def test_rows_and_table_of_costs():
    cases = cost.cases_of(rounds_of())
    rows = cost.rows_of(cases, None)
    assert [r["name"] for r in rows] == ["seq: zram", "seq: tcp against zram"]
    assert wrong(result(*rows)) is None
    zram, tcp = rows
    assert zram["ebb"] == 5.0 and zram["ratio"] is None
    assert tcp["ebb"] == 17.61 and tcp["baseline"] == 5.0 and tcp["ratio"] == pytest.approx(5 / 17.61, 1e-3)
    params = tcp["params"]
    assert params["us_per_page"]["executor"] == {"us": 2.0, "low": 2.0, "high": 2.0}
    assert params["us_per_page"]["sum"]["us"] == 17.61 and params["lost_to_misses_us"] == 8.0
    assert params["us_per_access"]["us"] == pytest.approx(17.61 * 0.625, 1e-4)
    assert params["pages_in_per_access"] == 0.625 and params["pages_out_per_page"] == 0.5
    assert params["calls"]["ebb-swapd"] == {"bpf": 0.1, "read": 0.25}
    # 1000 pages were swapped in, 500 out.
    assert params["calls_per_page_moved"] == {"ebb-swapd": 0.23333, "ebbd": 0.33333}
    assert params["bytes_moved"] == {"ebb-swapd": 1024.0} and params["interrupts"]["TLB"] == 1.0
    assert params["bpf_ns"] == {"fault_minor": 901.0} and params["explained"] == 0.9305
    head, _, line = cost.table(cases)
    assert head.split()[-1] == "explained" and line.split()[:2] == ["seq", "tcp"]
    # Sum, pages per access, IPIs, TLB, switches and calls.  Of the calls, the benchmark's are not a page's.
    assert line.split()[10:16] == ["17.61", "0.62", "1.70", "1.00", "0.22", "0.85"]
    assert "explained  93%, beside   2%" in line


def test_another_build_is_compared():
    rows = cost.rows_of(cost.cases_of(rounds_of("/old")), "0123456789ab")
    assert [r["name"] for r in rows] == ["seq: zram", "seq: tcp against zram", "seq: old tcp against zram",
                                         "seq: tcp against old"]
    told = rows[-1]
    # Interrupts of idle CPUs, 1.5 us, and the program's own time, 1 us, are the same in both.
    assert told["baseline"] == 33.72 + 1.0 and told["ebb"] == 17.61 and told["params"]["old"] == "0123456789ab"
    assert told["ratio"] == pytest.approx(34.72 / 17.61, 1e-3) and told["params"]["components"]["executor"] == 0.5


def test_rounds_are_whole_and_end_in_time(monkeypatch):
    seen = []

    def visit(self, build, kind, number):
        seen.append((number, build, kind))
        if len(seen) == 6:
            raise measure.road.Failure("no more")
        return {(build, kind): (number, number)}

    monkeypatch.setattr(cost.Rounds, "visit", visit)
    modes = [m for m in cost.MODES if m.name in ("memory", "kernel", "tcp")]
    held = cost.Rounds(cost.PATTERNS, modes, "/old")
    with pytest.raises(measure.road.Failure):
        held.hold(3)
    assert seen[:3] == [(0, None, "memory"), (0, None, "tcp"), (0, "/old", "tcp")]
    assert [kind for _, _, kind in seen[3:]] == ["tcp", "tcp", "memory"]
    assert set(map(len, held.runs.values())) == {1}
    monkeypatch.setattr(cost, "MINUTES", 0)
    seen.clear()
    held = cost.Rounds(cost.PATTERNS, modes, None)
    held.hold(3)
    assert [number for number, _, _ in seen] == [0, 0]


def test_counts_in_a_guest_are_compared():
    """System calls, context switches and IPIs of two frontends, of the components only."""
    modes = {m.name: m for m in cost_guest.MODES}
    seq = cost.PATTERNS[0]
    fewer = used(True)
    fewer.calls["ebb-swapd"]["read"] = 150
    runs = {(seq, modes["fuse"]): [used(True)] * 2, (seq, modes["ublk"]): [fewer] * 2,
            (seq, modes["fuse-shm"]): [used(True)] * 2}
    rows = {r["name"]: r for r in cost_guest.rows_of(runs)}
    assert wrong(result(*rows.values())) is None
    assert set(rows) == {f"seq, {what}: fuse to ublk" for what in cost_guest.counts_of(fewer)}
    calls = rows["seq, system calls of ebb-swapd: fuse to ublk"]
    # 250 read and 100 bpf of 1000 pages, then 150 and 100.
    assert calls["baseline"] == 0.35 and calls["ebb"] == 0.25 and calls["ratio"] == 1.4
    assert rows["seq, system calls: fuse to ublk"]["ebb"] == 0.75
    assert rows["seq, system calls of ebb-donord: fuse to ublk"]["ebb"] == cost_guest.LEAST
    assert rows["seq, IPIs: fuse to ublk"]["ebb"] == 1.7
    assert calls["params"]["ublk"]["calls"]["ebb-swapd"] == {"bpf": 0.1, "read": 0.15}
    assert calls["params"]["fuse"]["mode"] == "fuse"


KEY = {"new": "0123", "mib": 64}


def held_by(kept_runs, monkeypatch, fail_at=None):
    """Holds two rounds of two patterns, with and without zram; returns (Rounds, measured places)."""
    measured, devices = [], []

    def one(pattern, mode, roles, count):
        if fail_at is not None and len(measured) == fail_at:
            raise measure.road.Stopped("SIGINT")
        measured.append((mode.name, pattern.name, bool(count)))
        return used(bool(count))

    @contextlib.contextmanager
    def swap_of(kind):
        devices.append(kind)
        yield {}

    for name, new in (("one", one), ("swap_of", swap_of)):
        monkeypatch.setattr(cost, name, new)
    monkeypatch.setattr(account, "Count", lambda: contextlib.nullcontext("count"))
    modes = [m for m in cost.MODES if m.name in ("memory", "zram")]
    held = cost.Rounds(cost.PATTERNS[:2], modes, None, kept_runs)
    try:
        held.hold(2)
    except measure.road.Stopped:
        assert fail_at is not None
    return held, measured, devices


def test_an_interrupted_run_resumes_by_row(tmp_path, monkeypatch):
    path = tmp_path / "cost-runs.jsonl"
    whole, everything, _ = held_by(kept.Kept(path, KEY), monkeypatch)
    assert len(everything) == 16
    for fail_at in range(16):
        path.unlink()
        stopped, first, _ = held_by(kept.Kept(path, KEY), monkeypatch, fail_at)
        assert len(first) == fail_at and set(map(len, stopped.runs.values())) <= {1}
        resumed, rest, devices = held_by(kept.Kept(path, KEY), monkeypatch)
        # The run without counters is measured again if the one with them is missing.
        assert first[:fail_at - fail_at % 2] + rest == everything
        # Devices of which nothing is missing are not created.
        assert len(devices) == 4 - fail_at // 4
        assert cost.rows_of(cost.cases_of(resumed), None) == cost.rows_of(cost.cases_of(whole), None)


def test_kept_runs_are_of_one_build(tmp_path, monkeypatch):
    monkeypatch.delenv("FRESH", raising=False)
    path = tmp_path / "runs.jsonl"
    kept.Kept(path, KEY).add([0, "tcp"], {"us": 1.5})
    kept.Kept(path, KEY).add([1, "tcp"], {"us": 2.5})
    path.write_text(path.read_text() + '[[2, "tcp"], {"us"')     # cut short by the interruption
    again = kept.Kept(path, KEY)
    assert again.get([0, "tcp"]) == {"us": 1.5} and again.get([2, "tcp"]) is None
    again.add([2, "tcp"], 3)
    assert len(kept.Kept(path, KEY).values) == 3
    monkeypatch.setenv("FRESH", "1")
    assert not kept.Kept(path, KEY).values
    monkeypatch.delenv("FRESH")
    kept.Kept(path, KEY).add([0, "tcp"], 4)
    assert not kept.Kept(path, {**KEY, "new": "4567"}).values
    assert not kept.Kept(path, KEY).values
    kept.Kept(path, KEY).done()
    assert not path.exists()


def test_patterns_and_modes_are_chosen(monkeypatch):
    for knob in ("ONLY", "QUICK"):
        monkeypatch.delenv(knob, raising=False)
    names = lambda: [p.name for p in cost.choose("ONLY", cost.PATTERNS, cost.QUICK_PATTERNS)]
    assert len(names()) == len(cost.PATTERNS)
    monkeypatch.setenv("QUICK", "1")
    assert names() == list(cost.QUICK_PATTERNS)
    monkeypatch.setenv("ONLY", "random,seq")
    assert names() == ["seq", "random"]
    monkeypatch.setenv("ONLY", "seq,frob")
    with pytest.raises(measure.road.Failure, match="ONLY=seq,frob: no frob; there are seq, "):
        names()


# --- the page --------------------------------------------------------------

def render(build, **variables):
    return subprocess.run([BENCH / "render.py", "--directory", build, "-o", build.parent / "results"],
                          env=environment(**variables), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)


def rendered(build, told, name="scan", **variables):
    """The page, after @told was added to the results."""
    (build / f"{name}.json").write_text(json.dumps(told))
    done = render(build, **variables)
    assert done.returncode == 0, done.stdout
    return (build.parent / "results" / "README.md").read_text()


def contents(directory):
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def section(page, name):
    return page.split(f"\n### {name}\n")[1].split("\n## ")[0].split("\n### ")[0]


def test_rendering_is_deterministic(build):
    results = build.parent / "results"
    rendered(build, APPS, "apps")
    rendered(build, SCAN)
    first = contents(results)
    assert {str(p) for p in first} == {"README.md", f"{KERNEL}/apps.json", f"{KERNEL}/scan.json"}
    assert render(build).returncode == 0 and contents(results) == first
    for p in build.glob("*.json"):      # the kept copies are enough
        p.unlink()
    assert render(build).returncode == 0 and contents(results) == first


def test_page_shows_machine_and_every_judged_row(build):
    page = rendered(build, SCAN)
    for said in (f"## {KERNEL}", "A <Processor> & Co", "2 virtual CPUs", "2.0 GiB",
                 "2026-01-02 03:04 UTC", "0123456789ab", "10 min", "| scan | 4 | 1 of 3 |"):
        assert said in page, said
    table = section(page, "bench-scan")
    assert r"| seq \| front to back | 2 | 0.5 | s | 2.5 | 2 to 3.1 | 5 | >= 1.5 | met |" in table
    assert "stride:7" not in table      # it has no target
    assert table.count("**missed**") == 2
    missed = page.split("\nMissed targets:\n")[1].split("\n###")[0]
    assert "| scan | reverse | >= 1.5 | 1.2 (1.1 to 1.3) |" in missed
    assert "| scan | random: prefetches a miss | <= 0.01 | 0.5 |" in missed and "seq" not in missed
    page = rendered(build, {**SCAN, "rows": [r for r in SCAN["rows"] if r["met"] is not False]})
    assert "No target was missed." in page and "**missed**" not in page


@pytest.mark.parametrize("target", ["interval not below 0.98", "interval includes 1",
                                    "interval includes 1 or better"])
def test_earlier_results_are_judged_again(build, target):
    """Whatever they say: an interval that only reaches the bound decides nothing."""
    rows = [row("clear", 1.2, 1.1, 1.3, target, False), row("noisy", 0.9, 0.5, 1.6, target, True),
            row("slow", 0.8, 0.7, 0.9, target, True), row("single", 1.2, None, None, target, True)]
    page = rendered(build, result(*rows))
    table = section(page, "bench-scan")
    for name, word in (("clear", "met"), ("noisy", "not decided"), ("slow", "**missed**"),
                       ("single", "not decided")):
        assert re.search(rf"^\| {name} .* \| {re.escape(word)} \|$", table, re.M), name
    assert "1 of 4 targets met, 2 not decided." in table and "| scan | 4 | 1 of 4, 2 not decided |" in page
    assert "| scan | slow |" in page.split("\nMissed targets:\n")[1].split("\n###")[0]
    kept_rows = json.loads((build.parent / "results" / KERNEL / "scan.json").read_text())["rows"]
    assert [r["met"] for r in kept_rows] == [False, True, True, True]      # as measured


def test_one_replay_decides_nothing(build):
    rows = [row("one", 9.0, None, None, ">= 2.5", True, baseline_is="modelled"),
            row("some", 9.0, 8.0, 10.0, ">= 2.5", True, baseline_is="modelled")]
    table = section(rendered(build, result(*rows), "heap"), "bench-heap")
    assert "1 of 2 targets met, 1 not decided." in table


def test_incomplete_results_are_marked(build):
    page = rendered(build, {**SCAN, "complete": False, "knobs": {"ONLY": "seq", "RUNS": "1"}})
    assert "| stopped before its end; ONLY=seq RUNS=1 |" in page


def test_geometric_means_of_programs(build):
    """Losses are part of the mean; zram and sizes above 50 % are not."""
    rows = [*APPS["rows"], app("jq", 75, "kernel", 9.0), app("sort", 50, "kernel", 0.9)]
    table = section(rendered(build, {**APPS, "rows": rows}, "apps"), "bench-apps")
    assert "| the six of the demo | 2 | 3 | 1.24 | 0.8 (sqlite3) | 2 |" in table
    assert "| random accesses | 2 | 1 | 0.9 | 0.9 (sort) | 0.9 |" in table


def damaged(change):
    told = copy.deepcopy(SCAN)
    change(told)
    return json.dumps(told)


@pytest.mark.parametrize("text, says", [
    ("{", "Expecting"), ("[]", "names no kernel"),
    (damaged(lambda t: t.pop("kernel")), "names no kernel"),
    (damaged(lambda t: t.update(kernel="../../etc")), "no kernel's name"),
    (damaged(lambda t: t.update(rows=[])), "has no rows"),
    (damaged(lambda t: t["rows"][1].pop("met")), "row 2 has no met"),
    (damaged(lambda t: t["rows"][0].update(ratio="2")), "row 1: ratio is no number"),
    (damaged(lambda t: t["rows"][2].update(ratio=0)), "row 3: a ratio of 0"),
])
def test_damaged_results_are_refused(build, text, says):
    (build / "apps.json").write_text(json.dumps(APPS))
    (build / "scan.json").write_text(text)
    done = render(build)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1
    assert f"{build / 'scan.json'}: " in done.stdout and says in done.stdout
    assert "make bench-scan again" in done.stdout
    assert not (build.parent / "results").exists()


def test_no_results(build):
    done = render(build)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1
    assert f"{build}: has no results; run sudo make bench" in done.stdout


def test_two_machines_with_one_kernel(build):
    results = build.parent / "results"
    rendered(build, SCAN)
    before = contents(results)
    (build / "scan.json").unlink()
    other = {**APPS, "cpu": "Another"}
    (build / "apps.json").write_text(json.dumps(other))
    done = render(build)
    assert done.returncode == 1 and "MACHINE=NAME" in done.stdout and "Another" in done.stdout
    assert contents(results) == before
    page = rendered(build, other, "apps", MACHINE="desk")
    assert "(Another)" in page.split("\n## desk\n")[1].split("\n## ")[0]
    assert "A <Processor> & Co" in page.split(f"\n## {KERNEL}\n")[1].split("\n## ")[0]


def test_newer_results_stay(build):
    """Results left in build/ do not replace newer kept ones."""
    rendered(build, {**SCAN, "date": "2026-02-01T00:00Z"})
    assert "2026-02-01 00:00" in rendered(build, SCAN)


def test_results_in_the_tree_are_as_rendered(tmp_path):
    """docs/results/README.md agrees with its JSON, and no JSON is of an unknown benchmark."""
    kept = machine.REPO / "docs" / "results"
    for path in kept.glob("*/*.json"):
        assert path.stem in {b.name for b in benches.ALL}, path
        (tmp_path / path.parent.name).mkdir(exist_ok=True)
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    done = subprocess.run([BENCH / "render.py", "--directory", tmp_path / "none", "-o", tmp_path],
                          env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
    assert contents(tmp_path) == contents(kept), "make bench-results renders it again"


def test_paths_are_words_of_their_own():
    """A path in the text of a shell's command would break at a space."""
    for w in workloads.BY_NAME.values():
        for word in w.argv("/a b"):
            for path in ("/a b", str(workloads.PROGRAMS)):
                assert path not in word or word.startswith(path) and not set(word[len(path):]) & set(" <>|;"), w.name
