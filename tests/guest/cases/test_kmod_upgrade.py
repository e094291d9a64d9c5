# SPDX-License-Identifier: GPL-2.0-or-later
"""
Upgrades ebb while a program swaps to a device of the kernel module: the module stays loaded, and
programs of another version control it.  `make kmod-old` builds release 0.1.0.
"""
import json
import os
import subprocess

import kmodule
import machine
import parts
import pytest
import release
from key import shared_key
from kmod_fixtures import disk, donor, roce  # noqa: F401
from kmodule import run
from machine import BUILD, wait_for
from test_kmod_ctl import A, B, SLABS, Seen, nothing_left    # two donors

OLD = release.TREE / "build"


class Programs:
    """ebbctl and ebbd of one version."""

    def __init__(self, directory, logs):
        self.bin, self.log = directory / "bin", logs / f"ebbd-{directory.parent.name}.log"
        self.daemon = None

    def ebbctl(self, *argv, check=True):
        done = subprocess.run([str(a) for a in (self.bin / "ebbctl", *argv)], text=True, capture_output=True,
                              timeout=400)
        assert done.returncode == 0 or not check, (argv, done.stdout, done.stderr)
        return done

    def told(self, *argv):
        return json.loads(self.ebbctl(*argv, "--json").stdout)

    def donor(self, address):
        return next(d for d in self.told("donor", "list")["donors"] if d["address"] == address)

    def create(self, backup):
        self.ebbctl("device", "create", "test0", "--frontend", "kmod", "--size", "64M", "--slab", "4M",
                    "--donors", f"{A},{B}", "--key", shared_key().path, "--backup", backup)

    def drain(self, seen):
        """Drains the first donor of all slabs, then allows new ones."""
        self.ebbctl("donor", "drain", A)
        seen.wait_held({B: SLABS})
        wait_for(lambda: self.donor(A).get("leaving") == "drained", 20, "not drained")
        self.ebbctl("donor", "undrain", A)
        wait_for(lambda: not self.donor(A).get("leaving") and A in seen.live(), 60, "still drained")

    def start(self):
        self.daemon = parts.Daemon([self.bin / "ebbd"], self.log, timeout=90)

    def stop(self):
        if self.daemon:
            self.daemon.stop()
        self.daemon = None


@pytest.fixture
def old(logs):
    if release.git("cat-file", "-e", release.COMMIT + "^{commit}").returncode:
        pytest.skip(release.MISSING)
    if " " in str(machine.REPO):
        pytest.skip("the release's module cannot be built below a path with spaces")
    yield from programs(OLD, logs)


@pytest.fixture
def new(logs):
    yield from programs(BUILD, logs)


def programs(directory, logs):
    made = Programs(directory, logs)
    yield made
    made.stop()


@pytest.fixture
def loaded(donor, disk):
    """loaded(build): loads the module of @build; unloads it before donors end."""
    yield lambda build: run("insmod", build / "kmod" / os.uname().release / "ebb_swap.ko")
    parts.ebbctl("device", "destroy", "test0", "--force", check=False, timeout=400)
    if kmodule.module_loaded():
        run("rmmod", "ebb_swap")
    machine.pins_remove()


@pytest.fixture
def swapping(loaded, donor, disk, cgroup):
    """swapping(build, programs): a program swaps to a device that @programs create and manage."""
    seen = []

    def begin(build, with_programs):
        # The first donor has memory for the device and a class.
        lenders = donor(memory="128M"), donor(port=7472, drain="300s")
        loaded(build)
        with_programs.start()
        with_programs.create(disk(64).path)
        seen.append(Seen())
        scan = parts.Scan(mib=32, passes=5, pattern="random", write=True, cgroup=cgroup(16))
        scan.go()
        wait_for(lambda: seen[-1].counts()["read_donor"] > 500, 120, "no reads from donors")
        return lenders, seen[-1], scan

    yield begin
    for s in seen:
        s.close()


def went_well(seen, scan):
    assert scan.result(timeout=600)["bad"] == 0
    n = seen.counts()
    assert n["read_failed"] == n["write_failed"] == 0, n


def test_new_programs_control_the_old_module(swapping, donor, old, new, cgroup):
    (_, two), seen, scan = swapping(OLD, old)
    old.stop()
    new.start()
    listed, = new.told("device", "list")["devices"]
    assert (listed["name"], listed["state"], listed["frontend"]) == ("test0", "on", "kmod")
    wait_for(lambda: [new.donor(a)["state"] for a in (A, B)] == ["up", "up"], 20, "donors are not listed")
    assert len(new.told("slab", "list", "test0")["slabs"]) == SLABS
    new.drain(seen)
    new.ebbctl("slab", "migrate", "test0", 3, "--to", A)
    seen.wait_held({A: 1, B: SLABS - 1})
    # A class gets its own donor, and loses it again.
    own = cgroup(12)
    new.ebbctl("device", "class", "test0", own.path, "--donors", A, "--durability", "none")
    told, = new.told("device", "class", "test0")["classes"]
    assert told["donors"] == A
    new.ebbctl("device", "class", "test0", own.path, "--remove")
    # A terminated donor recalls its slabs.
    two.process.terminate()
    seen.wait_held({A: SLABS})
    went_well(seen, scan)
    new.ebbctl("device", "destroy", "test0", "--timeout", "5min")
    nothing_left()


def test_old_programs_control_the_new_module(swapping, old):
    _, seen, scan = swapping(BUILD, old)
    old.drain(seen)
    old.ebbctl("slab", "migrate", "test0", 3, "--to", A)
    seen.wait_held({A: 1, B: SLABS - 1})
    went_well(seen, scan)
    old.ebbctl("device", "destroy", "test0", "--timeout", "5min")
    nothing_left()
