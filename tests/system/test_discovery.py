# SPDX-License-Identifier: GPL-2.0-or-later
"""
Donors that register in a real etcd on loopback, and borrowers that learn of them:
joining, leaving, dying, etcd's own death, and servers that are no etcd.

The borrower's side is watch_donors, which runs ebbd's discovery without ebbd; its
devices are sockets that note what they are told.
"""
import base64
import http.server
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
from contextlib import ExitStack

import pytest

import machine
import parts
from control_server import ControlServer, write_record
from dataplane import pages, server    # fixtures
from etcd import PREFIX, Etcd, certificates
from machine import BIN, BUILD, wait_for
from ports import free_port

pytestmark = pytest.mark.beside

# A donor's lease (registration.h), and how long the watchers here wait on top.
LEASE, GRACE = 10, 6


@pytest.fixture
def etcd(tmp_path, logs):
    made = Etcd(tmp_path / "etcd", logs / "etcd.log")
    yield made
    made.kill()


@pytest.fixture
def donor(logs, tmp_path):
    """donor(etcd, ...) starts an ebb-donord that registers, unless etcd is None, at its .address."""
    made = []

    def make(url, *options, address=None):
        address = address or f"127.0.0.1:{free_port()}"
        listen = address if not made or address not in [d.address for d in made] else "127.0.0.1:0"
        registers = ["--etcd", url, "--advertise", address] if url else []
        d = parts.Daemon([BIN / "ebb-donord", "--listen", listen, "--memory", "4M", "--slab", "1M",
                          *registers, *options],
                         logs / f"donor{len(made)}.log",
                         env={"EBB_RUN_DIR": str(tmp_path / f"donor{len(made)}")})
        d.address, d.socket = address, tmp_path / f"donor{len(made)}" / "donord.sock"
        made.append(d)
        undo.callback(d.stop)
        return d

    with ExitStack() as undo:
        yield make


class Device(ControlServer):
    """What ebb-swapd is to ebbd: a record and a socket; notes what it is told."""

    def __init__(self, run, name, donors_from="configuration", **record):
        super().__init__(run / "devices" / f"{name}.sock")
        write_record(run, name, donors_from=donors_from, **record)

    @property
    def told(self):
        assert all(a["verb"] == "donors.set" for a in self.asked)
        return [set(a["donors"]) for a in self.asked]

    def knows(self, *donors, within=5):
        want = {getattr(d, "address", d) for d in donors}
        wait_for(lambda: self.told and self.told[-1] == want, within,
                 f"the device to hear of {sorted(want)}")


class Watcher:
    def __init__(self, run, log, config, within=()):
        self.config = log.with_suffix(".conf")
        self.config.write_text(f"[donors]\n{config}\n")
        with open(log, "a") as err:
            self.process = subprocess.Popen(
                [*within, BUILD / "tests/watch_donors", self.config, str(GRACE * 1000)], stdin=subprocess.PIPE, text=True,
                stdout=subprocess.PIPE, stderr=err, env={**os.environ, "EBB_RUN_DIR": str(run)})
        self.log = log

    def known(self, word="show"):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def stop(self):
        """Ends it, which must not wait for an etcd that does not answer."""
        if self.process.poll() is None:
            began = time.monotonic()
            self.process.stdin.close()
            assert self.process.wait(30) == 0
            assert time.monotonic() - began < 8


@pytest.fixture
def borrower(tmp_path, logs):
    """borrower(config) is a watcher with its device ebb0, in .device; @within runs it."""
    made = []

    def make(config, within=(), **device):
        run = tmp_path / f"run{len(made)}"
        d = Device(run, "ebb0", **device)
        undo.callback(d.close)
        w = Watcher(run, logs / f"watch{len(made)}.log", config, within)
        undo.callback(w.stop)
        w.device, w.run = d, run
        made.append(w)
        return w

    with ExitStack() as undo:
        yield make


