# SPDX-License-Identifier: GPL-2.0-or-later
"""Paired measurements, written to build/bench/NAME.json."""
import json
import math
import os
import platform
import re
import statistics
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "demo"), str(TESTS / "harness")]

import benches
import road

BENCH = road.REPO / "build" / "bench"
AWAKE = bool(os.environ.get("AWAKE"))
# Student's t, 97.5 %, by degrees of freedom; beyond the table slightly above the normal's 1.96.
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262,
        10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131, 20: 2.086, 30: 2.042}


def t975(freedom):
    return T975[max(f for f in T975 if f <= freedom)]


def paired(baseline, ebb):
    """
    Returns (ratio, low, high): geometric mean of baseline/ebb over adjacent pairs, and its 95 %
    interval by Student's t on the logarithms.  Above 1 ebb is better.
    """
    return spread([math.log(b / e) for b, e in zip(baseline, ebb, strict=True)])


def spread(logs):
    """Returns (ratio, low, high) of independent logarithms of ratios; one has no interval."""
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = t975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def over_programs(ratios):
    """
    Returns (ratio, low, high) over programs, from the mean ratio of each, whatever its number of
    rounds: rounds of one program are no independent samples of what programs gain.
    """
    return spread([math.log(ratio) for ratio in ratios])


# What params say of rows whose interval is of over_programs().
OVER_PROGRAMS = "programs"


def by_program(baseline, ebb, programs):
    """Returns the geometric mean of baseline/ebb of each of the @programs, which name the pairs."""
    pairs = {}
    for name, b, e in zip(programs, baseline, ebb, strict=True):
        pairs.setdefault(name, ([], []))
        pairs[name][0].append(b)
        pairs[name][1].append(e)
    return [paired(*some)[0] for some in pairs.values()]


# Least share of the baseline's speed that counts as no harm.
HARM = 0.98
NOT_BELOW = "interval not below "


def decided(bound, low, high):
    """
    Returns whether a ratio is at least @bound: True if its whole interval is, False if no part of
    it is, None (not decided) in between or without an interval.  Noise thus decides nothing.
    """
    if low is None or low < bound <= high:
        return None
    return low >= bound


def not_below(bound):
    """Returns the target of row() and its decision for what must do no harm."""
    return f"{NOT_BELOW}{bound:g}", lambda ratio, low, high: decided(bound, low, high)


def row(name, params, baseline, ebb, unit, target=None, met=None, programs=None):
    """
    @baseline and @ebb are lists of paired runs; smaller is better.  @target is a text; @met
    decides it from (ratio, low, high), None: not decided.  @programs: of runs of several programs
    the name of the program of each pair.
    """
    if len(set(programs or ())) > 1:
        params = {**params, "interval_over": OVER_PROGRAMS}
        ratio, low, high = over_programs(by_program(baseline, ebb, programs))
    else:
        ratio, low, high = paired(baseline, ebb)
    decision = met(ratio, low, high) if met else None
    return {"name": name, "params": params, "baseline": rounded(statistics.median(baseline)),
            "ebb": rounded(statistics.median(ebb)), "unit": unit, "ratio": rounded(ratio),
            "low": rounded(low), "high": rounded(high), "runs": len(ebb), "target": target,
            "met": None if decision is None else bool(decision)}


def plain_row(name, params, values, unit, target=None):
    """Returns a row without a baseline: the median of @values; the caller decides the target."""
    known = [v for v in values if v is not None]
    return {"name": name, "params": params, "baseline": None,
            "ebb": rounded(statistics.median(known) if known else None), "unit": unit, "ratio": None,
            "low": None, "high": None, "runs": len(values), "target": target, "met": None}


def at_most(bound, values):
    """Returns whether positive @values, smaller being better, are at most @bound: see decided()."""
    _, low, high = paired([bound] * len(values), values)
    return decided(1, low, high)


def share_row(name, params, values, at_least):
    """Returns a row without a baseline: the median of a share, such as coverage, and its bound."""
    known = [v for v in values if v is not None]
    met = bool(known) and statistics.median(known) >= at_least
    return {**plain_row(name, params, values, "share", f">= {at_least}"), "met": met}


def rounded(value):
    return None if value is None else float(f"{value:.5g}")


RUN = ("date", "commit", "knobs", "seconds", "complete")


def kept(path, rows):
    """
    KEEP=1: returns (rows of earlier runs of other selections, which stay in the file; facts of
    these runs).  A row refers to its run by the date.
    """
    if not os.environ.get("KEEP") or not path.exists():
        return [], []
    told, again = json.loads(path.read_text()), {identity(r) for r in rows}
    left = [{**r, "measured": r.get("measured", told["date"])} for r in told["rows"]
            if identity(r) not in again]
    dates = {r["measured"] for r in left}
    runs = [*told.get("earlier", []), {k: told[k] for k in RUN}]
    return left, [run for run in runs if run["date"] in dates]


