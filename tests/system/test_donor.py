# SPDX-License-Identifier: GPL-2.0-or-later
"""
The donor and its borrowers: lending that follows the machine's needs, limits per
borrower, slow peers, and the end.
"""
import mmap
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import machine
import parts
from control_server import write_record
from dataplane import MIB, PAGE, SLAB, only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import wait_for
from ports import free_port
from protocol import EVICT, READ, Borrower, closed, connect, frame, hello, reply
from test_discovery import Watcher

pytestmark = pytest.mark.beside

NO_SPACE, NO_SLAB, STALE, NO_ROOM, OVER_QUOTA = 5, 6, 7, 9, 13


class Machine:
    """What the donor takes for /proc: @total MiB, of which @available."""

    def __init__(self, directory, total, available):
        self.directory, self.total = directory / "proc", total
        (self.directory / "pressure").mkdir(parents=True)
        self.pressure(0)
        self.available(available)

    def replace(self, name, text):
        new = self.directory / "new"
        new.write_text(text)
        new.rename(self.directory / name)

    def available(self, mib):
        self.replace("meminfo", f"MemTotal: {self.total << 10} kB\nMemFree: 0 kB\n"
                                f"MemAvailable: {int(mib * 1024)} kB\n")

    def follow(self, donor, programs):
        """From now on what the donor allocates is missing, beside what .programs use, MiB."""
        self.programs, self.donor = programs, donor
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while self.donor.alive():
            try:
                told = self.donor.ask()
            except (OSError, ValueError, machine.MachineError):
                return  # it has ended
            slabs = sum(told["slabs"][k] for k in ("lent", "clean", "dirty", "going"))
            self.available(max(self.total - self.programs - slabs * told["slab_size"] // MIB, 0))
            time.sleep(0.05)

    def pressure(self, percent):
        self.replace("pressure/memory", f"some avg10={percent:.2f} avg60=0.00 avg300=0.00 total=0\n")

    def options(self, headroom, *more):
        return ("--machine", str(self.directory), "--headroom", f"{headroom}M", *more)


@pytest.fixture
def simulated(tmp_path):
    return lambda total, available, number=0: Machine(tmp_path / f"{number}", total, available)


def wait_slabs(donor, seconds=10, **what):
    """Until that many slabs are lent, clean, ..."""
    def same():
        told = donor.ask()["slabs"]
        return all(told[k] == v for k, v in what.items()) and [told]
    return wait_for(same, seconds, f"slabs {what}")


# --- shares -------------------------------------------------------------------------------

@only_tcp
def test_quota(donor_at):
    donor = donor_at(memory="8M", options=["--quota", "2M"])
    with Borrower(donor, 1) as one, Borrower(donor, 2) as two:
        one.map_many(2)
        assert one.map() == OVER_QUOTA
        two.map_many(2)
        one.unmap(one.slabs[0])
        one.map_many(1)
        assert one.map() == OVER_QUOTA
        told = donor.ask()["borrowers"]
        assert [(b["slabs"], b["bytes"], b["quota"]) for b in told] == [(2, 2 * MIB, 2 * MIB)] * 2


@only_tcp
def test_connections_from_one_address_are_limited(donor_at):
    donor = donor_at(options=["--peer-connections", "3"])
    open_ones = [Borrower(donor, n) for n in range(3)]
    with connect(donor) as s:
        assert closed(s)
    open_ones.pop().close()

    def another():
        try:
            return Borrower(donor, 9)
        except (EOFError, ConnectionError):
            return None
    open_ones.append(wait_for(another, 5, "room for another"))
    assert open_ones[-1].map()
    for b in open_ones:
        b.close()


@only_tcp
def test_a_silent_peer_is_hung_up_on(donor_at):
    donor = donor_at()
    with Borrower(donor) as quiet, connect(donor) as silent, connect(donor) as half:
        half.sendall(hello()[:50])
        for s in (silent, half):
            assert closed(s)
        wait_for(lambda: "no handshake" in machine.read(donor.log), 5, "log line")
        # After the handshake a borrower may be idle.
        assert quiet.map()


@only_tcp
def test_no_descriptor_is_left(donor_at):
    """The donor accepts no connection meanwhile, serves the others and does not spin."""
    donor = donor_at(options=["--peer-connections", "200"])

    def cpu():
        fields = machine.read(f"/proc/{donor.pid}/stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    with Borrower(donor, 1) as b:
        loan = b.map()
        limits = resource.prlimit(donor.pid, resource.RLIMIT_NOFILE)
        used = max(int(n) for n in os.listdir(f"/proc/{donor.pid}/fd"))
        resource.prlimit(donor.pid, resource.RLIMIT_NOFILE, (used + 1, limits[1]))
        waiting = [connect(donor) for _ in range(3)]
        before = cpu()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            assert b.write(loan, bytes(PAGE)) == 0
            time.sleep(0.1)
        assert cpu() - before < 0.5
        resource.prlimit(donor.pid, resource.RLIMIT_NOFILE, limits)
        for s in waiting:
            s.sendall(hello(borrower=10 + s.fileno()))
            assert reply(s)["status"] == 0
            s.close()


@only_tcp
def test_a_peer_that_does_not_read(donor_at):
    """It blocks no other borrower, and loses its slabs in the end."""
    donor = donor_at(memory="4M")
    with Borrower(donor, 1) as slow, Borrower(donor, 2) as other:
        loan = slow.map()
        for _ in range(2000):
            slow.socket.settimeout(0.5)
            try:
                slow.socket.sendall(frame(READ, 1, *loan, length=MIB))
            except TimeoutError:
                break  # the donor has stopped reading: that is right
        # The socket buffers of both ends are full of replies now.
        mine = other.map()
        page = os.urandom(PAGE)
        end = time.monotonic() + 90
        while donor.ask()["slabs"]["lent"] > 1:
            assert time.monotonic() < end, "it still has its slab"
            assert other.write(mine, page) == 0 and other.read(mine) == page
            time.sleep(0.2)
        wait_for(lambda: "does not read" in machine.read(donor.log), 5, "log line")
        # The slab is cleared first.
        wait_for(lambda: other.ping()["free"] == 3 * MIB, 5, "its slab")


@only_tcp
def test_a_greedy_borrower_leaves_room_for_others(donor_at):
    donor = donor_at(memory="4M")
    stop, moved = threading.Event(), [0]
    with Borrower(donor, 1) as greedy, Borrower(donor, 2) as other:
        loan = greedy.map()

        def ask():
            try:
                while not stop.is_set():
                    greedy.socket.sendall(frame(READ, 1, *loan, length=MIB) * 8)
            except OSError:
                pass

        def take():
            buffer = bytearray(4 * MIB)
            try:
                while (n := greedy.socket.recv_into(buffer)):
                    moved[0] += n
            except OSError:
                pass

        threads = [threading.Thread(target=t, daemon=True) for t in (ask, take)]
        greedy.socket.settimeout(None)
        for t in threads:
            t.start()
        wait_for(lambda: moved[0] > 64 * MIB, 10, "a flood")
        enough, passed, end = moved[0] + 256 * MIB, [], time.monotonic() + 120
        while moved[0] < enough or len(passed) < 50:
            at = moved[0]
            assert time.monotonic() < end, "the flood has stopped"
            other.ping()
            passed.append(moved[0] - at)
        # Not all it has asked for, 1000 MiB, comes first.
        assert sorted(passed)[len(passed) // 2] < 250 * MIB, passed
        stop.set()
        greedy.socket.shutdown(2)
        for t in threads:
            t.join(10)


# --- memory that comes and goes --------------------------------------------------------------

def resident(process):
    """KiB."""
    told = machine.read(f"/proc/{process.pid}/status")
    return int(re.search(r"VmRSS:\s+(\d+)", told)[1])


def test_free_slabs_follow_the_machine(donor_at, simulated, transport):
    m = simulated(1024, 512)
    donor = donor_at(memory="16M", options=m.options(64))
    wait_slabs(donor, clean=16, lent=0)
    full = resident(donor)
    with Borrower(donor) as b:
        loan = b.map()
        if transport == "tcp":
            assert b.write(loan, b"x" * PAGE) == 0
        ping = b.ping()
        assert (ping["total"], ping["free"]) == (16 * MIB, 15 * MIB)
        # 512 of the machine's own, and the slab that is mapped; what is free is not in use.
        assert ping["memory"] == 1024 * MIB and ping["used"] == (512 - 16 + 1) * MIB
        m.available(20)
        # The donor revokes nothing; it asks the borrower.
        b.releases = False
        b.serve(lambda: donor.ask()["slabs"]["clean"] == 0 and b.evicted)
        wait_slabs(donor, lent=1, clean=0, dirty=0, going=0, asked_back=1)
        assert b.map() == NO_SPACE and b.evicted == [loan]
        if transport == "tcp":
            assert b.read(loan) == b"x" * PAGE
        assert full - resident(donor) > 14 << 10, "the memory is the machine's again"
        m.available(512)
        # Programs' use is smoothed, so it takes a while.
        wait_slabs(donor, 40, lent=1, clean=15)


@only_tcp
def test_no_slab_is_made_under_pressure(donor_at, simulated):
    m = simulated(1024, 512)
    m.pressure(50)
    donor = donor_at(memory="16M", options=m.options(64))
    time.sleep(2.5)
    assert donor.ask()["slabs"]["clean"] == 0
    m.pressure(0)
    wait_slabs(donor, clean=16)


@only_tcp
def test_auto_leaves_headroom(donor_at, simulated):
    m = simulated(80, 60)
    donor = donor_at(memory="auto", options=m.options(32))
    m.follow(donor, 20)
    # 60 available, 32 of them to stay.
    wait_slabs(donor, 30, clean=28, coming=0, going=0)
    assert donor.ask()["headroom"] == 32 * MIB
    m.programs = 30
    wait_slabs(donor, 30, clean=18, coming=0, going=0)
    wait_for(lambda: donor.ask()["machine"] == {"memory": 80 * MIB, "available": 32 * MIB, "pressure": 0},
             10, "HeadRoom")
    m.programs = 20
    # 27 is near enough for an average, which ends just above 20.
    wait_for(lambda: 27 <= donor.ask()["slabs"]["clean"] <= 28, 40, "what it had")


# A machine whose programs leave room for 5 slabs of 1 MiB and 4 MiB of HeadRoom: with 8 slabs
# there less than half of HeadRoom is available, so that nothing is averaged.
TOTAL, HEADROOM, FEW, MANY = 1024, 4, 512, 1015


class TooBusy(Exception):
    """We did not answer ACTIVITY within 300 ms."""


def until_quick(attempt):
    """Calls attempt(number) until it does not raise TooBusy."""
    for number in range(8):
        try:
            return attempt(number)
        except TooBusy:
            pass
    raise machine.MachineError("this machine never answers within 300 ms")


@only_tcp
def test_the_least_active_are_asked_back(donor_at, simulated):
    until_quick(lambda number: least_active(donor_at, simulated, number))


def least_active(donor_at, simulated, number):
    m = simulated(TOTAL, TOTAL - FEW, number)
    donor = donor_at(memory="8M", options=m.options(HEADROOM))
    m.follow(donor, FEW)
    with Borrower(donor) as b:
        b.map_many(8)
        pages = {loan: os.urandom(PAGE) for loan in b.slabs}
        for loan, page in pages.items():
            assert b.write(loan, page) == 0
        b.rates = {loan: 10.5 * i for i, loan in enumerate(b.slabs)}
        b.releases = False
        m.programs = MANY
        b.serve(lambda: len(b.evicted) == 3)
        if donor.ask()["evictions"]["silent"]:
            raise TooBusy
        # E + E' of them were asked about, and the least active of those go.
        assert len(b.asked) == 1 and len(set(b.asked[0])) == 6
        assert sorted(b.evicted) == sorted(sorted(b.asked[0], key=b.rates.get)[:3])
        told = donor.ask()
        assert told["slabs"]["asked_back"] == 3 and told["slabs"]["lent"] == 8
        wait_for(lambda: donor.ask()["evictions"]["promised"] == 3, 5, "three promises")
        assert {k: told["evictions"][k] for k in ("rounds", "silent", "asked", "refused")} == \
            {"rounds": 1, "silent": 0, "asked": 3, "refused": 0}
        # Until they are released they are served, and no more are recalled.
        for loan, page in pages.items():
            assert b.read(loan) == page
        time.sleep(2)
        assert b.ping()["free"] == 0 and len(b.evicted) == 3
        for loan in b.evicted:
            b.unmap(loan)
        wait_slabs(donor, lent=5, asked_back=0, clean=0, dirty=0)
        assert donor.ask()["evictions"]["returned"] == 3
        for loan in b.slabs:
            assert b.read(loan) == pages[loan]


@only_tcp
def test_who_does_not_answer_counts_as_idle(donor_at, simulated):
    until_quick(lambda number: one_is_mute(donor_at, simulated, number))


def one_is_mute(donor_at, simulated, number):
    m = simulated(TOTAL, TOTAL - FEW, number)
    donor = donor_at(memory="8M", options=m.options(HEADROOM))
    m.follow(donor, FEW)
    with Borrower(donor, 1, name=b"busy") as busy, Borrower(donor, 2, name=b"mute") as mute:
        busy.map_many(4)
        mute.map_many(4)
        busy.rates = {loan: 1000 + i for i, loan in enumerate(busy.slabs)}
        busy.releases = mute.releases = False
        answers = threading.Thread(target=busy.serve, args=(lambda: len(busy.evicted + mute.evicted) == 3,))
        answers.start()
        m.programs = MANY
        mute.serve(lambda: len(busy.evicted + mute.evicted) == 3)
        answers.join(60)
        silent = donor.ask()["evictions"]["silent"]
        assert silent >= 1
        if silent > 1:
            raise TooBusy
        drawn = len(mute.asked[0])
        assert drawn + len(busy.asked[0]) == 6
        assert len(mute.evicted) == min(drawn, 3)


@only_tcp
def test_a_refusal_is_accepted(donor_at, simulated):
    """And reported; memory without a copy elsewhere is not taken unless told so."""
    m = simulated(TOTAL, TOTAL - FEW)
    donor = donor_at(memory="8M", options=m.options(HEADROOM, "--overdue", "2s"))
    m.follow(donor, FEW)
    with Borrower(donor, evict_status=NO_ROOM) as b:
        b.map_many(8)
        page = os.urandom(PAGE)
        for loan in b.slabs:
            b.write(loan, page)
        began = time.monotonic()
        m.programs = MANY
        b.serve(lambda: len(b.evicted) >= 3)
        wait_for(lambda: "not back" in machine.read(donor.log), 10, "a warning")
        b.serve(lambda: donor.ask()["slabs"]["overdue"] > 0)
        told = donor.ask()
        assert told["slabs"]["refused"] >= 3
        assert told["borrowers"][0]["refused"] == told["slabs"]["refused"]
        assert all(b.read(loan) == page for loan in b.slabs)
        # The others are recalled as well; no slab is recalled twice within ten seconds.
        assert len(b.evicted) == len(set(b.evicted)) or time.monotonic() - began > 10


@only_tcp
def test_revoked_when_told_so(donor_at, simulated):
    m = simulated(TOTAL, TOTAL - FEW)
    donor = donor_at(memory="4M", options=m.options(HEADROOM, "--revoke-after", "1s"))
    with Borrower(donor, evict_status=NO_ROOM) as b:
        b.map_many(4)
        at = time.monotonic()
        m.available(0)
        b.serve(lambda: len(b.evicted) == 4)
        b.serve(lambda: donor.ask()["evictions"]["revoked"])
        assert time.monotonic() - at > 7, "not before memory has been short for long"
        assert STALE in {b.read(loan) for loan in b.slabs}
        wait_for(lambda: "revoked" in machine.read(donor.log), 5, "log line")


@only_tcp
def test_revoked_slab_costs_only_itself(world, donor_at, simulated):
    """Its other slabs at the donor stay, without another replica or a backup."""
    m = simulated(TOTAL, TOTAL - FEW)
    donor = donor_at(memory="128M", options=m.options(HEADROOM, "--revoke-after", "1s"))
    s = world.serve(donor, durability="none", size="128M")
    p = world.open(s)
    for slab in range(128):
        p.write(slab * SLAB // PAGE, os.urandom(PAGE))
    m.available(0)
    wait_for(lambda: donor.ask()["evictions"]["revoked"], 60, "a revoked slab")
    m.available(TOTAL - FEW)
    # Until it has looked it may revoke more.
    wait_for(lambda: donor.ask()["machine"]["available"] == (TOTAL - FEW) * MIB, 10, "the donor's look")
    failed = 0
    for slab in range(128):
        page = slab * SLAB // PAGE
        try:
            assert p.read(page, 1) == p.model[page * PAGE:(page + 1) * PAGE]
        except OSError:
            failed += 1
    assert failed == donor.ask()["evictions"]["revoked"] < 128
    told = s.stats()
    assert told["donor_losses"] == told["donor_absences"] == 0
    assert told["slabs_revoked"] == failed


@only_tcp
def test_in_an_emergency_what_is_on_disk_is_revoked(world, donor_at, simulated):
    m = simulated(TOTAL, TOTAL - FEW)
    donor = donor_at(memory="16M", options=m.options(HEADROOM))
    s = world.serve(donor, durability="disk", size="16M")
    p = world.open(s)
    for slab in range(16):
        p.write(slab * SLAB // PAGE, os.urandom(16 * PAGE))
    wait_for(lambda: donor.ask()["slabs"]["backed"] == 16, 20, "slabs that are on disk, too")
    m.available(0)
    wait_for(lambda: donor.ask()["evictions"]["revoked_backed"] and not donor.ask()["slabs"]["lent"],
             60, "revoked slabs")
    p.check()
    told, gone = s.stats(), donor.ask()["evictions"]
    assert told["donor_losses"] == told["donor_absences"] == told["pages_read_failed"] == 0
    assert told["slabs_revoked"] == gone["revoked"] == gone["revoked_backed"]


@only_tcp
def test_an_only_copy_survives_an_emergency(world, donor_at, simulated):
    m = simulated(TOTAL, TOTAL - FEW)
    donor = donor_at(memory="16M", options=m.options(HEADROOM))
    s = world.serve(donor, durability="none", size="16M")
    p = world.open(s)
    fill(s, p)
    m.available(0)
    wait_slabs(donor, 20, clean=0, dirty=0)
    time.sleep(3)
    assert donor.ask()["slabs"]["lent"] == 16 and donor.ask()["evictions"]["revoked"] == 0
    p.check()


@only_tcp
def test_a_rate_makes_a_borrower_wait(world, donor_at):
    """It loses nothing and keeps its session; the donor tells for how long it has waited."""
    donor = donor_at(memory="64M", options=["--rate", "16M"])
    s = world.serve(donor, durability="none", size="32M")
    p = world.open(s)
    # A busy machine may write more slowly than that for a while.
    for _ in range(20):
        for at in range(0, 32 << 20, SLAB):
            p.write(at // PAGE, os.urandom(SLAB))
        if donor.ask()["throttled"]:
            break
    p.check()
    told = s.stats()
    assert told["donor_losses"] == told["donor_absences"] == told["pages_write_failed"] == 0
    assert donor.ask()["rate"] == 16 << 20
    waited, = donor.ask()["throttled"]
    assert waited["name"] == "127.0.0.1" and waited["ms"] > 0


# --- the end ---------------------------------------------------------------------------------

@only_tcp
def test_sigterm_waits_for_slabs_to_leave(donor_at):
    donor = donor_at(memory="24M", drain="300s")
    with Borrower(donor, releases=False) as b:
        b.map_many(20)
        page = os.urandom(PAGE)
        for loan in b.slabs:
            b.write(loan, page)
        donor.signal(signal.SIGTERM)
        b.serve(lambda: len(b.evicted) == 16)
        told = b.ping()
        assert told["flags"] == 1 and told["free"] == 0
        assert b.map() == NO_SPACE
        assert all(b.read(loan) == page for loan in b.slabs), "served to the end"
        told = donor.ask()
        assert told["draining"] and told["ending"] and 0 < told["ends_in"] <= 300
        assert (told["slabs"]["lent"], told["slabs"]["asked_back"]) == (20, 16)
        b.releases = True
        for loan in b.evicted[:]:
            b.unmap(loan)
        with pytest.raises((EOFError, ConnectionError)):
            b.serve(lambda: False)
        assert len(b.evicted) == 20 and not b.slabs
    assert donor.process.wait(60) == 0


@only_tcp
def test_sigterm_does_not_wait_for_ever(donor_at):
    donor = donor_at(memory="4M", drain="2s")
    with Borrower(donor, evict_status=NO_ROOM) as b:
        b.map_many(2)
        at = time.monotonic()
        donor.signal(signal.SIGTERM)
        with pytest.raises((EOFError, ConnectionError)):
            b.serve(lambda: False)
        assert 1.5 < time.monotonic() - at < 30
        assert len(b.evicted) == 2
    assert donor.process.wait(60) == 0
    assert "ends with 2 slabs lent" in machine.read(donor.log)


@only_tcp
def test_a_second_signal_ends_it(donor_at):
    donor = donor_at(memory="4M", drain="60s")
    with Borrower(donor, evict_status=None) as b:
        b.map_many(2)
        donor.signal(signal.SIGTERM)
        b.serve(lambda: len(b.evicted) == 2)
        donor.signal(signal.SIGTERM)
        assert donor.process.wait(30) == 0


@only_tcp
def test_nothing_lent_nothing_to_wait_for(donor_at):
    donor = donor_at(memory="4M", drain="60s")
    with Borrower(donor):
        donor.signal(signal.SIGTERM)
        assert donor.process.wait(30) == 0


@only_tcp
def test_drain_by_the_control_socket_stays(donor_at):
    donor = donor_at(memory="4M", drain="60s")
    with Borrower(donor) as b:
        b.map_many(3)
        told = donor.ask("drain")
        assert told["draining"] and not told["ending"]
        b.serve(lambda: donor.ask()["slabs"]["lent"] == 0)
        assert b.map() == NO_SPACE and donor.alive()
        # On second thoughts.
        assert not donor.ask("undrain")["draining"]
        b.map_many(1)
        donor.ask("drain")
        b.serve(lambda: donor.ask()["slabs"]["lent"] == 0)
        assert donor.ask("drain", end=True)["ending"]
        assert donor.process.wait(30) == 0


@only_tcp
def test_a_request_allocates_nothing(donor_at):
    """Two machines that lend to each other would wait for each other's memory."""
    donor = donor_at(memory="8M")

    def faults():
        fields = machine.read(f"/proc/{donor.pid}/task/{donor.pid}/stat").rpartition(")")[2].split()
        return int(fields[7]) + int(fields[9])

    with Borrower(donor) as b:
        # The first turn uses every path once, or nearly: on a busy machine there are more.
        free = 0
        for _ in range(20):
            before = faults()
            b.map_many(8)
            for loan in b.slabs:
                assert b.write(loan, b"x" * MIB) == 0
                assert len(b.read(loan, MIB // PAGE)) == MIB
            b.ping()
            for loan in b.slabs[:]:
                b.unmap(loan)
            free = free + 1 if faults() == before else 0
            if free == 3:
                break
        assert free == 3, "turns without a fault"


# --- with a borrower that has other donors ---------------------------------------------------

def fill(s, p):
    for at in range(0, s.status()["size"], SLAB):
        p.write(at // PAGE, os.urandom(16 * PAGE))


def held(s, donor):
    return next(d["slabs"] for d in s.status()["donors"] if d["address"] == donor.address)


def test_pages_leave_before_the_donor_does(world):
    donors = [world.donor(drain="300s") for _ in "ab"]
    s = world.serve(*donors, durability="none")
    p = world.open(s)
    fill(s, p)
    # The split is random: both report the same machine's memory.
    b, a = sorted(donors, key=lambda d: held(s, d))
    a.signal(signal.SIGTERM)
    p.write_random(100)
    assert a.process.wait(320) == 0
    assert "ends with" not in machine.read(a.log)
    assert held(s, b) == 32
    p.check()
    assert s.stats()["pages_read_failed"] == s.stats()["pages_write_failed"] == 0


@only_tcp
def test_a_machine_gets_its_memory_back(world, simulated):
    """And lends it again; readers and writers notice nothing."""
    # So little in use that it is chosen.
    m = simulated(TOTAL, TOTAL - 10)
    a = world.donor(memory="24M", options=m.options(HEADROOM))
    b = world.donor()
    m.follow(a, 10)
    s = world.serve(a, b, durability="none")
    p = world.open(s)
    fill(s, p)
    before = held(s, a)
    assert before > 8
    m.programs = MANY
    end = time.monotonic() + 240
    while (told := a.ask())["slabs"]["lent"] > 5 or told["slabs"]["clean"]:
        assert time.monotonic() < end, told
        p.write_random(10)
    assert told["evictions"]["returned"] >= before - 5 and told["evictions"]["revoked"] == 0
    p.check()
    assert s.stats()["donor_losses"] == s.stats()["pages_read_failed"] == 0


@only_tcp
def test_memory_goes_back_while_nobody_is_in_control(world, simulated, logs):
    """
    What told the device its donors is killed; one of them wants its memory back, and slabs are used
    for the first time.  watch_donors stands for ebbd, all of which that has to do with donors it runs,
    and six seconds for a minute: no timer of ebb-swapd's that has to do with them is longer than the
    five after which an empty slab goes back.
    """
    m = simulated(TOTAL, TOTAL - 10)
    a = world.donor(memory="24M", options=m.options(HEADROOM))
    b = world.donor()
    m.follow(a, 10)
    s = world.serve(b, durability="none")
    write_record(s.run, "dp0", donors_from="configuration")
    told = lambda: {d["address"]: d["state"] for d in s.status()["donors"]}
    w = Watcher(s.run, logs / "watch.log", f"list = {a.address}, {b.address}")
    try:
        wait_for(lambda: told() == {a.address: "up", b.address: "up"}, 10, "both donors")
    finally:
        w.process.kill()
        w.process.wait()
    killed = time.monotonic()
    p = world.open(s)
    for at in range(0, p.size // 2, SLAB):
        p.write(at // PAGE, os.urandom(16 * PAGE))
    before = held(s, a)
    assert before > 8 and s.status()["slabs"]["mapped"] == 16
    m.programs = MANY
    while (now := a.ask())["slabs"]["lent"] > 5 or now["slabs"]["clean"]:
        assert time.monotonic() - killed < 240, now
        p.write(p.random.randrange(p.size // 2 // PAGE), os.urandom(PAGE))
    assert now["evictions"]["returned"] >= before - 5 and now["evictions"]["revoked"] == 0
    while time.monotonic() - killed < 6:
        p.write_random(10)
    fill(s, p)
    p.check()
    assert s.status()["slabs"]["mapped"] == 32 and held(s, b) >= 27
    # Its successor finds the device as it is.
    w = Watcher(s.run, logs / "watch.log", f"list = {b.address}")
    try:
        wait_for(lambda: told() == {b.address: "up"}, 20, "the other one let go")
    finally:
        w.stop()
    p.check()
    assert s.stats()["donor_losses"] == s.stats()["pages_read_failed"] == 0


# --- tenants ----------------------------------------------------------------------------------

KILLED = """
import sys
sys.path[:0] = {path!r}
import mmap
from protocol import Borrower
class Donor: address = {address!r}
b = Borrower(Donor, 7)
b.map_many(3)
for loan in b.slabs:
    if b.fds:
        with mmap.mmap(b.fds[loan], 1 << 20) as m:
            m[:] = b"s" * (1 << 20)
    else:
        assert b.write(loan, b"s" * (1 << 20)) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_borrowers_slabs_come_back_empty(donor_at):
    donor = donor_at(memory="3M")
    code = KILLED.format(path=[p for p in sys.path if "tests" in p], address=donor.address)
    process = subprocess.Popen([sys.executable, "-B", "-c", code], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    with Borrower(donor, 8) as other:
        assert other.map() == NO_SPACE
        process.kill()
        process.wait(60)
        for _ in range(3):
            loan = wait_for(lambda: isinstance(x := other.map(), tuple) and x, 10, "a slab")
            if other.fds:
                with mmap.mmap(other.fds[loan], MIB) as m:
                    assert m[:] == bytes(MIB)
            assert other.read(loan, MIB // PAGE) == bytes(MIB)


@only_tcp
def test_answers_to_nothing_end_the_connection(donor_at):
    donor = donor_at()
    for bad in (frame(EVICT, 1, 0, 0, direction=1), frame(7, 1, length=8, direction=1) + bytes(8)):
        with Borrower(donor) as b:
            b.map()
            b.socket.sendall(bad)
            assert closed(b.socket)


@only_tcp
def test_requests_that_were_held_back_are_answered(donor_at):
    """More requests than the donor queues replies for, all there before the first is read."""
    donor = donor_at(memory="1M")
    with Borrower(donor) as b:
        loan = b.map()
        n = 3000
        sender = threading.Thread(target=b.socket.sendall, daemon=True,
                                  args=(b"".join(frame(READ, i, *loan, length=PAGE) for i in range(n)),))
        sender.start()
        got = [reply(b.socket)["tag"] for _ in range(n)]
        assert got == list(range(n))
        sender.join(60)


# --- its control socket -----------------------------------------------------------------------

@only_tcp
def test_status(donor_at):
    donor = donor_at(memory="4M", options=["--quota", "3M"])
    with Borrower(donor, 0xabc, name=b"ebb0") as b:
        b.map_many(2)
        b.write(b.slabs[0], bytes(2 * PAGE))
        b.read(b.slabs[0])
        told = donor.ask()
        assert told["pid"] == donor.pid and told["slab_size"] == MIB and told["headroom"] == 0
        assert (told["total"], told["free"], told["lent"]) == (4 * MIB, 2 * MIB, 2 * MIB)
        assert told["listen"] == [donor.address] and not told["draining"]
        assert told["machine"]["memory"] > told["machine"]["available"] > 0
        one, = told["borrowers"]
        assert (one["name"], one["transport"]) == ("ebb0", "tcp")
        # Its number would allow another process to resume its session.
        assert "borrower" not in one
        assert (one["slabs"], one["reads"], one["writes"]) == (2, 1, 2)
        assert one["peer"].startswith("127.0.0.1:")
    with pytest.raises(machine.MachineError, match="unknown"):
        donor.ask("dance")
    assert os.stat(donor.run / "donord.sock").st_mode & 0o777 == 0o666


def test_systemd_is_told(tmp_path, logs):
    """When it serves, and how long its end may take."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(60)
        address = f"127.0.0.1:{free_port()}"
        donor = parts.Daemon([machine.BIN / "ebb-donord", "--listen", address, "--memory", "2M", "--slab",
                              "1M", "--drain-timeout", "20s"], logs / "donor.log",
                             env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "EBB_RUN_DIR": str(tmp_path)})
        try:
            assert notify.recv(4096) == b"READY=1"
            with Borrower(type("Donor", (), {"address": address})) as b:
                b.map()
                donor.signal(signal.SIGTERM)
                told = notify.recv(4096)
                assert b"STOPPING=1" in told and b"EXTEND_TIMEOUT_USEC=30000000" in told
                assert notify.recv(4096).startswith(b"STATUS=draining, ")
                with pytest.raises((EOFError, ConnectionError)):
                    b.serve(lambda: False)
                assert donor.process.wait(30) == 0
        finally:
            donor.stop()


@only_tcp
def test_the_log_does_not_fill_up(donor_at):
    donor, began = donor_at(), time.monotonic()
    for _ in range(10):
        # Not more than an address may have at a time, however far behind the donor is.
        these = [connect(donor) for _ in range(30)]
        for s in these:
            s.sendall(b"nonsense" * 8)
        for s in these:
            assert closed(s)
            s.close()
    time.sleep(2)
    with connect(donor) as s:
        s.sendall(b"nonsense" * 8)
        assert closed(s)

    def lines():
        return machine.read(donor.log).count("malformed frame")

    def dropped():
        return sum(map(int, re.findall(r"(\d+) lines were not logged", machine.read(donor.log))))
    wait_for(lambda: lines() + dropped() == 301, 5, "not all lines are logged or counted")
    # 40 at once, and 10 a second.
    assert lines() < 50 + 10 * (time.monotonic() - began)


@only_tcp
def test_a_run_directory_is_one_donors(donor_at, tmp_path):
    first = donor_at()
    second = donor_at(run=first.run)
    wait_for(lambda: "another ebb-donord answers there" in machine.read(second.log), 5, "log line")
    assert first.ask()["pid"] == first.pid
    with Borrower(second) as b:
        assert b.map()
    second.stop()
    assert first.ask()["pid"] == first.pid, "the socket is the first one's"


def test_bad_options_of_memory(tmp_path):
    def run(*argv):
        return subprocess.run([machine.BIN / "ebb-donord", "--listen", "127.0.0.1:0", *argv],
                              text=True, capture_output=True, timeout=120)
    done = run("--memory", "auto", "--headroom", "1000T")
    assert done.returncode == 2 and "nothing to lend" in done.stderr
    done = run("--memory", "auto", "--machine", str(tmp_path))
    assert done.returncode == 1 and "meminfo" in done.stderr and "fixed --memory" in done.stderr
    done = run("--memory", "64M", "--headroom", "1G", "--machine", str(tmp_path))
    assert done.returncode == 1 and "meminfo" in done.stderr


def a_key(directory):
    key = directory / "spark.key"
    subprocess.run([machine.BIN / "ebbctl", "key", "create", key, "--name", "spark"], check=True)
    return key


@only_tcp
def test_kernels_need_a_key(tmp_path, donor_at):
    key = a_key(tmp_path)

    def start(*options):
        return subprocess.run([machine.BIN / "ebb-donord", "--listen", "127.0.0.1:0", "--memory", "1M",
                               "--slab", "1M", *options], text=True, capture_output=True, timeout=120)

    at = "192.0.2.1:7"
    done = start("--rdma-kernel", at)
    assert done.returncode == 5 and "--rdma-kernel: authentication required" in done.stderr
    # With a key it gets as far as the address, which no RDMA device has.
    done = start("--rdma-kernel", at, "--keys", key)
    assert done.returncode not in (0, 2) and "rdma" in done.stderr
    assert "authentication" not in done.stderr
    # Without, it lends by TCP alone.
    plain = donor_at(options=["--rdma-open", at, "--rdma-memory", "1T"])
    said = machine.read(plain.log)
    assert "--rdma-open: removed and ignored; to lend by RDMA use --rdma-kernel with --keys" in said
    assert "--rdma-memory: removed and ignored; kernel modules borrow from --memory" in said


@only_tcp
def test_limits_of_its_own_cgroup(donor_at, simulated):
    """Room is the machine's or that of the donor's cgroups, whichever is less."""
    m = simulated(1024, 900)
    own = m.directory / "cgroup" / "unit"
    own.mkdir(parents=True)
    (m.directory / "self").mkdir()
    (m.directory / "self/cgroup").write_text("4:memory:/unit\n0::/\n")

    def use(name, mib):
        m.replace(f"cgroup/unit/memory.{name}_in_bytes", f"{mib << 20}\n")
    use("limit", 84)
    use("usage", 4)
    done = subprocess.run([machine.BIN / "ebb-donord", "--listen", "127.0.0.1:0", "--memory", "32M",
                           "--slab", "1M", "--machine", str(m.directory)],
                          text=True, capture_output=True, timeout=120)
    assert done.returncode == 5 and "32.0 MiB are more than the 16.0 MiB" in done.stderr
    assert "cgroup/unit" in done.stderr and "MemoryMax=" in done.stderr
    donor = donor_at(memory="200M", options=m.options(32))

    def slabs():
        """How many there are; the cgroup uses as many MiB more."""
        told = donor.ask()
        n = sum(told["slabs"][k] for k in ("lent", "clean", "dirty", "coming", "going"))
        use("usage", 4 + n)
        return n, told
    # 84, less 4 in use and 64 for itself; and so it stays.
    def stays():
        """We tell the cgroup's use late on a busy machine: then there are more for a while."""
        end = time.monotonic() + 3
        while time.monotonic() < end:
            n, told = slabs()
            if n != 16:
                return None
            time.sleep(0.1)
        return told
    told = wait_for(stays, 13, "slabs")["machine"]
    assert told["limit"] == 84 << 20 and told["left"] == 64 << 20
    # It is lowered, and what is free goes.
    use("limit", 76)
    wait_for(lambda: slabs()[0] == 8, 10, "slabs that go")
