#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
check.py [--all] UNIT_TEST...: runs the tests and leaves the machine as it was.

The system tests on this kernel that use swap run one by one; unit tests use the processor time that
they leave.  The other system tests run in parallel, then a guest beside the remaining unit tests.
Ends with the skipped tests and their reasons; a skip that tests/allowed-skips does not list is a
failure.

V=1 names each test as it ends.

--all adds the long system tests and all guests, and resumes: a stage or guest that passed in this
tree is not run again, unless FRESH=1.  --clean removes all of ebb from this machine, swap first.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "harness"), str(HERE / "guest")]

import boots
import debian
import machine
import skips
import unit

REPORTS = machine.BUILD / "tests"
SYSTEM_SECONDS = 3600
PREPARE_SECONDS = 1200
WORKERS = 6
# pytest rewrites each test's asserts in each worker, unless it finds them in this cache.
PYTEST = ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPYCACHEPREFIX={machine.BUILD / 'python'}",
          "/usr/bin/python3", "-m", "pytest"]
MAKE = ["make", "--no-print-directory", "NO_DEPS=1"]
OTHER_DEBIAN = "13"
# Print a line for each test instead of a dot.
VERBOSE = os.environ.get("V") == "1"


def heading(text):
    print(f"== {text}", flush=True)


def junit_rows(path, prefix):
    """Returns (id, outcome, reason) of each test in a JUnit report."""
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        found = {child.tag: child for child in case}
        file = (case.get("classname") or "").rsplit(".", 1)[-1]
        # xdist appends the group of tests that stay together: a file, or "ebbd".
        name = f"{prefix} {file}.py::{case.get('name').removesuffix('@' + file).removesuffix('@ebbd')}"
        if "failure" in found or "error" in found:
            bad = found.get("failure", found.get("error"))
            rows.append((name, "failed", (bad.get("message") or "").split("\n")[0]))
        elif "skipped" in found:
            rows.append((name, "skipped", found["skipped"].get("message") or ""))
        else:
            rows.append((name, "passed", ""))
    return rows


def run_pytest(name, *options):
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    seconds = SYSTEM_SECONDS * (2 if "not long" not in options[1] else 1)
    pytest = subprocess.Popen([*PYTEST, "-v" if VERBOSE else "-q", "--no-header", str(HERE / "system"), *options,
                               f"--junitxml={report}"], cwd=machine.REPO)
    try:
        status = pytest.wait(seconds)
    except BaseException as e:
        # Wait without a time-out: fixtures take swap off first.
        pytest.terminate()
        pytest.wait()
        if not isinstance(e, subprocess.TimeoutExpired):
            raise
        status = f"none after {seconds} s"
    rows = junit_rows(report, "system") if report.exists() else []
    if status and not any(r[1] == "failed" for r in rows):
        rows.append((name, "failed", f"pytest's exit status is {status}"))
    return rows


def run_system(but=" and not long"):
    return run_pytest("system", "-m", "not beside" + but)


def run_beside(but=" and not long"):
    """Runs parallel tests, more than one per processor because they mostly wait."""
    with tempfile.TemporaryDirectory(prefix="ebb-check-") as directory:
        return run_pytest("beside", "-m", "beside" + but, "-n", str(WORKERS), "--dist", "loadgroup",
                          "--basetemp", f"{directory}/t")


def as_caller(argv):
    """Returns @argv for the user who called sudo: guests and kernel builds must not write as root."""
    uid = os.environ.get("SUDO_UID", "0")
    if os.geteuid() == 0 and uid != "0":
        argv = ["setpriv", f"--reuid={uid}", f"--regid={os.environ['SUDO_GID']}",
                "--init-groups", "--", *argv]
    return argv


@contextmanager
def process(argv, group=False, root=False, **options):
    """Runs a process during a `with`; with @group its children end with it: make's shells leave theirs."""
    p = subprocess.Popen(argv if root else as_caller(argv), cwd=machine.REPO, start_new_session=group, **options)
    try:
        yield p
    finally:
        if group:
            with suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGTERM)
        else:
            p.terminate()
        p.wait()


