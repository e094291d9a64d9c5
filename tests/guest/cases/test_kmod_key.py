# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebb_swap.ko and ebb-donord --rdma-kernel: only peers with the key can borrow, lend or join a
session; recorded messages do not prove the key.
"""
import errno
import os
import signal
import threading
import time
from pathlib import Path

import machine
import parts
import pytest
from key import Key
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import ADDRESS, BACKUP, DONOR, PORT
from kswap import NO_SESSION, Events, Kswap, Refused
from machine import wait_for
from stranger import (HELLO, MAP, NOT_GREETED, PING, Borrower, Impostor, Lender, Opening, mac,
                      refusal, stated, u32)

A, B = f"rdma:{ADDRESS}:{PORT}", f"rdma:{ADDRESS}:7472"
OTHER_PORT = 7473
SLABS = 16


@pytest.fixture
def key(tmp_path):
    return Key.create(tmp_path / "spark.key", "spark")


@pytest.fixture
def other_key(tmp_path):
    return Key.create(tmp_path / "other.key", "spark")


@pytest.fixture
def after():
    """after(x): x.end() at the end."""
    made = []

    def keep(x):
        made.append(x)
        return x

    yield keep
    for x in reversed(made):
        x.end()


def refused(d, port=PORT):
    with pytest.raises(Refused) as e:
        d.connect(port=port)
    return e.value.errno, e.value.text


class Connecting:
    """Runs d.connect() while a test acts as other peers."""

    def __init__(self, d, port, key=None):
        self.outcome = None
        self.thread = threading.Thread(target=self.run, args=(d, port, key))
        self.thread.start()

    def run(self, d, port, key):
        try:
            self.outcome = d.connect(port=port, key=key)
        except Refused as e:
            self.outcome = e

    def result(self):
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.outcome


# --- with the key ----------------------------------------------------------------------

def test_swap_goes_on_when_its_donor_is_back(kernel_device, donor, disk, cgroup, key):
    lender = donor(keys=key.path)
    d = kernel_device(mib=64, backup=disk(64).path, key=key)
    d.map(d.connect(), DONOR | BACKUP)
    d.swap_on()
    scan = parts.Scan(mib=32, passes=4, pattern="random", write=True, cgroup=cgroup(16))
    scan.go()
    start = d.counts()["read_donor"]
    wait_for(lambda: d.counts()["read_donor"] > start + 500, 60, "no reads from the donor")
    lender.kill()
    d.wait_closed()
    donor(keys=key.path)
    again = d.connect()
    d.map(again, DONOR | BACKUP)
    start = d.counts()["read_donor"]
    wait_for(lambda: d.counts()["read_donor"] > start + 200, 120, "no reads from the new one")
    assert scan.result(timeout=600)["bad"] == 0
    n = d.counts()
    assert n["read_failed"] == n["write_failed"] == 0
    assert d.session(again)["state"] == "live"
    told = d.netlink.status(d.number)
    assert told["key_number"] == key.number and "key" not in told
    assert f"key spark ({key.number.hex()})" in machine.read(lender.log)


def test_pages_move_between_donors_with_the_key(kernel_device, donor, key):
    """Frames in both directions have MACs: MAP, UNMAP, and the donor's EVICT with its answer."""
    one = donor(keys=key.path, drain="60s")
    donor(keys=key.path, port=7472)
    d = kernel_device(key=key)
    a, b = d.connect(), d.connect(port=7472)
    d.map(a, DONOR)
    for first in range(0, d.pages, 64):
        d.write(first, 64, version=3)
    d.drain(a, b)
    d.wait_copied()
    assert all(s["session"] == b for s in d.slab_table())
    assert sum((d.bad(first, 64, 3) for first in range(0, d.pages, 64)), []) == []
    d.netlink.call("disconnect", device=d.number, session=a)
    c = d.connect()
    d.netlink.call("migrate", device=d.number, slab=2, session=c)
    d.wait_copied()
    # Recalled, accepted because of a listener, and released.
    events = Events()
    try:
        one.process.terminate()
        wait_for(lambda: d.slab_table()[2]["recalled"], 30, "not recalled")
        d.netlink.call("migrate", device=d.number, slab=2, session=b)
        assert one.process.wait(60) == 0
    finally:
        events.close()
    assert sum((d.bad(first, 64, 3) for first in range(0, d.pages, 64)), []) == []
    assert d.counts()["donor_errors"] == 0