def test_a_third_donor_joins(etcd, donor, borrower):
    a, b = donor(etcd.url), donor(etcd.url)
    wait_for(lambda: set(etcd.keys()) == {a.address, b.address}, 5, "two donors in etcd")
    assert etcd.keys()[a.address] == {"address": a.address, "slab": 1 << 20, "total": 4 << 20}
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a, b)
    c = donor(etcd.url)
    w.device.knows(a, b, c, within=5)
    known = w.known()
    assert known["source"] == "etcd" and known["error"] is None
    assert {(d["address"], d["slab"], d["total"], d["missing"]) for d in known["donors"]} == \
        {(d.address, 1 << 20, 4 << 20, False) for d in (a, b, c)}
    # Its own word: gone from etcd at once, from the borrower after its grace.
    c.stop()
    wait_for(lambda: set(etcd.keys()) == {a.address, b.address}, 1, "its leaving, not the end of its lease")
    w.device.knows(a, b, within=GRACE + 5)
    # Only its own device, and only one that follows the configuration, was told.
    assert all(told <= {a.address, b.address, c.address} for told in w.device.told)


def test_a_donor_dies_and_comes_back(etcd, donor, borrower):
    a, b = donor(etcd.url), donor(etcd.url)
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a, b)
    b.kill()
    assert b.address in etcd.keys()     # its lease lives on
    w.device.knows(a, within=LEASE + GRACE + 6)
    assert set(etcd.keys()) == {a.address}
    w.device.knows(a, donor(etcd.url, address=b.address))


@pytest.mark.long
def test_a_donor_that_is_back_before_its_lease_ends_was_never_gone(etcd, donor, borrower):
    a, b = donor(etcd.url), donor(etcd.url)
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a, b)
    told = len(w.device.told)
    b.kill()
    again = donor(etcd.url, address=b.address)
    wait_for(lambda: "registered as" in machine.read(again.log), LEASE + 6, "registering again")
    # Longer than until the end of its lease would be told.
    machine.never(lambda: any(t != {a.address, b.address} for t in w.device.told[told:]),
                  LEASE + GRACE + 2, "the device is told of a donor's end")
    assert set(etcd.keys()) == {a.address, b.address}
    assert {d["address"]: d["missing"] for d in w.known()["donors"]} == {a.address: False, b.address: False}


def test_etcd_dies_and_nothing_changes(etcd, donor, borrower):
    a, b = donor(etcd.url), donor(etcd.url)
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a, b)
    before = len(w.device.told)
    etcd.kill()
    wait_for(lambda: w.known()["error"], 10, "the watcher to notice")
    time.sleep(LEASE + 2)
    told = wait_for(lambda: w.device.told[before:], 10, "the device to hear again")
    assert all(t == {a.address, b.address} for t in told)
    assert {d["address"] for d in w.known()["donors"]} == {a.address, b.address}
    assert a.alive() and b.alive()
    with socket.create_connection(tuple(a.address.split(":"))):
        pass
    wait_for(lambda: "lending continues" in a.log.read_text(), 10, "the donor to notice")
    assert a.log.read_text().count("lending continues") == 1, "said again and again"
    # An etcd that lost its data hears from its donors, and the borrowers notice nothing.
    etcd.start(fresh=True)
    wait_for(lambda: set(etcd.keys()) == {a.address, b.address}, 10, "donors in the new etcd")
    c = donor(etcd.url)
    w.device.knows(a, b, c, within=8)
    assert all({a.address, b.address} <= t for t in w.device.told[before:])


def test_etcd_is_not_there_yet(donor, borrower, tmp_path, logs):
    """Neither needs it to start."""
    e = Etcd(tmp_path / "etcd", logs / "etcd.log")
    e.kill()
    a = donor(e.url)
    w = borrower(f"etcd = {e.url}")
    wait_for(lambda: w.known()["error"], 10, "the watcher to notice")
    assert w.known()["donors"] == [] and w.device.told == []
    try:
        e.start()
        w.device.knows(a, within=10)
    finally:
        e.kill()


def test_the_second_endpoint_answers(etcd, donor, borrower):
    dead = f"http://127.0.0.1:{free_port()}"
    a = donor(dead, "--etcd", etcd.url)
    w = borrower(f"etcd = {dead}, {etcd.url}")
    w.device.knows(a)


def test_an_endpoint_that_is_no_etcd_is_passed_over(etcd, donor, borrower):
    """JSON that is not etcd's: the next endpoint is asked."""
    liar = Liar(say(b"{}"))
    try:
        a = donor(liar.url, "--etcd", etcd.url)
        w = borrower(f"etcd = {liar.url}, {etcd.url}")
        w.device.knows(a)
        w.stop()
        a.stop()
    finally:
        liar.shutdown()


