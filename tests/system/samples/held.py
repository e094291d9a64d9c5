# SPDX-License-Identifier: GPL-2.0-or-later
"""
A test that test_harness.py runs without a shard, as in a whole run.  It sees one process of this
machine alone, that of an ebbd which was started with an environment of its own.
"""
import subprocess
from functools import partial

import pytest

import machine

pytestmark = pytest.mark.beside
# The process below does not exit: a second is enough.
machine.left_since = partial(machine.left_since, seconds=1)
started = []
machine.orphans = dict
machine.processes = lambda: {p.pid: "ebbd" for p in started if p.poll() is None}
for others in ("ebb_mounts", "test_mounts", "ebb_swaps", "ebb_loops", "ebb_cgroups", "device_records"):
    setattr(machine, others, list)
machine.PINS = machine.BUILD / "no pins"


def test_leaves():
    started.append(subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}))


def test_kills_it():
    """It is one of this run or of another: nothing_left() does not know."""
    started[0].kill()
    started[0].wait()
