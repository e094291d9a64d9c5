# SPDX-License-Identifier: GPL-2.0-or-later
"""
One borrower and four donors, a machine each, under load: whatever happens to donors,
links and disks, no page is lost, stale or exchanged.  The verdict is the checker's; that
a fault did happen is told by ebb-swapd's counters.  See tests/chaos.
"""
import mmap
import os
import time

import pytest

from chaosworld import PAGE, UNSEALED, load, lost, serve, verdict, wait_lost
from chaosworld import cluster, lossy, machines, nothing_left    # fixtures
from cluster import Checker, Loop
from machine import MachineError, wait_for
from rows import few
from thin import ThinDisk

pytestmark = pytest.mark.beside

MIB = 1 << 20
# No donor is lost because the machine is busy: where that would cost pages, or is counted.
PATIENT = ("--deadline", "5s")


# --- the checker itself: what it is for, it finds -------------------------------------


class Plain:
    """A plain file under the checker, and direct I/O behind its back."""

    def __init__(self, path, size=4 * MIB):
        self.size = size
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.ftruncate(self.fd, size)

    def read(self):
        with mmap.mmap(-1, self.size) as buf:
            assert os.preadv(self.fd, [buf], 0) == self.size
            return buf[:]

    def write(self, data, page=0):
        with mmap.mmap(-1, len(data)) as buf:
            buf[:] = data
            assert os.pwritev(self.fd, [buf], page * PAGE) == len(data)


def pages_of(data):
    return [data[at:at + PAGE] for at in range(0, len(data), PAGE)]


def started(checker):
    wait_for(lambda: checker.operations() > 200 or checker.failed(), 10, "its work")


def make_stale(plain):
    """Every page is what it was a moment ago, but for those that were empty."""
    before = pages_of(plain.read())

    def changed():
        time.sleep(0.4)
        now = pages_of(plain.read())
        found = [i for i, old in enumerate(before) if any(old) and old != now[i]]
        return len(found) > 20 and found
    for i in wait_for(changed, 10, "pages that are written again"):
        plain.write(before[i], i)


def make_exchanged(plain):
    """Pages with something in them, each in its neighbour's place."""
    pages = [(i, page) for i, page in enumerate(pages_of(plain.read())) if any(page)]
    for (i, _), (_, other) in zip(pages, pages[1:]):
        plain.write(other, i)


def make_lost(plain):
    plain.write(bytes(plain.size))


def make_altered(plain):
    data = bytearray(plain.read())
    for at in range(2000, len(data), PAGE):
        data[at] ^= 4
    plain.write(data)


@pytest.mark.parametrize("what", few(["stale", "exchanged", "lost", "altered"], "stale", "altered"))
def test_checker_finds_what_is(what, tmp_path, logs):
    plain = Plain(tmp_path / "file")
    checker = Checker(tmp_path / "file", logs / "checker.log", ["--pause", 500])
    try:
        started(checker)
        time.sleep(0.4)
        assert not checker.failed()
        globals()[f"make_{what}"](plain)
        wait_for(checker.failed, 10, f"what is {what} is found")
        assert f" is {what}: thread " in checker.failed()
        assert "acknowledged" in checker.failed(), "the page's last operations"
        with pytest.raises(MachineError):
            checker.stop()
    finally:
        checker.kill()
        os.close(plain.fd)


def test_checker_is_content_with_a_plain_file(tmp_path, logs):
    plain = Plain(tmp_path / "file")
    checker = Checker(tmp_path / "file", logs / "checker.log", ["--threads", 8])
    try:
        started(checker)
        time.sleep(1)
        told = checker.stop()
        assert told["bad"] == 0 and told["verified"] == told["pages"] == plain.size // PAGE
        assert min(told[k] for k in ("reads", "writes", "discards", "same_filled")) > 0
    finally:
        checker.kill()
        os.close(plain.fd)


# --- the cluster ----------------------------------------------------------------------


def test_a_quiet_day(cluster):
    b = serve(cluster, options=PATIENT)
    c = load(cluster, b, ["--threads", 8], seconds=1)
    verdict(c, b)
    assert b.stats()["pages_read_donor"] > 100
    assert min(d["slabs"] for d in b.status()["donors"]) >= 4, "all four lend"


