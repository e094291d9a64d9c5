# SPDX-License-Identifier: GPL-2.0-or-later
"""
Checks a machine that before_shutdown.sh prepared, after its boot.  systemd then shuts it down with
pages swapped out; shutdown.py judges that.
"""
import json

import machine
import parts
from machine import read, wait_for
from systemd import run

DEVICE = "ebb-device@ebb0"


def entered(unit, what):
    """Returns microseconds since boot."""
    return int(run("systemctl", "show", "-p", what, "--value", unit))


def test_a_device_is_on_after_boot():
    for unit in ("ebbd", "ebb-donord", DEVICE, "walker"):
        assert run("systemctl", "is-active", unit) == "active", unit
    assert run("systemctl", "list-units", "--failed", "--plain", "--no-legend", "ebb*") == ""
    assert len(machine.ebb_swaps()) == 1


def test_programs_begin_when_their_device_is_on():
    donor = entered("ebb-donord", "ActiveEnterTimestampMonotonic")
    device = entered(DEVICE, "ActiveEnterTimestampMonotonic")
    program = entered("walker", "ExecMainStartTimestampMonotonic")
    assert 0 < donor < device < program


def test_a_program_has_pages_out():
    wait_for(lambda: '"bad"' in read("/run/walker"), 300, "the program's walk", 0.5)
    assert json.loads(read("/run/walker").splitlines()[0])["bad"] == 0
    assert sum(machine.swaps().values()) > 4 << 10
    rows = parts.control("/run/ebb/control.sock", "status")["attachments"]
    assert [r["cgroup"] for r in rows] == ["/sys/fs/cgroup/ebb.slice"]
