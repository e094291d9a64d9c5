#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Compares the kernel's readahead with vm.page-cluster 3 and 0 with ebb, on page scans over
MIB= (512) MiB at half of it, RUNS= (5) interleaved rounds, on one device.
"""
import json
import os
import statistics
import sys

import measure
import road

MIB = int(os.environ.get("MIB") or 512)
PERCENT = 50
PASSES = 2
# At least four times the swapped-out bytes: past half full the kernel frees clean slots.
DEVICE = max(4 * MIB * (100 - PERCENT) // 100, 1024) << 20
SCAN = road.machine.BUILD / "tests" / "scan"
# Pattern, least speedup over the better kernel setting; None: nothing can be gained.
PATTERNS = (("seq", 1.5), ("reverse", 1.5), ("stride:7", 2.5), ("stride:64", 2.5), ("random", None))
MODES = ("readahead 3", "readahead 0", "ebb")
SHARE = 0.95
RANDOM_PREFETCHES = 0.01


class Walk:
    """A workload for Road.run()."""

    def __init__(self, pattern, told):
        self.name, self.pattern, self.told = f"scan-{pattern}", pattern, told

    def argv(self, _):
        words = f"--json --mib {MIB} --pattern {self.pattern} --passes {PASSES}"
        return road.output_to(self.told, SCAN, *words.split())


def one(r, pattern, mode):
    """Returns (us per page, ebb's counters) of one scan."""
    told = measure.BENCH / "scan-run.json"
    told.unlink(missing_ok=True)
    with measure.page_cluster(int(mode[-1]) if mode != "ebb" else None):
        outcome = r.run(Walk(pattern, told), "", (MIB << 20) * PERCENT // 100,
                        "leap" if mode == "ebb" else "none")
    report = json.loads(told.read_text())
    if report["bad"]:
        raise road.Failure(f"scan {pattern}: {report['bad']} words were wrong")
    return report["us_per_page"], outcome


def walk(r, pattern, rounds):
    times, outcomes = {m: [] for m in MODES}, []
    for i in range(rounds):
        for mode in MODES[i % 3:] + MODES[:i % 3]:
            us, outcome = one(r, pattern, mode)
            times[mode].append(us)
            if mode == "ebb":
                outcomes.append(outcome)
            road.say(f"{pattern:<10} round {i + 1}  {mode:<12} {us:8.2f} us/page")
    return times, outcomes


def rows_of(pattern, least, times, outcomes):
    better = min(MODES[:2], key=lambda m: statistics.median(times[m]))
    stats = [o.stats for o in outcomes]
    shared = {"pattern": pattern, "mib": MIB, "local_percent": PERCENT, "passes": PASSES,
              "device_over_swapped": round(DEVICE / (MIB << 20) * 100 / (100 - PERCENT), 1),
              "ebb_cpu_seconds": round(statistics.median(o.cpu for o in outcomes), 2)}
    rows = []
    for mode in MODES[:2]:
        aim, met = None, None
        if mode == better and least:
            aim, met = f">= {least}", lambda ratio, low, high: ratio >= least
        elif mode == better:
            aim, met = measure.not_below(measure.HARM)
        rows.append(measure.row(f"{pattern} against {mode}", {**shared, "baseline": mode},
                                times[mode], times["ebb"], "us/page", aim, met))
    if least:
        for what in ("coverage", "accuracy"):
            rows.append(measure.share_row(f"{pattern}: {what}", shared,
                                          [s[what] for s in stats], SHARE))
    else:
        share = statistics.median(s["prefetched"] / max(s["misses"], 1) for s in stats)
        rows.append({**measure.share_row(f"{pattern}: prefetches a miss", shared, [share], 0),
                     "runs": len(stats), "target": f"<= {RANDOM_PREFETCHES}",
                     "met": share <= RANDOM_PREFETCHES})
    return rows


def bench():
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH, [])
    if not SCAN.exists():
        raise road.Failure(f"{SCAN}: not built; run make test-programs")
    only = os.environ.get("ONLY")
    with road.Road(measure.BENCH, DEVICE) as r:
        for pattern, least in PATTERNS:
            if not only or pattern in only.split(","):
                yield from rows_of(pattern, least, *walk(r, pattern, measure.runs(5)))


if __name__ == "__main__":
    sys.exit(measure.main("scan", bench))
