# SPDX-License-Identifier: GPL-2.0-or-later
"""
The programs of tests/gc/, small: right by their own checks and the heap's, in every mode, also while
all that may move does.
"""
import json
import os
import subprocess

import pytest

import machine
import parts
from rows import few

PROGRAMS = machine.BUILD / "tests" / "gc"
pytestmark = pytest.mark.beside

# Objects that make a few megabytes.
SMALL = {"closure": 3000, "intern": 10000, "kmeans": 10000, "kv": 10000, "orders": 20000,
         "pagerank": 10000, "properties": 8000, "quads": 40000, "regression": 10000,
         "triangles": 8000}
MODES = ("mode=stop", "mode=concurrent,drop", "mode=memliner", "mode=memliner,park,drop",
         "mode=memliner,park,arrivals,hints,residency=simulated,delays=2:1:0",
         "mode=concurrent,nursery=64K", "mode=memliner,park,drop,nursery=64K")
# With `check` each cycle moves all that may move, and overwrites where it was.
MOVING = ("mode=stop", "mode=concurrent", "mode=concurrent,nursery=64K",
          "mode=memliner,residency=simulated,epoch=1,delta=0", "mode=memliner,park,drop,nursery=64K")
# For a full collection at every 31st safepoint.
SMALLEST = {"closure": 300, "intern": 1000, "kmeans": 1000, "kv": 1000, "orders": 2000,
            "pagerank": 500, "properties": 1000, "quads": 3000, "regression": 1000, "triangles": 300}
FORCED = ("mode=stop", "mode=concurrent,nursery=64K", "mode=memliner,park,drop,nursery=64K")


def run(binary, size, options, told, *argv):
    told.unlink(missing_ok=True)
    done = subprocess.run([PROGRAMS / binary, "-n", str(size), "-r", "3", "-t", "2", "-j", told, *argv],
                          env={**os.environ, "EBBGC_OPTIONS": options}, text=True,
                          capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(told.read_text())


@pytest.mark.parametrize("name", few(SMALL, "kv"))
def test_every_mode_computes_the_same(name, tmp_path):
    if not (PROGRAMS / name).exists():
        pytest.skip(f"build/tests/gc/{name}: not built; run make gc-programs")
    results = set()
    for mode in MODES:
        # On a busy machine all may be over before a collector has had a processor.
        result, told = parts.tried(lambda: run(name, SMALL[name], f"{mode},check,min=1M,growth=1.3",
                                               tmp_path / "told"), lambda done: done[1]["cycles"])
        assert told["cycles"] > 0 and told["check_failures"] == 0 and told["moved_objects"] == 0
        results.add(result)
    for mode in MOVING:
        result, told = parts.tried(lambda: run(name, SMALL[name], f"{mode},check,min=1M,growth=1.3",
                                               tmp_path / "told", "-m"),
                                   lambda done: done[1]["moved_objects"])
        assert told["movable"] and told["moved_objects"] > 0 and told["check_failures"] == 0
        results.add(result)
    if (PROGRAMS / f"{name}-bdwgc").exists():
        result, _ = run(f"{name}-bdwgc", SMALL[name], "", tmp_path / "told")
        results.add(result)
    assert len(results) == 1


@pytest.mark.parametrize("name", few(SMALLEST, "kv"))
def test_programs_hold_no_reference_across_a_safepoint(name, tmp_path):
    """But in roots, as objects may have moved then: results are as in a heap that moves nothing."""
    if not (PROGRAMS / f"{name}-forced").exists():
        pytest.skip(f"build/tests/gc/{name}-forced: not built; run make test-programs")
    told = tmp_path / "told"
    still, figures = run(name, SMALLEST[name], "", told)
    assert figures["moved_objects"] == 0
    for mode in FORCED:
        result, figures = run(f"{name}-forced", SMALLEST[name], f"{mode},check", told, "-m")
        assert result == still
        assert figures["moved_objects"] > 10 * SMALLEST[name] and figures["check_failures"] == 0


@pytest.mark.parametrize("argv", [["gcbench", "-d", "12", "-t", "2", "-c", "-m", "stop"],
                                  ["gcbench", "-d", "12", "-t", "2", "-c", "-m", "concurrent"],
                                  ["afterlife", "-t", "4", "-n", "3000"],
                                  ["afterlife", "-t", "4", "-n", "3000", "-m", "stop"]],
                         ids=lambda argv: "-".join(a.strip("-") for a in argv))
def test_without_failures(argv):
    if not (PROGRAMS / argv[0]).exists():
        pytest.skip(f"build/tests/gc/{argv[0]}: not built; run make gc-programs")

    def attempt():
        done = subprocess.run([PROGRAMS / argv[0], *argv[1:]], text=True, capture_output=True, timeout=200)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["check_failures"] == 0
        return told
    # On a busy machine all may be over before a collector has had a processor.
    assert parts.tried(attempt, lambda told: told["cycles"])["cycles"] > 0
