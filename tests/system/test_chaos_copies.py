# SPDX-License-Identifier: GPL-2.0-or-later
"""
Replicas under load: replicas instead of a disk, migration between donors, recalled
memory.  As in test_chaos.py the checker gives the verdict, and ebb-swapd's counters
tell what happened.
"""
import ctypes
import itertools
import mmap
import os
import random

import pytest

from chaosworld import PAGE, UNSEALED, load, serve, verdict, wait_lost
from chaosworld import cluster, lossy, machines, nothing_left    # fixtures
from faults import altered, control_plane_killed
from rows import few

pytestmark = pytest.mark.beside

MIB = 1 << 20
KEYED = True
# Long deadlines where a donor that is lost by mere slowness would cost pages.
REPLICAS = ("--durability", "replicas=2", "--deadline", "5s")
NOTHING = ("--durability", "none", "--deadline", "300ms")
PATIENT = ("--durability", "none", "--deadline", "5s")


def made_whole(cluster, b, seconds=20):
    cluster.wait(b.whole, seconds, "every copy in its place")


def held(b, donor):
    """How many slabs this donor has of the device."""
    return b.donor(donor.address)["slabs"]


# --- replicas ---------------------------------------------------------------------------


def test_replicas_are_enough(cluster):
    """One donor after the other is killed, there is no disk, and no page is missed."""
    b = serve(cluster, backup=False, options=REPLICAS)
    c = load(cluster, b)
    for i in (0, 1):
        made_whole(cluster, b)
        cluster.donors[i].kill()
        wait_lost(cluster, b, i)
        made_whole(cluster, b)
        cluster.work(0.3)
        cluster.donors[i].start()
        cluster.all_up(b)
    verdict(c, b)
    told = b.stats()
    assert told["pages_repaired"] > 100 and told["pages_read_failed"] == 0


@pytest.mark.parametrize("direction", few(["from", "to"], "from"))
def test_replicas_and_one_way_loss(lossy, direction):
    """What one donor did not hear, or could not say, does not make the copies differ."""
    # The deadline is waited for.
    b = serve(lossy, backup=False, options=("--durability", "replicas=2", "--deadline", "2500ms"))
    c = load(lossy, b)
    made_whole(lossy, b)
    node = lossy.donors[1].node
    node.lose(direction)
    wait_lost(lossy, b, 1)
    lossy.work(0.3)
    node.heal()
    lossy.all_up(b)
    made_whole(lossy, b)
    # From now on the remaining donor serves reads.
    lossy.donors[2].kill()
    lossy.work(0.5)
    verdict(c, b)


def test_all_replicas_lost(cluster):
    """Two donors at once are more than two copies bear: errors, and never an old page."""
    b = serve(cluster, backup=False, options=(*REPLICAS, *UNSEALED))
    c = load(cluster, b, ["--pause", 300, "--errors"], seconds=1)
    for d in cluster.donors[:3]:
        d.kill()
    wait_lost(cluster, b, 0, 1, 2)
    cluster.work(0.5)
    for d in cluster.donors[:3]:
        d.start()
    cluster.all_up(b)
    cluster.work(0.7)
    assert verdict(c, b, errors=None)["read_errors"] > 0


def test_no_durability_says_so(cluster):
    """A lost donor's pages are errors until they are written again."""
    b = serve(cluster, backup=False, options=(*NOTHING, *UNSEALED))
    c = load(cluster, b, ["--pause", 300, "--errors"])
    cluster.donors[0].kill()
    wait_lost(cluster, b, 0)
    cluster.work(0.5)
    cluster.donors[0].start()
    cluster.all_up(b)
    cluster.work(0.5)
    assert verdict(c, b, errors=None)["read_errors"] > 0


