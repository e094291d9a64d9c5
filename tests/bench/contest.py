# SPDX-License-Identifier: GPL-2.0-or-later
"""
Compares modes on one load: the kernel's readahead, leap, ebb's own policies and auto, in
interleaved rounds on one device, with the counters of the measured part.
"""
import errno
import json
import os
import select
import statistics
import threading
import time
from dataclasses import dataclass, field

import loads
import measure
import road
from road import parts

# A mode whose trials all take longer than this many times the best of its group is dropped: after
# one that is slow it has another.
CLOSE, TRIALS = 1.1, 2
GO_SECONDS = 60
# Reclaim of a cgroup this small sometimes gives up while pages are being written.
OOM_TRIES = 3
COUNTED = ("misses", "hits", "late", "wasted", "prefetched", "requests", "swapped_in",
           "swapped_out", "miss_ns", "late_ns", "gc_misses", "gc_hits")


@dataclass(frozen=True)
class Mode:
    name: str
    group: str                  # of GROUPS
    policy: str                 # and parameters
    cluster: int = None         # vm.page-cluster; None: as found


KERNEL = (Mode("kernel 3", "kernel", "none", 3), Mode("kernel 0", "kernel", "none", 0))
LEAP = Mode("leap", "leap", "leap")
BENEFIT = Mode("auto benefit=on", "benefit", "auto benefit=1")
# All but benefit run by default.
GROUPS = ("kernel", "leap", "best", "auto", "benefit")


@dataclass
class Run:
    """One run: seconds of its measured part, and ebb's counters of it."""
    seconds: float
    stats: dict
    cpu: float

    @property
    def coverage(self):
        found = self.stats["hits"] + self.stats["late"]
        all_ = found + self.stats["misses"]
        return found / all_ if all_ else None

    @property
    def accuracy(self):
        found = self.stats["hits"] + self.stats["late"]
        return found / self.stats["prefetched"] if self.stats["prefetched"] else None

    @property
    def unread(self):
        """Returns unused prefetched pages per miss."""
        s = self.stats
        return max(s["prefetched"] - s["hits"] - s["late"], 0) / max(s["misses"], 1)

    @property
    def miss_us(self):
        return self.stats["miss_ns"] / 1e3 / self.stats["misses"] if self.stats["misses"] else None


def policies():
    """Returns the names of the running ebbd's policies."""
    return {p["name"] for p in parts.ebbctl_json("policy", "list")["policies"]}


def groups():
    """Returns the groups of modes in MODES."""
    text = os.environ.get("MODES") or ",".join(GROUPS[:-1])
    if set(text.split(",")) - set(GROUPS):
        raise road.Failure(f"MODES={text}: use some of {','.join(GROUPS)}")
    return set(text.split(","))


def modes_of(load, known):
    """Returns the modes to run; a group may have several."""
    wanted = groups()
    modes = [*KERNEL]
    if "leap" in known:
        modes.append(LEAP)
    modes += [Mode(name, "best", name) for name in loads.CANDIDATES[load.kind] if name in known]
    if "auto" in known:
        modes += [Mode("auto", "auto", "auto"), BENEFIT]
    return [m for m in modes if m.group in wanted]


def say_missing(known):
    wanted = sorted({n for names in loads.CANDIDATES.values() for n in names} | {"leap", "auto"})
    missing = [n for n in wanted if n not in known]
    if missing:
        road.say(f"ebbd has no policy {', '.join(missing)}: left out")


