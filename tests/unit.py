#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""unit.py PROGRAM...: runs cmocka programs, one on each processor, and prints a line for each."""
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TIMEOUT = 300


def tests_of(report, program, status):
    """Returns (name, outcome, reason) of each test in cmocka's XML report."""
    rows = []
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        cases = []
    for case in cases:
        failure, skipped = case.find("failure"), case.find("skipped")
        outcome = "failed" if failure is not None else \
            "skipped" if skipped is not None else "passed"
        rows.append((case.get("name"), outcome, (failure.text or "") if failure is not None
                     else ""))
    if status and not any(outcome == "failed" for _, outcome, _ in rows):
        rows.append((program, "failed", f"exit status {status}"))
    elif not rows:
        # A program without a report must not pass.
        rows.append((program, "failed", "reported no test"))
    return rows


def run(path):
    """Runs one program; returns its tests, its output and the seconds it took."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.xml")
        env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="XML", CMOCKA_XML_FILE=report,
                   UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")
        try:
            # make's caller may ignore signals, which children inherit.
            done = subprocess.run(["env", "--default-signal", path], env=env, stdout=subprocess.PIPE, text=True,
                                  stderr=subprocess.STDOUT, timeout=TIMEOUT, errors="replace")
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as e:
            status, output = f"none after {TIMEOUT} s", (e.stdout or b"").decode(errors="replace")
        return tests_of(report, Path(path).name, status), output, time.monotonic() - start


def tell(program, tests, output, seconds, verbose):
    """Prints a program's line; returns its part of run_all()."""
    failed = [t for t in tests if t[1] == "failed"]
    skipped = sum(t[1] == "skipped" for t in tests)
    if failed or verbose:
        print("  %-8s %-40s %3d passed%s%s  %.1f s" % (
            "FAIL" if failed else "ok", program, len(tests) - len(failed) - skipped,
            f", {len(failed)} failed" if failed else "",
            f", {skipped} skipped" if skipped else "", seconds), flush=True)
    if failed:
        for name, _, reason in failed:
            print(f"           {name}: {reason.strip()}")
        print(output.rstrip())
    # cmocka stores no reason: by convention it is the line printed before skip().
    said = output.strip().splitlines()[-1:] or [""]
    return [(f"{program}: {name}", outcome, reason or said[0])
            for name, outcome, reason in tests]


def run_all(paths, verbose=True):
    """Prints a line for each program, or for those that fail; returns [("program: test", outcome, reason)]."""
    rows = []
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for path, done in zip(paths, pool.map(run, paths)):
            rows += tell(Path(path).name, *done, verbose)
    finally:
        pool.shutdown(cancel_futures=True)
    return rows


def main():
    rows = run_all(sys.argv[1:])
    count = lambda outcome: sum(r[1] == outcome for r in rows)
    print(f"{count('passed')} passed, {count('failed')} failed, {count('skipped')} skipped")
    return 1 if count("failed") or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
