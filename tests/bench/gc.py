#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs programs on libebbgc with PERCENTS= (100,50,25,13) of their peak as local memory, under
POLICIES= (auto): plain concurrent depth first, in address order and with a heap that grows more, stop-the-world,
MemLiner as published, ebb with all switches, also with a nursery and with objects that move, each
switch alone, and bdwgc; RUNS= (5) interleaved rounds.  MIB= (256) is the live data, ROUNDS= the
number of passes over it, THREADS= (1) the mutators, MARKERS= (1) the tracers; ONLY=kv-read,... and
MODES=memliner,... choose; DONOR= (tcp, or shm).  The baseline is plain concurrent, compiled without
the read barrier; rows compare ebb with each other baseline, too, and with the best of each program.

QUICK=1 is for 25 minutes: what the headline needs, with MIB=128 DONOR=shm PERCENTS=25,13,100
RUNS=3 COMPUTE=0 LIMIT=40 MINUTES=21, unless these say otherwise.

COMPUTE= (0,paper) is the computation before each access to a reference, in multiplications.
"paper" sets it for each program so that the baseline is slowed down as much as the MemLiner
paper's programs, 2.17 times at 25 %, by three runs that are not counted.

A run is ended after LIMIT= (300) seconds; it counts as that long, and its row says so.  Each round
covers the whole table, percents in the given sequence, until MINUTES= have passed; the rest is
omitted.  Interrupted, or out of time, the benchmark resumes after the last run when it is called
with the same sizes; FRESH=1 begins again.
"""
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field

import gc_table
import measure
import road
from gc_programs import PROGRAMS, Program
from gc_table import BASE, JUDGED, OTHERS, WEAK
from kept import Kept, digest_of

PROGRAMS_DIR = road.machine.BUILD / "tests" / "gc"
QUICK = {"MIB": "128", "DONOR": "shm", "PERCENTS": "25,13,100", "RUNS": "3", "COMPUTE": "0",
         "LIMIT": "40", "MINUTES": "21",
         "MODES": ",".join((BASE, *OTHERS[:2], JUDGED, *gc_table.NEW))}
TRANSPORTS = {"tcp": None, "shm": road.SHM}
OOM_TRIES = 2
SMALLEST = 8 << 20
# Heap size over live size: about bdwgc's; and of a heap that trades memory for fewer cycles.
GROWTH, ROOMY_GROWTH = 1.5, 3
# MemLiner's table 4.2: G1 at 25 % over all-local.  Multiplications of the calibration.
PAPER_SLOWDOWN, PROBE = 2.17, 200
# At 100 % nothing may be swapped, however much a mode lets the heap grow.
ROOMY = 3


@dataclass(frozen=True)
class Mode:
    name: str
    options: str = None         # EBBGC_OPTIONS; None: bdwgc
    build: str = "-plain"       # suffix of the binary: without barrier, with it, bdwgc
    argv: tuple = ()


MODES = (
    Mode(BASE, "mode=concurrent"),
    Mode("address", "mode=concurrent,address"),
    Mode("growth3", f"mode=concurrent,growth={ROOMY_GROWTH}"),
    Mode("address-growth3", f"mode=concurrent,address,growth={ROOMY_GROWTH}"),
    Mode("ebb-growth3", f"mode=memliner,park,drop,lock,growth={ROOMY_GROWTH}", ""),
    Mode("stop", "mode=stop"),
    Mode("memliner", "mode=memliner", ""),
    Mode(JUDGED, "mode=memliner,park,drop,lock", ""),
    # Compiled without the barrier: only scans show what the program swaps in.
    Mode("ebb-unnoted", "mode=memliner,park,drop,lock"),
    Mode("ebb+cold", "mode=memliner,park,cold,drop,lock", ""),
    Mode("ebb+scan20", "mode=memliner,park,drop,lock,scan=20", ""),
    # ebbd shares the program's faults: beside the barrier's notes, instead of them, and with
    # prefetching by references.
    Mode("ebb+arrivals", "mode=memliner,park,arrivals,drop,lock", ""),
    Mode("ebb-unnoted+arrivals", "mode=memliner,park,arrivals,drop,lock"),
    Mode("ebb+hints", "mode=memliner,park,arrivals,hints,drop,lock", ""),
    Mode("ebb-unnoted+hints", "mode=memliner,park,arrivals,hints,drop,lock"),
    # Minor cycles: without and with all other switches.
    Mode("nursery", "mode=concurrent,nursery=8M"),
    Mode("nursery+exact", "mode=concurrent,exact,nursery=8M"),
    Mode("ebb+nursery", "mode=memliner,park,drop,lock,nursery=8M", ""),
    # Objects move: out of sparse regions and, with ebb's switches, to others that are in use.  Only
    # programs with the read barrier allow it.
    Mode("moving", "mode=concurrent", "", ("-m",)),
    Mode("nursery+moving", "mode=concurrent,nursery=8M", "", ("-m",)),
    Mode("ebb+moving", "mode=memliner,park,drop,lock", "", ("-m",)),
    Mode("ebb+nursery+moving", "mode=memliner,park,drop,lock,nursery=8M", "", ("-m",)),
    # Tracers do not wait for the program to swap in parked pages.
    Mode("ebb+eager", "mode=memliner,park,drop,lock,delays=0:0:0", ""),
    Mode("bdwgc", None, "-bdwgc"),
    # Single switches.
    Mode("memliner+exact", "mode=memliner,exact", ""),
    Mode("memliner+park", "mode=memliner,park", ""),
    Mode("memliner+park+cold", "mode=memliner,park,cold", ""),
    Mode("memliner+arrivals", "mode=memliner,arrivals", ""),
    Mode("memliner+hints", "mode=memliner,hints", ""),
    Mode("concurrent+drop", "mode=concurrent,drop"),
    Mode("concurrent+exact", "mode=concurrent,exact"),
    Mode("concurrent+lock", "mode=concurrent,lock"),
    Mode("concurrent+incognito", "mode=concurrent,incognito"),
)


@dataclass
class Run:
    seconds: float              # of the whole program
    told: dict = field(default_factory=dict)    # the program's figures
    stats: dict = field(default_factory=dict)   # ebb's figures of the whole run
    cut: bool = False           # ended at the limit


class Job:
    """A workload for road.run() and road.measure_peak()."""

    def __init__(self, program, mode, compute=0):
        self.program, self.mode, self.compute = program, mode, compute
        self.name = f"gc-{program.name}-{mode.name}"
        self.told = measure.BENCH / "gc-run.json"

    def argv(self, _):
        mib = number("MIB", 256)
        env = list(self.program.env)
        if self.mode.options:
            env.append(f"EBBGC_OPTIONS=growth={GROWTH},markers={number('MARKERS', 1)},count,"
                       f"{self.mode.options}")
        return ["env", *env, str(PROGRAMS_DIR / (self.program.binary + self.mode.build)),
                "-n", str(self.program.size * mib), "-r",
                str(number("ROUNDS", self.program.rounds)), "-o", str(self.program.share),
                "-t", str(number("THREADS", 1)), "-c", str(self.compute), *self.mode.argv,
                "-j", str(self.told)]


def setting(name, default=""):
    """Returns a variable, or its default, which QUICK=1 changes."""
    quick = QUICK.get(name) if os.environ.get("QUICK") else None
    return os.environ.get(name) or quick or default


def number(name, default):
    return int(setting(name, default))


def chosen(variable, things):
    names = setting(variable).split(",")
    known = {t.name: t for t in things}
    unknown = [n for n in names if n and n not in known]
    if unknown:
        raise road.Failure(f"{variable}: no {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[n] for n in names if n] or list(things)


def calibrated(short, local, probed):
    """
    Returns the multiplications per access that slow the baseline down by the paper's factor, from
    the seconds at 25 %, at 100 %, and at 100 % with PROBE multiplications: computation adds as
    much to the first as to the second.
    """
    wanted = (short - PAPER_SLOWDOWN * local) / (PAPER_SLOWDOWN - 1)
    return max(round(PROBE * wanted / max(probed - local, 1e-3)), 0)


@dataclass(eq=False)
class Cell:
    """A program in a share of its memory under a policy: the runs of each mode, by round."""
    program: Program
    percent: int
    policy: str
    peak: int
    compute: str = "0"          # a number, or "paper"
    runs: dict = field(default_factory=dict)    # mode's name -> [Run, or None if there is none]
    oom_kills: dict = field(default_factory=dict)
    hopeless: bool = False      # neither baseline nor ebb ends in time

    def limit(self):
        if self.percent >= 100:
            return ROOMY * self.peak
        return max(self.peak * self.percent // 100, SMALLEST)

    def title(self):
        return f"{self.program.name}, {self.setting()}"

    def setting(self):
        return gc_table.setting(self.percent, self.policy, self.compute)

    def has(self, mode):
        return mode.options is not None or not self.program.own


class Estimate:
    """Estimates the seconds of runs by earlier runs."""

    def __init__(self, minutes):
        self.began = time.monotonic()
        self.end = self.began + 60 * minutes if minutes else None
        self.took = {}

    def add(self, cell, mode, seconds):
        self.took[cell.program.name, cell.percent, mode.name, cell.compute] = seconds

    def known(self, cell, mode, seconds):
        """Of a run of an earlier invocation."""
        self.took.setdefault((cell.program.name, cell.percent, mode.name, cell.compute), seconds)

    def of(self, cell, mode):
        """Returns the last time of this run, else a mean: same program and percent, percent, all; or 0."""
        key = cell.program.name, cell.percent, mode.name, cell.compute
        if key in self.took:
            return self.took[key]
        for like in (lambda k: k[:2] == key[:2], lambda k: k[1] == key[1], lambda k: True):
            some = [s for k, s in self.took.items() if like(k)]
            if some:
                return statistics.fmean(some)
        return 0

    def allows(self, seconds):
        return self.end is None or time.monotonic() + seconds < self.end

    def left(self, jobs):
        """Returns the seconds that @jobs, (cell, mode) pairs, take, limited by the time left."""
        seconds = sum(self.of(*job) for job in jobs)
        return seconds if self.end is None else min(seconds, max(self.end - time.monotonic(), 0))


class Bench:
    """@kept: the runs of an interrupted invocation, by place()."""

    def __init__(self, cells, modes, rounds, minutes, kept):
        self.cells, self.modes, self.rounds, self.kept = cells, modes, rounds, kept
        self.limit = number("LIMIT", road.RUN_SECONDS)
        self.estimate = Estimate(minutes)
        self.digests = {}
        self.calibrated = {}
        self.skipped = set()

    def all(self, r):
        for i in range(self.rounds):
            for cell in self.cells:
                modes = [m for m in self.order(i) if cell.has(m)]
                if cell.hopeless:
                    continue
                new = [m for m in modes if not self.kept.get(place(cell, m, i))]
                if not self.estimate.allows(sum(self.estimate.of(cell, m) for m in new)):
                    self.skip(cell, i)
                    modes = [m for m in modes if m not in new]
                self.round(r, cell, i, modes)

    def order(self, i):
        """Returns the modes, rotated each round; round 0 begins with those that is_hopeless() needs."""
        if i:
            at = i % len(self.modes)
            return self.modes[at:] + self.modes[:at]
        return sorted(self.modes, key=lambda m: (m.name != BASE, m.name != JUDGED))

    def skip(self, cell, i):
        if cell.title() not in self.skipped:
            road.say(f"{cell.title()}: no time for round {i + 1}")
        self.skipped.add(cell.title())

    def round(self, r, cell, i, modes):
        for mode in modes:
            run, new = self.run_or_kept(r, cell, mode, i)
            runs = cell.runs.setdefault(mode.name, [])
            # An earlier round may have had no time for it.
            runs += [None] * (i - len(runs))
            runs.append(run)
            if run and new:
                self.say(cell, mode, run, i)
            if self.is_hopeless(cell):
                road.say(f"{cell.title()}: neither of the first two ends within {self.limit} s")
                cell.hopeless = True
                return

    def run_or_kept(self, r, cell, mode, i):
        """Returns (Run, or None if the OOM killer ends each try; whether it is new)."""
        at = place(cell, mode, i)
        known = self.kept.get(at)
        if known:
            run = Run(**known["run"]) if known["run"] else None
            if known["kills"]:
                cell.oom_kills[mode.name] = cell.oom_kills.get(mode.name, 0) + known["kills"]
            if run:
                self.estimate.known(cell, mode, run.seconds)
            return run, False
        before = cell.oom_kills.get(mode.name, 0)
        run = self.run(r, cell, mode)
        self.kept.add(at, {"run": asdict(run) if run else None,
                           "kills": cell.oom_kills.get(mode.name, 0) - before})
        return run, True

    def compute(self, r, cell):
        """Returns the computation before each access, in multiplications."""
        if cell.compute != "paper":
            return int(cell.compute)
        at = ["compute", cell.program.name]
        if self.kept.get(at):
            self.calibrated.setdefault(cell.program, self.kept.get(at)["count"])
        if cell.program not in self.calibrated:
            seconds = {}
            for percent, compute in ((25, 0), (100, 0), (100, PROBE)):
                run = self.once(r, Cell(cell.program, percent, cell.policy, cell.peak), MODES[0], compute)
                if run is None:
                    raise road.Failure(f"{cell.title()}: no calibration, as memory ran out")
                seconds[percent, compute] = run.seconds
            self.calibrated[cell.program] = calibrated(seconds[25, 0], seconds[100, 0],
                                                       seconds[100, PROBE])
            self.kept.add(at, {"count": self.calibrated[cell.program]})
            road.say(f"{cell.program.name}: paper's regime with -c {self.calibrated[cell.program]}")
        return self.calibrated[cell.program]

    def is_hopeless(self, cell):
        """Returns whether baseline and ebb were both cut in the first round."""
        runs = [cell.runs.get(name, []) for name in (BASE, JUDGED)]
        return all(len(some) == 1 and some[0] and some[0].cut for some in runs)

    def run(self, r, cell, mode):
        """Returns a Run, or None if the OOM killer ends each try."""
        return self.once(r, cell, mode, self.compute(r, cell))

    def once(self, r, cell, mode, compute):
        job = Job(cell.program, mode, compute)
        for _ in range(OOM_TRIES):
            job.told.unlink(missing_ok=True)
            began = time.monotonic()
            try:
                outcome = r.run(job, "", cell.limit(), cell.policy, seconds=self.limit)
            except road.OutOfMemory as e:
                road.say(f"{e}")
                cell.oom_kills[mode.name] = cell.oom_kills.get(mode.name, 0) + 1
                continue
            except road.TimedOut:
                return Run(self.limit, cut=True)
            finally:
                self.estimate.add(cell, mode, time.monotonic() - began)
            told = json.loads(job.told.read_text())
            if self.digest_of(cell.program.name, outcome.digest) != outcome.digest:
                raise road.Failure(f"{job.name}: its result differs from that of the run before")
            # Include the build phase: it allocates, so collectors work, and ebb counts its misses.
            return Run(told["build_seconds"] + told["seconds"], told, outcome.stats)
        return None

    def digest_of(self, name, digest):
        """Returns the digest of the first result of the program @name, which is @digest if this is it."""
        at = ["digest", name]
        if name not in self.digests:
            if not self.kept.get(at):
                self.kept.add(at, {"digest": digest})
            self.digests[name] = self.kept.get(at)["digest"]
        return self.digests[name]

    def jobs_left(self, cell, mode, i):
        """Returns the (cell, mode) pairs after this run if none is omitted."""
        modes = [m for m in self.order(i) if cell.has(m)]
        here = [(cell, m) for m in modes[modes.index(mode) + 1:]]
        cells = [c for c in self.cells if not c.hopeless]
        after = cells[cells.index(cell) + 1:] if cell in cells else []
        return here + [(c, m) for c in after + cells * (self.rounds - i - 1)
                       for m in self.modes if c.has(m)]

    def say(self, cell, mode, run, i):
        s, misses = run.stats, max(run.stats.get("misses", 0), 1)
        told = (f"{run.seconds:7.2f} s  misses {s.get('misses', 0):>8} "
                f"(collector's {s.get('gc_misses', 0):>7})  swap-ins {s.get('swapped_in', 0):>8}  "
                f"{s.get('miss_ns', 0) / 1e3 / misses:5.0f} us  pause "
                f"{run.told.get('pause_max_ns', 0) / 1e6:6.1f} ms")
        if run.cut:
            told = f"> {run.seconds:.0f} s"
        left = self.estimate.left(self.jobs_left(cell, mode, i))
        road.say(f"{cell.title():<34} {mode.name:<21} "
                 f"{told}  [{i + 1}/{self.rounds}, about {left / 60:.0f} min left]")


def place(cell, mode, i):
    """Returns where a run is kept."""
    return [cell.program.name, cell.percent, cell.policy, cell.compute, mode.name, i]


def kept_runs(modes, donor):
    """Returns the runs of an interrupted invocation with the same programs, modes and sizes."""
    facts = measure.machine_facts()
    binaries = {PROGRAMS_DIR / (p.binary + m.build) for p in PROGRAMS for m in modes}
    built = [*(road.machine.BIN / name for name in road.machine.PROGRAMS), *sorted(binaries)]
    kept = Kept(measure.BENCH / "gc-runs.jsonl", {
        "built": digest_of(b for b in built if b.exists()), "modes": [asdict(m) for m in MODES],
        "programs": [asdict(p) for p in PROGRAMS], "kernel": facts["kernel"], "cpu": facts["cpu"],
        "cpus": facts["cpus"], "awake": measure.AWAKE, "donor": donor,
        **{name: number(name, default) for name, default in
           (("MIB", 256), ("THREADS", 1), ("MARKERS", 1), ("ROUNDS", 0), ("LIMIT", road.RUN_SECONDS))}})
    if kept.values:
        road.say(f"resumes: {len(kept.values)} runs were made before; FRESH=1 begins again")
    return kept


def peak_of(kept, program):
    """Returns the peak of the baseline's memory in bytes, as of the interrupted invocation if it has one."""
    at = ["peak", program.name]
    if not kept.get(at):
        kept.add(at, {"bytes": road.measure_peak(Job(program, MODES[0]), "", measure.BENCH)[0]})
    return kept.get(at)["bytes"]


