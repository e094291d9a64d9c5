#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""unit.py PROGRAM...: runs cmocka programs, one on each processor, and prints a line for each."""
import os
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Ends programs that hang.  Beside other work some need minutes.
TIMEOUT = 900
# Nice value of programs in the time that others leave.
LOW = 5

running, ended = set(), threading.Event()


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


def finish(process):
    """Waits for a program; returns its status and its output."""
    running.add(process)
    try:
        if ended.is_set():
            process.kill()
        output, _ = process.communicate(timeout=TIMEOUT)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        process.kill()
        return f"none after {TIMEOUT} s", process.communicate()[0]
    finally:
        running.discard(process)


def end():
    """Ends run_all() in another thread soon; its result is without meaning."""
    ended.set()
    for process in list(running):
        process.kill()


def run(path, nice=0):
    """Runs one program; returns its tests, its output and the seconds it took."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.xml")
        env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="XML", CMOCKA_XML_FILE=report,
                   UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1")
        # make's caller may ignore signals, which children inherit.
        with subprocess.Popen(["nice", "-n", str(nice), "env", "--default-signal", path], env=env, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace") as process:
            status, output = finish(process)
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


def run_all(paths, verbose=True, beside=None):
    """
    Prints a line for each program, or for those that fail; returns [("program: test", outcome, reason)].
    With @beside, an event, one runs at a time, at a low priority, and none begins unless that is set.
    """
    def one(path):
        if beside:
            beside.wait()
        return run(path, LOW if beside else 0)

    rows = []
    pool = ThreadPoolExecutor(1 if beside else os.cpu_count())
    try:
        for path, done in zip(paths, pool.map(one, paths)):
            if ended.is_set():
                break # killed, not failed
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
