#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures the cost of a co-located cgroup that prefetches a lot: median and p99 of an access of a
random scan over twice its memory, alone, beside a sequential scan with the kernel's readahead, and
beside one with POLICY= (auto); and how many pages a second that one keeps of those it gets alone.
RUNS= (5) interleaved rounds on one device, for each of BESIDE= (ebbd's default, or such as
8,16,128), the least in-flight limit under contention, in pages; 128: no limit.  PATTERN= (seq) is
the other scan's, such as stride:7.
"""
import json
import os
import statistics
import sys
import threading
import time

import measure
import road

MIB = int(os.environ.get("MIB") or 64)
POLICY = os.environ.get("POLICY") or "auto"
DEVICE = 1 << 30
SCAN = road.machine.BUILD / "tests" / "scan"
PATTERN = os.environ.get("PATTERN") or "seq"
MODES = ("alone", "readahead", "prefetch")
BOUNDS = {"median": 1.5, "p99": 2.5}
KEPT = 0.7         # part of its pages a second that the other scan keeps
ENDLESS = 1024     # the most passes that scan accepts


class Walk:
    """A workload for Road.run()."""

    def __init__(self, name, words, told):
        self.name, self.words, self.told = name, words, told

    def argv(self, _):
        return road.output_to(self.told, SCAN, "--json", *self.words.split())


class Neighbour:
    """A scan in its own cgroup, for the duration of a `with`; then .rate has its pages a second."""

    def __init__(self, policy):
        self.cgroup = road.parts.Cgroup(f"ebb-neighbour-{os.getpid()}", limit_mib=MIB)
        self.policy = policy
        self.walk = None

    def __enter__(self):
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def begin(self):
        road.parts.ebbctl("policy", "attach", self.policy, self.cgroup.path)
        self.walk = road.subprocess.Popen(
            [SCAN, "--mib", str(2 * MIB), "--pattern", PATTERN, "--passes", str(ENDLESS)],
            stdout=road.subprocess.DEVNULL, preexec_fn=self.cgroup.enter)
        # After one pass half of its pages are out.
        before = self.swapped_in()
        pause = threading.Event()
        while self.swapped_in() - before < MIB << 8:
            if self.walk.poll() is not None:
                raise road.Failure("the neighbour's walk ended by itself; see dmesg")
            pause.wait(0.1)
        self.before, self.since = self.swapped_in(), time.monotonic()

    def __exit__(self, *_):
        self.rate = (self.swapped_in() - self.before) / (time.monotonic() - self.since)
        self.end()

    def end(self):
        if self.walk:
            self.walk.kill()
            self.walk.wait()
        self.cgroup.remove()

    def swapped_in(self):
        rows = road.parts.ebbctl_json("stats", self.cgroup.path)["cgroups"]
        return rows[0]["swapped_in"]


def visit(r):
    """Returns {"median", "p99"} in us of an access of the random scan, and the seconds it took."""
    told = measure.BENCH / "neighbour-run.json"
    told.unlink(missing_ok=True)
    words = f"--mib {2 * MIB} --pattern random --passes 1 --latency"
    start = time.monotonic()
    r.run(Walk("neighbour-random", words, told), "", MIB << 20, "none")
    report = json.loads(told.read_text())
    return {"median": report["p50_us"], "p99": report["p99_us"]}, time.monotonic() - start


def rounds(beside):
    """Returns what accesses take in each mode, and rates of the other scan: beside, and alone."""
    took, rates = {m: [] for m in MODES}, {m: [] for m in (*MODES, "kept")}
    with road.Road(measure.BENCH, DEVICE, prefetch=[f"beside = {beside}"] if beside else []) as r:
        for i in range(measure.runs(5)):
            for mode in MODES[i % 3:] + MODES[:i % 3]:
                if mode == "alone":
                    times, seconds = visit(r)
                else:
                    with Neighbour("none" if mode == "readahead" else POLICY) as n:
                        times, seconds = visit(r)
                    rates[mode].append(n.rate)
                took[mode].append(times)
                road.say(f"{beside or 'default':<8} round {i + 1}  {mode:<10} p99 {times['p99']:8.1f} us  "
                         f"p50 {times['median']:8.1f} us")
            with Neighbour(POLICY) as n:
                threading.Event().wait(seconds)
            rates["kept"].append(rates["prefetch"][-1] / n.rate)
            road.say(f"{beside or 'default':<8} round {i + 1}  the other scan: {n.rate:.0f} pages/s alone, "
                     f"keeps {rates['kept'][-1]:.2f}")
    return took, rates


def rows_of(beside):
    took, rates = rounds(beside)
    suffix = f", beside = {beside}" if beside else ""
    rows = []
    for mode in MODES[1:]:
        judged = mode == "prefetch"
        params = {"mib": MIB, "policy": POLICY if judged else "none", "beside": beside or None,
                  "pattern": PATTERN, "neighbour_pages_s": statistics.median(rates[mode])}
        for which, bound in BOUNDS.items():
            here, alone = ([t[which] for t in took[m]] for m in (mode, "alone"))
            # Inverse ratio: how many times as long as alone.
            row = measure.row(f"{which} of a miss beside {mode}{suffix}", params, here, alone, "us",
                              f"<= {bound}" if judged else None,
                              (lambda ratio, low, high, b=bound: ratio <= b) if judged else None)
            row["baseline"], row["ebb"] = row["ebb"], row["baseline"]
            rows.append(row)
    rows.append(measure.share_row(f"part of its speed that the other scan keeps{suffix}", params,
                                  rates["kept"], KEPT))
    return rows


def bench():
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH, [])
    return [row for beside in (os.environ.get("BESIDE") or "").split(",") for row in rows_of(beside)]


if __name__ == "__main__":
    sys.exit(measure.main("neighbour", bench))