def test_a_deleted_key_is_put_again(etcd, donor, borrower):
    """Its lease lives on; borrowers list the donor throughout."""
    a, b = donor(etcd.url), donor(etcd.url)
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a, b)
    before = len(w.device.told)
    etcd.delete(a.address)
    wait_for(lambda: set(etcd.keys()) == {a.address, b.address}, 5, "the donor to register again")
    wait_for(lambda: not any(d["missing"] for d in w.known()["donors"]), 5, "the borrower to see it")
    assert all(told == {a.address, b.address} for told in w.device.told[before:])
    etcd.put(a.address, "{}")
    wait_for(lambda: "two donors have one address" in a.log.read_text(), 5, "a word of the other value")
    assert parts.control(a.socket, "status")["etcd"] == "trying"
    etcd.delete(a.address)
    wait_for(lambda: a.address in etcd.keys(), 5, "the donor to register again")
    wait_for(lambda: parts.control(a.socket, "status")["etcd"] == "registered", 2, "its status")


def test_nothing_is_proposed_while_nothing_changes(etcd, donor):
    """Each proposal is written to the disks of all members of etcd."""
    index = lambda: int(etcd.call("maintenance/status", {})["raftIndex"])
    a = donor(etcd.url)
    b = donor(etcd.url, address=a.address)
    wait_for(lambda: "registered as" in a.log.read_text(), 5, "the donor to register")
    wait_for(lambda: "two donors have one address" in b.log.read_text(), 5, "the refusal")
    before = index()
    time.sleep(LEASE + 2)
    assert index() == before and set(etcd.keys()) == {a.address}


def test_large_values_hide_no_donor(etcd, donor, borrower):
    """A pair that exceeds an answer's limit is skipped; the others are read as ever."""
    a = donor(etcd.url)
    for key, size in {"10.0.0.1:1": 600, "127.0.0.0:1": 400, "127.0.0.0:2": 400, "zzz:1": 600}.items():
        etcd.put(key, "x" * (size << 10))
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a)
    wait_for(lambda: "4 keys" in w.log.read_text(), 5, "a word of them")
    # Also if they come, or change, later.
    etcd.put("127.0.0.0:3", "x" * (600 << 10))
    b = donor(etcd.url)
    w.device.knows(a, b)
    etcd.put("10.0.0.1:1", "y" * (600 << 10))
    c = donor(etcd.url)
    w.device.knows(a, b, c)
    assert w.known()["error"] is None and "larger than" not in w.log.read_text()


def test_two_donors_with_one_address(etcd, donor):
    a = donor(etcd.url)
    wait_for(lambda: a.address in etcd.keys(), 5, "the donor in etcd")
    b = donor(etcd.url, address=a.address)
    wait_for(lambda: "two donors have one address" in b.log.read_text(), 5, "the refusal")
    assert b.alive() and "registered as" not in b.log.read_text()
    a.stop()
    wait_for(lambda: "registered as" in b.log.read_text(), 6, "the other one's turn")


def test_who_drains_leaves_etcd(etcd, donor):
    def says(state):
        """etcd has done it before the donor has read its answer."""
        return wait_for(lambda: parts.control(a.socket, "status")["etcd"] == state, 2, state)

    a, b = donor(etcd.url), donor(etcd.url)
    wait_for(lambda: set(etcd.keys()) == {a.address, b.address}, 5, "two donors in etcd")
    says("registered")
    assert parts.control(a.socket, "drain")["draining"]
    wait_for(lambda: set(etcd.keys()) == {b.address}, 2, "the draining one to leave")
    says("withdrawn")
    assert not parts.control(a.socket, "undrain")["draining"]
    wait_for(lambda: set(etcd.keys()) == {a.address, b.address}, 5, "it to come back")
    etcd.kill()
    told = wait_for(lambda: parts.control(a.socket, "status").get("etcd_error"), 10, "the error")
    assert etcd.url in told and parts.control(a.socket, "status")["etcd"] == "trying"


