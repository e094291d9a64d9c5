#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Compares policies on programs with all access patterns, of MIB= (64, or several: 64,256) MiB at
PERCENTS= (50,25) of it: the better of vm.page-cluster 3 and 0, leap, the best of ebb's policies
and auto, RUNS= (5) interleaved rounds, on one device.  ONLY=name,... or ONLY=jvm picks
programs, MODES=kernel,auto,benefit modes, DONOR= (tcp, or shm) the transport.
"""
import os
import statistics
import sys
import time

import contest
import loads
import measure
import road

DONOR = os.environ.get("DONOR") or "tcp"
# Where the donor listens.
TRANSPORTS = {"tcp": None, "shm": road.SHM}
UNREAD = 0.01
JVM_GAIN = {"shm": 1.3}
# Most swapped-out bytes of a virtual machine beyond its heap.
JVM_EXTRA = 160 << 20


def numbers(knob, default):
    """Returns the numbers in the variable @knob, such as 64 or 64,256."""
    text = os.environ.get(knob) or default
    try:
        return [int(n) for n in text.split(",")]
    except ValueError:
        raise road.Failure(f"{knob}={text}: not a list of numbers; write {knob}={default}") from None


def choose(default):
    try:
        return loads.choose(os.environ.get("ONLY") or default, loads.ALL)
    except ValueError as e:
        raise road.Failure(str(e)) from None


def device_size(chosen, sizes, percents):
    """Returns at least 4 * the swapped-out bytes: past half full the kernel frees clean slots."""
    out = [1]
    for load in chosen:
        for mib in sizes:
            least = min(load.limit(mib, p) for p in load.percents(percents))
            extra = JVM_EXTRA if load.kind == loads.COLLECTED else 0
            out.append(load.bytes(mib) + extra - least)
    return max(-(-4 * max(out) // (64 << 20)) * (64 << 20), 1 << 30)


def check(chosen, size):
    if DONOR not in TRANSPORTS:
        raise road.Failure(f"DONOR={DONOR}: there is no such transport in this ebb; "
                           f"use DONOR={' or '.join(TRANSPORTS)}")
    needed = {loads.JAVA} if any(x.kind == loads.COLLECTED for x in chosen) else set()
    road.check_machine(size + (2 << 30), size + (1 << 30), measure.BENCH, sorted(needed))
    for path in (loads.WALKS, loads.SCAN, loads.CLASSES):
        if not path.exists():
            raise road.Failure(f"{path}: not built; run make bench-prefetch")


def rows_of(c):
    target = c.load.targets.get(DONOR)
    rows = c.lost_rows()
    if not c.best("kernel"):
        return rows     # nothing to compare with
    for group in contest.GROUPS[1:]:
        mode = c.best(group)
        if not mode:
            continue
        aim, met = None, None
        if mode == c.judged() and c.load.kind == loads.HARMLESS:
            aim, met = measure.not_below(measure.HARM)
        elif mode == c.judged() and target:
            aim, met = f">= {target}", lambda ratio, low, high: ratio >= target
        rows.append(c.row(mode, c.title(), aim, met))
        if mode == c.judged():
            rows += shares_of(c, mode)
    return rows


def shares_of(c, mode):
    runs = c.runs[mode]
    if c.load.coverage:
        return [measure.share_row(f"{c.title()}: {mode.name}, coverage after the first pass",
                                  c.params(mode), [r.coverage for r in runs], c.load.coverage)]
    if c.load.kind != loads.HARMLESS:
        return []
    unread = statistics.median(r.unread for r in runs)
    return [{**measure.share_row(f"{c.title()}: {mode.name}, unread prefetches a miss",
                                 c.params(mode), [unread], 0),
             "runs": len(runs), "target": f"<= {UNREAD}", "met": unread <= UNREAD}]


def jvm_row(contests):
    """Returns the row of the geometric mean of the judged modes over all JVM programs."""
    ratios = []
    for c in contests:
        kernel, mode = c.best("kernel"), c.judged()
        ratios.append(measure.paired([r.seconds for r in c.runs[kernel]],
                                     [r.seconds for r in c.runs[mode]])[0])
    ratio, low, high = measure.over_programs(ratios)
    least = JVM_GAIN.get(DONOR)
    return {"name": "jvm: geometric mean", "baseline": None, "ebb": None, "unit": "s",
            "params": {"programs": {c.load.name: measure.rounded(ratio)
                                    for c, ratio in zip(contests, ratios)},
                       "interval_over": measure.OVER_PROGRAMS},
            "ratio": measure.rounded(ratio), "low": measure.rounded(low), "high": measure.rounded(high),
            "runs": min(len(c.runs[c.judged()]) for c in contests),
            "target": f">= {least}" if least else None, "met": ratio >= least if least else None}


class Alone(contest.Program):
    """A program without a memory limit."""

    def __init__(self, load, mib):
        super().__init__(load, mib, None, None)


def digest_of(load, mib):
    if load.marked:
        return None     # the program checks its own data
    return road.measure_peak(Alone(load, mib), "", measure.BENCH)[1].digest


def with_donor(row):
    row["params"]["donor"] = DONOR
    return row


def bench():
    chosen, sizes, percents = choose(None), numbers("MIB", "64"), numbers("PERCENTS", "50,25")
    size = device_size(chosen, sizes, percents)
    check(chosen, size)
    virtual, began = [], time.monotonic()
    digests = {(load, mib): digest_of(load, mib) for load in chosen for mib in sizes}
    with road.Road(measure.BENCH, size, address=TRANSPORTS[DONOR]) as r:
        known = contest.policies()
        contest.say_missing(known)
        for (load, mib), digest in digests.items():
            for percent in load.percents(percents):
                c = contest.Contest(r, load, mib, percent, known, digest)
                c.hold(measure.runs(5))
                yield from map(with_donor, rows_of(c))
                if load.kind == loads.COLLECTED and c.best("kernel") and c.judged():
                    virtual.append(c)
    if virtual:
        yield with_donor(jvm_row(virtual))
    road.say(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(measure.main("prefetch", bench))
