#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures the gain by latency of the device: the donor delays every read by DELAYS=
(0,5,20,50,100,500) us.  Programs, modes and knobs as in bench-prefetch, with a few programs
unless ONLY= is set, of MIB= (32) MiB at PERCENTS= (50).
"""
import math
import statistics
import sys

import contest
import measure
import prefetch
import road

# One program of each access pattern, and one without.
CHOSEN = "seq,stride:7,sum:3,chase,uniform"
QUIET = 0.01


def gains(point):
    """Returns whether the whole interval is above 1; a single run has none."""
    _, _, low = point
    return low is not None and low > 1


def told(points, at):
    """Returns the words for crossover()'s result @at, of the same @points."""
    if any(low is None for _, _, low in points):
        return "not decided: a single run has no interval"
    if at is None:
        return "gains at some latencies, but not at the largest" if any(map(gains, points)) \
            else "no gain at any latency"
    if at <= points[0][0]:
        return f"gains from the device's own {at:.0f} us on"
    below = any(gains(p) for p in points if p[0] < at)
    return f"gains from {at:.0f} us on" + (", and at some below: not monotonic" if below else "")


def crossover(points):
    """
    Returns the latency from which on there is a gain, for @points [(us, ratio, low)] sorted by
    latency: where the line through the logarithms of the ratios crosses 1, before the first of
    those points at the end whose whole intervals are above 1.  None: the last point is no gain.
    """
    i = len(points)
    while i and gains(points[i - 1]):
        i -= 1
    if i == len(points):
        return None
    x1, y1, _ = points[i]
    if not i or points[i - 1][1] >= 1:
        return x1
    x0, y0, _ = points[i - 1]
    a, b = math.log(y0), math.log(y1)
    return x0 + (x1 - x0) * -a / (b - a)


def quiet_row(c, mode, row):
    """Checks that auto requests almost nothing where nothing can be gained."""
    asked = statistics.median(r.stats["prefetched"] / max(r.stats["misses"], 1)
                              for r in c.runs[mode])
    return {**measure.share_row(row["name"].split(":")[0] + ": auto, prefetches a miss",
                                row["params"], [asked], 0),
            "runs": len(c.runs[mode]), "target": f"<= {QUIET}", "met": asked <= QUIET}


def crossover_row(load, percent, group, points):
    """@points: [(us of a miss, us of delay, row)]"""
    by_latency = sorted(((miss, row["ratio"], row["low"]) for miss, _, row in points),
                        key=lambda p: p[0])
    at = crossover(by_latency)
    said = told(by_latency, at)
    road.say(f"{load.name:<20} {percent:>3} %  {group:<6} {said}")
    return {"name": f"{load.name} {percent} %: {group}, crossover", "baseline": None,
            "params": {"workload": load.name, "local_percent": percent, "mode": group, "said": said,
                       "points": [{"miss_us": measure.rounded(m), "delay_us": d,
                                   "ratio": row["ratio"]} for m, d, row in points]},
            "ebb": measure.rounded(at), "unit": "us a miss", "ratio": None, "low": None,
            "high": None, "runs": len(points), "target": None, "met": None}


class Curve:
    """Collects [(us of a miss, us of delay, row)] of each load, percentage and mode."""

    def __init__(self):
        self.points = {}

    def add(self, c, delay):
        rows = c.lost_rows()
        kernel = c.best("kernel")
        if not kernel:
            return rows
        # With or without readahead, a miss waits for one read of the device.
        miss = c.params(kernel)["miss_us"] or 0
        for group in ("leap", "best", "auto"):
            mode = c.best(group)
            if not mode:
                continue
            row = c.row(mode, f"{c.title()} +{delay} us")
            row["params"]["delay_us"] = delay
            rows.append(row)
            self.points.setdefault((c.load, c.percent, group), []).append(
                (miss, delay, row))
            if group == "auto" and (row["high"] or row["ratio"]) < 1:
                rows.append(quiet_row(c, mode, row))
        return rows

    def rows(self):
        return [crossover_row(load, percent, group, points)
                for (load, percent, group), points in self.points.items()]


def bench():
    if prefetch.DONOR != "tcp":
        raise road.Failure(f"DONOR={prefetch.DONOR}: a donor can hold back only what it answers "
                           "itself; use DONOR=tcp")
    chosen, sizes = prefetch.choose(CHOSEN), prefetch.numbers("MIB", "32")
    percents = prefetch.numbers("PERCENTS", "50")
    delays = prefetch.numbers("DELAYS", "0,5,20,50,100,500")
    size = prefetch.device_size(chosen, sizes, percents)
    prefetch.check(chosen, size)
    curve = Curve()
    digests = {(load, mib): prefetch.digest_of(load, mib) for load in chosen for mib in sizes[:1]}
    for delay in sorted(delays):
        road.say(f"the donor answers after an extra {delay} us")
        with road.Road(measure.BENCH, size, delay=f"{delay}us" if delay else None) as r:
            known = contest.policies()
            contest.say_missing(known)
            for (load, mib), digest in digests.items():
                for percent in load.percents(percents):
                    c = contest.Contest(r, load, mib, percent, known, digest)
                    yield from curve.add(c.hold(measure.runs(5)), delay)
    yield from curve.rows()


if __name__ == "__main__":
    sys.exit(measure.main("latency", bench))
