# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko and donors that are slow, vanish, or return other pages than were written."""
import errno
import signal
import threading
import time

import pytest
from key import shared_key
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import ADDRESS, BACKUP, DONOR, PORT, SECOND, faults, run, rxe_add, rxe_remove
from kswap import NO_SESSION, Kswap, Refused
from machine import wait_for
from stranger import MAP, UNMAP, Lender
from test_kmod_key import Connecting

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
