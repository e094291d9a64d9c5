# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebb_swap.ko and a donor on another machine, which runs lender.py.  The cable is pulled and plugged
in again, and the machine dies; no packet announces that, and none is rejected.
"""
import errno
import threading
import time
from pathlib import Path

import kmodule
import machine
import parts
import pytest
from cluster import Checker
from kmod_fixtures import disk, kernel_device, module  # noqa: F401
from kmodule import BACKUP, DONOR, SECOND, run
from kswap import NO_SESSION, Events, Refused
from machine import wait_for
from test_kmod_ahead import BLOCK, Flood, filled, last_priority, window
from test_kmod_ctl import A, SLABS, after, create, destroy, nothing_left, row, seen    # fixtures
from test_kmod_move import Users, fill

BORROWER = "10.9.0.2"
BOTH = DONOR | BACKUP
PEER = Path("/hostout/peer")


class Lender:
    """Controls the other machine by its results directory and by its emulator's monitor."""

    def __init__(self):
        assert PEER.exists(), "there is no other guest: see run.py --peer"
        run("modprobe", "virtio_console")
        self.monitor, = wait_for(lambda: list(Path("/dev").glob("vport*p1")), 10, "no port")
        self.cut = False

    def lend(self, memory="64M", keep="0", slab="4M"):
        """Kills the current ebb-donord and starts a new one, with session grace period @keep."""
        (PEER / "lent").unlink(missing_ok=True)
        (PEER / "wanted.part").write_text(f"{memory} {keep} {slab}")
        (PEER / "wanted.part").rename(PEER / "wanted")
        wait_for(self.lends, 60, "the other guest does not lend")

    def lends(self):
        assert not (PEER / "rc").exists(), machine.read(PEER / "output.log")
        return (PEER / "lent").exists()

    def pace(self, netem):
        """Applies @netem, words of tc, to the packets that it sends, and so to reads."""
        (PEER / "paced").unlink(missing_ok=True)
        (PEER / "pace.part").write_text(netem)
        (PEER / "pace.part").rename(PEER / "pace")
        wait_for((PEER / "paced").exists, 60, "the other guest does not pace")

    def pull(self):
        self.cut = True
        self.tell("set_link nic off")

    def put_back(self):
        self.tell("set_link nic on")
        self.cut = False

    def die(self):
        """Ends the emulator, unknown to the machine."""
        self.tell("quit")

    def tell(self, line):
        with open(self.monitor, "wb", buffering=0) as monitor:
            monitor.write(f"{line}\n".encode())


@pytest.fixture(scope="session")
def roce():
    kmodule.soft_roce_between(BORROWER)


@pytest.fixture(scope="session")
def other(roce):
    return Lender()


@pytest.fixture
def donor(other):
    """The lending machine; plugs its cable in again afterwards."""
    other.lend()
    yield other
    if other.cut:
        other.put_back()


@pytest.fixture
def keeper(donor):
    """The lending machine, whose donor retains sessions."""
    donor.lend(keep="60s")
    return donor


@pytest.fixture
def second(roce, logs):
    """second(): a donor on this machine, which the cable does not concern."""
    made = []

    def make():
        made.append(kmodule.RdmaDonor(logs / "second.log", address=BORROWER))
        return made[-1]

    yield make
    for local in made:
        local.stop()


def connected(d):
    """Connects to the donor once it is reachable again; returns the session."""
    def attempt():
        try:
            return d.connect()
        except OSError:
            return None

    return wait_for(attempt, 60, "no connection")


def sessions(d, state):
    return [s for s in d.netlink.status(d.number)["sessions"] if s["state"] == state]


def borrowed(d):
    """
    Maps all slabs at the donor, by a new session if needed: on a busy machine the emulated donor
    may be later than the module's half second, and lost.
    """
    try:
        live = [s["session"] for s in sessions(d, "live")] or [d.connect()]
        d.map(live[0], BOTH, [i for i, s in enumerate(d.slab_table()) if s["session"] == NO_SESSION])
        return True
    except OSError:
        return False


def wait_reads(d, count):
    start = d.counts()["read_donor"]
    wait_for(lambda: borrowed(d) and d.counts()["read_donor"] > start + count, 60,
             "no reads from the donor")


