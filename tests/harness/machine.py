# SPDX-License-Identifier: GPL-2.0-or-later
"""What ebb leaves on a machine, how to see it and how to take it away safely."""
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
BIN = BUILD / "bin"
PROGRAMS = ("ebbd", "ebb-swapd", "ebb-donord", "ebbctl")
PINS = Path("/sys/fs/bpf/ebb")
DEVICES = Path("/run/ebb/devices")
IN_GUEST = "EBB_GUEST" in os.environ

# Two tests with a swap device on one machine disturb each other, and one that
# kills what another's swap needs stops the machine.
SWAP_LOCK = "/tmp/ebb-native-swap.lock"
SWAPOFF_SECONDS = 120
# How many times slower than an idle machine one may be on which other tests run, too.
BUSY = 6
# Directory of a part of the tests that runs beside other parts: tests/check.py.
SHARD = "EBB_TEST_SHARD"
# Process id of the pytest whose tests started a process.
RUN = "EBB_TEST_RUN"


class MachineError(Exception):
    pass


@contextmanager
def swap_locked():
    with open(SWAP_LOCK, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def read(path, otherwise=""):
    try:
        return Path(path).read_text()
    except OSError:
        return otherwise


def state():
    """Directory for what has passed in this very tree; FRESH=1 empties it, once a run."""
    git = lambda *argv: subprocess.run(["git", "-C", str(REPO), *argv], capture_output=True).stdout
    tree = hashlib.sha1(git("ls-files", "-s") + git("diff", "HEAD")).hexdigest()[:12]
    directory = BUILD / "tests/state" / tree
    if os.environ.pop("FRESH", "") == "1":
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def wait_for(condition, seconds, what, interval=0.05):
    """
    Polls @condition; its first true value is returned.  @seconds are an idle machine's: a busy
    one has BUSY times as long, which costs nothing where all is well.
    """
    deadline = time.monotonic() + BUSY * seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise MachineError(f"{what}: not within {BUSY * seconds} s")
        time.sleep(interval)


def never(condition, seconds, what):
    """Polls @condition for @seconds, in which it must not become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition(), what
        time.sleep(0.05)


def children(pid):
    """Processes whose parent is @pid, those that have ended and were not waited for left out."""
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        fields = read(f"/proc/{p}/stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[0] != "Z" and fields[1] == str(pid):
            found.append(int(p))
    return found


def swaps():
    """{device: KiB in use} of every swap area, /dev/ebb0 also where a unit's ebbctl left "/ebb0" of it."""
    rows = [line.split() for line in read("/proc/swaps").splitlines()[1:]]
    lost = lambda path, kind: kind == "partition" and not os.path.exists(path) and os.path.exists("/dev" + path)
    return {"/dev" + r[0] if lost(*r[:2]) else r[0]: int(r[3]) for r in rows}


def loops():
    """{device: backing file} of every loop device in use."""
    found = {}
    for f in Path("/sys/block").glob("loop*/loop/backing_file"):
        backing = read(f).strip()
        if backing:
            found[f"/dev/{f.parts[3]}"] = backing
    return found


def mounts():
    """[(source, directory, type)], in mounting order."""
    unescape = lambda s: s.encode().decode("unicode_escape")
    return [(unescape(f[0]), unescape(f[1]), f[2])
            for f in (line.split() for line in read("/proc/self/mounts").splitlines())]


def ebb_mounts():
    return [d for source, d, kind in mounts()
            if kind.startswith("fuse") and "ebb" in source + kind + d and belongs(d)]


def test_mounts():
    """What tests mounted for themselves, innermost first; see chaos/thin.py."""
    return [d for _, d, _ in reversed(mounts()) if "/ebb-chaos" in d]


def ebb_loops():
    ours = ebb_mounts()
    return [dev for dev, backing in loops().items()
            if any(backing.startswith(d + "/") for d in ours) or "/ebb" in backing]


def ebb_swaps():
    ours = ebb_loops()
    return [dev for dev in swaps() if dev in ours or dev.startswith(("/dev/ebb", "/dev/ublkb"))]


def shard_of(process):
    """The directory of the tests that started it, if they are a part of all."""
    try:
        words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return next((w.partition("=")[2] for w in words if w.startswith(SHARD + "=")), "")


def belongs(path):
    """Tests that run beside others see what belongs to their directory, all others everything."""
    shard = os.environ.get(SHARD)
    return not shard or f"{path}/".startswith(f"{shard}/")


def test_processes():
    """{pid: program} of what tests of this run started, without what it has itself forked or ended."""
    return {int(p.name): read(p / "comm").strip() for p in Path("/proc").glob("[0-9]*")
            if int(p.name) != os.getpid() and of_this_run(p)}


def processes():
    """{pid: program} of ebb's own processes."""
    found = {}
    for p in Path("/proc").glob("[0-9]*"):
        try:
            name = Path(os.readlink(p / "exe")).name.removesuffix(" (deleted)")
        except OSError:
            continue
        # A zombie has no exe, so it is not counted.
        if name in PROGRAMS and belongs(shard_of(p)):
            found[int(p.name)] = name
    return found


def memory_root():
    """(directory, version) of the hierarchy that has the memory controller."""
    for source, directory, kind in mounts():
        if kind == "cgroup" and (Path(directory) / "memory.limit_in_bytes").exists():
            return Path(directory), 1
    for source, directory, kind in mounts():
        if kind == "cgroup2" and "memory" in read(f"{directory}/cgroup.controllers").split():
            return Path(directory), 2
    raise MachineError("no memory controller: neither cgroup v1 nor v2 offers one")


def cgroup_roots():
    roots = [Path(d) for _, d, kind in mounts() if kind == "cgroup2"]
    return [memory_root()[0]] + [r for r in roots if r != memory_root()[0]]


def ebb_cgroups():
    """Every cgroup below a directory named ebb*, children first."""
    found = []
    for root in cgroup_roots():
        for top in root.glob("**/ebb*"):
            if top.is_dir():
                found += [Path(d) for d, _, _ in os.walk(top, topdown=False)]
    return list(dict.fromkeys(found))


def device_records():
    """What ebbctl remembers of its devices: of each a record, and its server's socket and log."""
    return sorted(f for f in DEVICES.glob("*.*") if f.suffix in (".json", ".sock", ".log"))


def of_this_run(process):
    """Whether a test of this pytest started it."""
    try:
        return f"{RUN}={os.getpid()}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def process_thing(pid, name):
    stage = 1 if name in ("ebbd", "ebbctl") else 4
    return f"process: {name} ({pid})", (stage, lambda: end_process(pid))


def loop_thing(device):
    return f"loop device: {device}", (2, lambda: subprocess.run(["/sbin/losetup", "-d", device], check=False))


def mount_thing(directory):
    return f"mount: {directory}", (3, lambda: subprocess.run(["umount", directory], check=False))


def things():
    """
    {a line: (stage, function that removes it)} of what ebb and its tests have on this machine.
    Lower stages are removed first: a swap area before what serves it.
    """
    found = dict(map(mount_thing, [*ebb_mounts(), *filter(belongs, test_mounts())]))
    found.update(process_thing(pid, name) for pid, name in {**processes(), **test_processes()}.items())
    if SHARD in os.environ:
        return found
    found.update((f"swap is on: {d}", (0, lambda d=d: swapoff(d))) for d in ebb_swaps())
    found.update(map(loop_thing, ebb_loops()))
    found.update((f"cgroup: {c}", (5, lambda c=c: cgroup_remove(c))) for c in ebb_cgroups())
    found.update((f"device record: {f}", (6, lambda f=f: f.unlink(missing_ok=True)))
                 for f in device_records())
    if PINS.is_dir() and any(PINS.rglob("*")):
        found[f"BPF pins: {PINS}"] = (7, pins_remove)
    return found


def leftovers():
    """One line for each thing of ebb's on this machine."""
    return list(things())


def dead_mount(directory):
    """Whether the program that served this FUSE mount has exited."""
    try:
        done = subprocess.run(["stat", "--file-system", directory], capture_output=True, text=True,
                              timeout=5, env={"LC_ALL": "C"}, check=False)
    except subprocess.TimeoutExpired:
        return False
    return "not connected" in done.stderr


def abandoned():
    """
    The lines of leftovers() that nothing uses: what a run that was killed could not remove.
    Without a running program of ebb's and without swap, these are mounts that no program serves,
    loop devices on them, empty cgroups, device records and pins.
    """
    if processes() or ebb_swaps() or any(Path("/dev").glob("ebb[0-9]*")):
        return set()
    mounts_dead = [d for d in ebb_mounts() if dead_mount(d)]
    loops_dead = [dev for dev, backing in loops().items()
                  if any(backing.startswith(d + "/") for d in mounts_dead)]
    return {line for line in leftovers() if line.startswith(("device record: ", "BPF pins: "))} | \
        {f"mount: {d}" for d in [*mounts_dead, *test_mounts()]} | \
        {f"loop device: {dev}" for dev in loops_dead} | \
        {f"cgroup: {c}" for c in ebb_cgroups() if not read(c / "cgroup.procs").strip()}


def left_since(before, found=leftovers, seconds=30):
    """What there is now and was not @before; what was just killed takes a processor to go."""
    end = time.monotonic() + seconds
    while (left := set(found()) - set(before)) and time.monotonic() < end:
        time.sleep(0.1)
    return sorted(left)


def swapoff(device, seconds=SWAPOFF_SECONDS):
    """
    Takes swap off in a child with a deadline: if the device's server is dead
    the child sleeps for ever, and only the child.
    """
    child = subprocess.Popen(["/sbin/swapoff", device], stderr=subprocess.PIPE, text=True)
    try:
        _, said = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise MachineError(f"{device}: swapoff did not end within {seconds} s; leave the processes "
                           "that serve it alone, free memory and run swapoff again") from None
    if child.returncode and device in swaps():
        raise MachineError(f"{device}: swapoff: {said.strip()}")


def end_process(pid, seconds=10):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        try:
            # A zombie has no exe.
            wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe"), seconds, str(pid))
            return
        except MachineError:
            pass


def bpf_programs():
    """Names of the perf_event programs that are loaded, cut off at 15 characters."""
    shown = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True,
                           check=True).stdout
    return [p.get("name", "") for p in json.loads(shown) if p["type"] == "perf_event"]


