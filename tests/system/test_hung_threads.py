# SPDX-License-Identifier: GPL-2.0-or-later
"""A thread of ebbd that hangs: the watchdog sees each, not the main thread alone."""
import ctypes
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

import machine
import parts
from machine import wait_for
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