def identity(row):
    """Returns a row's identity, without the better of the kernel's settings, which varies by run."""
    return (re.sub(r" against kernel \d$", "", row["name"]),
            *(row["params"].get(k) for k in ("donor", "live_mib", "threads", "markers")))


def machine_facts():
    """Returns the facts of this machine on which results depend."""
    cpu = road.machine.read("/proc/cpuinfo")
    model = re.search(r"^(?:model name|Processor|cpu model)\s*: (.*)$", cpu, re.M)
    return {"kernel": platform.release(), "cpus": os.cpu_count(),
            "cpu": model[1].strip() if model else platform.machine(),
            "virtual": bool(re.search(r"^flags\s*:.*\bhypervisor\b", cpu, re.M)),
            "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20}


def commit():
    """Returns the tree's commit, with -dirty if it was changed; None outside of git."""
    try:
        # Under sudo another user owns the tree.
        done = subprocess.run(["git", "-c", "safe.directory=*", "-C", road.REPO, "describe",
                               "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                              capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def knobs():
    """Returns the set knobs, which mark a result as partial."""
    return {k: os.environ[k] for k in benches.KNOBS if os.environ.get(k)}


def write(name, rows, seconds, complete):
    """@complete: the benchmark was not stopped before its end."""
    BENCH.mkdir(parents=True, exist_ok=True)
    path = BENCH / f"{name}.json"
    left, earlier = kept(path, rows)
    told = {**machine_facts(), "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
            "commit": commit(), "knobs": knobs(), "seconds": round(seconds), "complete": complete,
            **({"earlier": earlier} if earlier else {}), "rows": left + rows}
    path.write_text(json.dumps(told, indent=1) + "\n")
    road.say(f"\n{path}")


def cell(value):
    return "-" if value is None else f"{value:.4g}"


def verdict(row):
    """Returns the word for a row's `met`; nothing without a target."""
    return {True: "met", False: "missed", None: "not decided" if row["target"] else ""}[row["met"]]


def summary(rows):
    """Returns how many of the targets in @rows are met, and how many are not decided."""
    judged = [r for r in rows if r["target"]]
    if not judged:
        return "no targets"
    words = [verdict(r) for r in judged]
    left = words.count("not decided")
    return f"{words.count('met')} of {len(judged)} targets met" + (f", {left} not decided" if left else "")


def show(rows):
    road.say(f"\n{'what':<44} {'baseline':>9} {'ebb':>9} {'unit':<9} {'ratio':>6}  "
             f"{'95 % interval':<15} {'runs':>4}  target")
    for r in rows:
        interval = f"{cell(r['low'])} .. {cell(r['high'])}" if r["low"] is not None else ""
        met = verdict(r).replace("missed", "MISSED")
        road.say(f"{r['name']:<44} {cell(r['baseline']):>9} {cell(r['ebb']):>9} {r['unit']:<9} "
                 f"{cell(r['ratio']):>6}  {interval:<15} {r['runs']:>4}  {r['target'] or ''} {met}")


@contextmanager
def page_cluster(value):
    """Sets vm.page-cluster of the machine, and restores it on every way out.  None keeps it."""
    before = road.PAGE_CLUSTER.read_text()
    try:
        if value is not None:
            road.PAGE_CLUSTER.write_text(str(value))
        yield
    finally:
        road.PAGE_CLUSTER.write_text(before)


def runs(at_least):
    """Returns RUNS=, or the method's minimum."""
    return max(int(os.environ.get("RUNS") or at_least), 1)


@contextmanager
def awake():
    """
    AWAKE=1: idle processors poll.  A sleeping processor, above all a virtual one, takes tens of
    microseconds to wake: most of the time, and of the noise, of a program that waits for each
    page.
    """
    if not AWAKE:
        yield
        return
    latency = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
    try:
        os.write(latency, struct.pack("i", 0))
        yield
    finally:
        os.close(latency)


def main(name, bench):
    """
    Runs @bench() -> rows with ^C handled, shows and writes them; if it yields rows, also those
    before it was stopped.
    """
    rows, status, began = [], 0, time.monotonic()
    with road.interrupts, awake():
        try:
            with road.machine.sole_run(f"bench-{name}"):
                for row in bench():
                    row["params"]["awake"] = AWAKE
                    rows.append(row)
        except road.Stopped as e:
            road.say(f"stopped by {e}; swap is off and no process is left")
            status = 130
        except (road.Failure, road.machine.MachineError, road.parts.Failed) as e:
            road.say(f"\nbench-{name}: {e}")
            status = 1
    if rows:
        show(rows)
        write(name, rows, time.monotonic() - began, not status)
    return status
