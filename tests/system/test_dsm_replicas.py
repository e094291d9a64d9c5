# SPDX-License-Identifier: GPL-2.0-or-later
"""
libebbdsm with replicas: a donor that is killed at each message of each call, and later.  No box of a live
process is lost, and no reader gets another value than a name stands for.
"""
import ctypes
import errno

import pytest

from dsm_member import Name, Process, Space
from machine import wait_for
from rows import STEP
from test_dsm import SIZE, content, donor, wire  # noqa: F401  fixtures

pytestmark = pytest.mark.beside

LOST, DEAD, STALE = -errno.EIO, -errno.EOWNERDEAD, -errno.ESTALE
FAST = {"timeout_ms": 2000, "resume_ms": 100, "replicas": 1}


def name_of(box):
    return Name(box.at, box.stamp)


class Script:
    """Calls of an owner at the donor that is killed, and of a process at the other one."""

    def __init__(self, a, b):
        self.a, self.b = a, b
        self.boxes = {}   # of a: name: (box, content)
        self.outcomes = set()
        self.lost = 0     # places of parcels that another process may have

    def new(self, name):
        self.boxes[name] = self.a.new(content(name)), content(name)
        self.check(name)

    def check(self, name):
        """Another process reads by a view what the owner has."""
        box, value = self.boxes[name]
        assert self.a.value(box, SIZE) == value, name
        assert self.b.see(name_of(box), SIZE) == value, name

    def change(self, name, letter):
        box, old = self.boxes[name]
        before = name_of(box)
        self.a.change(box, content(letter))
        self.boxes[name] = box, content(letter)
        self.check(name)
        # A copy, or an old name.
        assert self.b.see(before, SIZE) in (old, STALE, LOST)

    def lend(self, name, letter):
        box, old = self.boxes[name]
        loan, returned = Name(), None
        r = self.a.call("lend_mut", box, loan)
        assert r in (0, LOST), r
        if r == 0:
            p = self.b.borrow_loan(loan, None)
            assert p > 0 or p == LOST, p
            if p > 0:
                assert ctypes.string_at(p, SIZE) == old
                ctypes.memmove(p, content(letter), SIZE)
                returned = self.b.return_loan(loan, p)
                assert returned in (0, LOST), returned
            r = self.a.reclaimed(box, 10)
            assert r in (0, DEAD), r
            assert r or p < 0 or returned in (0, LOST)
        value = self.a.value(box, SIZE)
        assert value == old or (returned is not None and r == 0 and value == content(letter)), (r, returned)
        assert returned != 0 or r != 0 or value == content(letter)
        self.outcomes.add(("lend", r))
        self.boxes[name] = box, value
        self.check(name)

    def give(self, name):
        """Two parcels, there and here again: the object has one owner, or is lost with its parcel."""
        box, value = self.boxes.pop(name)
        parcel, got = Name(), Name()
        r = self.a.call("give", box, parcel)
        assert r in (0, LOST), r
        if r:
            self.boxes[name] = box, value
            return self.check(name)
        accepted = self.b.accept(parcel, got)
        assert accepted in (0, LOST), accepted
        r = self.a.reclaimed(box, 10)
        self.outcomes.add(("give", accepted, r))
        assert r in ((STALE, LOST) if accepted == 0 else (STALE, LOST, 0)), (accepted, r)
        self.lost += r == LOST
        if accepted and r == 0:
            self.boxes[name] = box, value
            return self.check(name)
        if accepted:
            return None
        assert self.b.value(got, SIZE) == value
        parcel, back = self.b.offer("give", got), Name()
        assert self.a.accept(parcel, back) == 0, self.a.why()
        assert self.a.value(back, SIZE) == value
        self.boxes[name] = back, value
        return self.check(name)

    def drop(self, name):
        box, value = self.boxes.pop(name)
        view = name_of(box)
        assert self.a.drop(box) == 0
        assert self.b.see(view, SIZE) in (value, STALE, LOST, DEAD)

    def run(self):
        for name in "vlpmd":
            self.new(name)
        self.change("m", "M")
        self.lend("l", "L")
        self.give("p")
        self.drop("d")
        self.change("m", "N")
        assert self.a.settle() in (0, LOST) and self.b.settle() in (0, LOST)

    def end(self):
        """All goes on; what is changed has its twin at donors that are there."""
        for name in list(self.boxes):
            self.check(name)
            self.change(name, "x")
            self.lend(name, "y")
            self.change(name, "z")
        for name in list(self.boxes):
            self.drop(name)
        wait_for(lambda: (self.a.settle(), self.b.settle()) and self.a.counts.places <= self.lost and
                 self.b.counts.places == 0, 20, "a place is left")


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_donor_is_killed_at_each_message(donor, wire, lost, mapped):  # noqa: F811
    """@lost: the message does not arrive.  @mapped: it is one of the other process: the owner sends none."""
    outcomes, twins, message, ended = set(), 0, 0, False
    while not ended:
        x, y = donor("1s"), donor("1s")
        link = wire(x.port)
        a = Space(x.unix if mapped else link.address, y.unix, **FAST)
        b = Space(link.address if mapped else x.tcp, y.unix, home=1, **FAST)
        script = Script(a, b)

        def kill(n):
            if n == message:
                x.kill()
                return not lost
            return n < message
        link.messages, link.at_message = 0, kill
        script.run()
        ended = link.messages <= message
        link.at_message = None
        if ended:
            x.kill()
        script.end()
        outcomes |= script.outcomes
        twins += b.counts.at_twins
        a.close()
        b.close()
        x.kill()
        y.kill()
        link.stop()
        # Of a lender that sends them, each outcome below needs a certain message.
        message += STEP if mapped else 1
    assert message > 10 and twins > 0
    assert ("lend", 0) in outcomes
    # Whether an owner with mapped memory notices before the return is a matter of time.
    assert mapped or {("lend", DEAD), ("give", 0, STALE)} <= outcomes, outcomes