def test_key_that_is_taken_away(kernel_device, donor, disk, tmp_path, key, other_key):
    keys = tmp_path / "keys"
    keys.mkdir(0o700)
    for k in (key, other_key):
        (keys / k.path.name).write_text(k.path.read_text())
        (keys / k.path.name).chmod(0o600)
    lender = donor(keys=keys)
    one = kernel_device(mib=16, backup=disk(16).path, key=key)
    two = kernel_device(mib=16, key=other_key)
    one.map(one.connect(), DONOR | BACKUP)
    two.map(two.connect(), DONOR)
    one.write(0, 64, version=1)
    two.write(0, 64, version=2)
    (keys / key.path.name).unlink()
    lender.signal(signal.SIGHUP)
    one.wait_closed()
    assert f"key spark ({key.number.hex()}): removed" in machine.read(lender.log)
    assert refused(one)[0] == errno.EACCES
    assert one.bad(0, 64, 1) == []
    assert two.session()["state"] == "live" and two.bad(0, 64, 2) == []


# --- keys derived for one donor ----------------------------------------------------------

def test_donor_with_a_key_of_its_own(kernel_device, donor, tmp_path, key):
    """It proves that key for all connections and frames; that of the device is unknown there."""
    own = key.derive(A, tmp_path / "own.key")
    lender = donor(keys=own.path)
    d = kernel_device(key=key)
    assert refused(d)[0] == errno.EACCES
    session = d.connect(key=own)
    d.map(session, DONOR)
    d.write(0, 64, version=3)
    assert d.bad(0, 64, 3) == []
    said = machine.read(lender.log)
    assert f"key spark ({own.number.hex()})" in said and "shared by donors" not in said
    told = d.netlink.status(d.number)
    assert told["key_number"] == key.number, "it is the session's only"
    assert d.session(session)["state"] == "live"


def test_key_of_another_donor(kernel_device, donor, tmp_path, key, after):
    own, others = (key.derive(name, tmp_path / f"{i}.key") for i, name in enumerate((A, B)))
    donor(keys=own.path)
    d = kernel_device(mib=16, key=key)
    with pytest.raises(Refused) as e:
        d.connect(key=others)
    assert e.value.errno == errno.ENOKEY and "does not know" in e.value.text
    # The donor of that key at this donor's address, whatever key it says to have.
    for port, offered in enumerate((own, None), OTHER_PORT):
        impostor = after(Lender(others, ADDRESS, port))
        connecting = Connecting(d, port, offered)
        impostor.accept()
        e = connecting.result()
        assert isinstance(e, Refused) and e.errno == errno.EKEYREJECTED
    assert d.netlink.status(d.number)["sessions"] == []


# --- another key, or none ----------------------------------------------------------------

def test_keys_that_do_not_match(kernel_device, donor, key, other_key):
    lender = donor(keys=key.path)
    right, wrong = kernel_device(key=key), kernel_device(key=other_key)
    assert refused(wrong) == (errno.EACCES, "it does not know the device's key; add one of \"ebbctl "
                              "key derive\" to its --keys, then SIGHUP")
    said = machine.read(lender.log)
    assert f"unknown key ({other_key.number.hex()}); add one of \"ebbctl key derive\" to --keys" in said
    # Rejected connections leave nothing and do not block others.
    assert right.connect() >= 0
    assert [len(d.netlink.status(d.number)["sessions"]) for d in (right, wrong)] == [1, 0]
    right.map(0, DONOR)
    right.write(0, 64, version=5)
    assert right.bad(0, 64, 5) == []
    assert refused(right, port=9)[1].startswith("address: no donor accepts connections there")


def test_key_that_is_none(module, key):
    k = Kswap()
    forms = {"key": key.secret}, {"key_number": key.number}
    try:
        for fields in ({"key": key.secret}, {"key_number": key.number},
                       {"key": key.secret[1:], "key_number": key.number},
                       {"key": key.secret, "key_number": key.number + b"\0"}):
            with pytest.raises(Refused) as e:
                k.create(64 << 20, **fields)
            assert e.value.errno in (errno.EINVAL, errno.ERANGE)
        assert k.devices() == []
        device = k.create(64 << 20, key=key.secret, key_number=key.number)
        for form in forms:
            with pytest.raises(Refused) as e:
                k.connect(device, ADDRESS, PORT, **form)
            assert (e.value.errno, e.value.text) == (errno.EINVAL, "key: not given, or without its number")
        k.call("destroy", device=device)
    finally:
        k.close()


# --- strangers at the donor -----------------------------------------------------------------

