# SPDX-License-Identifier: GPL-2.0-or-later
"""
`ebbctl device create --frontend kmod`, and ebbd managing the device: a program swaps while donors
are killed, restarted, drained and ended, and ebbd is killed in between.
"""
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import kmodule
import machine
import parts
import units
from key import Key
from kmod_fixtures import disk, donor, module, roce  # noqa: F401
from kmodule import ADDRESS, rdma_objects, shared_key
from kswap import NO_SESSION, Kswap
from machine import wait_for

A, B = f"rdma:{ADDRESS}:7471", f"rdma:{ADDRESS}:7472"
SLABS = 16


def create(*options, name="test0", donors=f"{A},{B}", size="64M", seal="off", check=True):
    return parts.ebbctl("device", "create", name, "--frontend", "kmod", "--size", size,
                        "--slab", "4M", "--donors", donors, "--key", shared_key().path, "--seal", seal,
                        *options, check=check, timeout=300)


def destroy(name="test0", check=True):
    return parts.ebbctl("device", "destroy", name, "--timeout", "5min", check=check, timeout=400)


def numbers():
    """Returns the numbers of the module's devices."""
    with_module = Kswap()
    try:
        return with_module.devices()
    finally:
        with_module.close()


class Seen:
    """The device test0 as the module reports it."""

    def __init__(self):
        self.netlink = Kswap()
        block = parts.ebbctl_json("device", "list")["devices"][0]["block"]
        self.number = int(block.removeprefix("/dev/ebb"))

    def close(self):
        self.netlink.close()

    def live(self):
        """Returns {"10.9.0.1:7471": session} of live sessions."""
        return {f"rdma:{s['address']}:{s['port']}": s["session"]
                for s in self.netlink.status(self.number)["sessions"] if s["state"] == "live"}

    def held(self):
        """Returns the number of slabs by place: {address: n, None: n}."""
        names, found = {v: k for k, v in self.live().items()}, {}
        for s in self.netlink.slabs(self.number):
            at = names.get(s["session"]) if s["session"] != NO_SESSION else None
            found[at] = found.get(at, 0) + 1
        return found

    def settled(self):
        return all(s["source"] == NO_SESSION and not s["uncopied"]
                   for s in self.netlink.slabs(self.number))

    def counts(self):
        return self.netlink.status(self.number)["counts"]

    def wait_held(self, wanted, seconds=240):
        wait_for(lambda: self.held() == wanted and self.settled(), seconds,
                 f"not {wanted}: {self.held()}")


@pytest.fixture
def seen():
    made = []

    def make():
        made.append(Seen())
        return made[-1]

    yield make
    for s in made:
        s.close()


@pytest.fixture
def after(module, donor):
    """Destroys a device that a test left, whatever happened."""
    yield
    if Path("/run/ebb/devices/test0.json").exists() or Path("/run/ebb/devices/test0.partial").exists():
        destroy(check=False)


def nothing_left():
    assert numbers() == []
    assert not [p for p in machine.swaps() if p.startswith("/dev/ebb")]
    assert [f.name for f in Path("/run/ebb/devices").glob("test0*")] == []


def test_module_that_is_not_loaded(roce):
    done = create("--durability", "none", check=False)
    assert done.returncode == 3
    assert "ebb_swap: the kernel module is not loaded; run \"modprobe ebb_swap\"" in done.stderr
    assert not Path("/run/ebb/devices/test0.partial").exists()


def test_what_is_refused(module, donor, disk, after):
    none = ("--durability", "none")

    def refused(status, words, *options, **plan):
        done = create(*options, check=False, **plan)
        assert (done.returncode, words in done.stderr) == (status, True), done.stderr
        nothing_left()

    refused(1, "no donor accepts connections there", *none)
    donor(memory="24M")
    refused(1, f"donor {B}: cannot connect: address: no donor accepts connections there", *none)
    refused(1, "donors lack capacity for 10 of 16 slabs", *none, donors=A)
    refused(2, "uses RDMA only", *none, donors="10.9.0.1:7070")
    refused(2, "given twice", *none, donors=f"{A},{A}")
    refused(2, "give --backup /dev/")
    refused(2, "supports at most two replicas", "--durability", "replicas=3")
    refused(2, "replicas=2 needs 2 donors, got 1", "--durability", "replicas=2", donors=A)
    refused(2, "--backup requires --durability disk, not replicas=2", "--durability", "replicas=2", "--backup",
            "/dev/null")
    refused(2, "a connection for each queue", *none, "--connections", "2")
    refused(2, "not a block device", "--backup", "/var/tmp")
    refused(2, "multiple", *none, size="65M")
    small = disk(16)
    refused(1, "backup: smaller than the device", "--backup", small.path, donors=A)
    kmodule.run("/sbin/mkswap", small.path)
    refused(5, ": not empty (", "--backup", small.path, donors=A)
    # The user may have no access to the tree's parents, such as /root.
    anyones = shutil.copy(machine.BIN / "ebbctl", "/tmp/ebbctl")
    done = subprocess.run([anyones, "device", "create", "test0", "--frontend", "kmod",
                           "--size", "64M", "--donors", A, *none], text=True, capture_output=True,
                          user=65534, group=65534, extra_groups=[])
    assert done.returncode != 0 and "root" in done.stderr, done.stderr


