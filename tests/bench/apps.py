#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs the demo's programs, and some that prefetching cannot help, at PERCENTS= (100,75,50,25)
of their peak: with the kernel's readahead on ebb's device, the better of vm.page-cluster 3 and 0,
with zram, with zswap over a file on disk, with ebb, and with zswap in front of ebb; RUNS= (5)
interleaved rounds, on CPUS= (all,1).
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
KERNELS = {"kernel 3": 3, "kernel 0": 0}        # vm.page-cluster; other modes keep it as found
# Others do not use ebb's device.
POLICY = {**dict.fromkeys(KERNELS, "none"), "ebb": "auto", "zswap+ebb": "auto"}
# Rounds that run both of KERNELS; later ones run the faster only.  Its trials stay in the result: as
# they have chosen it, that favours the kernel if anything.
TRIALS = 2
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
        """@beside has the context in which each mode but KERNELS and ebb runs."""
        limit = max(self.peak * percent // 100, SMALLEST)
        with beside.get(mode, nullcontext)(), measure.page_cluster(KERNELS.get(mode)):
            outcome = r.run(self.workload, INPUTS, limit, POLICY.get(mode))
        if outcome.digest != self.digest:
            raise road.Failure(f"{self.workload.name} at {percent} %, {mode}: the output differs "
                               "from that of a run with all the memory")
        return outcome


def row_against(c, against, ours):
    """Compares @ours with @against of MODES, of which kernel is the better of KERNELS."""
    program, percent, taken, count = c.program, c.percent, c.taken, c.count
    mode = c.kernel() if against == "kernel" else against
    judged = (against, ours) == ("kernel", "ebb")
    params = {"workload": program.workload.name, "local_percent": percent, "cpus": count,
              "against": AGAINST[against] if ours == "ebb" else f"{ours} against {AGAINST[against]}",
              "peak_mib": program.peak >> 20,
              "device_over_swapped": round(DEVICE / max(program.peak * (100 - percent) / 100,
                                                        1 << 20), 1),
              "coverage": taken[ours][-1].stats.get("coverage"),
              "accuracy": taken[ours][-1].stats.get("accuracy"),
              "cpu_seconds_ebb": round(statistics.median(o.cpu for o in taken[ours]), 2),
              "cpu_seconds_ebb_without_prefetch":
                  round(statistics.median(o.cpu for o in taken[mode]), 2),
              "oom_kills": c.kills[ours], "oom_kills_baseline": c.kills[mode]}
    if against == "kernel":
        params["page_cluster"] = KERNELS[mode]
        params["trial_seconds"] = {k: [measure.rounded(o.seconds) for o in taken[k][:TRIALS]]
                                   for k in KERNELS if taken[k]}
    if ours == "zswap+ebb":
        params["zswap"] = taken[ours][-1].stats.get("zswap")
    with_zswap = ": zswap + ebb" if ours == "zswap+ebb" else ","
    return measure.row(
        f"{program.workload.name}, {percent} %, {count} CPU{with_zswap} against {against}", params,
        [o.seconds for o in taken[mode]], [o.seconds for o in taken[ours]], "s",
        *(measure.not_below(measure.HARM) if judged else ()))


class Comparison:
    """One program at one percentage on some CPUs: what its runs took in each mode."""

    def __init__(self, r, beside, program, percent, count):
        self.r, self.beside = r, beside
        self.program, self.percent, self.count = program, percent, count
        self.modes = [*KERNELS, *(m for m in MODES if m == "ebb" or m in beside)]
        self.taken = {m: [] for m in (*KERNELS, *MODES)}
        self.kills = dict.fromkeys(self.taken, 0)       # runs that the OOM killer ended

    def attempt(self, mode):
        """Runs, with up to two retries: reclaim of a small cgroup sometimes gives up."""
        for left in reversed(range(OOM_TRIES if mode in (*KERNELS, "ebb") else 1)):
            try:
                return self.program.run(self.r, self.beside, mode, self.percent)
            except road.OutOfMemory as e:
                self.kills[mode] += 1
                if not left:
                    raise
                road.say(f"once more: {e}")

    def kernels(self):
        return [m for m in self.modes if m in KERNELS]

    def kernel(self):
        """Returns the better of KERNELS, of those with all rounds."""
        return min(self.kernels(), key=lambda m: statistics.median(o.seconds for o in self.taken[m]))

    def drop(self, mode):
        self.modes = [m for m in self.modes if m != mode]

    def drop_slower_kernel(self):
        """Keeps the setting with the fastest trial: one slow run alone rejects none."""
        some = self.kernels()
        best = min(some, key=lambda m: min(o.seconds for o in self.taken[m]))
        for mode in some:
            if mode != best:
                self.drop(mode)

    def runs_without(self):
        """Returns whether the program runs with any of KERNELS."""
        for mode in self.kernels():
            try:
                self.attempt(mode)
                return True
            except road.OutOfMemory:
                pass
        return False

    def lost(self, mode):
        """Drops a mode that ran out of memory; returns the row that is then left of all, or None."""
        if mode == "ebb":
            return self.lost_row("ebb" if self.runs_without() else "kernel")
        self.taken[mode] = []
        self.drop(mode)
        return None if self.kernels() else self.lost_row("kernel")

    def lost_row(self, mode):
        """Returns the row of a program that runs out of memory; a loss if that happens only with ebb."""
        ours, name = mode == "ebb", self.program.workload.name
        kills = self.kills["ebb"] if ours else sum(self.kills[m] for m in KERNELS)
        return {"name": f"{name}, {self.percent} %, {self.count} CPU: OOM killer, {mode}",
                "params": {"workload": name, "local_percent": self.percent, "cpus": self.count,
                           "against": None, "peak_mib": self.program.peak >> 20},
                "baseline": None, "ebb": kills, "unit": "kills", "ratio": None, "low": None,
                "high": None, "runs": 0, "target": "runs as the kernel's does" if ours else None,
                "met": False if ours else None}

    def hold(self, rounds):
        """Returns the rows after @rounds rounds."""
        for i in range(rounds):
            if i == TRIALS:
                self.drop_slower_kernel()
            at = i % len(self.modes)
            for mode in self.modes[at:] + self.modes[:at]:
                try:
                    self.taken[mode].append(self.attempt(mode))
                except road.OutOfMemory as e:
                    road.say(f"without {mode} from here on: {e}")
                    row = self.lost(mode)
                    if row:
                        return [row]
        told = "  ".join(f"{m} {statistics.median(o.seconds for o in self.taken[m]):.2f} s" for m in self.modes)
        road.say(f"{self.program.workload.name:<16} {self.percent:>3} %  {self.count} CPU  {told}")
        return self.rows()

    def rows(self):
        pairs = [(mode, "ebb") for mode in ("kernel", "zram")]
        pairs += [(mode, "zswap+ebb") for mode in ("zswap", "zram", "ebb")]
        return [row_against(self, *pair) for pair in pairs
                if all(mode == "kernel" or self.taken[mode] for mode in pair)]


def contexts(chosen):
    """Returns the context of each of the @chosen modes beside KERNELS and ebb that can run here."""
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
                    yield from Comparison(r, beside, program, percent, len(cpus)).hold(measure.runs(5))


if __name__ == "__main__":
    sys.exit(measure.main("apps", bench))
