#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs the demo's programs, and some that prefetching cannot help, at PERCENTS= (100,75,50,25)
of their peak: with the kernel's readahead on ebb's device, with zram, with zswap over a file on
disk, with ebb, and with zswap in front of ebb; RUNS= (5) interleaved rounds, on CPUS= (all,1).
ONLY=name,... picks programs, MODES=kernel,ebb omits the others.  AWAKE=1 keeps the processors from
sleeping.
"""
import os
import statistics
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import measure
import road
import workloads
from road import machine

DEVICE = 1 << 30 # four times the largest program's swapped-out bytes at 25 %
INPUTS = road.REPO / "build" / "demo" / "input"
MODES = ("kernel", "zram", "zswap", "ebb", "zswap+ebb")
POLICY = {"kernel": "none", "ebb": "auto", "zswap+ebb": "auto"} # others do not use ebb's device
AGAINST = {"kernel": "kernel readahead", "zram": "zram", "zswap": "zswap over a disk file",
           "ebb": "ebb alone"}
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


class Zswap:
    """zswap with its shrinker, switched on for each run; alone, over a file of INPUTS' disk."""

    SETTINGS = Path("/sys/module/zswap/parameters")
    WANTED = {"enabled": "Y", "shrinker_enabled": "Y"}

    def __init__(self):
        self.there = self.SETTINGS.exists()

    def set(self, what):
        for name, value in what.items():
            if (self.SETTINGS / name).exists():
                (self.SETTINGS / name).write_text(value)

    @contextmanager
    def on(self):
        before = {n: (self.SETTINGS / n).read_text().strip() for n in self.WANTED
                  if (self.SETTINGS / n).exists()}
        try:
            self.set(self.WANTED)
            yield
        finally:
            with road.interrupts.deferred():
                self.set(before)

    @contextmanager
    def over_disk(self):
        file, device = INPUTS / "zswap.swap", None
        with self.on():
            try:
                with road.interrupts.deferred():
                    with open(file, "wb") as f:
                        os.posix_fallocate(f.fileno(), 0, DEVICE)
                    device = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", file],
                                            check=True, text=True, capture_output=True).stdout.strip()
                    for argv in (["mkswap", device], ["swapon", "-p", str(ZRAM_FIRST), device]):
                        subprocess.run(argv, check=True, capture_output=True)
                yield
            finally:
                with road.interrupts.deferred():
                    if device in machine.swaps():
                        machine.swapoff(device)
                    if device:
                        subprocess.run(["losetup", "--detach", device], check=True)
                    file.unlink(missing_ok=True)


