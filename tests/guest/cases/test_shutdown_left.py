# SPDX-License-Identifier: GPL-2.0-or-later
"""
The machine of test_shutdown.py with a program whose pages fit nowhere, and that nothing stops
before systemd-shutdown: see shutdown.py.
"""
import json

import machine
from machine import read, wait_for
from systemd import run


def test_a_program_has_pages_out_that_fit_nowhere():
    run("systemctl", "start", "stubborn")
    wait_for(lambda: '"bad"' in read("/run/stubborn"), 300, "the program's walk", 0.5)
    assert json.loads(read("/run/stubborn").splitlines()[0])["bad"] == 0
    assert sum(machine.swaps().values()) > 4 << 10
    # No shutdown may wait for this unit.
    assert run("systemctl", "show", "-p", "Conflicts", "--value", "stubborn") == ""
