# SPDX-License-Identifier: GPL-2.0-or-later
"""
Both sides by their sockets: unauthenticated peers and invalid frames at the donor, its loans,
and a donor that lies to its borrower.
"""
import mmap
import os
import random
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import machine
from dataplane import MIB, PAGE, SLAB, only_shm, only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import BIN, wait_for
from ports import free_port
from protocol import (ACTIVITY, EVICT, HELLO, JOIN, KEEP, MAP, PING, READ, TOLD, UNMAP, VERSION, WRITE,
                      closed, connect, frame, hello, receive, refusal, reply)
from rows import few

pytestmark = pytest.mark.beside


# --- strangers and bad frames at the donor ---------------------------------------------

MALFORMED = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "magic": frame(PING, magic=b"EBB2"),
    "opcode": frame(99),
    "direction": frame(PING, direction=1),
    "status": frame(PING, status=1),
    "oversized": frame(WRITE, length=2 * MIB),
    "huge": frame(WRITE, length=0xfffff000),
    "unaligned": frame(READ, length=100),
    "hello length": frame(HELLO, length=4000),
    "map length": frame(MAP, length=0),
    "activity asked of the donor": frame(ACTIVITY, length=8) + bytes(8),
    "an answer to nothing": frame(EVICT, direction=1),
    "join length": frame(JOIN, length=8),
}


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("handshake", [False, True])
def test_malformed_frames_close_the_connection(donor_at, kind, handshake):
    donor = donor_at()
    with connect(donor) as s:
        if handshake:
            s.sendall(hello())
            assert reply(s)["status"] == 0
        s.sendall(MALFORMED[kind])
        assert closed(s)
    wait_for(lambda: "malformed frame" in machine.read(donor.log), 5, "log line")
    with connect(donor) as s:
        s.sendall(hello())
        assert reply(s)["status"] == 0, "others are served"


def test_requests_are_checked(donor_at):
    donor = donor_at(memory="2M")
    with connect(donor) as s:
        s.sendall(hello(version=9, flags=64))
        assert reply(s)["status"] == 1
        s.sendall(hello(slab=1 << 40))
        assert reply(s)["status"] == 2
        s.sendall(hello())
        told = reply(s)
        version, flags, slab, total, free, memory, used, session, identity = TOLD.unpack(told["payload"])
        assert (version, flags, slab, total, free) == (VERSION, 0, MIB, 2 * MIB, 2 * MIB)
        assert used <= memory and session == 0 and identity != 0
        s.sendall(hello())
        assert reply(s)["status"] == 3
        s.sendall(frame(MAP, length=8) + struct.pack("<II", 1, 0))
        assert reply(s)["status"] == 4, "heap slabs are not served"
        s.sendall(frame(READ, slab=0, length=PAGE))
        assert reply(s)["status"] == 6, "not mapped"
        s.sendall(frame(MAP, tag=5, length=8) + bytes(8))
        mine = reply(s)
        assert (mine["status"], mine["tag"]) == (0, 5)
        where = {"slab": mine["slab"], "generation": mine["generation"]}
        s.sendall(frame(WRITE, **where, offset=SLAB - PAGE, length=PAGE) + b"w" * PAGE)
        assert reply(s)["status"] == 0
        s.sendall(frame(READ, **where, offset=SLAB - PAGE, length=PAGE))
        assert reply(s)["payload"] == b"w" * PAGE
        s.sendall(frame(WRITE, **where, offset=SLAB - PAGE, length=2 * PAGE) + b"x" * 2 * PAGE)
        assert reply(s)["status"] == 8, "beyond the end; its payload is skipped"
        stale = {**where, "generation": where["generation"] ^ 1}
        s.sendall(frame(READ, **stale, length=PAGE))
        assert reply(s)["status"] == 7
        # Another connection cannot reach it.
        with connect(donor) as other:
            other.sendall(hello(borrower=2))
            reply(other)
            other.sendall(frame(READ, **where, offset=SLAB - PAGE, length=PAGE))
            assert reply(other)["status"] == 6
            other.sendall(frame(MAP, length=8) + bytes(8))
            assert reply(other)["status"] == 0
            other.sendall(frame(MAP, length=8) + bytes(8))
            assert reply(other)["status"] == 5, "nothing left"
    wait_for(lambda: "it speaks version 9 of the protocol, and this donor 3 to 4" in machine.read(donor.log), 5,
             "log line")


