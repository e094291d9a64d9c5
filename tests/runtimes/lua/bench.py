#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
bench.py DIR [--rounds N] [--small]: compares DIR/lua, which is Lua on libebbgc, with Debian's lua5.4.

The baseline of each program is the better of Lua's incremental collector, at the best of several
pauses, and its generational one, by elapsed time.  Then both run alternately.  Prints medians of
elapsed and processor seconds, and the peak of resident memory; writes all to DIR/bench.json.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Programs, their arguments, and arguments for a trial of this script.
PROGRAMS = {
    "binary_trees": (["18"], ["10"]),
    "queens": (["12"], ["6"]),
    "k_nucleotide": (["3000000"], ["20000"]),
    "cache": (["200000", "12000000"], ["500", "20000"]),
    "strings": (["80000"], ["300"]),
}
SETTINGS = [f"collectgarbage('incremental', {pause})" for pause in (100, 150, 200, 300, 400)] + [
    "collectgarbage('generational')"]
TRIALS = 3


def run(program, code, name, args):
    """Returns elapsed and processor seconds, peak MiB (at least this script's), and the output."""
    start = time.monotonic()
    child = subprocess.Popen([program, "-e", code, HERE / "bench" / f"{name}.lua", *args],
                             stdout=subprocess.PIPE)
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    elapsed = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{name}: {program} exits with status {child.returncode}")
    return {"seconds": elapsed, "processor": usage.ru_utime + usage.ru_stime,
            "mib": usage.ru_maxrss / 1024, "output": output}


def median(runs, key):
    return statistics.median(r[key] for r in runs)


def compare(ours, reference, name, args, rounds):
    """Returns the row of one program."""
    tried = {code: [run(reference, code, name, args) for _ in range(TRIALS)] for code in SETTINGS}
    best = min(tried, key=lambda code: median(tried[code], "seconds"))
    pairs = [(run(reference, best, name, args), run(ours, "", name, args)) for _ in range(rounds)]
    if len({r["output"] for pair in pairs for r in pair}) != 1:
        sys.exit(f"{name}: the outputs differ")
    row = {"program": name, "baseline": best}
    for key in ("seconds", "processor", "mib"):
        row[key] = [median([pair[i] for pair in pairs], key) for i in (0, 1)]
    row["ratio"] = statistics.median(b["seconds"] / a["seconds"] for a, b in pairs)
    return row


def main():
    options = argparse.ArgumentParser()
    options.add_argument("dir", type=Path)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--small", action="store_true")
    o = options.parse_args()
    reference = shutil.which("lua5.4") or sys.exit("lua5.4: not found; run apt-get install lua5.4")
    rows = []
    print(f"{'program':14} {'Lua s':>8} {'ebb s':>8} {'ratio':>6} {'Lua CPU':>8} {'ebb CPU':>8} "
          f"{'Lua MiB':>8} {'ebb MiB':>8}  baseline")
    for name, sizes in PROGRAMS.items():
        row = compare(o.dir / "lua", reference, name, sizes[o.small], o.rounds)
        rows.append(row)
        print(f"{name:14} {row['seconds'][0]:8.2f} {row['seconds'][1]:8.2f} {row['ratio']:6.2f} "
              f"{row['processor'][0]:8.2f} {row['processor'][1]:8.2f} {row['mib'][0]:8.0f} "
              f"{row['mib'][1]:8.0f}  {row['baseline']}", flush=True)
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    print(f"geometric mean of the ratios: {mean:.2f}")
    (o.dir / "bench.json").write_text(json.dumps({"rounds": o.rounds, "small": o.small,
                                                  "geometric_mean": mean, "programs": rows}, indent=1))


if __name__ == "__main__":
    main()
