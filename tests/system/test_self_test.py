# SPDX-License-Identifier: GPL-2.0-or-later
"""At start ebbd checks what the BPF programs read of this kernel, and whether it means the same."""
import json
import subprocess

import pytest

import machine
import parts
import policies


def self_test_row():
    """Returns the row of `ebbctl doctor` about the test."""
    done = parts.ebbctl("doctor", "--json", check=False)
    return next(row for row in json.loads(done.stdout)["checks"] if row["name"] == "ebbd self-test")


def test_what_the_programs_read_is_verified(ebbd):
    assert policies.call("status")["self_test"] == {"state": "passed", "found": ""}
    assert self_test_row()["state"] == "have"


def test_a_page_of_another_cgroup_is_named(ebbd_lock, cgroup, logs, tmp_path):
    """Here ebbd is misled about its own cgroup; a new kernel would mislead the programs."""
    other, fake = cgroup(), tmp_path / "cgroup"
    fake.write_text(f"{'4:memory' if other.version == 1 else '0:'}:{other.rel}\n")
    ebbd = parts.Daemon(["unshare", "--mount", "sh", "-c",
                         'mount --bind "$0" /proc/$$/cgroup && exec "$@"', fake,
                         machine.BIN / "ebbd"], logs / "ebbd.log")
    try:
        log, told = machine.read(ebbd.log), policies.call("status")["self_test"]
        assert told["state"] == "failed"
        assert told["found"].startswith("memory_cgroup(): ")
        assert f" in {other.path.stat().st_ino}: no fault is counted" in told["found"]
        assert f"bpf: {told['found']}; this kernel has changed a field that ebb reads" in log
        row = self_test_row()
        assert row["state"] == "MISSING" and row["found"] == told["found"]
    finally:
        ebbd.stop()
        machine.pins_remove()


@pytest.mark.parametrize("proc", [[], ["--mount-proc"]], ids=["proc of the host", "proc of its own"])
def test_another_pid_namespace_is_refused(ebbd_lock, proc):
    """The numbers of processes that BPF reports would be those of others there."""
    done = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", *proc, machine.BIN / "ebbd"],
                          text=True, capture_output=True, timeout=60)
    assert done.returncode == 5
    assert done.stderr == ("ebbd: error: PID namespace: not the host's, so that process numbers "
                           "are not the kernel's; start ebbd in the host's (hostPID: true, "
                           "--pid=host)\n")
