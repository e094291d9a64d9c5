#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures the processor time of a page that is swapped out and in again, by component, for each
access pattern over MIB= (64) MiB at half of it, in RUNS= (5) interleaved rounds: ebb over FUSE with
a tcp and a shm donor, with and without backup, the kernel's readahead on ebb's device, zram, and a
loop device in memory.  ONLY=seq,chase picks patterns, MODES=tcp,zram modes, QUICK=1 a few of both,
OLD=DIR adds another build of ebb, MINUTES= (24) ends the rounds.  Interrupted, it resumes after the
last row that was measured; FRESH=1 begins again.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import account
import measure
import road
from account import BESIDE, COMPONENTS
from apps import Zram
from contest import COUNTED, Mark, since
from kept import Kept, digest_of
from road import machine, parts

MIB = int(os.environ.get("MIB") or 64)
PERCENT = 50
MINUTES = float(os.environ.get("MINUTES") or 24)
SCAN = machine.BUILD / "tests" / "scan"
# At least four times the swapped-out bytes: past half full the kernel frees clean slots.
DEVICE = max(-(-4 * MIB * (100 - PERCENT) // 100 // 64) * 64, 512) << 20
RAM_FIRST = 32767
OOM_TRIES = 3


@dataclass(frozen=True)
class Pattern:
    """The first of its passes is not measured: it brings swap into its steady state."""
    name: str
    order: str                  # of scan
    passes: int
    write: bool = False

    def argv(self, mark):
        return [SCAN, "--json", "--hold", "--mib", str(MIB), "--pattern", self.order, "--passes",
                str(self.passes + 1), "--warm", "1", "--mark", str(mark),
                *(["--write"] if self.write else [])]


# As many passes as hide the 10 ms in which /proc/stat counts idle time.
PATTERNS = (Pattern("seq", "seq", 4), Pattern("seq-dirty", "seq", 3, write=True),
            Pattern("stride", "stride:7", 2), Pattern("chase", "chase", 2),
            Pattern("random", "random", 2))


@dataclass(frozen=True)
class Mode:
    """One policy on one kind of swap."""
    name: str
    swap: str                   # memory (none), zram, ram, or an ebb device: SWAPS
    policy: str = None


# Ebb's devices: transport, durability.
SWAPS = {"tcp": (None, "disk"), "shm": (road.SHM, "disk"),
         "tcp-nobackup": (None, "none"), "shm-nobackup": (road.SHM, "none")}
MODES = (Mode("memory", "memory"), Mode("zram", "zram"), Mode("ram", "ram"),
         Mode("kernel", "tcp", "none"), *(Mode(name, name, "auto") for name in SWAPS))
# The first of these that was measured is the baseline of all others.
FLOORS = ("zram", "ram", "kernel")
QUICK_PATTERNS, QUICK_MODES = ("seq", "seq-dirty", "chase"), ("zram", "tcp", "shm-nobackup")


def run(*argv):
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    if done.returncode:
        raise road.Failure(f"{' '.join(map(str, argv))}: {done.stderr.strip()}")
    return done.stdout.strip()


# --- swap ------------------------------------------------------------------

@contextmanager
def build_of(tree):
    """Uses the programs of another built @tree; None: this one's."""
    before = machine.BIN, parts.BIN
    if tree:
        machine.BIN = parts.BIN = Path(tree) / "build" / "bin"
    try:
        yield
    finally:
        machine.BIN, parts.BIN = before


def mount_memory(where):
    """tmpfs could itself be swapped out to this device: without its option, ramfs."""
    try:
        run("mount", "-t", "tmpfs", "-o", f"noswap,size={DEVICE >> 20}M", "ebb-cost", where)
    except road.Failure:
        run("mount", "-t", "ramfs", "ebb-cost", where)


def ram_on(stack):
    """Swaps to a loop device over a file in memory, which has all its pages already."""
    where = Path(tempfile.mkdtemp(prefix="ebb-cost-"))
    stack.callback(where.rmdir)
    mount_memory(where)
    stack.callback(run, "umount", where)
    with open(where / "swap", "wb") as f:
        for _ in range(DEVICE >> 20):
            f.write(bytes(1 << 20))
    loop = run("losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show", where / "swap")
    stack.callback(run, "losetup", "-d", loop)
    run("mkswap", loop)
    run("swapon", "-p", RAM_FIRST, loop)
    stack.callback(machine.swapoff, loop)


@contextmanager
def ram_loop():
    stack = ExitStack()
    try:
        with road.interrupts.deferred():
            ram_on(stack)
        yield
    finally:
        with road.interrupts.deferred():
            stack.close()


@contextmanager
def swap_of(kind):
    """Yields {pid: program} of the processes that serve this kind of swap."""
    if kind == "memory":
        yield {}
    elif kind == "zram":
        with Zram().on():
            yield {}
    elif kind == "ram":
        with ram_loop():
            yield {}
    else:
        address, durability = SWAPS[kind]
        with road.Road(measure.BENCH, DEVICE, address=address, durability=durability) as r:
            yield roles_of(r)


def roles_of(r):
    of = account.parents()
    tops = {"ebbd": r.ebbd.pid, "ebb-donord": r.donor.pid, "ebb-swapd": r.record()["server_pid"]}
    return {pid: name for name, top in tops.items() for pid in account.family(top, of)}


# --- one run ---------------------------------------------------------------

class Run:
    """One program in its own cgroup; .used has what its measured part used."""

    def __init__(self, pattern, mode, roles, count):
        self.pattern, self.mode, self.roles, self.count = pattern, mode, roles, count
        limit = None if mode.swap == "memory" else MIB * PERCENT // 100
        self.cgroup = parts.Cgroup(f"ebb-cost-{os.getpid()}", limit_mib=limit)
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
        self.cgroup.remove()

    def ebb(self):
        row = parts.stats(self.cgroup)
        return {key: row.get(key, 0) for key in COUNTED}

    def snapshot(self, take):
        return take(self.process.pid, self.count, self.ebb if self.mode.policy else None)

    def measured(self):
        if self.mode.policy:
            parts.ebbctl("policy", "attach", self.mode.policy, self.cgroup.path)
        with Mark(measure.BENCH / "cost-mark", lambda: self.snapshot(account.at_start)) as mark:
            self.process = subprocess.Popen(
                list(map(str, self.pattern.argv(mark.path))), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, preexec_fn=self.cgroup.enter)
            watchdog = threading.Timer(road.RUN_SECONDS, self.process.kill)
            watchdog.start()
            try:
                report, done = self.process.stdout.readline(), self.process.stdout.readline()
                after = self.snapshot(account.at_end) if done else None
            finally:
                watchdog.cancel()
        if not done:
            self.refuse(self.process.wait(), report)
        before, problem = mark.taken, mark.problem
        self.process.communicate("\n", timeout=60)
        if problem or not before:
            raise road.Failure(f"{self.pattern.name}, {self.mode.name}: no counters: {problem}")
        report = json.loads(report)
        if report["bad"]:
            raise road.Failure(f"scan {self.pattern.name}: {report['bad']} words were wrong")
        of = account.parents()
        used = account.used(before, after, self.everyone(of), account.family(2, of))
        used.visits = report["pages"] * self.pattern.passes
        used.ebb = since(before.ebb, after.ebb) if self.mode.policy else {}
        if self.mode.swap != "memory" and used.pages < used.visits // 8:
            raise road.Failure(f"{self.pattern.name}, {self.mode.name}: {used.pages} pages were "
                               f"swapped in during {used.visits} accesses; is other swap on?")
        return used

    def everyone(self, of):
        return {**self.roles, self.process.pid: "program",
                **dict.fromkeys(account.family(os.getpid(), of) - {self.process.pid, *self.roles},
                                "bench")}

    def refuse(self, status, report):
        kills = self.cgroup.events("oom_kill")
        kind = road.OutOfMemory if kills else road.Failure
        raise kind(f"scan {self.pattern.name}, {self.mode.name}: ended with {status}, {kills} OOM "
                   f"kills {report.strip()}")


def one(pattern, mode, roles, count, make=Run):
    """Runs @make, with retries: reclaim of a cgroup this small sometimes gives up."""
    for left in reversed(range(OOM_TRIES)):
        try:
            with make(pattern, mode, roles, count) as r:
                return r.measured()
        except road.OutOfMemory as e:
            if not left:
                raise
            road.say(f"once more: {e}")


# --- rounds ----------------------------------------------------------------

class Rounds:
    """
    All runs: {(build, mode, pattern): [(timed, counted)]}, paired by their place.  @kept has those
    of an interrupted invocation.
    """

    def __init__(self, patterns, modes, old, kept=None):
        self.patterns, self.modes, self.old, self.kept = patterns, modes, old, kept
        self.runs = {}
        kinds = list(dict.fromkeys(m.swap for m in modes))
        self.places = [(None, kind) for kind in kinds]
        self.places += [(old, kind) for kind in kinds if old and kind in SWAPS]

    def hold(self, rounds):
        """Ends early if another round would take more than MINUTES= in all."""
        began, longest = time.monotonic(), 0.0
        for i in range(rounds):
            start = time.monotonic()
            if i and start - began + longest > MINUTES * 60:
                road.say(f"{i} of {rounds} rounds: another would exceed MINUTES={MINUTES:g}")
                return
            at = i % len(self.places)
            taken = {}
            for build, kind in self.places[at:] + self.places[:at]:
                taken.update(self.visit(build, kind, i))
            # Only whole rounds: all runs are pairs.
            for key, pair in taken.items():
                self.runs.setdefault(key, []).append(pair)
            longest = max(longest, time.monotonic() - start)

    def visit(self, build, kind, number):
        """Measures all patterns on one swap device, each without and with counters."""
        rows = [(build, mode, pattern) for mode in self.modes if mode.swap == kind
                for pattern in self.patterns]
        taken = {row: pair for row in rows if (pair := self.measured_before(number, *row))}
        if len(taken) == len(rows):
            return taken
        with build_of(build), swap_of(kind) as roles:
            for row in rows:
                if row not in taken:
                    taken[row] = self.measure(number, *row, roles)
        return taken

    def measure(self, number, build, mode, pattern, roles):
        timed = one(pattern, mode, roles, None)
        with account.Count() as count:
            counted = one(pattern, mode, roles, count)
        if self.kept:
            self.kept.add([number, bool(build), mode.name, pattern.name],
                          [asdict(timed), asdict(counted)])
        self.tell(number, build, mode, pattern, timed)
        return timed, counted

    def measured_before(self, number, build, mode, pattern):
        """Returns the pair that an interrupted invocation measured, or None."""
        pair = self.kept and self.kept.get([number, bool(build), mode.name, pattern.name])
        return tuple(account.Used(**run) for run in pair) if pair else None

    def tell(self, number, build, mode, pattern, timed):
        name = ("old " if build else "") + mode.name
        total = sum(timed.us.get(part, 0) for part in COMPONENTS)
        per = f"{total / timed.pages:6.2f} us/page" if timed.pages else ""
        road.say(f"round {number + 1}  {name:<16} {pattern.name:<10} {timed.seconds:6.2f} s  "
                 f"{timed.pages:>6} pages in  {per}")


# --- results ---------------------------------------------------------------

def interval(values):
    """Returns {"us", "low", "high"}: the median, and the mean's 95 % interval by Student's t."""
    found = {"us": measure.rounded(statistics.median(values)), "low": None, "high": None}
    if len(values) > 1:
        mean = statistics.fmean(values)
        half = measure.t975(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        found.update(low=measure.rounded(mean - half), high=measure.rounded(mean + half))
    return found


def middle(values):
    values = [v for v in values if v is not None]
    return measure.rounded(statistics.median(values)) if values else None


def middles(rows):
    """Returns {key: median} of dicts; a key that one lacks counts as zero there."""
    keys = sorted({key for row in rows for key in row})
    return {key: middle([row.get(key, 0) for row in rows]) for key in keys}


class Case:
    """All runs of one pattern in one mode of one build."""

    def __init__(self, pairs, memory):
        self.timed, self.counted = [t for t, _ in pairs], [c for _, c in pairs]
        self.costs = [account.page_costs(t, c, m.us["program"])
                      for t, c, m in zip(self.timed, self.counted, memory)]
        self.sums = [sum(c.values()) for c in self.costs]

    def per_page(self, of):
        """Returns {key: median per page} of the dicts of(run), which are of counted runs."""
        return middles([{k: v / r.pages for k, v in of(r).items()} for r in self.counted])

    def components(self):
        found = {part: interval([c[part] for c in self.costs]) for part in COMPONENTS}
        return {**found, "sum": interval(self.sums)}

    def calls(self):
        names = {part for r in self.counted for part in r.calls}
        return {part: self.per_page(lambda r, p=part: r.calls.get(p, {})) for part in sorted(names)}

    def switches(self):
        """Returns {component: [voluntary, involuntary]} per page."""
        return {part: [middle([r.switches.get(part, [0, 0])[i] / r.pages for r in self.timed])
                       for i in range(2)]
                for part in (*COMPONENTS[:-1], *BESIDE)}

    def extra(self):
        """Returns the us per page that counting adds."""
        return middle([sum(account.page_costs(c, c, 0).values())
                       - sum(account.page_costs(t, c, 0).values())
                       for t, c in zip(self.timed, self.counted)])

    def params(self):
        by_ebb = [{k: v / t.pages for k, v in t.ebb.items()} for t in self.timed]
        return {
            "us_per_page": self.components(),
            "us_per_access": interval([us * t.pages / t.visits
                                       for us, t in zip(self.sums, self.timed)]),
            "threads_us": {k: v for k, v in middles(
                [{k: v / t.pages for k, v in t.threads.items()} for t in self.timed]).items()
                if v >= 0.005},
            "wall_us": middle([t.seconds * 1e6 / t.pages for t in self.timed]),
            "pages": int(statistics.median(t.pages for t in self.timed)),
            "pages_in_per_access": self.per_access(),
            "pages_out_per_page": middle([t.out / t.pages for t in self.timed]),
            "minor_faults": middle([t.faults[0] / t.pages for t in self.timed]),
            "major_faults": middle([t.faults[1] / t.pages for t in self.timed]),
            "ebb": {k: v for k, v in middles(by_ebb).items() if not k.endswith("_ns")},
            "lost_to_misses_us": middle([t.ebb["miss_ns"] / 1e3 / t.pages if t.ebb else None
                                         for t in self.timed]),
            "lost_to_late_us": middle([t.ebb["late_ns"] / 1e3 / t.pages if t.ebb else None
                                       for t in self.timed]),
            "switches": self.switches(),
            "interrupts": middles([{k: v / t.pages for k, v in t.interrupts.items() if v}
                                   for t in self.timed]),
            "softirqs": middles([{k: v / t.pages for k, v in t.softirqs.items() if v}
                                 for t in self.timed]),
            "handlers_us": self.per_page(lambda r: {k: v[1] for k, v in r.handled.items()}),
            "calls": self.calls(),
            "calls_per_page_moved": middles([account.calls_per_page_moved(r)
                                             for r in self.counted]),
            "bytes_moved": self.per_page(lambda r: r.moved),
            "bpf_ns": self.per_page(lambda r: {k: v[0] for k, v in r.bpf.items()}),
            "bpf_runs": self.per_page(lambda r: {k: v[1] for k, v in r.bpf.items()}),
            "counting_us": self.extra(),
            "explained": self.explained()[0], "beside": self.explained()[1]}

    def explained(self):
        return tuple(map(measure.rounded, account.explained(self.timed, self.counted)))

    def per_access(self):
        """Returns pages swapped in per access: less where a policy drops pages behind a stream."""
        return middle([t.pages / t.visits for t in self.timed])

    def of_interrupts(self, *names):
        return middle([sum(t.interrupts.get(n, 0) for n in names) / t.pages for t in self.timed])

    def all_switches(self):
        return middle([sum(sum(t.switches.get(p, [0, 0])) for p in COMPONENTS) / t.pages
                       for t in self.timed])

    def all_calls(self):
        return middle([sum(sum(c.values()) for c in r.calls.values()) / r.pages
                       for r in self.counted])


def cases_of(rounds):
    """Returns {(pattern, mode, build): Case}, in the order of the table."""
    found = {}
    memory = {p: [t for t, _ in pairs] for (_, m, p), pairs in rounds.runs.items()
              if m.swap == "memory"}
    for pattern in rounds.patterns:
        for mode in rounds.modes:
            for build in (None, rounds.old) if rounds.old else (None,):
                pairs = rounds.runs.get((build, mode, pattern))
                if pairs and mode.swap != "memory":
                    found[pattern, mode, build] = Case(pairs, memory[pattern])
    return found


def table(cases):
    """Returns the lines of the table: one for each pattern and mode, us per page by component."""
    heads = {"executor": "exec.", "ebb-swapd": "swapd", "ebb-donord": "donord", "interrupts": "irq"}
    lines = [f"{'us per page swapped in':<25}" +
             "".join(f"{heads.get(p, p):>8}" for p in COMPONENTS) +
             f"{'sum':>8}{'in/acc':>8}{'IPIs':>7}{'TLB':>6}{'switch':>8}{'calls':>7}  explained"]
    for (pattern, mode, build), case in cases.items():
        name = f"{pattern.name:<10}{'old ' if build else ''}{mode.name}"
        costs = [statistics.median(c[p] for c in case.costs) for p in COMPONENTS]
        lines.append(
            f"{name:<25}" + "".join(f"{us:8.2f}" for us in costs) +
            f"{statistics.median(case.sums):8.2f}{case.per_access():8.2f}"
            f"{case.of_interrupts('CAL', 'RES'):7.2f}{case.of_interrupts('TLB'):6.2f}"
            f"{case.all_switches():8.2f}{case.all_calls():7.2f}  "
            "explained {:4.0%}, beside {:4.0%}".format(*case.explained()))
    return lines


def alone(name, params, values):
    """Returns the row of a mode without a baseline; params have its interval."""
    return {"name": name, "params": params, "baseline": None,
            "ebb": measure.rounded(statistics.median(values)), "unit": "us/page", "ratio": None,
            "low": None, "high": None, "runs": len(values), "target": None, "met": None}


def rows_of(cases, old_commit):
    rows = []
    for (pattern, mode, build), case in cases.items():
        named = {m.name: c for (p, m, b), c in cases.items() if p == pattern and not b}
        floor = next((f for f in FLOORS if f in named), None)
        params = {"pattern": pattern.name, "mode": mode.name, "policy": mode.policy, "mib": MIB,
                  "local_percent": PERCENT, "old": old_commit if build else None,
                  "device_over_swapped": round((DEVICE >> 20) * 100 / MIB / (100 - PERCENT), 1),
                  **case.params()}
        name = f"{pattern.name}: {'old ' if build else ''}{mode.name}"
        if floor in (None, mode.name):
            rows.append(alone(name, params, case.sums))
        else:
            rows.append(measure.row(f"{name} against {floor}", params, named[floor].sums, case.sums,
                                    "us/page"))
        if build and mode.name in named:
            new = named[mode.name]
            rows.append(measure.row(
                f"{pattern.name}: {mode.name} against old",
                {"pattern": pattern.name, "mode": mode.name, "mib": MIB, "old": old_commit,
                 "components": {p: middle([n[p] / o[p] for n, o in zip(new.costs, case.costs)
                                           if o[p] > 0.01]) for p in COMPONENTS}},
                case.sums, new.sums, "us/page"))
    return rows


def commit_of(tree):
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", tree, "describe", "--always",
                           "--dirty", "--abbrev=12", "--exclude=*"], capture_output=True, text=True)
    return done.stdout.strip() or str(tree)


# --- all -------------------------------------------------------------------

def choose(knob, all_, quick):
    """Returns those of @all_ that the variable @knob names, or, with QUICK=1, @quick."""
    text = os.environ.get(knob) or (",".join(quick) if os.environ.get("QUICK") else "")
    names = [n for n in text.split(",") if n] or [x.name for x in all_]
    unknown = set(names) - {x.name for x in all_}
    if unknown:
        raise road.Failure(f"{knob}={text}: no {', '.join(sorted(unknown))}; there are "
                           + ", ".join(x.name for x in all_))
    return [x for x in all_ if x.name in names]


def check(old):
    road.check_machine(2 * DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH, [])
    missing = [p for p in (SCAN, account.COUNT) if not p.exists()]
    missing += [Path(old) / "build" / "bin" / name for name in machine.PROGRAMS
                if old and not (Path(old) / "build" / "bin" / name).exists()]
    if missing:
        raise road.Failure(f"{missing[0]}: not built; run make bench-cost, and make in OLD=")
    if road.other_swap():
        raise road.Failure(f"{', '.join(road.other_swap())}: is on as swap, and its pages would be "
                           "counted; swapoff it")


def kept_runs(old):
    """Returns the runs of an interrupted invocation with the same programs and settings."""
    built = {"new": machine.BIN, **({"old": Path(old) / "build" / "bin"} if old else {})}
    key = {name: digest_of(where / program for program in machine.PROGRAMS)
           for name, where in built.items()}
    facts = measure.machine_facts()
    kept = Kept(measure.BENCH / "cost-runs.jsonl",
                {**key, "scan": digest_of([SCAN]), "kernel": facts["kernel"], "cpu": facts["cpu"],
                 "cpus": facts["cpus"], "mib": MIB, "percent": PERCENT, "awake": measure.AWAKE})
    if kept.values:
        road.say(f"resumes: {len(kept.values)} rows were measured before; FRESH=1 begins again")
    return kept


def bench():
    old = os.environ.get("OLD") and str(Path(os.environ["OLD"]).resolve())
    patterns, modes = choose("ONLY", PATTERNS, QUICK_PATTERNS), choose("MODES", MODES, QUICK_MODES)
    check(old)
    if MODES[0] not in modes:
        modes = [MODES[0], *modes]      # what the program takes by itself
    if not Zram().there:
        road.say("zram: this kernel has none; its rows are left out")
        modes = [m for m in modes if m.swap != "zram"]
    kept = kept_runs(old)
    rounds, problem = Rounds(patterns, modes, old, kept), None
    try:
        rounds.hold(measure.runs(3 if os.environ.get("QUICK") else 5))
        kept.done()
    except (road.Stopped, road.Failure, machine.MachineError, parts.Failed) as e:
        problem = e         # after the rows of the rounds before
    cases = cases_of(rounds)
    if cases:
        road.say()
        for line in table(cases):
            road.say(line)
        yield from rows_of(cases, old and commit_of(old))
    if problem:
        raise problem


if __name__ == "__main__":
    if not shutil.which("losetup"):
        sys.exit("bench-cost: losetup: not installed; run make deps")
    sys.exit(measure.main("cost", bench))