class UnitTests(threading.Thread):
    """Runs the unit tests at a low priority; while `go` is not set, none begins."""

    def __init__(self, tests):
        super().__init__()
        self.tests, self.found = tests, [("unit tests", "failed", "not run")]
        self.go = threading.Event()
        self.go.set()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        unit.end()
        self.go.set()
        self.join()

    def run(self):
        self.found = unit.run_all(self.tests, VERBOSE, beside=self.go)

    def rows(self):
        """Waits for the end; returns all results."""
        self.join()
        return self.found


@contextmanager
def module_made():
    """Makes the guests' module meanwhile; yields a function that waits for it."""
    log = REPORTS / "guests-prepared.log"
    with open(log, "w") as output, process(
            ["nice", "-n", str(unit.LOW), *MAKE, f"KERNEL={' '.join(boots.kernels_of('check'))}",
             "KMOD_OLD=", "kmod-guest"],
            group=True, stdout=output, stderr=subprocess.STDOUT) as p:
        def wait():
            status = f"none after {PREPARE_SECONDS} s"
            with suppress(subprocess.TimeoutExpired):
                status = p.wait(PREPARE_SECONDS)
            if status != 0:
                print(f"make kmod-guest: exit status {status}: {log.read_text().rstrip()}", flush=True)
        yield wait


def run_guests(*options):
    (REPORTS / "guests.xml").unlink(missing_ok=True)
    with process([sys.executable, "-B", str(HERE / "guest/boots.py"), *options, "--report",
                  str(REPORTS / "guests.xml")]) as p:
        return guest_rows(p.wait())


def run_all_guests():
    """Runs all guests; records each that passes in a file, so that an interrupted run can resume."""
    give_back()
    return run_guests("--resume", "all")


def run_debian():
    """Runs the guests with the packages on the other release of Debian."""
    report = debian.report_of(OTHER_DEBIAN)
    report.unlink(missing_ok=True)
    with process([*MAKE, "guest-install", f"DEBIAN={OTHER_DEBIAN}"], group=True, root=True) as p:
        status = p.wait()
    rows = junit_rows(report, f"debian-{OTHER_DEBIAN}") if report.exists() else []
    if status and not any(r[1] == "failed" for r in rows):
        rows.append((f"debian-{OTHER_DEBIAN}", "failed", f"exit status {status}"))
    return rows


def guest_rows(status):
    rows, report = [], REPORTS / "guests.xml"
    rows += junit_rows(report, "guest") if report.exists() else []
    if status and not any(r[1] == "failed" for r in rows):
        rows.append(("guest", "failed", f"boots.py's exit status is {status}"))
    return rows


def summary(rows):
    """Prints skips and failures; returns True if all is well."""
    allowed = skips.read(skips.FILE.read_text())
    bad = [r for r in rows if r[1] == "failed"]
    skipped = [r for r in rows if r[1] == "skipped"]
    if skipped:
        heading("skipped")
    for name, _, reason in skipped:
        listed = skips.why_allowed(allowed, name, reason)
        print(f"  {name}: {reason or 'no reason given'}")
        if listed is None:
            bad.append((name, "failed", f"skipped ({reason}), which tests/allowed-skips does not list"))
        else:
            print(f"      allowed: {listed}")
    if bad:
        heading("failed")
    for name, _, reason in bad:
        print(f"  {name}: {reason}")
    passed = sum(r[1] == "passed" for r in rows)
    print(f"{passed} passed, {len(bad)} failed, {len(skipped)} skipped")
    return not bad and passed > 0


def give_back():
    """Makes files that tests wrote as root below build/ belong to the user who called sudo."""
    uid, gid = os.environ.get("SUDO_UID", "0"), os.environ.get("SUDO_GID", "0")
    if uid != "0":
        subprocess.run(["chown", "-R", "--from=0", f"{uid}:{gid}", str(machine.BUILD)], check=False)


