# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebbctl's verbs about donors and slabs, against sockets that answer as ebb-swapd, ebb-donord
and ebbd do; and what device create makes of donors and durability before anything exists.
"""
import os
import re
import socket

import pytest

from control_server import ControlServer, error, write_record
from dataplane import donor_at, only_tcp, pages, place, server, transport, world    # fixtures
from machine import wait_for
from parts import FAILED, NO_DAEMON, REFUSED, USAGE, ebbctl, ebbctl_json
from ports import free_port

pytestmark = pytest.mark.beside

CREATE = ["device", "create", "x", "--size", "64M"]
GIB = 1 << 30


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run directory of its own; run.serve(name, answer) is a socket in it, as ControlServer."""
    monkeypatch.setenv("EBB_RUN_DIR", str(tmp_path))
    made = []

    class Run:
        path = tmp_path

        @staticmethod
        def serve(name, answer):
            made.append(ControlServer(tmp_path / f"{name}.sock", answer))
            return made[-1]

        @staticmethod
        def device(name, answer, **members):
            write_record(tmp_path, name, **{"size": GIB, "slab": 64 << 20, **members})
            return Run.serve(f"devices/{name}", answer)

    yield Run
    for s in made:
        s.close()


def refuse(status, *argv, says=()):
    done = ebbctl(*argv, check=False)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    line = done.stderr.splitlines()
    assert len(line) == 1 and re.fullmatch(r"ebbctl: .+: .+", line[0]), done.stderr
    for word in says:
        assert word in line[0], line[0]
    return line[0]


def donor(address, **what):
    return {"address": address, "transport": "tcp", "state": "up", "slabs": 3, "total": 4 * GIB,
            "free": GIB, "losses": 0, **what}


def status(*donors, **what):
    return lambda request: {"donors": list(donors), **what} if request["verb"] == "status" else {}


# --- donor ------------------------------------------------------------------

def test_donor_list(run):
    run.device("ebb0", status(donor("a:1"), donor("b:2", state="down", losses=2)))
    run.device("ebb1", status(donor("b:2", leaving="draining")))
    run.device("ebb2", lambda request: error("device ebb2: out of order"))
    run.serve("control", lambda request: {
        "source": "etcd", "error": "etcd https://e:1: gone", "donors": [
            {"address": a, "slab": 1, "total": GIB, "missing": a != "c:3"} for a in ("b:2", "c:3", "d:4")]})
    run.serve("donord", lambda request: {"total": 8 * GIB, "free": GIB, "draining": True,
                                         "etcd": "registered", "slabs": {"withdrawn": 2}, "borrowers": [
        {"name": "spark", "peer": "10.0.0.9:1", "transport": "tcp", "slabs": 3, "bytes": GIB, "asked_back": 1}]})
    done = ebbctl("donor", "list")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1][:3] == ["a:1", "ebb0", "up"] and rows[2][:6] == ["b:2", "ebb0", "down,", "missing", "in", "etcd"]
    assert rows[3][:7] == ["b:2", "ebb1", "up,", "draining,", "missing", "in", "etcd"]
    assert rows[4][:5] == ["c:3", "-", "not", "used", "-"]
    assert rows[5][:7] == ["d:4", "-", "not", "used,", "missing", "in", "etcd"]
    assert "etcd https://e:1: gone" in done.stdout
    assert "this machine lends 8.0 GiB, 1.0 GiB of it free, 2 slabs withdrawn, draining; etcd: registered" in done.stdout
    assert re.search(r"spark +10\.0\.0\.9:1 +tcp +3 +1\.0 GiB +1\n", done.stdout)
    assert "ebb2: device ebb2: out of order" in done.stderr
    told = ebbctl_json("donor", "list")
    assert [(d["address"], d["device"]) for d in told["donors"]] == \
        [("a:1", "ebb0"), ("b:2", "ebb0"), ("b:2", "ebb1"), ("c:3", None), ("d:4", None)]
    assert told["donors"][2]["leaving"] == "draining" and told["donors"][2]["state"] == "up"
    assert told["local"]["total"] == 8 * GIB and told["source"] == "etcd"


