# SPDX-License-Identifier: GPL-2.0-or-later
"""
Places where programs run on a machine with systemd: a service with a policy in its drop-in, a
login, a Podman container.  The program is unchanged; whatever starts it creates the cgroup.
`make guest-install` runs this; docs/running.md is the manual.
"""
import json
import shutil
from pathlib import Path

import pytest

import machine
import parts
from machine import read, wait_for
from systemd import UNITS, run, service_drop_in

LOGS = Path("/hostout/logs/places")
# Created by debootstrap: see packaging/build.mk.
CONTAINER = machine.BUILD / "guest" / "container"
LIMIT_MIB = 16
# A copy where every user may execute it: the repository may be in root's home directory.
SCAN = "/tmp/ebb-scan"
WALK = "--json --mib 24 --passes 2 --hold"
# Gets no input and runs until its unit is stopped, like a service.
PROGRAM = f"sleep infinity | {SCAN} {WALK}"

CONFIG = """
[cgroup "/user.slice/user-*.slice"]
policy = leap
pw_max = 16

[cgroup "/machine.slice/libpod-*.scope"]
policy = leap
pw_max = 24
"""


@pytest.fixture(scope="module", autouse=True)
def ready():
    """A donor, a device, an ebbd with CONFIG."""
    LOGS.mkdir(parents=True)
    shutil.copy(parts.SCAN, SCAN)
    config = LOGS / "ebb.conf"
    config.write_text(CONFIG)
    donor = parts.Donor(LOGS / "donor.log", memory="128M")
    device = parts.Device(donor, size="128M")
    ebbd = parts.Ebbd(LOGS / "ebbd.log", config)
    yield
    ebbd.stop()
    machine.pins_remove()
    device.destroy()
    donor.stop()


def high_events(directory):
    rows = dict(line.split() for line in read(directory / "memory.events").splitlines())
    return int(rows["high"])


def attached(path):
    """Returns ebbd's row of the cgroup at @path, without the mount; None without a policy."""
    for row in parts.ebbctl_json("status")["attachments"]:
        if row["cgroup"] == f"/sys/fs/cgroup{path}":
            return row
    return None


def cgroup_of(pid):
    return read(f"/proc/{pid}/cgroup").strip().rpartition(":")[2]


def judge(output, path):
    """Checks that the program read its data, and that prefetching in the cgroup at @path had hits."""
    wait_for(lambda: '"bad"' in read(output), 300, f"{output}: the program's end", 0.5)
    told = json.loads(read(output).splitlines()[0])
    assert told["bad"] == 0
    stats = parts.ebbctl_json("stats", f"/sys/fs/cgroup{path}")["cgroups"][0]
    print(path, stats)
    assert stats["swapped_out"] > 1000
    # The share of hits depends on how busy the emulated processor is.
    assert stats["hits"] + stats["late"] > 300 and stats["misses"] > 0


def test_a_service_whose_drop_in_carries_the_policy():
    (UNITS / "spark.service").write_text(
        f"[Service]\nExecStart=/bin/sh -c '{PROGRAM}'\nStandardOutput=file:/tmp/spark\nUser=65534\n")
    service_drop_in("spark", "ebb", f"""Slice=spark.slice
MemoryMax={LIMIT_MIB}M
ExecStartPost=+/usr/bin/setfattr -n user.ebb.policy -v "leap pw_max=48" /sys/fs/cgroup/spark.slice/%n
""")
    run("systemctl", "start", "spark")
    path = "/spark.slice/spark.service"
    row = wait_for(lambda: attached(path), 60, "a policy")
    assert row["by"] == "user.ebb.policy" and row["params"]["pw_max"] == 48
    judge("/tmp/spark", path)
    run("systemctl", "stop", "spark")
    wait_for(lambda: not attached(path), 20, "a policy that ends with its cgroup")


