#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
check_outside.py [--json FILE]: runs suites that others wrote, without ebb and with it, and compares their
own verdicts.

Each verdict with ebb must be the same as without.  A suite whose run did not swap proves nothing
and fails.  ONLY=name,... picks suites.  A suite that has passed in this tree is not run again,
unless FRESH=1.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "guest")]

import guest
import kernel
import sources
import suites
import worlds
from check import give_back
from worlds import WORK, machine, road

# A suite's verdict may vary without ebb, too: it runs without ebb again before ebb is blamed.
AGAIN = 2
RAM, SPACE = worlds.SIZE + (1 << 30), 4 << 30
GUEST_MEMORY = 1536 # MiB
PASSED, FAILED, SKIPPED = "same", "FAILED", "skipped"
COLUMNS = ("suite", "verdict", "lines", "s, disk", "s, ebb", "in, disk", "in, ebb", "prefetched")


class Skip(Exception):
    """A suite cannot run: @reason is a key of suites.SKIPS."""

    def __init__(self, reason, detail):
        super().__init__(f"{suites.SKIPS[reason]}: {detail}")


def difference(without, ours):
    """Returns the first line of two verdicts that differs."""
    for i in range(max(len(without), len(ours))):
        a, b = ([*v, "(no more)"][min(i, len(v))] for v in (without, ours))
        if a != b:
            return f"without ebb: {a!r}; with ebb: {b!r}"
    return ""


def fault_of(suite, run, name):
    """Returns what is wrong with one run, whatever the other is; "" if it is sound."""
    status, *said = run.verdict
    if run.oom_kills:
        return f"{name}: the OOM killer struck {run.oom_kills} times with {suite.limit} MiB"
    if "none" in status:
        return f"{name}: did not end: {status}"
    if suite.passes and status != "exit status 0":
        return f"{name}: {status}: {said[-1] if said else 'no verdict'}"
    if len(said) < suite.lines:
        return f"{name}: no verdict: {len(said)} lines of at least {suite.lines}; {status}"
    return ""


def proof_lacks(suite, run):
    """Returns why a run with ebb proves nothing; "" if it does prove something."""
    pages = getattr(run, suite.counted)
    if pages < suite.least:
        return f"proves nothing: {pages} pages {suite.counted.replace('_', ' ')}, at least {suite.least} expected"
    if run.kills < suite.kills:
        return f"proves nothing: {run.kills} servers killed, at least {suite.kills} expected"
    return ""


def compare(suite, pair):
    """Runs @suite in a @pair of worlds, without and with ebb; returns its result."""
    without, ours = pair
    with without:
        runs = [without.run(suite)]
    fault = fault_of(suite, runs[0], "without ebb")
    if fault:
        return result(suite, fault, runs, None)
    with ours:
        run = ours.run(suite)
    fault = fault_of(suite, run, "with ebb") or proof_lacks(suite, run)
    while not fault and run.verdict not in [r.verdict for r in runs]:
        if len(runs) > AGAIN:
            fault = difference(runs[0].verdict, run.verdict)
            break
        with without:
            runs.append(without.run(suite))
    return result(suite, fault, runs, run)


def result(suite, fault, runs, run):
    note = f"varies without ebb, too: {difference(runs[0].verdict, run.verdict)}" \
        if not fault and len(runs) > 1 else ""
    return {"suite": suite.name, "outcome": FAILED if fault else PASSED, "reason": fault or note,
            "disk": dict(runs[0]), "ebb": dict(run) if run else None}


def skipped(suite, why):
    return {"suite": suite.name, "outcome": SKIPPED, "reason": str(why), "disk": None, "ebb": None}


def failed(suite, why):
    return {**skipped(suite, why), "outcome": FAILED}


def install(packages):
    """Installs Debian packages."""
    if not packages:
        return
    done = subprocess.run(["sh", HERE.parents[1] / "packaging/deps.sh", os.environ.get("NO_DEPS", ""), *packages],
                          capture_output=True, text=True)
    if done.returncode:
        raise Skip("packages", (done.stderr.strip().splitlines() or ["no reason given"])[-1])


def prepare(suite):
    install(suite.packages)
    try:
        if suite.prepare:
            suite.prepare()
    except sources.Unavailable as e:
        raise Skip("source", e) from e