@pytest.mark.parametrize("version", [3, 4])
def test_replies_in_the_version_of_the_hello(donor_at, version):
    """Also to one that follows a refused HELLO; from version 4 on with the session grace period."""
    donor = donor_at(options=["--keep", "7s"])
    with connect(donor) as s:
        s.sendall(hello(version=5))
        assert reply(s)["status"] == 1
        for ask in (hello(version=version, flags=KEEP), frame(PING)):
            s.sendall(ask)
            payload = reply(s)["payload"]
            assert TOLD.unpack_from(payload)[0] == version
            assert payload[TOLD.size:] == (struct.pack("<II", 7000, 0) if version > 3 else b"")


def test_join_without_a_session_is_refused(donor_at):
    donor = donor_at(memory="2M")
    with connect(donor) as s:
        s.sendall(frame(JOIN, length=48) + bytes(48))
        assert reply(s)["status"] == 10
        s.sendall(hello())
        assert reply(s)["status"] == 0


def test_memory_is_zeroed_between_borrowers(donor_at):
    donor = donor_at(memory="1M")
    for borrower in (1, 2):
        with connect(donor) as s:
            s.sendall(hello(borrower=borrower))
            reply(s)
            wait_for(lambda: s.sendall(frame(MAP, length=8) + bytes(8)) or not
                     (last := reply(s))["status"] and [last], 5, "a slab")
            s.sendall(frame(PING))
            assert TOLD.unpack(reply(s)["payload"])[4] == 0
            # Generations are given in order, so the last one is what the log calls.
            s.sendall(frame(UNMAP, slab=0, generation=0))
            assert reply(s)["status"] == 7
    with connect(donor) as s:
        s.sendall(hello(borrower=3))
        reply(s)
        def take():
            s.sendall(frame(MAP, length=8) + bytes(8))
            r = reply(s)
            return r if not r["status"] else None
        mine = wait_for(take, 5, "a slab")
        where = {"slab": mine["slab"], "generation": mine["generation"]}
        s.sendall(frame(WRITE, **where, length=MIB) + b"s" * MIB)
        assert reply(s)["status"] == 0
        s.sendall(frame(UNMAP, **where))
        assert reply(s)["status"] == 0
        again = wait_for(take, 5, "a slab")
        assert again["generation"] != mine["generation"]
        s.sendall(frame(READ, slab=again["slab"], generation=again["generation"], length=MIB))
        assert reply(s)["payload"] == bytes(MIB)
        s.sendall(frame(READ, **where, length=PAGE))
        assert reply(s)["status"] == 7, "the old loan is void"


def test_a_new_connection_fences_the_old(donor_at):
    donor = donor_at()
    with connect(donor) as old, connect(donor) as new:
        old.sendall(hello(borrower=77))
        assert reply(old)["status"] == 0
        new.sendall(hello(borrower=77))
        assert reply(new)["status"] == 0
        assert closed(old)


def test_random_bytes_do_not_harm_the_donor(donor_at):
    donor = donor_at()
    rnd = random.Random(11)
    for _ in range(200):
        with connect(donor) as s:
            s.sendall(hello())
            reply(s)
            junk = bytearray(frame(rnd.randint(0, 8), tag=rnd.getrandbits(64), slab=rnd.randint(0, 3),
                                   offset=rnd.choice((0, PAGE, 1)), length=rnd.choice((0, PAGE, 8, MIB))))
            for _ in range(rnd.randint(0, 6)):
                junk[rnd.randrange(len(junk))] = rnd.getrandbits(8)
            try:
                s.sendall(bytes(junk) + rnd.randbytes(rnd.randint(0, 6000)))
            except OSError:
                pass
    assert donor.alive()
    with connect(donor) as s:
        s.sendall(hello())
        assert reply(s)["status"] == 0


