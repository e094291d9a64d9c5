#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs every benchmark, quick ones first, shows the time left, then renders the results.
ONLY=scan,hooks and SKIP=gc pick benchmarks.  A failure is reported, and the others go on.
Benchmarks that were completed since ebb was built are skipped, unless FRESH=1.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import benches
import measure
import road
from road import say

TOLD_SECONDS = 60
CLEANUP_SECONDS = 2 * road.DESTROY_SECONDS
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Knobs of this run, not of its benchmarks, where ONLY= picks programs.
OURS = ("ONLY", "SKIP", "FRESH")


def span(seconds):
    """Returns a readable time: 40 s, 12 min, 3 h 05 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


class Times:
    """Durations and ends of runs: build/bench/times.json."""

    def __init__(self, path):
        self.path = path
        try:
            self.known = json.loads(path.read_text())
        except FileNotFoundError:
            self.known = {}
        except (OSError, ValueError) as e:
            raise road.Failure(f"{path}: {e}; remove it, and the first guesses are used again") from None

    def add(self, bench, knobs, seconds):
        self.known[bench.name] = {"seconds": round(seconds, 1), "ended": time.time(), "knobs": knobs}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.known, indent=1) + "\n")
        new.replace(self.path)

    def last(self, bench, knobs):
        """Returns the last complete run with these knobs, or None."""
        row = self.known.get(bench.name)
        return row if row and row["knobs"] == knobs else None

    def estimate(self, bench, knobs):
        """Returns (seconds, whether they were measured)."""
        row = self.last(bench, knobs)
        return (row["seconds"], True) if row else (bench.minutes * 60, False)


def sources(path, places):
    """Returns @path, a Python file, and those in @places that it imports, directly or not."""
    found, left = set(), [path]
    while left:
        path = left.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        for line in re.findall(r"^\s*(?:import|from) +(.+)", path.read_text(), re.M):
            left += [place / f"{name}.py" for name in re.findall(r"\w+", line) for place in places]
    return found


def built(programs, bench, tests=measure.TESTS):
    """
    Returns the time of the newest file that a benchmark depends on: ebb's programs and libraries,
    in @programs and beside it, the programs under test, and its own sources in @tests.
    """
    top = programs.parent
    # Not what unit tests are linked with, nor the dependencies that make keeps.
    linked = [p for place in ("lib", "tests", "tests/gc", "tests/java")
              for p in (top / place).glob("*") if p.suffix not in (".a", ".d")]
    paths = [*programs.glob("*"), *top.glob("policies/*.bpf.o"), *linked,
             *tests.glob("demo/programs/*"),
             *sources(tests / "bench" / bench.script, [tests / d for d in ("bench", "demo", "harness")])]
    return max((p.stat().st_mtime for p in paths if p.is_file()), default=0)


def is_done(bench, directory, programs, times, knobs):
    """Returns whether this build completed the benchmark and nothing has written its file since."""
    row, told = times.last(bench, knobs), directory / f"{bench.name}.json"
    return bool(row and told.exists() and
                built(programs, bench) < told.stat().st_mtime <= row["ended"])


class Child:
    """
    One `make` in its own process group: a signal reaches each process once, like ^C on a
    terminal, and this process waits until it has cleaned up.
    """

    def __init__(self, argv):
        env = {k: v for k, v in os.environ.items()
               if k not in (*OURS, "MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        # Keep signals pending until there is a process to pass them to.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        self.signal = None
        try:
            self.process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, cwd=road.REPO, preexec_fn=in_its_own_group)
            self.before = {n: signal.signal(n, self.on_signal) for n in SIGNALS}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def on_signal(self, number, frame):
        if self.signal is None:
            self.signal = number
            self.pass_on(number)

    def pass_on(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def wait(self, seconds):
        """Returns the exit status, or None while it runs."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Waits for the group: make may exit before its children have taken swap off."""
        try:
            road.machine.wait_for(self.gone, CLEANUP_SECONDS, "what it started to end")
        except road.machine.MachineError as e:
            say(f"-- process group {self.process.pid}: {e}; look at it before anything else")
        finally:
            for n, handler in self.before.items():
                signal.signal(n, handler)

    def gone(self):
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False


def in_its_own_group():
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@dataclass
class Done:
    bench: benches.Bench
    status: int
    seconds: float


