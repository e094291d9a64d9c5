# SPDX-License-Identifier: GPL-2.0-or-later
"""
System tests run on the machine's own kernel.  They never kill, stop or starve what
serves a swap device: that is for tests/guest.  Fixtures: see tests/conftest.py.

Those that ask for `swap_lock`, of themselves or by a fixture, have the machine.  The others have
all they use to themselves (directories, sockets, network namespaces), but for ebbd
(`ebbd_lock`), and are marked `beside`: several run at a time.  A worker takes one test after
the other, wherever it is; those that share a fixture of their module stay together, and so do those
that need an ebbd.

`make check` runs each test of both transports with one of them, in turn.
"""
import os
from collections import defaultdict

import pytest

import machine


def pytest_configure(config):
    os.environ[machine.RUN] = str(os.getpid())
    if hasattr(config, "workerinput"):
        os.environ[machine.SHARD] = str(config.option.basetemp)
        # Benchmarks that tests of other workers call must not refuse each other.
        os.environ.setdefault(machine.HELD, "1")


def leave_transports(items):
    """Leaves one transport of each test that has two to `make check-all`, in turn."""
    tests = defaultdict(lambda: defaultdict(dict))
    for item in items:
        params = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        transport = params.pop("transport", None)
        if transport:
            tests[item.path][item.originalname, str(params)][transport] = item
    for of_file in tests.values():
        both = [test for test in of_file.values() if len(test) == 2]
        for i, test in enumerate(both):
            test[sorted(test)[i % 2]].add_marker(pytest.mark.long)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    leave_transports(items)
    for item in items:
        if "swap_lock" not in item.fixturenames:
            item.add_marker(pytest.mark.beside)
        fixtures = [f for found in item._fixtureinfo.name2fixturedefs.values() for f in found]
        if any(f.scope == "module" for f in fixtures):
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
        elif "ebbd_lock" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("ebbd"))


@pytest.fixture(autouse=True)
def nothing_left():
    """A test that leaves something behind fails; the next ones find it removed."""
    with machine.nothing_left():
        yield