def donord(*argv):
    return subprocess.run([BIN / "ebb-donord", *argv], text=True, capture_output=True, timeout=120)


@only_shm
def test_what_was_handed_over_is_not_lent_again(donor_at):
    """A borrower that keeps its mapping can neither see nor reach the next one's pages."""
    donor = donor_at(memory="1M")

    def borrow(s, borrower):
        s.sendall(hello(borrower=borrower))
        assert reply(s)["status"] == 0

        def take():
            s.sendall(frame(MAP, length=8) + bytes(8))
            head, fds, _, _ = socket.recv_fds(s, 32, 4)
            status = struct.unpack_from("<H", head, 6)[0]
            assert len(fds) == (status == 0)
            return fds or None
        fd, = wait_for(take, 5, "a slab")
        try:
            with pytest.raises(OSError):
                os.ftruncate(fd, PAGE)
            return mmap.mmap(fd, MIB)
        finally:
            os.close(fd)

    with connect(donor) as s:
        kept = borrow(s, 1)
        assert kept[:] == bytes(MIB)
        kept[:] = b"1" * MIB
    with connect(donor) as s, borrow(s, 2) as mine, kept:
        assert mine[:] == bytes(MIB)
        kept[:] = b"x" * MIB
        assert mine[:] == bytes(MIB)
        mine[:] = b"2" * MIB
        assert kept[:] == b"x" * MIB


@only_shm
def test_donor_is_for_its_own_user(donor_at):
    donor = donor_at()
    os.chmod(donor.address.removeprefix("unix:"), 0o666)
    os.chmod(Path(donor.address.removeprefix("unix:")).parent, 0o755)
    stranger = subprocess.run(
        ["/usr/bin/python3", "-c", "import os, socket, sys; s = socket.socket(socket.AF_UNIX); "
         "os.chdir(sys.argv[1]); os.setuid(65534); s.connect('./' + sys.argv[2]); "
         "print(s.recv(1))", *os.path.split(donor.address.removeprefix("unix:"))],
        text=True, capture_output=True, timeout=120)
    assert stranger.stdout == "b''\n", stranger
    wait_for(lambda: "its own user only" in machine.read(donor.log), 5, "log line")


def test_one_donor_two_transports(donor_factory, server, pages, tmp_path):
    """Both kinds of borrower at one donor, whose memory is then shared memory for both."""
    donor = donor_factory(slab="1M", memory="48M", path=tmp_path / "donor.sock",
                          also=[f"127.0.0.1:{free_port()}"])
    s = server(donor.also[0])
    p = pages(s)
    p.write_random(100)
    p.check()
    assert s.status()["donors"][0]["transport"] == "tcp"
    with connect(donor) as other:
        other.sendall(hello(borrower=5))
        assert reply(other)["status"] == 0


@only_shm
def test_shared_pages_are_locked_on_both_sides(world):
    """Shared memory can be swapped out but for a lock; the borrower's outlives the donor's."""
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    p.write(0, os.urandom(3 * MIB))

    def slabs(pid):
        """Locked KiB and all KiB of each mapped slab."""
        out, name = [], ""
        for line in machine.read(f"/proc/{pid}/smaps").splitlines():
            key, _, rest = line.partition(":")
            if "-" in line.split()[0] and ":" not in line.split()[0]:
                name = line
            elif "ebb-slab" in name and key in ("Size", "Rss", "Locked"):
                out.append((key, int(rest.split()[0])))
        return out
    server = s.server
    for pid, count in ((server, 3), (donor.pid, 48)):
        told = slabs(pid)
        assert [v for k, v in told if k == "Size"] == [1024] * count
        assert [v for k, v in told if k == "Rss"] == [1024] * count
        assert all(v for k, v in told if k == "Locked")
    mapped = len(slabs(server))
    donor.kill()
    wait_for(lambda: s.donor_state() != "up", 5, "loss")
    assert mapped
    wait_for(lambda: not slabs(server), 5, "a lost donor's memory is let go")
    p.check()


