# SPDX-License-Identifier: GPL-2.0-or-later
"""
Seals: what donors and disks hold, and donors that return other content than was
written there.
"""
import os
import random
import socket
import struct

import pytest

from dataplane import MIB, PAGE, SLAB, only_shm, only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import never, wait_for
from rows import few
from test_protocol import (HELLO, MAP, PING, READ, TOLD, UNMAP, VERSION, WRITE, FakeDonor,
                           frame, receive, refusal)

pytestmark = pytest.mark.beside

SLAB_PAGES = SLAB // PAGE


class EvilDonor(FakeDonor):
    """Keeps every version of every page; evil(self, slab, page) is what it returns."""

    def __init__(self, evil=None):
        self.evil = evil or EvilDonor.honest
        self.versions, self.greetings, self.mapped = {}, 0, 0
        super().__init__(None)

    def honest(self, slab, page):
        return self.versions[slab, page][-1]

    def hang_up(self):
        self.socket.shutdown(socket.SHUT_RDWR)

    def serve(self, s):
        self.socket = s
        info = TOLD.pack(VERSION, 0, SLAB, 64 * MIB, 64 * MIB, 0, 0, 0, 0)
        while True:
            h = struct.unpack("<4sBBHQIIII", receive(s, 32))
            op, tag, slab, generation, offset, length = h[1], *h[4:9]
            pages = [(slab, offset // PAGE + i) for i in range(length // PAGE)]
            reply = frame(op, tag, slab, generation, offset, length, direction=1)
            if op in (HELLO, PING):
                refused = refusal(op, tag, receive(s, length))
                self.greetings += op == HELLO and not refused
                s.sendall(refused or frame(op, tag, direction=1, length=TOLD.size) + info)
            elif op == MAP:
                receive(s, length)
                self.mapped += 1
                s.sendall(frame(op, tag, slab=self.mapped, generation=1, direction=1))
            elif op == UNMAP:
                s.sendall(reply)
            elif op == WRITE:
                for where in pages:
                    self.versions.setdefault(where, []).append(receive(s, PAGE))
                s.sendall(reply)
            elif op == READ:
                s.sendall(reply + b"".join(self.evil(self, *where) for where in pages))


def flip(donor, slab, page):
    data = bytearray(donor.versions[slab, page][-1])
    data[random.randrange(PAGE)] ^= 1 << random.randrange(8)
    return bytes(data)


def swap_two(donor, slab, page):
    return donor.versions[slab, page ^ 1][-1]


def replay(donor, slab, page):
    return donor.versions[slab, page][0]


def zeroes(donor, slab, page):
    return bytes(PAGE)


def other_slab(donor, slab, page):
    return donor.versions[3 - slab, page][-1]


EVIL = [flip, swap_two, replay, zeroes, other_slab]


@pytest.fixture
def evil_donor():
    made = []

    def make(evil=None):
        made.append(EvilDonor(evil))
        return made[-1]

    yield make
    for d in made:
        d.stop()


def write_twice(p):
    """Two versions of eight pages in each of two slabs."""
    for _ in range(2):
        p.write(0, os.urandom(8 * PAGE))
        p.write(SLAB_PAGES, os.urandom(8 * PAGE))


@only_tcp
def test_what_a_donor_holds_tells_nothing(world, evil_donor):
    fake = evil_donor()
    s = world.serve(fake)
    p = world.open(s)
    secret = b"the password is swordfish. " * 152
    data = secret[:PAGE] * 8
    p.write(0, data)
    p.write(0, data)
    held = [v for versions in fake.versions.values() for v in versions]
    assert len(held) == 16
    assert all(b"sword" not in page for page in held)
    # The same content is another ciphertext, in another place and at another time.
    assert len(set(held)) == 16
    with open(s.backup, "rb") as f:
        assert b"sword" not in f.read(MIB)
        assert os.fstat(f.fileno()).st_mode & 0o777 == 0o600
    assert p.read(0, 8) == data
    assert s.status()["sealed"] is True


@only_tcp
@pytest.mark.parametrize("evil", few(EVIL, flip, replay), ids=lambda e: e.__name__)
def test_what_was_not_written_is_not_read(world, evil_donor, evil):
    """The page comes from the backup, the donor is quarantined until it is trusted again."""
    fake = evil_donor(evil)
    s = world.serve(fake)
    p = world.open(s)
    write_twice(p)
    assert p.read(0, 8) == p.model[:8 * PAGE]
    wait_for(lambda: s.donor_state() == "quarantined", 5, "the donor is quarantined")
    p.check()
    told = s.stats()
    assert told["pages_bad_donor"] >= 1
    assert told["pages_read_failed"] == told["pages_bad_backup"] == 0
    status = s.status()["donors"][0]
    assert status["bad_pages"] >= 1 and "not written there" in status["last_loss"]
    wait_for(lambda: "quarantined" in s.log.read_text(), 5, "a line of it")
    # The donor gets no more pages and no connection.
    before = fake.greetings, fake.mapped
    p.write(2 * SLAB_PAGES, os.urandom(8 * PAGE))
    assert not s.ask("donors.set", donors=[fake.address]).get("error")
    never(lambda: (fake.greetings, fake.mapped) != before, 2, "the donor is used")
    fake.evil = EvilDonor.honest
    assert s.ask("donor.trust", donor=fake.address)["ok"]
    wait_for(lambda: s.donor_state() == "up", 5, "the donor is trusted")
    p.write(0, os.urandom(8 * PAGE))
    p.check()


@only_tcp
@pytest.mark.parametrize("evil", few([flip, replay], replay), ids=lambda e: e.__name__)
def test_another_copy_has_the_page(world, evil_donor, evil):
    # The others are slow, so that it is asked first.
    fake, honest, third = evil_donor(), world.donor(delay="2ms"), world.donor(delay="2ms")
    s = world.serve(fake, honest, third, backup="", options=["--durability", "replicas=2"])
    p = world.open(s)
    for _ in range(2):
        p.write_random(100)
    # On a busy machine a slab has had one replica at first: the liar must not have the only one.
    wait_for(lambda: fake.mapped > 0 and s.status()["copies"]["missing"] == 0, 20, "two copies")
    fake.evil = evil
    # On a busy machine it may be the slower one for a while.
    for _ in range(200):
        p.check()
        if s.stats()["pages_bad_donor"]:
            break
    p.check()
    told = s.stats()
    assert told["pages_bad_donor"] >= 1
    assert told["pages_read_failed"] == 0
    # Its pages have migrated to the honest donor.
    wait_for(lambda: s.donor_state(0) == "quarantined", 20, "the liar is empty")
    wait_for(lambda: s.status()["copies"]["missing"] == 0, 20, "two copies of everything")
    p.check()
    assert s.stats()["pages_read_failed"] == 0
    # Copies were checked before they were made: no other donor has a wrong page.
    assert [d["bad_pages"] for d in s.status()["donors"][1:]] == [0, 0]


@only_tcp
def test_one_bad_page_of_a_lone_donor_costs_one_page(world, evil_donor):
    fake = evil_donor(lambda d, slab, page: flip(d, slab, page) if page == 3 else d.honest(slab, page))
    s = world.serve(fake, backup="", size="8M", options=["--durability", "none"])
    p = world.open(s)
    p.write(0, os.urandom(8 * PAGE))
    with pytest.raises(OSError):
        p.read(0, 8)
    assert p.read(0, 3) == p.model[:3 * PAGE]
    assert p.read(4, 4) == p.model[4 * PAGE:8 * PAGE]
    with pytest.raises(OSError):
        p.read(3, 1)
    status = s.status()["donors"][0]
    assert status["state"] == "up" and status["leaving"] == "quarantined"
    p.write(3, os.urandom(PAGE))


@only_tcp
def test_a_suspect_that_hangs_up_is_not_called_again(world, evil_donor):
    fake = evil_donor(flip)
    s = world.serve(fake, backup="", size="8M", options=["--durability", "none"])
    p = world.open(s)
    p.write(0, os.urandom(8 * PAGE))
    with pytest.raises(OSError):
        p.read(0, 8)
    wait_for(lambda: s.status()["donors"][0].get("leaving") == "quarantined", 5, "it is a suspect")
    fake.hang_up()
    wait_for(lambda: s.donor_state() == "quarantined", 5, "quarantined")
    never(lambda: fake.greetings > 1, 2, "the donor is used")


@only_tcp
def test_a_backup_that_was_changed_is_an_error_and_no_content(world, evil_donor):
    fake = evil_donor(zeroes)
    s = world.serve(fake)
    p = world.open(s)
    p.write(0, os.urandom(8 * PAGE))
    wait_for(lambda: s.stats()["backup_queue"] == 0, 5, "the backup has it")
    fd = os.open(s.backup, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, 2 * PAGE + 77)
        os.pwrite(fd, bytes([byte[0] ^ 4]), 2 * PAGE + 77)
        os.fsync(fd)
    finally:
        os.close(fd)
    assert p.read(0, 2) == p.model[:2 * PAGE]
    with pytest.raises(OSError):
        p.read(2, 1)
    assert s.stats()["pages_bad_backup"] == 1
    assert p.read(3, 5) == p.model[3 * PAGE:8 * PAGE]


@pytest.mark.parametrize("seal", ["auto", "on", "off"])
def test_with_and_without_seals(world, seal):
    """auto: not among processes of one machine."""
    s = world.serve(world.donor(), options=["--seal", seal])
    p = world.open(s)
    p.write_random(200)
    p.check()
    p.write_random(100, most=1)
    p.check()
    assert s.status()["sealed"] is (seal == "on" or (seal == "auto" and not world.shm))
    assert s.stats()["pages_bad_donor"] == 0


@only_shm
def test_an_unsealed_device_stays_on_its_machine(world, evil_donor):
    donor, fake = world.donor(), evil_donor()
    s = world.serve(donor)
    told = s.ask("donors.set", donors=[donor.address, fake.address])
    assert "--seal on" in told["error"]
    assert fake.greetings == 0
