#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Compares `ebbctl advise` with measurements: records programs with FLOOR= (25) per cent of the
memory they need, then runs them with PERCENTS= (75,50) of it under POLICIES=, RUNS= (3) times.
Checks the predicted misses and the recommended policy.
"""
import os
import statistics
import sys

import measure
import road
import workloads
from road import parts

DEVICE = 1 << 30
INPUTS = road.REPO / "build" / "demo" / "input"
# Allowed error of predicted misses, and of the recommended policy's time over the best one's.
NEAR, AS_GOOD = 0.2, 0.05


def advise(workload, percents, floor):
    return parts.ebbctl_json("advise", "--sizes", ",".join(map(str, percents)), "--floor", floor, "--",
                             *workload.argv(INPUTS), timeout=2 * road.RUN_SECONDS)


def by_policy(size):
    return {p["policy"]: p for p in size["policies"]}


def misses_row(workload, size, answer, outcomes, cluster):
    said = by_policy(size)["none"]
    counted = statistics.median(o.stats["misses"] for o in outcomes)

    def over_counted(misses):
        return measure.rounded(misses / counted) if counted else None

    return {"name": f"{workload.name}, {size['percent']} %, page-cluster {cluster}: misses predicted",
            "params": {"workload": workload.name, "local_percent": size["percent"],
                       "recorded_mib": answer["recorded"]["memory"] >> 20,
                       "recorded_misses": answer["recorded"]["misses"],
                       "needed_mib": answer["needed"] >> 20, "page_cluster": cluster},
            "baseline": counted, "ebb": said["misses"], "unit": "misses",
            # A ratio of 0 has no logarithm to draw.
            "ratio": over_counted(said["misses"]) or None, "low": over_counted(said["misses_low"]),
            "high": over_counted(said["misses_high"]),
            "runs": len(outcomes), "target": f"within {NEAR:.0%}",
            "met": abs(said["misses"] - counted) <= NEAR * counted}


def best_row(workload, size, answer, taken, cluster):
    """Compares the recommended policy with the fastest, in the rounds of both."""
    seconds = {p: statistics.median(o.seconds for o in runs) for p, runs in taken.items()}
    best, chosen = min(seconds, key=seconds.get), size["best"]
    return measure.row(
        f"{workload.name}, {size['percent']} %, page-cluster {cluster}: {chosen} against {best}",
        {"workload": workload.name, "local_percent": size["percent"], "page_cluster": cluster,
         "seconds": {p: measure.rounded(s) for p, s in seconds.items()},
         "slowdown_predicted": {p: said["slowdown"] for p, said in by_policy(size).items()},
         "slowdown_measured": {p: measure.rounded(s / answer["seconds"]) for p, s in seconds.items()}},
        [o.seconds for o in taken[best]], [o.seconds for o in taken[chosen]], "s",
        f"best or within {AS_GOOD:.0%}", lambda ratio, low, high: ratio * (1 + AS_GOOD) >= 1)


def compare(r, workload, percents, floor, policies, cluster):
    workload.prepare(INPUTS)
    with measure.page_cluster(cluster):
        answer = advise(workload, percents, floor)
        rows = []
        for size in answer["sizes"]:
            wanted = list(dict.fromkeys(["none", size["best"], *policies]))
            taken = {p: [] for p in wanted}
            for i in range(measure.runs(3)):
                for policy in wanted[i % len(wanted):] + wanted[:i % len(wanted)]:
                    taken[policy].append(r.run(workload, INPUTS, size["memory"], policy))
            rows += [misses_row(workload, size, answer, taken["none"], cluster),
                     best_row(workload, size, answer, taken, cluster)]
            road.say(f"{workload.name:<16} {size['percent']:>3} %  misses {rows[-2]['ebb']} for "
                     f"{rows[-2]['baseline']}, {rows[-1]['name'].rpartition(': ')[2]}")
    return rows


def bench():
    chosen = workloads.choose(os.environ.get("ONLY"), workloads.DEMO + workloads.RANDOM)
    percents = [int(p) for p in (os.environ.get("PERCENTS") or "75,50").split(",")]
    policies = (os.environ.get("POLICIES") or "auto,leap,streams,replay").split(",")
    floor = int(os.environ.get("FLOOR") or 25)
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH,
                       sorted({w.needs for w in chosen}))
    INPUTS.mkdir(parents=True, exist_ok=True)
    with road.Road(measure.BENCH, DEVICE) as r:
        for workload in chosen:
            for cluster in (0, 3):
                try:
                    rows = compare(r, workload, percents, floor, policies, cluster)
                except (road.OutOfMemory, parts.Failed) as e:
                    road.say(f"without {workload.name}, page-cluster {cluster}: {e}")
                    continue
                yield from rows


if __name__ == "__main__":
    sys.exit(measure.main("advise", bench))
