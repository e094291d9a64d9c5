#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Boots groups of tests/guest/cases on each kernel, two guests at a time, writes one JUnit report
and prints a summary.

  tests/guest/boots.py                       the groups of `make check`
  tests/guest/boots.py --kernel 6.1 faults   one group on one kernel
  tests/guest/boots.py --list                every group and the target that runs it
"""
import argparse
import platform
import queue
import re
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "harness"))

import guest
import machine
import shutdown
import skips
from kernel import GuestError, SERIES, packages

AT_ONCE = 2
CASES = "tests/guest/cases"
# Log to the console, which outlives journal and file systems.
SHUTDOWN_IS_TOLD = "systemd.log_target=console systemd.log_level=info"


@dataclass
class Boot:
    """One boot: test files that can share a machine."""
    group: str
    files: tuple
    memory: int = 1024
    timeout: int = 1800 # seconds; on a busy machine emulation takes more than twice as long
    append: str = ""
    cpus: int = 1
    systemd: bool = False
    before: str = "" # script of CASES that prepares the machine for systemd
    module: bool = False # ebb_swap.ko is loaded: with the kernel's memory checks
    peer: str = "" # program of CASES that a second guest runs, at the other end of a link
    peer_memory: int = 0 # MiB; 0: as this guest
    packages: tuple = () # of Debian, downloaded to build/guest/packages for @before
    verdict: object = None # judges a machine that systemd shuts down; see shutdown.py
    target: str = "check-all" # make target that runs it
    kernels: tuple = tuple(SERIES) # default kernels


BOOTS = (
    # Tests that only a guest can run, once, on one kernel: `make check` has no time for more.
    Boot("smoke", ("test_boot.py",
                   "test_road.py::test_sequential_program_comes_back_before_it_asks[private-4]",
                   "test_faults.py::test_donor_killed[tcp]",
                   "test_faults.py::test_server_killed",
                   "test_kmod.py::test_donor_killed_under_a_swapping_program"),
         target="check", kernels=("6.12",)),
    # The longest first, so that none runs alone at the end.
    Boot("road", ("test_boot.py", "test_road.py")),
    Boot("faults", ("test_faults.py",)),
    Boot("kmod", ("test_kmod.py", "test_kmod_control.py"), cpus=2, module=True),
    # One kernel suffices here: other groups test on both that reclaim, FUSE and loop get by with
    # their reserves.  pressure and policy test ebb's own needs.
    Boot("pressure", ("test_pressure.py",), memory=640, kernels=("6.12",)),
    # Of the three killers, systemd-oomd needs systemd.
    Boot("pressure-net", ("test_pressure_net.py",), memory=512, timeout=2400, systemd=True,
         before="before_pressure.sh", packages=("earlyoom", "nohang", "systemd-oomd"),
         peer="lender_tcp.py", peer_memory=1536, kernels=("6.12",)),
    Boot("takeover", ("test_takeover.py", "test_ublk.py"), cpus=2), # one ublk queue per CPU
    Boot("policy", ("test_policy.py", "test_hooks.py"), kernels=("6.12",)),
    Boot("exact", ("test_exact.py",), cpus=2, kernels=("6.12",)),
    Boot("collapse", ("test_collapse.py",)),
    Boot("chaos", ("test_chaos.py",), kernels=("6.12",)),
    Boot("kmod-behind", ("test_kmod_behind.py", "test_kmod_events.py"), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-key", ("test_kmod_key.py",), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-donor", ("test_kmod_donor.py",), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-move", ("test_kmod_move.py",), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-replica", ("test_kmod_replica.py",), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-class", ("test_kmod_class.py", "test_kmod_seal.py"), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-ahead", ("test_kmod_ahead.py",), cpus=2, module=True, target="check-kmod"),
    Boot("kmod-link", ("test_kmod_link.py",), module=True, target="check-kmod", peer="lender.py"),
    # ebbctl and ebbd do not depend on the kernel.
    Boot("kmod-upgrade", ("test_kmod_upgrade.py",), cpus=2, module=True, target="check-kmod",
         kernels=("6.12",)),
    Boot("kmod-ctl", ("test_kmod_ctl.py",), cpus=2, module=True, timeout=2400, target="check-kmod",
         kernels=("6.12",)),
    Boot("rdma", ("test_rdma.py",), cpus=2, target="check-kmod", kernels=("6.12",)),
    Boot("install", ("test_install.py",), memory=1536, module=True, systemd=True, target="guest-install"),
    Boot("places", ("test_places.py",), memory=1280, systemd=True, target="guest-install"),
    Boot("sleep", ("test_sleep.py",), memory=1280, timeout=1200, systemd=True, target="guest-install"),
    Boot("shutdown", ("test_shutdown.py",), timeout=1200, systemd=True, target="guest-install",
         append=SHUTDOWN_IS_TOLD, before="before_shutdown.sh", verdict=shutdown.swap_is_released),
    Boot("shutdown-left", ("test_shutdown_left.py",), timeout=1200, systemd=True, target="guest-install",
         append=SHUTDOWN_IS_TOLD, before="before_shutdown.sh", verdict=shutdown.swap_is_left),
)


def kernels_of(target):
    """Returns the kernels on which @target runs groups by default."""
    return [series for series in SERIES if any(series in b.kernels for b in BOOTS if b.target == target)]


# Bugs of a kernel that end a guest without any part of ebb: the guest boots again, TRIES times in
# all.  Soft-RoCE of 6.1 frees a queue pair whose tasklet is queued; that of 6.12 has a workqueue.
KERNEL_BUGS = {"6.1": re.compile(r"RIP: \S*tasklet_action_common")}
TRIES = 3

# The guests' root file system is this machine's: tests/guest/debian.py runs this on Debian 13, too.
DEBIAN = platform.freedesktop_os_release().get("VERSION_ID")

def say(label, line):
    # With the end of the line in the text, threads do not mix theirs.
    print(f"  {label:<14} {line}\n", end="", flush=True)


def label_of(series, boot):
    return f"{series} {boot.group}" + (f", Debian {DEBIAN}" if DEBIAN != "12" else "")


def kept_of(series, boot):
    """Returns the file with the suite of a guest that passed, or None if the tree's state is unknown."""
    state = machine.state()
    return state and state / f"guest-{series}-{boot.group}.xml"