def test_a_frozen_list_and_an_unlisted_donor(run):
    run.device("ebb0", status(donor("a:1", unlisted=True), donor("b:2")))
    run.serve("control", lambda request: {"source": "etcd", "error": None, "frozen": True, "donors": [
        {"address": "b:2", "slab": 1, "total": GIB, "missing": True}]} if request["verb"] == "donors" else
        {"attachments": [], "donors": {"known": 5, "missing": 2, "frozen": True}})
    assert "donors: 2 of 5 are missing in etcd, and the list is frozen" in ebbctl("status").stdout
    lines = ebbctl("donor", "list").stdout.splitlines()
    assert lines[1].split()[:4] == ["a:1", "ebb0", "up,", "unlisted"]
    assert lines[2].split()[:6] == ["b:2", "ebb0", "up,", "missing", "in", "etcd"]
    assert "ebbd: the list is frozen: etcd lacks too many donors at once" in lines
    assert ebbctl_json("donor", "list")["frozen"] is True


def test_donor_list_of_nothing(run):
    assert "no donors" in ebbctl("donor", "list").stdout
    assert ebbctl_json("donor", "list") == {"donors": []}


@pytest.mark.parametrize("verb", ["drain", "undrain", "trust"])
def test_who_uses_a_donor_is_told(run, verb):
    users = [run.device(name, status(donor("a:7070"), donor("b:2"))) for name in ("ebb0", "ebb2")]
    other = run.device("ebb1", status(donor("b:2")))
    told = ebbctl_json("donor", verb, "a")      # its port is the usual one
    assert told == {"donor": "a:7070", "devices": ["ebb0", "ebb2"]}
    for u in users:
        assert u.asked[-1] == {"verb": f"donor.{verb}", "donor": "a:7070"}
    assert [a["verb"] for a in other.asked] == ["status"]
    refuse(USAGE, "donor", verb, "c:3", says=["c:3", "not used by a device"])
    refuse(USAGE, "donor", verb, "c:x", says=["c:x", "HOST:PORT"])
    refuse(USAGE, "donor", verb, says=["missing"])


def test_forget(run):
    s = run.device("ebb0", lambda request: {"pages_lost": 3})
    assert ebbctl_json("donor", "forget", "ebb0", "a") == {"device": "ebb0", "donor": "a:7070", "pages_lost": 3}
    assert s.asked[-1] == {"verb": "donor.forget", "donor": "a:7070", "force": False}
    refuse(USAGE, "donor", "forget", "nosuch", "a", says=["device nosuch: no such device", "device list"])
    refuse(USAGE, "donor", "forget", "", "a", says=["invalid name"])
    for address in ("", "a:x"):
        refuse(USAGE, "donor", "forget", "ebb0", address, says=[f'"{address}"'])
    assert len(s.asked) == 1


def test_a_drain_that_is_stuck(run):
    """How many slabs can move, how many cannot, why, and what to do."""
    why = "no other donor has free capacity; lend more there or add a donor"
    outlooks = {"ebb0": {"slabs": 5, "move": 2, "to_disk": 0, "stuck": 3, "why": why},
                "ebb1": {"slabs": 4, "move": 1, "to_disk": 3, "stuck": 0}}
    for name, outlook in outlooks.items():
        def answer(request, outlook=outlook):
            if request["verb"] == "status":
                return {"donors": [donor("a:7070", leaving="drained", outlook=outlook)]}
            return {"outlook": outlook}
        run.device(name, answer)
    stuck = f"donor a:7070: 3 of 5 slabs of device ebb0 cannot migrate: {why}\n"
    said = ebbctl("donor", "drain", "a").stdout
    assert "2 slabs of device ebb0 are migrating; " in said and stuck in said
    assert "4 slabs of device ebb1 are migrating, 3 of them to its disk only" in said
    told = ebbctl_json("donor", "drain", "a")
    assert told["moves"] == [{"device": name, "outlook": outlook} for name, outlook in outlooks.items()]
    listed = ebbctl("donor", "list").stdout
    assert "up, drained, stuck" in listed and stuck in listed
    assert stuck in ebbctl("device", "list").stdout


