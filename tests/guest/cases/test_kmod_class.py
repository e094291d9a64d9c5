# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko: cgroups with their own donors and copies on one device."""
import errno
import os
import traceback

import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from kmodule import BACKUP, DONOR, PAGE, run
from kswap import NO_SESSION, Refused
from machine import wait_for

BOTH = DONOR | BACKUP


def within(cgroup, call, *args, **fields):
    """Runs @call in a process of @cgroup, which is the cgroup of its direct I/O."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            cgroup.enter()
            call(*args, **fields)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def number_of(cgroup):
    return os.stat(cgroup.path).st_ino


def make_class(d, number, copies, cgroup=None):
    d.netlink.call("class", device=d.number, copies=copies, **{"class": number})
    if cgroup:
        assign(d, cgroup, number)


def assign(d, cgroup, number=None):
    d.netlink.call("assign", device=d.number, cgroup=number_of(cgroup), **{"class": number})


def written(d, of=None):
    return sum(s["written"] for s in d.slab_table(of))


def swapping(d, *cgroups):
    """Starts a scan in each cgroup; waits until the device has read from donors."""
    d.swap_on()
    scans = [parts.Scan(mib=24, passes=3, pattern="random", write=True, cgroup=c)
             for c in cgroups]
    for s in scans:
        s.go()
    wait_for(lambda: d.counts()["read_donor"] > 1000, 120, "no reads from donors")
    return scans


def scanned(scans):
    """Returns the number of wrong words that each scan has read."""
    return [s.result(timeout=600)["bad"] for s in scans]


def refused(d, command, **fields):
    with pytest.raises(Refused) as e:
        d.netlink.call(command, device=d.number, **fields)
    return e.value.errno, e.value.text


def lost(d, page):
    with pytest.raises(OSError) as e:
        d.read(page, 1)
    assert e.value.errno == errno.EIO


def test_two_cgroups_and_everybody_else(kernel_device, donor, cgroup):
    """Adjacent pages are at three donors; the end of one loses only its pages."""
    donor(), donor(port=7473)
    lender = donor(port=7472)
    one, two = cgroup(), cgroup()
    d = kernel_device(mib=16)
    make_class(d, 1, DONOR, one)
    make_class(d, 2, DONOR, two)
    sessions = [d.connect(), d.connect(7472, of=1), d.connect(7473, of=2)]
    for session in sessions:
        d.map(session, DONOR)
    for page in range(0, 60, 3):
        d.write(page, 1, version=1)
        within(one, d.write, page + 1, 1, version=2)
        within(two, d.write, page + 2, 1, version=3)
    assert [written(d, of) for of in (None, 1, 2)] == [20, 20, 20]
    assert [{s["session"] for s in d.slab_table(of)} for of in (0, 1, 2)] == [{s} for s in sessions]
    # One request reads pages of all three.
    pages, before = d.read(0, 60), d.counts()
    for page in range(60):
        assert d.bad(page, 1, page % 3 + 1) == []
        assert pages[page] == d.read(page, 1)[0]
    assert before["read_donor"] == 60
    lender.kill()
    d.wait_closed(sessions[1])
    for page in range(60):
        if page % 3 == 1:
            lost(d, page)
        else:
            assert d.bad(page, 1, page % 3 + 1) == []
    # A page that is written again gets the class of its writer, wherever it was.
    within(two, d.write, 0, 8, version=4)
    assert d.bad(0, 8, 4) == []
    assert [written(d, of) for of in (0, 1, 2)] == [17, 17, 26]
    # -f: do not probe the device, parts of which are unreadable.
    run("/sbin/blkdiscard", "-f", "-l", 16 * PAGE, d.path)
    assert d.read(0, 16) == [bytes(PAGE)] * 16
    assert written(d, 0) + written(d, 1) + written(d, 2) == 44
    # Without rules all pages are of class 0 again.
    for c in (one, two):
        assign(d, c)
    assert d.netlink.status(d.number)["cgroups"] == []
    within(one, d.write, 0, 8, version=5)
    assert d.bad(0, 8, 5) == []
    assert written(d, 0) == 14 + 8


def test_two_programs_swap_with_their_own_donors_and_durability(kernel_device, donor, disk, cgroup):
    """One program's pages are also on the backup and survive its donor; the other's are not."""
    lender = donor()
    donor(port=7472)
    safe, fast = cgroup(12), cgroup(12)
    d = kernel_device(mib=64, backup=disk(64).path)
    make_class(d, 1, BOTH, safe)
    make_class(d, 2, DONOR, fast)
    a, b = d.connect(of=1), d.connect(7472, of=2)
    d.map(a, BOTH)
    d.map(b, DONOR)
    scans = swapping(d, safe, fast)
    # No other program swaps here: the other pages are mkswap's.
    assert written(d, 1) > 1000 and written(d, 2) > 1000 and written(d) < 64
    slabs = d.slab_table(2)
    assert sum(s["donor_only"] for s in slabs) > 1000
    assert all(s["donor_only"] == s["written"] and s["copies"] == DONOR for s in slabs)
    before = d.counts()["read_backup"]
    lender.kill()
    d.wait_closed(a)
    assert scanned(scans) == [0, 0]
    n = d.counts()
    assert n["read_backup"] > before
    assert n["read_failed"] == n["write_failed"] == 0
    assert d.session(b)["state"] == "live"
    assert {s["session"] for s in d.slab_table(1)} == {NO_SESSION}
    assert all(s["donor_only"] == s["written"] for s in d.slab_table(2))


def test_one_class_migrates_under_two_programs(kernel_device, donor, cgroup):
    """The other program's pages, between the migrating ones, stay where they are."""
    donor(memory="128M"), donor(port=7472), donor(port=7473)
    one, two = cgroup(12), cgroup(12)
    d = kernel_device(mib=64)
    make_class(d, 1, DONOR, one)
    make_class(d, 2, DONOR, two)
    nobody, a, b, c = d.connect(), d.connect(of=1), d.connect(7472, of=2), d.connect(7473, of=2)
    d.map(nobody, DONOR)
    d.map(a, DONOR)
    d.map(b, DONOR)
    scans = swapping(d, one, two)
    for to in (c, b):
        for slab in range(d.slabs):
            d.netlink.call("migrate", device=d.number, slab=slab, session=to)
        d.wait_copied(120, of=2)
        assert {s["session"] for s in d.slab_table(2)} == {to}
        assert {(s["session"], s["source"]) for s in d.slab_table(1)} == {(a, NO_SESSION)}
    assert scanned(scans) == [0, 0]
    n = d.counts()
    assert n["copied"] > 1000 and n["read_failed"] == n["write_failed"] == 0


