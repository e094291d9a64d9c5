#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures the cost of a co-located cgroup that prefetches a lot: p99 of an access of a random scan
over twice its memory, alone, beside a sequential scan with the kernel's readahead, and beside one
with POLICY= (auto); RUNS= (5) interleaved rounds on one device, for each of BESIDE= (ebbd's
default, or such as 16,64,128), the in-flight limit under contention, in pages.
"""
import json
import os
import statistics
import sys
import threading

import measure
import road

MIB = int(os.environ.get("MIB") or 64)
POLICY = os.environ.get("POLICY") or "auto"
DEVICE = 1 << 30
SCAN = road.machine.BUILD / "tests" / "scan"
MODES = ("alone", "readahead", "prefetch")
BOUND = 2.5
ENDLESS = 1024     # the most passes that scan accepts


class Walk:
    """A workload for Road.run()."""

    def __init__(self, name, words, told):
        self.name, self.words, self.told = name, words, told

    def argv(self, _):
        return road.output_to(self.told, SCAN, "--json", *self.words.split())


class Neighbour:
    """A sequential scan in its own cgroup, for the duration of a `with`."""

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
            [SCAN, "--mib", str(2 * MIB), "--pattern", "seq", "--passes", str(ENDLESS)],
            stdout=road.subprocess.DEVNULL, preexec_fn=self.cgroup.enter)
        # After one pass half of its pages are out.
        before = self.swapped_in()
        pause = threading.Event()
        while self.swapped_in() - before < MIB << 8:
            if self.walk.poll() is not None:
                raise road.Failure("the neighbour's walk ended by itself; see dmesg")
            pause.wait(0.1)
        self.before = self.swapped_in()

    def __exit__(self, *_):
        self.pages = self.swapped_in() - self.before
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
    """Returns (p99, p50) in us of an access of the random scan."""
    told = measure.BENCH / "neighbour-run.json"
    told.unlink(missing_ok=True)
    words = f"--mib {2 * MIB} --pattern random --passes 1 --latency"
    r.run(Walk("neighbour-random", words, told), "", MIB << 20, "none")
    report = json.loads(told.read_text())
    return report["p99_us"], report["p50_us"]


def rounds(beside):
    p99, pages = {m: [] for m in MODES}, {m: [] for m in MODES}
    with road.Road(measure.BENCH, DEVICE, prefetch=[f"beside = {beside}"] if beside else []) as r:
        for i in range(measure.runs(5)):
            for mode in MODES[i % 3:] + MODES[:i % 3]:
                if mode == "alone":
                    worst, middle = visit(r)
                else:
                    with Neighbour("none" if mode == "readahead" else POLICY) as n:
                        worst, middle = visit(r)
                    pages[mode].append(n.pages)
                p99[mode].append(worst)
                road.say(f"{beside or 'default':<8} round {i + 1}  {mode:<10} p99 {worst:8.1f} us  "
                         f"p50 {middle:8.1f} us")
    return p99, pages


def rows_of(beside):
    p99, pages = rounds(beside)
    rows = []
    for mode in MODES[1:]:
        judged = mode == "prefetch"
        # Inverse ratio: how many times as long as alone.
        row = measure.row(f"p99 of a miss beside {mode}" + (f", beside = {beside}" if beside else ""),
                          {"mib": MIB, "policy": POLICY if judged else "none", "beside": beside or None,
                           "neighbour_pages": statistics.median(pages[mode])},
                          p99[mode], p99["alone"], "us",
                          f"<= {BOUND}" if judged else None,
                          (lambda ratio, low, high: ratio <= BOUND) if judged else None)
        row["baseline"], row["ebb"] = row["ebb"], row["baseline"]
        rows.append(row)
    return rows


def bench():
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH, [])
    return [row for beside in (os.environ.get("BESIDE") or "").split(",") for row in rows_of(beside)]


if __name__ == "__main__":
    sys.exit(measure.main("neighbour", bench))