def test_a_server_that_refuses(run):
    run.device("ebb0", lambda request: {"donors": [donor("a:1")]} if request["verb"] == "status"
               else error("donor a:1: not quarantined; nothing to do", REFUSED))
    refuse(REFUSED, "donor", "trust", "a:1", says=["ebb0", "not quarantined"])


def test_the_local_donor(run):
    refuse(NO_DAEMON, "donor", "drain", "local", says=["ebb-donord", "start it"])
    local = run.serve("donord", lambda request: {})
    ebbctl("donor", "drain", "local")
    ebbctl("donor", "undrain", "local")
    assert [a["verb"] for a in local.asked] == ["drain", "undrain"]
    refuse(USAGE, "donor", "trust", "local", says=["local:7070", "not used by a device"])


# --- slab -------------------------------------------------------------------

def slab(number, *copies, **what):
    return {"slab": number, "state": "mapped", "live": 10, "activity": 2.4, "copies": [
        {"donor": d, "state": s, "pages": 10} for d, s in copies], **what}


def test_slab_list(run):
    first = slab(0, ("a:1", "complete"), ("b:2", "filling"))
    second = slab(700, ("a:1", "leaving"))

    def answer(request):
        assert request["verb"] == "slab.list"
        return {"slabs": [first], "next": 1} if request["from"] == 0 else {"slabs": [second]}

    asked = run.device("ebb0", answer)
    run.device("ebb1", lambda request: {"slabs": [slab(3, state="lost")]})
    rows = [line.split() for line in ebbctl("slab", "list").stdout.splitlines()]
    assert rows[1] == ["ebb0", "0", "mapped", "10", "2", "a:1", "b:2(resyncing)"]
    assert rows[2] == ["ebb0", "700", "mapped", "10", "2", "a:1(migrating)"]
    assert rows[3][:3] == ["ebb1", "3", "lost"]
    assert [a["from"] for a in asked.asked] == [0, 1]
    told = ebbctl_json("slab", "list", "ebb1")["slabs"]
    assert [(s["device"], s["slab"]) for s in told] == [("ebb1", 3)]
    refuse(USAGE, "slab", "list", "nosuch", says=["nosuch", "device list"])


def test_a_server_that_goes_round_in_circles(run):
    asked = run.device("ebb0", lambda request: {"slabs": [slab(0)], "next": 5})
    assert len(ebbctl_json("slab", "list", "ebb0")["slabs"]) == 2
    assert len(asked.asked) == 2


def test_slab_migrate(run):
    s = run.device("ebb0", lambda request: {})
    assert ebbctl_json("slab", "migrate", "ebb0", "15", "--to", "b") == \
        {"device": "ebb0", "slab": 15, "to": "b:7070"}
    assert s.asked[-1] == {"verb": "slab.migrate", "slab": 15, "to": "b:7070"}
    assert "slab 3 migrates" in ebbctl("slab", "migrate", "ebb0", "3").stdout
    assert s.asked[-1] == {"verb": "slab.migrate", "slab": 3}
    refuse(USAGE, "slab", "migrate", "ebb0", "16", says=["0 to 15"])
    for bad in ("x", "-1", "1x", "", "99999999999999999999"):
        refuse(USAGE, "slab", "migrate", "--", "ebb0", bad, says=["not a slab number"])
    refuse(USAGE, "slab", "migrate", "ebb0", "1", "--to", "b:x", says=["b:x"])
    refuse(USAGE, "slab", "migrate", "nosuch", "1", says=["nosuch"])
    refuse(USAGE, "slab", "migrate", "ebb0", says=["missing"])
    assert len(s.asked) == 2
    s.close()
    refuse(NO_DAEMON, "slab", "migrate", "ebb0", "1",
           says=["device ebb0: ebb-swapd does not answer", "ebbctl device list", "ebb0.log"])


# --- device list ------------------------------------------------------------

def test_device_list_says_how_pages_are_kept(run):
    run.device("ebb0", status(donor("a:1"), donor("b:2"), pid=1, durability="replicas=2", live=GIB,
                              mapped=2 * GIB, copies={"wanted": 2, "present": 30, "missing": 2,
                                                      "filling": 1, "leaving": 0}))
    text = ebbctl("device", "list").stdout
    row = text.splitlines()[1]
    assert "replicas=2" in row and "2 donors" in row and "30, 2 missing, 1 resyncing" in row
    assert re.search(r"1\.0 GiB +2\.0 GiB", row)


