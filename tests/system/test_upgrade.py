# SPDX-License-Identifier: GPL-2.0-or-later
"""
From release 0.1.0 to this tree, one part at a time, while the others run: no page is lost, each
policy stays attached, and what cannot be used any more is named with its remedy.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, nullcontext

import pytest

import machine
import parts
import policies
import release
from dataplane import only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import wait_for
from parts import ebbctl, ebbctl_json
from ports import free_port
from test_copies import slabs_at, whole
from test_takeover import failures, keyed

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def old():
    """The tree of 0.1.0, built."""
    return release.tree()


def of(version):
    return release.programs() if version == "old" else nullcontext()


# --- configuration, options, files --------------------------------------------------------

CONFIG = """
[epochs]
percent = 10
[bpf]
hooks = auto
[prefetch]
batch = 64
headroom = 8
inflight = 128
beside = 16
workers = 2
map_ahead = on
stale = 50ms
expire = 10s
[donors]
list = 127.0.0.1:7
prefix = /ebb/donors/
"""
SECTION = '[cgroup "{glob}"]\npolicy = {policy}\nrun = daemon\n{more}\n'
REMOVED = ("workers", "map_ahead", "run = daemon")


def write_config(path, *sections):
    path.write_text(CONFIG + "".join(sections))
    return path


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Where an ebbd keeps loaded policies."""
    monkeypatch.setenv("EBB_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state" / "policies"


def run(program, *argv):
    """(exit status, stdout, stderr)"""
    done = subprocess.run([parts.BIN / program, *map(str, argv)], text=True, capture_output=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def warned(text, thing):
    assert re.search(rf"warning: .*{thing}.*(removed|no longer supported|ignored).*[:;] \w", text), text


@pytest.mark.beside
def test_configuration(tmp_path, state):
    config = write_config(tmp_path / "ebb.conf", SECTION.format(glob="/x", policy="leap", more="pw_max = 64"))
    with release.programs():
        assert run("ebbd", "--check-config", "--config", config) == (0, "", "")
    status, _, said = run("ebbd", "--check-config", "--config", config)
    assert status == 0, said
    for key in REMOVED:
        warned(said, key)
    assert len(said.splitlines()) == len(REMOVED)


def options(program, *verb):
    _, text, _ = run(program, *verb, "--help")
    return set(re.findall(r"--[a-z][a-z-]+", text))


@pytest.mark.beside
def test_options():
    """Units and scripts of 0.1.0 start the new programs."""
    with release.programs():
        verbs = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", run("ebbctl", "--help")[1], re.M)
        assert len(verbs) > 30
        calls = [("ebbd",), ("ebb-swapd",), ("ebb-donord",), ("ebb-sim",), *(("ebbctl", *v.split()) for v in verbs)]
        before = {call: options(*call) for call in calls}
    gone = {call: before[call] - options(*call) for call in calls}
    assert {call: names for call, names in gone.items() if names} == \
        {("ebb-swapd",): {"--hot-slab"}, ("ebbctl", "device", "create"): {"--hot-slab"},
         ("ebb-donord",): {"--rdma-open", "--rdma-memory"}}
    # No address of a donor can be resolved: nothing starts.
    warned(run("ebb-swapd", "--hot-slab", "5")[2], "hot-slab")
    warned(run("ebbctl", "device", "create", "x", "--hot-slab", "5")[2], "hot-slab")
    for option in ("--rdma-open", "127.0.0.1:1"), ("--rdma-memory", "5M"):
        warned(run("ebb-donord", "--memory", "64M", "--listen", "x", *option)[2], option[0].strip("-"))


@pytest.mark.beside
@pytest.mark.parametrize("name", ["python", "python-no-readahead", "sort", "sqlite"])
def test_recordings(name, tmp_path):
    file = tmp_path / "faults.trace"
    file.write_bytes(release.git("show", f"{release.COMMIT}:tests/fixtures/{name}.trace").stdout)
    with release.programs():
        before = run("ebbctl", "trace", "show", file, "--csv")
    assert before[0] == 0 and run("ebbctl", "trace", "show", file, "--csv") == before


# --- libebbgc -----------------------------------------------------------------------------

@pytest.mark.beside
@pytest.mark.parametrize("name", ["kv", "closure", "regression", "orders"])
def test_programs_linked_with_libebbgc(old, name, tmp_path):
    """Compiled with its header, linked with its library, run with the one here."""
    program = tmp_path / name
    subprocess.run(["cc", "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-I", old / "userlib", "-o", program,
                    old / f"tests/gc/{name}.c", "-L", old / "build/lib", "-lebbgc", "-lpthread", "-lm"],
                   check=True)
    results = set()
    for library in (old / "build/lib", machine.BUILD / "lib"):
        for mode in ("stop", "concurrent,drop", "memliner,park"):
            told = tmp_path / "told.json"
            done = subprocess.run([program, "-n", "5000", "-r", "3", "-t", "2", "-j", told], text=True,
                                  env={**os.environ, "LD_LIBRARY_PATH": str(library),
                                       "EBBGC_OPTIONS": f"mode={mode},check,min=1M,growth=1.3"},
                                  capture_output=True, timeout=200)
            assert done.returncode == 0, done.stderr
            assert json.loads(told.read_text())["check_failures"] == 0
            results.add(done.stdout)
    assert len(results) == 1


# --- borrowers and donors of both versions ------------------------------------------------

@pytest.mark.beside
@pytest.mark.parametrize("borrower", ["old", "new"])
@pytest.mark.parametrize("transport, key", [("tcp", False), ("tcp", True), ("shm", False)])
def test_borrowers_and_donors(world, tmp_path, borrower, key):
    """Pages, drain by either side, failover and grace period."""
    there, here = keyed(tmp_path) if key else ([], [])
    with of("new" if borrower == "old" else "old"):
        a, b = (world.donor(memory="80M", options=there) for _ in "ab")
    with of(borrower):
        s = world.serve(a, b, durability="none", options=here)
    p = world.open(s)
    p.write_random(200)
    p.check()
    if borrower == "new":
        # Once for each donor.
        wait_for(lambda: s.log.read_text().count("reserves nothing for this device") == 2, 10, "log lines")
    else:
        assert a.ask()["promised"] == b.ask()["promised"] == 0
    a.ask("drain")
    wait_for(lambda: a.ask()["lent"] == 0, 30, "slabs that were recalled")
    p.check()
    a.ask("undrain")
    wait_for(lambda: s.status()["donors"][0].get("leaving") is None, 10, "end of the drain")
    s.do("donor.drain", donor=b.address)
    wait_for(lambda: slabs_at(s, b) == 0 and whole(s), 30, "slabs at the other donor")
    p.check()
    p.write_random(50)
    for _ in range(2):
        s.kill_server()
        p.check()
    assert not failures(s) and s.stats()["donor_losses"] == 0


@pytest.mark.beside
@only_tcp
def test_a_server_stays_of_its_version(world, tmp_path):
    """Its standbys are forks: what is installed over its program becomes no part of the device."""
    installed = tmp_path / "installed"
    shutil.copytree(release.BIN, installed)
    with release.programs(installed):
        s = world.serve(world.donor(), durability="none")
    p = world.open(s)
    p.write_random(200)
    shutil.copy(parts.BIN / "ebb-swapd", tmp_path / "staged")
    os.replace(tmp_path / "staged", installed / "ebb-swapd")
    for _ in range(3):
        told = s.kill_server()
        p.check()
        p.write_random(20)
        for pid in (told["pid"], told["server"]):
            assert os.readlink(f"/proc/{pid}/exe") == f"{installed}/ebb-swapd (deleted)"
    assert not failures(s)
    p.close()
    assert s.stop() == 0


# --- ebbd ---------------------------------------------------------------------------------

@pytest.fixture
def control_plane(ebbd_lock, logs):
    """control_plane(config) starts an ebbd in place of the one before."""
    running = []

    def start(config):
        if running:
            running[-1].stop()
        running.append(parts.Ebbd(logs / f"ebbd{len(running)}.log", config))
        return running[-1]

    yield start
    for d in running:
        d.stop()
    machine.pins_remove()


def pinned():
    """{pin below the directory: id of its link or program}, but for counters of major faults."""
    found = {}
    for kind in ("link", "prog"):
        for pin in (machine.PINS / f"{kind}s").iterdir():
            if pin.name.startswith("major-"):
                continue
            shown = subprocess.run(["/usr/sbin/bpftool", "-j", kind, "show", "pinned", pin],
                                   capture_output=True, check=True).stdout
            shown = json.loads(shown)
            found[f"{kind} {pin.name}"] = (shown[0] if isinstance(shown, list) else shown)["id"]
    return found


def same(old, new):
    """Whether attachments are the same, but for new members, and that policies run in the kernel only."""
    return old.keys() == new.keys() and all(
        row[key] == new[cgroup][key] for cgroup, row in old.items() for key in row if key != "run")


def test_what_is_attached_stays_attached(control_plane, state, cgroup, tmp_path):
    own, by_hand = cgroup(name="own"), [cgroup(name=f"by-hand-{i}") for i in range(5)]
    config = write_config(tmp_path / "ebb.conf",
                          SECTION.format(glob=own.rel, policy="stride", more="window = 24"))
    with release.programs():
        control_plane(config)
        ebbctl("policy", "load", policies.compile_policy(tmp_path / "mine", policies.source()))
        for c, what in zip(by_hand, (["leap", "pw_max=64"], ["mine", "window=9"], ["none"],
                                     ["streams", "detect=1", "slowdown=5%"], ["stride", "run=daemon"])):
            ebbctl("policy", "attach", what[0], c.path, *what[1:])
        before, pins = policies.attached(), pinned()
    assert len(before) == 6 and before[own.rel]["run"] == before[by_hand[4].rel]["run"] == "daemon"
    d = control_plane(config)
    log = machine.read(d.log)
    now = policies.attached()
    assert same(before, now) and {row["run"] for row in now.values()} == {"kernel"}
    assert "taken over" in log and "cannot take over" not in log and "starting empty" not in log
    for key in REMOVED:
        warned(log, key)
    now = pinned()
    assert set(now) == set(pins) and not set(now.values()) & set(pins.values())
    # One for each processor; release 0.1.0 had one for each cgroup and processor.
    assert {p.name for p in (machine.PINS / "links").glob("major-*")} == {
        f"major-{cpu}" for cpu in range(os.cpu_count())}
    ebbctl("policy", "set", by_hand[1].path, "window=10")
    # And back, should it have to be.
    before = policies.attached()
    with release.programs():
        control_plane(config)
        assert same(policies.attached(), before)


def test_policies_that_cannot_be_used(control_plane, state, cgroup, tmp_path):
    """Each is named with the command that replaces it; everything else goes on."""
    other = "#undef EBB_ABI\n#define EBB_ABI 3"
    sections = [SECTION.format(glob=f"/{name}", policy=name, more="window = 9")
                for name in ("native", "ancient")] + [SECTION.format(glob="/x", policy="leap", more="")]
    config = write_config(tmp_path / "ebb.conf", *sections)
    c = cgroup()
    with release.programs():
        control_plane(None)
        native = policies.compile_policy(tmp_path, policies.source("native"), "native", ("so",))
        ebbctl("policy", "load", native)
        ebbctl("policy", "attach", "native", c.path, "run=daemon")
        ancient = policies.compile_policy(tmp_path, policies.source("ancient", before=other), "ancient")
    shutil.copy(ancient, state)
    d = control_plane(config)
    log = machine.read(d.log)
    command = r'run "make -B -f /usr/share/ebb/policy.mk NAME.bpf.o" beside its source, then "ebbctl policy load'
    assert f"{state}/native.so: not an object for BPF; {command}" in log
    assert f"{state}/ancient.bpf.o: built for ABI 3, this ebbd has 4; {command}" in log
    assert "native: no such policy" in log
    inactive = policies.call("status")["inactive"]
    assert [row["policy"] for row in inactive] == ["native", "ancient"]
    # A reload accepts these sections as well, and checks the others.
    write_config(config, *sections, SECTION.format(glob="/y", policy="leep", more=""))
    d.signal(signal.SIGHUP)
    wait_for(lambda: "leep: no such policy" in machine.read(d.log), 10, "the refusal")
    write_config(config, *sections)
    d.signal(signal.SIGHUP)
    wait_for(lambda: "configuration read" in machine.read(d.log), 10, "the reload")
    status, _, said = run("ebbd", "--check-config", "--config", config)
    assert status == 2 and f"policy: {state}/native.so: not an object" in said
    # As told.
    for name in ("native", "ancient"):
        (tmp_path / f"{name}.bpf.c").write_text(policies.source(name))
        ebbctl("policy", "load", policies.compile_policy(tmp_path, policies.source(name), name))
    d = control_plane(config)
    assert not policies.call("status")["inactive"] and "native.so" not in machine.read(d.log)


# --- all of it, under swap ----------------------------------------------------------------

STAMPS = """
import hashlib, mmap, sys
pages = int(sys.argv[1])
memory, generation = mmap.mmap(-1, pages << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), [0] * pages
def stamp(i):
    return hashlib.blake2b(b"%d %d" % (i, generation[i])).digest() * 64
def write(i):
    memory[i << 12:i + 1 << 12] = stamp(i)
for i in range(pages):
    write(i)
print(0, flush=True)
for step, _ in enumerate(sys.stdin):
    bad = sum(memory[i << 12:i + 1 << 12] != stamp(i) for i in range(pages))
    for i in range(step % 3, pages, 3):
        generation[i] += 1
        write(i)
    print(bad, flush=True)
"""


class Stamps:
    """A program whose memory, each page with a stamp of its own, is mostly swapped out."""

    def __init__(self, cgroup, mib):
        self.process = subprocess.Popen([sys.executable, "-c", STAMPS, str(mib << 8)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=cgroup.enter)
        assert self.process.stdout.readline() == "0\n"

    def verify(self):
        """Every page is as it was written; afterwards a third of them are rewritten."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "0\n", "pages are not as they were written"

    def stop(self):
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def swap(swap_lock):
    """swap(donors, name, *options) makes a device; in the end swap goes off before all else."""
    made = []

    def make(donors, name, *options):
        made.append(parts.Device(donors[0], name, options=[x for d in donors[1:] for x in ("--donor", d.address)] +
                                 list(options)))
        return made[-1]

    yield make
    for d in made:
        d.destroy()


def collector(old, cgroup, told):
    """What a program of 0.1.0 with its libebbgc says of a run under ebbd."""
    done = subprocess.run([old / "build/tests/gc/kv", "-n", "60000", "-r", "1", "-j", told], text=True,
                          env={**os.environ, "EBBGC_OPTIONS": "mode=memliner,arrivals,check"},
                          capture_output=True, timeout=200, preexec_fn=cgroup.enter)
    assert done.returncode == 0, done.stderr
    result = json.loads(told.read_text())
    assert result["check_failures"] == 0
    assert (result["epoch_source"], result["arrivals_shared"]) == ("ebbd", 1)
    return done.stdout


def epochs(pid):
    """Epochs of a process as ebbd shares them; None: not shared."""
    dump = lambda name: json.loads(subprocess.run(
        ["/usr/sbin/bpftool", "-j", "map", "dump", "pinned", machine.PINS / "maps" / name],
        capture_output=True, check=True).stdout)
    slots = {row["formatted"]["key"]: row["formatted"]["value"] for row in dump("epoch_slots")}
    return dump("epochs")[slots[pid]]["formatted"]["value"] if pid in slots else None


def granted():
    return {cgroup: (row["policy"], row["params"], row["by"]) for cgroup, row in policies.attached().items()}


def local(donor, verb):
    """`ebbctl donor VERB local` on the machine of @donor."""
    ebbctl("donor", verb, "local", env={**os.environ, "EBB_RUN_DIR": str(donor.run)})


def test_swap_goes_on(old, swap, donor_factory, control_plane, state, cgroup, tmp_path):
    places = [{"port": free_port(), "slab": "16M"} for _ in "ab"]
    config = write_config(tmp_path / "ebb.conf")
    c, heap, trace = cgroup(limit_mib=16), cgroup(limit_mib=32), tmp_path / "faults.trace"
    # A limit would have the kernel's OOM killer end a program that reads all of its memory for minutes.
    ample = cgroup()
    with ExitStack() as undo:
        with release.programs():
            donors = [donor_factory(**at) for at in places]
            control_plane(config)
            device = swap(donors, "up0")
            for group in c, heap, ample:
                ebbctl("policy", "attach", "leap", group.path, "pw_max=32")
            stamps = Stamps(c, 64)
            undo.callback(stamps.stop)
            recording = subprocess.Popen([parts.BIN / "ebbctl", "record", c.path, "-o", trace, "--seconds", "3"],
                                         stdout=subprocess.DEVNULL)
            stamps.verify()
            assert recording.wait(60) == 0
            shown = run("ebbctl", "trace", "show", trace, "--csv")
            assert shown[0] == 0 and len(shown[1].splitlines()) > 100
            computed = collector(old, heap, tmp_path / "told.json")
            before = granted()
            # For hours, if it is not killed.
            lasting = subprocess.Popen([old / "build/tests/gc/kv", "-n", "60000", "-r", "1000000000"],
                                       env={**os.environ, "EBBGC_OPTIONS": "mode=memliner"},
                                       stdout=subprocess.DEVNULL, preexec_fn=ample.enter)
            undo.callback(lasting.wait)
            undo.callback(lasting.kill)

            def epochs_after(past):
                """Whether it had more epochs than @past, after its memory is swapped out again."""
                ample.evict()
                return (epochs(lasting.pid) or 0) > past
            wait_for(lambda: epochs_after(0), 60, "epochs")
        server = device.status()["server"]
        at = lambda i: device.status()["donors"][i]
        usable = lambda i: at(i)["state"] == "up" and not at(i).get("leaving")

        # ebbctl, with daemons that are all of 0.1.0.
        [row] = ebbctl_json("device", "list")["devices"]
        assert (row["name"], row["state"], row["block"]) == ("up0", "on", device.block)
        assert [d["state"] for d in ebbctl_json("donor", "list")["donors"]] == ["up", "up", "not used"]
        assert {s["state"] for s in ebbctl_json("slab", "list")["slabs"]} == {"mapped"}
        for verb in ["status"], ["stats"], ["metrics"], ["policy", "list"], ["policy", "show", c.path]:
            ebbctl(*verb)
        stamps.verify()

        counted = parts.stats(c)
        log = control_plane(config).log
        assert granted() == before and "cannot take over" not in machine.read(log)
        stamps.verify()
        assert lasting.poll() is None
        shared = epochs(lasting.pid)
        assert shared is not None
        wait_for(lambda: epochs_after(shared), 60, "the same program's epochs to pass")
        lasting.kill()
        now = parts.stats(c)
        assert now["misses"] > counted["misses"] and now["prefetched"] > counted["prefetched"]
        assert collector(old, heap, tmp_path / "told.json") == computed
        assert run("ebbctl", "trace", "show", trace, "--csv") == shown

        # Donors, drained by the borrower and by themselves.
        ebbctl("donor", "drain", donors[1].address)
        wait_for(lambda: at(1)["slabs"] == 0, 60, "slabs at the other donor")
        stamps.verify()
        donors[1].stop()
        donors[1] = donor_factory(**places[1])
        ebbctl("donor", "undrain", donors[1].address)
        wait_for(lambda: usable(1), 30, "the new donor")
        local(donors[0], "drain")
        wait_for(lambda: at(0)["slabs"] == 0, 60, "slabs at the new donor")
        stamps.verify()
        donors[0].stop()
        donors[0] = donor_factory(**places[0])
        wait_for(lambda: usable(0), 30, "the other new donor")
        local(donors[1], "drain")
        wait_for(lambda: at(1)["slabs"] == 0, 60, "slabs that a new donor recalled")
        stamps.verify()
        local(donors[1], "undrain")
        wait_for(lambda: usable(1), 30, "the end of the drain")

        # The unit of the device starts again, then the device is replaced.
        again = ebbctl("device", "create", "up0", "--size", "256M", "--slab", "16M", "--hot-slab", "0", "--adopt",
                       *[x for d in donors for x in ("--donor", d.address)])
        warned(again.stderr, "hot-slab")
        told = device.stats()
        assert device.status()["server"] == server and told["pages_read_backup"] == 0
        assert told["pages_read_failed"] == told["pages_write_failed"] == told["pages_bad_donor"] == 0
        new = swap(donors, "up1")
        ebbctl("device", "destroy", "up0")
        assert not os.path.exists(f"/proc/{server}") and device.block not in machine.swaps()
        stamps.verify()
        assert new.used_kib() > 0
