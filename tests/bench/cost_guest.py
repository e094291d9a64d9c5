#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Counts what a page costs where bench-cost does not run: in a guest with Debian's 6.12, on cgroup v2,
with the FUSE and the ublk frontend, a tcp donor with backup and a shm donor without; RUNS= (3)
interleaved rounds, MIB= (32) half of which is local.  ONLY=seq,random picks patterns,
MODES=fuse,ublk modes.  Emulated time means nothing: system calls, context switches and
inter-processor interrupts are counted.
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import account
import cost
import measure
import road
from road import machine

KERNEL = "6.12"
GUEST_SECONDS = 7200
MIB = 32
DEVICE = 128 << 20              # four times the swapped-out bytes, and more
HIGH_BELOW = 2 << 20            # memory.high below memory.max
HOST_OUT, DISK = Path("/hostout"), Path("/mnt/disk/cost")

# Modes: frontend, address of the donor, durability.
SWAPS = {"fuse": ("fuse", None, "disk"), "ublk": ("ublk", None, "disk"),
         "fuse-shm": ("fuse", road.SHM, "none"), "ublk-shm": ("ublk", road.SHM, "none")}
MODES = tuple(cost.Mode(name, name, "auto") for name in SWAPS)
PAIRS = (("fuse", "ublk"), ("fuse-shm", "ublk-shm"))
PATTERNS = ("seq", "seq-dirty", "random")
# Least count per page: a ratio cannot use zero.
LEAST = 1e-3


def counts_of(run):
    """Returns {what: count per page swapped in} of one run."""
    found = {"system calls": sum(sum(c.values()) for c in run.calls.values()),
             **{f"system calls of {part}": sum(run.calls.get(part, {}).values())
                for part in ("ebb-swapd", "ebb-donord", "ebbd")},
             "context switches": sum(sum(run.switches.get(part, [0, 0]))
                                     for part in account.COMPONENTS),
             "IPIs": sum(run.interrupts.get(name, 0) for name in ("CAL", "RES"))}
    return {what: max(n / run.pages, LEAST) for what, n in found.items()}


def params(pattern, mode, runs):
    """Returns the parameters of a row: all counts of this mode, per page swapped in."""
    per_page = lambda of: cost.middles([{k: v / r.pages for k, v in of(r).items()} for r in runs])
    parts = sorted({part for r in runs for part in r.calls})
    return {"pattern": pattern.name, "mode": mode.name, "policy": mode.policy, "mib": cost.MIB,
            "local_percent": cost.PERCENT, "pages": cost.middle([r.pages for r in runs]),
            "pages_out_per_page": cost.middle([r.out / r.pages for r in runs]),
            "calls": {part: per_page(lambda r, p=part: r.calls.get(p, {})) for part in parts},
            "calls_per_page_moved": cost.middles([account.calls_per_page_moved(r) for r in runs]),
            "bytes_moved": per_page(lambda r: r.moved), "bpf_runs": per_page(
                lambda r: {name: runs for name, (_, runs) in r.bpf.items()}),
            "interrupts": per_page(lambda r: r.interrupts),
            "switches": {part: [cost.middle([r.switches.get(part, [0, 0])[i] / r.pages
                                             for r in runs]) for i in range(2)]
                         for part in account.COMPONENTS[:-1]}}


def rows_of(runs):
    """@runs: {(pattern, mode): [Used]}."""
    modes = {m.name: m for m in MODES}
    for pattern in dict.fromkeys(p for p, _ in runs):
        for base, name in PAIRS:
            taken = [runs.get((pattern, modes[mode])) for mode in (base, name)]
            if not all(taken):
                continue
            counted = [[counts_of(r) for r in some] for some in taken]
            for what in counted[0][0]:
                yield measure.row(
                    f"{pattern.name}, {what}: {base} to {name}",
                    {"counted": what, base: params(pattern, modes[base], taken[0]),
                     name: params(pattern, modes[name], taken[1])},
                    [c[what] for c in counted[0]], [c[what] for c in counted[1]], "a page")


def tell(number, mode, pattern, run):
    road.say(f"round {number + 1}  {mode.name:<9} {pattern.name:<10} {run.pages:>6} pages in  " +
             "  ".join(f"{n:6.3f} {what}" for what, n in counts_of(run).items()))


class Throttled(cost.Run):
    """
    A run whose cgroup is throttled shortly below its limit: an emulated device writes so slowly
    that all pages of a cgroup this small may be under write-back, upon which the OOM killer ends
    the program.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cgroup.set("memory.high", (cost.MIB * cost.PERCENT // 100 << 20) - HIGH_BELOW)


# --- guest -----------------------------------------------------------------

def visit(mode, patterns, number):
    """Counts all patterns on one device."""
    frontend, address, durability = SWAPS[mode.swap]
    taken = {}
    with road.Road(measure.BENCH, DEVICE, address=address, durability=durability,
                   frontend=frontend, slab="4M") as r:
        roles = cost.roles_of(r)
        for pattern in patterns:
            with account.Count() as count:
                taken[pattern, mode] = cost.one(pattern, mode, roles, count, Throttled)
            tell(number, mode, pattern, taken[pattern, mode])
    return taken


def inside():
    cost.MIB = int(os.environ.get("MIB") or MIB)
    patterns = cost.choose("ONLY", [p for p in cost.PATTERNS if p.name in PATTERNS],
                           PATTERNS[:1])
    modes = cost.choose("MODES", MODES, ("fuse", "ublk"))
    subprocess.run(["modprobe", "ublk_drv"], check=True)
    runs = {}
    for i in range(measure.runs(3)):
        at = i % len(modes)
        taken = {}
        for mode in modes[at:] + modes[:at]:
            taken.update(visit(mode, patterns, i))
        # Only whole rounds: runs of two modes are pairs.
        for key, run in taken.items():
            runs.setdefault(key, []).append(run)
    yield from rows_of(runs)


# --- host ------------------------------------------------------------------

def outside():
    missing = [p for p in (cost.SCAN, account.COUNT) if not p.exists()]
    if missing:
        road.say(f"bench-cost-guest: {missing[0]}: not built; run make bench-cost-guest")
        return 1
    where = machine.BUILD / "guest" / "runs" / "bench-cost-guest"
    knobs = [f"{k}={v}" for k, v in measure.knobs().items()]
    done = subprocess.run(
        [sys.executable, "-B", road.REPO / "tests" / "guest" / "run.py", "--kernel", KERNEL,
         "--cpus", "2", "--memory", "1024", "--timeout", str(GUEST_SECONDS), "--name", where.name,
         "--", "env", *knobs, "/usr/bin/python3", "-B", "tests/bench/cost_guest.py"],
        cwd=road.REPO)
    told = where / "cost-guest.json"
    if told.exists():
        measure.BENCH.mkdir(parents=True, exist_ok=True)
        shutil.copy(told, measure.BENCH / told.name)
        road.say(f"{measure.BENCH / told.name}")
    return done.returncode


def main():
    if not machine.IN_GUEST:
        return outside()
    # Pipes and the backup need a file system of the guest.
    measure.BENCH = DISK
    status = measure.main("cost-guest", inside)
    told = DISK / "cost-guest.json"
    if told.exists():
        shutil.copy(told, HOST_OUT / told.name)
    return status


if __name__ == "__main__":
    sys.exit(main())