@pytest.mark.parametrize("missing, says", [("holder", "no supervisor; 2 failovers"),
                                           ("standby", "no standby; 2 failovers"), (None, "2 failovers")])
def test_device_list_says_which_processes_are_missing(run, missing, says):
    processes = {"pid": 1, "server": 1, "holder": 2, "standby": 3, "takeovers": 2}
    run.device("ebb0", status(donor("a:1"), **processes | ({missing: 0} if missing else {})))
    assert f"  {says}  " in ebbctl("device", "list").stdout.splitlines()[1]


# --- device create: donors and durability -----------------------------------

@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as s:
        yield f"127.0.0.1:{s.getsockname()[1]}"


def test_donors_given(run, listener):
    refuse(USAGE, *CREATE, "--donors", f"{listener},{listener}", says=[listener, "twice"])
    refuse(USAGE, *CREATE, "--donors", listener, "--donor", listener, says=[listener, "twice"])
    refuse(USAGE, *CREATE, "--donors", "a,a:7070", says=["a:7070", "twice"])
    refuse(USAGE, *CREATE, "--donors", f"{listener},b:x", says=["b:x"])
    refuse(USAGE, *CREATE, "--donors", ",".join(f"127.0.0.1:{p}" for p in range(1, 18)), says=["16"])
    dead = f"127.0.0.1:{free_port()}"
    refuse(FAILED, *CREATE, "--donors", f"{listener},{dead}", says=[dead, "refused", "ebb-donord"])


def test_donors_of_ebbd(run):
    """What may pass by itself has a status that ebb-device@.service tries again."""
    refuse(NO_DAEMON, *CREATE, says=["--donors", "cannot connect to ebbd"])
    answers = [{"source": "none", "error": None, "donors": []},
               {"source": "etcd", "error": None, "donors": []},
               {"source": "etcd", "error": "etcd https://e:1: gone", "donors": []},
               {"source": "list", "error": None, "donors": [
                   {"address": f"127.0.0.1:{free_port()}"}, {"address": f"127.0.0.1:{free_port()}"}]},
               {"source": "etcd", "error": None, "donors": [{"address": "a:1", "slab": 1 << 20}]}]
    run.serve("control", lambda request: answers.pop(0))
    refuse(USAGE, *CREATE, says=["ebbd knows none", "ebb.conf(5)"])
    refuse(FAILED, *CREATE, says=["ebbd knows none"])
    refuse(FAILED, *CREATE, says=["etcd https://e:1: gone"])
    refuse(FAILED, *CREATE, says=["none of 2 donors is reachable"])
    refuse(USAGE, *CREATE, "--slab", "2M", says=["none of the 1", "--slab"])


def test_replicas_at_donors_of_ebbd(run, listener):
    run.serve("control", lambda request: {"source": "list", "error": None, "donors": [
        {"address": listener}, {"address": f"127.0.0.1:{free_port()}"}]})
    refuse(FAILED, *CREATE, "--durability", "replicas=2",
           says=["replicas=2 needs 2 donors", "1 of the 2 known to ebbd"])


def test_durability(run, listener):
    one = [*CREATE, "--donors", listener]
    refuse(USAGE, *one, "--durability", "replicas=2", says=["replicas=2", "more than 1 donor", "--donors"])
    for bad in ("replicas=1", "replicas=4", "replicas", "raid", ""):
        refuse(USAGE, *one, f"--durability={bad}", says=[f"'{bad}'", "replicas=2"])
    refuse(USAGE, *one, "--durability", "none", "--backup", "/tmp", says=["--backup", "disk"])
    refuse(USAGE, *one, "--seal", "maybe", says=["maybe", "auto|on|off"])
    assert not list(run.path.glob("devices/*.json"))


