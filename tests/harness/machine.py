# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds ebb's processes, swap, mounts and files on a machine, and removes them safely."""
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / "build"
BIN = BUILD / "bin"
PROGRAMS = ("ebbd", "ebb-swapd", "ebb-donord", "ebbctl")
PINS = Path("/sys/fs/bpf/ebb")
DEVICES = Path("/run/ebb/devices")
IN_GUEST = "EBB_GUEST" in os.environ

# Two tests with swap devices on one machine disturb each other, and a test that kills a server
# of another's swap hangs the machine.
SWAP_LOCK = "/tmp/ebb-native-swap.lock"
# Held by a whole run of tests or of a benchmark, which starts by removing remains of dead runs.
RUN_LOCK = "/tmp/ebb-native-run.lock"
SWAPOFF_SECONDS = 120
# Factor of time-outs on a machine on which other tests run, too.
BUSY = 6
# Variable with the directory of tests that run beside others: tests/check.py.
SHARD = "EBB_TEST_SHARD"
# Variable with the pid of the pytest whose tests started a process.
RUN = "EBB_TEST_RUN"
# Variable of the programs that the holder of RUN_LOCK started.
HELD = "EBB_TEST_HELD"
# Variable that names the state of a copy of the tree without git: tests/guest/debian.py.
TREE = "EBB_TREE"


class MachineError(Exception):
    pass


