# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that test_harness.py runs: the first leaves things behind, the second must not meet them."""
import subprocess
from functools import partial

import pytest

import machine

pytestmark = pytest.mark.beside
# The process below does not exit: a second is enough.
machine.left_since = partial(machine.left_since, seconds=1)


def test_leaves(tmp_path):
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    where = tmp_path / "ebb-chaos"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", where], check=True)


def test_finds_nothing():
    assert not machine.test_processes() and not machine.test_mounts()