@pytest.mark.parametrize("options, says", [
    (["--key", "/dev/null"], ["/dev/null", "not a file"]),
    (["--connections", "99"], ["--connections", "1 to 8"]),
    (["--connections", "2"], ["--connections requires a key"]),
    (["--slab", "3M"], ["--slab", "power of two"]),
    (["--size", "9T"], ["--size", "less than 8T"]),
    (["--size", "64M", "--backup", "relative"], ["relative", "absolute"]),
    (["--durability", "replicas=2"], ["replicas=2", "more than 1 donor"]),
    (["--durability", "none", "--backup", "/tmp"], ["--backup", "disk"]),
])
def test_wrong_options_are_told_though_no_donor_answers(run, options, says):
    """ebb-device@.service would try again after the status of an unreachable donor."""
    refuse(USAGE, *CREATE, "--donors", f"127.0.0.1:{free_port()}", *options, says=says)


def test_donors_that_are_none(run):
    for empty in ("", ",", " , "):
        refuse(USAGE, *CREATE, f"--donors={empty}", says=["--donors: empty", "HOST:PORT"])


# --- on a real device, without swap on --------------------------------------

@only_tcp
def test_on_a_real_device(world, monkeypatch):
    """What ebbctl asks is what ebb-swapd and ebb-donord answer."""
    donors = [world.donor() for _ in range(3)]
    a, b, c = (d.address for d in donors)
    s = world.serve(*donors, size="8M", backup="", options=["--durability", "replicas=2"])
    write_record(s.run, "dp0", size=8 << 20, slab=1 << 20)
    monkeypatch.setenv("EBB_RUN_DIR", str(s.run))
    pages = world.open(s)
    pages.write_random(40, most=16)

    def slabs():
        return {r["slab"]: sorted(x["donor"] for x in r["copies"] if x["state"] == "complete")
                for r in ebbctl_json("slab", "list", "dp0")["slabs"]}

    def settled():
        listed = ebbctl_json("slab", "list")["slabs"]
        return listed and all(len(r["copies"]) == 2 and all(x["state"] == "complete" for x in r["copies"])
                              for r in listed)

    wait_for(settled, 10, "two copies of each slab")
    assert all(len(holders) == 2 for holders in slabs().values())
    rows = ebbctl_json("donor", "list")["donors"]
    assert sorted(r["address"] for r in rows) == sorted([a, b, c])
    assert sum(r["slabs"] for r in rows) == 2 * len(slabs()) and {r["state"] for r in rows} == {"up"}
    assert ebbctl("donor", "list").stdout.count(" up ") == 3

    # A slab goes to the donor that lacks it.
    number, holders = next(iter(slabs().items()))
    (to,) = {a, b, c} - set(holders)
    ebbctl("slab", "migrate", "dp0", number, "--to", to)
    wait_for(lambda: settled() and to in slabs()[number], 10, "the slab to move")
    refuse(REFUSED, "slab", "migrate", "dp0", str(number), "--to", to, says=["already"])
    refuse(USAGE, "slab", "migrate", "dp0", str(number), "--to", "127.0.0.1:1", says=["127.0.0.1:1"])

    # Everything leaves a donor, which is used again afterwards.
    ebbctl("donor", "drain", a)
    assert "up, drained" in ebbctl("donor", "list").stdout
    wait_for(lambda: settled() and all(a not in h for h in slabs().values()), 20, "the drain")
    refuse(REFUSED, "donor", "trust", a, says=["dp0", "not quarantined"])
    ebbctl("donor", "undrain", a)
    assert "drained" not in ebbctl("donor", "list").stdout
    row = ebbctl("device", "list").stdout.splitlines()[1]
    assert "replicas=2" in row and "3 donors" in row

    # The donor itself says that all is to leave.
    there = {"env": {**os.environ, "EBB_RUN_DIR": str(donors[1].run)}}
    ebbctl("donor", "drain", "local", **there)
    wait_for(lambda: settled() and all(b not in h for h in slabs().values()), 20, "the local drain")
    lends = ebbctl("donor", "list", **there).stdout
    assert "0 B of it free" in lends and ", draining\n" in lends
    wait_for(lambda: "up, draining" in ebbctl("donor", "list").stdout, 3, "the next answer to a ping")
    ebbctl("donor", "undrain", "local", **there)
    assert ebbctl_json("donor", "list", **there)["local"]["draining"] is False
    pages.check()
