#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures far memory by libebbfar and a donor on this machine, in RUNS= (5) interleaved rounds:
allocations by 8 processes that map the memory, against requests over a unix socket and against
malloc; allocations and accesses over TCP, against bare exchanges of as many bytes; metadata; the
recovery of a killed member; programs' loops.  ONLY=shm,tcp,access,metadata,recovery,malloc picks
parts, QUICK=1 short runs of what has a target.  Interrupted, it resumes after the last run; FRESH=1
begins again.  RDMA is not measured: far memory has no RDMA yet.
"""
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import measure
import road
from kept import Kept, digest_of
from road import machine, parts

PROGRAM = machine.BUILD / "tests" / "far_speed"
LIBRARY = machine.BUILD / "lib" / "libebbfar.so.1"
QUICK = bool(os.environ.get("QUICK"))
SECONDS = 0.2 if QUICK else 1.0
# Of the donor; the loops with larger extents have some 200 MiB.
MEMORY, SLAB = "1G", "64M"
WORKERS = 8
# Extents of the member that dies, and of the pool whose metadata is judged.
EXTENTS = 100_000
SIZES = {64: "64 B", 4096: "4 KiB", 65536: "64 KiB"}
HEADER = 32                     # of a frame of the protocol
RECOVERY_SECONDS = 60


# CPUs of client and server, where one waits for the other at each step.  On one CPU the time is
# what both execute; on two it includes the wake-up of a CPU that sleeps.
ALLOWED = sorted(os.sched_getaffinity(0))
CPUS = {"one CPU": (ALLOWED[0], ALLOWED[0])}
if len(ALLOWED) > 1:
    CPUS["two CPUs"] = (ALLOWED[0], ALLOWED[-1])


def speed(*argv, cpu=None):
    """Runs one measurement, on @cpu if that is given; returns its report."""
    done = subprocess.run(list(map(str, (PROGRAM, *argv))), capture_output=True, text=True,
                          preexec_fn=None if cpu is None else lambda: os.sched_setaffinity(0, {cpu}))
    if done.returncode:
        raise road.Failure(f"{' '.join(map(str, argv))}: {done.stderr.strip() or done.returncode}")
    return json.loads(done.stdout)


def us(told):
    """Returns the us of an operation, over all workers together."""
    return told["seconds"] / told["done"] * 1e6


def per(key):
    return lambda told: told[key] / told["done"]


class Place:
    """A donor of far memory, at a loopback port and at a unix socket, while it lasts."""

    def __init__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="ebb-far-"))
        self.local = f"unix:{self.directory}/donor.sock"
        self.log = measure.BENCH / "log" / "far-donor.log"
        self.log.unlink(missing_ok=True)
        try:
            self.donor = parts.Donor(self.log, port=road.free_port(), memory=MEMORY, slab=SLAB,
                                     also=[self.local], options=("--far", MEMORY))
        except BaseException:
            shutil.rmtree(self.directory)
            raise
        self.tcp = self.donor.address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.donor.stop()
        shutil.rmtree(self.directory)

    def far(self):
        return self.donor.ask()["far"]

    def pool(self):
        return next(p for p in self.far()["pools"] if p["name"] == "bench")

    def run_on(self, cpus):
        for thread in Path(f"/proc/{self.donor.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)

    def own_memory(self):
        """Returns the donor's memory without the slabs, which are shared, in bytes."""
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", machine.read(f"/proc/{self.donor.pid}/status"), re.M)[1]) << 10