def test_donor_refuses(donor_at, tmp_path):
    done = donord("--listen", "0.0.0.0:7070", "--memory", "64M")
    assert done.returncode == 5 and "authentication required" in done.stderr
    done = donord("--memory", "12Q")
    assert done.returncode == 2 and "12Q" in done.stderr
    done = donord()
    assert done.returncode == 2 and "--memory 4G" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "64M", "--slab", "64K")
    assert done.returncode == 2 and "1M to 1G" in done.stderr
    for slab in ("0", "3M", "2G"):
        done = donord("--listen", "127.0.0.1:0", "--memory", "64M", "--slab", slab)
        assert done.returncode == 2 and "no power of two from 1M to 1G; use" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "64M", "--quota", "1M")
    assert done.returncode == 2 and "quota: 1.0 MiB" in done.stderr and "raise it" in done.stderr
    for where, most in ("127.0.0.1:0", "available"), (f"unix:{tmp_path}/s", "in all"):
        done = donord("--listen", where, "--memory", "1000T")
        assert done.returncode == 5 and most in done.stderr and "lend less" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "1M", "--slab", "2M")
    assert done.returncode == 2 and "not even one slab" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "64M", "--slab", "2M", "--far", "32M")
    assert done.returncode == 2 and "slab: 2.0 MiB are too small for far memory" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "64M", "--slab", "4M", "--far", "2M")
    assert done.returncode == 2 and "far: 2.0 MiB are less than a slab of 4.0 MiB" in done.stderr
    taken = donor_at()
    done = donord("--listen", taken.address, "--memory", "2M", "--slab", "1M")
    assert done.returncode == 1 and "stop the program that listens there" in done.stderr


# --- strangers at the borrower ----------------------------------------------------------


class FakeDonor(threading.Thread):
    """Answers HELLO and MAP properly and READ as @mutate says."""

    def __init__(self, mutate):
        super().__init__(daemon=True)
        self.mutate, self.memory, self.free, self.borrowers = mutate, {}, 64 * MIB, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            with s:
                try:
                    self.serve(s)
                except (EOFError, OSError):
                    pass

    def told(self):
        return TOLD.pack(VERSION, 0, SLAB, 64 * MIB, self.free, 0, 0, 0, 0)

    def serve(self, s):
        while True:
            h = struct.unpack("<4sBBHQIIII", receive(s, 32))
            op, tag, slab, generation, offset, length = h[1], *h[4:9]
            if op in (HELLO, PING):
                payload = receive(s, length)
                refused = refusal(op, tag, payload)
                if op == HELLO and not refused:
                    self.borrowers.append(struct.unpack_from("<Q", payload, 8)[0])
                s.sendall(refused or frame(op, tag, direction=1, length=TOLD.size) + self.told())
            elif op == MAP:
                receive(s, length)
                s.sendall(frame(op, tag, slab=tag & 0xffff, generation=1, direction=1,
                                status=self.map_status()))
            elif op == WRITE:
                for at in range(offset, offset + length, PAGE):
                    self.memory[slab, at] = receive(s, PAGE)
                s.sendall(frame(op, tag, slab, generation, offset, length, direction=1))
            elif op == READ:
                data = b"".join(self.memory[slab, at] for at in range(offset, offset + length, PAGE))
                s.sendall(self.mutate(frame(op, tag, slab, generation, offset, length, direction=1), data))
            else:
                self.other(op)
                s.sendall(frame(op, tag, slab, generation, direction=1))

    def map_status(self):
        return 0

    def other(self, op):
        """UNMAP, REMAP, RELEASE, BYE."""

    def stop(self):
        self.listener.close()


