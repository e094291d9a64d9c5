#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Records what the programs of bench-gc do with their heaps of MIB= (128) live data, object by object,
and replays it in PERCENTS= (25,13) of its pages as local memory: in plain memory on ebb's swap
device, and in a far store (heap_far.h), whose objects leave and come back one by one or by regions.
Targets: at 25 % the stores and the order book gain 2.5 times, and no other program loses.

MODES= (count,far,swap): `count` counts page faults, `far` replays in plain memory and in the far
store within its own budget, `swap` replays both in a cgroup with a limit, each in RUNS= (3)
interleaved rounds.  Only swap needs root and turns swap on.  Without it the time in swap is modelled: counted swap-ins times what one
has cost in bench-gc.  ONLY=kv-read,... chooses programs, DONOR= (shm, or tcp), POLICIES= (auto) of
the swap device.  FRESH=1 records again.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import heap_model as model
import measure
import road
from gc_programs import PROGRAMS
from kept import digest_of
from road import machine, parts

DIRECTORY = measure.BENCH / "heap"
REPLAY = machine.BUILD / "tests" / "heap_replay"
RECORDED = machine.BUILD / "tests" / "gc"
MIB = int(os.environ.get("MIB") or model.LIVE_MIB)
DONOR = os.environ.get("DONOR") or "shm"
# A shm donor is read by the program itself; over TCP it waits.
CLOCK, REPLAYED = ("cpu_seconds", "replayed, CPU time") if DONOR == "shm" else ("seconds", "replayed")
FAR_MEMORY = f"{max(8 * MIB, 1024)}M"
STORES = ("kv-write", "kv-read", "orders")
GAIN, LOSS = 2.5, 1.0
FOLLOWED_GAIN = {"kv-read": 1.2}    # with ADDED_US for each read
NAME_BYTES = 16
# What brings a region home: so many fetches of it among so many of all, neighbours in order; and
# whether references are healed.  The first is judged: for 32 fetches a region can be read.  The
# others are tried where there are targets.  The first plan was three fetches in 10 ms, in which
# about 5000 take place, besides neighbours.
STORES_BY = {"32 of 1024": (32, 1024, 1, 1), "neighbours": (0, 1, 1, 1), "3 of 64": (3, 64, 1, 1),
             "3 of 5000": (3, 5000, 1, 1), "no healing": (32, 1024, 1, 0)}
TOO_SMALL = "the budget is too small"
JUDGED, JUDGED_AT = "32 of 1024", 25


def chosen():
    names = [n for n in (os.environ.get("ONLY") or "").split(",") if n]
    programs = {p.name: p for p in PROGRAMS if not p.own}
    unknown = [n for n in names if n not in programs]
    if unknown:
        raise road.Failure(f"ONLY={','.join(unknown)}: no such program; there are {', '.join(programs)}")
    return [p for name, p in programs.items() if not names or name in names]


def modes():
    names = (os.environ.get("MODES") or "count,far,swap").split(",")
    unknown = [n for n in names if n not in ("count", "far", "swap")]
    if unknown:
        raise road.Failure(f"MODES={','.join(unknown)}: no such mode; there are count, far, swap")
    return names


