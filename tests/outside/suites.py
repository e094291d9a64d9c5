# SPDX-License-Identifier: GPL-2.0-or-later
"""
The suites that others wrote: from which packages, the command, how its verdict is extracted, and
how much memory it gets.  Nothing of theirs is in this tree.
"""
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import sources

PROGRAMS = Path(__file__).resolve().parent / "programs"

# The only reasons for which a suite may be skipped.
SKIPS = {
    "packages": "its packages are not installed and cannot be",
    "source": "the kernel's source cannot be downloaded or built",
    "emulator": "no kernel for guests, or no emulator",
    "machine": "this machine lacks memory, disk or a right",
}


@dataclass(frozen=True)
class Suite:
    """One suite, as its packages run it."""
    name: str
    command: tuple
    verdict: str                # regex; its matches, or their groups, and the exit status are the verdict
    limit: int                  # MiB of local memory
    packages: tuple = ()
    prepare: object = None      # called once before the runs, without a limit of memory
    lines: int = 1              # least number of matches
    passes: bool = True         # its exit status must be 0, also without ebb
    least: int = 1000           # least number of pages: fewer prove nothing
    counted: str = "swapped_in" # or swapped_out
    kills: int = 0              # least number of killed servers; if any, of a device without swap
    guest: bool = False         # in a guest: what it does, or what serves it, could harm this machine
    seconds: int = 600          # time-out of one run

    def verdict_of(self, status, text):
        """Returns the suite's own verdict: its exit status, and what it says."""
        said = [" ".join(w for w in found.groups() if w) if found.groups() else found.group()
                for found in re.finditer(self.verdict, text, re.M)]
        return [f"exit status {status}", *said]


# The tests of these modules need up to 70 MiB.
PYTHON_TESTS = ("test_dict", "test_gc", "test_list", "test_pickle", "test_random", "test_re", "test_set")

# --vm populates its memory at once.  With a limit on cgroup version 1 the kernel's reclaim often
# gives up then, on any device, and its OOM killer ends the program.
STRESSORS = ("--qsort 1 --qsort-size 4194304 --qsort-ops 1 --mergesort 1 --mergesort-size 4194304 "
             "--mergesort-ops 1 --tree 1 --tree-size 200000 --tree-ops 1").split()

# Results of the kernel's tests, "ok 3 name".
TAP = r"^(?:# )?((?:not )?ok \d+ .*)$"


def selftest(program, limit, lines, **what):
    """One of the kernel's own tests of mm."""
    return Suite(program, (str(sources.SELFTESTS / program),), limit=limit, lines=lines,
                 packages=sources.PACKAGES, prepare=sources.selftests, guest=True, passes=False,
                 **{"verdict": TAP, "seconds": 1500, "least": 100, **what})


SUITES = (
    Suite("stressapptest", ("stressapptest", "-s", "20", "-M", "96", "-m", "2", "-W"),
          r"(Status: \w+)|with (\d+ hardware incidents, \d+ errors)", 72, ("stressapptest",), lines=2),
    Suite("stress-ng", ("stress-ng", *STRESSORS, "--verify", "--metrics-brief", "--oomable"),
          r"info: .* ((?:passed|failed|skipped): \d+|(?:un)?successful run)|(fail: .*)"
          r"|metrc: \S+ ([a-z-]+ +\d+) +[\d.]+ +[\d.]+ ", 48, ("stress-ng",), lines=4),
    Suite("python", ("/usr/bin/python3", "-m", "test", "-v", *PYTHON_TESTS),
          r"^(?:(Ran \d+ tests?) in .*|(OK.*|FAILED.*|FAIL: .*|ERROR: .*)|== (Tests result: .*) ==)$", 44,
          (f"libpython{sys.version_info[0]}.{sys.version_info[1]}-testsuite",), lines=2 * len(PYTHON_TESTS), seconds=1200),
    Suite("redis", ("sh", f"{PROGRAMS}/redis.sh"), r'^"([\w (),]+)","\d|^(digest .*|keys .*)$', 48,
          ("redis-server", "redis-tools"), lines=8),
    Suite("sysbench", ("sh", f"{PROGRAMS}/sysbench.sh"),
          r"^\s*((?:transactions|queries|ignored errors): +\d+)|^(sbtest\S+\s+(?:\d+|check\s.*))$", 80,
          ("sysbench", "mariadb-server", "mariadb-client"), lines=7, seconds=1200),
    Suite("postgres", ("sh", f"{PROGRAMS}/postgres.sh"),
          r"^(sum of .*|amcheck .*|Bad checksums: .*|number of .*)$", 64, ("postgresql",), lines=8),
    Suite("kernel", ("sh", f"{PROGRAMS}/kernel.sh"), r"^objects .*$", 64, sources.PACKAGES, sources.kernel,
          seconds=1200),
    Suite("stockfish", ("/usr/games/stockfish", "bench", "96", "1", "9"), r"^Nodes searched\s*: (\d+)", 96,
          ("stockfish",)),
    Suite("hpcc", ("sh", f"{PROGRAMS}/hpcc.sh"),
          r"^ *(\d+ tests completed and \w+ residual checks|Found .*|Solution Validates|Success=\d)", 40, ("hpcc",),
          lines=13),
    Suite("fio", ("sh", f"{PROGRAMS}/fio.sh"), r"(err= *\d+)|issued rwts: total=([\d,]+)|^(verify: bad .*)",
          0, ("fio",), lines=2, kills=3, guest=True, seconds=1200),
    selftest("cow", 32, 100, counted="swapped_out"),
    selftest("uffd-unit-tests", 32, 20, verdict=r"^(Testing .*?\.\.\. .*|Userfaults unit tests: .*)$"),
    selftest("pagemap_ioctl", 40, 50),
    selftest("madv_populate", 1, 10, counted="swapped_out", least=20),
)


def choose(names):
    """Returns the suites named in ONLY=a,b; all if that is empty."""
    chosen = [n for n in (names or "").split(",") if n]
    unknown = [n for n in chosen if n not in {s.name for s in SUITES}]
    if unknown:
        sys.exit(f"ONLY={unknown[0]}: no such suite; there are {', '.join(s.name for s in SUITES)}")
    return [s for s in SUITES if not chosen or s.name in chosen]