# --- donors that lie ----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("how", ["flip", "swap"])
def test_lying_donor(cluster, how):
    """Found, read from the other copy, and not used any more until it is trusted again."""
    b = serve(cluster, backup=False, options=REPLICAS)
    c = load(cluster, b)
    made_whole(cluster, b)
    liar = cluster.donors[1]
    cluster.wait(lambda: liar.lie(how) > 50, 5, "pages to alter")
    # A copy that answers later is read now and then only, and by then the load may have
    # overwritten the altered pages.
    for _ in range(100):
        if b.donor(liar.address)["bad_pages"]:
            break
        cluster.work(0.3)
        liar.lie(how)
    cluster.wait(lambda: b.states()[1] == "quarantined", 30, "quarantine")
    made_whole(cluster, b)
    assert held(b, liar) == 0
    liar.kill()
    liar.start()
    assert b.trust(liar.address)
    cluster.all_up(b)
    cluster.work(0.3)
    verdict(c, b)


@pytest.mark.parametrize("direction, durability", few(itertools.product(("from", "to"), ("disk", "replicas=2", "none")),
                                                      ("from", "none"), ("to", "replicas=2")))
def test_pages_altered_on_the_way(lossy, direction, durability):
    """Costs the connection, and no page, sealed or not; the donor is not quarantined for two of them."""
    cluster, donor = lossy, lossy.donors[1]
    b = serve(cluster, backup=durability == "disk",
              options=("--durability", durability, "--deadline", "5s", *UNSEALED))
    c = load(cluster, b)
    for n in (1, 2):
        with altered(donor, direction):
            cluster.wait(lambda: b.donor(donor.address)["altered"] == n, 20, "an altered page")
        cluster.all_up(b)
        cluster.work(0.3)
    assert b.stats()["pages_bad_donor"] == 0
    verdict(c, b)


# --- moving -----------------------------------------------------------------------------


@pytest.mark.parametrize("durability", few(["disk", "replicas=2", "none"], "replicas=2"))
def test_slabs_move_under_load(cluster, durability):
    b = serve(cluster, backup=durability == "disk",
              options=("--durability", durability, "--deadline", "5s"))
    c = load(cluster, b)
    before, rnd, taken = b.slabs(), random.Random(1), 0
    for _ in range(20):
        taken += b.move(rnd)
        cluster.work(0.05, 20)
    assert taken > 8, "orders to move"

    def moved():
        """On a busy machine there may have been little to copy."""
        if b.stats()["pages_repaired"] > 500:
            return True
        b.move(rnd)
        return False
    cluster.wait(moved, 20, "pages that move")
    made_whole(cluster, b)
    after = b.slabs()
    assert sum(before[s] != after.get(s) for s in before) >= 4
    verdict(c, b)
    told = b.stats()
    assert told["pages_read_failed"] == 0
    assert told["slab_unmaps"] > 4, "where a slab was it is no more"


@pytest.mark.parametrize("which", few(["from", "to"], "from"))
def test_donor_killed_while_slabs_move(cluster, which):
    """The one they leave, or the one they go to."""
    b = serve(cluster, options=("--deadline", "300ms", "--repair-rate", "2M"))
    c = load(cluster, b, ["--pause", 300], seconds=1)
    made_whole(cluster, b)
    # A busy machine may look when they have arrived, or lose a donor by mere slowness,
    # which then holds few and accepts none: all of it is done again.
    for _ in range(20):
        cluster.all_up(b)
        made_whole(cluster, b)
        # Placement is random: the donor with the most slabs has enough of them.
        source, target = sorted(cluster.donors, key=lambda d: -held(b, d))[:2]

        def at_source():
            return {s for s, at in b.slabs().items() if at == [source.address]}
        answers = {s: b.ask("slab.migrate", slab=s, to=target.address) for s in at_source()}
        sent = {s for s, answer in answers.items() if answer["ok"]}
        if len(sent) >= 3 and cluster.wait(
                lambda: ("on their way" if b.status()["copies"]["filling"] else
                         "there" if b.whole() else ""), 20, "moves") == "on their way":
            break
    else:
        pytest.fail(f"no moves to interrupt; the last answers: {answers}")
    killed = source if which == "from" else target
    killed.kill()
    wait_lost(cluster, b, cluster.donors.index(killed))
    cluster.work(0.7)
    killed.start()
    cluster.all_up(b)
    made_whole(cluster, b)
    verdict(c, b)


