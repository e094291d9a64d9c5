# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread of ebbd that hangs: the watchdog sees each, not the main thread alone."""
import ctypes
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import machine
import parts
from machine import wait_for
from parts import ebbctl
from rows import few

SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
NAMES = {"ebbd-prefetch": "prefetching", "ebbd-offload": "offloading"}


def thread(pid, name):
    """Returns the number of the thread, or None before it has taken its name."""
    return next((int(t.name) for t in Path(f"/proc/{pid}/task").iterdir()
                 if machine.read(t / "comm").strip() == name), None)


@contextmanager
def started(log, **env):
    ebbd = parts.Daemon([machine.BIN / "ebbd"], log, env=env)
    try:
        yield ebbd
    finally:
        ebbd.stop()
        machine.pins_remove()


@contextmanager
def hung(tid):
    """Stops one thread, of which the others learn nothing; gives a function that tells its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in SEIZE, INTERRUPT:
        assert libc.ptrace(request, tid, 0, 0) == 0, os.strerror(ctypes.get_errno())
    assert os.WIFSTOPPED(os.waitpid(tid, WALL)[1])
    try:
        # The tracer must collect a thread before its process can end.
        yield lambda: os.waitpid(tid, WALL | os.WNOHANG)[0]
    finally:
        libc.ptrace(DETACH, tid, 0, 0)


@pytest.mark.parametrize("name", few(NAMES, "ebbd-prefetch"))
def test_the_watchdog_ends_ebbd_if_a_thread_hangs(ebbd_lock, logs, name):
    with started(logs / "ebbd.log", WATCHDOG_USEC="5000000") as ebbd:
        tid = wait_for(lambda: thread(ebbd.pid, name), 5, name)
        with hung(tid) as ended:
            wait_for(ended, 60, "the end of a hung ebbd")
        assert ebbd.process.wait(60) == -signal.SIGABRT
        # A busy machine may hold up all threads for 2 s, but hardly for 5.
        assert f"{NAMES[name]}: no progress for 5 s" in machine.read(ebbd.log)


class LockedMap:
    """A program that scans its memory and, on request, locks it: see tests/programs/locked_map.c."""

    def __init__(self, cgroup, directory, mib):
        directory.mkdir()
        self.directory = directory
        self.process = subprocess.Popen([machine.BUILD / "tests" / "locked_map", directory, str(mib)],
                                        preexec_fn=cgroup.enter, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == "filled\n"

    def do(self, command):
        print(command, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == f"{command}\n"

    def stop(self):
        # The server first: until it ends, a program that is killed waits for its own lock.
        for server in machine.children(self.process.pid):
            os.kill(server, signal.SIGKILL)
        self.process.kill()
        self.process.wait(60)
        # ismount() is false without a server.
        if f" {self.directory} " in machine.read("/proc/self/mounts"):
            subprocess.run(["umount", self.directory], check=True)


@pytest.fixture
def locked_map(tmp_path):
    made = []

    def make(cgroup, mib):
        made.append(LockedMap(cgroup, tmp_path / f"ebb-chaos-fuse{len(made)}", mib))
        return made[-1]

    yield make
    for m in made:
        m.stop()


def hits(cgroup):
    return parts.stats(cgroup)["hits"]


def told(ebbd, text):
    return machine.read(ebbd.log).count(text)


def hangs(program, ebbd, work, seconds):
    """The program locks its memory; returns whether a thread of ebbd hangs in it."""
    program.do("lock")
    line = f"{work}: a call on the memory of process {program.process.pid} (locked_map) has not returned"
    end = time.monotonic() + seconds
    while time.monotonic() < end and not told(ebbd, line):
        time.sleep(0.1)
    return bool(told(ebbd, line))


def unlocks(program, ebbd):
    line = f"the call on the memory of process {program.process.pid} has returned"
    assert not told(ebbd, line)
    program.do("unlock")
    wait_for(lambda: told(ebbd, line), 30, "the end of a thread")


@pytest.mark.long
def test_prefetching_does_not_wait_for_a_process_that_locks_its_memory(ebbd, device, cgroup, locked_map):
    """
    A thread of it stays in mmap() of a file whose server does not answer.  Another one goes on to
    fault: before Linux 6.7 that would wait for the first.
    """
    release = tuple(int(n) for n in os.uname().release.split(".")[:2])
    if release < (6, 7):
        pytest.skip("this kernel swaps pages in only with the mmap_lock held")
    locks, other = cgroup(limit_mib=24), cgroup(limit_mib=24)
    for group in locks, other:
        ebbctl("policy", "attach", "auto", group.path)
    scan = parts.Scan(cgroup=other, mib=48, passes=1000)
    try:
        scan.go()
        # A fault on a page that is being read waits for the lock, too: then it requests nothing more.
        for _ in range(8):
            program, before = locked_map(locks, 48), hits(locks)
            wait_for(lambda: hits(locks) > before + 100 and hits(other) > 100, 60, "hits")
            if hangs(program, ebbd, "prefetching", 15):
                break
            program.stop()
        else:
            pytest.fail("no thread of ebbd hung")
        before = hits(locks), hits(other)
        wait_for(lambda: hits(other) > before[1] + 1000, 60, "prefetches of the other cgroup")
        assert hits(locks) - before[0] < 1000
        unlocks(program, ebbd)
        wait_for(lambda: hits(locks) > before[0] + 2000, 60, "prefetches after that")
    finally:
        scan.kill()


@pytest.mark.long
def test_offloading_does_not_wait_for_a_process_that_locks_its_memory(ebbd, device, cgroup, locked_map):
    locks, other = cgroup(), cgroup()
    program = locked_map(locks, 16)
    idle = parts.Regions(other, 64, 4, 200)
    try:
        ebbctl("policy", "attach", "none", locks.path, "slowdown=2%")
        wait_for(lambda: parts.stats(locks).get("offload"), 10, "offloading")
        assert hangs(program, ebbd, "offloading", 5 * 60)
        ebbctl("policy", "attach", "none", other.path, "slowdown=2%")
        wait_for(lambda: idle.resident() < 60 << 20, 60, "cold pages of the other cgroup")
        unlocks(program, ebbd)
    finally:
        idle.stop()