class Program:
    """One workload on some CPUs: its peak, and its seconds in each mode."""

    def __init__(self, workload, cpus):
        self.workload, self.cpus = workload, cpus
        workload.prepare(INPUTS)
        self.peak, alone = road.measure_peak(workload, INPUTS, measure.BENCH, cpus)
        self.digest = alone.digest

    def run(self, r, beside, mode, percent):
        """@beside has the context in which each mode but kernel and ebb runs."""
        limit = max(self.peak * percent // 100, SMALLEST)
        with beside.get(mode, nullcontext)():
            outcome = r.run(self.workload, INPUTS, limit, POLICY.get(mode))
        if outcome.digest != self.digest:
            raise road.Failure(f"{self.workload.name} at {percent} %, {mode}: the output differs "
                               "from that of a run with all the memory")
        return outcome


def row_against(program, percent, taken, count, mode, ours):
    judged = (mode, ours) == ("kernel", "ebb")
    params = {"workload": program.workload.name, "local_percent": percent, "cpus": count,
              "against": AGAINST[mode] if ours == "ebb" else f"{ours} against {AGAINST[mode]}",
              "peak_mib": program.peak >> 20,
              "device_over_swapped": round(DEVICE / max(program.peak * (100 - percent) / 100,
                                                        1 << 20), 1),
              "coverage": taken[ours][-1].stats.get("coverage"),
              "accuracy": taken[ours][-1].stats.get("accuracy"),
              "cpu_seconds_ebb": round(statistics.median(o.cpu for o in taken[ours]), 2),
              "cpu_seconds_ebb_without_prefetch":
                  round(statistics.median(o.cpu for o in taken[mode]), 2)}
    if ours == "zswap+ebb":
        params["zswap"] = taken[ours][-1].stats.get("zswap")
    with_zswap = ": zswap + ebb" if ours == "zswap+ebb" else ","
    return measure.row(
        f"{program.workload.name}, {percent} %, {count} CPU{with_zswap} against {mode}", params,
        [o.seconds for o in taken[mode]], [o.seconds for o in taken[ours]], "s",
        *(measure.not_below(measure.HARM) if judged else ()))


def rows_of(program, percent, taken, count):
    pairs = [(mode, "ebb") for mode in ("kernel", "zram")]
    pairs += [(mode, "zswap+ebb") for mode in ("zswap", "zram", "ebb")]
    return [row_against(program, percent, taken, count, *pair) for pair in pairs
            if all(taken[mode] for mode in pair)]


def attempt(r, beside, program, mode, percent):
    """Runs, with up to two retries: reclaim of a small cgroup sometimes gives up."""
    for left in reversed(range(1 if mode not in ("kernel", "ebb") else OOM_TRIES)):
        try:
            return program.run(r, beside, mode, percent)
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


def runs_without(r, beside, program, percent):
    try:
        attempt(r, beside, program, "kernel", percent)
    except road.OutOfMemory:
        return False
    return True


def compare(r, beside, program, percent, count):
    taken = {m: [] for m in MODES}
    modes = [m for m in MODES if m in ("kernel", "ebb") or m in beside]
    for i in range(measure.runs(5)):
        # A copy: modes that run out of memory are removed from later rounds.
        for mode in modes[i % len(modes):] + modes[:i % len(modes)]:
            try:
                taken[mode].append(attempt(r, beside, program, mode, percent))
            except road.OutOfMemory as e:
                road.say(f"without {mode} from here on: {e}")
                if mode in ("kernel", "ebb"):
                    ours = mode == "ebb" and runs_without(r, beside, program, percent)
                    return [lost_row(program, percent, "ebb" if ours else "kernel", count)]
                taken[mode], modes = [], [m for m in modes if m != mode]
    told = "  ".join(f"{m} {statistics.median(o.seconds for o in taken[m]):.2f} s" for m in modes)
    road.say(f"{program.workload.name:<16} {percent:>3} %  {count} CPU  {told}")
    return rows_of(program, percent, taken, count)


def contexts(chosen):
    """Returns the context of each of the @chosen modes beside kernel and ebb that can run here."""
    zram, zswap = Zram(), Zswap()
    found = {"zram": zram.there and zram.on, "zswap": zswap.there and zswap.over_disk,
             "zswap+ebb": zswap.there and zswap.on}
    for mode, context in found.items():
        if mode in chosen and not context:
            road.say(f"{mode}: not in this kernel; its rows are left out")
    return {mode: context for mode, context in found.items() if mode in chosen and context}


def bench():
    chosen = workloads.choose(os.environ.get("ONLY"), workloads.DEMO + workloads.RANDOM)
    percents = [int(p) for p in (os.environ.get("PERCENTS") or "100,75,50,25").split(",")]
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH,
                       sorted({w.needs for w in chosen}))
    INPUTS.mkdir(parents=True, exist_ok=True)
    beside = contexts((os.environ.get("MODES") or ",".join(MODES)).split(","))
    everything = sorted(os.sched_getaffinity(0))
    for word in (os.environ.get("CPUS") or "all,1").split(","):
        cpus = everything if word == "all" else everything[:int(word)]
        programs = [Program(w, cpus) for w in chosen]
        # Ebb's processes share these CPUs with the program; the kernel's own workers roam.
        with road.Road(measure.BENCH, DEVICE, cpus) as r:
            for program in programs:
                for percent in percents:
                    yield from compare(r, beside, program, percent, len(cpus))


if __name__ == "__main__":
    sys.exit(measure.main("apps", bench))