def bench():
    programs, donor = chosen("ONLY", PROGRAMS), setting("DONOR", "tcp")
    modes = chosen("MODES", MODES)
    if MODES[0] not in modes:
        modes.insert(0, MODES[0])
    common = next((p for p in programs if not p.own), programs[0])
    missing = [m for m in modes if not (PROGRAMS_DIR / (common.binary + m.build)).exists()]
    for m in missing:
        road.say(f"{m.name}: not built; install libgc-dev, then make gc-programs")
    modes = [m for m in modes if m not in missing]
    if donor not in TRANSPORTS:
        raise road.Failure(f"DONOR={donor}: no such transport; use DONOR={' or '.join(TRANSPORTS)}")
    percents = [int(p) for p in setting("PERCENTS", "100,50,25,13").split(",")]
    computes = setting("COMPUTE", "0,paper").split(",")
    if not all(c == "paper" or c.isdecimal() for c in computes):
        raise road.Failure(f"COMPUTE={','.join(computes)}: not numbers or \"paper\"; use COMPUTE=0,paper")
    policies = (os.environ.get("POLICIES") or "auto").split(",")
    # Live size times 2 for growth, times 4 as docs/benchmarks.md requires.
    device = max(8 * number("MIB", 256) << 20, 1 << 30)
    road.check_machine(device + (4 * number("MIB", 256) << 20) + (1 << 30), device + (1 << 30),
                       measure.BENCH, [])
    kept = kept_runs(modes, donor)
    b = Bench([], modes, max(number("RUNS", 5), 1), number("MINUTES", 0), kept)
    peaks = {}
    for program in programs:
        peaks[program] = peak_of(kept, program)
        road.say(f"{program.name}: peak {peaks[program] >> 20} MiB")
    b.cells = [Cell(p, percent, policy, peaks[p], compute) for compute in computes
               for policy in policies for percent in percents for p in programs]
    stopped = None
    try:
        with road.Road(measure.BENCH, device, address=TRANSPORTS[donor]) as r:
            b.all(r)
        if not b.skipped:
            kept.done()
    except (road.Stopped, road.Failure) as e:
        stopped = e             # the results so far are shown and written
    yield from gc_table.rows(b.cells, [m.name for m in modes], {
        "live_mib": number("MIB", 256), "threads": number("THREADS", 1),
        "markers": number("MARKERS", 1), "limit_seconds": b.limit, "donor": donor},
        device, sum(p.name not in WEAK for p in PROGRAMS))
    if stopped:
        raise stopped


if __name__ == "__main__":
    sys.exit(measure.main("gc", bench))
