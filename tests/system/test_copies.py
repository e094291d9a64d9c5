# SPDX-License-Identifier: GPL-2.0-or-later
"""
Copies of slabs: replicas, moves, what returns from the disk and what goes back to donors.
No swap is on here, so donors may be killed.
"""
import contextlib
import os
import re
import signal
import threading
import time

import pytest

import machine
from dataplane import MIB, PAGE, SLAB, Pages, Server, only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import wait_for
from parts import noted
from ports import free_port
from protocol import Borrower
from rows import few
from test_dataplane import hammer_all, refused
from test_donor import simulated, wait_slabs    # the first is a fixture

pytestmark = pytest.mark.beside

SLAB_PAGES = SLAB // PAGE
NO_SPACE = 5


def whole(s):
    """Every slab has its copies, complete, and nothing is on its way."""
    copies = s.status()["copies"]
    return not copies["missing"] and not copies["filling"] and not copies["leaving"]


def tmp_path_of(tmp_path, name):
    """A directory for another server beside the fixture's."""
    (tmp_path / name).mkdir()
    return tmp_path / name


@contextlib.contextmanager
def pages_of(s):
    p = Pages(s)
    try:
        yield p
    finally:
        p.close()


def slabs_at(s, donor):
    return next(d["slabs"] for d in s.status()["donors"] if d["address"] == donor.address)


def test_a_write_is_at_every_copy(world):
    a, b, c = world.donor(), world.donor(), world.donor()
    s = world.serve(a, b, c, durability="replicas=3")
    p = world.open(s)
    p.write_random(100)
    wait_for(lambda: whole(s), 5, "copies")
    assert s.stats()["pages_repaired"] == 0, "they were made by the writes"
    for slab in s.slabs().values():
        assert len({k["donor"] for k in slab["copies"]}) == 3
        assert {k["pages"] for k in slab["copies"]} == {slab["live"]}
    # Any two may go.
    b.kill()
    p.check()
    a.kill()
    p.check()
    p.write_random(50)
    p.check()
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


def test_replicas_come_back_to_their_number(world):
    donors = [world.donor() for _ in range(3)]
    s = world.serve(*donors, durability="replicas=2", options=["--repair-delay", "2s"])
    p = world.open(s)
    p.write_random(200)
    # Memory use, by which they were chosen, is the same machine's for all.
    donors.sort(key=lambda d: -slabs_at(s, d))
    donors[0].kill()
    p.check()
    wait_for(lambda: whole(s), 20, "copies")
    assert s.stats()["pages_repaired"] > 0
    # Now the copies that were made must do.
    donors[1].kill()
    p.check()
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0
    # One donor is left: served, and said to be in need of another.
    p.write_random(20)
    p.check()
    assert s.status()["copies"]["missing"] > 0


