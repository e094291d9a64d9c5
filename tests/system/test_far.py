# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebbctl far against real donors with --far: pools, their members and extents, and what the donor's
status, metrics and ebb-stats(7) say of them; donors without far memory, older, silent or full.
"""
import json
import os
import re
import socket
import threading

import pytest

import statspage
from control_server import ControlServer
from far_member import Member
from key import Key
from machine import wait_for
from parts import FAILED, REFUSED, UNSUPPORTED, USAGE, ebbctl, ebbctl_json
from ports import free_port
from rows import few

pytestmark = pytest.mark.beside

MIB = 1 << 20
ARENA = 4 * MIB
OF_A_KEY, OF_A_DONOR = 16, 64


@pytest.fixture
def donor(donor_factory, tmp_path, monkeypatch):
    """A donor with 16 MiB of far memory; .local is its unix socket."""
    local = f"unix:{tmp_path}/donor.sock"
    d = donor_factory(port=free_port(), memory="32M", slab="4M", also=[local], options=("--far", "16M"))
    d.local = local
    monkeypatch.setenv("EBB_RUN_DIR", str(d.run))
    return d


def refuse(status, *argv, says=()):
    """Fails unless ebbctl does, with one line that has the words, also in JSON."""
    done = ebbctl(*argv, check=False)
    assert done.returncode == status and done.stdout == "", done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and re.fullmatch(r"ebbctl: .+: .+; .+", lines[0]), done.stderr
    for word in says:
        assert word in lines[0], lines[0]
    return lines[0]


def pools(donor, *options):
    return {p.pop("name"): p for p in ebbctl_json("far", "list", donor, *options)["pools"]}


def far(donor):
    """What the donor says of far memory."""
    return donor.ask()["far"]


# --- pools ------------------------------------------------------------------------

def test_pools(donor):
    at = donor.address
    assert pools(at) == {} and "no pools" in ebbctl("far", "list", at).stdout
    assert ebbctl_json("far", "create", at, "index", "--shared") == {
        "donor": at, "name": "index", "shared": True}
    assert ebbctl("far", "create", donor.local, "queue").stdout == \
        f"pool queue: created at donor {donor.local}\n"
    refuse(REFUSED, "far", "create", at, "index", says=["index", "exists", "another name"])
    none = {"bytes": 0, "live": 0, "away": 0, "dead": 0}
    assert pools(at) == pools(donor.local) == {"index": {"shared": True, **none},
                                               "queue": {"shared": False, **none}}
    assert re.search(r"^index +0 B +shared +0 +0 +0$", ebbctl("far", "list", at).stdout, re.M)
    shown = ebbctl_json("far", "show", at, "queue")
    assert shown["members"] == shown["sizes"] == [] and shown["extents"] == shown["bytes"] == 0
    assert ebbctl_json("far", "destroy", at, "queue") == {"donor": at, "name": "queue", "ended": 0}
    for verb in "show", "destroy":
        refuse(USAGE, "far", verb, at, "queue", says=["queue", at, "no such pool", "ebbctl far list"])
    assert list(pools(at)) == ["index"]
    done = ebbctl("far", "destroy", at, "queue", "--json", check=False)
    told = json.loads(done.stdout)
    assert done.returncode == told["exit"] == USAGE and "no such pool" in told["error"]


@pytest.mark.parametrize("name", few(["a'b\"c", "$(reboot)", "`x`;y", "%s%n", "\\n", "{}[]", "-f", "~" * 31],
                                     "\\n", "-f"))
def test_odd_names(donor, name):
    ebbctl("far", "create", donor.address, "--", name)
    assert list(pools(donor.address)) == [name]
    assert name in ebbctl("donor", "list").stdout
    assert far(donor)["pools"][0]["name"] == name
    label = name.replace("\\", "\\\\").replace('"', '\\"')
    assert f'ebb_lender_far_pool_bytes{{pool="{label}",key=""}} 0\n' in ebbctl("metrics").stdout
    assert ebbctl_json("far", "show", donor.address, "--", name)["name"] == name
    ebbctl("far", "destroy", donor.address, "--", name)
    assert pools(donor.address) == {}


@pytest.mark.parametrize("name", few(["", " ", "a b", "tab\t", "line\n", "é", "\x1b[31m", "~" * 32, os.fsdecode(b"\xff")],
                                     "", "~" * 32, os.fsdecode(b"\xff")))
def test_names_that_cannot_be(donor, name):
    for verb in "create", "show", "destroy":
        done = ebbctl("far", verb, donor.address, name, check=False, errors="replace")
        assert done.returncode == USAGE and "not a name; use 1 to 31 printable" in done.stderr
    assert pools(donor.address) == {}


def test_as_many_as_there_are_places(donor_factory, tmp_path, monkeypatch):
    """A key has 16 pools, a donor 64: 1,000 are refused, and none disturbs another."""
    keys = [Key.create(tmp_path / f"{i}.key", f"k{i}") for i in range(5)]
    options = [x for k in keys for x in ("--keys", k.path)]
    d = donor_factory(port=free_port(), memory="16M", slab="4M", options=("--far", "8M", *options))
    monkeypatch.setenv("EBB_RUN_DIR", str(d.run))
    for key in keys[:4]:
        for i in range(OF_A_KEY):
            ebbctl("far", "create", d.address, f"p{i}", "--key", key.path)
        refuse(REFUSED, "far", "create", d.address, "more", "--key", key.path,
               says=["more", "up to 16 pools", "ebbctl far destroy"])
    assert len(far(d)["pools"]) == OF_A_DONOR
    refuse(REFUSED, "far", "create", d.address, "p", "--key", keys[4].path, says=["no place"])
    assert pools(d.address, "--key", keys[4].path) == {}
    refuse(USAGE, "far", "destroy", d.address, "p0", "--key", keys[4].path, says=["of this key"])
    assert len(pools(d.address, "--key", keys[0].path)) == OF_A_KEY
    ebbctl("far", "destroy", d.address, "p0", "--key", keys[0].path)
    ebbctl("far", "create", d.address, "p", "--key", keys[4].path)
    assert {p["key"] for p in far(d)["pools"]} == {f"k{i}" for i in range(5)}
    refuse(FAILED, "far", "list", d.address, says=["key", "--key FILE"])


# --- members ----------------------------------------------------------------------

def test_members_and_extents(donor, tmp_path):
    at = donor.address
    ebbctl("far", "create", at, "p")
    before = far(donor)
    with Member(at, "p", 4096, 4096, 70000) as a, Member(donor.local, "p", 2 * MIB, 100) as b:
        shown = ebbctl_json("far", "show", at, "p")
        assert shown["members"] == [
            {"member": a.number, "state": "live", "extents": 3, "extent_bytes": 8192 + 131072},
            {"member": b.number, "state": "live", "extents": 2, "extent_bytes": 2 * MIB + 4096}]
        assert shown["sizes"] == [{"size": 4096, "extents": 3}, {"size": 131072, "extents": 1},
                                  {"size": 2 * MIB, "extents": 1}]
        assert shown["live"] == 2 and shown["bytes"] == 2 * ARENA
        assert re.search(rf"^ +{b.number}  live +2  2.0 MiB$", ebbctl("far", "show", at, "p").stdout, re.M)
        told = far(donor)
        expected = {"name": "p", "bytes": 2 * ARENA, "shared": False, "live": 2, "away": 0,
                    "extents": 5, "extent_bytes": shown["extent_bytes"]}
        assert expected.items() <= told["pools"][0].items()
        assert told["limit"] == 16 * MIB and told["used"] == 2 * ARENA
        assert all(told["requests"][k] > before["requests"][k] for k in ("pool", "list", "arena", "read", "cas"))
        # What ebbctl shows of this machine.
        assert re.search(r"^p +- +8.0 MiB +5 +2\.1 MiB +2 +0 ", ebbctl("donor", "list").stdout, re.M)
        metrics = ebbctl("metrics").stdout
        assert 'ebb_lender_far_pool_extents{pool="p",key=""} 5\n' in metrics
        assert 'ebb_lender_far_pool_members{pool="p",key=""} 2\n' in metrics
        assert f"ebb_lender_far_used_bytes {2 * ARENA}\n" in metrics
        assert re.search(r'^ebb_lender_far_requests_total{kind="cas"} [1-9]', metrics, re.M)
        ebbd = ControlServer(donor.run / "control.sock", lambda request: {})
        try:
            status = ebbctl_json("status")
            assert "far memory: 8.0 MiB of 16.0 MiB in use, 1 pools" in ebbctl("status").stdout
        finally:
            ebbd.close()
        assert [x for x in statspage.differences("status", {"far": status["far"]}) if "far" in x] == []
        fences = told["fences"]
        a.kill()
        b.kill()
        told = wait_for(lambda: (now := far(donor))["recovered"] >= fences + 2 and now, 20, "no recovery")
        # Words of five extents.
        assert told["freed"] == before["freed"] + 5
    assert told["pools"][0]["extents"] == told["pools"][0]["live"] == 0


def test_a_pool_with_members_is_kept(donor):
    at = donor.address
    ebbctl("far", "create", at, "p")
    with Member(at, "p", 4096), Member(at, "p"):
        refuse(REFUSED, "far", "destroy", at, "p", says=["p", "2 members", "--force"])
    # Killed: the donor may still be freeing what they had.
    assert ebbctl("far", "destroy", at, "p").stdout == f"pool p: destroyed at donor {at}\n"
    assert far(donor)["used"] == 0


def test_members_are_ended_by_force(donor):
    at = donor.address
    ebbctl("far", "create", at, "p")
    with Member(at, "p", 4096), Member(at, "p"):
        assert ebbctl_json("far", "destroy", at, "p", "--force")["ended"] == 2
        assert pools(at) == {} and far(donor)["used"] == 0


def test_a_process_that_maps_keeps_its_pool(donor):
    """Nothing can revoke a mapping: the pool stays until the process exits."""
    at = donor.local
    ebbctl("far", "create", at, "p")
    with Member(at, "p", 4096) as member:
        refuse(REFUSED, "far", "destroy", at, "p", "--force", says=["processes of 1 members", "map", "end these"])
        pool = far(donor)["pools"][0]
        assert (pool["live"], pool["dead"], pool["recovering"], pool["extents"]) == (0, 1, 0, 1)
        shown = ebbctl_json("far", "show", at, "p")
        assert shown["members"] == [{"member": member.number, "state": "dead", "extents": 1,
                                     "extent_bytes": 4096}]
        member.kill()
        assert ebbctl_json("far", "destroy", at, "p")["ended"] == 0
    assert far(donor)["used"] == 0


# --- other donors -----------------------------------------------------------------

def test_a_donor_without_far_memory(donor_factory, monkeypatch):
    d = donor_factory(port=free_port(), memory="4M", slab="4M")
    monkeypatch.setenv("EBB_RUN_DIR", str(d.run))
    for argv in (["create", d.address, "p"], ["list", d.address], ["show", d.address, "p"],
                 ["destroy", d.address, "p", "--force"]):
        refuse(UNSUPPORTED, "far", *argv, says=[d.address, "no far memory", "start ebb-donord with --far SIZE"])
    assert "far" not in d.ask() and "far" not in ebbctl("donor", "list").stdout
    assert "ebb_lender_far" not in ebbctl("metrics").stdout


class Other(threading.Thread):
    """Listens as a donor does, and does @what with a connection that has said something."""

    def __init__(self, what):
        super().__init__(daemon=True)
        self.what, self.listening = what, socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{}".format(self.listening.getsockname()[1])
        self.start()

    def run(self):
        c, _ = self.listening.accept()
        with c:
            c.recv(4096)
            self.what(c)


@pytest.mark.parametrize("what, status, says", [
    # A donor that does not know the flag of HELLO takes it for a malformed frame.
    (lambda c: None, UNSUPPORTED, ["closed the connection", "release 0.2 or older", "update it"]),
    (lambda c: c.recv(1), FAILED, ["no reply in 5 s", "check"]),
    (lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 9), FAILED, ["not of ebb's protocol", "check"]),
], ids=["old", "silent", "other"])
def test_old_silent_and_other_donors(what, status, says):
    other = Other(what)
    refuse(status, "far", "list", other.address, says=[other.address, *says])
    other.listening.close()
    refuse(FAILED, "far", "list", other.address, says=["cannot connect", "ebb-donord"])