def test_holder_of_the_key_can_borrow(donor, key, after):
    """A borrower written by docs/protocol.md can borrow, with three connections."""
    donor(keys=key.path)
    b = after(Borrower(key, ADDRESS, PORT, queues=3))
    b.join(2)
    assert b.ask(HELLO)[0] == NOT_GREETED
    b.join(1)
    assert b.ask(HELLO)[0] == 0
    status, grant = b.map()
    assert status == 0 and len(grant) == 24 and int.from_bytes(grant[8:16], "little") == 4 << 20
    assert b.ask(PING)[0] == 0


def test_nothing_is_lent_before_the_proof(donor, key, other_key, after):
    donor(keys=key.path)
    # A rejected request leaves no session.
    for request, why in ((b"EBBR" + u32(1) + u32(0) + u32(1) + bytes(8), "no key"),
                         (stated(other_key, 1, 0, 1) + bytes(32), "other key"),
                         (stated(key, 1, 0, 1, version=2) + bytes(32), "version"),
                         (stated(key, 1, 1, 2) + bytes(32), "bad proof"),
                         (bytes(56), "version")):
        word, _, data = after(Opening(ADDRESS, PORT)).request(request)
        assert (word, refusal(data)) == ("rejected", why)
    # A peer that knows only a key's number gets no answer.
    for first in (HELLO, MAP, PING):
        c = after(Opening(ADDRESS, PORT))
        assert c.request(stated(key, 7 + first, 0, 1) + os.urandom(32))[0] == "accepted"
        frame = b"EBB1" + bytes([first]) + bytes(27)
        c.tell(frame + bytes(16))
        assert c.next() == ["closed"]
    b = after(Borrower(key, ADDRESS, PORT))
    assert b.map()[0] == NOT_GREETED


def test_what_was_said_before_is_no_proof(donor, key, after):
    donor(keys=key.path)
    b = after(Borrower(key, ADDRESS, PORT, queues=2))
    c = b.open()
    joined = b.join_request(1, c.qp)
    assert c.request(joined)[0] == "accepted"
    hello = b.marked(b.hello())
    b.say(hello)
    assert b.hear()[0] == 0
    # The existing session accepts neither repeated nor forged requests.
    for request in (b.opened, joined, joined[:24] + os.urandom(32),
                    stated(key, b.session, 1, 2) + mac(b.secret, "joined"),
                    stated(key, b.session, 1, 3) + bytes(32)):
        word, _, data = after(Opening(ADDRESS, PORT)).request(request)
        assert (word, refusal(data)) == ("rejected", "bad proof")
    assert b.ask(PING)[0] == 0
    b.end()
    # After the session's end the donor uses another nonce: recorded messages are invalid.
    anew = []

    def begun():
        anew.append(after(Opening(ADDRESS, PORT)))
        return anew[-1].request(b.opened)[0] == "accepted"

    wait_for(begun, 30, "the session is still there")
    word, _, data = after(Opening(ADDRESS, PORT)).request(joined)
    assert (word, refusal(data)) == ("rejected", "bad proof")
    anew[-1].tell(hello)
    assert anew[-1].next() == ["closed"]


def test_stranger_cannot_take_a_connection(donor, key, after):
    """An observer's queue pairs do not match the request's proof; the session is unaffected."""
    donor(keys=key.path)
    b = after(Borrower(key, ADDRESS, PORT, queues=2))
    mine, his = b.open(), after(Opening(ADDRESS, PORT))
    request = b.join_request(1, mine.qp)
    assert his.qp != mine.qp
    word, _, data = his.request(request)
    assert (word, refusal(data)) == ("rejected", "bad proof")
    assert mine.request(request)[0] == "accepted"
    assert b.ask(HELLO)[0] == 0 and b.map()[0] == 0


@pytest.mark.parametrize("how", ["altered", "again", "left out", "sent back", "without", "short"])
def test_frame_that_is_not_its_borrowers(donor, key, after, how):
    lender = donor(keys=key.path)
    b = after(Borrower(key, ADDRESS, PORT))
    assert b.ask(HELLO)[0] == 0 and b.ask(PING)[0] == 0
    ping = b.frame(PING)
    message = b.marked(ping)
    if how == "altered":
        message = message[:8] + bytes([message[8] ^ 1]) + message[9:]
    elif how == "again":
        message = b.marked(ping, before=b.sent - 1)
    elif how == "left out":
        message = b.marked(ping, before=b.sent + 1)
    elif how == "sent back":
        message = b.heard
    elif how == "without":
        message = ping
    else:
        message = message[-10:]
    b.say(message)
    assert b.hear() is None
    wait_for(lambda: "a frame with a wrong message authentication code" in machine.read(lender.log), 10, "no word of it")


