#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Whether mapping what was fetched before the program gets there pays: page walks over MIB=
(128) MiB at half of it under the policy streams, `[prefetch] map_ahead` off and on, RUNS= (3)
interleaved rounds.  ebbd is started anew for each; ebb's processor time is beside each row.
"""
import json
import os
import statistics
import sys

import measure
import road
import scan

MIB = int(os.environ.get("MIB") or 128)
DEVICE = max(2 * MIB, 1024) << 20
PATTERNS = ("seq", "reverse", "stride:7")
MODES = ("off", "on")
POLICY = "streams"


def walk(r, pattern):
    """(us a page, outcome)"""
    told = measure.BENCH / "map-ahead-run.json"
    told.unlink(missing_ok=True)
    outcome = r.run(scan.Walk(pattern, told), "", MIB << 19, POLICY)
    report = json.loads(told.read_text())
    if report["bad"]:
        raise road.Failure(f"scan {pattern}: {report['bad']} words were wrong")
    return report["us_per_page"], outcome


def bench():
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH, [])
    scan.MIB = MIB
    times = {(p, m): [] for p in PATTERNS for m in MODES}
    outcomes = {key: [] for key in times}
    for i in range(measure.runs(3)):
        for mode in MODES[i % 2:] + MODES[:i % 2]:
            with road.Road(measure.BENCH, DEVICE, prefetch=[f"map_ahead = {mode}"]) as r:
                for pattern in PATTERNS:
                    us, outcome = walk(r, pattern)
                    times[pattern, mode].append(us)
                    outcomes[pattern, mode].append(outcome)
                    road.say(f"{pattern:<10} round {i + 1}  map_ahead {mode:<4} {us:8.2f} us/page  "
                             f"ebb {outcome.cpu:.2f} s")
    rows = []
    for pattern in PATTERNS:
        shared = {"pattern": pattern, "mib": MIB, "local_percent": 50, "policy": POLICY}
        for mode in MODES:
            of = outcomes[pattern, mode]
            shared[f"ebb_cpu_seconds_{mode}"] = round(statistics.median(o.cpu for o in of), 2)
            shared[f"coverage_{mode}"] = statistics.median(o.stats["coverage"] or 0 for o in of)
        rows.append(measure.row(f"{pattern}: mapped ahead against fetched", shared,
                                times[pattern, "off"], times[pattern, "on"], "us/page"))
    return rows


if __name__ == "__main__":
    sys.exit(measure.main("map-ahead", bench))