def run_in_guest(suite):
    """Runs a suite in a guest, whose kernel must not complain."""
    name = f"outside-{suite.name}"
    command = ["/usr/bin/python3", "-B", "tests/outside/check_outside.py", "--json", "/hostout/results.json"]
    try:
        done = guest.guest_run(command, guest.Options(
            kernel=sources.SERIES, memory=GUEST_MEMORY, timeout=(2 + AGAIN) * suite.seconds, memory_checked=False,
            name=name, environment={"ONLY": suite.name}), lambda line: road.say(f"  {line}"))
    except (kernel.GuestError, OSError) as e:
        raise Skip("emulator", e) from e
    results = done.directory / "results.json"
    told, = json.loads(results.read_text()) if results.exists() else [failed(suite, "")]
    # The status of a command whose suite failed says no more than its reason does.
    if done.trouble or not told["reason"] and (not done.ok or told["outcome"] == FAILED):
        told.update(outcome=FAILED, reason=f"guest: {done.reason or 'no result'}; see {done.directory}")
    return told


def run_suite(suite):
    if not machine.IN_GUEST:
        prepare(suite)
        if suite.guest:
            return run_in_guest(suite)
    with machine.swap_locked():
        try:
            if not machine.IN_GUEST:
                road.check_machine(RAM, SPACE, WORK, ())
        except road.Failure as e:
            raise Skip("machine", e) from e
        if others := road.other_swap():
            raise Skip("machine", f"{others[0]} is on as swap")
        return compare(suite, worlds.worlds(suite))


def run_all(chosen, run, state):
    """Returns a result for each suite; keeps those that passed in the directory @state."""
    results = []
    for suite in chosen:
        kept = state / f"outside-{suite.name}.json"
        if kept.exists():
            results.append(json.loads(kept.read_text()))
            road.say(f"{suite.name}: passed before in this tree")
            continue
        place = ", in a guest" if suite.guest and not machine.IN_GUEST else ""
        road.say(f"{suite.name}: without ebb, then with it{place}")
        try:
            told = run(suite)
        except Skip as e:
            told = skipped(suite, e)
        except (road.Failure, machine.MachineError, worlds.parts.Failed, OSError,
                subprocess.CalledProcessError) as e:
            told = failed(suite, e)
        results.append(told)
        if told["outcome"] == PASSED:
            kept.write_text(json.dumps(told))
        road.say(f"{suite.name}: {told['outcome']}{told['reason'] and ': ' + told['reason']}")
        # Swap that is still on, or a server of it, would harm the next suite.
        if left := machine.ebb_swaps():
            raise machine.MachineError(f"swap is still on: {left}; the other suites are not run")
    return results


def cells(told):
    at = lambda world, key: "-" if not told[world] or told[world][key] is None else told[world][key]
    return (told["suite"], told["outcome"], len(told["disk"]["verdict"]) if told["disk"] else "-",
            at("disk", "seconds"), at("ebb", "seconds"), at("disk", "swapped_in"), at("ebb", "swapped_in"),
            at("ebb", "prefetched"))


def show(results):
    """Prints a table and the reasons; returns whether all is well."""
    rows = [COLUMNS, *(tuple(map(str, cells(r))) for r in results)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        road.say("  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))))
    for outcome in (PASSED, SKIPPED, FAILED):
        for told in results:
            if told["outcome"] == outcome and told["reason"]:
                road.say(f"{outcome}: {told['suite']}: {told['reason']}")
    count = lambda outcome: sum(r["outcome"] == outcome for r in results)
    road.say(f"{count(PASSED)} same, {count(FAILED)} failed, {count(SKIPPED)} skipped")
    return bool(count(PASSED)) and not count(FAILED)


def state():
    # A guest runs one suite, and starts from nothing.
    kept = None if machine.IN_GUEST else machine.state(native=True)
    return kept or Path(tempfile.mkdtemp())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json", metavar="FILE", help="write the results to FILE, too")
    a = p.parse_args()
    if os.geteuid():
        sys.exit("check-outside: not root: swap, BPF and cgroups need it; run it with sudo")
    with road.interrupts:
        try:
            WORK.mkdir(parents=True, exist_ok=True)
            with machine.sole_run("check-outside"):
                results = run_all(suites.choose(os.environ.get("ONLY")), run_suite, state())
        except road.Stopped as e:
            road.say(f"stopped by {e}; swap is off")
            return 130
        except (machine.MachineError, road.Failure) as e:
            road.say(f"check-outside: {e}")
            return 1
        finally:
            give_back()
    if a.json:
        Path(a.json).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if show(results) else 1


if __name__ == "__main__":
    sys.exit(main())
