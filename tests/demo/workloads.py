# SPDX-License-Identifier: GPL-2.0-or-later
"""
Third-party programs from Debian, with their input.

Inputs are generated once, from fixed seeds, into a given directory.  A workload's command
prints a short output that never varies, which is compared between runs.
"""
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PYTHON = "/usr/bin/python3"
HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
GENERATOR = HERE / "generate.py"
# Commands of a shell; paths are its arguments, as they may contain spaces.
SQLITE = ("/bin/sh", "-c", 'cd "$1" && exec sqlite3 -batch :memory: <"$2"', "sh")
SORT = ("/bin/sh", "-c", 'LC_ALL=C sort --parallel=1 -S 400M "$1" | cksum', "sh")


@dataclass(frozen=True)
class Workload:
    name: str
    program: str        # description of the program
    order: str          # description of its access pattern
    input: str          # description of the input; also the key in report.json
    needs: str          # the executable, searched for before anything starts
    files: tuple        # names in the input directory, written by generate.py
    command: tuple      # {in} stands for the input directory

    def argv(self, directory):
        return [word.replace("{in}", str(directory)) for word in self.command]

    def prepare(self, directory):
        """Generates input files that are missing or older than the generator."""
        for name in self.files:
            path = directory / name
            if not path.exists() or path.stat().st_mtime < GENERATOR.stat().st_mtime:
                subprocess.run([PYTHON, "-B", str(GENERATOR), name, str(path)], check=True)


DEMO = (
    Workload(
        "sqlite3", "sqlite3 :memory:", "table scans, front to back",
        "1 200 000 orders from CSV, 6 aggregate queries", "sqlite3",
        ("orders.csv",),
        (*SQLITE, "{in}", f"{PROGRAMS}/orders.sql")),
    Workload(
        "redis", "redis-server, BITCOUNT", "bitmaps one after the other",
        "40 daily bitmaps of 32 million users, counted 6 times", "redis-server",
        ("bitmaps.resp",),
        ("/bin/sh", f"{PROGRAMS}/redis-bitmaps.sh", "{in}/bitmaps.resp", "40", "6")),
    Workload(
        "jq", "jq", "a JSON document, parsed, then walked",
        "100 000 events in JSON, two sums", "jq",
        ("events.json",),
        ("jq", "-c", "(map(.price) | add), (map(.tags | length) | add)", "{in}/events.json")),
    Workload(
        "python3", "python3, list of str", "objects in order of creation",
        "500 000 DNA reads, 5 passes", "python3",
        ("reads.txt",),
        (PYTHON, f"{PROGRAMS}/reads.py", "{in}/reads.txt")),
    Workload(
        "numpy", "python3-numpy, matrix", "columns, then rows backwards",
        "6000 x 8192 float32, 3 passes by column, 2 backwards", "python3",
        (),
        (PYTHON, f"{PROGRAMS}/matrix.py", "6000", "8192")),
    Workload(
        "graphicsmagick", "gm convert -rotate", "rows in, columns out",
        "a photograph of 16 megapixels, turned, mirrored, brightened", "gm",
        ("photo.ppm",),
        ("gm", "convert", "-limit", "threads", "1", "{in}/photo.ppm", "-rotate", "90", "-flop",
         "-gamma", "1.3", "-flip", "-resize", "10%", "ppm:-")),
)

# Programs that no prefetcher can help: the next page depends on data, not on earlier pages.
RANDOM = (
    Workload(
        "redis-random", "redis-server, random GETs", "none: keys are hashed",
        "600 000 values, 60 000 random GETs", "redis-server",
        ("values.resp", "gets.txt"),
        ("/bin/sh", f"{PROGRAMS}/redis-gets.sh", "{in}/values.resp", "{in}/gets.txt")),
    Workload(
        "python-join", "python3, hash join by dict", "none: keys are hashed",
        "250 000 rows against 200 000", "python3",
        (),
        (PYTHON, f"{PROGRAMS}/join.py", "250000", "200000")),
    Workload(
        "sqlite-join", "sqlite3, join by random key", "none: B-tree descents",
        "150 000 lookups in 1 200 000 orders", "sqlite3",
        ("orders.csv",),
        (*SQLITE, "{in}", f"{PROGRAMS}/join.sql")),
    Workload(
        "sort", "GNU sort in memory", "none: lines in sorted order",
        "600 000 lines of a web server's log", "sort",
        ("access.log",),
        (*SORT, "{in}/access.log")),
)

BY_NAME = {w.name: w for w in DEMO + RANDOM}


def choose(names, otherwise):
    """Returns workloads by name ("sqlite3,sort"), or @otherwise if @names is empty."""
    if not names:
        return otherwise
    unknown = [n for n in names.split(",") if n not in BY_NAME]
    if unknown:
        sys.exit(f"workload {unknown[0]}: there is none of that name; there are "
                 f"{', '.join(BY_NAME)}")
    return tuple(BY_NAME[n] for n in names.split(","))
