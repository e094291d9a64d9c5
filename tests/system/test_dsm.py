# SPDX-License-Identifier: GPL-2.0-or-later
"""
libebbdsm and donors with --far: round trips of each call, as the clock and the library count them, and
members that are killed at each of their messages, or at any time where they map the memory.
"""
import ctypes
import errno
import random
import time

import pytest

import parts
from dsm_member import Name, Process, Space, Wire
from machine import wait_for
from parts import ebbctl_json, tried
from ports import free_port
from rows import STEP

pytestmark = pytest.mark.beside

SIZE = 400


def content(letter):
    return letter.encode() * SIZE


@pytest.fixture
def donor(tmp_path):
    """donor() starts one; .unix, .tcp and .port are where it is."""
    started = []

    def start(keep="300ms"):
        port = free_port()
        path = f"unix:{tmp_path}/donor{len(started)}.sock"
        d = parts.Donor(tmp_path / f"donor{len(started)}.log", port=port, memory="64M", slab="16M", also=[path],
                        options=["--far", "32M", "--keep", keep, "--headroom", "0"])
        d.unix, d.tcp, d.port = path, d.address, port
        started.append(d)
        return d
    yield start
    for d in started:
        d.stop()


@pytest.fixture
def wire():
    wires = []

    def make(port):
        wires.append(Wire(port))
        return wires[-1]
    yield make
    for w in wires:
        w.stop()


# --- round trips ------------------------------------------------------------------

DELAY = 0.04


class Measured:
    """Counts the round trips of calls of a space by the delay of its wire, and by its counts."""

    def __init__(self, space, wire):
        self.space, self.wire = space, wire

    def __call__(self, verb, *args):
        before = self.space.counts.round_trips
        self.wire.delay = DELAY
        start = time.monotonic()
        got = self.space.call(verb, *args)
        took = time.monotonic() - start
        self.wire.delay = 0
        counted = self.space.counts.round_trips - before
        assert int(took / DELAY) >= counted, f"{verb}: {took} s"
        return got, counted, int(took / DELAY)


def test_round_trips(donor, wire):
    """Two machines, each with a donor: what each of them waits for at the other's."""
    def once():
        x, y = donor("30s"), donor("30s")
        to_x, to_y = wire(x.port), wire(y.port)
        a, b = Space(x.unix, to_y.address), Space(to_x.address, y.unix, home=1)
        by_a, by_b = Measured(a, to_y), Measured(b, to_x)
        found = {}

        def call(what, by, verb, *args, fails=False):
            got, counted, clocked = by(verb, *args)
            assert fails or got >= 0, (what, got)
            found[what] = (counted, clocked)
            return got

        box, view = Name(), Name()
        call("new", by_a, "new", content("a"), SIZE, box)
        p = call("borrow", by_a, "borrow", box)
        call("return", by_a, "return", box, p)
        p = call("mutable borrow", by_a, "borrow_mut", box)
        call("its return", by_a, "return_mut", box, p)
        view = Name(box.at, box.stamp)
        p = call("shared remote borrow", by_b, "borrow_view", view, None)
        assert ctypes.string_at(p, SIZE) == content("a")
        call("its return ", by_b, "return_view", view, p)
        p = call("cached read", by_b, "borrow_view", view, None)
        b.return_view(view, p)
        # Views of what was changed since are not invalidated.
        a.change(box, content("b"))
        p = call("cached read of an old value", by_b, "borrow_view", view, None)
        b.return_view(view, p)
        loan = Name()
        call("lend", by_a, "lend_mut", box, loan)
        p = call("mutable remote borrow", by_b, "borrow_loan", loan, None)
        assert call("reclaim of what is borrowed", by_a, "reclaim", box, fails=True) == -errno.EBUSY
        ctypes.memmove(p, content("c"), SIZE)
        call("its remote return", by_b, "return_loan", loan, p)
        call("reclaim", by_a, "reclaim", box)
        assert a.value(box, SIZE) == content("c")
        parcel, got = Name(), Name()
        call("give", by_a, "give", box, parcel)
        call("accept", by_b, "accept", parcel, got)
        call("drop", by_b, "drop", got)
        assert (a.settle(), b.settle()) == (0, 0), (a.why(), b.why())
        wait_for(lambda: a.settle() == 0 and a.counts.places == 0, 10, "the old place is not freed")
        assert b.settle() == 0 and b.counts.places == 0
        a.close()
        b.close()
        return found

    # A busy machine is late: the least of several tries is how long a call takes.
    least = {}

    def once_more():
        for what, (counted, clocked) in once().items():
            least[what] = counted, min(clocked, least.get(what, (counted, clocked))[1])
        return least

    found = tried(once_more, lambda found: all(counted == clocked for counted, clocked in found.values()), 20)
    remote = {"shared remote borrow", "mutable remote borrow", "its remote return", "reclaim", "accept"}
    assert found == {what: (1, 1) if what in remote else (0, 0) for what in found}
    assert len(found) == 17


