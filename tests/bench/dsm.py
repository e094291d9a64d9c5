#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Counts what programs that share objects send and wait for, by libebbdsm and by four other ways, on
this machine: WORKERS (4) processes with a donor each stand for as many machines.  Then round trips
of each call, instructions against malloc and threads, and times with simulated delays, DELAYS=
(20,100) us.  ONLY=calls,counts,instructions,times,matrix,social picks parts and programs; RUNS=
(3); QUICK=1 smaller programs, one run.  Interrupted, it resumes after the last run; FRESH=1 begins
again.  --json also prints the result to standard output.
"""
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import measure
import road
from kept import Kept, digest_of
from road import machine, parts

PROGRAM = machine.BUILD / "tests" / "dsm_bench"
LIBRARIES = [machine.BUILD / "lib" / f"libebb{name}.so.1" for name in ("dsm", "far")]
QUICK = bool(os.environ.get("QUICK"))
WORKERS = 4
# Of each donor; that of worker 0 has all rows of group-by.
MEMORY, SLAB = "256M", "16M"
# Threads of the one machine.
THREADS = 2
SECONDS = 900
RIVALS = {"directory": "directory coherence", "delegation": "delegation", "messages": "plain messages"}
WAYS = ("ebbdsm", *RIVALS)


class Program:
    """Sizes: for counts; with QUICK=1; for times, and for a simulator of a processor."""

    def __init__(self, text, full, quick, brief, judged=True):
        self.text, self.full, self.quick, self.brief, self.judged = text, full, quick, brief, judged

    @property
    def size(self):
        return self.quick if QUICK else self.full


PROGRAMS = {
    "matrix": Program("matrix product", 2048, 256, 512),
    "group-by": Program("group-by", 10_000_000, 300_000, 1_000_000),
    "social": Program("posts", 30, 2, 5),
    "store-a": Program("store, 50 % gets", 40_000, 4_000, 20_000, False),
    "store-b": Program("store, 95 % gets", 40_000, 4_000, 20_000, False),
    "store-c": Program("store, 100 % gets", 40_000, 4_000, 20_000, False),
}
# memcpy and memset by loops: the simulator counts each byte of a string instruction.
LOOPS = ":".join(f"glibc.cpu.x86_rep_{op}_threshold=1073741824" for op in ("movsb", "stosb"))


@contextmanager
def donors(n):
    """@n of them: arguments "LOCAL,TCP" of dsm_bench."""
    directory, started = Path(tempfile.mkdtemp(prefix="ebb-dsm-")), []
    try:
        for i in range(n):
            started.append(parts.Donor(measure.BENCH / "log" / f"dsm-donor{i}.log", port=road.free_port(),
                                       memory=MEMORY, slab=SLAB, also=[f"unix:{directory}/{i}.sock"],
                                       options=("--far", MEMORY, "--keep", "300ms", "--headroom", "0")))
        yield [f"unix:{directory}/{i}.sock,{d.address}" for i, d in enumerate(started)]
    finally:
        for d in started:
            d.stop()
        shutil.rmtree(directory)


def run(name, way, kind, workers, size, delay_us, where, before=(), env=None):
    """Runs a program; returns (its report, standard error)."""
    argv = [*before, PROGRAM, name, way, kind, workers, size, delay_us, *where]
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=SECONDS,
                          env={**os.environ, **(env or {})})
    if done.returncode:
        raise road.Failure(f"{name}, {way}: {done.stderr.strip()[-500:] or done.returncode}")
    return json.loads(done.stdout), done.stderr


class Runs:
    """Reports of each way, {(program, way): [report]}."""

    def __init__(self, part, kept):
        self.part, self.kept, self.told = part, kept, {}

    def hold(self, modes, rounds):
        """@modes are {(program, way): function that measures once}; their results have to be equal."""
        names = list(modes)
        for i in range(rounds):
            for name in names[i % len(names):] + names[:i % len(names)]:
                told = self.kept.get([self.part, i, *name])
                if told is None:
                    told = modes[name]()
                    self.kept.add([self.part, i, *name], told)
                    road.say(f"round {i + 1}  {self.part:<14} {name[0]:<9} {name[1]:<11}"
                             + "".join(f" {told[k]:>11} {k}" for k in ("trips", "bytes", "instructions")
                                       if told.get(k) is not None))
                self.told.setdefault(name, []).append(told)
        for name in {name for name, _ in modes}:
            digests = {t["digest"] for (of, _), all_told in self.told.items() if of == name for t in all_told}
            if len(digests) > 1:
                raise road.Failure(f"{name}: results differ: {digests}; this is a fault of the program or a library")
        return self

    def values(self, name, way, key):
        return [t[key] for t in self.told[name, way]]

    def row(self, text, name, rival, key, unit, at_least=None, **params):
        """@key of @rival / of libebbdsm."""
        rival_values, ebb = self.values(name, rival, key), self.values(name, "ebbdsm", key)
        if not all(rival_values) or not all(ebb):
            # A ratio to nothing is none.
            row = measure.plain_row(text, params, ebb, unit)
            row["baseline"] = measure.rounded(sorted(rival_values)[len(rival_values) // 2])
            return row
        target = f"> {at_least}" if at_least == 1 else f">= {at_least}"
        return measure.row(text, params, rival_values, ebb, unit, target if at_least else None,
                           (lambda ratio, *_: ratio > at_least if at_least == 1 else ratio >= at_least)
                           if at_least else None)


def rounds():
    return 1 if QUICK else measure.runs(3)


def chosen(known):
    """Returns those of @known that ONLY= has, or all if it has none of them."""
    names = [n for n in (os.environ.get("ONLY") or "").split(",") if n]
    unknown = [n for n in names if n not in (*PARTS, *PROGRAMS)]
    if unknown:
        raise road.Failure(f"ONLY={','.join(unknown)}: neither a part nor a program; "
                           f"there are {', '.join((*PARTS, *PROGRAMS))}")
    return [n for n in known if n in names] or list(known)


# --- parts ------------------------------------------------------------------------

# What a call waits for at another machine's donor: round trips, and requests of these.
CALLS = {"cached read": (0, 0), "shared borrow": (1, 2), "mutable borrow": (1, 4), "its return": (1, 2),
         "borrow, change and return of an own box": (0, 0)}


def count_calls(where):
    """Returns {call: (round trips, requests)} of members on two machines."""
    # Loads the library.
    import dsm_member as member

    (here, to_here), (there, to_there) = (w.split(",") for w in where)
    a, b = member.Space(here, to_there, pool=b"calls"), member.Space(to_here, there, home=1, pool=b"calls")
    found = {}

    def counted(what, space, *calls):
        before, got = space.counts, None
        for verb, *args in calls:
            got = space.call(verb, *(got if x is counted else x for x in args))
            if got < 0:
                raise road.Failure(f"{what}: {verb}: {os.strerror(-got)}")
        after = space.counts
        found[what] = after.round_trips - before.round_trips, after.requests - before.requests
        return got

    content = b"x" * 4000
    box = a.new(content)
    view = member.Name(box.at, box.stamp)
    p = counted("shared borrow", b, ("borrow_view", view, None))
    b.return_view(view, p)
    counted("cached read", b, ("borrow_view", view, None), ("return_view", view, counted))
    counted("borrow, change and return of an own box", a, ("borrow_mut", box), ("return_mut", box, counted))
    loan = a.offer("lend_mut", box)
    p = counted("mutable borrow", b, ("borrow_loan", loan, None))
    ctypes.memset(p, 1, len(content))
    counted("its return", b, ("return_loan", loan, p))
    if a.reclaim(box) or a.value(box, len(content)) != b"\1" * len(content):
        raise road.Failure("the change of a borrower is lost; this is a fault of libebbdsm")
    a.close()
    b.close()
    return found


def calls(kept):
    told = kept.get(["calls"])
    if told is None:
        with donors(2) as where:
            told = count_calls(where)
        kept.add(["calls"], told)
    for what, (trips, requests) in CALLS.items():
        row = measure.plain_row(f"{what}: round trips", {"requests": told[what][1]}, [told[what][0]], "trips",
                                f"{trips}")
        row["met"] = list(told[what]) == [trips, requests]
        yield row


def counts(kept):
    with donors(WORKERS) as where:
        for name in chosen(PROGRAMS):
            p = PROGRAMS[name]
            runs = Runs("counts", kept).hold({
                (name, way): lambda name=name, way=way, p=p: run(name, way, "processes", WORKERS, p.size, 0, where)[0]
                for way in WAYS}, rounds())
            params = {"workers": WORKERS, "size": p.size}
            for way, text in RIVALS.items():
                judged = p.judged and way != "messages"
                invalidations = {"invalidations": runs.told[name, way][0]["calls"]} if way == "directory" else {}
                yield runs.row(f"{p.text}: round trips, {text}", name, way, "trips", "trips", 1 if judged else None,
                               **params, **invalidations)
                yield runs.row(f"{p.text}: bytes, {text}", name, way, "bytes", "bytes",
                               (1 if judged else 0.91) if p.judged else None, **params)
                yield runs.row(f"{p.text}: messages, {text}", name, way, "messages", "messages", **params)


def hardware():
    """Returns whether the processor counts instructions for programs."""
    try:
        done = subprocess.run(["perf", "stat", "-x,", "-e", "instructions:u", "true"], capture_output=True, text=True)
    except FileNotFoundError:
        return False
    return bool(re.match(r"^\d+,", done.stderr))


def counted_by(how, name, way, where):
    """Returns a report with the .instructions of a program of threads, as @how counts them."""
    p = PROGRAMS[name]
    size = p.quick if QUICK else p.brief if how == "valgrind" else p.full
    before, env, pattern = [], {}, None
    if how == "perf":
        before, pattern = ["perf", "stat", "-x,", "-e", "instructions:u"], r"^(\d+),"
    elif how == "valgrind":
        before = ["valgrind", "--tool=callgrind", "--toggle-collect=run_measured", "--callgrind-out-file=/dev/null"]
        pattern, env = r"Collected : (\d+)", {"GLIBC_TUNABLES": LOOPS}
    told, said = run(name, way, "threads", THREADS, size, 0, where, before, env)
    if pattern:
        told["instructions"] = int(re.search(pattern, said, re.M)[1])
    return {**told, "size": size}


def instructions(kept):
    how = "perf" if hardware() else "valgrind" if shutil.which("valgrind") else "CPU time"
    road.say(f"instructions: {how}")
    key, unit = ("cpu_seconds", "s") if how == "CPU time" else ("instructions", "instructions")
    with donors(1) as where:
        for name in chosen(PROGRAMS):
            runs = Runs("instructions", kept).hold({
                (name, way): lambda name=name, way=way: counted_by(how, name, way, where)
                for way in ("malloc", "ebbdsm")}, 1 if how == "valgrind" else rounds())
            # At most 2.4 % more.
            yield runs.row(f"{PROGRAMS[name].text}: {key.replace('_', ' ')}, one machine, malloc and threads", name,
                           "malloc", key, unit, 0.977, threads=THREADS, counted_by=how,
                           size=runs.told[name, "ebbdsm"][0]["size"])


def times(kept):
    with donors(WORKERS) as where:
        for delay in (os.environ.get("DELAYS") or "20,100").split(","):
            for name in chosen(PROGRAMS):
                p = PROGRAMS[name]
                size = p.quick if QUICK else p.brief
                runs = Runs(f"times, {delay} us", kept).hold({
                    (name, way): lambda name=name, way=way, size=size: run(name, way, "processes", WORKERS, size,
                                                                           delay, where)[0]
                    for way in WAYS}, rounds())
                for way, text in RIVALS.items():
                    yield runs.row(f"{p.text}: time, round trips of {delay} us, {text}", name, way, "seconds", "s",
                                   workers=WORKERS, size=size, delay_us=int(delay))


PARTS = {part.__name__: part for part in (calls, counts, instructions, times)}


def check():
    missing = [f"{p}: not built; run make test-programs" for p in (PROGRAM, *LIBRARIES, machine.BIN / "ebb-donord")
               if not p.exists()]
    if os.geteuid():
        missing.append("not root: the donors lock their memory; run it with sudo")
    if road.mem_available() < 3 << 30:
        missing.append("memory: less than 3 GiB available; end something or use a larger machine")
    if missing:
        raise road.Failure("cannot run here:\n  " + "\n  ".join(missing))


def bench():
    check()
    names = chosen(PARTS)
    kept = Kept(measure.BENCH / "dsm-runs", {
        "programs": digest_of([PROGRAM, *LIBRARIES, machine.BIN / "ebb-donord"]), "quick": QUICK,
        "workers": WORKERS, "sizes": {n: p.size for n, p in PROGRAMS.items()}, **measure.machine_facts()})
    for name in names:
        yield from PARTS[name](kept)
    kept.done()


def main():
    as_json = "--json" in sys.argv[1:]
    if as_json:
        road.say = lambda text="": print(text, file=sys.stderr, flush=True)
    status = measure.main("dsm", bench)
    if as_json and (measure.BENCH / "dsm.json").exists():
        print((measure.BENCH / "dsm.json").read_text(), end="")
    return status


if __name__ == "__main__":
    sys.exit(main())
