# SPDX-License-Identifier: GPL-2.0-or-later
"""
Tests too dangerous outside of a guest: kill and stop the servers of swap while a program's pages
are there.  A hung task or a warning ends the guest.
"""
import os
import signal
import time

import pytest

import machine
import parts
from machine import wait_for

MIB, LIMIT = 32, 16


def writer(cgroup, passes=4):
    """Starts a program that rewrites pages that it reads, to detect every stale page."""
    s = parts.Scan(mib=MIB, passes=passes, write=True, cgroup=cgroup)
    s.go()
    return s


def busy(device, kib=8 << 10):
    """Waits until the program's pages are on the device."""
    wait_for(lambda: (device.used_kib() or 0) > kib, 60, "pages on the device")


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_donor_killed(road):
    """Every page is read from the backup with its newest content; the program sees no error."""
    c = road.attached("leap", LIMIT)
    s = writer(c)
    try:
        busy(road.device)
        wait_for(lambda: road.device.stats()["pages_read_donor"] > 0, 20, "pages from the donor")
        assert s.process.poll() is None, "the program must still run when the donor dies"
        before = road.device.stats()
        road.donor.kill()
        assert s.result()["bad"] == 0
        after = road.device.stats()
        assert after["pages_read_backup"] - before["pages_read_backup"] > 1000
        assert after["pages_read_failed"] == 0
    finally:
        s.kill()


def test_small_cgroup_waits_for_a_stalled_donor(donor, swap_lock, cgroup):
    """Not all pages of a cgroup are in flight at a time: the OOM killer would act."""
    device = parts.Device(donor, options=("--durability", "none"))
    try:
        c = cgroup(limit_mib=LIMIT)
        assert parts.fill_while_stalled(donor, c, MIB) == 0
        assert device.block_pages()[1] > (MIB - LIMIT) << 8
        assert c.events("oom_kill") == 0
    finally:
        device.destroy()


def test_control_plane_killed(road, logs):
    """Paging continues without ebbd, policies stop requesting, and the next ebbd takes over."""
    c = road.attached("leap", LIMIT)
    s = writer(c, passes=40)
    try:
        wait_for(lambda: parts.stats(c)["hits"] > 1000, 60, "hits before the kill")
        road.ebbd.kill()
        # Prefetching ends with ebbd; requests end by the heartbeat within two seconds.
        time.sleep(2.5)
        asked, missed = parts.counted(c, "requests"), parts.counted(c, "misses")
        time.sleep(2)
        wait_for(lambda: parts.counted(c, "misses") > missed, 60, "misses that are counted")
        assert parts.counted(c, "requests") == asked > 0
        assert s.process.poll() is None
        successor = parts.Ebbd(logs / "ebbd-again.log")
        try:
            hits = parts.stats(c)["hits"]
            wait_for(lambda: parts.stats(c)["hits"] > hits + 1000, 60, "hits after the restart")
            s.process.terminate()
            assert c.events("oom_kill") == 0
        finally:
            successor.stop()
    finally:
        s.kill()


def test_program_is_right_when_the_control_plane_dies(road):
    c = road.attached("leap", LIMIT)
    s = writer(c, passes=3)
    try:
        busy(road.device)
        road.ebbd.kill()
        assert s.result()["bad"] == 0
    finally:
        s.kill()


def machine_usable(cgroup):
    """Checks that fork, exec, memory and files work and no task sleeps uninterruptibly."""
    assert parts.scan_json(mib=8)["bad"] == 0
    stuck = [p for p in os.listdir("/proc") if p.isdigit()]
    for _ in range(30):
        stuck = [p for p in stuck
                 if machine.read(f"/proc/{p}/stat").rpartition(")")[2].split()[:1] == ["D"]]
        if not stuck:
            break
        time.sleep(1)
    assert not stuck, [machine.read(f"/proc/{p}/comm") for p in stuck]


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def end_of_device(road, act, seconds):
    """Calls @act, which stops the servers; the program must end by a signal within @seconds."""
    c = road.attached("leap", LIMIT)
    s = writer(c, passes=1000)
    try:
        busy(road.device)
        act(road.device.processes())
        status, said = s.outcome(timeout=seconds)
        assert status in parts.UNREADABLE, said
        machine_usable(c)
    finally:
        s.kill()
    return c


def test_server_killed(road):
    """Killing all processes of ebb-swapd causes I/O errors, not a hung machine."""
    end_of_device(road, lambda pids: signal_all(pids, signal.SIGKILL), 240)


def test_server_stopped(road):
    """
    With server and standby stopped by SIGSTOP, the watchdog first replaces the server by the
    standby, then fails the I/O of the hung device.
    """
    processes = road.device.processes()[1:]
    try:
        end_of_device(road, lambda _: signal_all(processes, signal.SIGSTOP), 240)
    finally:
        signal_all(processes, signal.SIGCONT)


def test_abort_verb(road):
    """`ebbctl device abort` fails all I/O, as the watchdog does."""
    processes = road.device.processes()

    def act(_):
        signal_all(processes, signal.SIGSTOP)
        parts.ebbctl("device", "abort", "--yes", road.device.name)
    try:
        end_of_device(road, act, 240)
    finally:
        signal_all(processes, signal.SIGCONT)