def test_through_the_loop_device(cluster):
    """As swap uses it, discards included."""
    b = serve(cluster)
    loop = Loop(b.file)
    try:
        c = cluster.check(b, ["--pause", 300], path=loop.device)
        cluster.work(0.6)
        cluster.donors[0].kill()
        wait_lost(cluster, b, 0)
        cluster.work(1)
        verdict(c, b)
    finally:
        for c in cluster.checkers:
            c.kill()
        loop.close()


def test_donor_killed_and_restarted(cluster):
    b = serve(cluster, options=PATIENT)
    c = load(cluster, b)
    before = b.status()["donors"][0]
    cluster.donors[0].kill()
    wait_lost(cluster, b, 0)
    cluster.work(0.3)
    cluster.donors[0].start()
    cluster.all_up(b)
    cluster.work(0.4)
    verdict(c, b)
    after = b.status()["donors"][0]
    # Each connection beyond these follows a time in which the machine was too busy for an answer.
    for connects, donor in ((1, before), (before["connects"] + 1, after)):
        assert donor["connects"] == connects or \
            donor["last_loss"] == "no reply within the deadline", f"{before} {after}"


def test_all_donors_killed(cluster):
    b = serve(cluster)
    c = load(cluster, b)
    for d in cluster.donors:
        d.kill()
    wait_lost(cluster, b, 0, 1, 2, 3)
    cluster.work(0.7)
    # A donor may have been away before it was killed.
    cluster.wait(lambda: b.status()["slabs"]["mapped"] == 0, 5, "no slab at a donor")
    for d in cluster.donors:
        d.start()
    cluster.all_up(b)
    cluster.work(0.7)
    cluster.wait(lambda: b.status()["slabs"]["mapped"] > 0, 5, "memory is used again")
    verdict(c, b)


def test_donor_stopped_and_continued(cluster):
    """What it still had on its way when it was given up must not show later."""
    b = serve(cluster)
    c = load(cluster, b)
    cluster.donors[1].stop()
    wait_lost(cluster, b, 1)
    cluster.work(0.4)
    cluster.donors[1].go_on()
    cluster.all_up(b)
    cluster.work(0.5)
    verdict(c, b)


def test_link_down_and_up(cluster):
    """One donor's silence is not held against the others, which take over its requests."""
    b = serve(cluster, options=("--deadline", "1500ms"))
    c = load(cluster, b)
    # A busy machine may lose others, too, but not each time.
    for _ in range(6):
        before = b.losses()
        cluster.donors[1].node.unplug()
        cluster.wait(lambda: b.losses()[1] > before[1], 5, "loss")
        cluster.work(0.5)
        cluster.donors[1].node.plug()
        cluster.all_up(b)
        cluster.work(0.5)
        losses = [now - then for now, then in zip(b.losses(), before)]
        if losses == [0, 1, 0, 0]:
            break
    verdict(c, b)
    assert losses == [0, 1, 0, 0]


def test_borrower_cut_off(cluster):
    """All donors disconnect at once, and still hold old loans when they are reachable again."""
    b = serve(cluster)
    c = load(cluster, b)
    cluster.node.unplug()
    wait_lost(cluster, b, 0, 1, 2, 3)
    cluster.work(0.5)
    cluster.node.plug()
    cluster.all_up(b)
    cluster.work(0.7)
    verdict(c, b)
    assert b.stats()["donor_absences"] >= 4


@pytest.mark.parametrize("direction", few(["from", "to"], "to"))
def test_one_way_loss(lossy, direction):
    """The donor hears and cannot answer; the donor cannot hear."""
    b = serve(lossy)
    c = load(lossy, b)
    node = lossy.donors[2].node
    node.lose(direction)
    wait_lost(lossy, b, 2)
    lossy.work(0.5)
    lossy.wait(lambda: node.lost() > 0, 5, "lost packets")
    node.heal()
    lossy.all_up(b)
    lossy.work(0.5)
    verdict(c, b)
    assert lost(b, 2)


