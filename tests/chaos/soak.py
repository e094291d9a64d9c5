#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
soak.py [--hours H] [--seed N]: injects random faults every few seconds into a borrower and
four donors under load, and into the etcd and ebbd by which they find each other, for any time.
One device lasts from the first minute to the last; beside it, devices with every kind of
durability are created one after the other, read to the last page, and destroyed.  With --guest
these are swap in a guest, where a program checks its memory.  Of the faults that are possible,
those that occurred least come first.  Writes report.json to build/soak, or to
build/guest/runs/soak; exits with status 1 if a page was bad, anything failed or leaked, or a kind
of fault was rare.
"""
import argparse
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "harness")]

import machine
import parts
from cluster import Cluster, SwapArea, left_of
from faults import DONOR_FAULTS, altered, control_plane_killed, cut_off, entries_removed, etcd_killed
from faults import unplugged
from impostor import Impostor
from machine import MachineError
from thin import ThinDisk

DIRECTORY = Path("/hostout") if machine.IN_GUEST else machine.BUILD / "soak"
# Directory of backups and sockets: on the disk in a guest.
TEMPORARY = Path("/var/tmp") if machine.IN_GUEST else DIRECTORY
PROGRESS_SECONDS = 10
# After this a donor has given up an unresponsive borrower (GONE_MS of daemon/lib/wire/tcp.c).
GONE_SECONDS = 340
# Longer than memory is short until slabs are revoked (SHORT_NS of daemon/donord/pool/eviction.c).
REVOKE_SECONDS = 14
# After this a donor's lease in etcd has expired.
LEASE_SECONDS = 12
# Allowed growth of a process after its first round: caches of libraries, temporary connections
# to etcd; and by the slope of all rounds.
GROWTH = {"VmRSS": 8 << 10, "VmLck": 8 << 10, "fds": 3, "sessions": 0}
SLOPE_ROUNDS = 6
# Each kind of fault occurs at least this often an hour, in a run of half an hour or more.
FAULTS_AN_HOUR, JUDGED_SECONDS = 10, 1800
# Connections on which data is altered before a donor is quarantined (daemon/lib/rules/alterations.h).
ALTERATIONS = 3
# The swapping program's cgroup, size and limit.
CGROUP, MIB, LIMIT_MIB = "ebb-soak", 48, 24


@dataclass
class Kind:
    """A kind of device, and the faults that it tolerates."""
    name: str
    options: tuple = ()
    at_once: int = 2          # most donors with a fault at a time
    backup: bool = True
    disk_full: bool = False
    local: bool = False       # slabs are shared, not sent
    sealed: bool = True       # a donor's lies are found
    faults: tuple = ()        # names of the donors' faults; (): all
    checker: tuple = ("--pause", 1000)

    def follows(self):
        """Returns whether it uses the donors in etcd, which has no unix sockets."""
        return not self.local


# Two replicas tolerate one loss at a time: no donor may be lost only because the machine is
# busy, and each loss is repaired before the next fault.
KINDS = (
    Kind("disk"),
    Kind("replicas=2", ("--durability", "replicas=2", "--deadline", "2s"), at_once=1, backup=False),
    # Errors are tolerated here, and a seal would turn a stale page into an error.
    Kind("disk, full now and then", ("--seal", "off"), disk_full=True, sealed=False,
         checker=("--pause", 1000, "--errors")),
    Kind("shm", local=True, sealed=False),
    Kind("replicas=3", ("--durability", "replicas=3", "--deadline", "2s"), at_once=2, backup=False),
)

# Emulated donors are slow: where a loss could lose pages, deadlines are long enough to avoid it.
# An unreadable page ends the program, so no donor is lost while the disk is full.
SWAP_LOAD = ("--threads", 2, "--pause", 20000)
SWAP_KINDS = (
    Kind("swap, disk", ("--deadline", "1s"), checker=SWAP_LOAD),
    Kind("swap, replicas=2", ("--durability", "replicas=2", "--deadline", "6s"), at_once=1,
         backup=False, checker=SWAP_LOAD),
    Kind("swap, disk full now and then", ("--deadline", "20s"), disk_full=True, sealed=False,
         faults=("short SIGSTOP", "short link down", "out of memory", "a tenth lost"),
         checker=SWAP_LOAD),
)


def memory_kib(pid):
    rows = dict(line.split(":", 1) for line in machine.read(f"/proc/{pid}/status").splitlines())
    return {key: int(rows[key].split()[0]) for key in ("VmRSS", "VmLck")}


def slope(points):
    """Returns the slope of the line through @points (x, y) with the least squares."""
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    over = n * sum(x * x for x, _ in points) - sx * sx
    return (n * sum(x * y for x, y in points) - sx * sy) / over if over else 0.0


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def namespaces():
    """Returns the network namespaces of all processes."""
    found = set()
    for p in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(p))
        except OSError:
            pass
    return found


class Soak:
    kinds, native = KINDS, True
    deadline, lasting_load = "300ms", ("--pause", 1000)     # of the lasting device
    round_seconds = 60
    slow = 1                            # factor of time-outs
    keyed = True
    donor_memory = "160M"
    donor_options = ("--keep", "6s", "--revoke-after", "1s")
    disk = None                         # of the devices' backups

    def __init__(self, seconds, seed):
        self.seconds, self.seed, self.random = seconds, seed, random.Random(seed)
        # Even a short run has a round of each kind.
        self.round_seconds = min(self.round_seconds, seconds / len(self.kinds))
        self.start = time.monotonic()
        self.next_progress = self.start + PROGRESS_SECONDS
        self.faults, self.tries = collections.Counter(), collections.Counter()
        self.donor_faults = []
        self.totals = collections.Counter()
        self.rounds, self.baseline, self.trouble = [], {}, []
        self.samples = collections.defaultdict(list)    # (process, key) -> [(hours, value)]
        self.vanished = None

    def say(self, text):
        print(f"{time.monotonic() - self.start:6.0f} s  {text}", flush=True)

    def over(self):
        return time.monotonic() - self.start >= self.seconds

    def progress(self):
        if time.monotonic() < self.next_progress:
            return
        self.next_progress = time.monotonic() + PROGRESS_SECONDS
        told = self.long.stats()
        self.say(f"{sum(self.faults.values())} faults, {len(self.rounds)} rounds; dp0: "
                 f"{told['donor_losses']} donors lost, "
                 f"{told['bytes_written_donor'] >> 20} MiB written, "
                 f"{told['pages_read_backup']} pages from the disk; bad pages: 0")

    def run(self, seconds):
        """Runs the load for @seconds, without any fault found."""
        self.cluster.run(seconds)
        self.progress()

    # --- one fault

    def choose(self, kind):
        """Returns [(fault, donor)], at different donors."""
        n = self.random.choices((1, 2), (3, 1))[0] if kind.at_once > 1 else 1
        donors = self.random.sample(self.cluster.donors, n)
        faults = [f for f in self.donor_faults if not kind.faults or f.name in kind.faults]
        return [(self.rarest(faults, lambda f: f.name) if self.random.random() < 0.5
                 else self.random.choice(faults), d) for d in donors]

    def rarest(self, among, name):
        """Returns that of @among whose fault, called name(it), was tried least."""
        return min(among, key=lambda it: (self.tries[name(it)], self.random.random()))

    def losses(self, donor):
        """Returns how often the lasting device has lost or missed @donor since it was listed."""
        row = self.long.donor(donor.address)
        return row["losses"] + row["absences"]

    def noticed(self, donor, before):
        """Returns whether its losses differ from @before, or ebbd has removed it from the list."""
        return self.losses(donor) != before or \
            self.long.donor(donor.address)["state"] == "absent"

    def drained(self, donor, devices):
        """Drains a donor as an operator does, then undrains it."""
        def order(verb):
            for device in devices:
                address = donor.local if donor.local in device.donors else donor.address
                # ebbd may have removed a restarted donor that could not register in time because
                # etcd was down.
                if device.donor(address)["state"] != "absent":
                    device.order(verb, donor=address)
        order("donor.drain")
        self.run(self.random.uniform(0.2, 1))
        order("donor.undrain")

    def unlisted(self, donor, devices):
        """Removes a donor from the list and adds it again, as ebbd does."""
        for device in devices:
            device.order("donors.set", donors=[a for a in device.donors
                                               if a not in (donor.address, donor.local)])
        self.run(self.random.uniform(0.2, 1))
        for device in devices:
            device.order("donors.set", donors=device.donors)

    def lie(self, how, donor, devices):
        """
        Alters a donor's pages: it must be quarantined, and is trusted again once restarted.  Returns
        whether there was a page to alter.
        """
        lied = donor.lie(how)
        self.run(self.random.uniform(0.2, 1))
        donor.kill()
        donor.start()
        for device in devices:
            def up():
                state = device.donor(donor.address)["state"]
                if state == "quarantined":
                    self.totals["quarantines"] += device.trust(donor.address)
                return state == "up"
            self.cluster.wait(up, 30, f"{device.name} has {donor.address} again")
        return lied > 0

    def altered(self, donor, devices):
        """
        Alters a page on its way to or from a donor: that costs a connection and no page, and only
        repeated alterations quarantine the donor, which is trusted again.  Returns whether a device
        found one.
        """
        count = lambda device, key: device.donor(donor.address).get(key, 0)
        before = {device: (count(device, "altered"), count(device, "bad_pages")) for device in devices}
        with altered(donor, self.random.choice(("from", "to"))):
            self.run(self.random.uniform(0.3, 1))
        for device in devices:
            def up():
                row = device.donor(donor.address)
                if "quarantined" not in (row["state"], row.get("leaving")):
                    return row["state"] == "up"
                if row["altered"] < ALTERATIONS:
                    raise MachineError(f"{device.name}: {donor.address} quarantined: {row['last_loss']}")
                self.totals["quarantines"] += device.trust(donor.address)
                return False
            self.cluster.wait(up, 30, f"{device.name} has {donor.address} again")
            if count(device, "bad_pages") > before[device][1]:
                raise MachineError(f"{device.name}: a page altered on the way is {donor.address}'s")
        return any(count(device, "altered") > before[device][0] for device in devices)

    def cut_off(self, seconds):
        with cut_off(self.cluster):
            self.run(seconds)

    def entries_removed(self):
        """Removes some donors from etcd: they stay in use."""
        gone = self.random.sample(self.cluster.donors, self.random.randint(1, 3))
        with entries_removed(self.cluster.etcd, [d.address for d in gone]):
            self.run(self.random.uniform(0.5, 5))

    def disk_hung(self):
        with self.disk.hung():
            self.run(self.random.uniform(0.5, 3))

    def revoked(self, donor, b):
        """
        Stops the server of @b while a donor runs out of memory, which then revokes slabs: their
        pages must come from elsewhere.
        """
        count = lambda: donor.ask()["evictions"]["revoked"]
        before, server = count(), b.server
        os.kill(server, signal.SIGSTOP)
        donor.squeeze()
        try:
            end = time.monotonic() + REVOKE_SECONDS
            while count() == before and time.monotonic() < end:
                self.run(0.5)
        finally:
            donor.relax()
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGCONT)
        return count() > before

    def given_up(self, donor, devices):
        """Gives up a donor that is away, as an operator does; refused if a page was lost by that."""
        with unplugged(donor):
            for device in devices:
                self.cluster.wait(lambda: device.donor(donor.address)["state"] != "up",
                                  10 * self.slow, f"absence of {donor.address}")
            answers = [device.ask("donor.forget", donor=donor.address) for device in devices]
        return any(a["ok"] for a in answers)

    def number_replayed(self, b):
        """A donor replays at the others the number by which its session is resumed, to no avail."""
        impostor = Impostor(self.cluster.directory / "impostor")
        try:
            b.order("donors.set", donors=[*b.donors, impostor.address])
            impostor.listen()
            for donor in self.cluster.donors:
                if not impostor.resume(donor.local.removeprefix("unix:")):
                    raise MachineError(f"{donor.address}: resumed the session of another donor")
        finally:
            b.order("donors.set", donors=b.donors)
            impostor.close()

    def places(self):
        """
        Returns the places of the lasting device's slabs, and the causes of changes: losses and
        copied pages.  A slab without pages is released, and later mapped anywhere, without a cause.
        """
        return self.long.slabs(), self.long.losses(), self.long.stats()["pages_repaired"]

    def etcd_lost(self):
        """Kills etcd: mapped slabs must stay where they are, even if the donors' leases expire."""
        still = self.long.whole()
        old, *before = self.places()
        fresh, long = self.random.random() < 0.25, self.random.random() < 0.1
        with etcd_killed(self.cluster.etcd, fresh):
            self.run(LEASE_SECONDS if long else self.random.uniform(0.5, 3))
            new, *after = self.places()
        # Migrations from before may be unfinished, and a donor may be late on a busy machine.
        if not still or before[0] != after[0]:
            return
        self.totals["slabs_looked_at_without_etcd"] += len(old)
        moved = [s for s in old if set(old[s]) - set(new.get(s, old[s]))]
        if moved and before != after:
            raise MachineError(f"dp0: etcd was down, and slabs moved: {moved}")

    def ebbd_killed(self, devices):
        """Kills ebbd during a migration; sometimes the next ebbd finds no etcd either."""
        held = lambda donor: sum(d.donor(donor.address)["slabs"] for d in devices)
        leaver = max(self.cluster.donors, key=held)
        if not held(leaver):
            return False
        without = "list = " + ", ".join(d.address for d in self.cluster.donors if d is not leaver)

        def under_way():
            self.cluster.wait(lambda: not held(leaver) or
                              any(d.status()["copies"]["leaving"] for d in devices),
                              20 * self.slow, f"slabs leave {leaver.address}")

        with ExitStack() as undo:
            if self.random.random() < 0.3:
                undo.enter_context(etcd_killed(self.cluster.etcd))
                self.faults["etcd killed"] += 1
            with control_plane_killed(self.plane, self.cluster.etcd.config(), without, under_way):
                migrating = held(leaver) > 0
                self.run(self.random.uniform(0, 1))
            self.run(self.random.uniform(0, 1))
        return migrating

    def other_faults(self, kind, b):
        """
        Returns {name: function} of the faults, other than donors', that @kind tolerates.  A function
        returns False if there was nothing to be done.
        """
        donor, both = self.random.choice(self.cluster.donors), (self.long, b)
        followers = both if kind.follows() else (self.long,)
        found = {
            "slabs moved by order": lambda: sum(d.move(self.random) for d in both) > 0,
            "drain order": lambda: self.drained(donor, both),
            "taken off the list": lambda: self.unlisted(donor, both),
            "servers killed": lambda: b.kill_server(20 * self.slow) and None,
            "etcd killed": self.etcd_lost,
            "ebbd killed during migration": lambda: self.ebbd_killed(followers),
        }
        if kind.sealed:
            found["pages altered at a donor"] = lambda: self.lie("flip", donor, both)
            found["pages exchanged at a donor"] = lambda: self.lie("swap", donor, both)
        if self.native:
            found["borrower cut off for 0.3 s"] = lambda: self.cut_off(0.3)
            found["entries removed from etcd"] = self.entries_removed
            if not self.cluster.network.lacks("loss"):
                found["page altered on the way"] = lambda: self.altered(donor, followers)
            if kind.follows():
                found["session number replayed"] = lambda: self.number_replayed(b)
                found["slabs revoked"] = lambda: self.revoked(donor, b)
                found["donor given up"] = lambda: self.given_up(donor, both)
            if kind.sealed:
                found["pages replayed by a donor"] = lambda: self.lie("replay", donor, both)
            # Without a backup a write has no place meanwhile.
            if kind.backup:
                found["borrower cut off for 2 s"] = lambda: self.cut_off(2)
                found["borrower cut off for 9 s"] = lambda: self.cut_off(9)
            if kind.backup and not kind.disk_full:
                found["backup disk hung"] = self.disk_hung
        return found

    def one_fault(self, kind, b):
        others = self.other_faults(kind, b)
        name = self.rarest(others, lambda n: n) if self.random.random() < 0.7 \
            else self.random.choice(list(others))
        self.tries[name] += 1
        self.faults[name] += others[name]() is not False
        self.all_well(kind, b)
        chosen = self.choose(kind)
        # A donor that was just listed again has no slabs and gets no requests; and migrations to
        # it may be unfinished.
        before = {d: self.losses(d) for _, d in chosen if self.long.donor(d.address)["slabs"] > 4}
        with ExitStack() as undo:
            if kind.disk_full and self.random.random() < 0.3:
                b.disk_full()
                undo.callback(b.disk_empty)
                self.faults["disk full"] += 1
            if self.random.random() < 0.1:
                undo.enter_context(etcd_killed(self.cluster.etcd))
                self.faults["etcd killed"] += 1
            for fault, donor in chosen:
                undo.enter_context(fault.of(donor))
                self.faults[fault.name] += 1
                self.tries[fault.name] += 1
                self.run(self.random.uniform(0, 0.2))
            if self.random.random() < 0.15:
                b.kill_server(20 * self.slow)
                self.faults["servers killed in the midst"] += 1
            self.run(max(self.random.uniform(*f.seconds) for f, _ in chosen))
        for fault, donor in chosen:
            if fault.loses and donor in before:
                self.cluster.wait(lambda: self.noticed(donor, before[donor]), 5 * self.slow,
                                  f"dp0 noticed \"{fault.name}\" of {donor.address}")
        self.all_well(kind, b)
        self.run(self.random.uniform(0.2, 1.5))

    def all_well(self, kind, b):
        """Waits until every donor is up and, without a backup, all replicas are complete."""
        for device in (self.long, b):
            self.cluster.all_up(device, 30 * self.slow)
        if not kind.backup:
            self.cluster.wait(b.whole, 60 * self.slow, "dp1 has all copies again")

    # --- one round: a device from its birth to its end

    def load(self, b, options):
        return self.cluster.check(b, options)

    def unload(self, checker):
        """Stops the checker and adds up its report."""
        told = checker.stop(120 * self.slow)
        self.cluster.checkers.remove(checker)
        return told

    def one_round(self, kind):
        local = [d.local for d in self.cluster.donors] if kind.local else None
        backup = self.disk.directory / "backup" if kind.backup and self.disk else kind.backup
        b = self.serve("dp1", options=kind.options, backup=backup, donors=local)
        if kind.follows():
            b.follow()
        checker = self.load(b, (*kind.checker, "--seed", self.random.randrange(1 << 30)))
        end = min(time.monotonic() + self.round_seconds, self.start + self.seconds)
        while time.monotonic() < end:
            self.one_fault(kind, b)
        told = self.unload(checker)
        b.close()
        self.cluster.borrowers.remove(b)
        if b.process.returncode:
            self.trouble.append(f"dp1: status {b.process.returncode}")
        self.count(told)
        self.rounds.append({"kind": kind.name, **told})
        self.leaks()

    def serve(self, name, options=(), **what):
        # Slow repair, so that faults occur during it.
        b = self.cluster.serve(name, options=("--deadline", self.deadline, "--repair-rate", "16M",
                                              "--watchdog", "60s", *options), **what)
        self.cluster.all_up(b, 20 * self.slow)
        return b

    def count(self, told):
        for key in ("pages_read", "pages_written", "pages_discarded", "verified", "read_errors",
                    "write_errors"):
            self.totals[key] += told[key]

    def leaks(self):
        """Checks that with only the lasting device, all is as after the first round."""
        def sessions(donor):
            return len(donor.ask()["borrowers"])

        def free():
            return all(d["free"] == d["total"] - d["slabs"] * self.slab
                       for d in self.long.status()["donors"]) and \
                all(sessions(d) == 1 for d in self.cluster.donors)
        try:
            self.cluster.wait(free, 30 * self.slow, "slabs and sessions of a destroyed device to be free")
        except MachineError as e:
            if self.cluster.failed():
                raise
            self.trouble.append(str(e))
        who = {"ebb-swapd": self.long.server, "ebbd": self.plane.daemon.pid,
               **{f"donor {d.address}": d.daemon.pid for d in self.cluster.donors}}
        lent = {f"donor {d.address}": sessions(d) for d in self.cluster.donors}
        hours = (time.monotonic() - self.start) / 3600
        for name, pid in who.items():
            now = {"fds": descriptors(pid), **memory_kib(pid)}
            if name in lent:
                now["sessions"] = lent[name]
            first = self.baseline.setdefault(name, now)
            for key, value in now.items():
                self.samples[name, key].append((hours, value))
                if value > first[key] + GROWTH[key]:
                    self.trouble.append(f"{name}: {key} grew from {first[key]} to {value}")

    def slopes(self):
        """Returns {process: {key: growth an hour}}, by all rounds; reports a leak."""
        found = collections.defaultdict(dict)
        for (name, key), points in self.samples.items():
            an_hour = slope(points)
            found[name][key] = round(an_hour, 2)
            growth = an_hour * (points[-1][0] - points[0][0])
            if len(points) >= SLOPE_ROUNDS and growth > max(GROWTH[key], 1):
                self.trouble.append(f"{name}: {key} grows by {an_hour:.1f} an hour")
        return found

    def rare(self, seconds):
        """Reports kinds of fault that occurred too seldom."""
        if seconds >= JUDGED_SECONDS:
            self.trouble += [f"fault \"{name}\": only {self.faults[name]} times"
                             for name in {*self.tries, *self.faults}
                             if self.faults[name] < FAULTS_AN_HOUR * seconds / 3600]

    # --- all of it

    def vanish(self, files):
        """Starts a separate donor whose borrower is cut off in the first minute and then dies."""
        c = self.vanished = Cluster(files, files, donors=1, keyed=True,
                                    options=("--drain-timeout", "1s"))
        c.all_up(c.serve("gone"))
        c.check(c.borrowers[0])
        c.run(0.5)
        c.node.unplug()
        c.checkers.pop().kill()
        c.borrowers.pop().die()
        # The dead borrower stays unplugged; another machine borrows.
        c.node = c.network.add()

    def look_for_vanished(self):
        """Checks that this donor, which saw no connection end, has its memory back minutes later."""
        if not self.vanished:
            return
        if time.monotonic() - self.start < GONE_SECONDS:
            self.say(f"what a vanished borrower had is not looked at: that takes {GONE_SECONDS} s")
            return
        b = self.vanished.serve("next")
        self.vanished.all_up(b)
        self.vanished.wait(lambda: all(d["free"] == d["total"] for d in b.status()["donors"]), 10,
                           "slabs of a borrower that vanished are free")

    def body(self):
        self.start = time.monotonic()       # the setup takes minutes on an emulated machine
        self.long = self.serve("dp0", size="64M")
        self.long.follow()
        self.plane = self.cluster.control(self.cluster.etcd.config())
        self.slab = self.long.status()["slab"]
        self.donor_faults = [f for f in DONOR_FAULTS
                             if not (f.needs and self.cluster.network.lacks(f.needs))]
        checker = self.cluster.check(self.long, (*self.lasting_load, "--seed", self.seed))
        n = 0
        while not self.over():
            self.one_round(self.kinds[n % len(self.kinds)])
            n += 1
        told = checker.stop(120 * self.slow)
        self.count(told)
        self.rounds.append({"kind": "the lasting device", **told})
        self.look_for_vanished()

    def close(self):
        self.cluster.close()

    def report(self, seconds):
        per_hour = sum(self.faults.values()) * 3600 / seconds
        bad = any("page " in t and " is " in t for t in self.trouble)
        slopes = self.slopes()
        self.rare(seconds)
        return {"ok": not self.trouble, "seconds": round(seconds, 1), "seed": self.seed,
                "kernel": os.uname().release, "faults": dict(self.faults),
                "faults_per_hour": round(per_hour), "bad_pages": int(bad), **self.totals,
                "processes": self.baseline, "growth_per_hour": slopes, "trouble": self.trouble, "rounds": self.rounds}

    def main(self):
        if not machine.IN_GUEST:
            shutil.rmtree(DIRECTORY, ignore_errors=True)
            DIRECTORY.mkdir(parents=True)
        files = Path(tempfile.mkdtemp(prefix="ebb-soak-", dir=TEMPORARY))
        self.say(f"seed {self.seed}, {self.seconds:.0f} s; logs in {DIRECTORY}")
        self.cluster = Cluster(files, DIRECTORY, local=True, memory=self.donor_memory,
                               keyed=self.keyed, etcd=True,
                               options=("--drain-timeout", "5s", *self.donor_options))
        try:
            if self.native:
                self.disk = ThinDisk(files, size=96, room=160)
            self.vanish(files / "vanished")
            self.body()
        except (MachineError, OSError) as e:
            self.trouble.append(str(e))
        finally:
            made = {n.name() for c in filter(None, (self.vanished, self.cluster))
                    for n in (c.network.switch, *c.network.nodes)}
            for what in filter(None, (self.vanished, self)):
                try:
                    what.close()
                except MachineError as e:
                    self.trouble.append(str(e))
            if self.disk:
                self.disk.close()
            shutil.rmtree(files, ignore_errors=True)
        seconds = time.monotonic() - self.start
        def left():
            return set(left_of(files)) | namespaces() & made | {str(c) for c in machine.ebb_cgroups()
                                                           if c.name == CGROUP}
        try:
            # Killed processes may still be exiting.
            machine.wait_for(lambda: not left(), 10, "no leftovers")
        except MachineError:
            self.trouble += [f"left behind: {what}" for what in left()]
        told = self.report(seconds)
        (DIRECTORY / "report.json").write_text(json.dumps(told, indent=1) + "\n")
        for t in self.trouble:
            print(f"FAILED: {t}")
        for name, n in self.faults.most_common():
            self.say(f"{n:5} {n * 3600 / seconds:7.1f} an hour  {name}")
        for name, keys in told["growth_per_hour"].items():
            self.say(f"{name}, growth an hour: " +
                     ", ".join(f"{key} {value:+}" for key, value in keys.items()))
        self.say(f"{sum(self.faults.values())} faults of {len(self.faults)} kinds "
                 f"({told['faults_per_hour']} an hour), "
                 f"{self.totals['verified']} pages verified at the end of "
                 f"{len(self.rounds)} devices, "
                 f"bad pages: {told['bad_pages']}; {'ok' if told['ok'] else 'FAILED'}")
        return 0 if told["ok"] else 1