def test_strange_keys_in_etcd(etcd, donor, borrower):
    a = donor(etcd.url)
    for key, value in {"x": "x", "10.0.0.1:1": "{}", "b:1": '{"address":"c:1"}', "": "",
                       "long:1": '{"address":"long:1"}' + " " * 5000, "[::": "[]",
                       "n:1": '{"address":"n:1","total":-5}'}.items():
        etcd.put(key, value)
    w = borrower(f"etcd = {etcd.url}")
    w.device.knows(a)
    wait_for(lambda: "7 keys" in w.log.read_text(), 5, "a word of them")
    etcd.put("127.9.9.9:9", '{"address":"127.9.9.9:9","total":1,"news":[1,2]}')
    w.device.knows(a, "127.9.9.9:9")
    # A host without an address does not exclude other donors.
    etcd.put("nosuch.invalid:1", '{"address":"nosuch.invalid:1"}')
    etcd.put("127.9.9.8:9", '{"address":"127.9.9.8:9"}')
    w.device.knows(a, "127.9.9.9:9", "127.9.9.8:9", within=20)
    # Its lookup may end after the device has heard of the others.
    wait_for(lambda: "nosuch.invalid" in w.log.read_text(), 10, "a word of it")


def test_false_entry_in_etcd_fails_the_handshake(etcd, donor, server, tmp_path, logs):
    """A donor may list any address; it is used at those alone that it has a derived key for."""
    def derive(address, file):
        parts.ebbctl("key", "derive", key, address, tmp_path / file)
        return tmp_path / file

    key, ports = tmp_path / "spark.key", [free_port() for _ in range(3)]
    parts.ebbctl("key", "create", key, "--name", "spark")
    honest, evil = (f"127.0.0.1:{p}" for p in ports[:2])
    # Of a donor that is down, whose address the evil one has taken; and another one of its own.
    false = {f"127.0.0.2:{ports[2]}", f"127.0.0.3:{ports[1]}"}
    a = donor(etcd.url, "--keys", derive(honest, "a.key"), address=honest)
    e = donor(etcd.url, "--keys", derive(evil, "e.key"), address=evil,
              *(x for address in false for x in ("--listen", address)))
    for address in false:
        etcd.put(address, json.dumps({"address": address, "slab": 1 << 20, "total": 4 << 20}))
    s = server(a, size="2M", options=["--key", key])
    write_record(s.run, "dp0", donors_from="configuration", slab=1 << 20)
    w = Watcher(s.run, logs / "watch.log", f"etcd = {etcd.url}")
    try:
        wait_for(lambda: {d["address"] for d in s.status()["donors"]} == {honest, evil} | false, 20,
                 "the device to hear of all")
        wait_for(lambda: all(f"donor {address}: it does not know key spark" in s.log.read_text()
                             for address in false), 20, "both are refused")
        up = {d["address"] for d in s.status()["donors"] if d["state"] == "up"}
        assert up <= {honest, evil} and honest in up
        assert len(parts.control(e.socket, "status")["borrowers"]) <= 1
    finally:
        w.stop()


def test_two_clusters_in_one_etcd(etcd, donor, borrower):
    a, b = donor(etcd.url), donor(etcd.url, "--etcd-prefix", "/other/")
    one, two = borrower(f"etcd = {etcd.url}"), borrower(f"etcd = {etcd.url}\nprefix = /other/")
    one.device.knows(a)
    two.device.knows(b)


@pytest.mark.long
def test_more_donors_than_a_device_uses(etcd, borrower):
    code = lambda s: base64.b64encode(s.encode()).decode()
    addresses = [f"127.1.{i // 250}.{i % 250}:7070" for i in range(1100)]
    for at in range(0, 1100, 100):
        etcd.call("kv/txn", {"success": [{"request_put": {
            "key": code(PREFIX + a), "value": code(json.dumps({"address": a, "slab": 64 << 20}))}}
            for a in addresses[at:at + 100]]})
    w, other = borrower(f"etcd = {etcd.url}"), borrower(f"etcd = {etcd.url}")
    wait_for(lambda: w.device.told and other.device.told, 10, "the devices to hear")
    assert len(w.device.told[-1]) == 16 and w.device.told[-1] == other.device.told[-1]
    assert len(w.known()["donors"]) == 1024
    assert "1100 keys" in w.log.read_text() and "no donors" not in w.log.read_text()
    # Again and again the same, also by one that knows nothing of the others.
    wait_for(lambda: len(w.device.told) > 2, 25, "the device to hear again")
    assert len(set(map(frozenset, w.device.told))) == 1


