#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Writes docs/results/README.md, one page for all measured machines.  First copies build/bench/*.json
to docs/results/KERNEL/: the page is made only from these copies, so that one benchmark can be
measured again without the others.  MACHINE=NAME names the directory of a second machine with the
same kernel.
"""
import argparse
import collections
import datetime
import json
import math
import os
import re
import statistics
import sys
from pathlib import Path

import benches
import gc_table
import measure
import road
import workloads

RESULTS = road.REPO / "docs" / "results"
PAGE = "README.md"
ROW = ("name", "params", "baseline", "ebb", "unit", "ratio", "low", "high", "runs", "target", "met")
MACHINE = ("cpu", "cpus", "virtual", "memory_mib")
POOLED = ["Rows over several programs have one ratio of each program. *pooled*: measured before, over all "
          "pairs of runs, of which", "those of one program are not independent: the interval is too narrow.", ""]
# A target of no harm, also as earlier results named it.
NO_HARM = re.compile(f"(?:{measure.NOT_BELOW}|interval includes )([\\d.]+)(?: or better)?")
NEITHER = {True: "complete", False: "options not recorded"}
INTRODUCTION = """# Benchmark results

<!-- Rendered by tests/bench/render.py from the JSON files below this directory: `make bench-results`. -->

A ratio above 1 means that ebb is better, unless the benchmark says otherwise. Values are medians;
intervals are 95 % confidence intervals: see [the method](../benchmarks.md#method). The tables show
rows that have a target, missed ones included. `KERNEL/NAME.json` has all rows, with coverage, CPU
time and parameters.

*Interval not below 0.98* and the like: met if the whole interval is at or above that number, missed
if all of it is below, otherwise **not decided**: noise neither meets nor misses a target. Without an
interval neither it nor a target of bench-heap is decided. This page applies these rules also to
results measured before them, whose JSON may say `met`.

Compare ratios between machines, not times: donor, program and ebb share one machine.
"""


class Bad(Exception):
    """A result that cannot be rendered: THING: CAUSE; REMEDY."""


# --- results ---------------------------------------------------------------

def wrong(told):
    """Returns how a result violates tests/bench/methods.md, or None."""
    if not isinstance(told, dict) or not isinstance(told.get("kernel"), str):
        return "names no kernel"
    if not re.fullmatch(r"[\w.+~-]+", told["kernel"]) or told["kernel"].startswith("."):
        return f"'{told['kernel']}' is no kernel's name"
    rows = told.get("rows")
    if not isinstance(rows, list) or not rows:
        return "has no rows"
    for i, row in enumerate(rows, 1):
        missing = [k for k in ROW if k not in row] if isinstance(row, dict) else ROW
        if missing:
            return f"row {i} has no {', '.join(missing)}"
        for key in ("baseline", "ebb", "ratio", "low", "high"):
            if row[key] is not None and not isinstance(row[key], (int, float)):
                return f"row {i}: {key} is no number"
        if row["met"] not in (True, False, None) or not isinstance(row["params"], dict):
            return f"row {i}: met or params is of another kind"
        if row["ratio"] is not None and row["ratio"] <= 0:
            return f"row {i}: a ratio of {row['ratio']}"
        if row.get("measured") not in (None, *(run.get("date") for run in told.get("earlier", []))):
            return f"row {i}: nothing is known of its run of {row['measured']}"
    return None


def load(path):
    remedy = f"run make bench-{path.stem} again, or remove it"
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise Bad(f"{path}: {e}; {remedy}") from None
    problem = wrong(told)
    if problem:
        raise Bad(f"{path}: {problem}; {remedy}")
    return told


def results_in(directory):
    """Returns {Bench: result} of a directory, sorted as benches.ALL."""
    found, bad = {}, []
    for bench in benches.ALL:
        path = directory / f"{bench.name}.json"
        if path.exists():
            try:
                found[bench] = load(path)
            except Bad as e:
                bad.append(str(e))
    if bad:
        raise Bad("\n".join(bad))
    return found


def complete(told, path):
    """Adds members that older results lack.  Results below build/ were measured on this machine."""
    facts = measure.machine_facts()
    if "cpu" not in told and told["kernel"] == facts["kernel"] and told["cpus"] == facts["cpus"]:
        told.update({k: facts[k] for k in MACHINE})
    if "date" not in told:
        at = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
        told["date"] = at.strftime("%Y-%m-%dT%H:%MZ")
    return told


def kept_text(told):
    """Returns the JSON with one line per row, for readable diffs."""
    head = {k: v for k, v in told.items() if k != "rows"}
    rows = ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in told["rows"])
    return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n'


def same_machine(a, b):
    return all(a.get(k) == b.get(k) for k in ("cpu", "cpus") if k in a and k in b)


def adopt(source, results, name):
    """Copies results to docs/results, all or none."""
    copies = []
    for bench, told in results_in(source).items():
        told = complete(told, source / f"{bench.name}.json")
        directory = results / (name or told["kernel"])
        kept = results_in(directory)
        others = [k for k in kept.values() if not same_machine(k, told)]
        if others:
            raise Bad(f"{directory}: is a machine's with {others[0]['cpus']} x {others[0].get('cpu')}, "
                      f"not {told['cpus']} x {told.get('cpu')}; name this one's: make bench-results MACHINE=NAME")
        if bench not in kept or kept[bench].get("date", "") <= told["date"]:
            copies.append((directory / f"{bench.name}.json", kept_text(told)))
    for path, text in copies:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# --- the page --------------------------------------------------------------

def cell(value):
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def interval(row):
    if row["low"] is None:
        return ""
    return f"{cell(row['low'])} to {cell(row['high'])}{', pooled' if row.get('pooled') else ''}"


def line(*cells):
    return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"


def verdict(row):
    return measure.verdict(row).replace("missed", "**missed**")


def table(head, rows):
    return [line(*head), line(*["---"] * len(head)), *(line(*r) for r in rows), ""]


def targets(told):
    """Returns (rows with a target, missed rows)."""
    return ([r for r in told["rows"] if r["target"]],
            [r for r in told["rows"] if r["met"] is False])


def judged_again(told):
    """
    Returns the result by today's rules.  Earlier ones counted any interval that reached the bound
    as no harm, one replay of bench-heap as a measurement, and rounds of one program as independent
    of each other in rows over several programs.
    """
    rows = [dict(row) for row in told["rows"]]
    for row in rows:
        some = row["params"].get("programs")
        if isinstance(some, int) and some > 1 and row["low"] is not None and "interval_over" not in row["params"]:
            row.update(over_programs(row, told["rows"]))
        bound = NO_HARM.fullmatch(row["target"] or "")
        if bound:
            row["met"] = measure.decided(float(bound[1]), row["low"], row["high"])
        elif row["low"] is None and "baseline_is" in row["params"]:
            row["met"] = None
    return {**told, "rows": rows}


# What tells rows of bench-gc of one run apart from those of another, besides their names.
KIND = ("live_mib", "donor", "threads", "markers", "regime")


def over_programs(row, rows):
    """
    Returns the members of a row over several programs that the programs' own rows among @rows
    change; those have the mean ratio of each.  Rows that these do not add up to keep the interval
    over pairs, and say so.
    """
    def kind(r):
        return (r.get("measured"), *(r["params"].get(k) for k in KIND))

    suffix = row["name"].split(", ", 1)[1]
    of = [r for r in rows if r["ratio"] and kind(r) == kind(row)
          and r["name"] == f"{r['params'].get('program')}, {suffix}" and r["params"]["program"] not in gc_table.WEAK]
    logs = [math.log(r["ratio"]) * r["runs"] for r in of]
    if len(of) < 2 or sum(r["runs"] for r in of) != row["runs"] or \
            abs(sum(logs) / row["runs"] - math.log(row["ratio"])) > 0.001:
        return {"pooled": True}
    ratio, low, high = measure.over_programs([r["ratio"] for r in of])
    found = {"ratio": ratio, "low": low, "high": high}
    if row["met"] is not None:
        found["met"] = ratio >= float(row["target"].removeprefix(">= "))
    return found


def whole(run):
    """Returns the text on knobs and interruptions of a run, or nothing."""
    said = []
    if not run.get("complete", True):
        said.append("stopped before its end")
    if run.get("knobs"):
        said.append(" ".join(f"{k}={v}" for k, v in run["knobs"].items()))
    return "; ".join(said)


def runs_of(told):
    """Returns [(run, number of its rows)], the last run first."""
    of = collections.Counter(r.get("measured") for r in told["rows"])
    return [(told, of[None]), *((run, of[run["date"]]) for run in reversed(told.get("earlier", [])))]


def parts(told):
    """Returns the texts of several runs, or of the only one if it was partial."""
    runs = runs_of(told)
    if len(runs) == 1:
        return whole(told)
    return "<br>".join(f"{n} rows {when(run)}: {whole(run) or NEITHER['knobs' in run]}" for run, n in runs)


def when(run):
    return run["date"].replace("T", " ").replace("Z", " UTC") if "date" in run else ""


def took(told):
    seconds = sum(run.get("seconds") or 0 for run, _ in runs_of(told))
    return f"{seconds / 60:.0f} min" if seconds else ""


def programs(told):
    """Returns geometric means of bench-apps: demo's programs, and those with random accesses."""
    groups = (("the six of the demo", workloads.DEMO), ("random accesses", workloads.RANDOM))
    rows = []
    for cpus in sorted({r["params"]["cpus"] for r in told["rows"]}, reverse=True):
        for text, some in groups:
            names = {w.name for w in some}
            of = {r["name"]: r["ratio"] for r in told["rows"]
                  if r["ratio"] and r["params"]["workload"] in names and r["params"]["cpus"] == cpus
                  and r["params"]["local_percent"] in (50, 25)
                  and r["params"]["against"] == "kernel readahead"}
            if of:
                worst = min(of, key=of.get)
                rows.append((text, cpus, len(of),
                             cell(math.exp(statistics.fmean(map(math.log, of.values())))),
                             f"{cell(of[worst])} ({worst.split(',')[0]})", cell(max(of.values()))))
    return table(("programs at 50 % and 25 % memory", "CPUs", "rows", "geometric mean", "worst",
                  "best"), rows) if rows else []


def section(bench, told):
    judged = targets(told)[0]
    lines = [f"### {bench.goal}", "", bench.question[0].upper() + bench.question[1:]]
    if bench.method:
        page = "../benchmarks.md" if bench.method == "method" else "../../tests/bench/methods.md"
        lines[-1] += f" [Method]({page}#{bench.method})."
    if bench.ratio:
        lines[-1] += f" Ratio: {bench.ratio}."
    lines += ["", f"{measure.summary(judged)}.", ""]
    if bench.name == "apps":
        lines += programs(told)
    if any(r.get("pooled") for r in judged):
        lines += POOLED
    return lines + table(("what", "baseline", "ebb", "unit", "ratio", "95 % interval", "runs", "target", ""), [
        (r["name"], cell(r["baseline"]), cell(r["ebb"]), r["unit"], cell(r["ratio"]), interval(r),
         r["runs"], r["target"] or "", verdict(r)) for r in judged])


def machine_line(found):
    told = next((t for t in found.values() if "cpu" in t), next(iter(found.values())))
    virtual = "virtual " if told.get("virtual") else ""
    memory = f"{told['memory_mib'] / 1024:.1f} GiB" if "memory_mib" in told else "size not recorded"
    return f"Linux {told['kernel']}, {told['cpus']} {virtual}CPUs ({told.get('cpu', 'model not recorded')}), memory: {memory}."


def overview(found):
    rows = []
    for bench, told in found.items():
        met = measure.summary(told["rows"]).replace(" targets met", "")
        rows.append((bench.name, len(told["rows"]), "none set" if met == "no targets" else met,
                     when(told), told.get("commit") or "not recorded", took(told), parts(told)))
    return table(("benchmark", "rows", "targets met", "measured", "commit", "took", "not complete"), rows)


def missed_lines(found):
    rows = [(bench.name, r["name"], r["target"],
             f"{cell(r['ratio'])} ({interval(r)})" if r["low"] is not None else
             cell(r["ratio"] if r["ratio"] is not None else r["ebb"]))
            for bench, told in found.items() for r in targets(told)[1]]
    if not rows:
        return ["No target was missed.", ""]
    return ["Missed targets:", "", *table(("benchmark", "what", "target", "measured"), rows)]


def machine(name, found):
    lines = [f"## {name}", "", machine_line(found), "", *overview(found), *missed_lines(found)]
    for bench, told in found.items():
        if targets(told)[0]:
            lines += section(bench, told)
    return lines


def render(results):
    """Writes the page of all machines below @results, the machine with most benchmarks first."""
    kept = {path.parent: {b: judged_again(t) for b, t in results_in(path.parent).items()}
            for path in sorted(results.glob("*/*.json"))}
    if not any(kept.values()):
        return False
    order = sorted((d for d in kept if kept[d]), key=lambda d: (-len(kept[d]), d.name))
    lines = [INTRODUCTION, *(line_ for d in order for line_ in machine(d.name, kept[d]))]
    (results / PAGE).write_text("\n".join(lines).rstrip("\n") + "\n")
    rows = [r for d in order for told in kept[d].values() for r in told["rows"]]
    missed = sum(r["met"] is False for r in rows)
    road.say(f"{results / PAGE}: {len(order)} machines, {measure.summary(rows)}, {missed} missed")
    return True


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--directory", type=Path, default=measure.BENCH, help="where the JSON is")
    p.add_argument("-o", "--output", type=Path, default=RESULTS, help="where results are kept")
    options = p.parse_args()
    try:
        name = os.environ.get("MACHINE")
        if name and not re.fullmatch(r"\w[\w.+~-]*", name):
            raise Bad(f"MACHINE={name}: is no name for a directory; use letters, digits and .+~-")
        adopt(options.directory, options.output, name)
        if not render(options.output):
            raise Bad(f"{options.directory}: has no results; run sudo make bench, or a single make bench-NAME")
    except (Bad, OSError) as e:
        road.say(f"bench-results: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