def test_strangers_cannot_take_all_places(kernel_device, donor, key, after):
    """Of an address at most eight may wait, and one more evicts one of them."""
    lender = donor(keys=key.path, memory="32M")
    d = kernel_device(mib=16, key=key)
    strangers = [after(Opening(ADDRESS, PORT)) for _ in range(10)]
    for i, c in enumerate(strangers):
        assert c.request(stated(key, 100 + i, 0, 1) + os.urandom(32))[0] == "accepted"
    closed = lambda: sum(not c.said.empty() for c in strangers)
    wait_for(lambda: closed() == 2, 20, "not two strangers have lost their place")
    d.map(d.connect(), DONOR)
    d.write(0, 64, version=1)
    for c in strangers:
        assert c.next(30) == ["closed"]
    assert d.session()["state"] == "live" and d.bad(0, 64, 1) == []
    said = machine.read(lender.log)
    assert "no proof of its key, and others want its place" in said
    assert said.count("no proof of its key") <= 12


def test_stranger_that_ends_while_it_is_disconnected(kernel_device, donor, key, after):
    """The donor detects message and end in one round, in either order, and still serves others."""
    lender = donor(keys=key.path, memory="32M")
    d = kernel_device(mib=16, key=key)
    d.map(d.connect(), DONOR, [0])
    c = after(Opening(ADDRESS, PORT))
    assert c.request(stated(key, 1, 0, 1) + os.urandom(32))[0] == "accepted"
    lender.signal(signal.SIGSTOP)
    try:
        c.tell(bytes(48))
        time.sleep(1)
        c.end()
        time.sleep(1)
    finally:
        lender.signal(signal.SIGCONT)
    said = lambda cause: f"borrower (unknown, RDMA): {cause}; 0 slabs reclaimed" in machine.read(lender.log)
    wait_for(lambda: said("a frame with a wrong message authentication code") or
             said("disconnected"), 10, "no word of it")
    d.map(0, DONOR, [1])
    assert d.session()["state"] == "live"


# --- strangers in the donor's place -----------------------------------------------------------

def nonsense(request):
    return os.urandom(72)


def right_form(request):
    return b"EBBD" + u32(1) + os.urandom(64)


def sent_back(request):
    return b"EBBD" + u32(1) + request[24:56] + request[24:56]


def nothing(request):
    return b""


@pytest.mark.parametrize("answer", [nonsense, right_form, sent_back, nothing])
def test_donor_without_the_key_gets_no_page(kernel_device, key, after, answer):
    d = kernel_device(mib=16, key=key)
    impostor = after(Impostor(ADDRESS, OTHER_PORT))
    connecting = Connecting(d, OTHER_PORT)
    request = impostor.requested()[2]
    impostor.answer(answer(request))
    e = connecting.result()
    assert isinstance(e, Refused) and e.errno == errno.EKEYREJECTED
    assert "the donor there" in e.text and "key" in e.text
    # No second connection, no HELLO, and no session that could get a slab.
    assert impostor.silent()
    assert d.netlink.status(d.number)["sessions"] == []


def test_relay_between_both(kernel_device, donor, key, after):
    """A man in the middle is detected by its queue pairs."""
    donor(keys=key.path)
    d = kernel_device(mib=16, key=key)
    impostor, forward = after(Impostor(ADDRESS, OTHER_PORT)), after(Opening(ADDRESS, PORT))
    connecting = Connecting(d, OTHER_PORT)
    word, _, reply = forward.request(impostor.requested()[2][:56])
    assert word == "accepted"
    impostor.answer(reply[:72])
    e = connecting.result()
    assert isinstance(e, Refused) and e.errno == errno.EKEYREJECTED
    assert e.text == "address: the donor there does not have the device's key; check which machine has that address"
    assert impostor.silent()


def test_impostor_on_the_second_connection(kernel_device, key, after):
    d = kernel_device(mib=16, key=key, queues=2)
    lender = after(Lender(key, ADDRESS, OTHER_PORT))
    connecting = Connecting(d, OTHER_PORT)
    lender.accept()
    lender.accept(spoil=lambda queue, proof: proof[:-1] + bytes([proof[-1] ^ 1]))
    e = connecting.result()
    assert isinstance(e, Refused) and e.errno == errno.EKEYREJECTED
    assert d.netlink.status(d.number)["sessions"] == []


