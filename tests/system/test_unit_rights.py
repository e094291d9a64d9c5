# SPDX-License-Identifier: GPL-2.0-or-later
"""
The capabilities and system calls that the units of systemd leave their programs: all that the
programs do works with these.
"""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import machine
import parts
import units
from machine import BIN, read

UNPRIVILEGED = 65534
CAP_IPC_LOCK, CAP_SYS_RESOURCE = 14, 24
DEVICE = "ebb-device@.service"


def status_of(pid):
    return dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").splitlines()
                if ":\t" in line)


def has(status, capability):
    return bool(int(status["CapEff"], 16) >> capability & 1)


# A container's root has not all of it, and what is not there cannot be passed on.
RESOURCE = has(status_of("self"), CAP_SYS_RESOURCE)


def run(unit, *argv):
    return subprocess.run([*units.confined(unit), BIN / "ebbctl", *argv], text=True,
                          capture_output=True, timeout=120, check=False)


@pytest.fixture
def device(swap_lock, donor):
    """Made and destroyed with the rights of its unit."""
    told = subprocess.check_output([*units.confined(DEVICE), "cat", "/proc/self/status"], text=True)
    # Swap on a server that is not locked may be the end of this machine.
    assert has(dict(line.split(":\t", 1) for line in told.splitlines()), CAP_IPC_LOCK)
    done = run(DEVICE, "device", "create", "test0", "--size", "256M", "--slab", "16M",
               "--donor", donor.address)
    assert done.returncode == 0, done.stderr
    try:
        yield parts.control("/run/ebb/devices/test0.sock", "status")
        # The server's mounts are not visible here; abort finds the device nevertheless, and asks.
        assert "/run/ebb/mnt/test0" not in read("/proc/self/mounts")
        asked = parts.ebbctl("device", "abort", "test0", check=False)
        assert asked.returncode == 5 and "--yes" in asked.stderr, asked.stderr
    finally:
        done = run(DEVICE, "device", "destroy", "test0")
        if done.returncode:
            parts.ebbctl("device", "destroy", "test0")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def ebbd(swap_lock, logs):
    d = parts.Daemon([*units.confined("ebbd.service"), BIN / "ebbd"], logs / "ebbd.log")
    yield d
    d.stop()
    machine.pins_remove()


def test_services_have_the_rights_they_need(ebbd, device, cgroup, logs, tmp_path):
    """The server locks itself and comes first; ebbd fetches, measures and records for a user."""
    assert device["locked"] and device["realtime"]
    assert device["oom_protected"] == device["io_flusher"] == RESOURCE
    # Not what it needed to load its programs, and no stacks of 8 MiB.
    assert 1024 < int(status_of(ebbd.pid)["VmLck"].split()[0]) < 64 << 10
    # The thread sets its name and priority itself, maybe after ebbd is ready.
    expected = os.SCHED_FIFO if os.cpu_count() > 1 else os.SCHED_OTHER
    machine.wait_for(lambda: [os.sched_getscheduler(int(t.name))
                              for t in Path(f"/proc/{ebbd.pid}/task").iterdir()
                              if read(t / "comm").strip() == "ebbd-prefetch"] == [expected],
                     5, "the scheduler of the thread that prefetches")
    assert "real-time" not in read(logs / "ebbd.log")

    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, UNPRIVILEGED, UNPRIVILEGED)
    c = cgroup(limit_mib=48)
    parts.ebbctl("policy", "attach", "leap", c.path)
    s = parts.Scan(cgroup=c, mib=96, passes=2)
    try:
        record = subprocess.Popen([BIN / "ebbctl", "record", c.path, "-o", theirs / "it.trace",
                                   "--seconds", "30"], stdout=subprocess.DEVNULL)
        machine.wait_for((theirs / "it.trace").exists, 10, "the recording to begin")
        s.go()
        assert s.result()["bad"] == 0
        record.terminate()
        assert record.wait(60) == 0
    finally:
        s.kill()
    stats = parts.stats(c)
    assert stats["prefetched"] > 1000 and stats["hits"] > 1000
    assert (theirs / "it.trace").stat().st_size > 10000
    parts.ebbctl("policy", "show", "leap", "--time", "200ms")


def test_limit_of_a_users_cgroup(swap_lock, donor, cgroup):
    """--scope attached writes the files of a cgroup that systemd gave to a user, and restores them."""
    if machine.swaps():
        pytest.skip("other swap is on")
    c = cgroup(64)
    knob = c.path / "memory.swappiness" if c.version == 1 else c.path.parent / "memory.swap.max"
    before, owner = read(knob), knob.stat()
    os.chown(knob, UNPRIVILEGED, UNPRIVILEGED)
    try:
        done = run(DEVICE, "device", "create", "test0", "--size", "256M", "--slab", "16M",
                   "--donor", donor.address, "--scope", "attached")
        assert done.returncode == 0, done.stderr
        try:
            assert read(knob).strip() == "0"
        finally:
            done = run(DEVICE, "device", "destroy", "test0")
            if done.returncode:
                parts.ebbctl("device", "destroy", "test0", check=False)
        assert done.returncode == 0, done.stderr
        assert read(knob) == before
        assert not Path("/run/ebb/devices/test0.scope").exists()
    finally:
        os.chown(knob, owner.st_uid, owner.st_gid)


@pytest.mark.beside
def test_a_donor_is_nobody(tmp_path):
    """
    No root, no capability: the limits of its unit let it lock its memory and come first.
    Where limits cannot be raised it lends all the same; tests/guest has the rest.
    """
    unit = "ebb-donord.service"
    assert units.settings(unit, "CapabilityBoundingSet") == [""]
    limits = {key: units.settings(unit, key)[0] for key in
              ("LimitMEMLOCK", "LimitRTPRIO", "OOMScoreAdjust")}
    # Not in pytest's directories, which are root's.
    run_dir = f"/run/ebb-test-donor-{os.getpid()}"
    os.mkdir(run_dir)
    os.chown(run_dir, UNPRIVILEGED, UNPRIVILEGED)
    raised = ["choom", "-n", limits["OOMScoreAdjust"], "--", "prlimit",
              f"--memlock={limits['LimitMEMLOCK'].replace('infinity', 'unlimited')}",
              f"--rtprio={limits['LimitRTPRIO']}", "--"] if RESOURCE else []
    argv = [*raised, *units.confined(unit, f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}",
                                     "--clear-groups"), BIN / "ebb-donord", "--listen", "127.0.0.1:7479",
            "--memory", "4M", "--slab", "1M", "--drain-timeout", "0"]
    # Its user may have no access to the tree's parents, such as /root: it finds the tree at /mnt.
    argv = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /mnt && exec "$@"', machine.REPO,
            *(str(word).replace(str(machine.REPO), "/mnt") for word in argv)]
    try:
        donor = parts.Daemon(argv, tmp_path / "donor.log", env={"EBB_RUN_DIR": run_dir})
        try:
            status = status_of(donor.pid)
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
            assert status["Uid"].split() == [str(UNPRIVILEGED)] * 4
            assert int(status["VmLck"].split()[0]) >= 4 << 10
            assert parts.control(f"{run_dir}/donord.sock", "status")["total"] == 4 << 20
            if RESOURCE:
                assert os.sched_getscheduler(donor.pid) == os.SCHED_FIFO
                assert read(f"/proc/{donor.pid}/oom_score_adj").strip() == limits["OOMScoreAdjust"]
                assert "cannot" not in read(tmp_path / "donor.log")
        finally:
            assert donor.stop() == 0
    finally:
        shutil.rmtree(run_dir)