def test_memory_high_of_a_slice():
    """A policy leaves systemd's limit unchanged, and its prefetches stay below the limit."""
    high, name = LIMIT_MIB << 20, "deep.slice"
    directory = Path("/sys/fs/cgroup") / name
    (UNITS / name).write_text(f"[Slice]\nMemoryHigh={LIMIT_MIB}M\n")
    run("systemctl", "start", name)
    events, peaks = [], []
    for policy in (None, "leap"):
        if policy:
            parts.ebbctl("policy", "attach", policy, directory)
        before = high_events(directory)
        told = run("systemd-run", "--quiet", "--wait", "--pipe", f"--slice={name}",
                   parts.SCAN, "--json", "--mib", "24", "--passes", "3")
        assert json.loads(told.splitlines()[-1])["bad"] == 0
        events.append(high_events(directory) - before)
        peaks.append(int(read(directory / "memory.peak")))
    print("memory.high events", events, "peaks", peaks)
    assert parts.ebbctl_json("stats", str(directory))["cgroups"][0]["prefetched"] > 1000
    # Runs differ by a few percent, and usage may exceed the limit by a huge page.
    assert events[1] <= events[0] * 1.1
    assert peaks[1] <= max(peaks[0], high) + (2 << 20)
    run("systemctl", "daemon-reload")
    assert int(read(directory / "memory.high")) == high
    assert run("systemctl", "show", "-p", "MemoryHigh", "--value", name) == str(high)
    parts.ebbctl("policy", "detach", directory)
    run("systemctl", "stop", name)


def test_a_login():
    run("useradd", "-m", "-s", "/bin/bash", "ada")
    uid = run("id", "-u", "ada")
    path = f"/user.slice/user-{uid}.slice"
    (UNITS / "user-.slice.d").mkdir(exist_ok=True)
    (UNITS / "user-.slice.d" / "memory.conf").write_text("[Slice]\nMemoryMax=24M\n")
    run("systemctl", "daemon-reload")
    # Only PAM and logind choose the cgroup.
    run("systemd-run", "--unit=ada-login", "su", "-l", "ada", "-c",
        f"cat /proc/self/cgroup >/tmp/ada.cgroup; {PROGRAM} >/tmp/ada")
    row = wait_for(lambda: attached(path), 120, "a policy")
    assert "ebb.conf:" in row["by"] and row["params"]["pw_max"] == 16
    wait_for(lambda: read("/tmp/ada.cgroup"), 120, "the login's shell")
    assert read("/tmp/ada.cgroup").strip().rpartition(":")[2].startswith(f"{path}/session-")
    judge("/tmp/ada", path)
    # The user owns the cgroup of the user manager.
    hers = f"{path}/user@{uid}.service"
    run("su", "-l", "ada", "-c",
        f"setfattr -n user.ebb.policy -v 'leap pw_max=8' /sys/fs/cgroup{hers}")
    row = wait_for(lambda: attached(hers), 60, "her own policy")
    assert row["by"] == "user.ebb.policy" and row["params"]["pw_max"] == 8
    run("loginctl", "terminate-user", "ada")
    wait_for(lambda: not attached(path), 120, "a policy that ends with the last login")


def test_a_container():
    assert CONTAINER.exists(), f"{CONTAINER}: missing; run make guest-install"
    # Podman's files cannot be on the guest's root, which is an overlay already.
    podman = ("podman", "--root", "/mnt/disk/podman", "--runroot", "/run/podman",
              "--cgroup-manager", "systemd", "--log-level", "warn")
    output = Path("/tmp/container")
    output.mkdir()
    made = run(*podman, "run", "--detach", "--network", "none", "--name", "spark",
               f"--memory={LIMIT_MIB}m", "--memory-swap=-1", "--read-only",
               "-v", f"{SCAN}:/scan:ro", "-v", f"{output}:/output", "--rootfs", str(CONTAINER),
               "/bin/sh", "-c", f"sleep infinity | /scan {WALK} >/output/scan")
    path = f"/machine.slice/libpod-{made.splitlines()[-1]}.scope"
    row = wait_for(lambda: attached(path), 60, "a policy")
    assert "ebb.conf:" in row["by"] and row["params"]["pw_max"] == 24
    pid = run(*podman, "inspect", "-f", "{{.State.Pid}}", "spark")
    assert cgroup_of(pid).startswith(path)
    judge(output / "scan", path)
    run(*podman, "rm", "-f", "-t", "0", "spark")
    wait_for(lambda: not attached(path), 60, "a policy that ends with its container")
