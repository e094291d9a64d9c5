# SPDX-License-Identifier: GPL-2.0-or-later
"""
Fixtures of the system tests and of the cases inside guests.  Each removes what it created, swap
first; the sequence of a test's arguments does not matter.
"""
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

for directory in ("harness", "chaos"):
    sys.path.insert(0, str(Path(__file__).resolve().parent / directory))

import machine
import parts


def pytest_sessionstart(session):
    # Fixtures must take swap off when SIGTERM ends the run, too.  A worker of xdist may run tests
    # in a second thread, which cannot set a handler; its controller ends it.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        # Children inherit ignored signals (nohup, `make check &` in a script), but not handlers.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
    if os.geteuid() != 0 and not session.config.option.collectonly:
        pytest.exit("these tests need root; run sudo make check", 2)


def pytest_runtest_logreport(report):
    """Names each failure at once: all of a run that takes a quarter of an hour come at its end."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        print(f"\n{report.nodeid}: {report.when}: {getattr(report.longrepr, 'reprcrash', report.longrepr)}",
              file=sys.__stderr__, flush=True)


@pytest.fixture
def ebbd_lock():
    """A lock held while an ebbd runs: one at a time on this machine."""
    with machine.swap_locked():
        yield


@pytest.fixture
def swap_lock(ebbd_lock):
    """A lock held while a swap device is on: one test at a time, and no ebbd of other tests."""
    yield
    left = machine.ebb_swaps()
    for device in left:
        machine.swapoff(device)
    assert not left, f"swap was left on: {left}"


@pytest.fixture
def logs(request):
    """Directory for the logs of one test's programs, kept below build/."""
    name = request.node.name.replace("/", "_")
    where = Path("/hostout") if machine.IN_GUEST else machine.BUILD / "tests"
    directory = where / "logs" / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    return directory


@pytest.fixture
def cgroup(request):
    """cgroup(limit_mib=N, name=None) creates a parts.Cgroup; removes it with its processes."""
    made, undo = [], ExitStack()

    def make(limit_mib=None, name=None):
        c = parts.Cgroup(f"ebb-test-{os.getpid()}/{name or len(made)}", limit_mib)
        made.append(c)
        undo.callback(c.remove)
        return c

    def parent_enable():
        """Enables the controllers in the parent's subtree, on v2."""
        root, version = machine.memory_root()
        parent = root / f"ebb-test-{os.getpid()}"
        parent.mkdir(exist_ok=True)
        if version == 2:
            offered = machine.read(parent / "cgroup.controllers").split()
            for c in {"memory", "io", "pids"} & set(offered):
                (parent / "cgroup.subtree_control").write_text(f"+{c}")

    def parent_remove(root):
        parent = root / f"ebb-test-{os.getpid()}"
        if parent.exists():
            parent.rmdir()

    with undo:
        for root in machine.cgroup_roots():
            undo.callback(parent_remove, root)
        parent_enable()
        yield make


@pytest.fixture
def donor_factory(logs):
    """donor_factory(port=7070, memory=, slab=, delay=, path=) starts a parts.Donor."""
    made = []

    def make(**what):
        made.append(parts.Donor(logs / f"donor{len(made)}.log", **what))
        undo.callback(made[-1].stop)
        return made[-1]

    with ExitStack() as undo:
        yield make


@pytest.fixture
def transport():
    """"tcp", unless a test is parametrized with another transport."""
    return "tcp"


@pytest.fixture
def donor(donor_factory, transport):
    return donor_factory(path="/run/ebb/donor.sock" if transport == "shm" else None)


@pytest.fixture
def ebbd(ebbd_lock, logs):
    """A running ebbd, the only one on this machine; its pins are removed afterwards."""
    with ExitStack() as undo:
        undo.callback(machine.pins_remove)
        d = parts.Ebbd(logs / "ebbd.log")
        undo.callback(d.stop)
        yield d


@pytest.fixture
def device(swap_lock, donor):
    """A device on `donor`, switched on as swap: large, since other programs are swapped out to it, too."""
    d = parts.Device(donor, size="1G")
    yield d
    d.destroy()
