# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebbdsm_sync.h and donors with --far: round trips, and members that are killed at each of their
messages, or at any time where they map the memory, while others wait for what they have.
"""
import ctypes
import errno
import random
import struct
import time

import pytest

import parts
from dsm_member import Name, Process, Wire
from dsm_sync import Arc, SyncSpace
from machine import wait_for
from parts import ebbctl_json
from ports import free_port

pytestmark = pytest.mark.beside

SIZE = 400
DEAD = -errno.EOWNERDEAD
# The contract is that what a dead process had is free 1 s after its fence.
DEADLINE = 5 * 1.0


@pytest.fixture
def donor(tmp_path):
    port, path = free_port(), f"unix:{tmp_path}/donor.sock"
    d = parts.Donor(tmp_path / "donor.log", port=port, memory="64M", slab="16M", also=[path],
                    options=["--far", "32M", "--keep", "300ms", "--headroom", "0"])
    d.unix, d.tcp, d.port = path, d.address, port
    yield d
    d.stop()


@pytest.fixture
def wire(donor):
    w = Wire(donor.port)
    yield w
    w.stop()


def extents(d):
    return ebbctl_json("far", "show", d.tcp, "p")["extents"]


# --- round trips ------------------------------------------------------------------

def test_round_trips(donor, wire):
    """What the library counts; messages that it does not wait for come with those."""
    a, b = SyncSpace(donor.unix), SyncSpace(wire.address)
    found = {}

    def call(what, function, by=b):
        before, messages = by.counts.round_trips, wire.messages
        function()
        found[what] = by.counts.round_trips - before
        assert by is a or wire.messages - messages >= found[what]

    words = a.made("words_new", None, 4)
    call("load", lambda: b.load(words, 0))
    call("add", lambda: b.add(words, 0, 1, None))
    call("store", lambda: b.store(words, 0, 7))
    call("cas", lambda: b.cas(words, 0, 7, 8, None))
    call("add of what others changed", lambda: (a.add(words, 0, 1, None), b.add(words, 0, 1, None)))
    assert b.load(words, 0) == 10
    call("the maker's add", lambda: a.add(words, 0, 1, None), a)
    mutex, held = a.made("mutex_new", bytes(SIZE), SIZE), []
    call("first lock", lambda: held.append(b.lock(mutex)))
    call("unlock", lambda: b.unlock(mutex, held[-1][1]))
    for _ in range(2):
        held.append(a.lock(mutex))
        a.unlock(mutex, held[-1][1])
        held.append(b.lock(mutex))
        b.unlock(mutex, held[-1][1])
    call("lock", lambda: held.append(b.lock(mutex)))
    ctypes.memset(held[-1][1], 1, SIZE)
    call("unlock after a change", lambda: b.unlock(mutex, held[-1][1]))
    assert {r for r, _ in held} == {0}
    channel = a.made("channel_new", 4, 16)
    b.send(channel, b"", 0, 0)
    call("send", lambda: b.send(channel, b"x" * 16, 16, 0))
    call("receive", lambda: b.receive(channel))
    arc = a.shared(bytes(SIZE))
    call("first clone", lambda: b.clone(arc))
    call("clone", lambda: b.clone(arc))
    call("unclone", lambda: b.unclone(arc))
    call("last unclone", lambda: b.unclone(arc))
    assert found == {
        "load": 1, "add": 1, "store": 1, "cas": 1, "add of what others changed": 2, "the maker's add": 0,
        "first lock": 5, "unlock": 1, "lock": 1, "unlock after a change": 1, "send": 2, "receive": 2,
        "first clone": 4, "clone": 0, "unclone": 0, "last unclone": 2}
    a.close()
    b.close()


def waiter(where, say, hear):
    """Locks what it is told, and says the result."""
    w = SyncSpace(where)
    say("ready")
    for words in iter(hear, ""):
        mutex = Name.of(words)
        say("waits")
        r, p = w.lock(mutex)
        assert r in (0, DEAD), r
        if r:
            repair(p)
            assert w.consistent(mutex) == 0
        assert w.unlock(mutex, p) == 0
        say(r)


def test_waiters_sleep(donor, wire):
    """While another one has the mutex, a waiter looks twice a second whether that one is alive."""
    a = SyncSpace(donor.unix)
    mutex = a.made("mutex_new", bytes(SIZE), SIZE)
    r, p = a.lock(mutex)
    assert r == 0
    process = Process(lambda say, hear: waiter(wire.address, say, hear))
    assert process.hear() == "ready"
    start = time.monotonic()
    process.say(mutex.words())
    assert process.hear() == "waits"
    time.sleep(2)
    took, messages = time.monotonic() - start, wire.messages
    assert a.unlock(mutex, p) == 0
    assert process.hear() == "0"
    # Joining and marking; and then the state, the maker, the holder.
    assert 5 <= messages <= 20 + 5 * (took / 0.5), messages
    process.kill()
    process.end()
    a.close()


# --- kills ------------------------------------------------------------------------

HALF = SIZE // 2


def repair(p):
    """The halves of the object are equal, except in a turn."""
    ctypes.memmove(p + HALF, p, HALF)


def change(p):
    value = ctypes.string_at(p, 1)[0] + 1
    ctypes.memset(p, value, SIZE)


class Shared:
    """What processes share, and the process that has made it."""

    def __init__(self, where):
        a = self.a = SyncSpace(where)
        self.words = a.made("words_new", None, 4)
        self.mutex = a.made("mutex_new", bytes(SIZE), SIZE)
        self.channel = a.made("channel_new", 3, 24)
        self.arc = a.shared(b"s" * SIZE)
        self.received = []
        self.places = a.counts.places

    def names(self):
        return [self.words, self.mutex, self.channel, self.arc.value, Name(self.arc.at, self.arc.stamp)]

    def check(self, known):
        """
        A user is dead, at any step, and the donor knows it.  Returns what has become of the mutex, and
        how many messages there are.
        """
        a = self.a
        outcome, p = a.lock(self.mutex, 0)
        assert time.monotonic() - known < DEADLINE
        assert outcome in (0, DEAD), outcome
        if outcome:
            repair(p)
            assert a.consistent(self.mutex) == 0
        content = ctypes.string_at(p, SIZE)
        assert content[:HALF] == content[HALF:] and len({*content[:HALF]}) <= (2 if outcome else 1)
        ctypes.memset(p, 0, SIZE)
        assert a.unlock(self.mutex, p) == 0
        messages = 0
        while (got := a.receive(self.channel, 0)) != -errno.EAGAIN:
            assert got in (b"first" * 4, b"second" * 4), got
            messages += 1
        assert a.send(self.channel, b"to you", 6, 0) == 0
        assert a.receive(self.channel, 0) == b"to you"
        value = a.load(self.words, 1)
        assert value in (0, 5, 6), value
        assert a.store(self.words, 1, 0) == 0
        return outcome, messages, value

    def end(self, known):
        """The dead one's reference is none any more."""
        a = self.a
        assert a.unclone(self.arc) == 0 and a.settle() == 0
        assert time.monotonic() - known < DEADLINE
        assert a.counts.places == self.places - 2
        self.arc = a.shared(b"s" * SIZE)


