#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs real programs on remote memory, with the kernel's readahead only and with ebb.  Writes
build/demo/report.json and build/demo/ebb.png.
"""
import argparse
import json
import math
import os
import platform
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import road
import workloads
from road import Failure, say

BUILD = road.REPO / "build" / "demo"
# The kernel frees clean slots of a swap device that is half full, so it is at least four
# times the largest program's swapped-out bytes.
DEVICE_SIZE = 1 << 30
RAM_NEEDED = DEVICE_SIZE + (1 << 30)
DISK_NEEDED = DEVICE_SIZE + (1 << 30) # with the inputs, half a gigabyte
PERCENTS = (50, 25)
# Emulation has no time for more.
GUEST_PERCENTS = (50,)
GUEST_WORKLOADS = "sqlite3,numpy"
MODES = ("kernel", "ebb")
POLICY = {"kernel": "none", "ebb": "auto"}
SECONDS_PLANNED = 270
MAX_ROUNDS = 3
# Smallest limit: the programs' code and page cache must fit, too.
SMALLEST = 16 << 20
# Runs whose faults the picture shows.
RECORDED = (("sqlite3", 50), ("numpy", 50), ("graphicsmagick", 50))


@dataclass
class Row:
    """One workload at one share of its peak."""
    workload: workloads.Workload
    percent: int
    limit: int
    digest: str
    runs: dict = field(default_factory=lambda: {m: [] for m in MODES})
    same: bool = True

    def seconds(self, mode):
        return statistics.median(o.seconds for o in self.runs[mode])

    def middle(self, mode):
        """Returns the run with the (lower) median time, whose counters belong to that time."""
        ordered = sorted(self.runs[mode], key=lambda o: o.seconds)
        return ordered[(len(ordered) - 1) // 2].stats

    def speedup(self):
        return self.seconds("kernel") / self.seconds("ebb")

    def report(self):
        ebb = self.middle("ebb")
        return {
            "name": self.workload.name,
            "input": self.workload.input,
            "local_percent": self.percent,
            "seconds_kernel": round(self.seconds("kernel"), 3),
            "seconds_ebb": round(self.seconds("ebb"), 3),
            "speedup": round(self.speedup(), 3),
            "misses_kernel": self.middle("kernel")["misses"],
            "misses_ebb": ebb["misses"],
            "hits": ebb["hits"],
            "late": ebb["late"],
            "wasted": ebb["wasted"],
            "coverage": ebb["coverage"],
            "accuracy": ebb["accuracy"],
            "output_identical": self.same,
        }


class Demo:
    def __init__(self, chosen, picture):
        self.chosen, self.picture = chosen, picture
        self.inputs = BUILD / "input"
        self.rows = []
        self.began = time.monotonic()
        self.traces = {}

    def elapsed(self):
        return time.monotonic() - self.began

    def progress(self, done, of, text):
        """Prints a line that the next call replaces; only on a terminal."""
        if sys.stdout.isatty():
            bar = "#" * (20 * done // of)
            print(f"\r\033[K[{bar:<20}] {self.elapsed():4.0f} s  {text}", end="", flush=True)

    @staticmethod
    def wipe():
        if sys.stdout.isatty():
            print("\r\033[K", end="", flush=True)

    def make_inputs(self):
        self.inputs.mkdir(parents=True, exist_ok=True)
        # Programs run as the user behind sudo: that user must be able to read the inputs.
        os.chmod(self.inputs, 0o755)
        for i, w in enumerate(self.chosen):
            self.progress(i, len(self.chosen), f"{w.name}: generating its input")
            w.prepare(self.inputs)
        self.wipe()
        return 0

    def prepare(self):
        self.make_inputs()
        say(f"\n{'program':<16} {'what':<28} {'access pattern':<34} {'peak':>8} {'alone':>7}")
        for i, w in enumerate(self.chosen):
            self.progress(i, len(self.chosen), f"{w.name}: a run without a memory limit")
            peak, alone = road.measure_peak(w, self.inputs, BUILD)
            self.wipe()
            say(f"{w.name:<16} {w.program:<28} {w.order:<34} {peak >> 20:>4} MiB "
                f"{alone.seconds:>5.1f} s")
            for percent in GUEST_PERCENTS if road.machine.IN_GUEST else PERCENTS:
                limit = max(peak * percent // 100, SMALLEST)
                self.rows.append(Row(w, percent, limit, alone.digest))

    def run_one(self, r, row, mode, record=None):
        outcome = r.run(row.workload, self.inputs, row.limit, POLICY[mode], record)
        row.same &= outcome.digest == row.digest
        return outcome

    def compare(self, r):
        """Runs rounds while time lasts; kernel and ebb alternate in going first."""
        say(f"\n{'program':<16} {'local':>5} {'kernel':>9} {'ebb':>9} {'speedup':>8} "
            f"{'misses kernel':>14} {'misses ebb':>11} {'coverage':>9} {'accuracy':>9} output")
        for turn in range(1 if road.machine.IN_GUEST else MAX_ROUNDS):
            for i, row in enumerate(self.rows):
                if turn and not self.time_for(row):
                    continue
                for mode in MODES if turn % 2 == 0 else MODES[::-1]:
                    self.progress(i, len(self.rows), f"{row.workload.name} at {row.percent} %: "
                                  f"{mode}, round {turn + 1}")
                    row.runs[mode].append(self.run_one(r, row, mode))
                self.wipe()
                if not turn:
                    say(line(row))

    def time_for(self, row):
        return self.elapsed() + row.seconds("kernel") + row.seconds("ebb") < SECONDS_PLANNED

    def record(self, r):
        """Records each fault in separate runs, since recording takes time."""
        for row in self.rows:
            key = (row.workload.name, row.percent)
            if key not in RECORDED:
                continue
            for mode in MODES:
                trace = BUILD / f"{row.workload.name}-{row.percent}-{mode}.trace"
                self.progress(0, 1, f"{row.workload.name} at {row.percent} %: recording {mode}")
                self.run_one(r, row, mode, trace)
                self.traces[key + (mode,)] = trace
        self.wipe()

    def report(self):
        speedups = [row.speedup() for row in self.rows]
        geomean = math.exp(statistics.fmean(map(math.log, speedups)))
        report = {"workloads": [row.report() for row in self.rows],
                  "geomean_speedup": round(geomean, 3)}
        (BUILD / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        return report


def cell(value):
    return "-" if value is None else f"{value:.3f}"


def line(row):
    o = row.report()
    return (f"{o['name']:<16} {o['local_percent']:>3} % {o['seconds_kernel']:>7.2f} s "
            f"{o['seconds_ebb']:>7.2f} s {o['speedup']:>7.2f}x {o['misses_kernel']:>14,} "
            f"{o['misses_ebb']:>11,} {cell(o['coverage']):>9} {cell(o['accuracy']):>9} "
            f"{'same' if o['output_identical'] else 'DIFFERENT'}")


def verdict(report):
    bad = [f"{w['name']} at {w['local_percent']} %: the output differs"
           for w in report["workloads"] if not w["output_identical"]]
    slow = [f"{w['name']} at {w['local_percent']} %: {w['speedup']}x"
            for w in report["workloads"] if w["speedup"] < 0.97]
    say(f"\ngeometric mean of the speedups: {report['geomean_speedup']:.2f}x")
    for s in slow:
        say(f"slower with ebb: {s}")
    for b in bad:
        say(b)
    # Under emulation only the output counts, not the speed.
    return 1 if bad or (slow and not road.machine.IN_GUEST) else 0


def hand_over(directory):
    """Under sudo, makes files in build/ belong to the user who called it."""
    uid, gid = int(os.environ.get("SUDO_UID", 0)), int(os.environ.get("SUDO_GID", 0))
    if uid:
        for path in (directory.parent, directory, *directory.rglob("*")):
            os.chown(path, uid, gid, follow_symlinks=False)


def introduce(d):
    cluster = road.PAGE_CLUSTER.read_text().strip()
    say(f"ebb demo: Linux {platform.release()}, {os.cpu_count()} CPUs, "
        f"vm.page-cluster {cluster} unchanged, {DEVICE_SIZE >> 20} MiB lent over loopback")
    say("This switches swap on for five to seven minutes and off again at the end or on ^C.")
    say("Idle pages of other programs may be swapped out meanwhile.")
    others = road.other_swap()
    if others:
        say(f"Other swap is on ({', '.join(others)}); ebb's device has a higher priority.")


def demo(d, prefetch):
    road.check_machine(RAM_NEEDED, DISK_NEEDED, BUILD,
                       sorted({w.needs for w in d.chosen}))
    introduce(d)
    d.prepare()
    with road.Road(BUILD, DEVICE_SIZE, prefetch=prefetch) as r:
        d.compare(r)
        if d.picture:
            d.record(r)
    report = d.report()
    if d.picture:
        import picture
        d.progress(1, 1, "drawing")
        picture.draw(BUILD / "ebb.png", report, d.traces)
        d.wipe()
    status = verdict(report)
    if road.machine.IN_GUEST and Path("/hostout").is_dir():
        shutil.copy(BUILD / "report.json", "/hostout")
    say(f"{d.elapsed():.0f} s.  {BUILD / 'report.json'}"
        + (f", {BUILD / 'ebb.png'}" if d.picture else ""))
    return status


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--only", default="", metavar="NAME,...", help="run only these workloads")
    p.add_argument("--no-picture", action="store_true")
    p.add_argument("--prefetch", action="append", default=[], metavar="KEY=VALUE",
                   help="setting in [prefetch] of ebb.conf, to compare two of them")
    p.add_argument("--inputs-only", action="store_true", help="generate the inputs and exit")
    a = p.parse_args()
    # Under emulation times mean nothing, so neither do repetitions or recordings.
    only = a.only or (GUEST_WORKLOADS if road.machine.IN_GUEST else "")
    d = Demo(workloads.choose(only, workloads.DEMO),
             not a.no_picture and not road.machine.IN_GUEST)
    with road.interrupts:
        try:
            if a.inputs_only:
                return d.make_inputs()
            return demo(d, a.prefetch)
        except road.Stopped as e:
            say(f"stopped by {e}; swap is off and no process is left")
            return 130
        except (Failure, road.machine.MachineError) as e:
            say(f"\ndemo: {e}")
            return 1
        finally:
            if not os.geteuid() and BUILD.exists():
                hand_over(BUILD)


if __name__ == "__main__":
    sys.exit(main())