@only_tcp
def test_a_donor_that_is_slow_is_not_silent(world):
    """What is asked last waits for all before it, for longer than the deadline."""
    fake = FakeDonor(lambda header, data: time.sleep(0.1) or header + data)
    try:
        s = world.serve(fake, options=["--deadline", "600ms"])
        p = world.open(s)
        # On a busy machine it may be silent for that long, indeed.
        for _ in range(8):
            wait_for(lambda: s.donor_state() == "up", 15, "the donor")
            before = s.stats()
            for i in range(8):
                p.write(i, os.urandom(PAGE))
            with ThreadPoolExecutor(8) as readers:
                started = time.monotonic()
                assert b"".join(readers.map(lambda i: p.read(i, 1), range(8))) == p.model[:8 * PAGE]
            took, told = time.monotonic() - started, s.stats()
            lost = [told[k] - before[k] for k in ("donor_losses", "pages_read_backup")]
            if took > 0.7 and lost == [0, 0]:
                break
        assert took > 0.7 and lost == [0, 0]
    finally:
        fake.stop()


@pytest.fixture
def fakes():
    """Two donors that keep the protocol."""
    made = [FakeDonor(lambda header, data: header + data) for _ in range(2)]
    yield made
    for fake in made:
        fake.stop()


@only_tcp
def test_donors_see_unrelated_numbers_of_a_borrower(world, fakes):
    world.serve(*fakes)
    (one,), (other,) = (fake.borrowers for fake in fakes)
    assert abs(one - other) > 1 << 32, "a neighbour's number would be a guess"


@only_tcp
def test_a_donor_cannot_end_a_session_at_another(world, fakes):
    """It says HELLO there with its own number and all near it."""
    donor = world.donor()
    s = world.serve(fakes[0], donor, durability="replicas=2")
    p = world.open(s)
    p.write_random(20)
    number, = fakes[0].borrowers
    for near in range(number - 8, number + 9):
        with connect(donor) as c:
            c.sendall(hello(borrower=near % (1 << 64), name=b"thief", flags=KEEP))
            assert reply(c)["status"] == 0
    assert [b["name"] for b in donor.ask()["borrowers"] if b["slabs"]] == ["dp0"]
    p.check()
    told = s.stats()
    assert told["donor_losses"] == 0 and told["pages_read_failed"] == 0


BAD_REPLIES = {
    "magic": lambda h, d: b"XXXX" + h[4:] + d,
    "length": lambda h, d: h[:28] + struct.pack("<I", 2 * MIB) + d,
    "status": lambda h, d: h[:6] + struct.pack("<H", 7) + h[8:],
    "unknown status": lambda h, d: h[:6] + struct.pack("<H", 700) + h[8:],
    "as a request": lambda h, d: h[:5] + b"\0" + h[6:] + d,
    "another tag, then nothing": lambda h, d: h[:8] + bytes([h[8] ^ 1]) + h[9:] + d,
    "another generation": lambda h, d: h[:20] + b"\xff" + h[21:] + d,
    "a longer payload": lambda h, d: h[:28] + struct.pack("<I", len(d) + PAGE) + d + bytes(PAGE),
    "hang up in the middle": lambda h, d: h + d[:100],
}


@only_tcp
@pytest.mark.parametrize("kind", few(BAD_REPLIES, "magic", "another tag, then nothing", "hang up in the middle"))
def test_a_donor_that_lies_is_lost_and_nobody_notices(world, kind):
    fake = FakeDonor(BAD_REPLIES[kind])
    try:
        # It may be slow, as it is Python on a busy machine; of one kind the deadline is waited for.
        s = world.serve(fake, options=["--deadline", "1s"])
        p = world.open(s)
        p.write(0, os.urandom(8 * PAGE))
        assert p.read(0, 8) == p.model[:8 * PAGE]
        told = s.stats()
        assert told["donor_losses"] >= 1
        assert told["pages_read_backup"] == 8
    finally:
        fake.stop()
