#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs the demo's programs, and some that prefetching cannot help, at PERCENTS= (100,75,50,25)
of their peak: with the kernel's readahead on ebb's device, with zram, and with ebb; RUNS= (5)
interleaved rounds, on CPUS= (all,1).  ONLY=name,... picks programs, MODES=kernel,ebb
omits zram.  AWAKE=1 keeps the processors from sleeping.
"""
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import measure
import road
import workloads
from road import machine

DEVICE = 1 << 30 # four times the largest program's swapped-out bytes at 25 %
INPUTS = road.REPO / "build" / "demo" / "input"
MODES = ("kernel", "zram", "ebb")
# ebb does harm if the whole interval is below this share of the kernel's speed.
HARM = 0.98
SMALLEST = 16 << 20
ZRAM_FIRST = 32767
OOM_TRIES = 3


class Zram:
    """A zram device with the highest swap priority, created for each run and removed after it."""

    CONTROL = Path("/sys/class/zram-control")

    def __init__(self):
        if not self.CONTROL.exists():
            subprocess.run(["modprobe", "zram"], capture_output=True)
        self.there = self.CONTROL.exists()

    @contextmanager
    def on(self):
        with road.interrupts.deferred():
            number = int((self.CONTROL / "hot_add").read_text())
            device = f"/dev/zram{number}"
            Path(f"/sys/block/zram{number}/disksize").write_text(str(DEVICE))
            for argv in (["mkswap", device], ["swapon", "-p", str(ZRAM_FIRST), device]):
                subprocess.run(argv, check=True, capture_output=True)
        try:
            yield
        finally:
            with road.interrupts.deferred():
                machine.swapoff(device)
                (self.CONTROL / "hot_remove").write_text(str(number))


class Program:
    """One workload on some CPUs: its peak, and its seconds in each mode."""

    def __init__(self, workload, cpus):
        self.workload, self.cpus = workload, cpus
        workload.prepare(INPUTS)
        self.peak, alone = road.measure_peak(workload, INPUTS, measure.BENCH, cpus)
        self.digest = alone.digest

    def run(self, r, zram, mode, percent):
        limit = max(self.peak * percent // 100, SMALLEST)
        if mode == "zram":
            with zram.on():
                outcome = r.run(self.workload, INPUTS, limit, None)
        else:
            outcome = r.run(self.workload, INPUTS, limit, "auto" if mode == "ebb" else "none")
        if outcome.digest != self.digest:
            raise road.Failure(f"{self.workload.name} at {percent} %, {mode}: the output differs "
                               "from that of a run with all the memory")
        return outcome


def rows_of(program, percent, taken, count):
    ebb = taken["ebb"]
    rows = []
    for mode in MODES[:-1]:
        if not taken[mode]:
            continue
        judged = mode == "kernel"
        params = {"workload": program.workload.name, "local_percent": percent, "cpus": count,
                  "against": "kernel readahead" if judged else "zram",
                  "peak_mib": program.peak >> 20,
                  "device_over_swapped": round(DEVICE / max(program.peak * (100 - percent) / 100,
                                                            1 << 20), 1),
                  "coverage": ebb[-1].stats.get("coverage"),
                  "accuracy": ebb[-1].stats.get("accuracy"),
                  "cpu_seconds_ebb": round(statistics.median(o.cpu for o in ebb), 2),
                  "cpu_seconds_ebb_without_prefetch":
                      round(statistics.median(o.cpu for o in taken[mode]), 2)}
        rows.append(measure.row(
            f"{program.workload.name}, {percent} %, {count} CPU, against {mode}", params,
            [o.seconds for o in taken[mode]], [o.seconds for o in ebb], "s",
            f"interval not below {HARM}" if judged else None,
            (lambda ratio, low, high: (high or ratio) >= HARM) if judged else None))
    return rows


def attempt(r, zram, program, mode, percent):
    """Runs, with up to two retries: reclaim of a small cgroup sometimes gives up."""
    for left in reversed(range(1 if mode == "zram" else OOM_TRIES)):
        try:
            return program.run(r, zram, mode, percent)
        except road.OutOfMemory as e:
            if not left:
                raise
            road.say(f"once more: {e}")


def lost_row(program, percent, mode, count):
    """Returns the row of a program that runs out of memory; a loss if that happens only with ebb."""
    ours = mode == "ebb"
    return {"name": f"{program.workload.name}, {percent} %, {count} CPU: OOM killer, {mode}",
            "params": {"workload": program.workload.name, "local_percent": percent, "cpus": count,
                       "against": None, "peak_mib": program.peak >> 20},
            "baseline": None, "ebb": OOM_TRIES, "unit": "kills", "ratio": None, "low": None,
            "high": None, "runs": 0, "target": "runs as the kernel's does" if ours else None,
            "met": False if ours else None}


def runs_without(r, zram, program, percent):
    try:
        attempt(r, zram, program, "kernel", percent)
    except road.OutOfMemory:
        return False
    return True


def compare(r, zram, program, percent, count):
    taken = {m: [] for m in MODES}
    modes = [m for m in MODES if m != "zram" or zram.there]
    for i in range(measure.runs(5)):
        # A copy: modes that run out of memory are removed from later rounds.
        for mode in modes[i % len(modes):] + modes[:i % len(modes)]:
            try:
                taken[mode].append(attempt(r, zram, program, mode, percent))
            except road.OutOfMemory as e:
                road.say(f"without {mode} from here on: {e}")
                if mode != "zram":
                    ours = mode == "ebb" and runs_without(r, zram, program, percent)
                    return [lost_row(program, percent, "ebb" if ours else "kernel", count)]
                taken[mode], modes = [], [m for m in modes if m != mode]
    told = "  ".join(f"{m} {statistics.median(o.seconds for o in taken[m]):.2f} s" for m in modes)
    road.say(f"{program.workload.name:<16} {percent:>3} %  {count} CPU  {told}")
    return rows_of(program, percent, taken, count)


def bench():
    chosen = workloads.choose(os.environ.get("ONLY"), workloads.DEMO + workloads.RANDOM)
    percents = [int(p) for p in (os.environ.get("PERCENTS") or "100,75,50,25").split(",")]
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH,
                       sorted({w.needs for w in chosen}))
    INPUTS.mkdir(parents=True, exist_ok=True)
    zram = Zram()
    if "zram" not in (os.environ.get("MODES") or "zram").split(","):
        zram.there = False
    elif not zram.there:
        road.say("zram: this kernel has none; its rows are left out")
    everything = sorted(os.sched_getaffinity(0))
    for word in (os.environ.get("CPUS") or "all,1").split(","):
        cpus = everything if word == "all" else everything[:int(word)]
        programs = [Program(w, cpus) for w in chosen]
        # Ebb's processes share these CPUs with the program; the kernel's own workers roam.
        with road.Road(measure.BENCH, DEVICE, cpus) as r:
            for program in programs:
                for percent in percents:
                    yield from compare(r, zram, program, percent, len(cpus))


if __name__ == "__main__":
    sys.exit(measure.main("apps", bench))