def pins_remove():
    """bpffs knows unlink and rmdir only."""
    for d, _, files in os.walk(PINS, topdown=False):
        for f in files:
            os.unlink(os.path.join(d, f))
        os.rmdir(d)


def cgroup_remove(c):
    for pid in read(c / "cgroup.procs").split():
        os.kill(int(pid), signal.SIGKILL)
    try:
        wait_for(lambda: not read(c / "cgroup.procs").strip(), 5, f"{c}: still populated")
        c.rmdir()
    except (OSError, MachineError):
        pass


def clean(wanted=None, found=things):
    """
    Removes the things whose lines are @wanted, or all: swap first, and nothing else while it is
    on, as a swap area without its server stops the machine.
    """
    for stage in range(8):
        for line, (of, remove) in found().items():
            if of == stage and (wanted is None or line in wanted):
                remove()
        if ebb_swaps():
            raise MachineError(f"swap is still on: {ebb_swaps()}; nothing more is removed")


@contextmanager
def nothing_left(found=things):
    """
    Fails if what runs within leaves anything behind, which is removed.  Beside ebb processes that
    this run did not start, it judges and removes its own processes only.
    """
    def ours():
        others = set(processes()) - set(test_processes())
        if found == things and others:
            return dict(process_thing(*row) for row in test_processes().items())
        return found()
    before = set(ours())
    yield
    left = left_since(before, ours)
    if left:
        clean(left, ours)
        raise MachineError("left behind, and removed: " + ", ".join(left))