def wait_lost(d):
    """Waits for the loss of the session; returns its reason."""
    wait_for(lambda: not sessions(d, "live") and not sessions(d, "failed"), 20, "the session goes on")
    return sessions(d, "closed")[-1]["reason"]


def swapping(block, cgroup, logs):
    """Runs a program that swaps to @block and checks its pages."""
    checker = Checker(None, logs / "checker.log", ("--memory", 48, "--pause", 200),
                      enter=cgroup(limit_mib=24).enter)
    try:
        wait_for(lambda: machine.swaps()[block] > 4 << 10, 60, "pages on the device")
    except BaseException:
        checker.kill()
        raise
    return checker


def went_well(checker, d):
    told = checker.stop(timeout=240)
    assert told["bad"] == 0 and told["verified"] == told["pages"]
    n = d.counts()
    assert n["read_failed"] == n["write_failed"] == 0


def test_every_page_by_the_link(kernel_device, donor):
    """Pages are right, and there are no more messages than requests."""
    d = kernel_device()
    d.map(d.connect(), DONOR)
    fill(d, 7)
    assert sum((d.bad(first, 64, 7) for first in range(0, d.pages, 64)), []) == []
    n = d.counts()
    assert (n["write_donor"], n["read_donor"]) == (d.pages, d.pages)
    assert n["messages"] == n["requests"]
    assert n["read_backup"] == n["write_backup"] == n["donor_errors"] == 0


def test_what_a_miss_waits_for_beside_reads_ahead(kernel_device, keeper):
    """Measures without judging: the link, at 0.8 ms a page, is slower than the emulation."""
    d = kernel_device(mib=16)
    d.map(d.connect(), DONOR)
    versions = filled(d)
    keeper.pace("delay 2ms rate 40mbit limit 20000")

    def misses(count=400):
        took = []
        for i in range(count):
            page = i * 1237 % d.pages
            start = time.monotonic()
            assert d.bad(page, 1, versions[page]) == []
            took.append((time.monotonic() - start) * 1e3)
        return sorted(took)

    def said(what, took, pages=0):
        print(f"{what}: median {took[len(took) // 2]:.1f} ms, p99 {took[len(took) * 99 // 100]:.1f} ms; "
              f"{pages:.0f} pages a second ahead", flush=True)

    try:
        said("alone", misses())
        for sizes in ((128, 16), (128, 4), (0, 0)):
            window(*sizes)
            with Flood(d, versions, threads=16) as flood:
                wait_for(lambda: flood.blocks > 32, 60, "no reads ahead")
                start, at = time.monotonic(), flood.blocks
                took = misses() if sizes[1] else misses(100)
                pages = (flood.blocks - at) * BLOCK / (time.monotonic() - start)
            assert flood.wrong == flood.errors == []
            said(f"beside reads ahead, windows {sizes}", took, pages)
        window(128)
        with Flood(d, versions, threads=16) as flood:
            at = flood.blocks
            time.sleep(10)
            print(f"without misses: {(flood.blocks - at) * BLOCK / 10:.0f} pages a second ahead")
    finally:
        keeper.pace("delay 0ms")


def test_silent_donor_keeps_no_reads_of_another(kernel_device, donor, disk, logs):
    """A stuck prefetch read fills the window; one at another donor is admitted before the loss."""
    local = kmodule.RdmaDonor(logs / "local.log", address=BORROWER)
    try:
        d = kernel_device(backup=disk().path)
        d.map(d.connect(), BOTH, range(4))
        d.map(d.netlink.connect(d.number, BORROWER, kmodule.PORT), BOTH, range(4, 8))
        versions, ended = filled(d), []
        d.wait_behind()
        window(1)

        def read(page):
            last_priority()
            assert d.bad(page, 1, versions[page]) == []
            ended.append(page)

        readers = [threading.Thread(target=read, args=(page,)) for page in (0, d.pages - 1)]
        donor.pull()
        for held, reader in enumerate(readers):
            reader.start()
            wait_for(lambda: d.counts()["ahead"] == held + 1, 10, "not asked for")
        for reader in readers:
            reader.join(60)
        assert d.counts()["ahead_held"] == 1 and ended == [d.pages - 1, 0]
    finally:
        local.stop()