def test_class_is_written_before_it_has_a_donor(kernel_device, donor, disk, cgroup):
    """It is written to the backup; a donor that it gets later gets only its pages."""
    donor()
    g = cgroup()
    d = kernel_device(backup=disk().path)
    make_class(d, 3, BOTH, g)
    for page in range(0, 128, 2):
        within(g, d.write, page, 1, version=1)
        d.write(page + 1, 1, version=2)
    s = d.connect(of=3)
    d.map(s, BOTH)
    d.wait_copied(of=3)
    n = d.counts()
    assert n["copied"] == 64
    assert [d.bad(page, 1, page % 2 + 1) for page in range(128)] == [[]] * 128
    after = d.counts()
    assert (after["read_donor"], after["read_backup"] - n["read_backup"]) == (64, 64)
    # Migrated back, its pages are only on the backup again, complete.
    d.netlink.call("migrate", device=d.number, slab=0, **{"class": 3})
    d.wait_copied(of=3)
    d.netlink.call("disconnect", device=d.number, session=s)
    assert [d.bad(page, 1, page % 2 + 1) for page in range(128)] == [[]] * 128


def test_donor_of_a_class_ends(kernel_device, donor, disk, cgroup):
    """The donor recalls its slabs; without another donor they go to the backup; then it exits."""
    lender = donor(drain="60s")
    g = cgroup()
    d = kernel_device(backup=disk().path)
    make_class(d, 1, DONOR, g)
    d.map(d.connect(of=1), DONOR)
    within(g, d.write, 0, 64, version=1)
    d.write(64, 64, version=2)
    assert sum(s["donor_only"] for s in d.slab_table(1)) == 64
    lender.process.terminate()
    assert lender.process.wait(60) == 0
    assert d.bad(0, 64, 1) == d.bad(64, 64, 2) == []
    assert sum(s["donor_only"] for s in d.slab_table(1)) == 0


