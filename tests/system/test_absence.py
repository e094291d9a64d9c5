# SPDX-License-Identifier: GPL-2.0-or-later
"""
Donors out of reach for a while, under load: no page is lost, as the donors retain them.  One
borrower and three donors, a machine each; the donors' session grace period is 30 s.
"""
import itertools
import json
import os
import time
from subprocess import Popen

import pytest

import machine
import parts
from chaosworld import PAGE
from chaosworld import cluster, nothing_left    # fixtures
from cluster import Cluster
from rows import few

pytestmark = pytest.mark.beside

MIB = 1 << 20
DURABILITY = ("none", "replicas=2", "replicas=3")
# Writes without a place fail after two seconds, as they should: the kernel keeps their pages.
TOLERANT = ("--pause", 300, "--errors")


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    logs = machine.BUILD / "tests" / "logs" / "test_absence-donors"
    logs.mkdir(parents=True, exist_ok=True)
    c = Cluster(tmp_path_factory.mktemp("absence"), logs, donors=3, local=True,
                options=("--keep", "30s"))
    yield c
    c.close()


class Absences:
    """A device under load, and how often its donors went away."""

    def __init__(self, cluster, durability, donors=None, options=()):
        self.cluster = cluster
        self.b = cluster.serve(backup=False, donors=donors,
                               options=("--deadline", "400ms", "--durability", durability,
                                        *options))
        cluster.all_up(self.b)
        self.load = cluster.check(self.b, TOLERANT)
        cluster.work(0.5, 400)

    def absences(self):
        return [d["absences"] for d in self.b.status()["donors"]]

    def wait_away(self, before, numbers):
        self.cluster.wait(lambda: all(self.absences()[i] > before[i] for i in numbers), 5,
                          f"absence of {numbers}")

    def back(self):
        self.cluster.all_up(self.b)
        self.cluster.wait(lambda: self.b.status()["slabs"]["away"] == 0, 5, "all slabs are back")
        self.cluster.work(0.3)

    def verdict(self):
        told = self.load.stop()
        stats = self.b.stats()
        assert told["bad"] == 0 and told["read_errors"] == 0
        assert told["verified"] == told["pages"] and told["reads"] > 50
        assert stats["donor_losses"] == 0
        return told, stats


def cut_off(cluster, durability, seconds, times):
    a = Absences(cluster, durability)
    for _ in range(times):
        before = a.absences()
        cluster.node.unplug()
        if seconds >= 2:
            a.wait_away(before, range(3))
        time.sleep(seconds)
        cluster.node.plug()
        a.back()
    _, stats = a.verdict()
    assert stats["donor_absences"] >= (3 * times if seconds >= 2 else 0)


@pytest.mark.parametrize("seconds, durability", few(itertools.product((0.3, 2), ("none", "replicas=2")),
                                                    (0.3, "replicas=2"), (2, "none")))
def test_link_of_the_borrower_is_cut(cluster, durability, seconds):
    cut_off(cluster, durability, seconds, 1)


@pytest.mark.long
@pytest.mark.parametrize("durability", DURABILITY)
@pytest.mark.parametrize("seconds", [0.3, 2, 9])
def test_link_of_the_borrower_is_cut_again_and_again(cluster, durability, seconds):
    cut_off(cluster, durability, seconds, 20)


@pytest.mark.parametrize("durability", ["none", "replicas=2"])
def test_donor_is_stopped(cluster, durability):
    """By shared memory: its slabs are mapped again when it continues."""
    a = Absences(cluster, durability, donors=[d.local for d in cluster.donors])
    before = a.absences()
    cluster.donors[1].stop()
    a.wait_away(before, [1])
    time.sleep(1)
    cluster.donors[1].go_on()
    a.back()
    a.verdict()


def test_reads_of_other_donors_do_not_wait(cluster):
    """64 reads wait for one donor, and those of another are answered; and all in the end."""
    b = cluster.serve(backup=False, options=("--deadline", "400ms", "--durability", "none"))
    cluster.all_up(b)
    with open(b.file, "r+b", buffering=0) as f:
        for at in range(0, 32 * MIB, 64 << 10):
            f.seek(at)
            f.write(os.urandom(64 << 10))
    # Not those that are still being filled.
    where = {n: at[0] for n, at in b.slabs().items() if at}
    away = cluster.donors[0].address
    theirs = [n for n, at in where.items() if at == away]
    others = [n for n, at in where.items() if at != away]
    assert theirs and others
    cluster.donors[0].stop()
    readers = [reader_of(b.file, theirs[i % len(theirs)] * MIB + i * PAGE) for i in range(64)]
    try:
        cluster.wait(lambda: b.stats()["waiting_for_donors"] >= 64, 10, "64 reads that wait")
        assert b.status()["donors"][0]["state"] == "away"
        for n in others:
            assert reader_of(b.file, n * MIB).wait(30) == 0
        assert all(r.poll() is None for r in readers), "those of others are answered first"
        cluster.donors[0].go_on()
        assert [r.wait(60) for r in readers] == [0] * 64
    finally:
        for r in readers:
            r.kill()
            r.wait()
    assert b.stats()["pages_read_failed"] == 0


def reader_of(path, at):
    """Returns a process that reads the page at byte @at, past the page cache."""
    return Popen(["dd", f"if={path}", "of=/dev/null", "iflag=direct,skip_bytes", f"skip={at}",
                        "bs=4096", "count=1", "status=none"])