@contextmanager
def swap_locked():
    with open(SWAP_LOCK, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@contextmanager
def sole_run(name):
    """Refuses a second run of root on this machine; not one that a run started."""
    if IN_GUEST or os.geteuid() or os.environ.get(HELD):
        yield
        return
    with open(RUN_LOCK, "a+") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MachineError(f"{read(RUN_LOCK).strip() or 'another run'} uses this machine: wait "
                               f"for its end, then start {name} again") from None
        f.truncate(0)
        f.write(f"{name} (pid {os.getpid()})\n")
        f.flush()
        os.environ[HELD] = "1"
        try:
            yield
        finally:
            del os.environ[HELD]


def another_run():
    """Returns whether a run holds RUN_LOCK that did not start this process."""
    if os.environ.get(HELD) or not os.path.exists(RUN_LOCK):
        return False
    inode = os.stat(RUN_LOCK).st_ino
    return any(line.split()[5].endswith(f":{inode}") for line in read("/proc/locks").splitlines()
               if "->" not in line)


def read(path, otherwise=""):
    try:
        return Path(path).read_text()
    except OSError:
        return otherwise


@cache
def tree_key(repo=REPO):
    """Returns a name for the content of this tree as it is at the first call; "" if git cannot tell."""
    def git(*argv):
        # sudo's user is not the owner of the tree.
        return subprocess.run(["git", "-c", "safe.directory=*", "-C", str(repo), *argv],
                              capture_output=True, check=True).stdout
    if os.environ.get(TREE):
        return os.environ[TREE]
    try:
        top = os.fsdecode(git("rev-parse", "--show-toplevel").rstrip(b"\n"))
        if not os.path.samefile(top, repo):
            raise MachineError(f"{repo} is in the tree of {top}")
        found = hashlib.sha1(git("ls-files", "-s") + git("diff", "--binary", "--no-ext-diff", "HEAD"))
        for name in filter(None, git("ls-files", "-z", "--others", "--exclude-standard").split(b"\0")):
            path = Path(repo, os.fsdecode(name))
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else \
                path.read_bytes() if path.is_file() else b""
            found.update(b"%s\0%d\0%s" % (name, len(content), content))
    except (OSError, MachineError, subprocess.CalledProcessError) as e:
        why = (getattr(e, "stderr", b"") or b"").decode(errors="replace").strip() or e
        print(f"this tree's state is unknown, so that nothing is resumed: {why}", flush=True)
        return ""
    return found.hexdigest()[:12]


def state(native=False):
    """
    Returns the directory of passed stages of this tree, or with @native, of this tree on the running
    kernel; None if git cannot tell the state of the tree.  FRESH=1 empties it once per run.
    """
    fresh, key = os.environ.pop("FRESH", "") == "1", tree_key()
    if not key:
        return None
    directory = BUILD / "tests/state" / key
    if fresh:
        shutil.rmtree(directory, ignore_errors=True)
    if native:
        directory /= os.uname().release
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def wait_for(condition, seconds, what, interval=0.05):
    """
    Polls @condition and returns its first true value.  @seconds are for an idle machine; a busy
    one gets BUSY times as long, which costs nothing unless a test fails.  @interval is the longest.
    """
    deadline, pause = time.monotonic() + BUSY * seconds, interval / 8
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise MachineError(f"{what}: not within {BUSY * seconds} s")
        time.sleep(pause)
        pause = min(1.5 * pause, interval)


def never(condition, seconds, what):
    """Polls @condition for @seconds; it must not become true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not condition(), what
        time.sleep(0.05)


def children(pid):
    """Returns the child processes of @pid, without zombies."""
    found = []
    for p in filter(str.isdigit, os.listdir("/proc")):
        fields = read(f"/proc/{p}/stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[0] != "Z" and fields[1] == str(pid):
            found.append(int(p))
    return found


def unescape(field):
    """Returns a field of a table in /proc as it is: there a space is \\040."""
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), field)


def swaps():
    """Returns {device: KiB in use} of every swap area; the kernel may show /dev/ebb0 as "/ebb0"."""
    rows = [[unescape(field) for field in line.split()] for line in read("/proc/swaps").splitlines()[1:]]
    lost = lambda path, kind: kind == "partition" and not os.path.exists(path) and os.path.exists("/dev" + path)
    return {"/dev" + r[0] if lost(*r[:2]) else r[0]: int(r[3]) for r in rows}


def loops():
    """Returns {device: backing file} of every loop device in use."""
    found = {}
    for f in Path("/sys/block").glob("loop*/loop/backing_file"):
        backing = read(f).strip()
        if backing:
            found[f"/dev/{f.parts[3]}"] = backing
    return found


def mounts():
    """Returns [(source, directory, type)], oldest mount first."""
    return [(unescape(f[0]), unescape(f[1]), f[2])
            for f in (line.split() for line in read("/proc/self/mounts").splitlines())]


def ebb_mounts():
    return [d for source, d, kind in mounts()
            if kind.startswith("fuse") and "ebb" in source + kind + d and belongs(d)]


def test_mounts():
    """Returns mounts of the tests, innermost first; see chaos/thin.py."""
    return [d for _, d, _ in reversed(mounts()) if "/ebb-chaos" in d]


def ebb_loops():
    """Returns loop devices on ebb's mounts, on files of tests, and of benchmarks, which are below BUILD."""
    ours = ebb_mounts()
    return [dev for dev, backing in loops().items()
            if any(backing.startswith(f"{d}/") for d in (*ours, BUILD)) or "/ebb" in backing]


def bench_zram(device):
    """Returns whether @device is a zram device as bench/apps.py makes it: of this size and priority."""
    number = re.fullmatch(r"/dev/zram(\d+)", device)
    rows = [line.split() for line in read("/proc/swaps").splitlines()[1:]]
    return bool(number) and read(f"/sys/block/zram{number[1]}/disksize").strip() == str(1 << 30) and \
        any(r[0] == device and r[-1] == "32767" for r in rows)


def ebb_swaps():
    ours = ebb_loops()
    return [dev for dev in swaps() if dev in ours or bench_zram(dev) or
            dev.startswith(("/dev/ebb", "/dev/ublkb", f"{BUILD}/"))]


def swap_remove(device):
    zram = bench_zram(device)
    swapoff(device)
    if zram:
        Path("/sys/class/zram-control/hot_remove").write_text(device.removeprefix("/dev/zram"))


def variable(process, name):
    """Returns a variable of the environment with which a process was started, or ""."""
    try:
        words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return next((w.partition("=")[2] for w in words if w.startswith(name + "=")), "")


def shard_of(process):
    """Returns the SHARD directory of the tests that started a process, or ""."""
    return variable(process, SHARD)


def belongs(path):
    """Returns whether @path is in this process's SHARD directory; without one, everything belongs."""
    shard = os.environ.get(SHARD)
    return not shard or f"{path}/".startswith(f"{shard}/")


def test_processes(which=None):
    """
    Returns {pid: program} of processes that tests of this run started, or of those that are
    @which(PROCESS), except this one.
    """
    return {int(p.name): read(p / "comm").strip() for p in Path("/proc").glob("[0-9]*")
            if int(p.name) != os.getpid() and (which or of_this_run)(p)}


def orphans():
    """Returns {pid: program} of processes of tests whose pytest has been killed."""
    return {pid: name for pid, name in test_processes(of_dead_run).items() if belongs(shard_of(Path(f"/proc/{pid}")))}


def processes():
    """Returns {pid: program} of ebb's processes."""
    found = {}
    for p in Path("/proc").glob("[0-9]*"):
        try:
            name = Path(os.readlink(p / "exe")).name.removesuffix(" (deleted)")
        except OSError:
            continue
        # Zombies have no exe and are not counted.
        if name in PROGRAMS and belongs(shard_of(p)):
            found[int(p.name)] = name
    return found


def memory_root():
    """Returns (directory, version) of the hierarchy with the memory controller."""
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


def cpuset_root():
    """Returns the directory of the hierarchy of cgroup v1 with the cpuset controller, or None."""
    return next((Path(d) for _, d, kind in mounts() if kind == "cgroup" and
                 (Path(d) / "cpuset.cpus").exists()), None)


def ebb_cgroups():
    """Returns every cgroup below a directory named ebb*, children first."""
    found = []
    for root in dict.fromkeys(filter(None, [*cgroup_roots(), cpuset_root()])):
        below = directories(root)
        for top in [d for d in below if os.path.basename(d).startswith("ebb")]:
            found += reversed([d for d in below if d == top or d.startswith(top + "/")])
    return [Path(d) for d in dict.fromkeys(found)]


def directories(root):
    """
    Returns the directories below @root, parents first, whatever others remove meanwhile.  os.walk()
    calls itself, and tests nest cgroups deeply.
    """
    found, pending = [], [str(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                below = [e.path for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        found += below
        pending += below
    return found


def device_records():
    """Returns ebbctl's files of devices: record, socket and log of each."""
    return sorted(f for f in DEVICES.glob("*.*") if f.suffix in (".json", ".sock", ".log"))


def of_this_run(process):
    """Returns whether a test of this pytest started a process."""
    return variable(process, RUN) == str(os.getpid())


def start_of(pid):
    """Returns when a process started, in clock ticks since boot; None if there is none."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def of_dead_run(process):
    """Returns whether a test started a process whose pytest has ended, be its pid in use again or not."""
    run, start = variable(process, RUN), start_of(process.name)
    if not run.isdigit() or start is None:
        return False
    began = start_of(run)
    return began is None or began > start


def process_thing(pid, name):
    stage = 1 if name in ("ebbd", "ebbctl") else 4
    return f"process: {name} ({pid})", (stage, lambda: end_process(pid))


def loop_thing(device):
    return f"loop device: {device}", (2, lambda: subprocess.run(["/sbin/losetup", "-d", device], check=False))


def mount_thing(directory):
    return f"mount: {directory}", (3, lambda: subprocess.run(["umount", directory], check=False))


def things():
    """
    Returns {line: (stage, function that removes it)} for all things of ebb and its tests on this
    machine.  Lower stages are removed first: a swap area before its server.
    """
    found = dict(map(mount_thing, [*ebb_mounts(), *filter(belongs, test_mounts())]))
    found.update(process_thing(pid, name)
                 for pid, name in {**processes(), **test_processes(), **orphans()}.items())
    if SHARD in os.environ:
        return found
    found.update((f"swap is on: {d}", (0, lambda d=d: swap_remove(d))) for d in ebb_swaps())
    found.update(map(loop_thing, ebb_loops()))
    found.update((f"cgroup: {c}", (5, lambda c=c: cgroup_remove(c))) for c in ebb_cgroups())
    found.update((f"device record: {f}", (6, lambda f=f: f.unlink(missing_ok=True)))
                 for f in device_records())
    if PINS.is_dir() and any(PINS.rglob("*")):
        found[f"BPF pins: {PINS}"] = (7, pins_remove)
    return found


def leftovers():
    """Returns one line for each thing of ebb on this machine."""
    return list(things())


def dead_mount(directory):
    """Returns whether the program that served this FUSE mount has exited."""
    try:
        done = subprocess.run(["stat", "--file-system", directory], capture_output=True, text=True,
                              timeout=5, env={"LC_ALL": "C"}, check=False)
    except subprocess.TimeoutExpired:
        return False
    return "not connected" in done.stderr


def abandoned():
    """
    Returns the lines of leftovers() that nothing uses: remains of a killed run.  Without a running
    program of ebb and without swap, these are mounts that no program serves, loop devices on them,
    empty cgroups, device records, pins and other programs of killed tests.
    """
    if processes() or ebb_swaps() or any(Path("/dev").glob("ebb[0-9]*")):
        return set()
    mounts_dead = [d for d in ebb_mounts() if dead_mount(d)]
    loops_dead = [dev for dev, backing in loops().items()
                  if any(backing.startswith(d + "/") for d in mounts_dead)]
    return {line for line in leftovers() if line.startswith(("device record: ", "BPF pins: "))} | \
        {f"mount: {d}" for d in [*mounts_dead, *test_mounts()]} | \
        {f"loop device: {dev}" for dev in loops_dead} | \
        {process_thing(pid, name)[0] for pid, name in orphans().items()} | \
        {f"cgroup: {c}" for c in ebb_cgroups() if not read(c / "cgroup.procs").strip()}


def left_since(before, found=leftovers, seconds=30):
    """Returns things that were not there @before; killed processes get some time to exit."""
    end = time.monotonic() + seconds
    while (left := set(found()) - set(before)) and time.monotonic() < end:
        time.sleep(0.1)
    return sorted(left)


def swapoff(device, seconds=SWAPOFF_SECONDS):
    """
    Takes swap off in a child with a deadline: if the device's server is dead, only the child
    sleeps for ever.
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
            # Zombies have no exe.
            wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe"), seconds, str(pid))
            return
        except MachineError:
            pass


def bpf_programs():
    """Returns the names, cut to 15 characters, of the loaded perf_event programs."""
    shown = subprocess.run(["bpftool", "-j", "prog", "show"], capture_output=True, text=True,
                           check=True).stdout
    return [p.get("name", "") for p in json.loads(shown) if p["type"] == "perf_event"]


def pins_remove():
    """Removes the pins; bpffs supports only unlink and rmdir."""
    for d, _, files in os.walk(PINS, topdown=False):
        for f in files:
            os.unlink(os.path.join(d, f))
        os.rmdir(d)


def cgroup_rmdir(c, seconds=30):
    """
    Removes a cgroup that has no process, or whose processes are ending: cgroup.procs does not list
    these, and rmdir fails until they have left the cgroup.
    """
    def gone():
        try:
            c.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        return True
    wait_for(gone, seconds, f"{c}: removal")


def cgroup_remove(c):
    for pid in read(c / "cgroup.procs").split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    with suppress(MachineError):
        cgroup_rmdir(c, 5)


def clean(wanted=None, found=things):
    """
    Removes the things whose lines are @wanted, or all: swap first, and nothing else while it is
    on, because a swap area without its server hangs the machine.
    """
    # Processes may use loop devices and mounts: those are removed again after them.
    for stage in (0, 1, 2, 3, 4, 2, 3, 5, 6, 7):
        for line, (of, remove) in found().items():
            if of == stage and (wanted is None or line in wanted):
                remove()
        if ebb_swaps():
            raise MachineError(f"swap is still on: {ebb_swaps()}; nothing more is removed")


@contextmanager
def nothing_left(found=things):
    """
    Fails if the `with` block leaves anything behind, and removes that.  While another run has the
    machine, or ebb processes run that this run did not start, it judges and removes only its own
    processes.  To a whole run, which holds RUN_LOCK, all of ebb on this machine belongs.
    """
    def ours():
        others = not os.environ.get(HELD) and \
            (another_run() or set(processes()) - set(test_processes()))
        if found == things and others:
            return dict(process_thing(*row) for row in test_processes().items())
        return found()
    before = set(ours())
    yield
    left = left_since(before, ours)
    if left:
        clean(left, ours)
        raise MachineError(told_left(left, ours()))


def told_left(left, now):
    """Returns a line about the things that were @left, some of which may be there @now."""
    kinds = {"removed": [line for line in left if line not in now],
             "still there": [line for line in left if line in now]}
    return "; ".join(f"left behind, and {kind}: " + ", ".join(lines) for kind, lines in kinds.items() if lines)
