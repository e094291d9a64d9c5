# SPDX-License-Identifier: GPL-2.0-or-later
"""
Keys and TLS between borrower and donor, by their sockets: which peers are accepted, what the network
can see, and what it can do.
"""
import contextlib
import itertools
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
from types import SimpleNamespace

import pytest

import parts
from dataplane import PAGE
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from control_server import write_record
from machine import BIN, wait_for
from parts import FAILED, REFUSED, USAGE
from ports import free_port
from rows import few
from test_dataplane import load
from test_protocol import JOIN, READ, WRITE, frame, hello, reply

pytestmark = [pytest.mark.beside, pytest.mark.parametrize("transport", ["tcp"])]

NO_SESSION, BAD_MAC, NO_KEY = 10, 11, 14
MARK = 16
# Python in between, on a busy machine.
PATIENT = ["--deadline", "5s"]


@pytest.fixture
def key(tmp_path):
    """key(name, file) makes a key file and returns its path."""
    def make(name="spark", file=None):
        path = tmp_path / (file or f"{name}.key")
        subprocess.run([BIN / "ebbctl", "key", "create", path, "--name", name], check=True,
                       stdout=subprocess.DEVNULL)
        return path
    return make


@pytest.fixture
def derive(tmp_path):
    """derive(key, address, file) makes the key of the donor at an address."""
    def make(k, address, file="derived.key"):
        path = tmp_path / file
        subprocess.run([BIN / "ebbctl", "key", "derive", k, address, path], check=True,
                       stdout=subprocess.DEVNULL)
        return path
    return make


@pytest.fixture
def keyed_donor(world, derive, tmp_path):
    """keyed_donor(k, files) is a donor whose directory .keys has its "own" key, or the "shared" one."""
    names = itertools.count()

    def make(k, *files, **what):
        where, keys = world.new_place(), tmp_path / f"keys{next(names)}"
        keys.mkdir()
        if "own" in files:
            derive(k, f"127.0.0.1:{where['port']}", keys / "own.key")
        if "shared" in files:
            copy(k, keys / "shared.key")
        donor = world.donor(**where, options=["--keys", keys], **what)
        donor.keys = keys
        return donor
    return make


@pytest.fixture
def behind(world, key, derive, network):
    """behind() is a donor behind a network, that network, and the borrower's key."""
    def make():
        k, where = key(), world.new_place()
        between = network(SimpleNamespace(address=f"127.0.0.1:{where['port']}"))
        donor = world.donor(**where, options=["--keys", derive(k, between.address)])
        return donor, between, k
    return make


def fingerprint(path):
    told = subprocess.run([BIN / "ebbctl", "key", "show", path, "--json"], check=True,
                          capture_output=True, text=True)
    return json.loads(told.stdout)["fingerprint"]


def copy(path, to):
    to.write_bytes(path.read_bytes())
    to.chmod(0o600)
    return to


def reload_keys(donor, count):
    """Returns when the donor has read its keys again."""
    def told():
        return donor.log.read_text().count(f" {count} keys\n")
    before = told()
    donor.signal(signal.SIGHUP)
    wait_for(lambda: told() > before, 5, "keys read again")


def run(program, *options):
    """A program that is to refuse: (exit status, what it says)."""
    # No other test's device has its name.
    with tempfile.TemporaryDirectory(prefix="ebb-run-") as directory:
        p = subprocess.run([BIN / program, *map(str, options)], capture_output=True, text=True,
                           timeout=300, env={"EBB_RUN_DIR": directory, **os.environ})
    return p.returncode, p.stderr


def swapd(tmp_path, donor, *options):
    mount = tmp_path / "refused"
    mount.mkdir(exist_ok=True)
    return run("ebb-swapd", "--name", "dp1", "--size", "8M", "--slab", "1M", "--donor", donor,
               "--backup", tmp_path / "refused.backup", "--mount", mount, "--foreground", *options)


class Frames:
    """Cuts one direction of a data connection into frames."""

    def __init__(self, payload_of):
        self.buffer, self.payload_of, self.joined = bytearray(), payload_of, False

    def cut(self, data):
        self.buffer += data
        while len(self.buffer) >= 32:
            op, length = self.buffer[4], struct.unpack_from("<I", self.buffer, 28)[0]
            size = 32 + (MARK if self.joined else 0)
            if length and op in (JOIN, self.payload_of):
                size += length + (MARK if self.joined else 0)
            if len(self.buffer) < size:
                return
            whole = bytes(self.buffer[:size])
            del self.buffer[:size]
            self.joined = True
            yield op, whole