# --- kills ------------------------------------------------------------------------

def nothing_is_left(d, extents):
    wait_for(lambda: ebbctl_json("far", "show", d.tcp, "p")["extents"] == extents, 30,
             f"extents of a dead member are left: not {extents}")


def borrower(where, say, hear, at_once):
    """Uses what it is told the names of."""
    b = Space(where)
    say("ready")
    view, loan, parcel = (Name.of(hear()) for _ in range(3))
    at_once()
    assert b.see(view, SIZE) == content("v")
    p = b.borrow_loan(loan, None)
    assert ctypes.string_at(p, SIZE) == content("l")
    ctypes.memmove(p, content("L"), SIZE)
    assert b.return_loan(loan, p) == 0
    own, got = b.new(content("o")), Name()
    assert b.accept(parcel, got) == 0 and b.value(got, SIZE) == content("p")
    b.change(got, content("P"))
    b.offer("give", own)
    assert b.settle() == 0
    b.change(got, content("Q"))
    assert b.drop(got) == 0 and b.settle() == 0
    say("done")
    hear()


class Owner:
    """A process with boxes, of which another one is told the names."""

    def __init__(self, where):
        self.a = Space(where)
        self.boxes = {letter: self.a.new(content(letter)) for letter in "vlpm"}

    def names(self):
        view = self.boxes["v"]
        return [view, self.a.offer("lend_mut", self.boxes["l"]), self.a.offer("give", self.boxes["p"])]

    def check(self):
        """The other one is dead, at any step: nothing of ours is lost.  Returns what has become of ours."""
        a, lent, given = self.a, self.boxes["l"], self.boxes["p"]
        loan = a.reclaimed(lent, 30)
        assert loan in (0, -errno.EOWNERDEAD), (loan, a.why())
        value = a.value(lent, SIZE)
        assert value in ((content("l"), content("L")) if loan == 0 else (content("l"),))
        parcel = a.reclaimed(given, 30)
        assert parcel in (0, -errno.ESTALE), (parcel, a.why())
        if parcel == 0:
            assert a.value(given, SIZE) == content("p")
        for letter in "vm":
            assert a.value(self.boxes[letter], SIZE) == content(letter)
        # All can be used as before.
        left = [self.boxes[letter] for letter in "vlm"] + [given] * (parcel == 0)
        for box in left:
            a.change(box, content("x"))
            assert a.value(box, SIZE) == content("x")
        assert a.settle() == 0 and a.counts.places == len(left)
        for box in left:
            assert a.drop(box) == 0
        self.boxes = {letter: a.new(content(letter)) for letter in "vlpm"}
        return loan, value[:1], parcel


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_borrower_is_killed_at_each_message(donor, wire, lost):
    """@lost: its last message does not arrive."""
    d = donor()
    owner, link = Owner(d.unix), wire(d.port)
    extents = ebbctl_json("far", "show", d.tcp, "p")["extents"]
    outcomes, message, ended = set(), 0, False
    while not ended:
        process = Process(lambda say, hear: borrower(link.address, say, hear, lambda: None))
        assert process.hear() == "ready"

        def kill(n):
            if n == message:
                process.kill()
                return not lost
            return n < message
        link.messages, link.at_message = 0, kill
        for name in owner.names():
            process.say(name.words())
        said = process.hear()
        assert said in ("", "done"), said
        ended = said == "done"
        status = process.end()
        assert status == (0 if ended else 9)
        link.at_message = None
        outcomes.add(owner.check())
        nothing_is_left(d, extents)
        message += 1
    assert message > 10
    # Before and after each change of hands.
    dead, stale = -errno.EOWNERDEAD, -errno.ESTALE
    assert {(0, b"l", 0), (dead, b"l", 0), (0, b"L", stale)} <= outcomes
    owner.a.close()