class Mark(threading.Thread):
    """
    Waits at the FIFO @path until the program reports the start of its measured part, reads the
    counters by @take() and lets the program continue.
    """

    def __init__(self, path, take=None):
        super().__init__(daemon=True)
        self.path, self.take, self.taken, self.problem = path, take or counters, {}, None
        self.ended = threading.Event()
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        path.chmod(0o666)       # the program may run as another user

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join()
        self.path.unlink(missing_ok=True)

    def run(self):
        try:
            if self.said():
                self.taken = self.take()
                self.go()
        except Exception as e:          # raised by the thread that waits for the program
            self.problem = e
            self.ended.wait()

    def said(self):
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while not self.ended.is_set():
                if select.select([fd], [], [], 0.05)[0] and os.read(fd, 64):
                    return True
                # The FIFO is also readable, at its end, until the program has opened it.
                self.ended.wait(0.002)
            return False
        finally:
            os.close(fd)

    def go(self):
        deadline = time.monotonic() + GO_SECONDS
        while not self.ended.is_set():
            try:
                fd = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as e:
                if e.errno != errno.ENXIO or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
                continue
            os.write(fd, b"go\n")
            os.close(fd)
            return


def counters():
    """Returns {path of a cgroup: its row}."""
    return {row["path"]: row for row in parts.ebbctl_json("stats")["cgroups"]}


def since(before, after):
    """Returns the counts since @before; None: since the start."""
    return {key: after.get(key, 0) - (before or {}).get(key, 0) for key in COUNTED}


class Program:
    """A workload for Road.run()."""

    def __init__(self, load, mib, mark, told):
        self.name = "prefetch-" + load.name.replace(":", "-")
        self.words, self.told = load.argv(mib, mark), told

    def argv(self, _):
        if not self.told:
            return self.words
        return road.output_to(self.told, *self.words)


def slow(took):
    """Returns the modes of {mode: [seconds]} whose trials are all slower than CLOSE to the fastest."""
    best = min((s for some in took.values() for s in some), default=0)
    return {m for m, some in took.items() if min(some) > CLOSE * best}