class Liar(http.server.ThreadingHTTPServer):
    """Answers POSTs with whatever answer(handler) writes."""

    daemon_threads = True

    def __init__(self, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.server.asked += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    answer(self)
                except OSError:
                    pass

            def log_message(self, *_):
                pass

        self.asked = 0
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


def say(text, status=200, headers=()):
    def answer(h):
        h.send_response(status)
        for name, value in headers:
            h.send_header(name, value)
        h.end_headers()
        h.wfile.write(text)
    return answer


def endless(h):
    h.send_response(200)
    h.end_headers()
    while True:
        h.wfile.write(b'{"kvs":[' + b"[]," * 4000)


def silent(h):
    time.sleep(20)


@pytest.mark.parametrize("answer, says", [
    (say(b"<html>It works!</html>"), "unexpected answer"),
    (say(b""), "unexpected answer"),
    (say(b"{}"), "does not"),
    (say(b'{"header":{"revision":"3"},"count":"-1"}'), "does not"),
    (say(b'{"header":{"revision":"3"},"kvs":' + b"[" * 400 + b"]" * 400 + b"}"), "unexpected answer"),
    (say(b"", 302, [("Location", "http://127.0.0.1:1/")]), "unexpected answer"),
    (say(b'{"error":"no\\u001b[2Jsuch thing","code":5}', 500), "no?[2Jsuch"),
    (endless, "larger than 512 KiB"),
    (silent, "timed out"),
], ids=["html", "empty", "nothing", "negative", "deep", "redirect", "error", "endless", "silent"])
def test_who_is_no_etcd(donor, borrower, answer, says):
    liar = Liar(answer)
    try:
        w = borrower(f"etcd = {liar.url}")
        told = wait_for(lambda: w.known()["error"], 10, "the watcher to notice")
        assert says in told and liar.url in told and told.isprintable()
        assert w.device.told == []
        a = donor(liar.url)
        wait_for(lambda: "lending continues" in a.log.read_text(), 10, "the donor to notice")
        with socket.create_connection(tuple(a.address.split(":"))):
            pass
        # What came in without end has not been kept.
        assert int(machine.read(f"/proc/{w.process.pid}/status").split("VmHWM:")[1].split()[0]) < 64 << 10
        began = time.monotonic()
        a.stop()
        assert time.monotonic() - began < 15
    finally:
        liar.shutdown()


def has(*names, **value):
    """The answer of an etcd with donors of such names."""
    return json.dumps({
        "header": {"revision": "9"}, "count": str(len(names)),
        "kvs": [{"key": base64.b64encode(f"{PREFIX}{n}".encode()).decode(),
                 "value": base64.b64encode(json.dumps({"address": n, **value}).encode()).decode()}
                for n in names],
    }).encode()


def test_unresolvable_names_exclude_no_donor(borrower, tmp_path):
    """Each lookup takes a second, as without a name server; the donor with an address stays."""
    names = [f"{i}.donors.test:7070" for i in range(20)] + ["127.0.0.1:7070"]
    liar = Liar(say(has(*names)))
    servers = tmp_path / "resolv.conf"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent_one:
        where = f"127.{os.getpid() >> 16 & 255}.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
        silent_one.bind((where, 53))
        servers.write_text(f"nameserver {where}\noptions timeout:1 attempts:1\n")
        try:
            w = borrower(f"etcd = {liar.url}", within=["unshare", "--mount", "sh", "-c",
                         f'mount --bind {servers} /etc/resolv.conf && exec "$@"', "sh"])
            w.device.knows("127.0.0.1:7070", within=3)
            w.stop()
        finally:
            liar.shutdown()


def test_a_device_with_larger_slabs_than_any_donor(borrower):
    """It gets no donor, and the log says so periodically."""
    liar = Liar(say(has("127.0.0.1:7070", slab=1 << 20)))
    try:
        w = borrower(f"etcd = {liar.url}", slab=64 << 20)
        wait_for(lambda: "none of 1 donors has slabs as large" in w.log.read_text(), 5, "a word of it")
        asked = liar.asked
        wait_for(lambda: liar.asked >= asked + 3, 15, "three more rounds")
        assert w.log.read_text().count("slabs as large") == 1 and not w.device.told
        w.stop()
    finally:
        liar.shutdown()


@pytest.mark.long
def test_only_unresolvable_names_are_left(borrower):
    """Known donors stay, and the log says so once for all retries."""
    names = ["127.0.0.1:7070"]
    liar = Liar(lambda h: say(has(*names))(h))
    try:
        w = borrower(f"etcd = {liar.url}")
        w.device.knows("127.0.0.1:7070")
        names[:] = ["nosuch.invalid:1", "nor-this.invalid:1"]
        wait_for(lambda: "keeping the" in w.log.read_text(), 10, "a word of it")
        asked = liar.asked
        wait_for(lambda: liar.asked >= asked + 6, 20, "rounds in which nothing is new")
        assert w.log.read_text().count("keeping the") == 1
        assert w.device.told[-1] == {"127.0.0.1:7070"}
        w.stop()
    finally:
        liar.shutdown()


def test_a_list_by_hand(borrower):
    w = borrower("list = 10.0.0.1:1, 10.0.0.2")
    w.device.knows("10.0.0.1:1", "10.0.0.2:7070")
    assert w.known()["source"] == "list"
    w.config.write_text("[donors]\nlist = 10.0.0.2, 10.0.0.3\n")
    w.known("reload")
    w.device.knows("10.0.0.2:7070", "10.0.0.3:7070")
    # What is wrong changes nothing.
    w.config.write_text("[donors]\nlist = 10.0.0.2, 10.0.0.2\n")
    assert len(w.known("reload")["donors"]) == 2
    assert "twice" in w.log.read_text()


def test_a_device_with_its_own_donors_is_left_alone(borrower):
    w = borrower("list = 10.0.0.1:1", donors_from="command")
    other = Device(w.run, "ebb1")
    try:
        other.knows("10.0.0.1:1", within=15)
        assert w.device.told == []
    finally:
        other.close()


def test_a_real_device_follows(etcd, donor, server, pages, tmp_path, logs):
    """ebb-swapd uses new donors and leaves removed ones, under writes."""
    a, b = donor(etcd.url), donor(etcd.url)
    s = server(a, b, size="2M", backup="", options=["--durability", "replicas=2"])
    write_record(s.run, "dp0", donors_from="configuration")
    p = pages(s)
    p.write_random(30, most=16)
    w = Watcher(s.run, logs / "watch.log", f"etcd = {etcd.url}")
    try:
        c = donor(etcd.url)
        state = lambda: {d["address"]: d for d in s.status()["donors"]}
        wait_for(lambda: state().get(c.address, {}).get("state") == "up", 6, "the third donor")
        parts.control(b.socket, "drain")
        # b is off the list once its slabs are at c; nothing is missing meanwhile.
        for _ in range(20 * (GRACE + 10)):
            p.write_random(5, most=16)
            time.sleep(0.3)
            if b.address not in state():
                break
        assert set(state()) == {a.address, c.address}
        assert state()[c.address]["slabs"] == 2
        p.check()
    finally:
        w.stop()


def test_donors_missing_in_etcd_keep_their_slabs(etcd, donor, server, pages, tmp_path, logs):
    """Many at once stay in use; without the brake they get no new slabs, and no page moves."""
    # The test registers them: they would put a deleted key again.
    donors = [donor(None) for _ in range(10)]
    values = {d.address: {"address": d.address, "slab": 1 << 20, "total": 4 << 20} for d in donors}
    for address, value in values.items():
        etcd.put(address, json.dumps(value))
    s = server(*donors, size="16M")
    write_record(s.run, "dp0", donors_from="configuration")
    p = pages(s)
    for at in range(0, 2048, 64):
        p.write(at, os.urandom(64 * 4096))
    before = s.stats()
    slabs = lambda: {d["address"]: d["slabs"] for d in s.status()["donors"]}
    unlisted = lambda: {d["address"] for d in s.status()["donors"] if d["unlisted"]}
    placed = slabs()

    def unmoved():
        now = s.stats()
        assert (now["slab_unmaps"], now["slabs_to_disk"]) == (before["slab_unmaps"], before["slabs_to_disk"]) == (0, 0)
        assert not any("leaving" in d for d in s.status()["donors"])
        return True

    w = Watcher(s.run, logs / "watch.log", f"etcd = {etcd.url}")
    try:
        wait_for(lambda: len(w.known()["donors"]) == 10, 10, "ten known donors")
        keeper, rest = donors[0].address, {d.address for d in donors[1:]}
        for address in rest:
            etcd.delete(address)
        wait_for(lambda: unmoved() and w.known()["frozen"], GRACE + 4, "the freeze")
        # Only afterwards the line is written.
        wait_for(lambda: "9 of 10 donors are missing" in w.log.read_text(), 5, "a word of it")
        # Longer than any of them may be missing on its own.
        told = time.monotonic() + GRACE + 6
        wait_for(lambda: unmoved() and time.monotonic() > told, GRACE + 10, "their time")
        assert not unlisted() and sum(d["missing"] for d in w.known()["donors"]) == 9
        # The operator accepts the list.
        w.known("reload")
        wait_for(lambda: unmoved() and unlisted() == {a for a in rest if slabs().get(a)}, 10, "the accepted list")
        for at in range(2048, 2048 + 512, 64):
            p.write(at, os.urandom(64 * 4096))
        assert {a: n for a, n in slabs().items() if a != keeper} == {a: n for a, n in placed.items() if a in rest and n}
        assert unmoved()
        # They register again, and take slabs again.
        for address in rest:
            etcd.put(address, json.dumps(values[address]))
        wait_for(lambda: not unlisted() and set(slabs()) == set(values), 10, "the donors to be listed again")
        p.check()
        unmoved()
    finally:
        w.stop()


def test_certificates(donor, borrower, tmp_path, logs):
    d = certificates(tmp_path / "tls")
    e = Etcd(tmp_path / "etcd", logs / "etcd.log", tls=d)
    try:
        a = donor(e.url, *e.options()[2:])
        w = borrower(e.config())
        w.device.knows(a)
        # A server whose CA we do not know, and a server that does not know us.
        w = borrower(f"etcd = {e.url}\netcd_cert = {d}/us.pem\netcd_key = {d}/us.key")
        assert "certificate" in wait_for(lambda: w.known()["error"], 10, "the refusal")
        w = borrower(f"etcd = {e.url}\netcd_ca = {d}/ca.pem")
        assert wait_for(lambda: w.known()["error"], 10, "the refusal")
        assert w.device.told == []
    finally:
        e.kill()


def test_a_user_with_a_password(etcd, donor, borrower, tmp_path):
    for path, body in [("auth/user/add", {"name": "root", "password": "secret"}),
                       ("auth/role/add", {"name": "root"}),
                       ("auth/user/grant", {"user": "root", "role": "root"}), ("auth/enable", {})]:
        etcd.call(path, body)
    good, bad = tmp_path / "good", tmp_path / "bad"
    for f, text in ((good, "secret\n"), (bad, "guess\n")):
        f.write_text(text)
        f.chmod(0o600)
    a = donor(etcd.url, "--etcd-user", "root", "--etcd-password-file", good)
    w = borrower(f"etcd = {etcd.url}\netcd_user = root\netcd_password_file = {good}")
    w.device.knows(a)
    for config in ("", f"etcd_user = root\netcd_password_file = {bad}\n"):
        w = borrower(f"etcd = {etcd.url}\n{config}")
        assert wait_for(lambda: w.known()["error"], 10, "the refusal")
        assert w.known()["donors"] == []


def etcdctl(etcd, line, password):
    """Does what @line of docs/cluster.md does; etcdctl asks for the password."""
    verb, action, *argv = line.split()[1:]
    if (verb, action) == ("role", "grant-permission"):
        prefix = "--prefix=true" in argv
        role, kind, key = (word for word in argv if word != "--prefix=true")
        code = lambda s: base64.b64encode(s.encode()).decode()
        end = {"range_end": code(key[:-1] + chr(ord(key[-1]) + 1))} if prefix else {}
        etcd.call("auth/role/grant", {"name": role, "perm": {"permType": kind.upper(), "key": code(key), **end}})
    else:
        path, body = {
            ("user", "add"): ("auth/user/add", lambda name: {"name": name, "password": password}),
            ("user", "grant-role"): ("auth/user/grant", lambda user, role: {"user": user, "role": role}),
            ("role", "add"): ("auth/role/add", lambda name: {"name": name}),
            ("auth", "enable"): ("auth/enable", lambda: {}),
        }[verb, action]
        etcd.call(path, body(*argv))


def test_a_donor_writes_only_its_own_key(etcd, donor, borrower, tmp_path):
    """With the users and roles of docs/cluster.md."""
    text = (machine.REPO / "docs" / "cluster.md").read_text()
    lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ etcdctl ")]
    of_donor = [line for line in lines if "ebb-donor7" in line]
    addresses = {name: f"127.0.0.1:{free_port()}" for name in ("ebb-donor7", "ebb-donor8")}
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    for line in of_donor:
        etcdctl(etcd, line.replace("ebb-donor7", "ebb-donor8")
                .replace("10.0.0.7:7070", addresses["ebb-donor8"]), "secret")
    for line in lines:
        etcdctl(etcd, line.replace("10.0.0.7:7070", addresses["ebb-donor7"]), "secret")

    start = lambda name, address: donor(etcd.url, "--etcd-user", name, "--etcd-password-file", password,
                                        address=address)
    seven, eight = (start(name, address) for name, address in addresses.items())
    w = borrower(f"etcd = {etcd.url}\netcd_user = ebb-borrower\netcd_password_file = {password}")
    w.device.knows(seven, eight)

    token = lambda name: etcd.call("auth/authenticate", {"name": name, "password": "secret"})["token"]
    code = lambda s: base64.b64encode(s.encode()).decode()
    key, own = PREFIX + eight.address, PREFIX + seven.address
    lease = etcd.call("kv/range", {"key": code(key)}, token("root"))["kvs"][0]["lease"]
    put = {"key": code(key), "value": code("{}")}

    def refused(name, path, body):
        with pytest.raises(urllib.error.HTTPError) as e:
            etcd.call(path, body, token(name))
        assert "permission denied" in e.value.read().decode()

    for name in ("ebb-donor7", "ebb-borrower"):
        refused(name, "kv/put", put)
        refused(name, "kv/put", {**put, "key": code(PREFIX + "10.0.0.9:7070")})
        refused(name, "kv/deleterange", {"key": code(key)})
        refused(name, "kv/deleterange", {"key": code(PREFIX), "range_end": code(PREFIX[:-1] + "0")})
        refused(name, "kv/txn", {"success": [{"request_put": put}]})
        refused(name, "lease/revoke", {"ID": lease})
    refused("ebb-donor7", "kv/range", {"key": code(key)})
    refused("ebb-borrower", "kv/put", {**put, "key": code(own)})
    # Nor does ebb-donord take another's address.
    seven.stop()
    eight.stop()
    w.known()
    thief = start("ebb-donor7", eight.address)
    wait_for(lambda: "permission denied" in thief.log.read_text(), 10, "the refusal")
    assert [kv["key"] for kv in etcd.call("kv/range", {"key": code(PREFIX), "range_end": code(PREFIX[:-1] + "0")},
                                          token("root")).get("kvs", [])] == []


@pytest.mark.parametrize("argv, says", [
    (["--etcd", "http://127.0.0.1:2379"], "--advertise"),
    (["--advertise", "10.0.0.1:7070"], "--etcd"),
    (["--etcd-ca", "/etc/passwd"], "--etcd"),
    (["--etcd", "http://10.0.0.1:2379", "--advertise", "10.0.0.1:1"], "loopback"),
    (["--etcd", "ftp://127.0.0.1", "--advertise", "10.0.0.1:1"], "https://"),
    (["--etcd", "https://a:1", "--advertise", "unix:/x"], "HOST:PORT"),
    (["--etcd", "https://a:1", "--advertise", "0.0.0.0:1"], "machine's own"),
    (["--etcd", "https://a:1", "--advertise", "a:b"], "HOST:PORT"),
    (["--etcd", "https://a:1", "--advertise", "a:1", "--etcd-prefix", "x"], "prefix"),
    (["--etcd", "https://a:1", "--advertise", "a:1", "--etcd-user", "u"], "password file"),
    (["--etcd", "https://a:1", "--advertise", "a:1", "--etcd-ca", "/nonexistent"], "/nonexistent"),
    (["--etcd", "https://a:1", "--advertise", "a:1", "--etcd-cert", "/etc/passwd", "--etcd-key",
      "/etc/passwd"], "chmod 600"),
])
def test_bad_options(argv, says):
    done = subprocess.run([BIN / "ebb-donord", "--memory", "4M", "--slab", "1M", "--listen",
                           "127.0.0.1:0", *argv], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and len(done.stderr.splitlines()) == 1
