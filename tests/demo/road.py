# SPDX-License-Identifier: GPL-2.0-or-later
"""
Donor, ebbd and device on this machine, up for as long as a `with Road(...)` lasts, and
functions that run programs with them.
"""
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))

import machine
import parts

REPO = machine.REPO
PAGE_CLUSTER = Path("/proc/sys/vm/page-cluster")
DEVICE = "demo0"
# Socket by which a donor on this machine shares its memory.
SHM = "unix:/run/ebb/demo-donor.sock"
DESTROY_SECONDS = 150
DONOR_SECONDS = 120
SAMPLE_SECONDS = 0.02
# Time-out of a program; the slowest takes a fifth of it.  Emulation is some forty times slower.
RUN_SECONDS = 3600 if machine.IN_GUEST else 300


class Stopped(Exception):
    """Raised on ^C and similar signals."""


class Failure(Exception):
    """An error; its text has cause and remedy."""


class OutOfMemory(Failure):
    """The OOM killer ended a process in a program's cgroup: its time means nothing."""


class TimedOut(Failure):
    """A program was ended because it exceeded its time-out."""


def say(text=""):
    print(text, flush=True)


class Interrupts:
    """
    Turns the first SIGINT, SIGTERM or SIGHUP into Stopped and ignores later ones, because cleanup
    must not be interrupted while swap is on.
    """
    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self):
        self.deferring, self.pending = 0, None

    def __enter__(self):
        # Only the main thread can handle signals; a test may run in another.
        ours = threading.current_thread() is threading.main_thread()
        self.before = {n: signal.signal(n, self.on_signal) for n in self.NUMBERS if ours}
        return self

    def __exit__(self, *_):
        for n, handler in self.before.items():
            signal.signal(n, handler)

    def on_signal(self, number, frame):
        if self.deferring:
            self.pending = number
        else:
            self.stop(number)

    def stop(self, number):
        for n in self.NUMBERS:
            signal.signal(n, signal.SIG_IGN)
        say(f"\n{signal.Signals(number).name}: taking swap off and cleaning up, "
            "which may take a minute; please do not kill anything")
        raise Stopped(signal.Signals(number).name)

    @contextmanager
    def deferred(self):
        """Defers signals: an incomplete device is worse than a short wait."""
        self.deferring += 1
        try:
            yield
        finally:
            self.deferring -= 1
        if self.pending and not self.deferring:
            number, self.pending = self.pending, None
            self.stop(number)


interrupts = Interrupts()


@dataclass
class Outcome:
    """One run of one program."""
    seconds: float
    digest: str                 # SHA-256 of its output
    stats: dict = field(default_factory=dict)   # as in ebbctl stats --json
    cpu: float = 0.0            # CPU seconds of ebb's processes during the run