def stage(name, run, rows):
    heading(name)
    start = time.monotonic()
    rows += run()
    print(f"   {name}: {time.monotonic() - start:.0f} s", flush=True)
    # Swap that a test left on would hang the next one: continue only once it is off.
    left = machine.left_since(())
    if left:
        rows += [(name, "failed", f"left behind: {what}") for what in left]
        machine.clean()
        if machine.ebb_swaps():
            raise machine.MachineError("swap could not be taken off; the remaining tests are not run")


def stage_once(name, run, rows, native=True):
    """
    Runs a stage unless it has passed in this tree, if @native on this kernel, in this or an earlier
    run.
    """
    kept = machine.state(native)
    state = kept and kept / (name.replace(" ", "-") + ".json")
    if state and state.exists():
        print(f"== {name}: passed before in this tree", flush=True)
        rows += map(tuple, json.loads(state.read_text()))
        return
    found = []
    stage(name, run, found)
    rows += found
    if state and not any(r[1] == "failed" for r in found):
        state.write_text(json.dumps(found))


def run_check(tests, rows):
    skipped = os.environ.get("EBB_SKIP_GUESTS")
    with (nullcontext() if skipped else module_made()) as wait_for_module, UnitTests(tests) as units:
        stage(f"system tests, kernel {os.uname().release}", run_system, rows)
        # Those that run beside each other leave no time to others; a guest leaves a processor.
        units.go.clear()
        stage("system tests beside each other", run_beside, rows)

        def the_rest():
            units.go.set()
            if skipped:
                return units.rows() + [("guest", "skipped", "EBB_SKIP_GUESTS is set")]
            wait_for_module()
            return run_guests() + units.rows()
        stage("a guest and the remaining unit tests", the_rest, rows)


def run_check_all(tests, rows):
    stage_once("unit tests", lambda: unit.run_all(tests, VERBOSE), rows)
    stage_once("system tests", lambda: run_system(""), rows)
    stage_once("system tests beside each other", lambda: run_beside(""), rows)
    stage("guests", run_all_guests, rows)
    stage_once(f"guests of Debian {OTHER_DEBIAN}", run_debian, rows, native=False)


def exit_on_sigterm():
    """Lets SIGTERM end what runs, too, which takes swap off first; a second one is ignored."""
    def end(number, _):
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, end)


def whole_run(run, tests):
    abandoned = machine.abandoned()
    if abandoned:
        print("removing what a stopped ebbd or an interrupted run left:\n  " + "\n  ".join(sorted(abandoned)))
        machine.clean(abandoned)
    left = machine.leftovers()
    if left:
        print("ebb is in use on this machine:\n  " + "\n  ".join(left) + "\n"
              "end it, or have all of it removed: sudo python3 tests/check.py --clean")
        return 1
    exit_on_sigterm()
    REPORTS.mkdir(parents=True, exist_ok=True)
    rows, start = [], time.monotonic()
    try:
        run(tests, rows)
    except machine.MachineError as e:
        rows.append(("machine", "failed", str(e)))
    finally:
        give_back()
    ok = summary(rows)
    print(f"{'ok' if ok else 'FAILED'} after {time.monotonic() - start:.0f} s")
    return 0 if ok else 1


def main():
    if sys.argv[1:] == ["--clean"]:
        machine.clean()
        return 0
    run, tests = (run_check_all, sys.argv[2:]) if sys.argv[1:2] == ["--all"] else \
        (run_check, sys.argv[1:])
    if any(test.startswith("-") for test in tests):
        print(__doc__.strip(), file=sys.stdout if tests == ["--help"] else sys.stderr)
        return 0 if tests == ["--help"] else 2
    try:
        with machine.sole_run("check.py"):
            return whole_run(run, tests)
    except machine.MachineError as e:
        print(f"check.py: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