class Network:
    """Between borrower and donor: sees all, and passes on what change(op, frame) makes of it."""

    def __init__(self, donor):
        self.to = donor.address.split(":")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.change = {"up": lambda op, f: f, "down": lambda op, f: f}
        self.control = {}       # direction -> what becomes of the next bytes of a control connection
        self.seen = {"control": bytearray(), "data": bytearray()}
        self.kinds, self.sockets, self.join, self.carried = [], [], None, {}
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            try:
                kind = "data" if s.recv(1, socket.MSG_PEEK) == b"E" else "control"
                there = socket.create_connection((self.to[0], int(self.to[1])))
            except OSError:
                s.close()
                continue
            self.kinds.append(kind)
            self.sockets.append((kind, s, there))
            for a, b, way in ((s, there, "up"), (there, s, "down")):
                threading.Thread(target=self.pump, args=(kind, a, b, way), daemon=True).start()

    def frames(self, frames, data, way):
        for op, f in frames.cut(data):
            if op == JOIN and way == "up":
                self.join = f
            yield self.change[way](op, f)

    def pump(self, kind, a, b, way):
        frames = Frames(WRITE if way == "up" else READ)
        try:
            while data := a.recv(1 << 16):
                self.seen[kind] += data
                self.carried[b] = self.carried.get(b, 0) + len(data)
                if kind == "control":
                    changed = [self.control.pop(way, bytes)(data)]
                else:
                    changed = self.frames(frames, data, way)
                for piece in changed:
                    b.sendall(piece)
        except OSError:
            pass
        # What comes from @b still passes: an answer to this end, or an alert behind a reset.
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def cut(self, kind, which=slice(None)):
        for _, a, b in [x for x in self.sockets if x[0] == kind][which]:
            for s in (a, b):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def stop(self):
        self.listener.close()
        self.cut("control")
        self.cut("data")


@pytest.fixture
def network():
    made = []

    def make(donor):
        made.append(Network(donor))
        return made[-1]

    yield make
    for n in made:
        n.stop()


def test_the_road(world, behind):
    donor, between, k = behind()
    s = world.serve(between, options=["--key", k, *PATIENT])
    p = world.open(s)
    secret = b"the password is swordfish. " * 152
    p.write(0, secret[:PAGE] * 4)
    p.write_random(200)
    p.check()
    told = s.stats()
    assert told["pages_read_donor"] > 100 and told["pages_read_backup"] == 0
    assert told["donor_losses"] == told["pages_bad_donor"] == 0
    status = s.status()
    assert status["sealed"] is True and status["donors"][0]["tls"] is True
    borrower = donor.ask()["borrowers"]
    assert [b["key"] for b in borrower] == ["spark"] and borrower[0]["reads"] > 100
    # Pages go by the one connection, all else by the other, and nothing of it can be read.
    assert between.kinds == ["control", "data"]
    assert b"swordfish" not in between.seen["data"] and b"swordfish" not in between.seen["control"]
    assert b"EBB1" not in between.seen["control"] and b"dp0" not in between.seen["control"]
    assert len(between.seen["data"]) > 100 * PAGE > len(between.seen["control"])
    wait_for(lambda: "key spark" in donor.log.read_text(), 5, "the donor's line")


def test_the_donor_comes_back(world, key):
    k, where = key(), world.new_place()
    donor = world.donor(**where, options=["--keys", k])
    s = world.serve(donor, options=["--key", k])
    p = world.open(s)
    p.write_random(50)
    donor.kill()
    wait_for(lambda: s.donor_state() == "away", 5, "absence")
    p.write_random(50)
    world.donor(**where, options=["--keys", k])
    wait_for(lambda: s.donor_state() == "up", 10, "the donor is back")
    p.write_random(50)
    p.check()


