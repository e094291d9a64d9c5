#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
`ebbctl advise` against reality: programs are recorded with FLOOR= (25) per cent of the
memory they need, then run with PERCENTS= (75,50) of it under POLICIES=, RUNS= (3) times.
Does each miss what was predicted, and is the best policy what it was said to be?
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
# Predicted misses are to be this near, and the best policy as near to the one measured.
NEAR, AS_GOOD = 0.2, 0.05


def advise(workload, percents, floor):
    return parts.ebbctl_json("advise", "--sizes", ",".join(map(str, percents)), "--floor", floor, "--",
                             *workload.argv(INPUTS), timeout=2 * road.RUN_SECONDS)


def by_policy(size):
    return {p["policy"]: p for p in size["policies"]}


def misses_row(workload, size, answer, outcomes, cluster):
    said = by_policy(size)["none"]
    counted = statistics.median(o.stats["misses"] for o in outcomes)
    ratio = said["misses"] / counted if counted else None
    return {"name": f"{workload.name}, {size['percent']} %, page-cluster {cluster}: misses predicted",
            "params": {"workload": workload.name, "local_percent": size["percent"],
                       "recorded_mib": answer["recorded"]["memory"] >> 20,
                       "recorded_misses": answer["recorded"]["misses"],
                       "needed_mib": answer["needed"] >> 20, "page_cluster": cluster},
            "baseline": counted, "ebb": said["misses"], "unit": "misses",
            "ratio": measure.rounded(ratio), "low": measure.rounded(said["misses_low"] / counted) if counted else None,
            "high": measure.rounded(said["misses_high"] / counted) if counted else None,
            "runs": len(outcomes), "target": f"within {NEAR:.0%}",
            "met": ratio is not None and abs(ratio - 1) <= NEAR}


def best_row(workload, size, answer, taken, cluster):
    seconds = {p: statistics.median(o.seconds for o in runs) for p, runs in taken.items()}
    best = min(seconds, key=seconds.get)
    chosen = size["best"]
    said = by_policy(size)[chosen]["slowdown"]
    return {"name": f"{workload.name}, {size['percent']} %, page-cluster {cluster}: {chosen} against {best}",
            "params": {"workload": workload.name, "local_percent": size["percent"], "seconds": seconds,
                       "page_cluster": cluster,
                       "slowdown_predicted": said, "slowdown_measured": seconds[chosen] / answer["seconds"]},
            "baseline": measure.rounded(seconds[best]), "ebb": measure.rounded(seconds[chosen]),
            "unit": "s", "ratio": measure.rounded(seconds[best] / seconds[chosen]), "low": None,
            "high": None, "runs": min(len(runs) for runs in taken.values()),
            "target": f"best or within {AS_GOOD:.0%}",
            "met": seconds[chosen] <= seconds[best] * (1 + AS_GOOD)}


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
            rows.append(misses_row(workload, size, answer, taken["none"], cluster))
            rows.append(best_row(workload, size, answer, taken, cluster))
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
    rows = []
    with road.Road(measure.BENCH, DEVICE) as r:
        for workload in chosen:
            for cluster in (0, 3):
                try:
                    rows += compare(r, workload, percents, floor, policies, cluster)
                except (road.OutOfMemory, parts.Failed) as e:
                    road.say(f"without {workload.name}: {e}")
    return rows


if __name__ == "__main__":
    sys.exit(measure.main("advise", bench))