@pytest.mark.parametrize("seal", ["off", "auto"])
def test_a_program_swaps_there(module, donor, after, cgroup, seen, seal):
    """Works without ebbd, with two donors and no backup, and leaves nothing."""
    donor(), donor(port=7472)
    before = rdma_objects()
    create("--durability", "none", name="ebb1", seal=seal)
    try:
        d = seen()
        assert d.number == 1
        held = d.held()
        assert set(held) == {A, B} and min(held.values()) > 4, held
        done = create("--durability", "none", name="ebb1", check=False)
        assert done.returncode == 5 and "device ebb1: exists" in done.stderr
        listed, = parts.ebbctl_json("device", "list")["devices"]
        assert (listed["frontend"], listed["on"], listed["block"]) == ("kmod", True, "/dev/ebb1")
        assert d.netlink.status(d.number).get("seal", False) is (seal == "auto")
        told = parts.scan_json(mib=32, passes=2, pattern="random", write=True, cgroup=cgroup(16))
        assert told["bad"] == 0
        n = d.counts()
        assert n["write_donor"] > 4096 and n["read_donor"] > 2048, n
        assert n["read_failed"] == n["write_failed"] == n["seal_broken"] == 0
    finally:
        destroy("ebb1")
    nothing_left()
    wait_for(lambda: all(n <= before[kind] for kind, n in rdma_objects().items()), 20,
             "something is left on the network device")


def test_incomplete_device_is_destroyed(module, donor, after):
    """If ebbctl is killed while creating a device, its record suffices to destroy the device."""
    donor(), donor(port=7472)
    process = subprocess.Popen([machine.BIN / "ebbctl", "device", "create", "test0", "--frontend",
                                "kmod", "--size", "64M", "--slab", "4M", "--donors", f"{A},{B}",
                                "--key", shared_key().path, "--durability", "none"])
    wait_for(numbers, 60, "no device is made")
    process.kill()
    process.wait()
    if Path("/run/ebb/devices/test0.partial").exists():
        assert parts.ebbctl_json("device", "list")["devices"][0]["state"] == "half made"
    destroy()
    nothing_left()


def row(kind, key, value):
    return next(r for r in parts.ebbctl_json(kind, "list")[f"{kind}s"] if r[key] == value)


def test_ebbd_manages_it(module, donor, disk, after, cgroup, seen, logs):
    ebbds = []

    def ebbd_start():
        # With the rights of its unit only.
        ebbds.append(parts.Daemon([*units.confined("ebbd.service"), machine.BIN / "ebbd"],
                                  logs / f"ebbd-{len(ebbds)}.log", timeout=90))

    def said(words):
        return words in machine.read(ebbds[-1].log)

    try:
        one, two = donor(), donor(port=7472)
        ebbd_start()
        create("--backup", disk(64).path)
        d = seen()
        c = cgroup(16)
        parts.ebbctl("policy", "attach", "none", c.path)
        scan = parts.Scan(mib=32, passes=12, pattern="random", write=True, cgroup=c)
        scan.go()
        wait_for(lambda: d.counts()["read_donor"] > 500, 120, "no reads from donors")

        # The slabs of a killed donor go to the other.
        one.kill()
        d.wait_held({B: SLABS})
        wait_for(lambda: said(f"donor {A} lost: "), 10, "no word of it")
        lost = row("donor", "address", A)
        assert (lost["state"], lost["losses"]) == ("down", 1)
        listed, = parts.ebbctl_json("device", "list")["devices"]
        assert (listed["state"], listed["server"]["copies"]["missing"]) == ("on", 0)

        # Without ebbd: one donor returns, the other is killed.
        ebbds[-1].kill()
        one = donor()
        two.kill()
        wait_for(lambda: d.held() == {None: SLABS}, 60, "the slabs are still there")
        assert parts.ebbctl_json("device", "list")["devices"][0]["state"] == "on, silent"
        ebbd_start()
        d.wait_held({A: SLABS})

        # A restarted donor is used again.
        two = donor(port=7472, drain="300s")
        wait_for(lambda: B in d.live(), 120, "not connected again")
        parts.ebbctl("donor", "drain", A)
        d.wait_held({B: SLABS})
        wait_for(lambda: row("donor", "address", A).get("leaving") == "drained", 20, "not drained")
        parts.ebbctl("donor", "undrain", A)
        wait_for(lambda: not row("donor", "address", A).get("leaving") and A in d.live(), 60,
                 "still drained")
        parts.ebbctl("slab", "migrate", "test0", 3, "--to", A)
        d.wait_held({A: 1, B: SLABS - 1})
        slabs = {s["slab"]: s for s in parts.ebbctl_json("slab", "list", "test0")["slabs"]}
        assert [c["donor"] for c in slabs[3]["copies"]] == [A]
        # How many pages are live varies: the slots of those that were read are freed.
        assert sum(s["live"] for s in slabs.values()) > 0

        # A terminated donor recalls its slabs, and they go to the other.
        two.process.terminate()
        d.wait_held({A: SLABS})
        assert scan.result(timeout=600)["bad"] == 0
        n = d.counts()
        assert n["read_failed"] == n["write_failed"] == 0
        # The BPF programs count this device's I/O, too.
        told = parts.stats(c)
        assert told["swapped_out"] > 4096 and told["swapped_in"] > 4096, told
        assert "ebb_device" in parts.ebbctl("metrics").stdout
        destroy()
        wait_for(lambda: not Path("/run/ebb/devices/test0.sock").exists(), 10, "its socket stays")
        nothing_left()
        assert not re.search("not managed", machine.read(ebbds[-1].log))
    finally:
        destroy(check=False)
        for e in ebbds:
            e.stop()
        machine.pins_remove()


