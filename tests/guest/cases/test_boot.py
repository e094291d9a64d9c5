# SPDX-License-Identifier: GPL-2.0-or-later
"""The guest has the properties that other cases assume."""
import os
import subprocess
from pathlib import Path

import machine
import parts


def test_kernel_is_the_one_asked_for(series):
    assert os.uname().release.startswith(series + ".")


def test_memory_controller_is_v2():
    root, version = machine.memory_root()
    assert version == 2
    assert {"memory", "io", "pids"} <= set((root / "cgroup.subtree_control").read_text().split())


def test_hung_tasks_and_warnings_are_fatal():
    assert Path("/proc/sys/kernel/hung_task_panic").read_text().strip() == "1"
    assert Path("/proc/sys/kernel/panic_on_warn").read_text().strip() == "1"
    assert "kfence.sample_interval=20" in Path("/proc/cmdline").read_text()


def test_what_backs_a_device_is_no_memory():
    assert subprocess.run(["findmnt", "-no", "FSTYPE", "-T", "/var/lib/ebb"], text=True,
                          capture_output=True).stdout.strip() == "ext4"


def test_limit_kills_without_swap(cgroup):
    """Without swap no page can leave, so 48 MiB do not fit into 24."""
    c = cgroup(limit_mib=24)
    done = parts.scan(mib=48, cgroup=c, check=False)
    assert done.returncode == -9
    assert c.events("oom_kill") >= 1


def test_limit_with_swap_on_a_disk(cgroup, tmp_path):
    """
    With swap, 48 MiB fit into 24: every word is right, and pages were swapped.  Above memory.high
    the program waits for writes; at memory.max alone the OOM killer acts when the disk stalls.
    """
    area = Path("/var/lib/ebb/area")
    subprocess.run(["fallocate", "-l", "128M", area], check=True)
    subprocess.run(["/sbin/mkswap", area], check=True, capture_output=True)
    subprocess.run(["/sbin/swapon", area], check=True)
    try:
        c = cgroup(limit_mib=40)
        c.set("memory.high", 24 << 20)
        told = parts.scan_json(mib=48, passes=2, write=True, cgroup=c)
        assert told["bad"] == 0
        assert told["misses"] > 1000
    finally:
        machine.swapoff(str(area))
        area.unlink()


def test_fuse_and_loop_are_there():
    assert Path("/dev/fuse").exists()
    assert subprocess.run(["/sbin/losetup", "-f"], capture_output=True).returncode == 0