def resumed(series, boot, results):
    """Adds this guest's suite if it has passed before in this tree."""
    kept = kept_of(series, boot)
    if not kept or not kept.exists():
        return False
    say(label_of(series, boot), "passed before in this tree")
    results.append(ElementTree.parse(kept).getroot())
    return True


def keep(series, boot, suite):
    kept = kept_of(series, boot)
    if kept and outcomes(suite)["passed"] and not outcomes(suite)["failed"]:
        ElementTree.ElementTree(suite).write(kept)


def died_of_its_kernel(series, r):
    console = r.directory / "console.log"
    bug = KERNEL_BUGS.get(series)
    return r.status == -1 and bug and console.exists() and bug.search(console.read_text(errors="replace"))


def run_boot(series, boot, tries=TRIES):
    """Boots a guest; returns its test suite."""
    label = label_of(series, boot)
    report = "/hostout/report.xml"
    say(label, f"boots, {len(boot.files)} files of tests, {boot.timeout // 60} min at most")
    python = ["/usr/bin/python3", "-B"]
    command = [*python, "-m", "pytest", "-v", "--no-header",
               "-rs", f"--junitxml={report}", *(f"{CASES}/{f}" for f in boot.files)]
    try:
        packages(boot.packages)
        r = guest.guest_run(command, guest.Options(
            kernel=series, memory=boot.memory, timeout=boot.timeout, append=boot.append,
            cpus=boot.cpus, memory_checked=boot.module, systemd=boot.systemd,
            name=f"check-{series}-{boot.group}",
            before=f"{CASES}/{boot.before}" if boot.before else "",
            peer=[*python, f"{CASES}/{boot.peer}"] if boot.peer else [],
            peer_memory=boot.peer_memory,
            shutdown=boot.verdict is not None),
            lambda line: say(label, line))
    except (GuestError, OSError) as e:
        say(label, str(e))
        return failed_suite(label, "boot", str(e))
    say(label, f"{'ok' if r.ok else r.reason}, {r.seconds:.0f} s")
    if tries > 1 and died_of_its_kernel(series, r):
        say(label, "a known bug of this kernel, not of ebb: boots again")
        return run_boot(series, boot, tries - 1)
    try:
        suite = ElementTree.parse(r.directory / "report.xml").getroot().find("testsuite")
        for case in suite.iter("testcase"):
            case.set("name", f"{case.get('name')}[{series}]")
    except (OSError, ElementTree.ParseError):
        suite = ElementTree.Element("testsuite")
    suite.set("name", label)
    suite.set("time", f"{r.seconds:.0f}")
    if boot.verdict:
        judge(suite, label, boot.verdict(r.directory))
    # A guest that dies loses its report; its last line names the current test.
    if not r.ok and (r.trouble or r.status != 1):
        log = (r.directory / "output.log").read_text(errors="replace").splitlines()
        last = next((l for l in reversed(log) if "::" in l), "")
        suite.append(failed_case(label, "guest", f"{r.reason}; last: {last.strip()}; see {r.directory}"))
        for line in guest.console_tail(r).splitlines():
            say(label, line)
    return suite