def test_small_cgroup_waits_for_slow_writes(module, donor, disk, after, cgroup, seen, logs):
    """ebbctl leaves write-back throttling on, so that some pages are not yet in flight."""
    donor()
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        create("--backup", disk(64, delay_us=2_000_000).path, donors=A)
        d = seen()
        c = cgroup(12)
        # A class without donors: its pages are on the backup alone.
        parts.ebbctl("device", "class", "test0", c.path, "--durability", "disk")
        before = d.counts()["write_backup"]
        parts.Scan(mib=16, cgroup=c).kill()
        assert d.counts()["write_backup"] - before > 3 << 8
        assert c.events("oom_kill") == 0
        destroy()
        nothing_left()
    finally:
        destroy(check=False)
        ebbd.stop()
        machine.pins_remove()


def test_donors_get_keys_of_their_own(module, donor, disk, after, seen, logs, tmp_path):
    """ebbctl and ebbd derive them; a donor with the shared key is used until it has its own."""
    shared, keys = shared_key(), tmp_path / "keys"
    keys.mkdir(0o700)
    (keys / "shared.key").write_bytes(shared.path.read_bytes())
    (keys / "shared.key").chmod(0o600)
    one = donor(keys=keys)
    two = donor(port=7472, keys=shared.derive(B, tmp_path / "two.key").path)
    ebbd = parts.Daemon([*units.confined("ebbd.service"), machine.BIN / "ebbd"], logs / "ebbd.log",
                        timeout=90)

    def known(lender, key):
        return f"key shared ({key.number.hex()})" in machine.read(lender.log).split("shared by donors")[-1]
    try:
        create("--backup", disk(64).path)
        d = seen()
        assert set(d.live()) == {A, B}
        assert known(one, shared) and known(two, Key(tmp_path / "two.key"))
        own = shared.derive(A, keys / "own.key")
        (keys / "shared.key").unlink()
        one.signal(signal.SIGHUP)
        wait_for(lambda: known(one, own), 60, "its own key is not used")
        wait_for(lambda: A in d.live(), 60, "not connected")
        assert "share" not in machine.read(ebbd.log)
        destroy()
        nothing_left()
    finally:
        destroy(check=False)
        ebbd.stop()
        machine.pins_remove()


def test_asked_back_without_a_backup(module, donor, after, cgroup, seen, logs):
    """A terminating donor waits until ebbd has migrated all its slabs."""
    one = donor(drain="300s")
    donor(port=7472)
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        create("--durability", "none")
        d = seen()
        scan = parts.Scan(mib=24, passes=3, pattern="random", write=True, cgroup=cgroup(16))
        one.process.terminate()
        scan.go()
        assert one.process.wait(300) == 0
        assert d.held() == {B: SLABS}
        assert scan.result()["bad"] == 0
        n = d.counts()
        assert n["read_failed"] == n["write_failed"] == n["donor_errors"] == 0
        destroy()
        nothing_left()
    finally:
        destroy(check=False)
        ebbd.stop()
        machine.pins_remove()


