# SPDX-License-Identifier: GPL-2.0-or-later
"""
The suites that others wrote: from which packages, the command, how its verdict is extracted, and
how much memory it gets.  Nothing of theirs is in this tree.
"""
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent / "programs"

# The only reasons for which a suite may be skipped.
SKIPS = {
    "packages": "its packages are not installed and cannot be",
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
    lines: int = 1              # least number of matches
    passes: bool = True         # its exit status must be 0, also without ebb
    least: int = 1000           # least number of pages: fewer prove nothing
    seconds: int = 600          # time-out of one run

    def verdict_of(self, status, text):
        """Returns the suite's own verdict: its exit status, and what it says."""
        said = [" ".join(w for w in found.groups() if w) if found.groups() else found.group()
                for found in re.finditer(self.verdict, text, re.M)]
        return [f"exit status {status}", *said]


SUITES = (
    Suite("stressapptest", ("stressapptest", "-s", "20", "-M", "96", "-m", "2", "-W"),
          r"(Status: \w+)|with (\d+ hardware incidents, \d+ errors)", 72, ("stressapptest",), lines=2),
    Suite("redis", ("sh", f"{PROGRAMS}/redis.sh"), r'^"([\w (),]+)","\d|^(digest .*|keys .*)$', 48,
          ("redis-server", "redis-tools"), lines=8),
)


def choose(names):
    """Returns the suites named in ONLY=a,b; all if that is empty."""
    chosen = [n for n in (names or "").split(",") if n]
    unknown = [n for n in chosen if n not in {s.name for s in SUITES}]
    if unknown:
        sys.exit(f"ONLY={unknown[0]}: no such suite; there are {', '.join(s.name for s in SUITES)}")
    return [s for s in SUITES if not chosen or s.name in chosen]