def test_lossy_link(lossy):
    """A tenth of all packets: donors may be lost for a while, pages never."""
    b = serve(lossy)
    nodes = [d.node for d in lossy.donors[:2]]
    before = lossy.node.retransmitted()
    for n in nodes:
        n.lose("from", 10)
        n.lose("to", 10)
    c = load(lossy, b, seconds=2)
    lossy.wait(lambda: min(n.lost() for n in nodes) > 0, 5, "lost packets")
    lossy.wait(lambda: lossy.node.retransmitted() > before, 5, "segments sent again")
    for n in nodes:
        n.heal()
    lossy.all_up(b)
    verdict(c, b)


def test_slow_link(cluster):
    why = cluster.network.lacks("delay")
    if why:
        pytest.skip(why)
    b = serve(cluster)
    cluster.donors[0].node.delay("20ms 15ms")
    try:
        c = load(cluster, b, seconds=3)
        cluster.wait(lambda: sum(b.stats()["donor_read_ns_log2"][23:]), 5, "reads of 8 ms and more")
    finally:
        cluster.network.switch.run("tc", "qdisc", "del", "dev", cluster.donors[0].node.port, "root")
    verdict(c, b)


# --- the disk -------------------------------------------------------------------------

def test_backup_disk_full(cluster):
    """Donors have every page meanwhile, so nothing fails; afterwards the disk is used again."""
    b = serve(cluster, options=PATIENT)
    c = load(cluster, b)
    b.disk_full()
    cluster.wait(lambda: b.status()["backup"]["failing"], 5, "failing backup")
    cluster.work(1)
    b.disk_empty()
    cluster.work(0.5)
    verdict(c, b)
    assert b.stats()["backup_errors"] > 0


def test_thin_disk_full(cluster, tmp_path):
    """The backup was preallocated, and the disk below its file system is full all the same."""
    thin = ThinDisk(tmp_path)
    try:
        b = serve(cluster, backup=thin.directory / "backup", options=PATIENT)
        c = load(cluster, b)
        cluster.wait(lambda: b.status()["backup"]["failing"], 10, "failing backup")
        cluster.work(0.5)
        thin.grow()
        cluster.work(0.5)
        verdict(c, b)
    finally:
        cluster.end_load()
        thin.close()


def test_disk_full_and_donor_killed(cluster):
    """Pages that only the donor had are lost: reads fail, and none returns old content."""
    b = serve(cluster, options=("--deadline", "300ms", *UNSEALED))
    c = load(cluster, b, ["--pause", 300, "--errors"])
    b.disk_full()
    cluster.wait(lambda: b.status()["backup"]["failing"], 5, "failing backup")
    cluster.work(0.5)
    cluster.donors[0].kill()
    wait_lost(cluster, b, 0)
    cluster.work(0.5)
    b.disk_empty()
    cluster.donors[0].start()
    cluster.all_up(b)
    cluster.work(0.5)
    assert verdict(c, b, errors=None)["read_errors"] > 0


# --- several devices ------------------------------------------------------------------


def test_two_devices_at_the_same_donors(cluster):
    """Never a page of the other's, also of slabs that go from one to the other."""
    a, b = serve(cluster, "dp0"), serve(cluster, "dp1")
    crew = [load(cluster, a), load(cluster, b)]
    cluster.donors[0].kill()
    cluster.wait(lambda: lost(a, 0) and lost(b, 0), 5, "loss")
    cluster.donors[0].start()
    cluster.all_up(a)
    cluster.all_up(b)
    # The first one's released slabs are lent to the second.
    verdict(crew[0], a)
    a.close()
    cluster.borrowers.remove(a)
    cluster.work(1)
    verdict(crew[1], b)


def test_slabs_return_to_their_donors(cluster):
    """Also from a borrower that was killed."""
    first = serve(cluster)
    load(cluster, first)
    cluster.end_load()
    b = cluster.serve("dp0")
    cluster.all_up(b)
    cluster.wait(lambda: all(d["free"] == d["total"] for d in b.status()["donors"]), 5, "slabs are free")
    load(cluster, b)
    cluster.checkers.pop().kill()
    cluster.borrowers.pop().die()
    b = serve(cluster, "dp1")
    cluster.wait(lambda: all(d["free"] == d["total"] for d in b.status()["donors"]), 10,
                 "slabs of the dead are free")
