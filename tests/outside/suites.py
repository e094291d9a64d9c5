# SPDX-License-Identifier: GPL-2.0-or-later
"""
The suites that others wrote: from which packages, the command, how its verdict is extracted, and
how much memory it gets.  Nothing of theirs is in this tree.
"""
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

import sources

PROGRAMS = Path(__file__).resolve().parent / "programs"
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"

# The only reasons for which a suite may be skipped.
SKIPS = {
    "packages": "its packages are not installed and cannot be",
    "source": "the kernel's source cannot be downloaded or built",
    "emulator": "no kernel for guests, or no emulator",
    "machine": "this machine lacks memory, disk or a right",
}


@dataclass(frozen=True)
class Suite:
    """@command has placeholders in braces, which @prepare() returns a dict for."""
    name: str
    command: tuple
    verdict: str                # regex; its matches, or their groups, and the exit status are the verdict
    limit: int                  # MiB of local memory
    packages: tuple = ()
    prepare: object = dict
    lines: int = 1              # least number of matches
    passes: bool = True         # its exit status must be 0, also without ebb
    least: int = 1000           # least number of pages: fewer prove nothing
    counted: str = "swapped_in"  # or swapped_out
    kills: int = 0              # servers that are killed meanwhile: on a device without swap
    seconds: int = 600          # time-out of one run
    guest: bool = False
    environment: dict = field(default_factory=dict)

    def verdict_of(self, status, text):
        """Returns the suite's own verdict: its exit status, and what it says."""
        said = [" ".join(w for w in found.groups() if w) if found.groups() else found.group()
                for found in re.finditer(self.verdict, text, re.M)]
        return [f"exit status {status}", *said]

    def argv(self, values):
        words = []
        for word in self.command:
            for key, value in values.items():
                word = word.replace("{" + key + "}", str(value))
            words.append(word)
        return words


PYTHON_TESTS = (
    "test_ast test_bytes test_bz2 test_collections test_compile test_csv test_decimal test_dict "
    "test_difflib test_enum test_float test_fractions test_functools test_gc test_generators "
    "test_hashlib test_heapq test_itertools test_json test_list test_long test_lzma test_pickle "
    "test_random test_re test_set test_sort test_sqlite3 test_statistics test_struct test_tuple "
    "test_unicode test_weakref test_zlib").split()

# Of the kernel: "ok 3 name", also below a comment mark.
TAP = r"^(?:# )?((?:not )?ok \d+ .*)$"


ZSWAP_ON = ("sh", "-c", 'echo Y >/sys/module/zswap/parameters/enabled && exec "$@"', "sh")


def selftest(name, program, limit, before=(), **what):
    """A test of the kernel's tree, in a guest: what it does to swap would harm this machine."""
    return Suite(name, (*before, "{selftests}/" + program), packages=sources.PACKAGES,
                 prepare=sources.selftests, limit=limit, guest=True, passes=False,
                 **{"verdict": TAP, "seconds": 1500, **what})


SUITES = (
    Suite("stressapptest", ("stressapptest", "-s", "20", "-M", "96", "-m", "2", "-W"),
          r"(Status: \w+)|with (\d+ hardware incidents, \d+ errors)", 72, ("stressapptest",), lines=2),
    Suite("stress-ng", ("stress-ng", "--vm", "1", "--vm-bytes", "64M", "--vm-keep", "--vm-method", "all",
                        "--verify", "--timeout", "30s", "--oomable"),
          r"info: .* ((?:passed|failed|skipped): \d+|(?:un)?successful run)|(fail: .*)", 40, ("stress-ng",),
          ),
    Suite("python", ("/usr/bin/python3", "-m", "test", "-v", *PYTHON_TESTS),
          r"^(?:(Ran \d+ tests?) in .*|(OK.*|FAILED.*|FAIL: .*|ERROR: .*)|== (Tests result: .*) ==)$", 32,
          (f"lib{PYTHON}-testsuite",), lines=2 * len(PYTHON_TESTS), seconds=1200),
    Suite("redis", ("sh", f"{PROGRAMS}/redis.sh"), r'^"([\w (),]+)","\d|^(digest .*|keys .*)$', 48,
          ("redis-server", "redis-tools"), lines=8),
    Suite("sysbench", ("sh", f"{PROGRAMS}/sysbench.sh"),
          r"^\s*((?:transactions|queries|ignored errors): +\d+)|^(sbtest\S+\s+\d+)$", 80,
          ("sysbench", "mariadb-server", "mariadb-client"), lines=5),
    Suite("kernel", ("sh", f"{PROGRAMS}/kernel.sh", "{source}", "{output}"), r"^objects .*$", 40,
          sources.PACKAGES, sources.kernel, seconds=1200),
    Suite("stockfish", ("/usr/games/stockfish", "bench", "96", "1", "8"), r"^Nodes searched\s*: (\d+)", 112,
          ("stockfish",)),
    Suite("hpcc", ("sh", f"{PROGRAMS}/hpcc.sh"), r"^(?:.*\.\.\.\.\. (PASSED|FAILED)|(Success=\d)|(\w*Failed\w*=\d+))",
          40, ("hpcc",), lines=2, environment={"OPENBLAS_NUM_THREADS": "1"}, seconds=1200),
    Suite("fio", ("fio", "--name=verify", "--filename={device}", "--size=64M", "--rw=randwrite", "--bs=4k",
                  "--direct=1", "--ioengine=libaio", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1",
                  "--randseed=7", "--loops=3", "--output-format=normal"),
          r"(err= *\d+)|issued rwts: total=([\d,]+)|^(verify: bad .*)", 0, ("fio",), lines=2,
          guest=True, kills=3, seconds=1200),
    selftest("cow", "mm/cow", 32, lines=100, least=100),
    selftest("uffd-unit-tests", "mm/uffd-unit-tests", 32, lines=20, least=100,
             verdict=r"^(Testing .*?\.\.\. .*|Userfaults unit tests: .*)$"),
    selftest("pagemap_ioctl", "mm/pagemap_ioctl", 32, lines=50, least=100),
    selftest("madv_populate", "mm/madv_populate", 1, lines=10, counted="swapped_out", least=100),
    selftest("test_memcontrol", "cgroup/test_memcontrol", 256, lines=8, counted="swapped_out"),
    selftest("test_zswap", "cgroup/test_zswap", 256, ZSWAP_ON, lines=5, counted="swapped_out", least=100),
)


def choose(names):
    """Returns the suites named in ONLY=a,b; all if that is empty."""
    chosen = [n for n in (names or "").split(",") if n]
    unknown = [n for n in chosen if n not in {s.name for s in SUITES}]
    if unknown:
        sys.exit(f"ONLY={unknown[0]}: no such suite; there are {', '.join(s.name for s in SUITES)}")
    return [s for s in SUITES if not chosen or s.name in chosen]