@pytest.mark.long
def test_a_borrower_is_killed_at_any_time(donor):
    """One that maps the memory."""
    d = donor()
    owner = Owner(d.unix)
    extents = ebbctl_json("far", "show", d.tcp, "p")["extents"]
    for _ in range(25):
        process = Process(lambda say, hear: borrower(d.unix, say, hear, lambda: say("go")))
        assert process.hear() == "ready"
        for name in owner.names():
            process.say(name.words())
        assert process.hear() == "go"
        time.sleep(random.uniform(0, 0.0012))
        process.kill()
        said = process.hear()
        assert said in ("", "done"), said
        process.end()
        owner.check()
        nothing_is_left(d, extents)
    owner.a.close()


def lender(where, say, hear, at_once):
    a = Space(where)
    say("ready")
    hear()
    at_once()
    view, lent, given = (a.new(content(letter)) for letter in "vlp")
    say(view.words())
    say(a.offer("lend_mut", lent).words())
    say(a.offer("give", given).words())
    assert hear() == "returned"
    assert a.reclaim(lent) == 0 and a.value(lent, SIZE) == content("L")
    a.change(view, content("w"))
    assert a.settle() == 0
    say("done")
    hear()


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_owner_is_killed_at_each_message(donor, wire, lost):
    """What others have borrowed of it is lost, what they have accepted is theirs."""
    d = donor()
    b, link = Space(d.unix), wire(d.port)
    dead, message, ended = (-errno.EOWNERDEAD, -errno.ESTALE), 0, False
    seen = set()
    while not ended:
        process = Process(lambda say, hear: lender(link.address, say, hear, lambda: None))
        assert process.hear() == "ready"

        def kill(n):
            if n == message:
                process.kill()
                return not lost
            return n < message
        link.messages, link.at_message = 0, kill
        process.say("go")
        names, got, p = [], Name(), -1
        while len(names) < 3 and (words := process.hear()):
            assert len(words.split()) == 2, words
            names.append(Name.of(words))
        if names:
            assert b.see(names[0], SIZE) in (content("v"), *dead)
        if len(names) > 1:
            p = b.borrow_loan(names[1], None)
            assert p > 0 or p in dead
        if p > 0:
            assert ctypes.string_at(p, SIZE) == content("l")
            ctypes.memmove(p, content("L"), SIZE)
        accepted = b.accept(names[2], got) if len(names) > 2 else -errno.ESTALE
        assert accepted in (0, *dead)
        if p > 0:
            r = b.return_loan(names[1], p)
            assert r in (0, -errno.EOWNERDEAD)
            seen.add(r)
        process.say("returned")
        said = process.hear()
        assert said in ("", "done"), said
        ended = said == "done"
        if not ended:
            process.kill()
        process.end()
        link.at_message = None
        if accepted == 0:
            assert b.value(got, SIZE) == content("p")
            b.change(got, content("P"))
            assert b.value(got, SIZE) == content("P")
            assert b.drop(got) == 0
        wait_for(lambda: b.settle() == 0 and b.counts.places == 0, 30, "a place is left")
        wait_for(lambda: ebbctl_json("far", "show", d.tcp, "p")["extents"] in (2, 3), 30,
                 "extents of the dead owner are left")
        if names:
            # Another one's memory by now, or as it was.
            assert b.see(Name(names[0].at, names[0].stamp + 16), SIZE) in dead
        message += STEP
    assert message > 5
    assert 0 in seen
    b.close()