def test_a_third_donor_gets_the_twins(donor):  # noqa: F811
    """Two donors are killed one after the other, with time to settle between."""
    x, y, z = donor("1s"), donor("1s"), donor("1s")
    a = Space(x.tcp, y.tcp, z.tcp, **FAST)
    b = Space(x.tcp, y.tcp, z.tcp, home=2, **FAST)
    boxes = [a.new(content(letter)) for letter in "abc"] + [a.new(b"k" * 70000)]
    views = [name_of(box) for box in boxes]
    assert a.counts.bare == 0
    x.kill()
    assert b.see(views[0], SIZE) == content("a") and b.counts.at_twins == 1
    wait_for(lambda: a.settle() == LOST and a.counts.bare == 0, 20, "no second twin")
    y.kill()
    # What no process has changed has its names.
    for view, letter in zip(views[1:], "bc"):
        assert b.see(view, SIZE) == content(letter)
    assert b.see(views[3], 70000) == b"k" * 70000
    for box, letter in zip(boxes, "abc"):
        assert a.value(box, SIZE) == content(letter)
        a.change(box, content("n"))
        assert b.see(name_of(box), SIZE) == content("n")
    assert a.settle() == LOST and a.counts.bare > 0
    for box in boxes:
        assert a.drop(box) == 0
    assert a.settle() == LOST and a.counts.places == 0
    a.close()
    b.close()


def test_a_twin_is_lost(donor):  # noqa: F811
    """The second donor is killed: all goes on at the first, and twins are made elsewhere."""
    x, y, z = donor("1s"), donor("1s"), donor("1s")
    a = Space(x.unix, y.tcp, z.tcp, **FAST)
    b = Space(x.tcp, y.tcp, z.tcp, home=2, **FAST)
    box, view = a.new(content("v")), None
    y.kill()
    a.change(box, content("w"))
    view = name_of(box)
    assert b.see(view, SIZE) == content("w") and b.counts.at_twins == 0
    wait_for(lambda: a.settle() == LOST and a.counts.bare == 0, 20, "no twin")
    x.kill()
    c = b.see(name_of(a.new(content("q"))), SIZE)
    assert c == content("q")
    wait_for(lambda: b.settle() == LOST and len(b.why()) > 0, 20, "the exit is not noticed")
    other = Name(view.at, view.stamp + 16)
    assert b.see(other, SIZE) == LOST and b.counts.lost == 1
    a.close()
    b.close()