def run(*argv, **more):
    """Runs one measurement; returns its report."""
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, **more)
    if done.returncode:
        raise road.Failure(f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def replay(*argv):
    return json.loads(run(REPLAY, *argv))


def fitting(*argv):
    """Returns a replay's report; None if the store's tables need more than its budget."""
    try:
        return replay(*argv)
    except road.Failure as e:
        if TOO_SMALL not in str(e):
            raise
        return None


def record(program):
    """Returns the program's trace, recorded unless it is there."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    binary = RECORDED / f"{program.binary}-recorded"
    key = {"program": digest_of([binary]), "mib": MIB, "size": program.size, "rounds": program.rounds,
           "share": program.share, "env": program.env}
    trace, said = DIRECTORY / f"{program.name}.trace", DIRECTORY / f"{program.name}.json"
    if not os.environ.get("FRESH") and trace.exists() and machine.read(said) == json.dumps(key):
        return trace
    said.unlink(missing_ok=True)
    env = {**os.environ, **dict(e.split("=") for e in program.env), "HEAP_TRACE": str(trace),
           "HEAP_EVERY": str(MIB << 16), "EBBGC_OPTIONS": "mode=stop,markers=1"}
    run(binary, "-n", program.size * MIB, "-r", program.rounds, "-o", program.share, env=env)
    said.write_text(json.dumps(key))
    return trace


@contextmanager
def far_donor():
    """A donor of far memory, at a unix socket or at a loopback port; its address."""
    with tempfile.TemporaryDirectory(prefix="ebb-heap-") as directory:
        local = f"unix:{directory}/donor.sock"
        log = measure.BENCH / "log" / "heap-donor.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        donor = parts.Donor(log, port=road.free_port(), memory=FAR_MEMORY, slab="64M", also=[local],
                            options=("--far", FAR_MEMORY))
        try:
            yield local if DONOR == "shm" else donor.address
        finally:
            donor.stop()


@contextmanager
def names_of(objects):
    """A file in memory for a program's references, which count as this process's memory."""
    with tempfile.NamedTemporaryFile(prefix="ebb-heap-", dir="/dev/shm") as f:
        chunk = bytes(1 << 20)
        for _ in range(objects * NAME_BYTES // len(chunk) + 1):
            f.write(chunk)
        f.flush()
        yield f.name


class Job:
    """A workload for Road.run()."""

    def __init__(self, name, argv, told):
        self.name, self.words, self.told = name, argv, told

    def argv(self, _):
        return road.output_to(self.told, *map(str, self.words))


def replay_limited(r, name, argv, limit, policy):
    """Returns (report, ebb's counters) of a replay in a cgroup."""
    told = DIRECTORY / "run.json"
    told.unlink(missing_ok=True)
    outcome = r.run(Job(name, [REPLAY, *argv], told), "", limit, policy)
    return json.loads(told.read_text()), outcome.stats


def ways(name, percent):
    if percent != JUDGED_AT:
        return (JUDGED,)
    return STORES_BY if name in STORES else (JUDGED, "neighbours")


class Heap:
    """A program's heap: its trace and what is known of it."""

    def __init__(self, program, rows, source):
        self.name, self.trace = program.name, record(program)
        self.rows, self.source = rows, source
        # Of each round: the report in plain memory; (percent, how): in the far store, None: too small.
        self.counted, self.plain, self.far = {}, [], {}
        facts = replay("count", self.trace)
        self.pages, self.objects = facts["pages"], facts["objects"]
        road.say(f"{self.name}: {self.objects} objects, {facts['touches']} touches, "
                 f"{self.pages >> 8} MiB of pages, {facts['peak_bytes'] >> 20} MiB of objects")

    def limit(self, percent):
        return self.pages * 4096 * percent // 100

    def known(self, percent):
        return model.known(self.rows, self.source, self.name, percent)

    def local(self, percent):
        """Returns the program's seconds with all memory, or else the replay's."""
        k = self.known(percent)
        if k.local is None:
            return statistics.median(p[CLOCK] for p in self.plain)
        return k.local * MIB / model.LIVE_MIB

    def count(self, percents):
        told = replay("count", self.trace, *(self.limit(p) for p in percents))
        self.counted = dict(zip(percents, told["limits"]))

    def far_argv(self, percent, donor, names, how):
        return ["far", self.trace, model.budget(self.limit(percent)), donor, names, *STORES_BY[how], 0]

    def replay_far(self, percents, donor):
        """Replays in plain memory and in the far store; only what has targets in more than one round."""
        self.far = {(p, how): [] for p in percents for how in ways(self.name, p)}
        for i in range(measure.runs(3)):
            jobs = [None, *(at for at in self.far if at[1] == JUDGED or not i)]
            for at in reversed(jobs) if i % 2 else jobs:
                if at is None:
                    self.plain.append(replay("plain", self.trace))
                elif None not in self.far[at]:
                    self.far[at].append(fitting(*self.far_argv(at[0], donor, "-", at[1])))
        for (percent, how), rounds in self.far.items():
            told = rounds[0]
            if told is None:
                road.say(f"{self.name}, {percent} %, {how}: {TOO_SMALL}")
                continue
            more = [t[CLOCK] - plain[CLOCK] for t, plain in zip(rounds, self.plain)]
            road.say(f"{self.name}, {percent} %, {how}: {told['fetches']} fetches, {told['homes']} regions "
                     f"home, {told['rescues']} rescues, {told['left']} left, "
                     f"{statistics.median(more):.2f} s")

    def params(self, percent, **more):
        k = self.known(percent)
        counted = self.counted.get(percent)
        return {"program": self.name, "live_mib": MIB, "local_percent": percent, "donor": DONOR,
                "limit_mib": measure.rounded(self.limit(percent) / model.MIB), "pages": self.pages,
                "program_local_s": k.local, "program_swapped_s": k.short, "program_swapped_mode": k.mode,
                "program_swapped_in": k.swapped_in, "page_us": measure.rounded(k.page_us),
                "of": k.source, **({"counted": counted} if counted else {}), **more}

    def swapped(self, percent, more_us=0):
        """Returns the modelled seconds in swap, without swap-ins for new objects; None without counts."""
        if percent not in self.counted:
            return None
        c = self.counted[percent]["kernel"]
        return self.known(percent).swapped(c["swapped_in"] - c["born_in"], MIB, more_us)

    def far_rows(self, percent):
        """Modelled time in swap against the far store's."""
        swapped = self.swapped(percent, model.TCP_PAGE_US if DONOR == "tcp" else 0)
        for how in ways(self.name, percent):
            told, seconds = self.far[percent, how][0], self.seconds(percent, how)
            if told is None:
                yield measure.plain_row(f"{self.name}, {percent} %, {how}", self.params(
                    percent, far=None, failed=TOO_SMALL), [None], "s")
                continue
            plain = self.plain[0]
            row = against(f"{self.name}, {percent} %, {how}", self.params(
                percent, baseline_is="modelled", ebb_is=REPLAYED, plain=plain, far=told,
                replay_plain_s=[measure.rounded(p[CLOCK]) for p in self.plain],
                replay_far_s=[measure.rounded(t[CLOCK]) for t in self.far[percent, how]],
                predicted_s=measure.rounded(model.predicted(self.local(percent), told)),
                pessimistic_s=measure.rounded(model.predicted(self.local(percent), told, model.PESSIMISTIC)),
                added_us_per_fetch=added(told, plain)), swapped, seconds)
            yield judged(row, self.name, percent) if how == JUDGED else row
            if how == JUDGED:
                yield from self.measured_rows(percent, seconds)
        if self.name in STORES and self.far[percent, JUDGED][0] and DONOR == "shm":
            yield from self.delayed_rows(percent)

    def seconds(self, percent, how):
        """Returns the seconds with far objects of each round; none if they do not fit."""
        return [model.replayed(self.local(percent), plain[CLOCK], told[CLOCK])
                for told, plain in zip(self.far[percent, how], self.plain) if told]

    def measured_rows(self, percent, seconds):
        """Compares with the program as bench-gc has measured it, in its fastest mode."""
        k = self.known(percent)
        if k.short is not None and MIB == model.LIVE_MIB and DONOR == "shm":
            row = against(f"{self.name}, {percent} %, {JUDGED}, against bench-gc's {k.mode}", self.params(
                percent, baseline_is="measured by bench-gc", ebb_is=REPLAYED), k.short, seconds)
            yield judged(row, self.name, percent)

    def delayed_rows(self, percent):
        """Modelled on both sides: a donor over TCP.  Prefetching hides nothing of a store's misses."""
        swapped = self.swapped(percent, model.TCP_PAGE_US)
        for how, followed in (("", False), (", references followed", True)):
            seconds = [model.delayed(s, told, followed) for s, told in
                       zip(self.seconds(percent, JUDGED), self.far[percent, JUDGED])]
            row = against(f"{self.name}, {percent} %, {model.ADDED_US} us a fetch{how}", self.params(
                percent, baseline_is="modelled", ebb_is="modelled"), swapped, seconds)
            least = FOLLOWED_GAIN.get(self.name)
            yield aim(row, least) if followed and least and percent == JUDGED_AT else row


def added(told, plain):
    """Returns the us by which a fetch, a rescue or a 64th of a region made the replay longer."""
    moved = told["fetches"] + told["rescues"] + 64 * told["homes"]
    return measure.rounded((told[CLOCK] - plain[CLOCK]) / moved * 1e6) if moved else None


def against(name, params, baseline, seconds):
    """Compares @seconds of each round with the one number @baseline, None if it is not known."""
    if baseline is None:
        return measure.plain_row(name, params, seconds, "s")
    return measure.row(name, params, [baseline] * len(seconds), seconds, "s")


def aim(row, least):
    """Sets a target, decided by the whole interval: one replay decides nothing."""
    if row["ratio"] is not None:
        row["target"], row["met"] = f">= {least}", measure.decided(least, row["low"], row["high"])
    return row


def judged(row, name, percent):
    """At 25 %, with a shm donor, there are targets."""
    if percent == JUDGED_AT and DONOR == "shm":
        return aim(row, GAIN if name in STORES else LOSS)
    return row


def swap_rows(heaps, percents, policy):
    """Replays in swap and in the far store, both in a cgroup with the limit; yields rows of time."""
    device = max(8 * MIB << 20, 1 << 30)
    road.check_machine(2 * device + (4 * MIB << 20) + (1 << 30), device + (1 << 30), measure.BENCH, [])
    address = road.SHM if DONOR == "shm" else None
    rounds = measure.runs(3)
    with far_donor() as donor, road.Road(measure.BENCH, device, address=address) as r:
        for heap in heaps:
            with names_of(heap.objects) as names:
                plain = [replay("plain", heap.trace)["seconds"] for _ in range(rounds)]
                for percent in percents:
                    yield swap_row(r, heap, percent, policy, statistics.median(plain), rounds,
                                   {"swap": ["plain", heap.trace],
                                    "far": heap.far_argv(percent, donor, names, JUDGED)})


def swap_row(r, heap, percent, policy, plain, rounds, argv):
    runs = {name: [] for name in argv}
    for i in range(rounds):
        for name in sorted(argv, reverse=i % 2):
            told, stats = replay_limited(r, f"heap-{heap.name}-{name}", argv[name], heap.limit(percent), policy)
            runs[name].append((told, stats))
            road.say(f"{heap.name}, {percent} %, {name}: {told['seconds']:.2f} s, swap-ins "
                     f"{stats.get('swapped_in', 0)}  [{i + 1}/{rounds}]")
    local = heap.local(percent)
    seconds = {name: [model.replayed(local, plain, told["seconds"]) for told, _ in some]
               for name, some in runs.items()}
    counts = {f"{name}_{key}": measure.rounded(statistics.median(s.get(key, 0) for _, s in some))
              for name, some in runs.items() for key in ("misses", "swapped_in", "swapped_out", "miss_ns")}
    row = measure.row(f"{heap.name}, {percent} %, {policy}, replayed in swap", heap.params(
        percent, baseline_is="replayed in swap", ebb_is="replayed", plain_s=measure.rounded(plain), policy=policy,
        replay_swap_s=[measure.rounded(t["seconds"]) for t, _ in runs["swap"]],
        replay_far_s=[measure.rounded(t["seconds"]) for t, _ in runs["far"]], **counts),
        seconds["swap"], seconds["far"], "s")
    return judged(row, heap.name, percent)


def bench():
    missing = [str(p) for p in (REPLAY, machine.BIN / "ebb-donord") if not p.exists()]
    if missing:
        raise road.Failure(f"{', '.join(missing)}: not built; run make heap-programs")
    if DONOR not in ("shm", "tcp"):
        raise road.Failure(f"DONOR={DONOR}: no such transport; use DONOR=shm or tcp")
    names, percents = modes(), [int(p) for p in (os.environ.get("PERCENTS") or "25,13").split(",")]
    rows, source = model.results(measure.machine_facts()["kernel"])
    heaps = [Heap(p, rows, source) for p in chosen()]
    if "count" in names:
        for heap in heaps:
            heap.count(percents)
    if "far" in names:
        with far_donor() as donor:
            for heap in heaps:
                heap.replay_far(percents, donor)
                for percent in percents:
                    yield from heap.far_rows(percent)
    if "swap" in names:
        for heap in heaps:
            heap.plain = heap.plain or [replay("plain", heap.trace)]
        for policy in (os.environ.get("POLICIES") or "auto").split(","):
            yield from swap_rows(heaps, percents, policy)


if __name__ == "__main__":
    sys.exit(measure.main("heap", bench))
