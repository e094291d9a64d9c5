# SPDX-License-Identifier: GPL-2.0-or-later
"""
The Debian packages on a machine with systemd: installed, used, upgraded while pages are out,
removed and purged.  One test after the other, on the same machine: `make guest-install`.
"""
import pwd
import subprocess
import time
from pathlib import Path

import pytest

import machine
import parts
from machine import read, wait_for

DEBS = machine.BUILD / "deb"
PACKAGES = ("ebb", "libebbgc1", "libebbgc-dev", "ebb-doc")
DEVICE = "ebb-device@ebb0"


def run(*argv, check=True, timeout=120):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=timeout, check=False)
    assert not check or done.returncode == 0, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def dpkg(*argv, check=True):
    return run("dpkg", *argv, check=check)


def deb(package):
    found = sorted(DEBS.glob(f"{package}_*.deb"))
    assert len(found) == 1, f"{package}: {found}; run make deb"
    return found[0]


def main_pid(unit):
    return int(run("systemctl", "show", "-p", "MainPID", "--value", unit))


def server():
    return parts.control("/run/ebb/devices/ebb0.sock", "status")["pid"]


@pytest.fixture(scope="module", autouse=True)
def swap_off():
    """Whatever fails, swap goes first."""
    yield
    for device in machine.ebb_swaps():
        machine.swapoff(device)


def test_install():
    Path("/usr/sbin/policy-rc.d").unlink(missing_ok=True)
    dpkg("-i", *(deb(p) for p in PACKAGES))
    assert run("systemctl", "is-active", "ebbd") == "active"
    assert run("systemctl", "is-enabled", "ebb-donord", check=False) == "disabled"
    assert pwd.getpwnam("ebb-donord").pw_uid < 1000
    for group in ("ebb", "ebb-admin"):
        run("getent", "group", group)
    assert "MISSING" not in run("/usr/sbin/ebbctl", "doctor")


def test_donor_is_nobody():
    Path("/etc/default/ebb-donord").write_text(
        'EBB_DONOR_ARGS="--listen 127.0.0.1:7070 --memory 256M --slab 16M"\n')
    run("systemctl", "start", "ebb-donord")
    pid = main_pid("ebb-donord")
    status = dict(l.split(":\t", 1) for l in read(f"/proc/{pid}/status").splitlines())
    assert status["Uid"].split()[0] == str(pwd.getpwnam("ebb-donord").pw_uid)
    assert int(status["CapEff"], 16) == 0
    assert int(status["VmLck"].split()[0]) >= 256 << 10
    assert parts.control("/run/ebb/donord.sock", "status")["total"] == 256 << 20


def test_device_of_a_unit():
    Path("/etc/ebb/devices/ebb0.conf").write_text(
        'EBB_DEVICE_ARGS="--size 256M --slab 16M --donor 127.0.0.1:7070"\n')
    run("systemctl", "start", DEVICE)
    assert machine.ebb_swaps()
    assert "ebb-swapd-ebb0.scope" in read(f"/proc/{server()}/cgroup")
    assert "/run/ebb/mnt/ebb0" in read("/proc/self/mounts")
    status = parts.control("/run/ebb/devices/ebb0.sock", "status")
    assert all(status[k] for k in ("locked", "realtime", "oom_protected", "io_flusher"))


def start_scan(name, pause):
    """A scan of twice its memory in ebb.slice; its unit."""
    run("systemd-run", "--slice=ebb.slice", f"--unit={name}", "-p", "MemoryMax=48M",
        "-p", "RemainAfterExit=yes", f"--property=StandardOutput=file:/tmp/{name}.json", "bash", "-c",
        # The fill is paged out before the pause.
        f"(sleep {pause}; echo) | {parts.SCAN} --json --mib 96 --passes 3 --pattern seq --pause")


def result_of(name):
    wait_for(lambda: '"bad"' in read(f"/tmp/{name}.json"), 120, f"{name}: its result")
    return read(f"/tmp/{name}.json").splitlines()[-1]


def test_a_slice_with_a_policy():
    Path("/etc/ebb/ebb.conf.d/slice.conf").write_text('[cgroup "/ebb.slice"]\npolicy = leap\n')
    run("systemctl", "reload", "ebbd")
    start_scan("first", 1)
    assert '"bad":0' in result_of("first").replace(" ", "")
    wait_for(lambda: parts.ebbctl_json("stats")["cgroups"][0]["prefetched"] > 1000, 20, "prefetching")
    run("systemctl", "stop", "first")


def test_upgrade_while_pages_are_out():
    start_scan("second", 20)
    wait_for(lambda: sum(machine.swaps().values()) > 32 << 10, 60, "pages to be out")
    before = [main_pid(u) for u in ("ebbd", "ebb-donord")] + [server()]
    dpkg("-i", deb("ebb"))
    after = [main_pid(u) for u in ("ebbd", "ebb-donord")] + [server()]
    assert after[0] not in (0, before[0]), "ebbd is not restarted"
    assert after[1:] == before[1:], "a donor or a server is restarted"
    assert '"bad":0' in result_of("second").replace(" ", "")


def test_removal_is_refused_where_pages_fit_nowhere():
    # The limit of its cgroup: what is out does not fit there.
    start_scan("third", 600)
    wait_for(lambda: sum(machine.swaps().values()) > 32 << 10, 60, "pages to be out")
    dpkg("-r", "ebb", check=False)
    assert run("dpkg-query", "-W", "-f=${db:Status-Status}", "ebb") != "config-files"
    assert machine.ebb_swaps() and Path("/usr/sbin/ebbctl").exists()
    run("systemctl", "stop", "third")
    # What prerm's failure left half done.
    dpkg("--configure", "-a")


def test_removal_and_purge():
    time.sleep(1)
    dpkg("-r", "ebb")
    assert not machine.ebb_swaps()
    assert not Path("/usr/sbin/ebbd").exists() and not Path("/sys/fs/bpf/ebb").exists()
    dpkg("-P", *PACKAGES)
    for pattern in ("/etc/ebb*", "/etc/default/ebb*", "/run/ebb*", "/var/lib/ebb/*", "/usr/sbin/ebb*",
                    "/usr/lib/ebb*", "/lib/systemd/system/ebb*", "/etc/systemd/system/*.wants/ebb*",
                    "/usr/lib/*/libebbgc*", "/usr/share/doc/ebb*", "/var/lib/systemd/deb-systemd-helper*/*ebb*"):
        assert list(Path("/").glob(pattern[1:])) == [], pattern