def test_reads_give_up(cluster):
    """After --away-timeout, as the only donor that has the page may never be back."""
    b = cluster.serve(backup=False, options=("--deadline", "2s", "--durability", "none",
                                             "--away-timeout", "1s"))
    cluster.all_up(b)
    with open(b.file, "r+b", buffering=0) as f:
        for n in range(32):
            f.seek(n * MIB)
            f.write(os.urandom(PAGE))
    cluster.node.unplug()
    cluster.wait(lambda: b.status()["slabs"]["away"] == 32, 10, "all are away")
    begun = time.monotonic()
    assert reader_of(b.file, 0).wait(30) != 0
    assert 0.9 <= time.monotonic() - begun < 10
    with open(b.file, "r+b", buffering=0) as f, pytest.raises(OSError):
        f.write(os.urandom(PAGE))
    cluster.node.plug()
    cluster.all_up(b)
    cluster.wait(lambda: b.status()["slabs"]["away"] == 0, 5, "all slabs are back")
    # The failed write's page is nowhere; all others are back.
    assert reader_of(b.file, 0).wait(30) != 0
    assert [reader_of(b.file, n * MIB).wait(30) for n in range(1, 32)] == [0] * 31


def forget(b, donor, *options):
    return parts.ebbctl("donor", "forget", b.name, donor.address, *options, check=False,
                        env={**os.environ, "EBB_RUN_DIR": str(b.run)})


def test_operator_gives_up_a_donor(cluster):
    """The reads that wait for it fail at once, those of other donors go on."""
    b = cluster.serve(backup=False, options=("--deadline", "2s", "--durability", "none"))
    cluster.all_up(b)
    with open(b.file, "r+b", buffering=0) as f:
        for n in range(32):
            f.seek(n * MIB)
            f.write(os.urandom(PAGE))
    away = cluster.donors[0]
    assert "not away" in forget(b, away, "--force").stderr
    cluster.wait(b.whole, 10, "complete replicas")
    mine = [n for n, at in b.slabs().items() if at == [away.address]]
    away.node.unplug()
    cluster.wait(lambda: b.states()[0] == "away", 5, "absence")
    reader = reader_of(b.file, mine[0] * MIB)
    cluster.wait(lambda: b.stats()["waiting_for_donors"], 10, "a read that waits")
    done = forget(b, away)
    assert done.returncode == 5
    assert f"the only copy of {len(mine)} pages of device {b.name}" in done.stderr
    assert b.states()[0] == "away" and reader.poll() is None
    begun = time.monotonic()
    done = forget(b, away, "--force", "--json")
    assert json.loads(done.stdout) == {"device": b.name, "donor": away.address,
                                       "pages_lost": len(mine)}
    assert reader.wait(30) != 0
    assert time.monotonic() - begun < 10, "it did not wait for the end of --away-timeout"
    assert b.stats()["donor_losses"] == 1
    others = sorted(set(range(32)) - set(mine))
    assert [reader_of(b.file, n * MIB).wait(30) for n in others] == [0] * len(others)
    away.node.plug()
    cluster.all_up(b)
    assert b.stats()["donor_losses"] == 1


def test_a_donor_without_an_only_copy_is_given_up(cluster):
    """No --force is needed, no page is lost, and new replicas are made at once."""
    a = Absences(cluster, "replicas=2", options=("--repair-delay", "600s"))
    cluster.wait(a.b.whole, 30, "all replicas")
    before = a.absences()
    cluster.donors[0].stop()
    a.wait_away(before, [0])
    assert not a.b.whole()
    assert forget(a.b, cluster.donors[0]).returncode == 0
    cluster.wait(lambda: all(len(at) == 2 for at in a.b.slabs().values()), 30, "two replicas")
    cluster.donors[0].go_on()
    a.cluster.all_up(a.b)
    told = a.load.stop()
    assert told["bad"] == 0 and told["read_errors"] == 0


def test_a_donor_that_forgot_is_lost(cluster):
    """A restarted donor says so at once: nothing waits until the grace period is over."""
    b = cluster.serve(backup=False, options=("--deadline", "400ms", "--durability", "none"))
    cluster.all_up(b)
    with open(b.file, "r+b", buffering=0) as f:
        for n in range(32):
            f.seek(n * MIB)
            f.write(os.urandom(PAGE))
    cluster.donors[2].kill()
    cluster.wait(lambda: b.states()[2] == "away", 5, "absence")
    begun = time.monotonic()
    cluster.donors[2].start()
    cluster.wait(lambda: b.stats()["donor_losses"] == 1, 10, "loss")
    assert time.monotonic() - begun < 25
    cluster.all_up(b)


def test_repair_begins_after_its_delay(cluster):
    """And what comes back later is no burden: each slab has its two replicas in the end."""
    a = Absences(cluster, "replicas=2", options=("--repair-delay", "2s"))
    before = a.absences()
    cluster.donors[0].stop()
    a.wait_away(before, [0])
    cluster.wait(lambda: all(len(at) == 2 for at in a.b.slabs().values()), 30, "two replicas")
    cluster.donors[0].go_on()
    a.back()
    cluster.wait(lambda: a.b.whole() and all(len(at) == 2 for at in a.b.slabs().values()), 30,
                 "no surplus")
    a.verdict()