@dataclass
class Contest:
    """One load of one size in one share of memory, on the Road @r."""
    r: road.Road
    load: object
    mib: int
    percent: int
    known: set
    digest: str = None          # of the output with all the memory, if compared
    runs: dict = field(default_factory=dict)    # mode -> [Run], paired by their place
    trial: dict = field(default_factory=dict)   # mode's name -> [seconds]
    oom_kills: dict = field(default_factory=dict)       # mode -> runs lost to the OOM killer
    lost: set = field(default_factory=set)      # modes that the OOM killer always ends

    def one(self, mode):
        for left in reversed(range(OOM_TRIES)):
            try:
                with measure.page_cluster(mode.cluster):
                    return self.walk(mode) if self.load.marked else self.whole(mode)
            except road.OutOfMemory as e:
                self.oom_kills[mode] = self.oom_kills.get(mode, 0) + 1
                if not left:
                    raise
                road.say(f"once more: {e}")

    def limit(self):
        return self.load.limit(self.mib, self.percent)

    def whole(self, mode):
        program = Program(self.load, self.mib, None, None)
        outcome = self.r.run(program, "", self.limit(), mode.policy)
        if self.digest and outcome.digest != self.digest:
            raise road.Failure(f"{self.load.name}, {mode.name}: the output differs from that of "
                               "a run with all the memory")
        return Run(outcome.seconds, since(None, outcome.stats), outcome.cpu)

    def walk(self, mode):
        told = measure.BENCH / "prefetch-run.json"
        told.write_text("")
        told.chmod(0o666)
        with Mark(measure.BENCH / "prefetch-mark") as mark:
            program = Program(self.load, self.mib, mark.path, told)
            outcome = self.r.run(program, "", self.limit(), mode.policy)
        report = json.loads(told.read_text())
        before = mark.taken.get(outcome.stats.get("path"))
        if mark.problem or not before:
            raise road.Failure(f"{self.load.name}: no counters at the mark: {mark.problem}")
        if report["bad"]:
            raise road.Failure(f"{self.load.name}: {report['bad']} words were wrong")
        return Run(report["seconds"], since(before, outcome.stats), outcome.cpu)

    def hold(self, rounds):
        """Runs trials that drop slow modes of groups with several, then @rounds of the others."""
        modes = self.qualify(modes_of(self.load, self.known), rounds)
        self.runs = {m: [] for m in modes}
        for i in range(rounds):
            at = i % len(modes)
            for mode in modes[at:] + modes[:at]:
                if mode not in self.lost:
                    self.keep(mode, self.runs[mode].append)
        modes = [m for m in modes if m not in self.lost]
        self.runs = {m: self.runs[m] for m in modes}
        told = "  ".join(f"{m.name} {self.median(m):.3f}" for m in modes)
        road.say(f"{self.load.name:<20} {self.mib:>4} MiB {self.percent:>3} %  {told} s")
        return self

    def qualify(self, modes, rounds):
        if rounds < 2:
            return modes        # one round is as good as a trial
        gone = set()
        for group in ("kernel", "best"):
            some = [m for m in modes if m.group == group]
            if len(some) < 2:
                continue
            took = self.trials(some)
            self.trial.update({m.name: [round(s, 4) for s in seconds] for m, seconds in took.items()})
            gone |= slow(took)
        return [m for m in modes if m not in gone | self.lost]

    def trials(self, modes):
        """Returns {mode: [seconds]} of a trial of each, and of another of those it would drop."""
        took, again = {}, modes
        while again:
            for m in again:
                self.keep(m, lambda run, m=m: took.setdefault(m, []).append(run.seconds))
            again = [m for m in slow(took) if len(took[m]) < TRIALS and m not in self.lost]
        return took

    def keep(self, mode, use):
        """Runs @mode once for @use; a mode that cannot run is dropped, with its results."""
        try:
            use(self.one(mode))
        except road.OutOfMemory as e:
            road.say(f"without {mode.name} from here on: {e}")
            self.lost.add(mode)

    def median(self, mode):
        return statistics.median(run.seconds for run in self.runs[mode])

    def best(self, group):
        """Returns the mode of @group with the least median, or None."""
        some = [m for m in self.runs if m.group == group]
        return min(some, key=self.median) if some else None

    def judged(self):
        """Returns the mode that targets judge: auto, or without it ebb's best policy."""
        return self.best("auto") or self.best("best") or self.best("leap")

    def params(self, mode):
        runs = self.runs[mode]

        def middle(values):
            values = [v for v in values if v is not None]
            return measure.rounded(statistics.median(values)) if values else None

        out = self.load.bytes(self.mib) * max(100 - self.percent, 0) / 100
        return {
            "workload": self.load.name, "mib": self.load.bytes(self.mib) >> 20,
            "local_percent": self.percent, "policy": mode.policy, "page_cluster": mode.cluster,
            "trial_seconds": self.trial or None, "oom_kills": self.oom_kills.get(mode, 0),
            "device_over_swapped": round(self.r.size / out, 1) if out else None,
            "coverage": middle(r.coverage for r in runs),
            "accuracy": middle(r.accuracy for r in runs),
            "miss_us": middle(r.miss_us for r in runs),
            "ebb_cpu_seconds": middle(r.cpu for r in runs),
            **{key: int(statistics.median(r.stats[key] for r in runs))
               for key in ("misses", "hits", "late", "wasted", "prefetched", "gc_misses",
                           "gc_hits")}}

    def row(self, mode, what, target=None, met=None):
        """Compares @mode with the better of the kernel's settings."""
        kernel = self.best("kernel")
        return measure.row(
            f"{what}: {mode.name} against {kernel.name}",
            {**self.params(mode), "mode": mode.group, "kernel": self.params(kernel)},
            [r.seconds for r in self.runs[kernel]], [r.seconds for r in self.runs[mode]], "s",
            target, met)

    def lost_rows(self):
        """Returns rows for modes that cannot run: these are results, too."""
        return [{"name": f"{self.title()}: {m.name}, ended by the OOM killer", "baseline": None,
                 "params": {"workload": self.load.name, "local_percent": self.percent,
                            "mib": self.load.bytes(self.mib) >> 20, "policy": m.policy},
                 "ebb": self.oom_kills[m], "unit": "kills", "ratio": None, "low": None,
                 "high": None, "runs": 0, "target": None, "met": None}
                for m in sorted(self.lost, key=lambda m: m.name)]

    def title(self):
        return f"{self.load.name} {self.percent} %"
