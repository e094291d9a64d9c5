#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
docs/results/KERNEL/ from build/bench/*.json: the figures, a table and a plot for each
benchmark, and what missed its target.  The JSON is kept beside them, so that measuring one
benchmark anew leaves the others, and pages can be made anew from it.  MACHINE=NAME: another name
than the kernel's, for a second machine with the same one.
"""
import argparse
import collections
import datetime
import json
import os
import re
import sys
from pathlib import Path

import benches
import dots
import measure
import road

RESULTS = road.REPO / "docs" / "results"
ROWS_A_PLOT = 70
PLOT_BYTES = 60 << 10
ROW = ("name", "params", "baseline", "ebb", "unit", "ratio", "low", "high", "runs", "target", "met")
MACHINE = ("cpu", "cpus", "virtual", "memory_mib")
NEITHER = {True: "all of it", False: "how was not recorded"}
MADE = "<!-- Made by tests/bench/render.py from the JSON beside it; `make bench-results` makes it again. -->"


class Bad(Exception):
    """What cannot be rendered, why, and what to do."""


# --- what was measured -----------------------------------------------------

def wrong(told):
    """What of a result is not as docs/benchmarks.md says, or None."""
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
    """{Bench: result} of a directory, in the order of benches.ALL."""
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
    """What older ones do not say.  What is below build/ was measured here."""
    facts = measure.machine_facts()
    if "cpu" not in told and told["kernel"] == facts["kernel"] and told["cpus"] == facts["cpus"]:
        told.update({k: facts[k] for k in MACHINE})
    if "date" not in told:
        at = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc)
        told["date"] = at.strftime("%Y-%m-%dT%H:%MZ")
    return told


def kept_text(told):
    """A row a line, so that a change shows as one."""
    head = {k: v for k, v in told.items() if k != "rows"}
    rows = ",\n".join("  " + json.dumps(r, ensure_ascii=False) for r in told["rows"])
    return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "rows": [\n{rows}\n ]\n}}\n'


def same_machine(a, b):
    return all(a.get(k) == b.get(k) for k in ("cpu", "cpus") if k in a and k in b)


def adopt(source, results, name):
    """Copies what was measured to where it is kept; all of it or nothing."""
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


# --- plots -----------------------------------------------------------------

def kind_of(row):
    return {True: "met", False: "missed", None: "plain"}[row["met"]]


def dot_of(row, kind=None):
    return dots.Dot(row["ratio"], row["low"], row["high"], kind or kind_of(row),
                    dots.target_of(row["target"]))


def plots_of_apps(rows):
    """A line for each program and size; zram, where it ran, beside the kernel's readahead."""
    for cpus in dict.fromkeys(r["params"]["cpus"] for r in rows):
        lines, before = {}, None
        for r in (r for r in rows if r["params"]["cpus"] == cpus and r["ratio"]):
            p = r["params"]
            key = p["workload"], p["local_percent"]
            if key not in lines:
                lines[key] = dots.Row(f"{key[0]}, {key[1]} %", begins=key[0] != before)
                before = key[0]
            lines[key].dots.append(dot_of(r, "other" if p["against"] == "zram" else None))
        yield (f"{cpus}-cpu", f"programs on {cpus} CPU{'s' if cpus > 1 else ''}, against the kernel's readahead",
               list(lines.values()))


def plots_of(bench, rows):
    """(suffix, title, lines) of each plot."""
    if bench.name == "apps":
        yield from plots_of_apps(rows)
        return
    lines = [dots.Row(r["name"], [dot_of(r)]) for r in rows if r["ratio"] is not None]
    parts = -(-len(lines) // ROWS_A_PLOT)
    for i in range(parts):
        part = f", part {i + 1} of {parts}" if parts > 1 else ""
        yield (f"{i + 1}" if parts > 1 else "", f"bench-{bench.name}{part}",
               lines[i * len(lines) // parts:(i + 1) * len(lines) // parts])


def draw(bench, told):
    """{file name: text}"""
    drawn = {}
    for suffix, title, lines in plots_of(bench, told["rows"]):
        if lines:
            name = "-".join(filter(None, [bench.name, suffix])) + ".svg"
            drawn[name] = dots.draw(title, bench.axis, lines)
            if len(drawn[name]) > PLOT_BYTES:
                raise Bad(f"{name}: {len(drawn[name])} bytes, and pages are to stay small; "
                          "lower ROWS_A_PLOT in tests/bench/render.py")
    return drawn


# --- pages -----------------------------------------------------------------

def cell(value):
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def interval(row):
    return f"{cell(row['low'])} to {cell(row['high'])}" if row["low"] is not None else ""


def line(*cells):
    return "| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |"


def verdict(row):
    return {True: "met", False: "**missed**", None: ""}[row["met"]]


def table(head, rows):
    return [line(*head), line(*["---"] * len(head)), *(line(*r) for r in rows), ""]


def targets(told):
    """(judged, missed rows)"""
    return ([r for r in told["rows"] if r["met"] is not None],
            [r for r in told["rows"] if r["met"] is False])


def whole(run):
    """What is to be known about how it was run, or nothing."""
    said = []
    if not run.get("complete", True):
        said.append("stopped before its end")
    if run.get("knobs"):
        said.append(" ".join(f"{k}={v}" for k, v in run["knobs"].items()))
    return "; ".join(said)


def runs_of(told):
    """[(a run, how many rows are its)], the last one first."""
    of = collections.Counter(r.get("measured") for r in told["rows"])
    return [(told, of[None]), *((run, of[run["date"]]) for run in reversed(told.get("earlier", [])))]


def parts(told):
    """How each of several runs was, or how the only one was if it was not the whole."""
    runs = runs_of(told)
    if len(runs) == 1:
        return whole(told)
    return "<br>".join(f"{n} rows {when(run)}: {whole(run) or NEITHER['knobs' in run]}" for run, n in runs)


def when(run):
    return run["date"].replace("T", " ").replace("Z", " UTC") if "date" in run else ""


def took(told):
    seconds = sum(run.get("seconds") or 0 for run, _ in runs_of(told))
    return f"{seconds / 60:.0f} min" if seconds else ""


def section(bench, told, plots):
    judged, missed = targets(told)
    lines = [f"## {bench.goal}", "", bench.question[0].upper() + bench.question[1:]]
    if bench.method:
        lines[-1] += f" [How it is measured](../../benchmarks.md#{bench.method})."
    lines.append("")
    if judged:
        lines += [f"{len(judged) - len(missed)} of {len(judged)} targets met.", ""]
    if parts(told):
        lines += [f"Not the whole: {parts(told)}.", ""]
    lines += [line_ for name in plots for line_ in
              (f"![Ratios of {bench.goal}, the same as in the table]({name})", "")]
    also = [k for k in bench.also if any(k in r["params"] for r in told["rows"])]
    head = ["what", "baseline", "ebb", "unit", "ratio", "95 % interval", "runs",
            *(k.replace("_", " ") for k in also), "target", ""]
    return lines + table(head, [
        (r["name"], cell(r["baseline"]), cell(r["ebb"]), r["unit"], cell(r["ratio"]), interval(r),
         r["runs"], *(cell(r["params"].get(k)) for k in also), r["target"] or "", verdict(r))
        for r in told["rows"]])


def machine_lines(found):
    told = next((t for t in found.values() if "cpu" in t), next(iter(found.values())))
    virtual = {True: " (virtual)", False: "", None: ""}[told.get("virtual")]
    memory = f"{told['memory_mib'] / 1024:.1f} GiB" if "memory_mib" in told else "not recorded"
    return table(("machine", ""), [("kernel", "Linux " + told["kernel"]),
                                   ("processors", f"{told['cpus']}{virtual}, {told.get('cpu', 'not recorded')}"),
                                   ("memory", memory)])


def overview(found):
    rows = []
    for bench, told in found.items():
        judged, missed = targets(told)
        rows.append((f"[{bench.name}](#{bench.goal})", len(told["rows"]),
                     f"{len(judged) - len(missed)} of {len(judged)}" if judged else "none set",
                     when(told), told.get("commit") or "not recorded", took(told), parts(told)))
    return table(("benchmark", "rows", "targets met", "measured", "commit", "took", "not the whole"), rows)


def missed_lines(found):
    rows = [(bench.name, r["name"], r["target"],
             f"{cell(r['ratio'])} ({interval(r)})" if r["low"] is not None else
             cell(r["ratio"] if r["ratio"] is not None else r["ebb"]))
            for bench, told in found.items() for r in targets(told)[1]]
    if not rows:
        return ["No target was missed.", ""]
    return ["## Missed", "", *table(("benchmark", "what", "target", "measured"), rows)]


def index(name, found, plots):
    lines = [f"# Results: {name}", "", MADE, "", *machine_lines(found),
             "A ratio above 1 means that ebb is better, but where a plot says otherwise. Medians, and intervals "
             "of 95 %: [the method](../../benchmarks.md#method).", "",
             *overview(found), *missed_lines(found)]
    for bench, told in found.items():
        lines += section(bench, told, plots[bench])
    return "\n".join(lines).rstrip("\n") + "\n"


def render(directory):
    """Writes a directory's page and plots; plots that are no longer made go."""
    found = results_in(directory)
    drawn = {bench: draw(bench, told) for bench, told in found.items()}
    files = {name: text for plots in drawn.values() for name, text in plots.items()}
    files["index.md"] = index(directory.name, found, drawn)
    for old in directory.glob("*.svg"):
        if old.name not in files:
            old.unlink()
    for name, text in files.items():
        (directory / name).write_text(text)
    judged = [r for told in found.values() for r in targets(told)[0]]
    missed = sum(not r["met"] for r in judged)
    road.say(f"{directory / 'index.md'}: {len(found)} benchmarks, "
             f"{len(judged) - missed} of {len(judged)} targets met, {missed} missed")


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
        kept = sorted({path.parent for path in options.output.glob("*/*.json")})
        if not kept:
            raise Bad(f"{options.directory}: has no results; run sudo make bench, or a single make bench-NAME")
        for directory in kept:
            render(directory)
    except (Bad, OSError) as e:
        road.say(f"bench-results: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