def user(where, say, hear, at_once):
    """Uses all of it, once."""
    u = SyncSpace(where)
    say("ready")
    words, mutex, channel, value, counts = (Name.of(hear()) for _ in range(5))
    arc = Arc(value, counts.at, counts.stamp)
    at_once()
    assert u.store(words, 1, 5) == 0
    r, p = u.lock(mutex)
    assert r == 0
    change(p)
    assert u.unlock(mutex, p) == 0
    assert u.send(channel, b"first" * 4, 20, -1) == 0
    assert u.clone(arc) == 0
    assert u.see(arc.value, SIZE) == b"s" * SIZE
    r, p = u.lock(mutex)
    assert r == 0
    change(p)
    assert u.unlock(mutex, p) == 0
    assert u.send(channel, b"second" * 4, 24, -1) == 0
    assert u.add(words, 1, 1, None) == 0
    assert u.receive(channel) == b"first" * 4
    say("done")
    hear()


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_user_is_killed_at_each_message(donor, wire, lost):
    """@lost: its last message does not arrive.  Another process waits for the mutex meanwhile."""
    shared = Shared(donor.unix)
    waiting = Process(lambda say, hear: waiter(donor.tcp, say, hear))
    assert waiting.hear() == "ready"
    waiting.say(shared.mutex.words())
    assert (waiting.hear(), waiting.hear()) == ("waits", "0")
    before, outcomes, told, message, ended = extents(donor), set(), set(), 0, False
    while not ended:
        process = Process(lambda say, hear: user(wire.address, say, hear, lambda: None))
        assert process.hear() == "ready"

        def kill(n):
            if n == message:
                process.kill()
                return not lost
            return n < message
        wire.messages, wire.at_message = 0, kill
        for name in shared.names():
            process.say(name.words())
        said = process.hear()
        assert said in ("", "done"), said
        ended = said == "done"
        waiting.say(shared.mutex.words())
        assert waiting.hear() == "waits"
        if ended:
            process.kill()
        process.end()
        wire.at_message = None
        wait_for(lambda: extents(donor) == before, 30, "extents of the dead user are left")
        known = time.monotonic()
        told.add(int(waiting.hear()))
        assert time.monotonic() - known < DEADLINE
        outcomes.add(shared.check(known))
        shared.end(known)
        message += 1
    assert message > 20
    assert told == {0, DEAD}
    # Before and after each of them.
    assert {(0, 0, 0 if lost else 5)} | {(0, 0, 5), (0, 1, 5), (0, 1, 6)} <= outcomes
    waiting.kill()
    waiting.end()
    shared.a.close()