def adder(where, say, hear):
    """Adds one to each counter that it is lent."""
    b = Space(where)
    say("ready")
    for words in iter(hear, ""):
        loan = Name.of(words)
        p = b.borrow_loan(loan, None)
        if p < 0:
            say(p)
            continue
        counter = ctypes.c_uint64.from_address(p)
        counter.value += 1
        time.sleep(0.001)
        say(b.return_loan(loan, p))
        assert b.settle() == 0


def reader(where, say, hear):
    """Says the value of each view."""
    b = Space(where)
    for words in iter(hear, ""):
        seen = b.see(Name.of(words), 8)
        say(seen if isinstance(seen, int) else int.from_bytes(seen, "little"))


def test_no_change_is_lost_or_made_twice(donor):
    """Borrowers of a counter are killed at random; readers see what each name stands for."""
    d = donor()
    a, places = Space(d.unix), [d.unix, d.tcp]
    box, value, outcomes = a.new(bytes(8)), 0, set()
    adders, readers = [], [Process(lambda say, hear, w=w: reader(w, say, hear)) for w in places]
    for turn in range(250):
        while len(adders) < 3:
            at = places[len(adders) % 2]
            adders.append(Process(lambda say, hear: adder(at, say, hear)))
            assert adders[-1].hear() == "ready"
        process, loan = adders.pop(random.randrange(3)), a.offer("lend_mut", box)
        before = Name(box.at, box.stamp)
        process.say(loan.words())
        doomed = turn % 5 == 0
        if doomed:
            time.sleep(random.uniform(0, 0.003))
            process.kill()
        said = process.hear()
        assert said == "0" or doomed and said == "", said
        if doomed:
            process.end()
        else:
            adders.append(process)
        r = a.reclaimed(box, 30)
        now = int.from_bytes(a.value(box, 8), "little")
        assert r == 0 or doomed and r == -errno.EOWNERDEAD
        assert now == value + 1 or doomed and now == value, (r, now, value)
        assert r == 0 or now == value
        outcomes.add((r, now - value))
        view, value = Name(box.at, box.stamp), now
        for process in readers:
            process.say(view.words())
            assert process.hear() == str(value)
            # A copy, or it is an old name.
            process.say(before.words())
            assert int(process.hear()) in (value, value - 1, -errno.ESTALE)
    assert value >= 200 and {(0, 1), (-errno.EOWNERDEAD, 0)} <= outcomes
    # Those that began later hold the sockets of the others open.
    for process in adders + readers:
        process.kill()
        process.end()
    a.close()


def test_a_donor_exits(donor):
    """What lies at other donors can be used."""
    x, y = donor(), donor()
    a, b = Space(x.unix, y.tcp), Space(x.tcp, y.unix, home=1, timeout_ms=5000)
    at_x, at_y = a.new(content("x")), b.new(content("y"))
    old, new = Name(at_x.at, at_x.stamp), Name(at_y.at, at_y.stamp)
    assert a.see(new, SIZE) == content("y")
    x.kill()
    assert b.see(old, SIZE) == -errno.EIO
    assert b.value(at_y, SIZE) == content("y")
    b.change(at_y, content("z"))
    assert a.see(Name(at_y.at, at_y.stamp), SIZE) == content("z")
    wait_for(lambda: a.settle() == -errno.EIO, 30, "the exit is not noticed")
    assert b"exited" in a.why()
    assert a.call("new", content("w"), SIZE, Name()) == -errno.EIO
    # What is borrowed from it cannot be returned.
    a.close()
    b.close()
