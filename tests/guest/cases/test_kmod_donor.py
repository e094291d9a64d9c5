# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko and donors that are slow, vanish, or return other pages than were written."""
import errno
import os
import re
import signal
import threading
import time
from contextlib import contextmanager

import machine
import parts
import pytest
from key import shared_key
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import (ADDRESS, BACKUP, DONOR, PAGE, PORT, SECOND, KernelDevice, faults, module_path,
                     run, rxe_add, rxe_remove)
from kswap import NO_SESSION, Events, Kswap, Refused
from machine import read, wait_for
from stranger import MAP, UNMAP, Lender
from test_kmod_ctl import A, B, SLABS, after, create, destroy, nothing_left, seen    # fixtures
from test_kmod_key import Connecting
from test_kmod_seal import Raw, raw    # fixtures

UNANSWERED = (errno.ETIMEDOUT, "session: the donor does not answer")


@pytest.fixture
def lender():
    """lender(d): a donor that the test speaks for, connected to @d, which has one queue."""
    made = []

    def make(d, port=PORT):
        made.append(Lender(shared_key(), ADDRESS, port))
        connecting = Connecting(d, port)
        made[-1].accept()
        made[-1].greet()
        assert isinstance(connecting.result(), int)
        return made[-1]

    yield make
    for one in made:
        one.end()


