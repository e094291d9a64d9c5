# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko tells what happens to it, and gives back what a donor asks back."""
import subprocess
import time

import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import DONOR
from kswap import NO_SESSION, Events
from test_kmod_move import Users, fill


@pytest.fixture
def events(module):
    heard = Events()
    yield heard
    heard.close()


def ended(process, seconds):
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def test_end_of_a_session_is_told(kernel_device, donor, events):
    one, _ = donor(), donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    one.kill()
    told = events.next()
    assert (told["event"], told["device"], told["session"]) == ("ended", d.number, a)
    assert told["reason"] == d.session(a)["reason"] != ""
    assert d.session(a)["state"] == "closed"
    d.netlink.call("disconnect", device=d.number, session=b)
    assert events.next() == {"event": "ended", "device": d.number, "session": b,
                             "reason": "disconnected"}


def test_end_of_a_migration_is_told(kernel_device, donor, events):
    donor(), donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    d.write(1024, 64, 1)
    d.netlink.call("migrate", device=d.number, slab=1, session=b)
    assert events.next() == {"event": "left", "device": d.number, "session": a, "slab": 1}
    assert d.slab_table()[1]["source"] == NO_SESSION


def test_donor_that_ends_gets_back_what_goes_to_the_backup(kernel_device, donor, disk):
    """Nobody listens: pages that the donor alone had are on the backup when it ends."""
    lender = donor(drain="120s")
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), DONOR)
    fill(d, 1)
    users = Users(d)
    lender.process.terminate()
    assert ended(lender.process, 100) == 0, (d.slab_table(), d.counts())
    users.stop()
    d.wait_closed()
    assert all(s["session"] == s["source"] == NO_SESSION for s in d.slab_table())
    users.verify()
    assert d.counts()["donor_errors"] == 0


def test_donor_that_ends_gets_back_what_migrates(kernel_device, donor, events):
    """Who listens gives the slabs to another donor; there is no backup."""
    lender = donor(drain="120s")
    donor(port=7472)
    d = kernel_device(mib=16)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR)
    fill(d, 1)
    users = Users(d)
    lender.process.terminate()
    asked = set()
    while len(asked) < d.slabs:
        told = events.next()
        if told["event"] == "evict":
            assert told["session"] == a and told["slab"] not in asked
            asked.add(told["slab"])
            d.netlink.call("migrate", device=d.number, slab=told["slab"], session=b)
    assert ended(lender.process, 100) == 0, (d.slab_table(), d.counts())
    users.stop()
    assert {s["session"] for s in d.slab_table()} == {b}
    users.verify()
    assert d.counts()["donor_errors"] == 0


def test_who_listens_and_does_nothing_is_not_waited_for(kernel_device, donor, disk, events):
    lender = donor(drain="60s")
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), DONOR, [0])
    d.write(0, 64, 1)
    began = time.monotonic()
    lender.process.terminate()
    assert events.next()["event"] == "evict"
    assert events.next()["event"] == "left"
    assert time.monotonic() - began > 0.9
    assert ended(lender.process, 50) == 0
    assert d.bad(0, 64, 1) == []


def test_without_anywhere_to_go_a_slab_stays(kernel_device, donor):
    """Refused, so the donor waits, and ends at its own time-out; another donor helps."""
    lender = donor(drain="20s")
    donor(port=7472)
    d = kernel_device()
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR, [0])
    d.write(0, 64, 1)
    lender.process.terminate()
    assert ended(lender.process, 3) is None
    assert d.bad(0, 64, 1) == []
    assert d.session(a)["state"] == "live"
    d.netlink.call("migrate", device=d.number, slab=0, session=b)
    assert ended(lender.process, 50) == 0
    assert d.bad(0, 64, 1) == []


def test_events_need_privileges(module):
    """Whoever may not ask may not listen."""
    probe = """
import os, sys
sys.path.insert(0, "tests/harness")
from kswap import Kswap, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP
k = Kswap()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    k.socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, k.group)
    print("heard")
except PermissionError:
    print("refused")
"""
    done = subprocess.run(["/usr/bin/python3", "-c", probe], text=True, capture_output=True)
    assert done.stdout == "refused\n", done.stdout + done.stderr
