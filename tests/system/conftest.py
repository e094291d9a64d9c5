# SPDX-License-Identifier: GPL-2.0-or-later
"""
System tests run on the machine's own kernel.  They never kill, stop or starve what
serves a swap device: that is for tests/guest.  Fixtures: see tests/conftest.py.
"""
import pytest

import machine


@pytest.fixture(autouse=True)
def nothing_left():
    """A test ends with no more of ebb's on the machine than it began with."""
    before = set(machine.leftovers())
    yield
    assert set(machine.leftovers()) <= before