class Holder:
    """A member with @extents extents of 4 KiB, until it is closed or killed."""

    def __init__(self, donor, extents):
        self.process = subprocess.Popen([PROGRAM, "hold", donor, str(extents)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        line = self.process.stdout.readline()
        if not line:
            raise road.Failure(f"hold {donor}: ended with {self.process.wait()}")
        self.member = json.loads(line)["member"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def close(self):
        self.process.communicate()


@contextmanager
def holders(donor, extents, n):
    """@n members, each with @extents extents."""
    made = []
    try:
        for _ in range(n):
            made.append(Holder(donor, extents))
        yield made
    finally:
        for h in made:
            if h.process.poll() is None:
                h.close()


class Runs:
    """Reports of each mode, {name: [report]}, paired by round."""

    def __init__(self, part, kept):
        self.part, self.kept, self.told = part, kept, {}

    def hold(self, modes, rounds=None):
        """@modes are {name: function that measures once}."""
        names = list(modes)
        for i in range(rounds or measure.runs(5)):
            for name in names[i % len(names):] + names[:i % len(names)]:
                told = self.kept.get([self.part, i, name])
                if told is None:
                    told = modes[name]()
                    self.kept.add([self.part, i, name], told)
                    road.say(f"round {i + 1}  {self.part:<9} {name:<34} "
                             + (f"{us(told):10.3f} us" if "seconds" in told else ""))
                self.told.setdefault(name, []).append(told)
        return self

    def values(self, name, value=us):
        return [value(t) for t in self.told[name]]

    def row(self, text, baseline, name, at_least=None, **params):
        """Returns a row: time of @baseline / time of @name."""
        return measure.row(text, self.params(name, **params), self.values(baseline), self.values(name), "us",
                           f">= {at_least}" if at_least else None,
                           (lambda ratio, *_: ratio >= at_least) if at_least else None)

    def plain(self, text, name, unit, value=us, at_most=None, **params):
        row = measure.plain_row(text, self.params(name, **params), self.values(name, value), unit,
                                f"<= {at_most}" if at_most else None)
        row["low"], row["high"] = interval(self.values(name, value))
        row["met"] = row["ebb"] <= at_most if at_most else None
        return row

    def params(self, name, **params):
        """And the fastest and the slowest run."""
        known = [us(t) for t in self.told[name] if "seconds" in t]
        spread = {"least_us": measure.rounded(min(known)), "most_us": measure.rounded(max(known))} if known else {}
        return {**params, **spread}

    def fastest(self, *names):
        return min(names, key=lambda name: statistics.median(self.values(name)))


def interval(values):
    """Returns the 95 % interval of the mean by Student's t, or (None, None)."""
    if len(values) < 2:
        return None, None
    half = measure.t975(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return measure.rounded(statistics.fmean(values) - half), measure.rounded(statistics.fmean(values) + half)


# --- parts ------------------------------------------------------------------------

def loop(on, name, kind="processes", workers=None):
    return lambda: speed("loop", on, name, kind, workers or WORKERS, SECONDS)


# Loop: what it does.
LOOPS = {"pairs": "each freed at once", "threadtest": "400, then all freed"}


def shm(kept):
    """The request that an allocation could be instead has no payload: a header each way."""
    with Place() as at:
        modes = {f"request, {server}": lambda server=server: speed(
            "exchange", "unix", server, WORKERS, HEADER, HEADER, "any", SECONDS) for server in ("epoll", "threads")}
        for name in LOOPS:
            modes |= {f"extents, {name}": loop(at.local, name), f"malloc, {name}": loop("malloc", name)}
        runs = Runs("shm", kept).hold(modes)
    request = runs.fastest("request, epoll", "request, threads")
    for name, text in LOOPS.items():
        yield runs.row(f"shm: alloc and free, {text}, against a request", request, f"extents, {name}", 30,
                       workers=WORKERS, server=request)
        yield runs.row(f"shm: alloc and free, {text}, against malloc", f"malloc, {name}", f"extents, {name}", 0.3,
                       workers=WORKERS)


def exchange(told, cpus, seconds):
    """The bare exchange of as many bytes as an operation of @told has sent and received."""
    client, server = CPUS[cpus]
    sent, received = (round(told[key] / told["done"]) for key in ("sent", "received"))
    return speed("exchange", "tcp", "threads", 1, sent, received, server, seconds, cpu=client)


def remote(at, cpus, *argv):
    """A measurement over TCP; adds what the donor counted."""
    client, server = CPUS[cpus]
    at.run_on({server})
    before = at.far()["requests"]
    told = speed(*argv, cpu=client)
    after = at.far()["requests"]
    at.run_on(ALLOWED)
    return {**told, "requests": {k: after[k] - before[k] for k in after if after[k] != before[k]}}


def against_bare(at, argv, sizes, seconds):
    """Returns the modes of an operation over TCP and of its bare exchange."""
    modes = {}
    for cpus in CPUS:
        modes |= {f"tcp, {cpus}": lambda cpus=cpus: remote(at, cpus, *argv, seconds),
                  f"bare, {cpus}": lambda cpus=cpus: exchange(sizes, cpus, seconds)}
    return modes


def tcp(kept):
    with Place() as at:
        # Before there are sections: what is formatted stays so.
        filled = Runs("tcp", kept).hold({"fill": lambda: speed("fill", at.tcp, EXTENTS // 5)}, 1)
        argv = "allocate", at.tcp
        sizes = speed(*argv, 0.01)
        runs = Runs("tcp", kept).hold(against_bare(at, argv, sizes, SECONDS))
    first = next(iter(CPUS))
    one = runs.told[f"tcp, {first}"][0]
    params = {"sent": measure.rounded(per("sent")(one)), "received": measure.rounded(per("received")(one)),
              "hints": measure.rounded(per("hints")(one)), "requests": one["requests"], "allocations": one["done"]}
    yield runs.plain("tcp: round trips of an allocation", f"tcp, {first}", "trips", per("trips"), 1.01, **params)
    yield filled.plain("tcp: round trips of an allocation while a pool is filled", "fill", "trips", per("trips"),
                       extents=EXTENTS // 5)
    for cpus in CPUS:
        yield runs.row(f"tcp: allocation against a bare exchange, {cpus}", f"bare, {cpus}", f"tcp, {cpus}", **params)


def access(kept):
    with Place() as at:
        for op in ("read", "write"):
            for size, text in SIZES.items():
                yield from access_rows(at, kept, op, size, f"{op.upper()} of {text}")


def access_rows(at, kept, op, size, text):
    half = SECONDS / 2
    argv = "access", at.tcp, op, size
    sizes = speed(*argv, 0.01)
    runs = Runs(f"{op} {size}", kept).hold({
        **against_bare(at, argv, sizes, half),
        "shm": lambda: speed("access", at.local, op, size, half),
        "memcpy": lambda: speed("access", "memory", op, size, half)})
    for cpus in CPUS:
        yield runs.row(f"tcp: {text} against a bare exchange, {cpus}", f"bare, {cpus}", f"tcp, {cpus}", 0.8,
                       sent=per("sent")(sizes), received=per("received")(sizes))
    if size == min(SIZES):
        yield runs.plain(f"shm: {text}", "shm", "us", at_most=1)
    if not QUICK:
        yield runs.row(f"shm: {text} against memcpy", "memcpy", "shm")


def described(at, extents):
    """Returns what the status says of a pool with @extents extents."""
    with holders(at.local, extents, 1):
        pool = at.pool()
    return {"done": pool["bytes"], "metadata": pool["metadata"], "bytes": pool["bytes"]}


def members_memory(at):
    """Returns what the donor allocates for WORKERS members, in bytes."""
    before = at.own_memory()
    with holders(at.tcp, 1, WORKERS):
        return {"done": WORKERS, "bytes": at.own_memory() - before}


def metadata(kept):
    """Of a pool of one arena, and of one with all EXTENTS; and what its members take."""
    with Place() as at:
        runs = Runs("metadata", kept)
        runs.hold({"members": lambda: members_memory(at)}, 1)
        # The small one first: a pool keeps its arenas.
        runs.hold({"small": lambda: described(at, 1)}, 1)
        runs.hold({"large": lambda: described(at, EXTENTS)}, 1)
    for name in ("small", "large"):
        told = runs.told[name][0]
        yield runs.plain(f"metadata of a pool of {told['bytes'] >> 20} MiB", name, "%",
                         lambda t: 100 * t["metadata"] / t["bytes"], 0.25, metadata=told["metadata"])
    yield runs.plain("donor's memory for a member", "members", "KiB", lambda t: t["bytes"] / t["done"] / 1024)


def recovery_of(at, donor):
    """Kills a member with EXTENTS extents; returns how long after the fence they were free."""
    log, freed = machine.read(at.log), at.far()["freed"]
    holder = Holder(donor, EXTENTS)
    killed = time.monotonic()
    holder.kill()
    deadline = killed + RECOVERY_SECONDS
    while not (line := re.search(rf"member {holder.member}: (\d+) words of its extents freed (\d+) us after its fence",
                                 machine.read(at.log)[len(log):])):
        if time.monotonic() > deadline:
            raise road.Failure(f"recovery: none after {RECOVERY_SECONDS} s; see {at.log}")
        time.sleep(0.001)
    wall = time.monotonic() - killed
    # By the words themselves, too: the status counts them.
    if int(line[1]) != EXTENTS or at.far()["freed"] - freed != EXTENTS or at.pool()["extents"]:
        raise road.Failure(f"recovery: {line[1]} of {EXTENTS} extents are free, {at.pool()['extents']} are not")
    return {"done": 1, "fence_us": int(line[2]), "wall_ms": wall * 1e3}


def recovery(kept):
    with Place() as at:
        # The pool has its memory before the first one.
        speed("fill", at.local, EXTENTS)
        runs = Runs("recovery", kept).hold({"shm": lambda: recovery_of(at, at.local),
                                            "tcp": lambda: recovery_of(at, at.tcp)})
    for name in ("shm", "tcp"):
        yield runs.plain(f"{name}: {EXTENTS} extents of a dead member, free after the fence", name, "ms",
                         lambda t: t["fence_us"] / 1e3, 100,
                         kill_to_log_ms=measure.rounded(statistics.median(runs.values(name, lambda t: t["wall_ms"]))))


# Name: loop, kind of workers for extents and for malloc, what is counted.
PROGRAMS = {"threads": ("threadtest", "threads", "threads", "8 threads, one handle"),
            "replace": ("replace", "processes", "processes", "8 processes, one of 400 replaced"),
            "larson": ("larson", "processes", "processes", "8 processes, one of 256 of 4 to 64 KiB replaced"),
            "handover": ("handover", "processes", "threads", "8 processes, each frees another's; malloc: threads")}


def malloc(kept):
    if QUICK:
        return
    with Place() as at:
        modes = {}
        for name, (how, kind, rival, _) in PROGRAMS.items():
            modes |= {f"extents, {name}": loop(at.local, how, kind), f"malloc, {name}": loop("malloc", how, rival)}
        runs = Runs("malloc", kept).hold(modes)
    for name, (how, _, _, text) in PROGRAMS.items():
        yield runs.row(f"{how}, {text}: extents against malloc", f"malloc, {name}", f"extents, {name}")


PARTS = {part.__name__: part for part in (shm, tcp, access, metadata, recovery, malloc)}


def chosen():
    names = [n for n in (os.environ.get("ONLY") or "").split(",") if n]
    unknown = [n for n in names if n not in PARTS]
    if unknown:
        raise road.Failure(f"ONLY={','.join(unknown)}: no such part; there are {', '.join(PARTS)}")
    return [p for p in PARTS if not names or p in names]


def check():
    missing = [f"{p}: not built; run make" for p in (PROGRAM, LIBRARY, machine.BIN / "ebb-donord") if not p.exists()]
    if os.geteuid():
        missing.append("not root: the donor locks its memory; run it with sudo")
    if road.mem_available() < 2 << 30:
        missing.append("memory: less than 2 GiB available; end something or use a larger machine")
    if missing:
        raise road.Failure("cannot run here:\n  " + "\n  ".join(missing))


def bench():
    check()
    names = chosen()
    road.say("RDMA: not measured, because far memory has no RDMA yet")
    kept = Kept(measure.BENCH / "far-runs", {
        "programs": digest_of([PROGRAM, LIBRARY, machine.BIN / "ebb-donord"]), "seconds": SECONDS,
        "workers": WORKERS, "extents": EXTENTS, "awake": measure.AWAKE, **measure.machine_facts()})
    for name in names:
        yield from PARTS[name](kept)
    kept.done()


if __name__ == "__main__":
    sys.exit(measure.main("far", bench))