def judge(suite, label, verdict):
    """Adds the results of checks from outside of the guest."""
    for name, wrong in verdict.items():
        say(label, f"shutdown: {name}: {wrong or 'ok'}")
        if wrong:
            suite.append(failed_case(label, name, wrong))
        else:
            ElementTree.SubElement(suite, "testcase", classname=label, name=f"shutdown_{name}")


def failed_case(label, name, reason):
    case = ElementTree.Element("testcase", classname=label, name=name)
    ElementTree.SubElement(case, "failure", message=reason)
    return case


def failed_suite(label, name, reason):
    suite = ElementTree.Element("testsuite", name=label)
    suite.append(failed_case(label, name, reason))
    return suite


def outcomes(suite):
    """Returns the names of a suite's tests by outcome, failures with reasons."""
    found = {"passed": [], "failed": [], "skipped": []}
    for case in suite.iter("testcase"):
        children = {child.tag: child for child in case}
        bad = children.get("failure", children.get("error"))
        kind = "failed" if bad is not None else "skipped" if "skipped" in children else "passed"
        why = (bad if bad is not None else children.get("skipped"))
        said = "" if why is None else ": " + (why.get("message") or "no reason").splitlines()[0]
        found[kind].append(f"{case.get('name')}{said}")
    return found


def all_may_be_skipped(suite):
    """Returns whether a suite has tests and tests/allowed-skips lists each: all of them are skipped."""
    rows, cases = skips.read(skips.FILE.read_text()), list(suite.iter("testcase"))
    return bool(cases) and all(
        case.find("skipped") is not None and skips.why_allowed(
            rows, f"guest {case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}",
            case.find("skipped").get("message") or "")
        for case in cases)


def summary(suites, seconds):
    """Prints a line per guest, skips and failures below it, and a total; returns 0 if all is well."""
    total, bad = {"passed": 0, "failed": 0, "skipped": 0}, []
    print("== what came of it")
    for suite in suites:
        found = outcomes(suite)
        counts = ", ".join(f"{len(names)} {kind}" for kind, names in found.items() if names)
        word = "ok" if not found["failed"] and (found["passed"] or all_may_be_skipped(suite)) else "FAILED"
        bad += [suite] if word == "FAILED" else []
        print(f"  {suite.get('name'):<20} {word:<6} {suite.get('time', '-'):>5} s  {counts}")
        for kind in ("skipped", "failed"):
            for name in found[kind]:
                print(f"      {kind}: {name}")
        for kind, names in found.items():
            total[kind] += len(names)
    ok = suites and not bad
    counts = ", ".join(f"{n} {kind}" for kind, n in total.items() if n)
    print(f"{'ok' if ok else 'FAILED'}: {len(suites)} guests, {counts or 'no test run'}, after {seconds:.0f} s")
    return 0 if ok else 1


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kernel", choices=SERIES, action="append")
    p.add_argument("--report", help="where to write the JUnit report")
    p.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help="guests at a time")
    p.add_argument("--resume", action="store_true",
                   help="leave out guests that passed in this tree; FRESH=1 runs all")
    p.add_argument("--list", action="store_true", help="print the groups")
    p.add_argument("group", nargs="*", help="of --list, a target there, or all")
    a = p.parse_args()
    if a.list:
        for boot in BOOTS:
            print(f"{boot.group:<14} {boot.target:<14} {', '.join(boot.kernels)}")
        return 0
    unknown = set(a.group) - {b.group for b in BOOTS} - {b.target for b in BOOTS} - {"all"}
    chosen = set(a.group or ["check"])
    if unknown:
        p.error(f"no such group: {', '.join(unknown)}")

    work, results, started = queue.Queue(), [], time.monotonic()
    for boot in BOOTS:
        if chosen & {boot.group, boot.target, "all"}:
            for series in a.kernel or boot.kernels:
                if not a.resume or not resumed(series, boot, results):
                    work.put((series, boot))

    def worker():
        while True:
            try:
                series, boot = work.get_nowait()
            except queue.Empty:
                return
            suite = run_boot(series, boot)
            results.append(suite)
            if a.resume:
                keep(series, boot, suite)

    say("guests", f"{work.qsize()}, accelerator {guest.accelerator()}")
    threads = [threading.Thread(target=worker, daemon=True) for _ in range(a.at_once)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()

    root = ElementTree.Element("testsuites")
    root.extend(results)
    if a.report:
        Path(a.report).parent.mkdir(parents=True, exist_ok=True)
        ElementTree.ElementTree(root).write(a.report)
    return summary(results, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