@pytest.mark.parametrize("spoil", [0, 1])
def test_evict_that_is_not_the_donors(kernel_device, key, after, spoil):
    d = kernel_device(mib=16, key=key, queues=2)
    lender = after(Lender(key, ADDRESS, OTHER_PORT))
    connecting = Connecting(d, OTHER_PORT)
    lender.accept(), lender.accept()
    lender.greet()
    assert connecting.result() == 0
    lender.evict(spoil)
    if not spoil:
        # A genuine EVICT is answered: a slab that is not lent is released at once.
        assert lender.heard()[0] == "got"
        assert d.session()["state"] == "live"
        return
    d.wait_closed()
    assert d.session()["reason"] == "a frame is not from its donor"


# --- ebbctl and ebbd ---------------------------------------------------------------------------

def create(*options, donors=A, check=True):
    return parts.ebbctl("device", "create", "test0", "--frontend", "kmod", "--size", "64M", "--slab",
                        "4M", "--donors", donors, *options, check=check, timeout=300)


def live(k):
    number = k.devices()[0]
    return {s["port"] for s in k.status(number)["sessions"] if s["state"] == "live"}


def test_ebbctl_says_what_is_wrong(module, donor, key, other_key):
    none = ("--durability", "none")
    donor(keys=key.path)

    def refused(status, words, *options, **plan):
        done = create(*none, *options, check=False, **plan)
        assert (done.returncode, words in done.stderr) == (status, True), done.stderr
        assert "start ebb-donord" not in done.stderr
        assert not [f for f in Path("/run/ebb/devices").glob("test0*")]

    refused(1, f"donor {A}: it does not know the device's key; add", "--key", other_key.path)
    refused(2, "device test0: RDMA requires a key; pass --key FILE")
    refused(1, "key /nowhere: No such file", "--key", "/nowhere")
    key.path.chmod(0o644)
    refused(5, "(mode 0644); chmod 600", "--key", key.path)


def test_new_ebbd_needs_no_key(module, donor, disk, cgroup, key, other_key, logs):
    """The module keeps the key: restarted and new donors are still authenticated."""
    ebbds, k = [parts.Ebbd(logs / "ebbd-0.log")], Kswap()
    one = donor(keys=key.path)
    donor(keys=key.path, port=7472)
    try:
        create("--backup", disk(64).path, "--key", key.path, donors=f"{A},{B}")
        number, = k.devices()
        listed, = parts.ebbctl_json("device", "list")["devices"]
        assert (listed["key"], listed["server"]["key"]) == (str(key.path), key.number.hex())
        # --seal auto: seals with a key, including classes.
        assert listed["server"]["sealed"] and k.status(number)["seal"]
        assert "sealed: yes" in parts.ebbctl("device", "class", "test0", cgroup().path, "--durability",
                                             "disk").stdout
        assert "sealed: no" in parts.ebbctl("device", "class", "test0", cgroup().path, "--seal",
                                            "off").stdout
        done = parts.ebbctl("device", "create", "test0", "--frontend", "kmod", "--size", "64M", "--slab",
                            "4M", "--donors", f"{A},{B}", "--backup", "/dev/nullb0", "--adopt",
                            check=False)
        assert done.returncode == 5 and f"with --key {key.path}, not none" in done.stderr
        scan = parts.Scan(mib=32, passes=6, pattern="random", write=True, cgroup=cgroup(16))
        scan.go()
        ebbds[-1].kill()
        one.kill()
        wait_for(lambda: live(k) == {7472}, 60, "the donor is still there")
        one = donor(keys=key.path)
        key.path.unlink()
        ebbds.append(parts.Ebbd(logs / "ebbd-1.log"))
        wait_for(lambda: live(k) == {PORT, 7472}, 120, "not connected again")
        wait_for(lambda: all(s["session"] != NO_SESSION for s in k.slabs(number)), 120,
                 "slabs without a donor")
        # A donor without the key replaces it: reported once, and retried less and less often.
        one.kill()
        donor(keys=other_key.path)
        log = ebbds[-1].log
        unknown = "it does not know the device's key"
        wait_for(lambda: unknown in machine.read(log), 60, "no word of it")
        assert scan.result(timeout=600)["bad"] == 0
        assert machine.read(log).count(unknown) == 1
        assert live(k) == {7472}
        n = k.status(number)["counts"]
        assert n["read_failed"] == n["write_failed"] == n["seal_broken"] == 0
    finally:
        parts.ebbctl("device", "destroy", "test0", "--timeout", "5min", check=False, timeout=400)
        k.close()
        for e in ebbds:
            e.stop()
        machine.pins_remove()
    assert not [p for p in machine.swaps() if p.startswith("/dev/ebb")]