def test_pages_that_stay_on_the_backup(kernel_device, donor, disk, cgroup):
    """Pages of a class without donors do not leave the machine."""
    donor()
    g = cgroup()
    d = kernel_device(backup=disk().path)
    d.map(d.connect(), BOTH)
    make_class(d, 1, BACKUP, g)
    within(g, d.write, 0, 32, version=1)
    d.write(32, 32, version=2)
    n = d.counts()
    assert (n["write_donor"], written(d, 1), written(d)) == (32, 32, 32)
    assert d.bad(0, 32, 1) == d.bad(32, 32, 2) == []
    assert d.counts()["read_backup"] == 32


def test_cgroups_below(kernel_device, donor, cgroup):
    """Child cgroups have the class of the nearest ancestor with one, whatever controllers they have."""
    donor()
    outer = cgroup(name="outer")
    plain = cgroup(name="outer/plain")
    d = kernel_device(mib=16)
    make_class(d, 1, DONOR, outer)
    make_class(d, 2, DONOR)
    for of in (None, 1, 2):
        d.map(d.connect(of=of), DONOR)
    within(plain, d.write, 0, 1, version=1)
    outer.set("cgroup.subtree_control", "+io")
    inner, other = cgroup(name="outer/inner"), cgroup(name="outer/other")
    assign(d, other, 2)
    within(inner, d.write, 1, 1, version=1)
    within(other, d.write, 2, 1, version=1)
    assert [written(d, of) for of in (0, 1, 2)] == [0, 2, 1]
    # Class 0 is an exception from the parent's class.
    assign(d, inner, 0)
    assign(d, other)
    within(inner, d.write, 3, 1, version=1)
    within(other, d.write, 4, 1, version=1)
    assert [written(d, of) for of in (0, 1, 2)] == [1, 3, 1]
    assert d.bad(0, 5, 1) == []
    told = d.netlink.status(d.number)
    assert told["classes"] == [{"class": 1, "copies": DONOR}, {"class": 2, "copies": DONOR}]
    assert sorted(told["cgroups"], key=lambda c: c["class"]) == \
        [{"cgroup": number_of(inner), "class": 0}, {"cgroup": number_of(outer), "class": 1}]


def test_what_is_refused(kernel_device, donor):
    donor()
    d = kernel_device()
    of = lambda n: {"class": n}
    assert refused(d, "class") == (errno.EINVAL, "class: not given")
    for n in (0, 8, 1 << 31):
        assert refused(d, "class", **of(n)) == (errno.ERANGE, "class: must be 1 to 7")
    for copies in (0, 8):
        assert refused(d, "class", copies=copies, **of(1)) == \
            (errno.EINVAL, "copies: must be donor, backup or both")
    assert refused(d, "class", copies=BOTH, **of(1)) == \
        (errno.EINVAL, "copies: the device has no backup")
    none = "class: no such class"
    assert refused(d, "assign", cgroup=1, **of(1)) == (errno.ENOENT, none)
    assert refused(d, "connect", address="10.9.0.1", port=7471, **of(1)) == (errno.ENOENT, none)
    assert refused(d, "unmap", slab=0, **of(9))[0] == errno.ERANGE
    with pytest.raises(Refused) as e:
        d.slab_table(5)
    assert (e.value.errno, e.value.text) == (errno.ENOENT, none)
    make_class(d, 1, DONOR)
    make_class(d, 2, DONOR)
    make_class(d, 1, DONOR)
    assert refused(d, "assign", **of(1)) == (errno.EINVAL, "cgroup: not given, or 0")
    assert refused(d, "assign", cgroup=0, **of(1)) == (errno.EINVAL, "cgroup: not given, or 0")
    assert refused(d, "assign", cgroup=5) == (errno.ENOENT, "cgroup: it has no class")
    for cgroup in range(1, 65):
        d.netlink.call("assign", device=d.number, cgroup=cgroup << 32, **of(1))
    d.netlink.call("assign", device=d.number, cgroup=1 << 32, **of(2))
    assert refused(d, "assign", cgroup=65 << 32, **of(1)) == \
        (errno.ENOSPC, "cgroup: at most 64 can have a class")
    assert len(d.netlink.status(d.number)["cgroups"]) == 64
    a, b = d.connect(of=1), d.connect(of=2)
    d.map(a, DONOR, [0])
    assert refused(d, "migrate", slab=0, session=b) == (errno.ENOENT, "slab: not mapped")
    assert refused(d, "migrate", slab=0, session=b, **of(1)) == \
        (errno.EINVAL, "class: the session is of another")
    assert refused(d, "unmap", slab=0) == (errno.ENOENT, "slab: not mapped")
    d.netlink.call("unmap", device=d.number, slab=0, **of(1))
