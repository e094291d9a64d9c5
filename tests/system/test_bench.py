# SPDX-License-Identifier: GPL-2.0-or-later
"""
`make bench`: what is run, in which order, what is told of it, and the pages made from what
benchmarks wrote.  None of them is run here: a stand-in for make writes what is asked for.
"""
import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

import machine

sys.path.insert(0, str(machine.REPO / "tests" / "bench"))
import advise
import benches
import dots
import measure
from render import runs_of, wrong

pytestmark = pytest.mark.beside

BENCH = machine.REPO / "tests" / "bench"
KERNEL = "6.12.9-test"
SVG = "{http://www.w3.org/2000/svg}"

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
    assert left[-1] == "3 h 20 min"     # the longest alone
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
        {"seal": {"seconds": 1.2, "ended": 5, "knobs": {}}, "scan": {"seconds": 80, "ended": 5, "knobs": {}}}))
    told = build / "told"
    # It takes as long as it takes to be told both.
    instead(build, "seal", f"#!/bin/sh\nuntil grep -q 'longer than' {told}; do sleep 0.1; done\n"
                           "cp result seal.json\n")
    with open(told, "w") as out:
        subprocess.run(command(build, "--every", "0.2"), env=environment(ONLY="seal,scan"), stdout=out,
                       stderr=subprocess.STDOUT, timeout=300, check=False)
    said = told.read_text()
    assert re.search(r"-- seal: [01] s of about 1 s; about 8[01] s left in all", said)
    assert re.search(r"-- seal: \d+ s, longer than last time; about 80 s left in all", said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_waits_until_all_is_cleaned_up(build, number):
    """The benchmark, not make, takes swap off; make may be gone before that."""
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
    document = (machine.REPO / "docs" / "benchmarks.md").read_text()
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


@pytest.mark.parametrize("factor, met", [(1.0, True), (1.04, True), (1.06, False)])
def test_advised_policy_is_judged(factor, met):
    """Against what was fastest in the same rounds, however much slower some of them were."""
    rounds = (2.0, 4.0, 3.0)
    taken = {"none": outcomes(1, 9, 9, 9), "leap": outcomes(1, *rounds),
             "auto": outcomes(1, *(s * factor for s in rounds))}
    told = advise.best_row(SimpleNamespace(name="x"), size_of("auto", 5), ANSWER, taken, 0)
    assert told["met"] is met and told["high"] - told["low"] < 0.01
    assert told["params"]["slowdown_measured"]["none"] == 4.5


# --- the pages -------------------------------------------------------------

def render(build, **variables):
    return subprocess.run([BENCH / "render.py", "--directory", build, "-o", build.parent / "results"],
                          env=environment(**variables), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=300)


def rendered(build, told, name="scan", **variables):
    (build / f"{name}.json").write_text(json.dumps(told))
    done = render(build, **variables)
    assert done.returncode == 0, done.stdout
    return build.parent / "results" / (variables.get("MACHINE") or KERNEL)


def contents(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir()}


def section(page, name):
    return page.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_rendering_is_deterministic(build):
    directory = rendered(build, APPS, "apps")
    rendered(build, SCAN)
    first = contents(directory)
    assert set(first) == {"index.md", "apps.json", "apps-2-cpu.svg", "scan.json", "scan.svg"}
    assert render(build).returncode == 0 and contents(directory) == first
    # Also from what was kept alone.
    for p in build.glob("*.json"):
        p.unlink()
    assert render(build).returncode == 0 and contents(directory) == first


def test_page_names_machine_and_every_row(build):
    page = (rendered(build, SCAN) / "index.md").read_text()
    for said in ("Linux " + KERNEL, "A <Processor> & Co", "2 (virtual)", "2.0 GiB",
                 "2026-01-02 03:04 UTC", "0123456789ab", "10 min", "![Ratios of bench-scan"):
        assert said in page, said
    table = section(page, "bench-scan")
    assert r"| seq \| front to back | 2 | 0.5 | s | 2.5 | 2 to 3.1 | 5 | >= 1.5 | met |" in table
    assert "| stride:7 | 2 | 0.5 | s | 0.9 | 0.001 to 900 | 5 |  |  |" in table
    assert "Not the whole" not in page


def test_a_missed_target_is_shown_as_missed(build):
    directory = rendered(build, SCAN)
    page = (directory / "index.md").read_text()
    assert "| [scan](#bench-scan) | 4 | 1 of 3 |" in page
    missed = section(page, "Missed")
    assert "| scan | reverse | >= 1.5 | 1.2 (1.1 to 1.3) |" in missed
    assert "| scan | random: prefetches a miss | <= 0.01 | 0.5 |" in missed and "seq" not in missed
    assert section(page, "bench-scan").count("**missed**") == 2
    svg = ElementTree.parse(directory / "scan.svg").getroot()
    # One in the plot and one in the legend.
    assert sum(e.get("class") == "missed" and "l5 5" in e.get("d", "") for e in svg.iter(f"{SVG}path")) == 2
    rows = [r for r in SCAN["rows"] if r["met"] is not False]
    page = (rendered(build, {**SCAN, "rows": rows}) / "index.md").read_text()
    assert "No target was missed." in page and "**missed**" not in page


def test_what_is_not_the_whole_says_so(build):
    directory = rendered(build, {**SCAN, "complete": False, "knobs": {"ONLY": "seq", "RUNS": "1"}})
    page = (directory / "index.md").read_text()
    assert "Not the whole: stopped before its end; ONLY=seq RUNS=1." in section(page, "bench-scan")


def test_plots(build):
    """Small, well-formed, named, readable in light and dark; all that has a ratio is in them."""
    directory = rendered(build, APPS, "apps")
    many = [row(f"a program with a name of some length, number {i}", 1 + i / 100, 1.0, 2 + i / 100, ">= 1.1", i > 10)
            for i in range(300)]
    rendered(build, result(*many), "prefetch")
    rendered(build, SCAN)
    plots = sorted(directory.glob("*.svg"))
    assert [p.name for p in plots] == ["apps-2-cpu.svg", *(f"prefetch-{i}.svg" for i in range(1, 6)),
                                       "scan.svg"]
    page = (directory / "index.md").read_text()
    texts = []
    for path in plots:
        assert path.stat().st_size < 60 << 10 and f"]({path.name})" in page
        assert "prefers-color-scheme: dark" in path.read_text()
        root = ElementTree.parse(path).getroot()
        assert root.find(f"{SVG}title").text
        width = float(root.get("width"))
        for e in root.iter(f"{SVG}circle"):
            assert 0 < float(e.get("cx")) < width
        texts += [e.text for e in root.iter(f"{SVG}text")]
    assert sum("a program with" in t for t in texts) == 300
    assert texts.count("sqlite3, 50 %") == 1    # zram is on the same line
    assert texts.count("against zram") == 1
    # A plot that is no longer made goes.
    rendered(build, result(many[0]), "prefetch")
    assert {p.name for p in directory.glob("prefetch*.svg")} == {"prefetch.svg"}


@pytest.mark.parametrize("text, at", [(">= 1.5", 1.5), ("<= 2.5", 2.5), ("interval not below 0.98", 0.98),
                                      (">= 1 / 1.05", 1 / 1.05), ("adds <= 2%", None), ("within 20%", None),
                                      (None, None)])
def test_targets_on_the_axis(text, at):
    assert dots.target_of(text) == at


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
    directory = rendered(build, SCAN)
    before = contents(directory)
    (build / "scan.json").unlink()
    other = {**APPS, "cpu": "Another"}
    (build / "apps.json").write_text(json.dumps(other))
    done = render(build)
    assert done.returncode == 1 and "MACHINE=NAME" in done.stdout and "Another" in done.stdout
    assert contents(directory) == before
    assert "Another" in (rendered(build, other, "apps", MACHINE="desk") / "index.md").read_text()
    assert contents(directory) == before


def test_newer_results_stay(build):
    """What lies in build/ from before does not replace what was kept since."""
    directory = rendered(build, {**SCAN, "date": "2026-02-01T00:00Z"})
    rendered(build, SCAN)
    assert "2026-02-01 00:00" in (directory / "index.md").read_text()


def test_results_in_the_tree_are_as_rendered(tmp_path):
    """docs/results is what its JSON says, and every benchmark is one that there is."""
    kept = machine.REPO / "docs" / "results"
    for page in kept.glob("*/index.md"):
        copied = tmp_path / page.parent.name
        copied.mkdir()
        for path in page.parent.glob("*.json"):
            (copied / path.name).write_bytes(path.read_bytes())
    done = subprocess.run([BENCH / "render.py", "--directory", tmp_path / "none", "-o", tmp_path],
                          env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
    for page in kept.glob("*/index.md"):
        assert contents(tmp_path / page.parent.name) == contents(page.parent), \
            f"{page.parent}: make bench-results makes it again"
