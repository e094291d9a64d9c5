#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Compares libebbgc's page residency with PAGEMAP_SCAN: each provider, 5, 50 and 500 ms after its
scan, over MIB= (64) MiB at half of it.  Pages are written at random, or all are read repeatedly
and one in 64 is written, so that most leave without an event.  Counted, not timed.
"""
import json
import os
import sys

import measure
import road

MIB = int(os.environ.get("MIB") or 64)
PERCENT = 50
SECONDS = 4     # for each age
DEVICE = max(4 * MIB * (100 - PERCENT) // 100, 1024) << 20
DRIFT = road.machine.BUILD / "tests" / "drift"
PROVIDERS = ("pagemap_scan", "pagemap", "mincore")
PATTERNS = ("write", "rescan")
HELD = {1: "told of touches", 0: "not told"}


class Job:
    """A workload for Road.run()."""

    def __init__(self, provider, pattern, told, report):
        self.name = f"drift-{provider}-{pattern}-{told}"
        self.words, self.report = f"{provider} {pattern} {told} {MIB} {SECONDS}", report

    def argv(self, _):
        return road.output_to(self.report, DRIFT, *self.words.split())


def row(name, wrong, ages, of="pages", **params):
    """Returns a row: the sum of the counts @wrong as a share of the sum of all @of."""
    total = sum(a[of] for a in ages)
    shares = {what: measure.rounded(sum(a[key] for a in ages) / total) for what, key in wrong.items()}
    return {"name": name, "params": {"mib": MIB, "local_percent": PERCENT, **params, **shares},
            "baseline": None, "ebb": measure.rounded(sum(a[key] for a in ages for key in wrong.values()) / total),
            "unit": "share", "ratio": None, "low": None, "high": None, "runs": sum(a["looks"] for a in ages),
            "target": None, "met": None}


def rows_of(name, ages):
    yield row(f"{name}: wrong at the scan", {"unseen": "scan_unseen", "stale": "scan_stale"}, ages)
    for a in ages:
        yield row(f"{name}: wrong {a['age_ms']} ms later", {"unseen": "unseen", "stale": "stale"}, [a],
                  out=measure.rounded(a["out"] / a["pages"]), cached=measure.rounded(a["cached"] / a["pages"]))
    yield row(f"{name}: wrong when asked", {"wrong": "asked_wrong"}, ages, of="asked")


def bench():
    road.check_machine(DEVICE + (2 << 30), DEVICE + (1 << 30), measure.BENCH, [])
    report = measure.BENCH / "drift-run.json"
    with road.Road(measure.BENCH, DEVICE) as r:
        for pattern in PATTERNS:
            for provider in PROVIDERS:
                for told, how in HELD.items():
                    r.run(Job(provider, pattern, told, report), "", (MIB << 20) * PERCENT // 100, "none")
                    ages = [json.loads(line) for line in report.read_text().splitlines()]
                    yield from rows_of(f"{pattern}, {provider}, {how}", ages)


if __name__ == "__main__":
    sys.exit(measure.main("drift", bench))
