# SPDX-License-Identifier: GPL-2.0-or-later
"""
The machine sleeps, by logind and ebb-sleep.service, with the unit of this tree.  The kernel's
pm_test freezes all processes for five seconds and resumes: the guest's root file system does
not survive a suspend of its devices.
"""
import shutil
import subprocess
from pathlib import Path

import pytest

import machine
import parts
from machine import BIN, REPO, wait_for
from systemd import UNITS, run, service_drop_in, sleep_locks

UNIT = "ebb-sleep.service"
AT_SLEEP = Path("/run/swaps-at-sleep")
PM_TEST = Path("/sys/power/pm_test")
SBIN = Path("/usr/local/sbin")


@pytest.fixture(scope="module", autouse=True)
def unit():
    text = (REPO / "packaging" / "systemd" / UNIT).read_text()
    shutil.copy(BIN / "ebbctl", SBIN)
    (UNITS / UNIT).write_text(text.replace("@SBINDIR@", str(SBIN)))
    service_drop_in("systemd-suspend", "look", f"ExecStartPre=/bin/cp /proc/swaps {AT_SLEEP}\n")
    run("systemctl", "enable", UNIT)
    PM_TEST.write_text("freezer")
    yield
    PM_TEST.write_text("none")
    run("systemctl", "disable", UNIT)


def state(unit):
    return run("systemctl", "show", "-p", "ActiveState", "--value", unit)


def journal(unit):
    return run("journalctl", "--no-pager", "-o", "cat", "-u", unit)


def suspend():
    """Suspends; returns once sleep and resume, or their failure, are over."""
    AT_SLEEP.unlink(missing_ok=True)
    invocations = lambda: run("systemctl", "show", "-p", "InvocationID", "--value", UNIT)
    before = invocations()
    run("systemctl", "suspend")
    wait_for(lambda: invocations() != before, 60, "the unit to start")
    wait_for(lambda: {state(UNIT), state("sleep.target"), state("suspend.target")} <= {"inactive", "failed"},
             120, "the machine to be awake")


def listed():
    """Returns the names of swap areas as the kernel shows them."""
    return [line.split()[0] for line in machine.read("/proc/swaps").splitlines()[1:]]


@pytest.fixture
def program(cgroup, device):
    """A program in a cgroup of 16 MiB, with pages out; swapoff needs more."""
    c = cgroup(limit_mib=16)
    s = parts.Scan(c, mib=24, passes=1)
    assert sum(machine.swaps().values()) > 0
    yield s, c
    s.kill()


def test_swap_is_off_while_the_machine_sleeps(program):
    s, c = program
    assert sleep_locks() == []
    before, names = machine.ebb_swaps(), listed()
    c.set_limit(64)
    suspend()
    print(journal(UNIT), journal("systemd-suspend.service"))
    assert len(AT_SLEEP.read_text().splitlines()) == 1, "swap was on"
    assert "suspend debug: Waiting for" in run("dmesg")
    assert listed() == names
    assert machine.ebb_swaps() == before and not Path("/run/ebb/asleep").exists()
    assert state(UNIT) == "inactive"
    # The device works: pages go out again, and come back as they were.
    c.set_limit(16)
    s.go()
    assert s.result()["bad"] == 0


def test_pages_that_fit_nowhere_keep_the_machine_awake(program):
    s, c = program
    before = machine.ebb_swaps()
    suspend()
    print(journal(UNIT))
    assert not AT_SLEEP.exists()
    assert machine.ebb_swaps() == before and not Path("/run/ebb/asleep").exists()
    assert "would invoke the OOM killer" in journal(UNIT) and "keep the machine awake" in journal(UNIT)
    assert "Dependency failed" in run("journalctl", "--no-pager", "-o", "cat", "-b", "-t", "systemd")
    run("systemctl", "reset-failed", UNIT)
    s.go()
    assert s.result()["bad"] == 0


def test_swap_is_on_after_a_sleep_that_failed(program):
    """As if the kernel refused: the target had been reached."""
    s, c = program
    before = machine.ebb_swaps()
    c.set_limit(64)
    service_drop_in("systemd-suspend", "refuse", "ExecStartPre=/bin/false\n")
    try:
        suspend()
    finally:
        (UNITS / "systemd-suspend.service.d" / "refuse.conf").unlink()
        run("systemctl", "daemon-reload")
    assert len(AT_SLEEP.read_text().splitlines()) == 1, "swap was on"
    assert state("systemd-suspend.service") == "failed"
    assert machine.ebb_swaps() == before and not Path("/run/ebb/asleep").exists()
    run("systemctl", "reset-failed", "systemd-suspend.service")
    s.go()
    assert s.result()["bad"] == 0


def test_by_hand(program):
    s, c = program
    c.set_limit(64)
    told = parts.ebbctl("device", "sleep").stdout
    assert told.startswith("device ") and told.endswith(": swap is off\n") and not machine.swaps()
    # Donors keep none of the pages, which are in memory now.
    wait_for(lambda: parts.ebbctl_json("device", "list")["devices"][0]["server"]["live"] == 0, 30,
             "the donor to be free of pages")
    # Again: nothing to do, and nothing is forgotten.
    assert parts.ebbctl("device", "sleep").stdout == ""
    assert parts.ebbctl("device", "wake").stdout == told.replace("off", "on")
    assert len(machine.ebb_swaps()) == 1
    assert parts.ebbctl("device", "wake").stdout == ""
    s.go()
    assert s.result()["bad"] == 0


def test_without_the_unit_devices_inhibit_sleep(donor):
    run("systemctl", "disable", UNIT)
    try:
        d = parts.Device(donor, size="64M")
        try:
            assert len(sleep_locks()) == 1
            asked = subprocess.run(["systemctl", "suspend", "--check-inhibitors=yes"], text=True,
                                   capture_output=True, timeout=60, check=False)
            assert asked.returncode != 0 and "inhibited" in asked.stderr
        finally:
            d.destroy()
    finally:
        run("systemctl", "enable", UNIT)