class Road:
    """
    @size bytes of remote memory and a device of that size.  Leaving takes swap off first, with a
    deadline, and reports leftovers if that fails.  @delay, such as "5us": the donor's delay of
    each read; @address: where it listens, None: a free port on loopback; @prefetch: lines of
    [prefetch] for ebbd; @durability, @frontend and @slab: as of ebbctl device create, disk has its
    backup below @directory.
    """

    def __init__(self, directory, size, cpus=None, delay=None, address=None, prefetch=(),
                 durability="disk", frontend="fuse", slab="64M"):
        self.directory, self.size, self.cpus = Path(directory), size, cpus
        self.delay = ["--delay", delay] if delay else []
        self.address, self.prefetch, self.durability = address, prefetch, durability
        self.frontend, self.slab = frontend, slab
        self.logs = self.directory / "log"
        self.backup = backup_of(self.directory)
        self.donor = self.ebbd = self.device = None
        self.parts = {}
        self.pinned_before = machine.PINS.is_dir()

    def __enter__(self):
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            with interrupts.deferred():
                self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        with interrupts.deferred():
            self.down()

    def up(self):
        mib = f"{self.size >> 20}M"
        with pinned(self.cpus):
            self.address = self.address or f"127.0.0.1:{free_port()}"
            # The donor touches and locks all memory that it lends before it is ready.
            self.donor = parts.Daemon(
                [machine.BIN / "ebb-donord", "--listen", self.address, "--memory", mib, "--slab",
                 self.slab, *self.delay], self.logs / "donor.log", timeout=DONOR_SECONDS)
            config = self.logs / "ebb.conf"
            config.write_text("\n".join(["[prefetch]", *self.prefetch, ""]))
            self.ebbd = parts.Ebbd(self.logs / "ebbd.log", config=config)
            self.backup.mkdir(parents=True, exist_ok=True)
            self.device_on(mib)
        self.parts = {"ebb-donord": self.donor.pid, "ebbd": self.ebbd.pid,
                      "ebb-swapd": parts.control(f"/run/ebb/devices/{DEVICE}.sock",
                                                 "status")["server"]}

    def device_on(self, mib):
        kept = ["--backup", self.backup] if self.durability == "disk" else [
            "--durability", self.durability]
        # In its own session: ^C must not reach the process that serves swap.
        done = subprocess.run(
            [machine.BIN / "ebbctl", "device", "create", DEVICE, "--size", mib, "--slab",
             self.slab,
             "--donor", self.address, "--frontend", self.frontend, *kept],
            capture_output=True, text=True, start_new_session=True, timeout=120)
        if done.returncode:
            raise Failure(done.stderr.strip())
        self.device = DEVICE

    def record(self):
        return json.loads(Path(f"/run/ebb/devices/{DEVICE}.json").read_text())

    def down(self):
        """Takes swap off, then stops the servers, which must not end before."""
        problems = []
        clear_programs()
        if Path(f"/run/ebb/devices/{DEVICE}.json").exists():
            done = subprocess.run(
                [machine.BIN / "ebbctl", "device", "destroy", DEVICE,
                 "--timeout", str(DESTROY_SECONDS)],
                capture_output=True, text=True, start_new_session=True)
            if done.returncode:
                problems.append(done.stderr.strip())
        on = machine.ebb_swaps()
        if on:
            problems.append(f"swap is still on at {', '.join(on)} and its server still runs: "
                            f"free memory, then: {machine.BIN}/ebbctl device destroy {DEVICE}")
        else:
            problems += [p for p in map(end, (self.ebbd, self.donor)) if p]
            if not self.pinned_before and not problems and machine.PINS.is_dir():
                machine.pins_remove()
            self.backup_gone()
        self.donor = self.ebbd = self.device = None
        if problems:
            raise Failure("cleaning up: " + "; ".join(problems))

    def backup_gone(self):
        try:
            (self.backup / f"{DEVICE}.backup").unlink(missing_ok=True)
            self.backup.rmdir()
        except OSError:
            pass    # a mount point, or in use: left as it was

    def cpu_seconds(self):
        return sum(cpu_seconds(pid) for pid in self.parts.values())

    def run(self, workload, inputs, limit, policy, record=None, seconds=RUN_SECONDS):
        """
        Runs @workload with @limit bytes of local memory; raises Failure if it fails or takes more
        than @seconds.  @policy is a name and its parameters; "none" only counts faults, None does
        not even count.
        """
        told = self.directory / "run.json"
        told.unlink(missing_ok=True)
        argv = [machine.BIN / "ebbctl", "run", "--quiet", "--mem", str(limit), "--json", told,
                *policy_options(policy)]
        # One address layout for both recordings, so that the picture can compare them.
        program = workload.argv(inputs)
        if record:
            argv += ["--record", record]
            program = ["setarch", "-R", *program]
        cpu = self.cpu_seconds()
        try:
            with pinned(self.cpus):
                digest = run_hashed([*map(str, argv), "--", *program], workload.name,
                                    self.logs / f"{workload.name}.log", seconds)
        except Failure:
            refuse_oom(told, workload.name, limit, policy)
            raise
        refuse_oom(told, workload.name, limit, policy)
        summary = json.loads(told.read_text())
        return Outcome(summary["seconds"], digest, summary.get("stats") or {},
                       self.cpu_seconds() - cpu)


def policy_options(policy):
    if not policy:
        return ["--no-track"]
    name, *params = policy.split()
    return ["--policy", name, *(word for p in params for word in ("--param", p))]


def output_to(path, *argv):
    """Returns the command that runs @argv with its output in the file @path."""
    return ["/bin/sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh", str(path), *map(str, argv)]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def backup_of(directory):
    """Returns the backup's path; in a guest, the tree lies on memory that could be swapped out."""
    return Path("/var/lib/ebb") if machine.IN_GUEST else directory / "backup"


def refuse_oom(told, name, limit, policy):
    """Raises OutOfMemory after OOM kills; a shell's exit status does not show its program's death."""
    kills = json.loads(machine.read(told, "{}")).get("oom_kills")
    if kills:
        raise OutOfMemory(f"{name}: the OOM killer struck {kills} times with {limit >> 20} MiB of "
                          f"local memory, policy {policy}; see dmesg")


def end(daemon):
    """Stops a daemon; returns an error text, or None."""
    try:
        if daemon:
            daemon.stop()
    except machine.MachineError as e:
        return str(e)
    return None


