# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: slabs with two donors and no backup; either donor may end at any time."""
import errno
import random
import threading
import time

import machine
import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import ADDRESS, BACKUP, DONOR, PAGE, SECOND, run
from kswap import NO_SESSION, Events, Refused
from machine import wait_for
from test_kmod_class import assign, lost, refused, within, written
from test_kmod_ctl import A, B, SLABS, after, create, destroy, nothing_left, row, seen    # fixtures
from test_kmod_move import Users, fill, wait_free

TWO = DONOR | SECOND
C = f"rdma:{ADDRESS}:7473"


@pytest.fixture
def events(module):
    heard = Events()
    yield heard
    heard.close()


def replicated(kernel_device, mib=16, **settings):
    """Creates a device whose slabs are at donors 7471 and 7472."""
    d = kernel_device(mib=mib, copies=settings.pop("copies", TWO), **settings)
    a, b = d.connect(), d.connect(7472)
    give(d, a, b)
    return d, a, b


def give(d, *sessions, of=None):
    for session in sessions:
        for slab in range(d.slabs):
            d.netlink.call("map", device=d.number, slab=slab, session=session)


def places(d, of=None):
    """Returns {(first, second)} of the slabs, each pair sorted."""
    return {tuple(sorted((s["session"], s["second"]))) for s in d.slab_table(of)}


def whole(d, *sessions):
    """Waits until every slab is at both donors, with all its pages."""
    d.wait_copied()
    assert places(d) == {tuple(sorted(sessions))}
    assert not any(s["lacking"] for s in d.slab_table())


def migrate(d, slab, leaves, to=None):
    d.netlink.call("migrate", device=d.number, slab=slab, session=to, **{"from": leaves})


def nothing_failed(d):
    n = d.counts()
    assert n["read_failed"] == n["write_failed"] == 0, n


def test_each_page_at_both(kernel_device, donor):
    """Each donor has all written pages without any work of the copier."""
    for victim in (0, 1):
        lenders = donor(), donor(port=7472)
        d, *sessions = replicated(kernel_device)
        assert d.netlink.status(d.number)["copies"] == TWO
        assert {s["copies"] for s in d.slab_table()} == {TWO}
        fill(d, 7)
        n = d.counts()
        assert n["write_donor"] == 2 * d.pages and n["copied"] == 0
        assert n["messages"] == 2 * n["requests"] and n["doorbells"] <= n["messages"]
        lenders[victim].kill()
        d.wait_closed(sessions[victim])
        assert places(d) == {(sessions[not victim], NO_SESSION)}
        assert sum((d.bad(p, 64, 7) for p in range(0, d.pages, 64)), []) == []
        assert d.counts()["read_donor"] == d.pages
        nothing_failed(d)
        d.destroy()
        lenders[not victim].kill()


def test_donors_killed_one_after_the_other_under_a_swapping_program(kernel_device, donor, cgroup):
    """A third donor gets the first's pages; then the second is killed, and the third has all."""
    one, two = donor(), donor(port=7472)
    donor(port=7473)
    d, a, b = replicated(kernel_device, mib=64)
    d.swap_on()
    scan = parts.Scan(mib=32, passes=6, pattern="random", write=True, cgroup=cgroup(16))
    scan.go()
    wait_for(lambda: d.counts()["read_donor"] > 500, 120, "no reads from donors")
    one.kill()
    d.wait_closed(a)
    c = d.connect(7473)
    give(d, c)
    whole(d, b, c)
    two.kill()
    d.wait_closed(b)
    assert scan.result(timeout=600)["bad"] == 0
    assert places(d) == {(c, NO_SESSION)}
    n = d.counts()
    assert n["copied"] > 0 and n["read_backup"] == n["write_backup"] == 0
    nothing_failed(d)