def flush_freed_slots(cgroup):
    """Each CPU holds back up to 64 swap slots freed there, until a program frees more."""
    cpus = os.sched_getaffinity(0)
    try:
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            parts.Scan(mib=16, cgroup=cgroup).kill()
    finally:
        os.sched_setaffinity(0, cpus)


def reclaim(cgroup):
    """A page that was written while its program ended keeps its slot until it is reclaimed."""
    try:
        cgroup.set("memory.reclaim", "16M")
    except BlockingIOError:
        pass            # there was less


def test_cgroup_with_a_donor_of_its_own(module, donor, disk, after, cgroup, seen, logs):
    """ebbd maps slabs for a class where its pages are, and again after the donor was lost."""
    donor()
    lender = donor(port=7472)
    ebbds = [parts.Ebbd(logs / "ebbd-0.log")]

    def classes(*options, check=True):
        return parts.ebbctl("device", "class", "test0", *options, check=check)

    def refused(status, words, *options):
        done = classes(*options, check=False)
        assert (done.returncode, words in done.stderr) == (status, True), done.stderr

    try:
        create("--backup", disk(64).path, donors=A)
        d = seen()
        d.wait_held({A: SLABS})
        own, other = cgroup(12), cgroup(12)
        cgroup(name="outer").set("cgroup.subtree_control", "+memory")
        bare = cgroup(name="outer/bare")
        refused(2, "NAME CGROUP with --donors", "--remove")
        refused(2, ": no class of its own on device test0", own.path, "--remove")
        refused(2, "no donors given", own.path, "--durability", "none")
        refused(5, ": no io controller", bare.path, "--donors", B)
        refused(1, "no donor accepts connections there", own.path, "--donors", f"rdma:{ADDRESS}:9")
        classes(own.path, "--donors", B)
        listed, = parts.ebbctl_json("device", "class", "test0")["classes"]
        assert (listed["cgroup"], listed["durability"], listed["donors"]) == (own.rel, "disk", B)
        assert listed["mapped"] == 0
        number = listed["class"]
        scans = [parts.Scan(mib=24, passes=4, pattern="random", write=True, cgroup=c)
                 for c in (own, other)]
        for s in scans:
            s.go()

        def lent():
            slabs = d.netlink.slabs(d.number, number)
            return {s["session"] for s in slabs if s["written"]}

        wait_for(lambda: len(lent()) == 1 and NO_SESSION not in lent(), 120, f"{lent()}")
        first, = lent()
        assert d.held() == {A: SLABS}
        told, = parts.ebbctl_json("device", "list")["devices"]
        assert told["server"]["classes"] == [{"class": number, "durability": "disk", "donors": [B],
                                              "sealed": False, "cgroups": [own.path.stat().st_ino]}]
        # With ebbd killed, too: the next ebbd reads all state from the module.
        ebbds[-1].kill()
        lender.kill()
        wait_for(lambda: B not in d.live(), 30, "the donor is still there")
        donor(port=7472)
        ebbds.append(parts.Ebbd(logs / "ebbd-1.log"))
        wait_for(lambda: len(lent()) == 1 and not lent() & {NO_SESSION, first}, 120, f"{lent()}")
        assert [s.result(timeout=600)["bad"] for s in scans] == [0, 0]
        n = d.counts()
        assert n["read_failed"] == n["write_failed"] == 0
        assert d.held() == {A: SLABS}
        # Pages of a class keep its donor, and each slot that is not yet free has one.
        reclaim(own)
        flush_freed_slots(other)
        classes(own.path, "--remove")
        assert parts.ebbctl_json("device", "class", "test0")["classes"] == []
        wait_for(lambda: B not in d.live(), 30, "the class's donor is still there")
        # A class without cgroups is reused; without donors no page leaves the machine.
        refused(2, ": no class of its own on device test0", own.path)
        classes(own.path, "--durability", "disk")
        refused(5, "cannot change", own.path, "--seal", "on")
        classes(other.path, "--seal", "on")
        assert [(c["class"], c["durability"], c["sealed"], c["donors"])
                for c in parts.ebbctl_json("device", "class", "test0")["classes"]] == \
            [(number, "local", False, None), (number + 1, "local", True, None)]
        # Without options, that of one cgroup is shown, and stays.
        for _ in range(2):
            shown, = parts.ebbctl_json("device", "class", "test0", other.path)["classes"]
            assert (shown["cgroup"], shown["class"], shown["sealed"]) == (other.rel, number + 1, True)
        destroy()
        nothing_left()
    finally:
        destroy(check=False)
        for e in ebbds:
            e.stop()
        machine.pins_remove()