def clear_programs():
    """Ends programs under our limits, so that swapoff has little to read."""
    for c in machine.ebb_cgroups():
        for pid in machine.read(c / "cgroup.procs").split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass


@contextmanager
def pinned(cpus):
    """Pins processes that are started within to @cpus (None: all)."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_hashed(argv, name, log, seconds=RUN_SECONDS, **kwargs):
    """Runs a program to its end; returns the SHA-256 of its output.  stderr goes to @log."""
    digest, late = hashlib.sha256(), threading.Event()
    with open(log, "w") as err:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                                 start_new_session=True, **kwargs)

        def end_late():
            late.set()
            os.killpg(child.pid, signal.SIGTERM)

        watchdog = threading.Timer(seconds, end_late)
        watchdog.start()
        try:
            while piece := os.read(child.stdout.fileno(), 1 << 20):
                digest.update(piece)
            status = child.wait()
        except BaseException:
            # ebbctl ends the program and removes its cgroup on SIGTERM.
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
            raise
        finally:
            watchdog.cancel()
            child.stdout.close()
    if status and late.is_set():
        raise TimedOut(f"{name}: ended after {seconds} s; all it said is in {log}")
    if status:
        tail = " / ".join(machine.read(log).splitlines()[-4:])
        raise Failure(f"{name}: ended with {status}: {tail}; all it said is in {log}")
    return digest.hexdigest()


def cpu_seconds(pid):
    """Returns a process's user and system time so far."""
    fields = machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


class PeakSampler(threading.Thread):
    """Samples the peak anonymous memory of a cgroup, in bytes, without page cache."""

    def __init__(self, cgroup):
        super().__init__(daemon=True)
        key = "total_rss" if cgroup.version == 1 else "anon"
        self.file, self.key = cgroup.path / "memory.stat", key + " "
        self.peak, self.ended = 0, threading.Event()

    def run(self):
        while not self.ended.wait(SAMPLE_SECONDS):
            for line in machine.read(self.file).splitlines():
                if line.startswith(self.key):
                    self.peak = max(self.peak, int(line.split()[1]))

    def stop(self):
        self.ended.set()
        self.join()
        return self.peak


def measure_peak(workload, inputs, directory, cpus=None):
    """Returns (peak anonymous bytes, Outcome) of a run without a limit."""
    (directory / "log").mkdir(parents=True, exist_ok=True)
    cgroup = parts.Cgroup(f"ebb-peak-{os.getpid()}")
    try:
        sampler = PeakSampler(cgroup)
        sampler.start()
        began = time.monotonic()
        try:
            with pinned(cpus):
                digest = run_hashed(workload.argv(inputs), workload.name,
                                    directory / "log" / f"{workload.name}.log",
                                    preexec_fn=cgroup.enter)
        finally:
            seconds = time.monotonic() - began
            peak = sampler.stop()
    finally:
        cgroup.remove()
    return peak, Outcome(seconds, digest)


def check_machine(ram, disk, directory, programs):
    """Reports all missing requirements at once, before anything is changed."""
    missing = []
    if os.geteuid():
        missing.append("not root: swap, BPF and cgroups need it; run it with sudo")
    for name in machine.PROGRAMS:
        if not (machine.BIN / name).exists():
            missing.append(f"build/bin/{name}: not built; run make")
    for name in programs:
        if not shutil.which(name):
            missing.append(f"{name}: not installed; run make deps")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        missing.append(f"kernel {os.uname().release}: has no BTF; use one of Debian's own kernels")
    available = mem_available()
    if available < ram:
        missing.append(f"memory: {available >> 20} MiB available, {ram >> 20} MiB needed; "
                       "end something or use a larger machine")
    directory.mkdir(parents=True, exist_ok=True)
    place = backup_of(directory) if machine.IN_GUEST else directory
    free = shutil.disk_usage(place).free
    if free < disk:
        missing.append(f"disk: {free >> 20} MiB free at {place}, {disk >> 20} MiB needed")
    left = [f"{d} is on as swap" for d in machine.ebb_swaps()]
    left += [f"ebbd runs ({pid})" for pid, name in machine.processes().items() if name == "ebbd"]
    if left:
        missing.append("ebb is in use here already (" + "; ".join(left) + "): ebbctl device "
                       "destroy, then stop ebbd")
    try:
        machine.memory_root()
    except machine.MachineError as e:
        missing.append(str(e))
    if missing:
        raise Failure("cannot run here:\n  " + "\n  ".join(missing))


def mem_available():
    for line in machine.read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def other_swap():
    return [d for d in machine.swaps() if d not in machine.ebb_swaps()]