def test_cable_pulled_and_put_back_under_load(kernel_device, donor, disk):
    """The backup has all pages during the loss; then a new session gets copies."""
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    fill(d, 1)
    users = Users(d)
    wait_reads(d, 500)
    donor.pull()
    began = time.monotonic()
    assert d.bad(8, 8, 1) == []           # pages that no thread writes
    assert time.monotonic() - began < 20
    assert "retry" in wait_lost(d)
    start = d.counts()["read_backup"]
    wait_for(lambda: d.counts()["read_backup"] > start + 500, 60, "no reads from the backup")
    with pytest.raises(OSError):
        d.connect()
    donor.put_back()
    wait_for(lambda: borrowed(d) and not any(s["uncopied"] for s in d.slab_table()), 60,
             "the copier is not through")
    users.stop()
    d.wait_behind()
    before = d.counts()
    users.verify()
    n = d.counts()
    assert not sessions(d, "live") or n["read_donor"] - before["read_donor"] == d.pages
    assert n["read_failed"] == n["write_failed"] == 0


def test_pages_of_the_donor_alone_are_lost_and_not_read_old(kernel_device, donor, disk):
    """Stale content is read neither while the cable is out nor from the donor's later slabs."""
    d = kernel_device(backup=disk().path)
    d.write(0, 16, version=1)             # no donor yet: on the backup
    d.map(d.connect(), DONOR)
    d.write(0, 8, version=2)
    donor.pull()

    def lost():
        for page in range(8):
            with pytest.raises(OSError) as e:
                d.read(page, 1)
            assert e.value.errno == errno.EIO

    lost()
    d.wait_closed()
    donor.put_back()
    d.map(connected(d), DONOR)
    lost()
    assert d.bad(8, 8, 1) == []
    d.write(0, 8, version=3)
    assert d.bad(0, 8, 3) == []


def test_idle_donor_is_missed(kernel_device, donor):
    """No request runs into the pulled cable, and no packet announces it."""
    d = kernel_device()
    d.map(d.connect(), DONOR)
    time.sleep(3)
    assert sessions(d, "live")
    donor.pull()
    began = time.monotonic()
    assert "retry" in wait_lost(d)
    assert time.monotonic() - began < 15  # of which the transport takes a half, and the probe one
    assert sessions(d, "closed")[-1]["cause"] == "unreachable"
    assert {s["session"] for s in d.slab_table()} == {NO_SESSION}


def test_memory_of_a_disconnected_borrower_is_lent_again(kernel_device, donor, disk):
    """The donor gets no message, and detects the loss when another borrower needs memory."""
    donor.lend("32M")                     # as much as the device uses
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    donor.pull()
    d.write(0, 8, version=1)
    d.wait_closed()
    donor.put_back()
    again = connected(d)
    with pytest.raises(Refused) as e:
        d.map(again, BOTH)
    assert e.value.errno == errno.ENOSPC

    def mapped():
        try:
            d.map(again, BOTH, [0])
            return True
        except Refused:
            return False

    wait_for(mapped, 10, "the first session has its memory still")
    d.map(again, BOTH, range(1, d.slabs))
    d.write(0, 8, version=2)
    assert d.bad(0, 8, 2) == []
    assert d.session(again)["state"] == "live"