REFUSALS = {
    "unknown": ("other", "does not know key other", "unknown key other"),
    "another of that name": ("spark", "does not know key spark", "known with another key"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_the_wrong_key(world, key, tmp_path, kind):
    name, borrower_says, donor_says = REFUSALS[kind]
    donor = world.donor(options=["--keys", key()])
    status, text = swapd(tmp_path, donor.address, "--key", key(name, "borrower.key"))
    assert status == 5 and borrower_says in text and "--keys" in text
    wait_for(lambda: donor_says in donor.log.read_text(), 5, "the donor says so, too")


def test_device_create_tells_what_the_server_said(world, key, tmp_path, monkeypatch):
    """The exit reason is in the log; a key file is relative to the configuration file."""
    directory = tmp_path / "run"
    monkeypatch.setenv("EBB_RUN_DIR", str(directory))
    monkeypatch.chdir(tmp_path)
    donor = world.donor(options=["--keys", key()])
    wrong = key("other")
    for path in (wrong, wrong.name):
        status, text = run("ebbctl", "device", "create", "x", "--size", "4M", "--slab", "1M", "--durability",
                           "none", "--donors", donor.address, "--key", path)
        assert status == 5 and "does not know key other" in text
    assert not list(directory.glob("*/x*")), "nothing stays"


def test_device_create_tells_what_does_not_fit(world, key, tmp_path, monkeypatch):
    """The second of two devices, each as large as what the donor lends; over TLS."""
    k = key()
    donor = world.donor(memory="16M", options=["--keys", k])
    world.serve(donor, size="16M", durability="none", options=["--key", k])
    assert donor.ask()["promised"] == 16 << 20
    directory = tmp_path / "run2"
    monkeypatch.setenv("EBB_RUN_DIR", str(directory))
    status, text = run("ebbctl", "device", "create", "x", "--size", "16M", "--slab", "1M", "--durability", "none",
                       "--donors", donor.address, "--key", k)
    assert status == 1 and f"0 B at {donor.address}" in text and "or use --durability disk or --overcommit" in text
    assert not list(directory.glob("*/x*")), "nothing stays"
    assert donor.ask()["promised"] == 16 << 20


def test_no_key_where_one_is_wanted(world, key, tmp_path):
    donor = world.donor(options=["--keys", key()])
    status, text = swapd(tmp_path, donor.address)
    assert status == 5 and "wants a key; give --key" in text


def test_a_key_where_none_is_wanted(world, key, tmp_path):
    donor = world.donor()
    status, text = swapd(tmp_path, donor.address, "--key", key())
    assert status == 5 and "start the donor with --keys" in text


BAD_FILES = {
    "readable by others": (lambda p: p.chmod(0o640), REFUSED, "chmod 600"),
    "somebody else's": (lambda p: os.chown(p, 12345, -1), REFUSED, ": belongs to user 12345"),
    "no key": (lambda p: p.write_text("hunter2\n"), USAGE, "not a key file"),
    "missing": (lambda p: p.unlink(), FAILED, "ebbctl key derive"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_key_files(world, key, tmp_path, kind):
    spoil, expected, says = BAD_FILES[kind]
    good, bad = key(), key("other")
    donor = world.donor(options=["--keys", good])
    spoil(bad)
    shown = run("ebbctl", "key", "show", bad)
    done = [swapd(tmp_path, donor.address, "--key", bad),
            run("ebb-donord", "--listen", f"127.0.0.1:{free_port()}", "--memory", "4M", "--slab", "1M",
                "--keys", bad)]
    if kind == "somebody else's":
        assert shown[0] == 0    # root may look at a donor's keys
    else:
        done.append(shown)
    for status, text in done:
        assert status == expected and says in text and str(bad) in text and ";" in text
    # A reload that fails leaves the keys as they were.
    if kind != "missing":
        s = world.serve(donor, options=["--key", good])
        good.chmod(0o644)
        donor.signal(signal.SIGHUP)
        wait_for(lambda: "stay as they were" in donor.log.read_text(), 5, "the donor says so")
        assert s.donor_state() == "up"


def test_a_key_is_changed(world, key, tmp_path):
    """Both are valid for a while; removing the old one disconnects borrowers that still use it."""
    keys = tmp_path / "keys"
    keys.mkdir()
    old = key("spark", "keys/old.key")
    donor = world.donor(options=["--keys", keys])
    s = world.serve(donor, options=["--key", old])
    key("spark", "keys/new.key")
    donor.signal(signal.SIGHUP)
    wait_for(lambda: "2 keys" in donor.log.read_text(), 5, "two keys")
    p = world.open(s)
    p.write_random(20)
    p.check()
    assert s.stats()["donor_losses"] == 0
    copy = tmp_path / "copy.key"
    old.rename(copy)
    donor.signal(signal.SIGHUP)
    wait_for(lambda: s.stats()["donor_absences"] == 1, 5, "the old key's connection ends")
    wait_for(lambda: "does not know key spark" in s.log.read_text(), 5, "the borrower says why")
    wait_for(lambda: "its key was removed" in donor.log.read_text(), 5, "the donor says why")
    p.check()
    copy.rename(old)
    donor.signal(signal.SIGHUP)
    wait_for(lambda: s.donor_state() == "up", 10, "it is trusted again")
    p.write_random(20)
    p.check()


# --- keys that are derived for one donor -------------------------------------------------


def test_a_derived_key(world, key, keyed_donor):
    k = key()
    donor = keyed_donor(k, "own")
    s = world.serve(donor, options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(20)
    p.check()
    assert s.status()["donors"][0]["shared_key"] is False
    told = donor.ask()
    assert [b["key"] for b in told["borrowers"]] == ["spark"]
    assert told["keys"] == 1 and told["shared_keys"] == 0
    said = donor.log.read_text()
    assert f"key spark ({fingerprint(donor.keys / 'own.key')})" in said and "shared" not in said
    assert "unknown" not in said, "the first handshake succeeds"


def doctor(directory, **environment):
    """Returns the rows about keys."""
    done = subprocess.run([BIN / "ebbctl", "doctor", "--json"], capture_output=True, text=True,
                          env={**os.environ, "EBB_RUN_DIR": str(directory), **environment})
    return [c for c in json.loads(done.stdout)["checks"] if "key" in c["name"]]


def test_shared_key_is_told(world, key, keyed_donor):
    """The donor's log and ebbctl doctor on both machines name the remedy."""
    k = key()
    donor = keyed_donor(k, "shared")
    s = world.serve(donor, options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(20)
    p.check()
    assert s.status()["donors"][0]["shared_key"] is True
    said = donor.log.read_text()
    assert f"key spark ({fingerprint(k)}): shared by donors" in said and '"ebbctl key derive"' in said
    write_record(s.run, "dp0", key=str(k))
    there, = doctor(donor.run)
    here, = doctor(s.run)
    assert there["state"] == here["state"] == "degraded"
    assert there["found"].startswith("1 of 1 shared") and "ebbctl key derive" in there["remedy"]
    assert here["remedy"].startswith(f"ebbctl key derive {k} {donor.address} FILE;")
    # Followed, there is nothing left to say.
    file = donor.keys / "own.key"
    subprocess.run([*here["remedy"].split(";")[0].split()[:-1], file], check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
    (donor.keys / "shared.key").unlink()
    reload_keys(donor, 1)
    wait_for(lambda: s.status()["donors"][0]["shared_key"] is False and s.donor_state() == "up", 10,
             "its own key is used")
    assert [c["state"] for c in doctor(donor.run)] == ["have"] and not doctor(s.run)
    p.check()


def as_shared(path, to):
    """Writes the key of a derived key file as one that a borrower could have."""
    _, name, _, secret = path.read_text().split()
    to.write_text(f"ebb-key-1 {name} {secret}\n")
    to.chmod(0o600)
    return to


def test_a_donors_key_does_not_borrow_at_another(world, key, keyed_donor, tmp_path):
    """Not even where a shared key is still valid."""
    k = key()
    thief, donor = keyed_donor(k, "own"), keyed_donor(k, "own", "shared")
    stolen = thief.keys / "own.key"
    status, text = swapd(tmp_path, donor.address, "--key", stolen)
    assert status == 2 and f"derived for the donor {thief.address}; " in text
    stolen = as_shared(stolen, tmp_path / "stolen.key")
    status, text = swapd(tmp_path, donor.address, "--key", stolen)
    assert status == 5 and "does not know key spark" in text


def test_a_donor_is_not_another_at_its_address(world, key, keyed_donor, derive):
    k = key()
    donor, thief = keyed_donor(k, "own"), keyed_donor(k, "own")
    s = world.serve(donor, options=["--key", k])
    p = world.open(s)
    p.write_random(20)
    port = int(donor.address.split(":")[1])
    donor.kill()
    wait_for(lambda: s.donor_state() == "away", 5, "absence")
    stolen = world.donor(port=port, options=["--keys", thief.keys])
    wait_for(lambda: "does not know key spark" in s.log.read_text(), 10, "the borrower says why")
    # The alert reaches the borrower before the donor writes its line.
    wait_for(lambda: stolen.log.read_text().count("unknown key spark") >= 2, 10,
             "its own key, then the shared one")
    assert s.donor_state() != "up" and not stolen.ask()["borrowers"]
    p.check()


@pytest.mark.parametrize("durability", few(["replicas=2", "none"], "none"))
def test_keys_are_derived_donor_by_donor(world, key, keyed_donor, derive, durability):
    """While pages are written and read; first both keys are valid."""
    k = key()
    # Without replicas both have slabs only if neither has room for all 32 MiB.
    room = "20M" if durability == "none" else "80M"
    donors = [keyed_donor(k, "shared", memory=room) for _ in range(2)]
    s = world.serve(*donors, durability=durability, options=["--key", k, "--seal", "on", *PATIENT])
    p = world.open(s)

    def shared(i):
        return s.status()["donors"][i]["shared_key"]
    with load(p) as errors:
        for i, donor in enumerate(donors):
            wait_for(lambda: donor.ask()["lent"], 20, "slabs")
            assert shared(i)
            derive(k, donor.address, donor.keys / "own.key")
            reload_keys(donor, 2)
            assert s.donor_state(i) == "up"
            (donor.keys / "shared.key").unlink()
            reload_keys(donor, 1)
            wait_for(lambda: s.donor_state(i) == "up" and not shared(i), 20, "its own key is used")
            wait_for(lambda: s.status()["copies"]["missing"] == s.status()["copies"]["filling"] == 0,
                     60, "all replicas")
            assert not errors
            # The borrower may hear of both before the donor writes its lines.
            for line in "its key was removed; ", "a reconnecting borrower has its":
                wait_for(lambda: line in donor.log.read_text(), 5, f"the donor says: {line}")
    told = s.stats()
    assert told["donor_losses"] == told["pages_read_failed"] == told["pages_write_failed"] == 0


def test_a_successor_resumes_with_the_other_key(world, key, keyed_donor, derive):
    """Keys of one name are one borrower's, so the donor has kept its only pages."""
    k = key()
    donor = keyed_donor(k, "shared")
    s = world.serve(donor, durability="none", options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(50)
    derive(k, donor.address, donor.keys / "own.key")
    reload_keys(donor, 2)
    s.kill_server()
    p.check()
    assert s.status()["donors"][0]["shared_key"] is False
    # The shared one is not in use any more.
    (donor.keys / "shared.key").unlink()
    reload_keys(donor, 1)
    p.write_random(20)
    p.check()
    told = s.stats()
    assert told["donor_losses"] == told["pages_read_failed"] == 0


def test_the_last_key_is_taken_away(world, key, tmp_path):
    """No borrower is accepted any more, until a key file exists again."""
    keys = tmp_path / "keys"
    keys.mkdir()
    only = key("spark", "keys/only.key")
    donor = world.donor(options=["--keys", keys])
    copy = tmp_path / "copy.key"
    copy.write_bytes(only.read_bytes())
    copy.chmod(0o600)
    s = world.serve(donor, options=["--key", copy])
    p = world.open(s)
    p.write_random(20)
    only.unlink()
    donor.signal(signal.SIGHUP)
    wait_for(lambda: s.stats()["donor_absences"] == 1, 5, "its connection ends")
    wait_for(lambda: "no key is left: no borrower on the network is accepted" in donor.log.read_text(), 5, "the donor says so")
    # Far less than the grace period of 30 s.
    wait_for(lambda: donor.ask()["lent"] == 0, 2, "its slabs are reclaimed at once")
    p.check()
    status, text = swapd(tmp_path, donor.address, "--key", copy)
    assert status == 5 and "does not know key spark" in text
    only.write_bytes(copy.read_bytes())
    only.chmod(0o600)
    donor.signal(signal.SIGHUP)
    wait_for(lambda: s.donor_state() == "up", 10, "it is let in again")
    p.write_random(20)
    p.check()


def test_both_keys_at_once(tmp_path, world, key):
    first, second = key("spark", "a.key"), key("spark", "b.key")
    donor = world.donor(options=["--keys", first, "--keys", second])
    for k in (first, second):
        s = world.serve(donor, options=["--key", k])
        p = world.open(s)
        p.write_random(20)
        p.check()
        p.close()
        s.stop()


def test_beyond_loopback_only_with_keys(key, tmp_path, world):
    port = free_port()
    argv = ["--listen", f"0.0.0.0:{port}", "--memory", "4M", "--slab", "1M"]
    status, text = run("ebb-donord", *argv)
    assert status == 5 and "pass --keys" in text
    status, text = swapd(tmp_path, "192.0.2.1:7070")
    assert status == 5 and "--key FILE" in text
    k = key()
    donor = parts.Donor(tmp_path / "wide.log", port=port, memory="4M", slab="1M",
                        also=[f"0.0.0.0:{free_port()}"], options=["--keys", k])
    try:
        p = world.open(world.serve(donor, size="4M", options=["--key", k]))
        p.write_random(5)
        p.check()
    finally:
        donor.stop()


def test_older_tls_is_refused(world, key):
    donor = world.donor(options=["--keys", key()])
    host, port = donor.address.split(":")
    for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        c.check_hostname, c.verify_mode, c.maximum_version = False, ssl.CERT_NONE, newest
        with socket.create_connection((host, int(port)), timeout=60) as s:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                # Nor does the newest get in without a key.
                c.wrap_socket(s).recv(1)
    for what in ("both sides need TLS 1.3", "without a key"):
        wait_for(lambda: what in donor.log.read_text(), 5, f"the donor says: {what}")


def connect(donor):
    host, port = donor.address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_who_says_nothing_is_cut_off(world, key):
    donor = world.donor(options=["--keys", key()])
    silent, slow = connect(donor), connect(donor)
    slow.sendall(b"\x16\x03\x01\x02\x00\x01")    # a record that never ends
    for s in (silent, slow):
        assert s.recv(1) == b""
        s.close()


def test_strangers_at_the_data_port(world, key):
    donor = world.donor(options=["--keys", key()])
    with connect(donor) as s:
        s.sendall(hello())
        assert reply(s)["status"] == NO_KEY
    with connect(donor) as s:
        s.sendall(frame(READ, length=PAGE))
        with pytest.raises((EOFError, ConnectionError)):
            reply(s)
    with connect(donor) as s:
        s.sendall(frame(JOIN, length=48) + struct.pack("<QII", 12345, 0, 0) + bytes(32))
        assert reply(s)["status"] == NO_SESSION
    with connect(donor) as s:
        s.sendall(frame(JOIN, length=48) + bytes(48))
        assert reply(s)["status"] == NO_SESSION


def test_nobody_joins_twice_or_by_guessing(world, key, network):
    k = key()
    donor = world.donor(options=["--keys", k])
    between = network(donor)
    s = world.serve(between, options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(20)
    head, payload = between.join[:32], between.join[32:]
    with connect(donor) as stranger:
        stranger.sendall(head + payload)
        assert reply(stranger)["status"] == NO_SESSION
    with connect(donor) as stranger:
        # Another number of the session: its MAC is another.
        stranger.sendall(head + payload[:8] + struct.pack("<I", 1) + payload[12:])
        assert reply(stranger)["status"] == BAD_MAC
    p.check()
    assert s.stats()["donor_losses"] == 0


def flipped(f, at):
    return f[:at] + bytes([f[at] ^ 1]) + f[at + 1:]


class Once:
    """Changes one frame of an op, then no more."""

    def __init__(self, op, change):
        self.op, self.change, self.done = op, change, False

    def __call__(self, op, f):
        if op != self.op or self.done:
            return f
        self.done = True
        return self.change(f)


FORGERIES = {
    # direction, op, what becomes of a frame
    "an acknowledgement of another page": ("down", WRITE, lambda f: flipped(f, 25)),
    "an acknowledgement's mark": ("down", WRITE, lambda f: flipped(f, 40)),
    "an acknowledgement twice": ("down", WRITE, lambda f: f + f),
    "a request for another page": ("up", READ, lambda f: flipped(f, 25)),
    "a request twice": ("up", WRITE, lambda f: f + f),
    "a request left out": ("up", WRITE, lambda f: b""),
    "an answer left out": ("down", READ, lambda f: b""),
}


@pytest.mark.parametrize("kind", few(FORGERIES, "an acknowledgement's mark", "an acknowledgement twice",
                                     "a request for another page"))
def test_forged_frames(world, key, network, kind):
    """The connection ends, no page is lost, and the donor, which did nothing, is used again."""
    way, op, change = FORGERIES[kind]
    k = key()
    donor = world.donor(options=["--keys", k])
    between = network(donor)
    s = world.serve(between, options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(20)
    before = s.stats()["donor_absences"]
    between.change[way] = Once(op, change)
    p.write(0, os.urandom(4 * PAGE))
    p.write(8, os.urandom(4 * PAGE))
    assert p.read(0, 4) == p.model[:4 * PAGE]
    assert p.read(8, 4) == p.model[8 * PAGE:12 * PAGE]
    assert between.change[way].done
    wait_for(lambda: s.stats()["donor_absences"] > before, 15, "the connection is given up")
    p.check()
    wait_for(lambda: s.donor_state() == "up", 15, "the donor is used again")
    p.write_random(20)
    p.check()
    assert s.stats()["pages_bad_donor"] == 0


def payload_flipped(f):
    return flipped(f, 32 + MARK + 100)


PAGES_CHANGED = {
    # direction, op, what becomes of a frame, what the server says
    "read": ("down", READ, payload_flipped, "a payload from it was altered between borrower and donor"),
    "read, its MAC": ("down", READ, lambda f: flipped(f, len(f) - 1),
                      "a payload from it was altered between borrower and donor"),
    "written": ("up", WRITE, payload_flipped, "data that it received was altered between borrower and donor"),
}


@pytest.mark.parametrize("kind, durability", few(itertools.product(PAGES_CHANGED, ("disk", "replicas=2", "none")),
                                                 ("read", "disk"), ("read, its MAC", "replicas=2"), ("written", "none")))
def test_a_page_changed_on_the_way(world, key, network, kind, durability):
    """
    Costs the connection: no page is lost or bad, what was written is not what was there before, even
    without a seal, and the donor is used again.
    """
    way, op, change, says = PAGES_CHANGED[kind]
    k, copies = key(), 2 if durability == "replicas=2" else 1
    donors = [world.donor(options=["--keys", k]) for _ in range(copies)]
    between = [network(d) for d in donors]
    s = world.serve(*between, durability=durability, options=["--key", k, "--seal", "off", *PATIENT])
    p = world.open(s)
    p.write(0, os.urandom(64 * PAGE))
    p.write_random(20)
    change = Once(op, change)
    for b in between:
        b.change[way] = change
    p.write(0, os.urandom(64 * PAGE))
    assert p.read(0, 64) == p.model[:64 * PAGE]
    assert change.done
    wait_for(lambda: s.stats()["donor_absences"] == 1, 15, "the connection is given up")
    wait_for(lambda: f"away: {says}" in s.log.read_text(), 5, "a line of it")
    p.check()
    wait_for(lambda: {d["state"] for d in s.status()["donors"]} == {"up"}, 15, "the donor is used again")
    wait_for(lambda: not s.status()["copies"]["missing"] + s.status()["copies"]["filling"], 30, "all copies")
    p.write_random(20)
    # From each copy alone.
    for donor in donors[1:]:
        donor.kill()
    p.check()
    told = s.status()["donors"]
    assert [d["altered"] for d in told].count(1) == 1 and not any(d["bad_pages"] for d in told)
    assert "leaving" not in told[0] and told[0]["state"] == "up"
    assert s.stats()["pages_bad_donor"] == 0


@pytest.mark.parametrize("way, at", few(itertools.product(("up", "down"), (1, -1)), ("up", 1), ("down", -1)))
def test_a_control_connection_changed_on_the_way(world, key, network, way, at):
    """
    Costs the connection and, even without other copies, no page: the donor keeps the slabs.  Of what
    was altered on the way to the donor, its alert tells, even if the borrower sees the end of the data
    connection before.
    """
    k = key()
    between = network(world.donor(options=["--keys", k]))
    s = world.serve(between, durability="none", options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(20)
    # A PING or its answer: its first record's version, or its last byte.
    between.control[way] = lambda data: flipped(data, at % len(data))
    wait_for(lambda: s.stats()["donor_absences"] == 1, 15, "the connection is given up")
    wait_for(lambda: s.donor_state() == "up", 15, "the donor is used again")
    p.check()
    assert s.stats()["donor_losses"] == 0
    wait_for(lambda: s.status()["donors"][0]["altered"], 5, "the alteration is counted")
    assert s.status()["donors"][0]["altered"] == 1
    line = "its control connection was altered between borrower and donor"
    wait_for(lambda: line in s.log.read_text(), 5, "a line of it")
    assert s.log.read_text().count(line) == 1


@pytest.mark.parametrize("kind", few(PAGES_CHANGED, "written"))
def test_pages_changed_again_and_again(world, key, network, kind):
    """The third time the donor is quarantined, though none of its pages is bad; trust starts afresh."""
    way, op, change, _ = PAGES_CHANGED[kind]
    k = key()
    between = network(world.donor(options=["--keys", k]))
    s = world.serve(between, options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(20)
    for n in (1, 2, 3, 1, 2):
        wait_for(lambda: s.donor_state() == "up", 15, "the donor is used")
        once = between.change[way] = Once(op, change)

        def ended():
            """Until the slab is mapped again, reads come from the backup and nothing is altered."""
            p.write(0, os.urandom(4 * PAGE))
            assert p.read(0, 4) == p.model[:4 * PAGE]
            return once.done and (s.donor_state() != "up" or
                                  s.status()["donors"][0]["absences"] >= n)
        wait_for(ended, 15, "the end of the connection")
        if n == 3:
            wait_for(lambda: s.donor_state() == "quarantined", 15, "quarantine")
            told = s.status()["donors"][0]
            assert told["altered"] == 3 and told["bad_pages"] == 0
            assert "3 connections within 10 minutes; check network cards" in told["last_loss"]
            wait_for(lambda: f"quarantined: {told['last_loss']}" in s.log.read_text(), 5, "a line of it")
            s.do("donor.trust", donor=between.address)
    wait_for(lambda: s.donor_state() == "up", 15, "the donor is used")
    p.check()
    assert s.stats()["pages_bad_donor"] == 0


@pytest.mark.parametrize("kind", few(["control", "data"], "control"))
def test_one_connection_does_not_outlive_the_other(world, behind, kind):
    _, between, k = behind()
    s = world.serve(between, options=["--key", k, *PATIENT])
    p = world.open(s)
    p.write_random(50)
    between.cut(kind)
    wait_for(lambda: s.stats()["donor_absences"] == 1, 5, "the donor is lost")
    p.check()
    wait_for(lambda: s.donor_state() == "up", 10, "it is back")
    p.write_random(50)
    p.check()
    assert between.kinds == ["control", "data"] * 2


def test_several_connections(world, behind):
    """Pages go by all of them; when one of them ends the others do, and nothing is lost."""
    _, between, k = behind()
    s = world.serve(between, options=["--key", k, "--connections", "3", *PATIENT])
    p = world.open(s)
    p.write_random(100)
    p.check()
    assert between.kinds == ["control"] + ["data"] * 3
    told = s.stats()
    assert told["pages_read_donor"] > 100 and told["pages_read_backup"] == told["donor_losses"] == 0
    for kind, there, here in between.sockets:
        if kind == "data":
            assert between.carried[there] > 20 * PAGE and between.carried[here] > 20 * PAGE
    for which in range(3):
        # Of those open now; three of each earlier session are closed.
        between.cut("data", slice(4 * which, 4 * which + 1))
        wait_for(lambda: s.stats()["donor_absences"] == which + 1, 5, "the donor is lost")
        p.check()
        wait_for(lambda: s.donor_state() == "up", 10, "it is back")
        p.write_random(20)
        p.check()
    assert between.kinds == (["control"] + ["data"] * 3) * 4


def test_more_connections_than_there_may_be(world, key, tmp_path):
    donor = world.donor(options=["--keys", key(), "--key-connections", "3"])
    k = ["--key", tmp_path / "spark.key"]
    status, text = swapd(tmp_path, donor.address, *k, "--connections", "3")
    assert status == 5 and "lower --connections, or raise its --key-connections" in text
    wait_for(lambda: "--key-connections" in donor.log.read_text(), 5, "the donor's word")
    status, text = swapd(tmp_path, donor.address, "--connections", "2")
    assert status == 2 and "pass --key FILE" in text
    for n in ("0", "9"):
        status, text = swapd(tmp_path, donor.address, *k, "--connections", n)
        assert status == 2 and "must be 1 to 8" in text
    s = world.serve(donor, options=[*k, "--connections", "2", *PATIENT])
    p = world.open(s)
    p.write_random(20)
    p.check()
    assert s.stats()["donor_losses"] == 0


def test_strangers_keep_nobody_out(world, key):
    """Each that says nothing gives way to one that comes later."""
    k = key()
    donor = world.donor(options=["--keys", k, "--peer-connections", "8"])
    silent = [connect(donor) for _ in range(40)]
    s = world.serve(donor, options=["--key", k, *PATIENT])
    silent += [connect(donor) for _ in range(40)]
    p = world.open(s)
    p.write_random(20)
    p.check()
    assert s.stats()["donor_losses"] == 0
    for c in silent:
        c.close()
