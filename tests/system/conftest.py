# SPDX-License-Identifier: GPL-2.0-or-later
"""
System tests run on the machine's own kernel.  They never kill, stop or starve what
serves a swap device: that is for tests/guest.  Fixtures: see tests/conftest.py.

Those marked `beside` have all they use to themselves (directories, sockets, network
namespaces), so that several run at a time; the others have the machine.
"""
import os

import pytest

import machine


def pytest_configure(config):
    if hasattr(config, "workerinput"):
        os.environ[machine.SHARD] = str(config.option.basetemp)


@pytest.fixture(autouse=True)
def nothing_left():
    """A test ends with no more of ebb's on the machine than it began with."""
    before = set(machine.leftovers())
    yield
    assert set(machine.leftovers()) <= before