def test_donor_drained_by_order(cluster):
    """Its slabs go elsewhere while they are used, and nothing is lost: there is one copy only."""
    b = serve(cluster, backup=False, options=PATIENT)
    c = load(cluster, b)
    donor = cluster.donors[2]
    assert held(b, donor) > 0
    assert b.ask("donor.drain", donor=donor.address)["ok"]
    cluster.wait(lambda: held(b, donor) == 0, 20, "no slab there")
    donor.kill()
    cluster.work(0.3)
    donor.start()
    cluster.all_up(b)
    assert held(b, donor) == 0
    assert b.ask("donor.undrain", donor=donor.address)["ok"]
    verdict(c, b)


def test_list_of_donors_changes(cluster):
    """As ebbd tells it: one comes, one goes, and its slabs go elsewhere first."""
    b = serve(cluster, backup=False, options=PATIENT, donors=cluster.donors[:3])
    c = load(cluster, b)
    gone, new = cluster.donors[0], cluster.donors[3]
    assert held(b, gone) > 0
    assert b.ask("donors.set", donors=[d.address for d in cluster.donors])["ok"]
    cluster.wait(lambda: b.donor(new.address)["state"] == "up", 10, "the new one")
    assert b.ask("donors.set", donors=[d.address for d in cluster.donors[1:]])["ok"]
    cluster.wait(lambda: b.donor(gone.address)["state"] == "absent", 20, "it is let go")
    gone.kill()
    cluster.work(0.3)
    gone.start()
    cluster.wait(lambda: held(b, new) > 0, 10, "slabs at the new one")
    verdict(c, b)


def test_control_plane_killed_while_slabs_move(cluster, ebbd_lock):
    """ebbd takes a donor off the list and is killed: its slabs go elsewhere all the same."""
    b = serve(cluster, backup=False, options=(*PATIENT, "--repair-rate", "4M"))
    b.follow()
    c = load(cluster, b, seconds=1)
    listed = lambda donors: "list = " + ", ".join(donors)
    gone = lambda: b.donor(victim)
    under_way = lambda: cluster.wait(lambda: b.status()["copies"]["leaving"] or
                                     gone()["state"] == "absent", 20, "slabs on their way")
    try:
        plane = cluster.control(listed(b.donors))
        # On a busy machine all slabs may have migrated before ebbd notices: then the next donor is tried.
        for victim in b.donors:
            before = gone()["slabs"]
            others = listed(d for d in b.donors if d != victim)
            with control_plane_killed(plane, listed(b.donors), others, under_way):
                left = gone()["slabs"]
                cluster.wait(lambda: gone()["state"] == "absent", 30, "it is let go")
            cluster.wait(lambda: gone()["state"] == "up", 20, "ebbd's successor has it back")
            if left:
                break
        assert 0 < left <= before
        verdict(c, b)
        assert b.stats()["pages_read_failed"] == 0
    finally:
        cluster.end_load()     # ebbd is there under the lock only


@pytest.mark.parametrize("durability", few(["disk", "none"], "none"))
def test_donor_ends(cluster, durability):
    """SIGTERM: its slabs migrate before it exits, and no borrower loses it before."""
    b = serve(cluster, backup=durability == "disk",
              options=("--durability", durability, "--deadline", "5s"))
    c = load(cluster, b)
    assert held(b, cluster.donors[3]) > 0
    assert cluster.donors[3].drain() == 0
    cluster.wait(lambda: b.states()[3] != "up", 5, "the donor to exit")
    assert held(b, cluster.donors[3]) == 0
    cluster.work(0.3)
    cluster.donors[3].start()
    cluster.all_up(b)
    verdict(c, b)
    assert b.stats()["slabs_asked_back"] > 0 and b.stats()["pages_read_backup"] == 0


def test_donor_out_of_memory(cluster):
    """It asks its slabs back, all of them, and they go to others; there is no disk."""
    b = serve(cluster, backup=False, options=PATIENT)
    c = load(cluster, b)
    assert held(b, cluster.donors[0]) > 0
    cluster.donors[0].squeeze()
    cluster.wait(lambda: held(b, cluster.donors[0]) == 0, 20, "nothing there")
    cluster.work(0.3)
    cluster.donors[0].relax()
    verdict(c, b)
    assert b.stats()["slabs_asked_back"] > 0


