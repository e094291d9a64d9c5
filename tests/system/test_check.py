# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make check` does beside running tests."""
import signal
import subprocess
import sys

import pytest

import machine

pytestmark = pytest.mark.beside

CHECK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import check
check.REPORTS = Path(sys.argv[2])
check.PYTEST = ["/bin/sh", "-c", "trap 'sleep 1; echo ended; exit' TERM; echo begun; while :; do sleep 0.1; done"]
wait = check.subprocess.Popen.wait
def told_wait(*args):
    check.subprocess.Popen.wait = wait
    print("begun", flush=True)
    return wait(*args)
check.subprocess.Popen.wait = told_wait
check.exit_on_sigterm()
check.run_pytest("system", "-m", "not long")
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_ends_the_tests_and_waits_for_their_cleanup(tmp_path, signals):
    done = subprocess.Popen([sys.executable, "-B", "-c", CHECK, str(machine.REPO / "tests"), str(tmp_path)],
                            stdout=subprocess.PIPE, text=True)
    try:
        # Both the program and the wait for it.
        for _ in range(2):
            assert done.stdout.readline() == "begun\n"
        for _ in range(signals):
            done.send_signal(signal.SIGTERM)
        assert done.stdout.read() == "ended\n"
        assert done.wait(30) == 128 + signal.SIGTERM
    finally:
        done.kill()
