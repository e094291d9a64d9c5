# SPDX-License-Identifier: GPL-2.0-or-later
"""
What the tests of tests/chaos share: four donors for all tests of a file, a device and a
load for each, and the verdict.
"""
import pytest

import machine
from cluster import Cluster, left_of

PAGE = 4096
# Where errors are tolerated: a seal would turn an old page, which must not be, into one.
UNSEALED = ("--seal", "off")


@pytest.fixture(scope="module")
def machines(tmp_path_factory, request):
    """A file with KEYED = True uses TLS with a key, over untrusted addresses."""
    logs = machine.BUILD / "tests" / "logs" / f"{request.module.__name__}-donors"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.iterdir():
        old.unlink()
    keyed = getattr(request.module, "KEYED", False)
    c = Cluster(tmp_path_factory.mktemp("chaos"), logs, keyed=keyed)
    yield c
    c.close()


@pytest.fixture
def nothing_left(tmp_path):
    """As for all tests, but donors are the module's."""
    with machine.nothing_left(lambda: left_of(tmp_path)):
        yield


@pytest.fixture
def cluster(machines, tmp_path, logs):
    machines.directory, machines.logs = tmp_path, logs
    yield machines
    try:
        machines.heal()
    finally:
        machines.end_load()


@pytest.fixture
def lossy(cluster):
    why = cluster.network.lacks("loss")
    if why:
        pytest.skip(why)
    return cluster


def serve(cluster, name="dp0", **what):
    """A device that has got all donors, with nothing of anybody's left at them."""
    b = cluster.serve(name, **what)
    cluster.all_up(b)
    return b


def load(cluster, b, options=("--pause", 300), seconds=0.5):
    """A checker at work, which has used all of the device by then."""
    c = cluster.check(b, options)
    cluster.work(seconds, 400)
    return c


def verdict(c, b, errors=0):
    """The checker's report: no page was wrong, and nothing failed."""
    told = c.stop()
    assert told["bad"] == 0
    assert told["verified"] == told["pages"] == b.file.stat().st_size // PAGE
    assert told["reads"] > 50 and told["writes"] > 50, "there was load"
    if errors is not None:
        assert told["read_errors"] == told["write_errors"] == errors
    return told


def lost(b, *numbers):
    """Whether these donors have been lost; on a busy machine others may be late, too."""
    return all(b.losses()[i] > 0 for i in numbers)


def wait_lost(cluster, b, *numbers):
    cluster.wait(lambda: lost(b, *numbers), 5, f"loss of {numbers}")