class Calling:
    """Runs a command while a test acts as the donor; @again: until the last call is answered."""

    def __init__(self, d, command, again=False, **fields):
        self.outcome = None
        self.thread = threading.Thread(target=self.run, args=(d, command, again, fields))
        self.thread.start()

    def run(self, d, command, again, fields):
        netlink = Kswap() # the test uses the device's
        end = time.monotonic() + 20
        while True:
            try:
                netlink.call(command, device=d.number, **fields)
                return
            except Refused as e:
                self.outcome = (e.errno, e.text)
                if not again or self.outcome != UNANSWERED or time.monotonic() > end:
                    return
            self.outcome = None

    def result(self):
        """Returns None or (errno, text)."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.outcome


def states(d):
    return [s["state"] for s in d.netlink.status(d.number)["sessions"]]


def places(d):
    return [s["session"] for s in d.slab_table()]


# --- calls without an answer ------------------------------------------------------------

def test_call_without_an_answer_fails_and_its_session_stays(kernel_device, lender):
    """A slab that is granted too late is released, and calls go on after the late answer."""
    d = kernel_device(mib=16, queues=1, deadline=300)
    it = lender(d)
    called = Calling(d, "map", slab=0, session=0)
    late, *_ = it.call(MAP)
    assert called.result() == UNANSWERED
    # Until then the donor gets no further call.
    assert Calling(d, "map", slab=1, session=0).result() == UNANSWERED
    assert it.silent() and states(d) == ["live"]
    it.grant(late, slab=7, generation=3)
    returned, *loan = it.call(UNMAP)
    assert loan == [7, 3]
    it.reply(UNMAP, returned, slab=7, generation=3)
    called = Calling(d, "map", slab=1, session=0)
    tag, *_ = it.call(MAP)
    it.grant(tag, slab=8, generation=4)
    assert called.result() is None
    assert states(d) == ["live"] and places(d) == [NO_SESSION, 0, NO_SESSION, NO_SESSION]


def test_late_refusal_and_late_unmap(kernel_device, lender):
    d = kernel_device(mib=16, queues=1, deadline=300)
    it = lender(d)
    called = Calling(d, "map", slab=0, session=0)
    late, *_ = it.call(MAP)
    assert called.result() == UNANSWERED
    it.reply(MAP, late, status=5)
    called = Calling(d, "map", again=True, slab=0, session=0)
    tag, *_ = it.call(MAP)
    it.grant(tag, slab=1, generation=1)
    assert called.result() is None
    called = Calling(d, "unmap", slab=0, session=0)
    late, *loan = it.call(UNMAP)
    assert loan == [1, 1] and called.result() == UNANSWERED
    assert places(d)[0] == NO_SESSION
    it.reply(UNMAP, late, slab=1, generation=1)
    called = Calling(d, "map", again=True, slab=0, session=0)
    tag, *_ = it.call(MAP)
    it.grant(tag, slab=1, generation=2)
    assert called.result() is None and states(d) == ["live"]


@pytest.mark.parametrize("how", ["again", "unasked", "during the next call"])
def test_reply_that_nothing_waits_for_ends_the_session(kernel_device, lender, how):
    """A second reply must not pass for that of the next call."""
    d = kernel_device(mib=16, queues=1)
    it = lender(d)
    called = Calling(d, "map", slab=0, session=0)
    tag, *_ = it.call(MAP)
    it.grant(tag, slab=1, generation=1)
    assert called.result() is None
    if how == "during the next call":
        called = Calling(d, "map", slab=1, session=0)
        it.call(MAP)
    it.grant(tag + (how == "unasked"), slab=2, generation=2)
    d.wait_closed()
    s = d.session()
    assert (s["cause"], s["reason"]) == ("protocol", "the donor sent an unexpected reply")
    assert called.result() in (None, (errno.ENOTCONN, UNANSWERED[1]))


def test_donor_that_recalls_without_waiting_for_answers(kernel_device, lender):
    """More than 16 unanswered EVICTs break the protocol.  Of 65536 slabs none is theirs."""
    d = kernel_device(mib=1 << 16, slab_mib=1, queues=1)
    it = lender(d)
    for _ in range(36):
        it.evict()
    d.wait_closed(seconds=60)
    s = d.session()
    assert (s["cause"], s["reason"]) == ("protocol", "the donor sent too many requests")


def test_donor_that_recalls_in_turns(kernel_device, lender):
    """16 EVICTs at a time are answered, each once, in their order."""
    d = kernel_device(mib=16, queues=1)
    it = lender(d)
    for _ in range(4):
        for _ in range(16):
            it.evict()
        for _ in range(16):
            assert it.heard()[0] == "got"
    assert d.session()["state"] == "live"


def test_stopped_donor_keeps_its_pages(kernel_device, donor):
    """Its pages are served without its process; the slab that it grants then is released."""
    it = donor(memory="32M")
    d = kernel_device(mib=16, deadline=1000)
    session = d.connect()
    d.map(session, DONOR, [0, 1])
    d.write(0, 64, version=1)
    it.signal(signal.SIGSTOP)
    try:
        with pytest.raises(Refused) as e:
            d.map(session, DONOR, [2])
        assert (e.value.errno, e.value.text) == UNANSWERED
        assert d.bad(0, 64, 1) == []
    finally:
        it.signal(signal.SIGCONT)

    def mapped():
        try:
            d.map(session, DONOR, [2])
            return True
        except Refused:
            return False

    wait_for(mapped, 20, "no slab")
    lent = lambda: it.ask()["slabs"]["lent"]
    wait_for(lambda: lent() == 3, 20, "the late slab is not released")
    assert states(d) == ["live"] and d.bad(0, 64, 1) == []


def test_disconnect_that_is_refused_halfway(kernel_device, donor):
    """A write comes while slabs are detached: the donor gets back those that were."""
    it = donor(memory="32M")
    d = kernel_device(mib=16)
    d.map(d.connect(), DONOR)
    # Every slab is checked; then each is checked again and detached, the second with a page.
    with faults("ebb_slab_count_unique", -1, 1, after=d.slabs + 1) as left:
        with pytest.raises(Refused) as e:
            d.netlink.call("disconnect", device=d.number, session=0)
        assert e.value.errno == errno.EBUSY and left() == 0
    assert places(d) == [NO_SESSION, 0, 0, 0] and states(d) == ["live"]
    wait_for(lambda: it.ask()["slabs"]["lent"] == 3, 20, "the slab is not released")
    d.map(0, DONOR, [0])
    d.write(0, 64, version=1)
    assert d.bad(0, 64, 1) == []


# --- donors that vanish -----------------------------------------------------------------

def test_idle_donor_that_vanishes_is_noticed(kernel_device, donor):
    """No packet announces the end, and no request runs into it; until then the session stays."""
    it = donor(memory="32M")
    d = kernel_device(mib=16)
    d.map(d.connect(), DONOR)
    time.sleep(3)
    assert states(d) == ["live"]
    run("ip", "link", "set", "v0", "down")
    try:
        d.wait_closed(seconds=10)
        assert d.session()["cause"] in ("unreachable", "local")
        assert places(d) == [NO_SESSION] * d.slabs
    finally:
        run("ip", "link", "set", "v0", "up")
        # On 6.12 an rxe whose link was down accepts no new connections.
        it.kill()
        rxe_remove()
        rxe_add()


# --- no memory to map pages for the network device ----------------------------------------

def unmappable(times):
    """Makes the next @times mappings of pages for the network device fail."""
    return faults("ib_dma_virt_map_sg", 0, times)


@pytest.mark.parametrize("seal", [False, True])
def test_write_waits_for_memory_to_map_its_pages(kernel_device, donor, seal):
    """Without another place the write is tried again: no error, no lost page."""
    donor(memory="32M")
    d = kernel_device(mib=16, seal=seal)
    d.map(d.connect(), DONOR)
    d.write(0, 64, version=1)
    with unmappable(5) as left:
        d.write(0, 64, version=2)
        assert left() == 0
    assert d.bad(0, 64, 2) == []
    n = d.counts()
    assert n["write_failed"] == n["read_failed"] == 0 and states(d) == ["live"]


def test_write_that_cannot_be_mapped_goes_elsewhere(kernel_device, donor, disk):
    """The backup, or the other donor, has the page at once; the copier brings it to the donor."""
    for port in (PORT, 7472):
        donor(memory="32M", port=port)
    d = kernel_device(mib=16, backup=disk(16).path)
    d.map(d.connect(), DONOR | BACKUP, [0])
    for session in (0, d.connect(7472)):
        d.map(session, DONOR | SECOND, [1])
    for first in (0, 1024):
        with unmappable(1) as left:
            d.write(first, 64, version=1)
            assert left() == 0
        d.wait_copied()
        assert d.bad(first, 64, 1) == []
    n = d.counts()
    assert n["write_failed"] == 0 and n["copied"]


def test_read_waits_for_memory_to_map_its_pages(kernel_device, donor):
    """It does not retry in a loop."""
    donor(memory="32M")
    d = kernel_device(mib=16)
    d.map(d.connect(), DONOR)
    d.write(0, 64, version=1)
    with unmappable(20) as left:
        began = time.monotonic()
        assert d.bad(0, 64, 1) == []
        assert left() == 0 and time.monotonic() - began > 0.1


# --- network devices --------------------------------------------------------------------

@contextmanager
def segments(send, read):
    """The network device gathers at most so many segments in a work request."""
    run("insmod", module_path().parent / "fault/ebb_sge.ko", f"send={send}", f"read={read}")
    try:
        yield
    finally:
        run("rmmod", "ebb_sge")


@pytest.mark.parametrize("send,read,seal", [(13, 13, False), (6, 4, True), (30, 5, False)])
def test_network_device_that_gathers_few_segments(kernel_device, donor, send, read, seal):
    """A request is split into several work requests; its pages are right both ways."""
    for port in (PORT, 7472):
        donor(memory="32M", port=port)
    with segments(send, read):
        d = kernel_device(mib=16, seal=seal)
        a, b = d.connect(), d.connect(7472)
        d.map(a, DONOR)
        for first in range(0, d.pages, 64):
            d.write(first, 64, version=3)
        d.netlink.call("migrate", device=d.number, slab=0, session=b)
        d.wait_copied()
        assert sum((d.bad(first, 64, 3) for first in range(0, d.pages, 64)), []) == []
        n = d.counts()
        assert n["messages"] > n["requests"] and n["copied"] == d.pages / d.slabs
        assert n["read_failed"] == n["write_failed"] == n["seal_broken"] == 0


def test_network_device_that_gathers_too_few_segments(kernel_device, donor):
    donor(memory="32M")
    d = kernel_device(mib=16)
    with segments(16, 3), pytest.raises(Refused) as e:
        d.connect()
    assert (e.value.errno, e.value.text) == \
        (errno.EOPNOTSUPP, "address: the network device gathers fewer than 4 segments")


def test_failing_copier_is_not_hurried(kernel_device, donor):
    """It waits a second after a failure, whatever else needs it meanwhile."""
    for port in (PORT, 7472):
        donor(port=port, slab="1M", memory="40M")
    d = kernel_device(slab_mib=1, seal=True, copies=DONOR | SECOND)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR | SECOND, [0])
    d.write(0, 64, version=1)
    with faults("ebb_seal_check", errno.ENOMEM, 1000):
        d.map(b, DONOR | SECOND, [0])
        began = time.monotonic()
        d.map(a, DONOR | SECOND, range(1, d.slabs))
        took = time.monotonic() - began
        assert d.counts()["copy_errors"] <= 3 + took
    d.wait_copied()
    assert d.bad(0, 64, 1) == []


# --- donors that return other pages than were written --------------------------------------

class Memory:
    """The memory of a donor."""

    def __init__(self, process):
        self.process = process
        self.mem = open(f"/proc/{process.pid}/mem", "r+b", 0)

    def find(self, content):
        """Returns the address of @content."""
        for line in read(f"/proc/{self.process.pid}/maps").splitlines():
            start, end, how = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
            if not how.startswith("rw"):
                continue
            try:
                text = os.pread(self.mem.fileno(), int(end, 16) - int(start, 16), int(start, 16))
            except OSError: # a device's mapping
                continue
            if content in text:
                return int(start, 16) + text.index(content)
        raise AssertionError("not in the donor's memory")

    def flip(self, address):
        byte = os.pread(self.mem.fileno(), 1, address)[0]
        os.pwrite(self.mem.fileno(), bytes([byte ^ 1]), address)


@pytest.fixture
def flip(raw):
    """flip(donor, first, pages): changes a bit of pages of the slab of page @first, on the backup too."""
    def change(lender, first, pages, path="/dev/nullb0"):
        memory = Memory(lender.process)
        base = memory.find(raw(path).get(first))
        for page in pages:
            memory.flip(base + (page - first) * PAGE + 100)

    return change


class Existing(KernelDevice):
    """A device that ebbctl has made."""

    def __init__(self, seen):
        self.seen, self.netlink, self.number, self.fd = seen, seen.netlink, seen.number, -1
        self.path = f"/dev/ebb{seen.number}"


def bad_pages(d):
    return [s.get("bad_pages", 0) for s in d.netlink.status(d.number)["sessions"]]


def eio(d, page):
    with pytest.raises(OSError) as e:
        d.read(page, 1)
    return e.value.errno == errno.EIO


def test_bad_page_costs_its_copy_alone(kernel_device, donor, disk, flip):
    """Its session stays and gets no slab any more, until it is trusted."""
    it = donor(memory="32M")
    d = kernel_device(mib=16, backup=disk(16).path, seal=True)
    d.map(d.connect(), DONOR | BACKUP, [0, 1])
    d.write(0, 64, version=1)
    d.wait_behind()
    flip(it, 0, [5, 9])
    events = Events()
    try:
        assert d.bad(0, 64, 1) == []
        assert events.next() == {"event": "bad_page", "device": d.number, "session": 0, "slab": 0}
    finally:
        events.close()
    n = d.counts()
    assert (n["seal_broken"], n["read_backup"], n["read_failed"]) == (2, 2, 0)
    assert states(d) == ["live"] and bad_pages(d) == [2]
    with pytest.raises(Refused) as e:
        d.map(0, DONOR | BACKUP, [2])
    assert (e.value.errno, e.value.text) == \
        (errno.ESHUTDOWN, "session: its donor returned a wrong page; name another")
    d.netlink.call("trust", device=d.number, session=0)
    assert bad_pages(d) == [0]
    d.map(0, DONOR | BACKUP, [2])


def test_bad_page_that_is_nowhere_else(kernel_device, donor, disk, flip):
    """It alone is lost, until it is written again."""
    it, ram = donor(memory="32M"), disk(16)
    d = kernel_device(mib=16, backup=ram.path, seal=True)
    d.map(d.connect(), DONOR | BACKUP, [0])
    d.write(0, 64, version=1)
    d.wait_behind()
    flip(it, 0, [5])
    Raw(ram.path).put(5, bytes(PAGE))
    assert eio(d, 5) and eio(d, 5)
    assert d.bad(0, 5, 1) == d.bad(6, 58, 1) == [] and states(d) == ["live"]
    d.write(5, 1, version=2)
    assert d.bad(5, 1, 2) == []


def test_copier_passes_no_bad_page_on(kernel_device, donor, disk, flip):
    """A slab leaves its donor: the page comes from the backup, and the new donor is not blamed."""
    it = donor(memory="32M")
    donor(memory="32M", port=7472)
    d = kernel_device(mib=16, backup=disk(16).path, seal=True)
    a, b = d.connect(), d.connect(7472)
    d.map(a, DONOR | BACKUP, [0])
    d.write(0, 256, version=1)
    d.wait_behind()
    flip(it, 0, [0, 70, 71, 255])
    d.netlink.call("migrate", device=d.number, slab=0, session=b)
    d.wait_copied()
    # The copier asks the suspect no more than it must: the backup has all pages.
    assert bad_pages(d)[0] >= 1 and bad_pages(d)[1] == 0
    before = d.counts()
    assert d.bad(0, 256, 1) == []
    n = d.counts()
    assert n["read_donor"] - before["read_donor"] == 256 and n["seal_broken"] == before["seal_broken"]
    assert states(d) == ["live", "live"]


def test_ebbd_leaves_a_donor_in_quarantine(module, donor, disk, after, seen, flip, logs):
    """In the words of ebb-swapd: its slabs migrate, and it gets none until it is trusted."""
    one, _ = donor(), donor(port=7472)
    ebbd = parts.Ebbd(logs / "ebbd.log")
    said = lambda words: words in read(ebbd.log)
    listed = lambda: next(r for r in parts.ebbctl_json("donor", "list")["donors"] if r["address"] == A)
    try:
        create("--backup", disk(64).path, seal="auto")
        d = Existing(seen())
        machine.swapoff(d.path) # nothing may write to an active swap area
        first = next(i for i, s in enumerate(d.slab_table()) if s["session"] == d.seen.live()[A]) * 1024
        d.write(first, 64, version=1)
        d.wait_behind()
        flip(one, first, [first + 3])
        assert d.bad(first, 64, 1) == []
        d.seen.wait_held({B: SLABS})
        assert said(f"donor {A} quarantined: ")
        assert (listed()["state"], listed()["leaving"], listed()["bad_pages"]) == \
            ("quarantined", "quarantined", 1)
        done = parts.ebbctl("donor", "trust", B, check=False)
        assert "not quarantined; nothing to do" in done.stderr
        # Neither a restart of the donor nor one of ebbd ends it.
        one.kill()
        wait_for(lambda: A not in d.seen.live(), 20, "its session goes on")
        one = donor()
        ebbd.stop()
        ebbd = parts.Ebbd(logs / "ebbd-1.log")
        wait_for(lambda: said(f"donor {A} quarantined: "), 20, "the next ebbd does not know it")
        time.sleep(3)
        assert d.seen.live().keys() == {B} and listed()["state"] == "quarantined"
        parts.ebbctl("donor", "trust", A)
        wait_for(lambda: A in d.seen.live(), 20, "it is not connected again")
        assert listed()["bad_pages"] == 0 and "leaving" not in listed()
        assert d.bad(first, 64, 1) == []
        d.close()
        destroy()
        nothing_left()
    finally:
        ebbd.stop()
        machine.pins_remove()
