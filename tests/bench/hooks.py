#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures the cost of ebb's hooks for a zero-fill fault and a context switch, RUNS= (9)
interleaved rounds, without swap.
"""
import json
import os
import subprocess
import sys

import measure
import road
from road import machine, parts

PROBE = machine.BUILD / "tests" / "minorfault"
FAULT = ("fault", "15", "128")
SWITCH = ("switch", "15", "20000")
# State, and the most that it may add to a fault of a process in that state.
STATES = (("untracked", 0.02), ("tracked", 0.03), ("detecting", 0.35))
# After ebbd was killed while it detected hits; its pins are still there.
ORPHANS = (("orphaned", 0.03), ("bystander", 0.02))


def probe(words, cgroup=None):
    done = subprocess.run([PROBE, *words], capture_output=True, text=True, timeout=300,
                          preexec_fn=cgroup.enter if cgroup else None)
    if done.returncode:
        raise road.Failure(f"minorfault: {done.stderr.strip()}")
    return json.loads(done.stdout)["ns"]


def sample(cgroup, taken, state):
    """Times a fault of a process in @cgroup, and a context switch to and from it."""
    taken[state, "fault"].append(probe(FAULT, cgroup))
    into = [str(d / "cgroup.procs") for d in (cgroup.path, *cgroup.twins)]
    taken[state, "switch"].append(probe((*SWITCH, "--into", *into)))
    road.say(f"{state:<10} {taken[state, 'fault'][-1]:8.0f} ns a fault "
             f"{taken[state, 'switch'][-1]:8.0f} ns a switch")


def with_ebbd(cgroup, other, taken, order):
    # --purge: removes the pins at the end, so that they do not affect the next sample.
    daemon = parts.Daemon([machine.BIN / "ebbd", "--purge"], measure.BENCH / "log" / "ebbd.log")
    try:
        parts.ebbctl("policy", "attach", "leap", other.path)
        for state in order:
            if state != "untracked":
                parts.ebbctl("policy", "attach", "leap", cgroup.path,
                             *(["detect=1"] if state == "detecting" else []))
            sample(cgroup, taken, state)
            if state != "untracked":
                parts.ebbctl("policy", "detach", cgroup.path)
    finally:
        daemon.stop()


def after_a_kill(cgroup, other, taken):
    daemon = parts.Daemon([machine.BIN / "ebbd"], measure.BENCH / "log" / "ebbd.log")
    try:
        for state in ("orphaned", "bystander"):
            if state == "bystander":
                daemon = parts.Daemon([machine.BIN / "ebbd"], measure.BENCH / "log" / "ebbd.log")
                parts.ebbctl("policy", "detach", cgroup.path)
            tracked = cgroup if state == "orphaned" else other
            parts.ebbctl("policy", "attach", "leap", tracked.path, "detect=1")
            daemon.kill()
            sample(cgroup, taken, state)
    finally:
        daemon.kill()
        machine.pins_remove()


def rounds(cgroup, other):
    states = [s for s, _ in STATES]
    taken = {(s, k): [] for s in ["none", *states, *dict(ORPHANS)] for k in ("fault", "switch")}
    for i in range(measure.runs(9)):
        order = states[i % 3:] + states[:i % 3]
        if i % 2:
            with_ebbd(cgroup, other, taken, order)
        sample(cgroup, taken, "none")
        if not i % 2:
            with_ebbd(cgroup, other, taken, order)
        after_a_kill(cgroup, other, taken)
    return taken


def bench():
    road.check_machine(1 << 30, 1 << 28, measure.BENCH, [])
    if not PROBE.exists():
        raise road.Failure(f"{PROBE}: not built; run make test-programs")
    with road.interrupts.deferred():
        cgroup = parts.Cgroup(f"ebb-hooks-{os.getpid()}")
        other = parts.Cgroup(f"ebb-hooks-other-{os.getpid()}")
    try:
        taken = rounds(cgroup, other)
    finally:
        cgroup.remove()
        other.remove()
    rows = []
    for state, most in STATES + ORPHANS:
        rows.append(measure.row(
            f"minor fault, {state}", {"state": state, "mib": int(FAULT[2])},
            taken["none", "fault"], taken[state, "fault"], "ns", f"adds <= {most:.0%}",
            lambda ratio, low, high, most=most: 1 / ratio <= 1 + most))
    for state, _ in STATES[1:]:
        rows.append(measure.row(
            f"context switch in and out, {state}", {"state": state},
            taken["none", "switch"], taken[state, "switch"], "ns"))
    return rows


if __name__ == "__main__":
    sys.exit(measure.main("hooks", bench))
