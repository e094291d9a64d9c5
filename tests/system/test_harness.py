# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests themselves promise: one that fails does not fail the next."""
import os
import subprocess
import sys

import machine
from dataplane import Server
from parts import Donor


def run_sample(tmp_path, *prefix):
    # A shard of its own: what other tests have is not this one's to remove.
    env = {**os.environ, machine.SHARD: str(tmp_path)}
    return subprocess.run(
        [*prefix, sys.executable, "-B", "-m", "pytest", "-v", "--basetemp", tmp_path / "t",
         machine.REPO / "tests/system/samples/leaving.py"],
        env=env, capture_output=True, text=True, check=False)


def test_what_a_test_leaves_is_removed_and_told(tmp_path):
    done = run_sample(tmp_path)
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "left behind, and removed: mount: " in done.stdout and "process: sleep (" in done.stdout
    assert "ERROR at teardown of test_leaves" in done.stdout


def test_children_inherit_no_ignored_signals(tmp_path):
    """As from `nohup make check &` in a script."""
    sample = tmp_path / "test_signals.py"
    sample.write_text("import subprocess\n"
                      "def test():\n"
                      "    said = subprocess.check_output(['grep', 'SigIgn', '/proc/self/status'])\n"
                      "    assert int(said.split()[1], 16) & 7 == 0\n")
    done = subprocess.run(
        ["env", "--ignore-signal=INT,HUP,QUIT", sys.executable, "-B", "-m", "pytest", sample,
         "--rootdir", tmp_path, "-p", "conftest", "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": str(machine.REPO / "tests")},
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_what_a_killed_run_leaves_is_told_from_what_is_used(tmp_path, logs):
    donor = Donor(logs / "donor.log", path=tmp_path / "ebb-donor.sock")
    server = Server(tmp_path, logs / "swapd.log", [donor])
    line = f"mount: {server.mount}"
    try:
        assert line in machine.leftovers()
        assert line not in machine.abandoned(), "it is served"
        server.kill()
        machine.wait_for(lambda: machine.dead_mount(server.mount), 10, "the mount to be dead")
        assert line not in machine.abandoned(), "ebb-donord runs"
        donor.stop()
        assert line in machine.abandoned()
        machine.clean({line})
        assert line not in machine.leftovers()
    finally:
        if server.alive():
            server.kill()
        donor.stop()
        machine.clean({line})