def test_both_donors_are_lost(donor):  # noqa: F811
    x, y = donor("1s"), donor("1s")
    a, b = Space(x.tcp, y.tcp, **FAST), Space(x.tcp, y.tcp, home=1, **FAST)
    box = a.new(content("v"))
    loan = a.offer("lend_mut", a.new(content("l")))
    x.kill()
    y.kill()
    assert b.see(name_of(box), SIZE) == LOST
    assert b.borrow_loan(loan, None) == LOST
    assert a.call("new", content("w"), SIZE, Name()) == LOST
    assert a.drop(box) == 0
    a.close()
    b.close()


def test_twins_of_a_killed_owner_are_freed(donor):  # noqa: F811
    x, y = donor("300ms"), donor("300ms")

    def owner(say, hear):
        a = Space(x.unix, y.unix, **FAST)
        for _ in range(10):
            a.new(b"o" * (1 << 20))
        say("made")
        hear()

    process = Process(owner)
    assert process.hear() == "made"
    b = Space(x.unix, y.unix, home=1)

    def room():
        """How many such boxes the second donor has memory for."""
        boxes = []
        while b.call("new_at", 1 << 61, b"r" * (1 << 20), 1 << 20, box := Name()) == 0:
            boxes.append(box)
        for box in boxes:
            assert b.drop(box) == 0
        return len(boxes)

    before = room()
    process.kill()
    process.end()
    wait_for(lambda: room() == before + 10, 20, "twins are left")
    b.close()


def test_without_replicas_nothing_is_sent(donor):  # noqa: F811
    """As many messages as with one donor alone, and one that asks the home for its room before."""
    def count(*donors, **options):
        a = Space(*donors, **options)
        before = a.counts
        box = a.new(content("v"))
        a.change(box, content("w"))
        loan = a.offer("lend_mut", box)
        p = a.borrow_loan(loan, None)
        assert a.return_loan(loan, p) == 0 and a.reclaim(box) == 0
        assert a.settle() == 0 and a.drop(box) == 0 and a.settle() == 0
        after = a.counts
        a.close()
        return [getattr(after, f) - getattr(before, f) for f in ("round_trips", "requests")]
    alone = count(donor("1s").tcp)
    x, y = donor("1s"), donor("1s")
    assert count(x.tcp, y.tcp) == [alone[0] + 1, alone[1]]
    assert count(x.tcp, y.tcp, replicas=1)[0] > alone[0] + 1


@pytest.mark.parametrize("home", ["unix", "tcp"])
@pytest.mark.parametrize("second", ["unix", "tcp"])
def test_what_a_write_costs(donor, home, second):  # noqa: F811
    """Round trips and requests of calls of the owner, with replicas and without; none more if they are mapped."""
    x, y = donor("1s"), donor("1s")

    def count(replicas):
        a = Space(getattr(x, home), getattr(y, second), pool=b"r%d" % replicas, replicas=replicas)
        held, box, costs = a.new(content("h")), Name(), {}

        def cost(name, call):
            before = a.counts
            result = call()
            costs[name] = [getattr(a.counts, f) - getattr(before, f) for f in ("round_trips", "requests")]
            return result
        assert cost("new", lambda: a.call("new", content("v"), SIZE, box)) == 0
        p = cost("borrow_mut", lambda: a.call("borrow_mut", box))
        assert cost("return_mut", lambda: a.call("return_mut", box, p)) == 0
        cost("drop", lambda: a.drop(box))
        assert a.drop(held) == 0
        a.close()
        return costs
    none, one = count(0), count(1)
    print(home, second, none, one)
    assert all(none[call] == [0, 0] for call in none) or home == "tcp"
    more = {call: [one[call][i] - none[call][i] for i in (0, 1)] for call in none}
    assert more["borrow_mut"] == more["drop"] == [0, 0]
    for call in ("new", "return_mut"):
        assert more[call] == ([1, 3] if second == "tcp" else [0, 0]), (call, more)