@pytest.mark.long
def test_a_user_is_killed_at_any_time(donor):
    """One that maps the memory."""
    shared = Shared(donor.unix)
    before, outcomes = extents(donor), set()
    for _ in range(25):
        process = Process(lambda say, hear: user(donor.unix, say, hear, lambda: say("go")))
        assert process.hear() == "ready"
        for name in shared.names():
            process.say(name.words())
        assert process.hear() == "go"
        time.sleep(random.uniform(0, 0.0015))
        process.kill()
        process.end()
        wait_for(lambda: extents(donor) == before, 30, "extents of the dead user are left")
        known = time.monotonic()
        outcomes.add(shared.check(known))
        shared.end(known)
    shared.a.close()


def maker(where, say, hear):
    m = SyncSpace(where)
    for name in m.made("mutex_new", bytes(SIZE), SIZE), m.made("channel_new", 3, 24):
        say(name.words())
    hear()


def test_the_maker_is_killed(donor):
    """Calls that wait for what it has made end."""
    b, places = SyncSpace(donor.unix), [donor.unix, donor.tcp]
    before = extents(donor)
    for turn in range(4):
        process = Process(lambda say, hear: maker(places[turn % 2], say, hear))
        mutex, channel = Name.of(process.hear()), Name.of(process.hear())
        r, p = b.lock(mutex)
        assert r == 0

        def lock(say, hear):
            w = SyncSpace(places[turn // 2])
            say("ready")
            say(w.lock(mutex)[0])

        def receive(say, hear):
            w = SyncSpace(places[turn // 2])
            say("ready")
            say(w.receive(channel))
        waiting = [Process(lock), Process(receive)]
        assert [w.hear() for w in waiting] == ["ready"] * 2
        time.sleep(0.3)
        process.kill()
        process.end()
        wait_for(lambda: extents(donor) <= before + 2, 30, "extents of the dead maker are left")
        known = time.monotonic()
        # Another one, such as ebbctl, may have its number.
        assert int(waiting[0].hear()) in (-errno.ENOTRECOVERABLE, -errno.ESTALE)
        assert int(waiting[1].hear()) in (DEAD, -errno.ESTALE)
        assert time.monotonic() - known < DEADLINE
        # Its memory is perhaps as it was.
        assert b.unlock(mutex, p) in (0, -errno.ENOTRECOVERABLE, -errno.ESTALE)
        for w in waiting:
            w.end()
        wait_for(lambda: extents(donor) == before, 30, "extents of the dead are left")
    b.close()


def adder(where, say, hear):
    """Adds to a guarded counter until it is killed; says each sum."""
    a = SyncSpace(where)
    say("ready")
    mutex = Name.of(hear())
    while True:
        r, p = a.lock(mutex)
        assert r in (0, DEAD), r
        one, two = (ctypes.c_uint64.from_address(p + 8 * i) for i in range(2))
        if r:
            two.value = one.value = max(one.value, two.value)
            assert a.consistent(mutex) == 0
        assert one.value == two.value
        one.value += 1
        two.value += 1
        value = one.value
        assert a.unlock(mutex, p) == 0
        say(value)


def test_no_turn_is_lost_or_made_twice(donor):
    """Processes are killed at random while others wait for the mutex."""
    a, places = SyncSpace(donor.unix), [donor.unix, donor.tcp]
    mutex = a.made("mutex_new", bytes(16), 16)
    running, said, kills, turns = [], [], 0, 0
    # Processes that wait for the mutex of a killed one report nothing for a while.
    while turns < 20 or len(said) <= 50:
        turns += 1
        assert turns < 400, f"{len(said)} turns of the mutex"
        while len(running) < 3:
            at = places[len(running) % 2]
            running.append(Process(lambda say, hear: adder(at, say, hear)))
            assert running[-1].hear() == "ready"
            running[-1].say(mutex.words())
        process = running.pop(random.randrange(3))
        time.sleep(random.uniform(0, 0.03))
        process.kill()
        kills += 1
        said += [int(words) for words in iter(process.hear, "")]
        process.end()
    for process in running:
        process.kill()
        kills += 1
        said += [int(words) for words in iter(process.hear, "")]
        process.end()
    r, p = a.lock(mutex, 20000)
    assert r in (0, DEAD)
    total = max(struct.unpack("2Q", ctypes.string_at(p, 16)))
    # Each value was said once; a killed process may have made one more.
    assert len(set(said)) == len(said) and set(said) <= set(range(1, total + 1))
    assert total - len(said) <= kills, (total, len(said))
    a.close()


def sender(where, number, say, hear):
    a = SyncSpace(where)
    say("ready")
    channel, n = Name.of(hear()), 0
    while True:
        assert a.send(channel, struct.pack("2Q", number, n) + b"x" * 8, 24, -1) == 0
        n += 1
        say(n)


def receiver(where, say, hear):
    a = SyncSpace(where)
    say("ready")
    channel = Name.of(hear())
    while isinstance(got := a.receive(channel), bytes):
        assert len(got) == 24 and got[16:] == b"x" * 8
        say("{} {}".format(*struct.unpack("2Q", got[:16])))
    say(got)


def test_messages_are_received_once(donor):
    """Senders and receivers are killed at random."""
    a, places = SyncSpace(donor.unix), [donor.unix, donor.tcp]
    channel = a.made("channel_new", 4, 24)
    senders, receivers, sent, received, killed = {}, [], {}, [], 0

    def end(process, number=None):
        process.kill()
        said = list(iter(process.hear, ""))
        process.end()
        if number is None:
            received.extend(words for words in said if " " in words)
        else:
            sent[number] = int(said[-1]) if said else 0

    def start(function):
        process = Process(function)
        assert process.hear() == "ready"
        process.say(channel.words())
        return process

    for turn in range(16):
        while len(senders) < 2:
            at, number = places[turn % 2], turn * 10 + len(senders)
            senders[number] = start(lambda say, hear: sender(at, number, say, hear))
        while len(receivers) < 2:
            at = places[(turn + len(receivers)) % 2]
            receivers.append(start(lambda say, hear: receiver(at, say, hear)))
        time.sleep(random.uniform(0, 0.05))
        if turn % 2:
            number = random.choice(list(senders))
            end(senders.pop(number), number)
        else:
            end(receivers.pop(random.randrange(2)))
            killed += 1
    for number, process in senders.items():
        end(process, number)
    # All senders are dead: receivers take what is there, and end.
    for process in receivers:
        said = []
        while not said or said[-1] != str(-errno.ECONNRESET):
            said.append(process.hear())
            assert said[-1], "a receiver has ended"
        received += said[:-1]
        process.end()
    got = [tuple(map(int, words.split())) for words in received]
    assert len(set(got)) == len(got)
    lost = 0
    for number, n in sent.items():
        of_it = {i for sender_, i in got if sender_ == number}
        # A sender may have sent one more, of which it did not hear.
        assert of_it <= set(range(n + 1))
        lost += len(set(range(n)) - of_it)
    assert lost <= killed, (lost, killed)
    assert len(got) > 20
    a.close()
