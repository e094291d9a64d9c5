# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases that run inside a guest as root; tests/guest/boots.py boots it."""
import os

import pytest

import machine
import parts


def pytest_collection(session):
    if not machine.IN_GUEST:
        pytest.exit("these tests stop what serves swap: run them with tests/guest/boots.py", 2)


class Reasons:
    """Prints at once why a test failed: a guest that dies later prints no summary."""

    def __init__(self, config):
        self.config = config

    def pytest_report_teststatus(self, report):
        """Adds the test's time, for people who watch."""
        if report.when == "call" and report.outcome in ("passed", "failed"):
            letter = {"passed": ".", "failed": "F"}[report.outcome]
            return report.outcome, letter, f"{report.outcome.upper()} {report.duration:.0f} s"

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.config.pluginmanager.get_plugin("terminalreporter").write_line(report.longreprtext)


def pytest_configure(config):
    config.pluginmanager.register(Reasons(config))


@pytest.fixture(scope="session")
def series():
    """The kernel's series, "6.12" or "6.1"."""
    return os.environ["EBB_GUEST"]


class Road:
    """Donor, device and ebbd, and a cgroup with half of what a scan needs."""

    def __init__(self, donor, device, ebbd, cgroup):
        self.donor, self.device, self.ebbd, self.make_cgroup = donor, device, ebbd, cgroup

    def attached(self, policy="leap", limit_mib=16):
        """Returns a limited cgroup with @policy."""
        c = self.make_cgroup(limit_mib=limit_mib)
        if policy:
            parts.ebbctl("policy", "attach", policy, c.path)
        return c


@pytest.fixture
def road(donor, device, ebbd, cgroup):
    return Road(donor, device, ebbd, cgroup)