class SwapSoak(Soak):
    """The soak with swap: only in a guest, because it kills servers of swap."""
    kinds, native, donor_options = SWAP_KINDS, False, ("--keep", "2s")
    deadline, lasting_load, round_seconds, slow = "1s", ("--threads", 1, "--pause", 50000), 240, 4
    keyed = False       # TLS would take all time of an emulated processor,
    donor_memory = "64M"    # and so would locking more memory at each start
    area = cgroup = None

    def vanish(self, files):
        """Does nothing: this part takes minutes and is independent of swap."""

    def serve(self, name, options=(), **what):
        # Donors on loopback addresses are not sealed by default.
        return super().serve(name, options=("--seal", "on", *options), **{"size": "64M", **what})

    def load(self, b, options):
        self.area, self.cgroup = SwapArea(b.file), parts.Cgroup(CGROUP, LIMIT_MIB)
        checker = self.cluster.check(b, (*options, "--memory", MIB), enter=self.cgroup.enter)
        self.cluster.wait(lambda: self.area.used_kib() > 4 << 10, 120, "pages are swapped out")
        return checker

    def unload(self, checker):
        told = super().unload(checker)
        self.swap_off()
        return told

    def swap_off(self):
        area, self.area = self.area, None
        if area:
            area.close()
            self.cgroup.remove()

    def close(self):
        for c in self.cluster.checkers:
            c.kill()
        self.swap_off()
        super().close()