def test_donors_killed_one_after_the_other_under_writers(kernel_device, donor):
    """Another donor replaces each while pages are written; every page is right at the end."""
    lenders = [donor(), donor(port=7472)]
    d, *sessions = replicated(kernel_device)
    fill(d, 1)
    users = Users(d, count=4)
    for port in (7473, 7474, 7475):
        time.sleep(0.5)
        lenders.pop(0).kill()
        d.wait_closed(sessions.pop(0))
        lenders.append(donor(port=port))
        sessions.append(d.connect(port))
        give(d, sessions[-1])
        whole(d, *sessions)
    users.stop()
    users.verify()
    nothing_failed(d)
    # Each of the last two has all pages.
    before = d.counts()["copied"]
    lenders[0].kill()
    d.wait_closed(sessions[0])
    users.verify()
    assert d.counts()["copied"] == before and before >= 3 * d.pages // 2
    nothing_failed(d)


def test_killed_while_the_second_copy_is_made(kernel_device, donor):
    """If the new donor dies, nothing is lost; if the complete one dies, copied pages remain."""
    one, two, three = donor(), donor(port=7472), donor(port=7473)
    d, a, b = replicated(kernel_device, mib=32)
    fill(d, 1)
    two.kill()
    d.wait_closed(b)
    users = Users(d)
    c = d.connect(7473)
    before = d.counts()["copied"]
    give(d, c)
    wait_for(lambda: d.counts()["copied"] > before + 64, 30, "nothing is copied")
    three.kill()
    d.wait_closed(c)
    users.stop()
    assert places(d) == {(a, NO_SESSION)}
    users.verify()
    nothing_failed(d)
    donor(port=7474)
    e = d.connect(7474)
    before = d.counts()["copied"]
    give(d, e)
    wait_for(lambda: d.counts()["copied"] > before + 256, 30, "nothing is copied")
    one.kill()
    d.wait_closed(a)
    d.wait_copied()
    assert places(d) == {(e, NO_SESSION)}
    found = 0
    for block in range(d.pages // 16):
        version = users.versions.get(block, 1)
        try:
            assert d.bad(block * 16, 8, version) == []
            found += 8
        except OSError as gone:
            # Never older content.
            assert gone.errno == errno.EIO
    assert found < d.pages // 2
    # The pages are lost, but the device works.
    d.write(0, 16, 9)
    assert d.bad(0, 16, 9) == []


def test_both_dead(kernel_device, donor):
    """Written pages give EIO, others zeros; then new donors work."""
    one, two = donor(), donor(port=7472)
    d, a, b = replicated(kernel_device)
    d.write(0, 16, 1)
    one.kill()
    d.wait_closed(a)
    d.write(0, 8, 2)
    two.kill()
    d.wait_closed(b)
    for page in range(16):
        lost(d, page)
    assert d.read(16, 4) == [bytes(PAGE)] * 4
    with pytest.raises(OSError) as e:
        d.write(4, 4, 3)
    assert e.value.errno == errno.EIO
    lost(d, 4)
    donor(port=7473), donor(port=7474)
    give(d, d.connect(7473), d.connect(7474))
    lost(d, 0)
    d.write(0, 8, 4)
    assert d.bad(0, 8, 4) == []
    lost(d, 8)


def test_both_killed_under_writers(kernel_device, donor):
    """At the same moment: what is read afterwards is what was written last, or an error."""
    one, two = donor(), donor(port=7472)
    d, a, b = replicated(kernel_device)
    fill(d, 1)
    d.open()
    versions, stop = [1] * (d.pages // 16), threading.Event()

    def writer(which):
        rnd = random.Random(which)
        while not stop.is_set():
            block = rnd.randrange(which, len(versions), 3)
            try:
                # Failed or not: older content must not be read any more.
                versions[block] += 1
                d.write(block * 16, 8, versions[block])
            except OSError:
                pass

    threads = [threading.Thread(target=writer, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    time.sleep(1)
    one.kill(), two.kill()
    d.wait_closed(a), d.wait_closed(b)
    donor(port=7473)
    c = d.connect(7473)
    give(d, c)
    time.sleep(0.5)
    stop.set()
    for t in threads:
        t.join()
    assert places(d) == {(c, NO_SESSION)}
    read = 0
    for block, version in enumerate(versions):
        try:
            assert d.bad(block * 16, 8, version) == []
            read += 1
        except OSError as e:
            assert e.errno == errno.EIO
        lost(d, block * 16 + 8)
    assert read


def test_overlapping_writes_leave_both_alike(kernel_device, donor):
    """Whichever writer of a page is last, both donors have equal content."""
    one, _ = donor(), donor(port=7472)
    d, a, b = replicated(kernel_device)
    d.open()
    d.race(40)
    first = d.read(0, 8)
    assert d.counts()["conflicts"] > 0
    one.kill()
    d.wait_closed(a)
    assert d.read(0, 8) == first and d.counts()["copied"] == 0


def test_either_copy_migrates_under_writers(kernel_device, donor):
    """Replicas migrate in turn: always at two donors, and the old one gets its memory back."""
    lenders = donor(), donor(port=7472), donor(port=7473)
    d, a, b = replicated(kernel_device)
    c = d.connect(7473)
    fill(d, 1)
    users = Users(d)
    for leaves, to, stays in ((a, c, b), (b, a, c), (c, b, a)):
        for slab in range(d.slabs):
            migrate(d, slab, leaves, to)
        whole(d, to, stays)
        wait_free(d, leaves, 64)
    users.stop()
    assert places(d) == {(a, b)}
    # Writes during the migration reached the target by themselves.
    assert d.counts()["copied"] > d.pages and d.counts()["donor_errors"] == 0
    d.netlink.call("disconnect", device=d.number, session=c)
    lenders[0].kill()
    d.wait_closed(a)
    users.verify()
    nothing_failed(d)


@pytest.mark.parametrize("victim", ["target", "source", "stays"])
def test_one_dies_while_a_copy_migrates(kernel_device, donor, victim):
    """Whichever of the three donors dies, the others have every page and hold two replicas again."""
    ports = {"source": 7471, "stays": 7472, "target": 7473}
    lenders = {name: donor(port=port) for name, port in ports.items()}
    d, a, b = replicated(kernel_device)
    sessions = {"source": a, "stays": b, "target": d.connect(7473)}
    fill(d, 1)
    users = Users(d)
    before = d.counts()["copied"]
    for slab in range(d.slabs):
        migrate(d, slab, a, sessions["target"])
    wait_for(lambda: d.counts()["copied"] > before + 64, 30, "nothing is copied")
    lenders[victim].kill()
    d.wait_closed(sessions[victim])
    d.wait_copied()
    left = {s for name, s in sessions.items() if name != victim}
    for slab in d.slab_table():
        assert {slab["session"], slab["second"]} - {NO_SESSION} <= left
    donor(port=7474)
    e = d.connect(7474)
    for index, slab in enumerate(d.slab_table()):
        if slab["second"] == NO_SESSION:
            d.netlink.call("map", device=d.number, slab=index, session=e)
    d.wait_copied()
    assert all(NO_SESSION not in (s["session"], s["second"]) and not s["lacking"]
               for s in d.slab_table())
    users.stop()
    users.verify()
    nothing_failed(d)
    # Check each remaining donor separately.
    survivor = next(n for n in ("stays", "target", "source") if n != victim)
    lenders[survivor].kill()
    d.wait_closed(sessions[survivor])
    users.verify()
    nothing_failed(d)


def test_drain(kernel_device, donor):
    """A replica drains to a third donor, not to that of the other replica."""
    one, _, _ = donor(), donor(port=7472), donor(port=7473)
    d, a, b = replicated(kernel_device)
    fill(d, 1)
    users = Users(d)
    with pytest.raises(Refused) as e:
        d.drain(a, b)
    assert e.value.errno == errno.EEXIST
    assert places(d) == {(a, b)}
    c = d.connect(7473)
    d.drain(a, c)
    whole(d, b, c)
    wait_free(d, a, 64)
    d.netlink.call("disconnect", device=d.number, session=a)
    one.kill()
    # No page is only at the drained donor, so it can be disconnected without FORCE.
    d.netlink.call("disconnect", device=d.number, session=b)
    assert refused(d, "disconnect", session=c)[0] == errno.EBUSY
    users.stop()
    users.verify()
    nothing_failed(d)


def test_donor_that_ends_gets_its_copy_back(kernel_device, donor, events):
    """On EVICT by either donor, the event names the session, and the listener migrates it."""
    for port, other in ((7471, 7472), (7472, 7471)):
        lender, stays = donor(port=port, drain="120s"), donor(port=other)
        third = donor(port=7473)
        d = kernel_device(mib=16, copies=TWO)
        a, b = d.connect(), d.connect(7472)
        give(d, a, b)
        asking, staying = (a, b) if port == 7471 else (b, a)
        c = d.connect(7473)
        fill(d, 1)
        users = Users(d)
        lender.process.terminate()
        asked = set()
        while len(asked) < d.slabs:
            told = events.next()
            if told["event"] != "evict":
                continue
            assert told["session"] == asking
            assert d.slab_table()[told["slab"]]["recalled"] == (1 if asking == a else 2)
            asked.add(told["slab"])
            migrate(d, told["slab"], asking, c)
        assert lender.process.wait(100) == 0
        users.stop()
        whole(d, staying, c)
        users.verify()
        nothing_failed(d)
        assert d.counts()["donor_errors"] == 0
        d.destroy()
        stays.kill(), third.kill()
        while True:
            try:
                events.next(1)
            except TimeoutError:
                break


def test_discards_clear_both(kernel_device, donor):
    """Also while the discarded pages are being copied; they stay zeros with one donor."""
    one, two = donor(), donor(port=7472)
    donor(port=7473)
    d, a, b = replicated(kernel_device)
    fill(d, 1)
    two.kill()
    d.wait_closed(b)
    c = d.connect(7473)
    give(d, c)
    run("/sbin/blkdiscard", "-f", "-o", 1024 * PAGE, "-l", 2048 * PAGE, d.path)
    d.wait_copied()
    d.write(2000, 8, 2)
    one.kill()
    d.wait_closed(a)
    for page in range(1024, 3072, 64):
        if page != 1984:
            assert d.read(page, 64) == [bytes(PAGE)] * 64
    assert d.read(1984, 16) == [bytes(PAGE)] * 16 and d.read(2008, 40) == [bytes(PAGE)] * 40
    assert d.bad(2000, 8, 2) == []
    assert d.bad(0, 64, 1) == d.bad(1023, 1, 1) == d.bad(3072, 64, 1) == []
    run("/sbin/blkdiscard", "-f", "-z", "-l", 64 * PAGE, d.path)
    assert d.read(0, 64) == [bytes(PAGE)] * 64
    nothing_failed(d)


def test_end_that_nobody_waits_for(kernel_device, donor):
    """Writes while a donor is dying reach the other, without an error."""
    lenders = donor(), donor(port=7472)
    d, a, b = replicated(kernel_device)
    fill(d, 1)
    lenders[1].kill()
    # Do not wait for its end: writes in between are at the remaining donor.
    for i in range(64):
        d.write(i * 64, 64, 2)
    assert sum((d.bad(i * 64, 64, 2) for i in range(64)), []) == []
    d.wait_closed(b)
    assert sum((d.bad(i * 64, 64, 2) for i in range(64)), []) == []
    nothing_failed(d)


def test_beside_a_backup(kernel_device, donor, disk):
    """Pages are at two donors and, later, on the disk, which has all when both donors are lost."""
    one, two = donor(), donor(port=7472)
    d, a, b = replicated(kernel_device, copies=TWO | BACKUP, backup=disk().path)
    fill(d, 1)
    users = Users(d)
    time.sleep(1)
    one.kill()
    d.wait_closed(a)
    # A slab that migrates to the backup leaves its only donor; then two others are mapped.
    d.netlink.call("migrate", device=d.number, slab=0)
    d.wait_copied()
    assert d.slab_table()[0]["session"] == NO_SESSION
    donor(port=7473), donor(port=7474)
    c = d.connect(7473)
    d.netlink.call("map", device=d.number, slab=0, session=b)
    give(d, c)
    whole(d, b, c)
    # A slab with two donors leaves one for the other and the backup.
    migrate(d, 1, c)
    d.wait_copied()
    assert (d.slab_table()[1]["session"], d.slab_table()[1]["second"]) == (b, NO_SESSION)
    users.stop()
    two.kill()
    d.wait_closed(b)
    users.verify()
    d.netlink.call("disconnect", device=d.number, session=c)
    users.verify()
    assert d.counts()["read_backup"] > 0
    nothing_failed(d)


@pytest.mark.parametrize("seal", [False, True])
def test_class_with_two_donors(kernel_device, donor, cgroup, seal):
    """Beside class 0 with single donors, sealed or not: the end of one donor affects only class 0."""
    lender = donor()
    donor(port=7472), donor(port=7473)
    own = cgroup()
    d = kernel_device(mib=16)
    d.netlink.call("class", device=d.number, copies=TWO, seal=seal, **{"class": 1})
    assign(d, own, 1)
    all_, first, second = d.connect(), d.connect(of=1), d.connect(7472, of=1)
    give(d, all_)
    give(d, first, second)
    assert places(d, 1) == {(first, second)} and places(d) == {(all_, NO_SESSION)}
    for page in range(0, 128, 2):
        d.write(page, 1, version=1)
        within(own, d.write, page + 1, 1, version=2)
    assert (written(d), written(d, 1)) == (64, 64)
    lender.kill()
    d.wait_closed(first), d.wait_closed(all_)
    for page in range(128):
        if page % 2:
            assert d.bad(page, 1, 2) == []
        else:
            lost(d, page)
    third = d.connect(7473, of=1)
    give(d, third)
    d.wait_copied(of=1)
    assert places(d, 1) == {(second, third)}
    d.netlink.call("disconnect", device=d.number, session=second)
    assert all(d.bad(page, 1, 2) == [] for page in range(1, 128, 2))
    assert d.counts()["seal_broken"] == 0


def test_class_keeps_its_second_donors(kernel_device, donor):
    donor(), donor(port=7472)
    d = kernel_device()
    d.netlink.call("class", device=d.number, copies=TWO, **{"class": 1})
    give(d, d.connect(of=1), d.connect(7472, of=1))
    assert refused(d, "class", copies=DONOR, **{"class": 1}) == \
        (errno.EBUSY, "copies: the class has slabs with two donors; unmap one of each first")


def test_netlink_refuses(kernel_device, donor):
    donor(), donor(port=7472), donor(port=7473)
    d = kernel_device(copies=TWO)
    a, b, c = d.connect(), d.connect(7472), d.connect(7473)
    same = d.connect()
    mib = 1 << 20
    for copies, words in ((0, "copies: must include"), (BACKUP, "copies: must include"), (8 | DONOR, "copies:"),
                          (SECOND, "copies: must include"), (TWO | BACKUP, "copies: the device has no")):
        with pytest.raises(OSError) as e:
            d.netlink.create(8 * mib, slab_size=4 * mib, copies=copies)
        assert e.value.errno == errno.EINVAL and e.value.text.startswith(words), e.value.text
    assert refused(d, "class", copies=SECOND, **{"class": 1}) == \
        (errno.EINVAL, "copies: a second donor without a first")
    call = lambda command, **fields: refused(d, command, **{"slab": 0, **fields})
    has = "session: its donor has the slab; name another"
    d.map(a, TWO, [0])
    assert call("map", session=a) == (errno.EEXIST, has)
    assert call("map", session=same) == (errno.EEXIST, has)
    assert call("map", session=b, copies=DONOR) == (errno.EEXIST, "slab: already mapped")
    d.map(b, TWO, [0])
    assert call("map", session=c) == (errno.EEXIST, "slab: already mapped")
    which = "slab: it has two donors; name the one to leave"
    assert call("migrate", session=c) == (errno.EINVAL, which)
    assert call("unmap") == (errno.EINVAL, which)
    assert call("migrate", session=c, **{"from": 99})[0] == errno.ENOENT
    assert call("migrate", session=c, **{"from": same}) == \
        (errno.ENOENT, "session: does not have the slab")
    assert call("migrate", session=b, **{"from": a}) == (errno.EEXIST, "session: already has the slab")
    assert call("migrate", session=same, **{"from": b}) == (errno.EEXIST, has)
    assert call("migrate", **{"from": a}) == \
        (errno.EINVAL, "session: not given, and the device has no backup")
    assert call("unmap", session=c) == (errno.ENOENT, "session: does not have the slab")
    # One of two donors may be disconnected, the last may not.
    d.write(0, 8, 1)
    d.netlink.call("unmap", device=d.number, slab=0, session=a)
    assert (d.slab_table()[0]["session"], d.slab_table()[0]["second"]) == (b, NO_SESSION)
    assert call("unmap")[0] == errno.EBUSY
    assert d.bad(0, 8, 1) == []
    d.netlink.call("unmap", device=d.number, slab=0, session=b, force=True)
    # A slab may be configured with one donor, regardless of others, and may get a second.
    d.map(a, DONOR, [1])
    d.write(1024, 8, 1)
    d.map(b, TWO, [1])
    d.wait_copied()
    assert d.counts()["copied"] == 8
    # A donor that a slab is leaving cannot become its second, since it may get the slab again.
    d.map(a, DONOR, [2, 3])
    for first in range(2048, 4096, 64):
        d.write(first, 64, 1)
    for slab in (2, 3):
        d.netlink.call("migrate", device=d.number, slab=slab, session=b)
    assert refused(d, "map", slab=3, session=same, copies=TWO) == (errno.EEXIST, has)
    assert d.slab_table()[3]["source"] == a
    d.wait_copied()
    d.netlink.call("disconnect", device=d.number, session=a)
    assert d.bad(1024, 8, 1) == []


def test_ebbctl_refuses_what_donors_cannot_hold_twice(module, donor, after):
    donor(), donor(port=7472, memory="24M")
    done = create("--durability", "replicas=2", check=False)
    assert done.returncode == 1
    assert "donors lack capacity for the second replica of 10 of 16 slabs" in done.stderr, done.stderr
    nothing_left()


def test_ebbd_restores_the_second_copy(module, donor, after, cgroup, seen, logs):
    """A program swaps while each of three donors is lost or drained, and returns."""
    one, two, three = donor(), donor(port=7472), donor(port=7473)
    ebbd = parts.Ebbd(logs / "ebbd.log")

    def held(d):
        """Returns the number of replicas by place, of slabs with two."""
        names, found = {v: k for k, v in d.live().items()}, {}
        for s in d.netlink.slabs(d.number):
            if NO_SESSION not in (s["session"], s["second"]):
                for at in (s["session"], s["second"]):
                    found[names.get(at)] = found.get(names.get(at), 0) + 1
        return found

    def wait_held(d, *donors):
        wait_for(lambda: held(d) == {at: SLABS for at in donors} and d.settled(), 240,
                 f"not at {donors}: {held(d)}")

    def copies():
        return parts.ebbctl_json("device", "list")["devices"][0]["server"]["copies"]

    try:
        create("--durability", "replicas=2", donors=f"{A},{B},{C}")
        d = seen()
        assert sum(held(d).values()) == 2 * SLABS and set(held(d)) == {A, B, C}
        listed, = parts.ebbctl_json("device", "list")["devices"]
        assert listed["server"]["durability"] == "replicas=2"
        scan = parts.Scan(mib=32, passes=12, pattern="random", write=True, cgroup=cgroup(16))
        scan.go()
        wait_for(lambda: d.counts()["read_donor"] > 500, 120, "no reads from donors")
        one.kill()
        wait_held(d, B, C)
        wait_for(lambda: copies()["missing"] == 0, 20, f"{copies()}")
        assert (copies()["wanted"], copies()["present"]) == (2, 2 * SLABS)
        # Without a third donor, slabs have one replica, and writes continue.
        two.kill()
        wait_for(lambda: copies()["missing"] == SLABS, 60, f"{copies()}")
        wait_for(lambda: "no donor has free capacity for the second replica of 16 slabs" in
                 machine.read(ebbd.log), 30, "no word of it")
        donor()
        wait_held(d, A, C)
        # A drained donor keeps its slabs until there is a third donor.
        parts.ebbctl("donor", "drain", C)
        wait_for(lambda: row("donor", "address", C).get("leaving") == "drained", 20, "not drained")
        assert held(d) == {A: SLABS, C: SLABS}
        donor(port=7472)
        wait_held(d, A, B)
        three.kill()
        slabs = parts.ebbctl_json("slab", "list", "test0")["slabs"]
        assert all({c["donor"] for c in s["copies"]} == {A, B} for s in slabs)
        assert scan.result(timeout=600)["bad"] == 0
        n = d.counts()
        assert n["read_failed"] == n["write_failed"] == 0
        destroy()
        nothing_left()
    finally:
        destroy(check=False)
        ebbd.stop()
        machine.pins_remove()
