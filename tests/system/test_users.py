# SPDX-License-Identifier: GPL-2.0-or-later
"""Users and the control sockets of ebb-swapd and ebb-donord: real processes, no swap.  ebbd: test_stats.py."""
import os
import socket

import pytest

import parts
import users
from control_server import write_record
from dataplane import Server
from parts import REFUSED
from users import ADMINS, READERS

pytestmark = pytest.mark.beside


@pytest.fixture
def place():
    p = users.Place()
    yield p
    p.remove()


@pytest.fixture
def device(place, donor_factory, logs, monkeypatch, tmp_path):
    """A device without swap on, its donor, and users of their control sockets."""
    users.name_groups(monkeypatch)
    donor = donor_factory(path=tmp_path / "donor.sock", memory="16M", slab="1M", run=place.path / "run")
    s = Server(place.path, logs / "swapd.log", [donor], size="8M")
    write_record(s.run, "dp0", size=8 << 20, slab=1 << 20)
    monkeypatch.setenv("EBB_RUN_DIR", str(s.run))
    yield s
    s.stop()


def test_readers_see_devices_and_donors(device, place):
    for groups in ([READERS], [4, READERS], [ADMINS]):
        listed = place.ctl(groups, "device", "list")
        assert listed.returncode == 0 and "disk" in listed.stdout, listed.stdout
        metrics = place.ctl(groups, "metrics").stdout
        assert 'ebb_device_up{device="dp0"} 1' in metrics
        assert "ebb_lender_total_bytes 16777216" in metrics
        assert place.ctl(groups, "donor", "list").stdout.count(" up ") == 1
        assert place.ctl(groups, "slab", "list", "dp0").returncode == 0


def test_strangers_are_told_what_they_lack(device, place):
    for groups in ([], [4, 27]):
        done = place.ctl(groups, "slab", "list", "dp0")
        assert done.returncode == REFUSED, done.stderr
        for word in ("dp0", str(users.USER), str(READERS), "usermod -aG"):
            assert word in done.stderr
    metrics = place.ctl([], "metrics").stdout
    assert 'ebb_device_up{device="dp0"} 0' in metrics and "ebb_lender" not in metrics


@pytest.mark.parametrize("verb", ["donor.drain", "donors.set", "slab.migrate", "nosuch"])
def test_nobody_but_the_owner_changes_a_device(device, place, verb):
    what = {"donor": "x", "donors": ["x:1"], "slab": 0}
    for groups in ([READERS], [ADMINS, READERS]):
        told = place.ask(groups, device.run / "devices" / "dp0.sock", verb, **what)
        assert not told["ok"] and told["exit"] == REFUSED and "permitted to root only" in told["error"], told
    assert "permitted to root only" not in device.ask(verb, **what).get("error", "")


def test_nobody_but_the_owner_drains_a_donor(device, place):
    for verb in ("drain", "undrain"):
        told = place.ask([READERS], device.run / "donord.sock", verb)
        assert not told["ok"] and "permitted to root only" in told["error"]
    assert place.ask([READERS], device.run / "donord.sock", "status")["draining"] is False


@pytest.mark.parametrize("groups, request_sent", [((READERS,), ""), ((READERS,), '{"verb":"status"}\n'), ((), "")],
                         ids=["silent", "deaf", "stranger"])
def test_a_member_does_not_hold_up_root(device, place, groups, request_sent):
    donord = lambda verb: parts.control_answer(device.run / "donord.sock", verb)
    for path, ask in ((device.run / "devices" / "dp0.sock", device.ask), (device.run / "donord.sock", donord)):
        with place.flood(groups, path, request_sent):
            users.answers_root(ask)
        # Nor does it hold up others for long.
        assert place.ctl([READERS], "donor", "list").returncode == 0


def test_another_member_is_served_beside_a_silent_one(device, place):
    path = device.run / "devices" / "dp0.sock"
    with place.flood([READERS], path):
        # The same user has used up its connections; another has its own.
        told = parts.tried(lambda: place.ask([READERS], path, "status"), lambda last: not last["ok"])
        assert told["exit"] == REFUSED and "close them" in told["error"]
        told = parts.tried(lambda: place.ask([READERS], path, "status", user=users.USER + 1), lambda last: last["ok"])
        assert told["ok"]


def test_idle_connections_hold_nobody_up(device, place):
    """Strangers are sent away at once, readers that say nothing soon."""
    path = device.run / "devices" / "dp0.sock"
    hold = ("import socket, sys, time\n"
            "for _ in range(6):\n    s = socket.socket(socket.AF_UNIX)\n    s.connect(sys.argv[1])\n"
            "    globals().setdefault('all', []).append(s)\n"
            "s.settimeout(60)\nbegan = time.monotonic()\nprint(repr(s.recv(400)))\nprint(time.monotonic() - began)\n")

    def held(groups):
        """(what the last of them is told, after how many seconds)"""
        told, seconds = place.run(groups, "/usr/bin/python3", "-c", hold, path).stdout.splitlines()
        return told, float(seconds)
    told, seconds = parts.tried(lambda: held([]), lambda last: last[1] < 2)
    assert "usermod" in told and seconds < 2
    # Half a second each, not one.
    told, seconds = parts.tried(lambda: held([READERS]), lambda last: last[1] < 5)
    assert told == "b''" and seconds < 5
    assert device.ask("status")["ok"]
    assert os.stat(path).st_mode & 0o777 == 0o666
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(60)
        s.connect(str(path))
        s.sendall(b'{"verb":"status"}\n')
        assert s.recv(1) == b"{"
