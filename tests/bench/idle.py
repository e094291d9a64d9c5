#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures what ebbd costs while nothing happens, with 10, 100 and 1,000 attached cgroups (ONLY=) and
ten idle processes in each, for MINUTES= (1), and what an attach takes, RUNS= (3) times.  OLD=DIR
compares with another built tree in interleaved rounds.  No swap.
"""
import os
import statistics
import sys
import time
from pathlib import Path

import measure
import road
from road import machine, parts

import crowd

SIZES = [int(n) for n in (os.environ.get("ONLY") or "10,100,1000").split(",")]
SECONDS = 60 * float(os.environ.get("MINUTES") or 1)
EACH = 10               # processes of a cgroup
SETTLE = 15             # seconds after which nothing is busy any more
LEAST = 1e-3            # none counts as that, so that there is a ratio
# What is measured, its unit and the most that it may be.
VALUES = (("idle, CPU time", "s/min", 0.02 * 60), ("idle, system calls", "1/s", None),
          ("attach, time", "ms", 10), ("attach, system calls", "calls", None))


def sample(build, size):
    """Returns the VALUES of the ebbd of @build, which has @size cgroups attached."""
    daemon = parts.Daemon([build / "bin" / "ebbd", "--purge"], measure.BENCH / "log" / "ebbd-idle.log")
    try:
        with crowd.Crowd() as there:
            directories = there.grow(size)
            # The last ten, beside the others.
            crowd.attach(directories[:-10])
            with crowd.Count(daemon.pid) as count:
                before = count.calls()
                took = crowd.attach(directories[-10:])
                calls = (count.calls() - before) / len(took)
            there.populate(EACH)
            time.sleep(SETTLE)
            with crowd.Count(daemon.pid) as count:
                idle = crowd.idle(count, SECONDS)
    finally:
        daemon.stop()
        machine.pins_remove()
    return idle.busy * 60, idle.calls / idle.seconds, statistics.median(took) * 1000, calls


def bench():
    builds = [machine.BUILD] + ([Path(os.environ["OLD"]) / "build"] if os.environ.get("OLD") else [])
    for size in SIZES:
        taken = {b: [] for b in builds}
        for i in range(measure.runs(3)):
            for build in reversed(builds) if i % 2 else builds:
                taken[build].append(sample(build, size))
        yield from rows_of(size, *taken.values())


def rows_of(size, new, old=None):
    """@new and @old: VALUES of each round."""
    params = {"cgroups": size, "processes": size * EACH}
    for i, (what, unit, most) in enumerate(VALUES):
        name, target = f"{what}, {size} cgroups", most and f"<= {most}"
        now = [max(values[i], LEAST) for values in new]
        if old:
            row = measure.row(name, params, [max(values[i], LEAST) for values in old], now, unit, target)
        else:
            row = measure.plain_row(name, params, now, unit, target)
        road.say(f"{name:<40} {row['ebb']:9.4g} {unit}")
        yield {**row, "met": measure.at_most(most, now) if most else None}


if __name__ == "__main__":
    sys.exit(measure.main("idle", bench))