@pytest.mark.long
def test_all_donors_out_of_memory(cluster):
    """No donor has free capacity: slabs fall back to the disk, and return to memory when a donor has some."""
    b = serve(cluster, options=("--deadline", "5s"))
    c = load(cluster, b)
    for d in cluster.donors:
        d.squeeze()
    cluster.wait(lambda: not any(d["slabs"] for d in b.status()["donors"]), 20, "all on the disk")
    cluster.work(0.3)
    assert b.stats()["slabs_to_disk"] > 0
    for d in cluster.donors:
        d.relax()
    cluster.wait(lambda: any(d["slabs"] for d in b.status()["donors"]), 20, "memory again")
    made_whole(cluster, b)
    cluster.work(0.3)
    verdict(c, b)


# --- releasing ----------------------------------------------------------------------------


def punch(fd, at, size):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    keep_size_punch_hole = 3
    if libc.fallocate(fd, keep_size_punch_hole, at, size) < 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def test_discarded_memory_comes_back(cluster):
    """Within ten seconds the donors have it again, and it reads as zeroes."""
    b = serve(cluster)
    c = load(cluster, b, ["--pause", 100], seconds=1.5)
    told = verdict(c, b)
    assert told["discards"] > 0 and told["same_filled"] > 0
    stats = b.stats()
    assert stats["pages_discarded"] >= told["pages_discarded"]
    assert stats["pages_same"] >= told["same_filled"]
    half = b.status()["size"] // 2
    fd = os.open(b.file, os.O_RDWR | os.O_DIRECT)
    try:
        punch(fd, 0, half)
        with mmap.mmap(-1, MIB) as buf:
            for at in range(0, half, MIB):
                buf[:] = b"\xff" * MIB
                assert os.preadv(fd, [buf], at) == MIB
                assert not any(buf[:])
        cluster.wait(lambda: b.status()["mapped"] <= half, 10, "half of the slabs to be released")
        assert 0 < b.status()["live"] <= half
        cluster.wait(lambda: sum(d["total"] - d["free"] for d in b.status()["donors"]) <= half, 3,
                     "their memory is back at the donors")
        punch(fd, half, half)
        assert b.status()["live"] == 0
    finally:
        os.close(fd)


@pytest.mark.long
def test_a_slab_given_back_is_opened_again_at_once(cluster):
    """
    Repair has just found no donor for a second copy.  That is no reason to refuse a write
    to a slab that was released meanwhile: without a disk it would fail.
    """
    a, b = cluster.donors[:2]
    d = serve(cluster, backup=False, options=REPLICAS, donors=[a, b])
    a.kill()
    cluster.wait(lambda: d.donor(a.address)["state"] != "up", 5, "loss")
    fd = os.open(d.file, os.O_RDWR | os.O_DIRECT)
    try:
        with mmap.mmap(-1, PAGE) as buf:
            buf[:] = os.urandom(PAGE)
            for _ in range(3):
                assert os.pwritev(fd, [buf], 0) == PAGE
                cluster.work(1.1)
                # One that is to leave and has no page goes at once, not in five seconds.
                assert d.ask("donor.drain", donor=b.address)["ok"]
                punch(fd, 0, MIB)
                cluster.wait(lambda: not d.status()["mapped"], 4, "the slab to be released")
                assert d.ask("donor.undrain", donor=b.address)["ok"]
        assert d.stats()["slab_unmaps"] == 3
    finally:
        os.close(fd)


@pytest.mark.long
def test_discards_while_donors_die(cluster):
    """A discarded page reads as zeroes, whichever of its old places comes back."""
    b = serve(cluster)
    c = load(cluster, b, ["--pause", 100, "--threads", 6])
    for i in (0, 1, 2, 3):
        cluster.donors[i].kill()
        wait_lost(cluster, b, i)
        cluster.work(0.2)
        cluster.donors[i].start()
        cluster.work(0.2)
    cluster.all_up(b)
    assert verdict(c, b)["discards"] > 0