class All:
    def __init__(self, options, chosen, knobs):
        self.options, self.knobs = options, knobs
        self.times = Times(options.directory / "times.json")
        old = {b for b in chosen if not os.environ.get("FRESH") and is_done(
            b, options.directory, options.programs, self.times, knobs)}
        for b in chosen:
            if b in old:
                say(f"{b.name}: measured since ebb was built; FRESH=1 measures it again")
        self.left = sorted((b for b in chosen if b not in old), key=self.estimated)
        self.total = len(self.left)
        self.done = []
        self.stopped = None

    def estimated(self, bench):
        return self.times.estimate(bench, self.knobs)[0]

    def time_left(self, elapsed=0.0):
        """Estimates the current benchmark, which has run for @elapsed seconds, and those after it."""
        now, *later = map(self.estimated, self.left)
        return max(now - elapsed, 0) + sum(later)

    def tell_left(self, elapsed):
        expected, known = self.times.estimate(self.left[0], self.knobs)
        text = f"{span(elapsed)} of about {span(expected)}"
        if elapsed > expected:
            text = f"{span(elapsed)}, longer than {'last time' if known else 'guessed'}"
        say(f"-- {self.left[0].name}: {text}; about {span(self.time_left(elapsed))} left in all")

    def run(self):
        while self.left and self.stopped is None:
            bench = self.left[0]
            expected, known = self.times.estimate(bench, self.knobs)
            say(f"\n== [{len(self.done) + 1}/{self.total}] {bench.name}: {bench.question}\n"
                f"-- about {span(expected)}{'' if known else ', a guess'}; "
                f"about {span(self.time_left())} left in all")
            done = self.one(bench)
            self.left.pop(0)
            self.done.append(done)
            if self.stopped is not None:
                return
            if done.status:
                say(f"-- {bench.name}: FAILED after {span(done.seconds)}; the rest goes on")
            else:
                self.times.add(bench, self.knobs, done.seconds)

    def one(self, bench):
        began = time.monotonic()
        child = Child([self.options.make, "--no-print-directory", bench.goal,
                       *(f"{name}=" for name in OURS)])
        try:
            while (status := child.wait(self.options.every)) is None:
                if child.signal is None:
                    self.tell_left(time.monotonic() - began)
        finally:
            child.end()
        self.stopped = child.signal
        return Done(bench, status, time.monotonic() - began)

    def summary(self):
        say("\n== summary")
        for d in self.done:
            say(f"{d.bench.name:<10} {span(d.seconds):>11}  {self.outcome(d)}")
        for b in self.left:
            say(f"{b.name:<10} {'':>11}  not run")

    def outcome(self, done):
        if self.stopped is not None and done is self.done[-1]:
            return f"stopped by {signal.Signals(self.stopped).name}"
        if done.status:
            return "FAILED"
        path = self.options.directory / f"{done.bench.name}.json"
        try:
            rows = json.loads(path.read_text())["rows"]
        except (OSError, ValueError, KeyError):
            return "FAILED: it wrote no result"
        missed = [r["name"] for r in rows if r["met"] is False]
        return f"{len(rows)} rows, {measure.summary(rows)}" + \
            "".join(f"\n{'':>24}MISSED {name}" for name in missed)


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--directory", type=Path, default=measure.BENCH, help="where results are")
    p.add_argument("--programs", type=Path, default=road.machine.BIN,
                   help="what results must be newer than")
    p.add_argument("--make", default="make", help="what runs a benchmark")
    p.add_argument("--every", type=float, default=TOLD_SECONDS, metavar="SECONDS",
                   help="how often the time left is told")
    return p.parse_args()


def main():
    options = parse()
    try:
        chosen = benches.choose(os.environ.get("ONLY"), os.environ.get("SKIP"))
        if os.geteuid():
            raise road.Failure("not root: swap, BPF and cgroups need it; run sudo make bench")
        options.directory.mkdir(parents=True, exist_ok=True)
        runs = All(options, chosen, {k: v for k, v in measure.knobs().items() if k not in OURS})
    except (ValueError, road.Failure) as e:
        say(f"bench: {e}")
        return 2
    runs.run()
    runs.summary()
    if runs.stopped is not None:
        say("make bench goes on from here; make bench-results renders what there is")
        return 130
    failed = [d.bench.name for d in runs.done if runs.outcome(d).startswith("FAILED")]
    rendered = subprocess.run([options.make, "--no-print-directory", "bench-results"],
                              cwd=road.REPO).returncode
    if failed:
        say(f"bench: failed: {', '.join(failed)}; the others are rendered")
    return 1 if failed or rendered else 0


if __name__ == "__main__":
    sys.exit(main())