def test_ebbd_uses_the_donor_again(module, donor, disk, after, cgroup, seen, logs):
    """A program swaps all the time; only ebbd manages its device."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    checker = None
    try:
        create("--backup", disk(64).path, donors=A)
        d = seen()
        checker = swapping(f"/dev/ebb{d.number}", cgroup, logs)
        wait_for(lambda: d.held() == {A: SLABS}, 60, "not all slabs are there")
        start = d.counts()["read_donor"]
        wait_for(lambda: d.counts()["read_donor"] > start + 500, 60, "no reads from the donor")
        donor.pull()
        wait_for(lambda: d.held() == {None: SLABS}, 60, "the slabs are still there")
        start = d.counts()["read_backup"]
        wait_for(lambda: d.counts()["read_backup"] > start + 500, 60, "no reads from the backup")
        donor.put_back()
        wait_for(lambda: d.held() == {A: SLABS}, 60, "not all slabs are there again")
        went_well(checker, d)
        destroy()
        nothing_left()
    finally:
        if checker:
            checker.kill()
        destroy(check=False)
        ebbd.stop()
        machine.pins_remove()


def wait_state(d, session, state, seconds=60):
    wait_for(lambda: d.session(session)["state"] == state, seconds, f"the session is not {state}")


class Readers:
    """Threads that read pages of version 1 all the time."""

    def __init__(self, d, count=4):
        self.d, self.failed, self.read, self.stopping = d, [], 0, False
        d.open()
        d.users.append(self)
        self.threads = [threading.Thread(target=self.use, args=(i,)) for i in range(count)]
        for t in self.threads:
            t.start()

    def use(self, which):
        page = which * 1000
        while not self.stopping:
            page = (page + 1237) % (self.d.pages - 4)
            try:
                self.failed += self.d.bad(page, 4, 1)
            except OSError as e:
                self.failed.append(e)
            self.read += 1

    def end(self):
        self.stopping = True
        for t in self.threads:
            t.join()

    def wait(self, count=100):
        start = self.read
        wait_for(lambda: self.read > start + count, 60, "no reads")


@pytest.mark.parametrize("seconds", (1, 5, 20))
def test_reads_wait_for_the_only_donor(kernel_device, keeper, seconds):
    """The cable is out for a while: no read fails or is wrong, and the session is the same."""
    d = kernel_device()
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    readers = Readers(d)
    readers.wait()
    keeper.pull()
    time.sleep(seconds)
    if seconds > 3:
        told = d.session(session)
        assert told["state"] == "away" and told["cause"] == "unreachable" and told["away"] > 0
        assert [s["session"] for s in d.slab_table()] == [session] * d.slabs
    keeper.put_back()
    readers.wait()
    wait_state(d, session, "live")
    assert "away" not in d.session(session)
    readers.end()
    assert readers.failed == []
    assert sum((d.bad(first, 64, 1) for first in range(0, d.pages, 64)), []) == []
    d.write(0, 64, 2)
    assert d.bad(0, 64, 2) == []
    assert d.counts()["read_failed"] == d.counts()["write_failed"] == 0


def receives_missed():
    """Returns how often a peer had no receive for a message."""
    counters = list(Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/rcvd_rnr_err"))
    assert counters
    return sum(int(c.read_text()) for c in counters)


def test_many_slabs_are_resumed_together(kernel_device, keeper):
    """Twelve REMAPs at a time, for which the donor always has receives."""
    keeper.lend("128M", keep="60s", slab="1M")
    d = kernel_device(mib=100, slab_mib=1)
    session = d.connect()
    d.map(session, DONOR)
    for slab in range(d.slabs):
        d.write(slab << 8, 4, 1)
    for _ in range(2):
        keeper.pull()
        wait_state(d, session, "away")
        keeper.put_back()
        wait_state(d, session, "live")
        assert [s["session"] for s in d.slab_table()] == [session] * d.slabs
        assert sum((d.bad(slab << 8, 4, 1) for slab in range(d.slabs)), []) == []
    assert receives_missed() == 0
    assert d.counts()["read_failed"] == d.counts()["write_failed"] == 0


def test_writes_to_a_donor_that_is_away_fail(kernel_device, keeper):
    """They are held for two seconds.  A page that was not written is not read old."""
    d = kernel_device()
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    events = Events()
    keeper.pull()
    told = events.next()
    assert (told["event"], told["session"]) == ("away", session) and "retry" in told["reason"]
    wait_state(d, session, "away")
    began = time.monotonic()
    with pytest.raises(OSError) as e:
        d.write(8, 8, 2)
    assert e.value.errno == errno.EIO and time.monotonic() - began < 10
    keeper.put_back()
    wait_state(d, session, "live")
    assert events.next()["event"] == "back"
    events.close()
    with pytest.raises(OSError):
        d.read(8, 8)
    assert d.bad(0, 8, 1) == d.bad(16, 48, 1) == []
    d.write(8, 8, 3)
    assert d.bad(8, 8, 3) == []


@pytest.mark.parametrize("seal", (False, True))
def test_requests_that_wait_hinder_no_others(kernel_device, keeper, second, seal):
    """More wait than a sealed device has buffers; requests to another donor go on."""
    second()
    d = kernel_device(seal=seal)
    away = d.connect()
    d.map(away, DONOR, range(4))
    d.map(d.netlink.connect(d.number, BORROWER, kmodule.PORT), DONOR, range(4, 8))
    fill(d, 1)
    keeper.pull()
    wait_state(d, away, "away")
    failed, began = [], d.counts()["away_waits"]

    def read(page):
        try:
            failed.extend(d.bad(page, 4, 1))
        except OSError as e:
            failed.append(e)

    def write(page):
        try:
            d.write(page, 4, 2)
        except OSError:
            pass                          # it was held for two seconds

    threads = [threading.Thread(target=read, args=(i * 8,)) for i in range(24)]
    threads += [threading.Thread(target=write, args=(1024 + i * 8,)) for i in range(24)]
    for t in threads:
        t.start()
    wait_for(lambda: d.counts()["away_waits"] - began == 48, 60, "they do not wait")
    for first in range(d.pages // 2, d.pages // 2 + 512, 16):
        d.write(first, 8, 2)
        assert d.bad(first, 16, 2) == list(range(first + 8, first + 16))
    assert all(t.is_alive() for t in threads[:24]) and failed == []
    keeper.put_back()
    for t in threads:
        t.join()
    assert failed == []


def test_swap_out_goes_on_beside_a_donor_that_is_away(kernel_device, keeper, second, cgroup):
    """
    One program waits for the donor, another one swaps out to both donors, with the kernel's default
    write-back throttling.  What the absent donor does not take stays in memory.
    """
    second()
    keeper.lend("96M", keep="60s")
    d = kernel_device(mib=128)
    away, local = d.connect(), d.netlink.connect(d.number, BORROWER, kmodule.PORT)
    # The kernel takes slots of 2 MiB by turns from each 64 MiB: here from both donors.
    shared = [(i + i // 16) % 2 for i in range(d.slabs)]
    d.map(away, DONOR, [i for i, which in enumerate(shared) if which == 0])
    d.map(local, DONOR, [i for i, which in enumerate(shared) if which == 1])
    d.swap_on(latency_us=None)
    waiting = parts.Scan(mib=32, cgroup=cgroup(16))
    filled, limited = None, cgroup(16)
    try:
        keeper.pull()
        wait_state(d, away, "away", 120)
        before = d.counts()
        waiting.go()
        wait_for(lambda: d.counts()["away_waits"] > before["away_waits"], 60, "it does not wait")
        time.sleep(1)                     # ten windows of write-back throttling
        began = time.monotonic()
        filled = parts.Scan(mib=22, cgroup=limited)
        assert time.monotonic() - began < 15
        n = d.counts()
        assert d.session(away)["state"] == "away"
        assert n["write_donor"] - before["write_donor"] > 4 << 8
        assert n["write_failed"] > before["write_failed"]
        keeper.put_back()
        filled.go()
        assert filled.result()["bad"] == waiting.result()["bad"] == 0
        assert limited.events("oom_kill") == 0 and d.counts()["read_failed"] == 0
    finally:
        for scan in (waiting, filled):
            if scan:
                scan.kill()


def test_reads_wait_for_their_donor_if_the_backup_fails(kernel_device, keeper, disk):
    """The donor and the disk have all pages; the donor is away, and the disk returns errors."""
    ram = disk()
    d = kernel_device(backup=ram.path)
    session = d.connect()
    d.map(session, BOTH)
    fill(d, 1)
    d.wait_behind()
    keeper.pull()
    wait_state(d, session, "away")
    ram.fail()
    told = []
    reader = threading.Thread(target=lambda: told.append(d.bad(0, 64, 1)))
    reader.start()
    wait_for(lambda: d.counts()["away_waits"] or not reader.is_alive(), 60, "it does not wait")
    keeper.put_back()
    reader.join()
    assert told == [[]]
    n = d.counts()
    assert n["backup_errors"] > 0 and n["read_failed"] == 0


def test_reads_wait_no_longer_than_away_timeout(kernel_device, keeper):
    parameter = Path("/sys/module/ebb_swap/parameters/away_timeout")
    d = kernel_device()
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    before = parameter.read_text()
    parameter.write_text("1000")
    try:
        keeper.pull()
        wait_state(d, session, "away")
        with pytest.raises(OSError) as e:
            d.read(0, 1)
        assert e.value.errno == errno.EIO
    finally:
        parameter.write_text(before)
    keeper.put_back()
    wait_state(d, session, "live")
    assert d.bad(0, 64, 1) == []          # nothing was lost


def test_pages_written_meanwhile_are_repaired(kernel_device, keeper, second):
    """The donor that was away has older pages: they are not read before they are repaired."""
    local = second()
    d = kernel_device()
    away = d.connect()
    d.map(away, DONOR)
    other = d.netlink.connect(d.number, BORROWER, kmodule.PORT)
    d.map(other, DONOR | SECOND)
    fill(d, 1)
    d.wait_copied()
    copied = d.counts()["copied"]
    keeper.pull()
    wait_state(d, away, "away", 120)
    for first in range(0, d.pages, 256):
        d.write(first, 32, 2)
    keeper.put_back()
    while d.session(away)["state"] != "live":
        assert d.bad(0, 32, 2) == d.bad(256, 32, 2) == []
    wait_for(lambda: d.counts()["copied"] - copied >= d.pages // 8, 60, "no repair")
    d.wait_copied()
    # Nothing else is copied.
    assert d.counts()["copied"] - copied < d.pages // 4
    local.kill()
    d.wait_closed(other)
    for first in range(0, d.pages, 256):
        assert d.bad(first, 32, 2) == d.bad(first + 32, 224, 1) == []
    assert d.counts()["read_failed"] == d.counts()["write_failed"] == 0


@pytest.mark.parametrize("seconds", (1, 5, 20))
def test_swapping_to_two_donors_while_one_is_away(kernel_device, keeper, second, cgroup, logs, seconds):
    second()
    d = kernel_device(mib=64)
    keeper.lend("96M", keep="60s")
    away = d.connect()
    d.map(away, DONOR)
    d.map(d.netlink.connect(d.number, BORROWER, kmodule.PORT), DONOR | SECOND)
    d.swap_on()
    checker = swapping(d.path, cgroup, logs)
    try:
        keeper.pull()
        time.sleep(seconds)
        keeper.put_back()
        wait_state(d, away, "live", 120)
        d.wait_copied(120)
        went_well(checker, d)
    finally:
        checker.kill()


@pytest.mark.parametrize("seconds", (1, 5, 20))
def test_swapping_to_one_donor_while_it_is_away(kernel_device, keeper, cgroup, logs, seconds):
    """
    No other place has the pages: reads wait for the donor.  A write is held for two seconds, then
    it fails and the kernel keeps the page in memory; the program sees neither.
    """
    keeper.lend("96M", keep="60s")
    d = kernel_device(mib=64)
    session = d.connect()
    d.map(session, DONOR)
    d.swap_on()
    checker = swapping(d.path, cgroup, logs)
    try:
        keeper.pull()
        time.sleep(seconds)
        if seconds > 3:
            assert sessions(d, "away")
        keeper.put_back()
        wait_state(d, session, "live", 120)
        told = checker.stop(timeout=240)
        assert told["bad"] == 0 and told["verified"] == told["pages"]
        assert d.counts()["read_failed"] == 0
    finally:
        checker.kill()


class Bond:
    """The link to the other machine by two interfaces with different MACs, one of them active."""

    address = "10.9.0.3"

    def __init__(self):
        run("modprobe", "bonding", "max_bonds=0")
        run("modprobe", "macvlan")
        # Only the bond answers for its address.
        run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
        run("ip", "link", "add", "bond9", "type", "bond", "mode", "active-backup",
            "fail_over_mac", "active", "miimon", "100")
        for name in ("mv0", "mv1"):
            run("ip", "link", "add", name, "link", "eth0", "type", "macvlan", "mode", "bridge")
            run("ip", "link", "set", name, "master", "bond9")
        run("ip", "link", "set", "bond9", "mtu", "4200", "up")
        run("ip", "addr", "add", f"{self.address}/32", "dev", "bond9")
        run("ip", "route", "add", f"{kmodule.ADDRESS}/32", "dev", "bond9", "src", self.address)
        kmodule.rxe_add("bond9", self.address, "rxe9")

    def active(self):
        return Path("/sys/class/net/bond9/bonding/active_slave").read_text().strip()

    def fail_over(self):
        other = "mv1" if self.active() == "mv0" else "mv0"
        run("ip", "link", "set", "bond9", "type", "bond", "active_slave", other)

    def remove(self):
        run("rdma", "link", "delete", "rxe9")
        for name in ("bond9", "mv0", "mv1"):
            run("ip", "link", "delete", name)
        run("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=0")


@pytest.fixture
def bond(keeper):
    made = Bond()
    yield made
    made.remove()


def test_address_moves_to_another_interface(bond, kernel_device):
    """The session is resumed by the new interface: nothing is lost, and no request fails."""
    d = kernel_device()
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    readers, events = Readers(d), Events()
    readers.wait()
    for _ in range(3):
        bond.fail_over()
        told = events.next()
        assert (told["event"], told["session"]) == ("away", session)
        # The queue pair may be flushed, or fail to send, before the kernel reports the cause.
        assert told["reason"] in ("the network address changed", "the connection to the donor broke",
                                  "local QP operation error")
        assert events.next(60)["event"] == "back"
        readers.wait()
        time.sleep(6)                     # a failure sooner continues the absence
    events.close()
    readers.end()
    assert readers.failed == []
    assert sum((d.bad(first, 64, 1) for first in range(0, d.pages, 64)), []) == []
    assert d.session(session)["state"] == "live"
    assert d.counts()["read_failed"] == d.counts()["write_failed"] == 0


def test_writers_while_the_cable_is_out_again_and_again(kernel_device, keeper, second):
    second()
    d = kernel_device()
    away = d.connect()
    d.map(away, DONOR)
    d.map(d.netlink.connect(d.number, BORROWER, kmodule.PORT), DONOR | SECOND)
    fill(d, 1)
    users = Users(d)
    for seconds in (0.2, 0.8, 2, 1, 4):
        keeper.pull()
        time.sleep(seconds)
        keeper.put_back()
        time.sleep(3)
    wait_state(d, away, "live")
    users.stop()
    d.wait_copied()
    users.verify()
    assert d.counts()["read_failed"] == d.counts()["write_failed"] == 0


def test_donor_that_restarted_has_retained_nothing(kernel_device, keeper):
    """The session ends with the first answer of the new process; its pages are lost, not old."""
    d = kernel_device()
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    keeper.lend(keep="60s")
    d.wait_closed(session, 60)
    with pytest.raises(OSError):
        d.read(0, 1)


def test_grace_period_is_over(kernel_device, donor):
    donor.lend(keep="3s")
    d = kernel_device()
    session = d.connect()
    d.map(session, DONOR)
    fill(d, 1)
    donor.pull()
    wait_state(d, session, "away")
    with pytest.raises(OSError):
        d.read(0, 1)
    d.wait_closed(session)
    donor.put_back()
    d.map(connected(d), DONOR)
    with pytest.raises(OSError):
        d.read(0, 1)


def test_ebbd_replaces_no_donor_that_is_back_soon(module, keeper, after, seen, logs):
    """Without a backup, its session goes on."""
    def told():
        return row("donor", "address", A)

    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        create("--durability", "none", donors=A)
        d = seen()
        wait_for(lambda: d.held() == {A: SLABS}, 60, "not all slabs are there")
        session = sessions(d, "live")[0]["session"]
        keeper.pull()
        wait_for(lambda: sessions(d, "away"), 60, "the session is not away")
        wait_for(lambda: told()["state"] == "away", 20, "ebbd does not report it")
        keeper.put_back()
        wait_for(lambda: sessions(d, "live"), 60, "the session is not back")
        wait_for(lambda: told()["state"] == "up", 20, "ebbd does not report it")
        assert sessions(d, "live")[0]["session"] == session and d.held() == {A: SLABS}
        assert (told()["absences"], told()["losses"]) == (1, 0)
        destroy()
        nothing_left()
    finally:
        destroy(check=False)
        ebbd.stop()
        machine.pins_remove()


def test_machine_dies_under_a_swapping_program(kernel_device, donor, disk, cgroup, logs):
    """The last test: the other machine does not return."""
    d = kernel_device(mib=64, backup=disk(64).path)
    d.map(d.connect(), BOTH)
    d.swap_on()
    checker = swapping(d.path, cgroup, logs)
    try:
        wait_reads(d, 1000)
        donor.die()
        assert "retry" in wait_lost(d)
        start = d.counts()["read_backup"]
        wait_for(lambda: d.counts()["read_backup"] > start + 1000, 90, "no reads from the backup")
        went_well(checker, d)
    finally:
        checker.kill()