def in_guest(hours, seed):
    """Replaces this process by the guest, with the same output."""
    os.chdir(machine.REPO)
    os.execv(sys.executable, [
        sys.executable, "-B", "tests/guest/run.py", "--name", "soak", "--memory", "1536",
        # With two, an emulated processor may run code that the other has just patched, and the
        # kernel dies of a stray int3: each nftables chain on a device switches such a branch.
        "--cpus", "1", "--timeout", str(int(hours * 3600) + 900), "--", "/usr/bin/python3", "-B",
        "tests/chaos/soak.py", "--hours", str(hours), "--seed", str(seed)])


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hours", type=float, default=1)
    p.add_argument("--seed", type=int, default=0, help="0: a new one")
    p.add_argument("--guest", action="store_true",
                   help="a program that swaps, in a guest; no root")
    a = p.parse_args()
    a.seed = a.seed or random.randrange(1, 1 << 30)
    if a.guest:
        return in_guest(a.hours, a.seed)
    if os.geteuid() != 0:
        p.error("needs root; run sudo make soak")
    # Clean up on SIGTERM, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A machine has only one ebbd.
    with machine.swap_locked():
        return (SwapSoak if machine.IN_GUEST else Soak)(a.hours * 3600, a.seed).main()


if __name__ == "__main__":
    sys.exit(main())
