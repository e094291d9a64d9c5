# SPDX-License-Identifier: GPL-2.0-or-later
"""
Programs that share objects, by libebbdsm and by four other ways: their results are equal, and what
libebbdsm sends and waits for is what its documentation says.
"""
import itertools
import json
import subprocess
from contextlib import contextmanager

import pytest

import parts
from machine import BUILD
from ports import free_port
from rows import few

pytestmark = pytest.mark.beside

PROGRAM = BUILD / "tests" / "dsm_bench"
WORKERS = 3
WAYS = ("ebbdsm", "directory", "delegation", "messages")
SIZES = {"matrix": 128, "group-by": 200_000, "social": 2, "store-own": 2000}


@contextmanager
def machines(path, n):
    """The donors of @n machines: arguments of the program."""
    started = [parts.Donor(path / f"donor{i}.log", port=free_port(), memory="64M", slab="16M",
                           also=[f"unix:{path}/{i}.sock"],
                           options=["--far", "48M", "--keep", "300ms", "--headroom", "0"]) for i in range(n)]
    yield [f"unix:{path}/{i}.sock,{d.address}" for i, d in enumerate(started)]
    for d in started:
        d.stop()


@pytest.fixture(scope="module")
def donors(tmp_path_factory):
    with machines(tmp_path_factory.mktemp("donors"), WORKERS) as where:
        yield where


def run(donors, program, way, kind="processes", workers=WORKERS, size=None, delay_us=0):
    done = subprocess.run([PROGRAM, program, way, kind, str(workers), str(size or SIZES[program]), str(delay_us),
                           *donors], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("program", few(SIZES, "matrix", "social"))
def test_results_are_equal(donors, program):
    """Also by threads that share a handle, and by one process."""
    expected = run(donors, program, "malloc", "threads")["digest"]
    assert int(expected, 16) != 0
    for way in WAYS:
        assert run(donors, program, way)["digest"] == expected, way
    assert run(donors, program, "ebbdsm", "threads")["digest"] == expected
    alone = {run(donors, program, way, workers=1)["digest"] for way in WAYS}
    # Which worker puts a key depends on their number.
    assert len(alone) == 1 and (program == "store-own" or alone == {expected})


@pytest.mark.long
def test_eight_machines(tmp_path):
    """As many as a space can have."""
    with machines(tmp_path, 8) as where:
        for program in SIZES:
            expected = run(where, program, "malloc", "threads", workers=8)["digest"]
            for way in WAYS:
                assert run(where, program, way, workers=8)["digest"] == expected, (program, way)


@pytest.mark.parametrize("program, way", few(itertools.product(("store-a", "store-b", "store-c"), WAYS),
                                             *zip(("store-a", "store-b", "store-c", "store-a"), WAYS)))
def test_values_of_stores(donors, program, way):
    """All workers put all keys: each get returns a value that was put, which the program checks."""
    assert run(donors, program, way, size=3000)["digest"] == "0"


def test_counts(donors):
    """Objects are read once by each worker that has not made them, without invalidations."""
    told = {way: run(donors, "matrix", way) for way in WAYS}
    # Workers have made 3, 3 and 2 of 8 rows of tiles.
    tiles, rows = 8 * (5 + 5 + 6), 8 * 2
    ours = told["ebbdsm"]
    assert (ours["trips"], ours["calls"], ours["messages"]) == (tiles, 0, 2 * tiles + rows)
    # Each tile once, or at each use.
    assert told["directory"]["far_trips"] == tiles and told["directory"]["calls"] == WORKERS
    assert told["delegation"]["trips"] == 8 * (3 * 5 + 3 * 5 + 2 * 6)
    assert told["messages"]["trips"] == 0 and told["messages"]["messages"] == tiles
    for way in WAYS:
        assert told[way]["bytes"] >= tiles * 16 * 16 * 4
    # A processor's own memory takes no messages.
    for program in SIZES:
        for way in WAYS:
            alone = run(donors, program, way, workers=1)
            assert (alone["messages"], alone["trips"], alone["bytes"]) == (0, 0, 0), (program, way)


def test_delays(donors):
    """Round trips are not shorter than the delay; the worker with the fewest has 40."""
    for way in "ebbdsm", "directory", "delegation":
        assert run(donors, "matrix", way, delay_us=2000)["seconds"] >= 40 * 0.002


@pytest.mark.parametrize("arguments, says", [
    (("matrix", "malloc", "processes", "2", "128", "0"), "not a way of processes"),
    (("matrix", "directory", "threads", "2", "128", "0"), "not a way of threads"),
    (("matrix", "ebbdsm", "threads", "9", "128", "0"), "give 1 to 8"),
    (("x", "ebbdsm", "threads", "2", "128", "0"), "no such program"),
    (("matrix", "x", "threads", "2", "128", "0"), "no way to share"),
    (("matrix", "malloc", "threads", "2", "100", "0"), "give a multiple of 8"),
    (("matrix",), "usage"),
])
def test_wrong_arguments(arguments, says):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and says in done.stderr


@pytest.mark.long
def test_large_replies_do_not_wait_for_each_other(donors):
    """More than a socket holds, by all workers to all others at once."""
    assert run(donors, "matrix", "delegation", size=2048)["trips"] == 3 * 5 * 8 * 2 + 2 * 6 * 8