@only_tcp
def test_copies_on_one_machine(world, tmp_path):
    """Of two donors on one machine one has a copy, as long as there is another machine."""
    def on(boot):
        proc = tmp_path / f"machine-{boot}"
        (proc / "sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (proc / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
        (proc / "meminfo").write_text("MemTotal: 1048576 kB\nMemAvailable: 1048576 kB\n")
        return world.donor(options=["--machine", proc])
    a, also_a, b = on("a"), on("a"), on("b")
    s = world.serve(a, also_a, b, durability="replicas=2", options=["--repair-delay", "2s"])
    said = lambda server: "on 1 machine: replicas=2 survives" in server.log.read_text()
    assert not said(s)
    p = world.open(s)
    p.write(0, os.urandom(p.size))
    where = [{c["donor"] for c in slab["copies"]} for slab in s.slabs().values()]
    assert len(where) == 32 and all(len(w) == 2 and b.address in w for w in where)
    s.do("donor.drain", donor=a.address)
    wait_for(lambda: slabs_at(s, a) == 0 and whole(s), 20, "its slabs are elsewhere")
    assert slabs_at(s, also_a) == slabs_at(s, b) == 32
    # Better one machine than one copy.
    s.do("donor.undrain", donor=a.address)
    b.kill()
    wait_for(lambda: slabs_at(s, a) == slabs_at(s, also_a) == 32, 20, "copies at those that are left")
    p.check()
    p.close()
    s.stop()
    s = world.serve(a, also_a, durability="replicas=2")
    s.stop()
    assert said(s)


def test_replicas_under_load(world):
    """Killed and back, one after the other, with time to copy between."""
    places = [world.new_place() for _ in range(3)]
    donors = [world.donor(**at) for at in places]
    s = world.serve(*donors, durability="replicas=2", size="16M", options=["--repair-delay", "2s"])
    p = world.open(s)

    def rounds():
        for i in range(3):
            donors[i].kill()
            wait_for(lambda: whole(s), 30, "copies")
            donors[i] = world.donor(**places[i])
            wait_for(lambda: s.donor_state(i) == "up", 15, "reconnect")

    hammer_all(p, 2, meanwhile=rounds)
    told = s.stats()
    assert told["donor_losses"] == 3
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


def test_without_durability_a_lost_donor_is_an_error_never_an_old_page(world):
    at = world.new_place()
    donor = world.donor(**at)
    s = world.serve(donor, durability="none", options=["--away-timeout", "2s"])
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    donor.kill()
    wait_for(lambda: s.donor_state() != "up", 5, "loss")
    with pytest.raises(OSError):
        p.read(3, 1)
    with pytest.raises(OSError):
        p.write(3, os.urandom(PAGE))
    assert p.read(300, 1) == bytes(PAGE)
    world.donor(**at)
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    with pytest.raises(OSError):
        p.read(3, 1)
    p.write(3, os.urandom(PAGE))
    assert p.read(3, 1) == p.model[3 * PAGE:4 * PAGE]


@only_tcp
def test_a_donor_that_is_back_gets_what_it_missed(world):
    a, b = world.donor(), world.donor()
    s = world.serve(a, b, durability="replicas=2", options=["--deadline", "1s"])
    p = world.open(s)
    p.write(0, os.urandom(p.size))
    wait_for(lambda: whole(s), 20, "two replicas")
    before = s.stats()["pages_repaired"]
    a.signal(signal.SIGSTOP)
    try:
        wait_for(lambda: s.donor_state(0) == "away", 15, "absence")
        p.write(7, os.urandom(16 * PAGE))
    finally:
        a.signal(signal.SIGCONT)
    wait_for(lambda: s.donor_state(0) == "up" and s.status()["slabs"]["away"] == 0 and whole(s), 20, "return")
    told = s.stats()
    # Writes that waited for it when it went away may be among them.
    assert 16 <= told["pages_repaired"] - before <= 64
    assert told["donor_losses"] == 0
    p.check()
    # What it has is the newest content.
    b.kill()
    p.check()


def test_pages_return_from_the_disk(world):
    at = world.new_place()
    first = world.donor(**at)
    s = world.serve(first)
    p = world.open(s)
    p.write_random(200)
    first.kill()
    p.check()
    assert s.stats()["pages_read_backup"] > 0
    world.donor(**at)
    wait_for(lambda: s.donor_state() == "up" and whole(s), 20, "return")
    before = s.stats()["pages_read_backup"]
    p.check()
    assert s.stats()["pages_read_backup"] == before, "all of it is in memory again"


@only_tcp
def test_copying_is_held_to_its_rate(world):
    at = world.new_place()
    first = world.donor(**at)
    s = world.serve(first, options=["--repair-rate", "4M"])
    p = world.open(s)
    p.write(0, os.urandom(16 * MIB))
    first.kill()
    start = time.monotonic()
    world.donor(**at)
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")

    def returned():
        """However late we look, it began after a look that saw none of it."""
        nonlocal start
        now = time.monotonic()
        if not s.stats()["pages_repaired"]:
            start = now
        return whole(s)
    wait_for(returned, 15, "return")
    assert time.monotonic() - start > 2.5
    assert s.stats()["pages_repaired"] == 16 * MIB // PAGE
    p.check()


def test_a_slab_moves_while_it_is_used(world):
    a, b = world.donor(), world.donor()
    s = world.serve(a, durability="none", size="16M")
    p = world.open(s)
    # All of them are there to move, whatever the load has touched by then.
    for i in range(16):
        p.write(i * SLAB_PAGES, os.urandom(PAGE))
    s.do("donors.set", donors=[a.address, b.address])
    wait_for(lambda: s.donor_state(1) == "up", 10, "second donor")

    def move_all():
        for _ in range(2):
            for to in (b, a):
                for n in s.slabs():
                    told = s.ask("slab.migrate", slab=n, to=to.address)
                    assert told["ok"] or "already" in told["error"], told
                wait_for(lambda: whole(s) and slabs_at(s, to) == len(s.slabs()), 30, "moves")

    hammer_all(p, 2, meanwhile=move_all)
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == told["donor_losses"] == 0
    assert told["slab_unmaps"] >= 16
    # The other one has nothing of it any more.
    b.kill()
    p.read(0, 256)
    assert s.stats()["pages_read_failed"] == 0


def test_a_drained_donor_ends_up_empty(world):
    a, b = world.donor(), world.donor()
    s = world.serve(a, b)
    p = world.open(s)
    for i in range(32):
        p.write(i * SLAB_PAGES, os.urandom(64 * PAGE))
    # Memory use, by which they were chosen, is the same machine's for both.
    a, b = sorted((a, b), key=lambda d: -slabs_at(s, d))
    held = slabs_at(s, b)
    s.do("donor.drain", donor=a.address)
    wait_for(lambda: slabs_at(s, a) == 0, 20, "drain")
    assert slabs_at(s, b) > held
    p.write_random(50)
    p.check()
    assert slabs_at(s, a) == 0
    assert s.stats()["pages_read_backup"] == s.stats()["pages_written_backup_only"] == 0
    s.do("donor.undrain", donor=a.address)
    assert not any("leaving" in d for d in s.status()["donors"])


def test_without_another_donor_a_slab_leaves_for_the_disk(world):
    a = world.donor()
    s = world.serve(a)
    p = world.open(s)
    p.write_random(200)
    s.do("donor.drain", donor=a.address)
    wait_for(lambda: slabs_at(s, a) == 0, 20, "drain")
    assert s.stats()["slabs_to_disk"] > 0
    p.check()
    assert s.stats()["donor_losses"] == 0
    # Without a disk it stays where it is.
    s.do("donor.undrain", donor=a.address)
    wait_for(lambda: whole(s), 20, "return")


def test_without_disk_and_room_a_slab_stays(world):
    a = world.donor()
    s = world.serve(a, durability="none")
    p = world.open(s)
    p.write_random(50)
    held = slabs_at(s, a)
    assert "no other donor has free capacity" in s.ask("slab.migrate", slab=min(s.slabs()))["error"]
    outlook = s.ask("donor.drain", donor=a.address)["outlook"]
    assert outlook["stuck"] == outlook["slabs"] == held and outlook["move"] == 0
    assert "no other donor is up; start or add one" in outlook["why"]
    time.sleep(2)
    assert slabs_at(s, a) == held
    assert s.status()["donors"][0]["outlook"] == outlook
    assert "it already migrates" in s.ask("slab.migrate", slab=min(s.slabs()))["error"]
    p.check()


@only_tcp
def test_one_donor_at_two_addresses(world):
    """Copies would be lost together: the second is not used, and the first not disturbed."""
    second = f"127.0.0.1:{free_port()}"
    a, b = world.donor(options=["--listen", second]), world.donor()
    s = world.serve(a, durability="none")
    p = world.open(s)
    p.write_random(50)
    s.do("donors.set", donors=[a.address, second])
    wait_for(lambda: "the same donor as" in s.log.read_text(), 5, "it is found out")
    assert f"donor {second}: the same donor as {a.address}; " in s.log.read_text()
    time.sleep(1)
    assert s.donor_state(0) == "up" and s.donor_state(1) != "up"
    assert s.stats()["donor_losses"] == 0
    p.check()
    s.do("donors.set", donors=[b.address])
    wait_for(lambda: [d["address"] for d in s.status()["donors"]] == [b.address], 20, "change")
    p.check()


def test_donors_come_and_go_while_it_runs(world):
    a, b, c = world.donor(), world.donor(), world.donor()
    s = world.serve(a, b)
    p = world.open(s)
    p.write_random(100)
    s.do("donors.set", donors=[b.address, c.address])
    wait_for(lambda: [d["address"] for d in s.status()["donors"]] == [b.address, c.address] or
             {d["address"] for d in s.status()["donors"]} == {b.address, c.address}, 30, "change")
    a.kill()
    p.write_random(100)
    p.check()
    told = s.stats()
    assert told["donor_losses"] == 0 and told["pages_read_backup"] == 0
    # Another name of the same donor makes no second one of it.
    s.do("donors.set", donors=[b.address, c.address, c.address.replace("127.0.0.1", "localhost")])
    assert len(s.status()["donors"]) == 2
    # ebbd repeats its list; only the change is logged.
    assert len(re.findall(r"user 0 \(process \d+\): donors.set ", s.log.read_text())) == 1
    # All or nothing: neither does the good one before the bad one come, nor anybody go.
    for bad in ([], ["nonsense"], "x", [None], [b.address, 7], [b.address, b.address, "127.0.0.1:99999"],
                [a.address, "10.255.0.1:7070"], [f"127.0.0.1:{port}" for port in range(1, 66)]):
        before = {d["address"] for d in s.status()["donors"]}
        assert not s.ask("donors.set", donors=bad)["ok"]
        assert {d["address"] for d in s.status()["donors"]} == before
        assert not any("leaving" in d for d in s.status()["donors"])


def test_verbs_refuse_what_makes_no_sense(world):
    a, b = world.donor(), world.donor()
    s = world.serve(a, b)
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    here = s.slabs()[0]["copies"][0]["donor"]
    for verb, arguments, words in (
            ("slab.migrate", {"slab": 32}, "0 to 31"),
            ("slab.migrate", {"slab": 5}, "no donor holds this slab"),
            ("slab.migrate", {"slab": 0, "to": here}, "already holds this slab"),
            ("slab.migrate", {"slab": 0, "to": "127.0.0.1:1"}, "not one of"),
            ("donor.drain", {"donor": "127.0.0.1:1"}, "not one of"),
            ("donor.trust", {"donor": here}, "not quarantined"),
            ("nonsense", {}, "unknown verb")):
        told = s.ask(verb, **arguments)
        assert not told["ok"] and words in told["error"], told
    p.check()


class Machine:
    """What a donor takes for /proc: a machine whose programs want more or less."""

    def __init__(self, directory):
        self.directory = directory
        (directory / "pressure").mkdir(parents=True)
        (directory / "pressure" / "memory").write_text(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        self.available(512)

    def available(self, mib):
        new = self.directory / "new"
        new.write_text(f"MemTotal: {1 << 20} kB\nMemFree: {mib << 10} kB\n"
                       f"MemAvailable: {mib << 10} kB\n")
        new.rename(self.directory / "meminfo")


@pytest.mark.parametrize("durability", few(["disk", "none"], "none"))
def test_a_donor_in_need_gets_its_memory_back(world, tmp_path, durability):
    """Its slabs migrate to the other donor, least active first; no request waits, no page is lost."""
    machine_of_a = Machine(tmp_path / "machine")
    a = world.donor(options=["--headroom", "256M", "--machine", machine_of_a.directory])
    s = world.serve(a, durability=durability)
    p = world.open(s)
    b = world.donor()
    s.do("donors.set", donors=[a.address, b.address])
    s.do("donor.drain", donor=b.address)
    p.write_random(200)
    s.do("donor.undrain", donor=b.address)
    held = slabs_at(s, a)
    assert held > 20

    def want():
        machine_of_a.available(64)
        wait_for(lambda: slabs_at(s, a) == 0, 40, "return")

    hammer_all(p, 2, meanwhile=want)
    told = s.stats()
    assert told["slabs_asked_back"] > 0 and told["donor_losses"] == 0
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0
    assert told["pages_read_backup"] == 0, "they went to memory, not to the disk"
    assert slabs_at(s, b) >= held


def test_what_has_no_other_place_is_not_given_back(world, tmp_path):
    machine_of_a = Machine(tmp_path / "machine")
    a = world.donor(options=["--headroom", "256M", "--machine", machine_of_a.directory])
    s = world.serve(a, durability="none")
    p = world.open(s)
    p.write_random(100)
    held = slabs_at(s, a)
    machine_of_a.available(64)
    wait_for(lambda: s.stats()["slabs_kept"] > 0, 20, "refusal")
    assert slabs_at(s, a) == held and s.stats()["slabs_asked_back"] == 0
    p.check()
    # As soon as there is a place it goes there.
    b = world.donor()
    s.do("donors.set", donors=[a.address, b.address])
    wait_for(lambda: slabs_at(s, a) == 0, 40, "return")
    p.check()
    assert s.stats()["donor_losses"] == s.stats()["pages_read_failed"] == 0


def test_a_donor_that_stops_lets_its_pages_go_first(world):
    """SIGTERM: it says that it drains, its slabs move, then it ends."""
    a, b = world.donor(drain="300s"), world.donor()
    s = world.serve(a, b, durability="none")
    p = world.open(s)
    p.write_random(200)
    a.signal(signal.SIGTERM)
    a.process.wait(320)
    p.check()
    told = s.stats()
    assert told["pages_read_failed"] == 0
    assert slabs_at(s, b) == len(s.slabs())


# --- memory comes back ---------------------------------------------------------------


def test_discarded_pages_are_zeroes(world):
    s = world.serve(world.donor())
    p = world.open(s)
    p.write(0, os.urandom(2 * MIB))
    p.discard(10, 300)
    p.check()
    p.write(20, os.urandom(5 * PAGE))
    p.discard(22, 1)
    p.check()
    assert s.status()["live"] == (512 - 300 + 4) * PAGE
    assert s.stats()["pages_discarded"] == 301


def test_an_empty_slab_is_back_at_its_donor_in_ten_seconds(world):
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    p.write(0, os.urandom(4 * MIB))
    assert s.status()["mapped"] == 4 * MIB
    for _ in range(5):
        p.discard(0, 3 * SLAB_PAGES)
        start = time.monotonic()
        wait_for(lambda: s.status()["mapped"] == MIB, 15, "return")
        if (took := time.monotonic() - start) < 10:
            break
        # The machine may have been busy meanwhile.
        p.write(0, os.urandom(3 * MIB))
    assert took < 10
    wait_for(lambda: s.status()["donors"][0]["free"] == 47 * MIB, 5, "free at the donor")
    p.check()
    p.write_random(50)
    p.check()
    assert s.stats()["donor_losses"] == 0


def test_discards_under_load(world):
    """Pages that come and go, slab by slab, beside others that stay."""
    s = world.serve(world.donor())
    p = world.open(s)
    stop, errors = threading.Event(), []

    def come_and_go(first):
        mine = bytes(range(256)) * (PAGE // 256)
        try:
            while not stop.is_set():
                q = memoryview(mine)
                p.write(first, mine)
                assert p.read(first, 1) == q
                p.discard(first, 1)
                assert p.read(first, 1) == bytes(PAGE)
        except Exception as e:
            errors.append(e)

    crew = [threading.Thread(target=come_and_go, args=(31 * SLAB_PAGES + i,)) for i in range(4)]
    for t in crew:
        t.start()
    time.sleep(2)
    wait_for(lambda: errors or s.stats()["pages_discarded"] > 10, 10, "discards")
    stop.set()
    for t in crew:
        t.join()
    assert not errors, errors[0]


def test_pages_of_one_word_are_not_sent(world):
    s = world.serve(world.donor())
    p = world.open(s)
    p.write(0, bytes(64 * PAGE))
    p.write(64, b"\x55" * (8 * PAGE))
    assert s.stats()["pages_same"] == 72
    assert s.status()["slabs"]["mapped"] == 0 and s.status()["live"] == 0
    p.check()
    # Between others, and over others.
    p.write(100, os.urandom(3 * PAGE) + b"ebbswap!" * (PAGE // 4) + os.urandom(4 * PAGE))
    p.write(0, os.urandom(10 * PAGE))
    p.write(5, b"a" * PAGE)
    p.check()
    assert s.status()["live"] == (7 + 9) * PAGE
    assert s.stats()["pages_read_same"] > 0


# --- sequences that have lost pages elsewhere (research on Infiniswap's code) ----------


def test_a_loss_does_not_make_pages_at_other_donors_old(world):
    """
    While one donor is torn down, pages at a healthy one are written again: reads
    afterwards must not find what was there before.
    """
    a, b = world.donor(), world.donor()
    s = world.serve(a, b)
    p = world.open(s)
    p.write(0, os.urandom(32 * MIB))
    for i in range(3):
        stop, errors = threading.Event(), []

        def rewrite():
            while not stop.is_set():
                for slab in range(0, 32, 3):
                    p.write(slab * SLAB_PAGES + i, os.urandom(PAGE))

        t = threading.Thread(target=noted, args=(errors, rewrite))
        t.start()
        try:
            time.sleep(0.1)
            if i == 1:
                a.kill()
                wait_for(lambda: s.donor_state(0) != "up", 5, "loss")
            time.sleep(0.1)
        finally:
            stop.set()
            t.join()
        assert not errors, errors[0]
        p.check()


def test_a_write_whose_backup_is_under_way_survives_its_donor(world):
    """Acknowledged by the donor, queued for the disk: the donor's end must find it there."""
    at = world.new_place()
    donor = world.donor(**at)
    s = world.serve(donor)
    p = world.open(s)
    rounds = queued = 0
    # A fast disk may have all that is queued before the donor ends.
    while rounds < 4 or (not queued and rounds < 40):
        rounds += 1
        p.write(0, os.urandom(16 * MIB))
        for page in range(0, 4096, 7):
            p.write(page, os.urandom(PAGE))
        queued += s.stats()["backup_queue"]
        donor.kill()
        p.check()
        donor = world.donor(**at)
        wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    assert queued, "the disk had everything each time"


@only_tcp
def test_a_slow_copy_is_not_read(world):
    slow, fast = world.donor(delay="40ms"), world.donor()
    s = world.serve(slow, fast, durability="replicas=2")
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    reads = lambda d: d.ask()["borrowers"][0]["reads"]
    # On a busy machine the other one may be the slow one for a while.
    for _ in range(20):
        before = reads(slow), reads(fast)
        for i in range(100):
            p.read(i, 1)
        at_slow, at_fast = reads(slow) - before[0], reads(fast) - before[1]
        assert at_slow + at_fast >= 100
        # A few to the slow one, to know that it still is.
        if at_slow < 25:
            break
    assert at_slow < 25


# --- what is refused --------------------------------------------------------------------


@only_tcp
def test_a_device_is_as_large_as_what_can_be_lent(world, simulated, tmp_path):
    """Not as what is ready, which with HeadRoom is 2 GiB at most; nor as what others have, or a quota forbids."""
    m = simulated(1024, 512)
    m.pressure(50)
    donor = world.donor(memory="16M", options=m.options(64))
    assert (donor.ask()["free"], donor.ask()["total"]) == (0, 16 * MIB)
    s = world.serve(donor, size="16M", durability="none")
    m.pressure(0)
    wait_slabs(donor, 30, clean=16)
    # Until the next PING it has heard of no free slab.
    wait_for(lambda: s.status()["donors"][0]["free"], 10, "news of them")
    p = world.open(s)
    p.write_random(20)
    p.check()
    assert s.stats()["pages_write_failed"] == 0
    wait_for(lambda: s.status()["donors"][0]["slabs"] > 8, 10, "slabs at the donor")
    (tmp_path / "other").mkdir()
    refused(tmp_path / "other", 1, "are more than its donors can lend it", donor=donor.address, size="16M",
            durability="none", drop=("backup",))
    frugal = world.donor(memory="16M", options=["--quota", "8M"])
    refused(tmp_path / "other", 1, "are more than its donors can lend it (8.0 MiB)", donor=frugal.address,
            size="16M", durability="none", drop=("backup",))


# --- reservations -----------------------------------------------------------------------


def promised(*donors):
    """MiB promised and not lent, and lendable, at each."""
    told = [d.ask() for d in donors]
    return [(t["promised"] // MIB, t["lendable"] // MIB) for t in told]


def test_a_second_device_that_does_not_fit_is_refused(world, tmp_path):
    """Each is as large as what the donors lend, and nothing has been written yet."""
    a, b = world.donor(memory="16M"), world.donor(memory="16M")
    s = world.serve(a, b, size="32M", durability="none")
    assert promised(a, b) == [(16, 0), (16, 0)]
    assert s.status()["reservation"] == {"wanted": 32 * MIB, "missing": 0}
    (tmp_path / "second").mkdir()
    refused(tmp_path / "second", 1, "are more than its donors can lend it (0 B)", f"0 B at {a.address}",
            f"0 B at {b.address}", "--size", "add donors", "--durability disk", "--overcommit",
            donor=[a.address, b.address], durability="none", drop=("backup",))
    # What was tried leaves nothing, and the first device gets all that it was promised.
    assert promised(a, b) == [(16, 0), (16, 0)]
    p = world.open(s)
    p.write(0, os.urandom(p.size))
    p.check()
    told = s.stats()
    assert told["pages_write_failed"] == told["slab_map_refusals"] == 0
    assert promised(a, b) == [(0, 0), (0, 0)]
    p.close()
    s.stop()
    wait_for(lambda: promised(a, b) == [(0, 16), (0, 16)], 20, "an end of the reservation")


@only_tcp
def test_devices_that_reserve_nothing(world, tmp_path):
    donor = world.donor(memory="16M")
    s = world.serve(donor, size="16M", durability="none")
    for name, what in {"disk": {}, "over": {"durability": "none", "options": ["--overcommit"]}}.items():
        other = Server(tmp_path_of(tmp_path, name), tmp_path / f"{name}.log", [donor], size="16M", **what)
        assert "reservation" not in other.status()
        assert promised(donor) == [(16, 0)]
        with pages_of(other) as p:
            if name == "disk":
                p.write_random(20)
                p.check()
            else:
                with pytest.raises(OSError):
                    p.write(0, os.urandom(PAGE))
        other.stop()
    p = world.open(s)
    p.write(0, os.urandom(p.size))
    assert s.stats()["pages_write_failed"] == 0


@only_tcp
@pytest.mark.parametrize("durability", few(["none", "replicas=2"], "none"))
def test_of_two_devices_at_the_same_moment_one_is_created(world, tmp_path, durability):
    """Whichever it is, and in whichever order they name their donors."""
    donors = [world.donor(memory="16M") for _ in "ab"]
    size = "32M" if durability == "none" else "16M"
    for i in range(3):
        made, said = [], []

        def create(name, order):
            try:
                made.append(Server(tmp_path_of(tmp_path, f"{name}{i}"), tmp_path / f"{name}{i}.log", order, size=size,
                                   durability=durability))
            except machine.MachineError as e:
                said.append(str(e))

        both = [threading.Thread(target=create, args=("x", donors)),
                threading.Thread(target=create, args=("y", donors[::-1]))]
        for t in both:
            t.start()
        for t in both:
            t.join()
        assert len(made) == len(said) == 1, said
        assert promised(*donors) == [(16, 0), (16, 0)]
        made[0].stop()
        wait_for(lambda: promised(*donors) == [(0, 16), (0, 16)], 20, "an end of the reservation")


def test_a_reservation_survives_server_and_donor(world):
    places = [world.new_place() for _ in "ab"]
    a, b = (world.donor(memory="16M", **at) for at in places)
    s = world.serve(a, b, size="16M", durability="replicas=2")
    assert promised(a, b) == [(16, 0), (16, 0)]
    p = world.open(s)
    p.write(0, os.urandom(4 * MIB))
    assert promised(a, b) == [(12, 0), (12, 0)]
    s.kill_server()
    wait_for(lambda: all(d["state"] == "up" for d in s.status()["donors"]), 10, "a successor with its donors")
    p.check()
    assert promised(a, b) == [(12, 0), (12, 0)]
    # A donor that forgot it is asked again.
    b.kill()
    b = world.donor(memory="16M", **places[1])
    wait_for(lambda: sum(b.ask()["slabs"][k] for k in ("lent",)) + promised(b)[0][0] == 16, 30, "a new promise")
    assert promised(b)[0][1] == 0
    p.check()
    told = s.stats()
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


@only_tcp
def test_another_donor_promises_what_a_lost_one_had(world):
    a, b, c = (world.donor(memory="16M") for _ in "abc")
    s = world.serve(a, b, c, size="16M", durability="none", options=["--repair-delay", "1s"])
    assert sum(n for n, _ in promised(a, b, c)) == 16
    c.kill()
    wait_for(lambda: sum(n for n, _ in promised(a, b)) == 16, 20, "other promises")
    wait_for(lambda: s.status()["reservation"]["missing"] == 0, 10, "news of it")
    # One that is to go holds nothing back.
    s.do("donor.drain", donor=b.address)
    wait_for(lambda: promised(a, b) == [(16, 0), (0, 16)], 20, "a move of the reservation")
    s.do("donor.drain", donor=a.address)
    wait_for(lambda: s.status()["reservation"]["missing"] == 16 * MIB, 10, "news of it")


@pytest.mark.long
@only_tcp
def test_a_promise_is_not_against_the_donors_own_need(world, simulated):
    """HeadRoom takes promised memory; other borrowers get none of the rest."""
    m = simulated(1024, 512)
    donor = world.donor(memory="16M", options=m.options(64))
    m.follow(donor, 500)
    s = world.serve(donor, size="16M", durability="none")
    wait_slabs(donor, 30, clean=16)
    m.programs = 1024 - 64 - 8
    wait_for(lambda: donor.ask()["total"] <= 8 * MIB, 30, "less to lend")
    told = donor.ask()
    assert told["promised"] == 16 * MIB and told["lendable"] == 0
    with Borrower(donor, 5) as other:
        assert other.map() == NO_SPACE
    p = world.open(s)
    p.write(0, os.urandom(4 * MIB))
    p.check()
    m.programs = 64
    wait_for(lambda: donor.ask()["total"] == 16 * MIB, 30, "memory again")
    p.write(0, os.urandom(p.size))
    p.check()
    assert s.stats()["pages_write_failed"] == 0


@only_tcp
def test_a_write_waits_for_every_promised_replica(world, simulated):
    """Also the first write of a second slab, while the donor's refusal of the first one is recent."""
    m = simulated(1024, 512)
    a, b = world.donor(memory="16M"), world.donor(memory="16M", options=m.options(64))
    m.follow(b, 500)
    s = world.serve(a, b, size="16M", durability="replicas=2")
    wait_slabs(b, 30, clean=16)
    m.programs = 1024
    wait_for(lambda: b.ask()["total"] == 0, 30, "nothing to lend")
    p = world.open(s)
    errors = []
    writers = [threading.Thread(target=noted, args=(errors, p.write, i * 256, os.urandom(8 * PAGE)))
               for i in range(4)]
    for w in writers:
        w.start()
        time.sleep(0.1)
    m.programs = 64
    for w in writers:
        w.join()
    assert not errors, errors[0]
    wait_for(lambda: whole(s), 10, "copies")
    told = s.stats()
    assert told["pages_repaired"] == told["pages_write_failed"] == 0
    p.check()


@only_tcp
def test_durability_and_what_it_needs(tmp_path, donor_at):
    donor = donor_at(memory="16M").address
    refused(tmp_path, 2, "--backup: not given", donor=donor, drop=("backup",))
    refused(tmp_path, 2, "--backup: not used", donor=donor, durability="none")
    refused(tmp_path, 2, "disk|replicas=2|replicas=3|none", donor=donor, durability="replicas=4")
    refused(tmp_path, 5, "needs 2 donors, 1 are named", donor=donor, durability="replicas=2",
            drop=("backup",))
    refused(tmp_path, 1, "32.0 MiB in 1 replica", "16.0 MiB", "make it smaller", donor=donor,
            durability="none", drop=("backup",))
    refused(tmp_path, 2, "power of two", donor=donor, slab="3M")
    port = donor.rsplit(":", 1)[1]
    for twice in (donor, f"localhost:{port}", f"127.1:{port}"):
        refused(tmp_path, 1, f"{twice}: named twice", donor=[donor, twice])
