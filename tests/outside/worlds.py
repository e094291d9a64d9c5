# SPDX-License-Identifier: GPL-2.0-or-later
"""
Where a suite runs: with the kernel's swap in a file on the disk, or with ebb as the only swap, a
donor on loopback and the policy auto.  Or, without swap, on a loop device over a file of the disk, or
over one of ebb whose servers are killed.  Swap is on only during a `with`.
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "demo"), str(TESTS / "harness"), str(TESTS / "system")]

import dataplane
import machine
import parts
import road

WORK = Path("/hostout") if machine.IN_GUEST else machine.BUILD / "outside"
# A guest's other directories are in memory, which could be swapped out.
DISK = Path("/var/tmp/ebb-outside") if machine.IN_GUEST else WORK
SIZE = (384 if machine.IN_GUEST else 1024) << 20
# Reclaim of a small cgroup sometimes gives up, with and without ebb.
OOM_TRIES = 3
PAGE = 4096
END_SECONDS = 60
KILL_SECONDS = 0.5, 4 # between two kills of servers


@dataclass
class Run:
    """One run of a suite."""
    verdict: list
    seconds: float
    swapped_in: int
    swapped_out: int
    prefetched: int = None      # None: without ebb
    oom_kills: int = 0
    kills: int = 0              # killed servers

    def __iter__(self):
        return iter(asdict(self).items())


def traffic():
    """Returns the pages read from swap devices and written to them since boot, without those of zswap."""
    rows = dict(line.split() for line in machine.read("/proc/vmstat").splitlines())
    return int(rows["pswpin"]), int(rows["pswpout"])


def run_logged(argv, log, seconds, cwd, environment, enter):
    """Runs a program that calls @enter() first; returns its status, or None after @seconds."""
    with open(log, "w") as out:
        child = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                 cwd=cwd, start_new_session=True, preexec_fn=enter,
                                 env={**os.environ, **environment})
        try:
            return child.wait(seconds)
        except BaseException as e:
            # ebbctl ends the program and removes its cgroup on SIGTERM.
            os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(END_SECONDS)
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(END_SECONDS)
            if not isinstance(e, subprocess.TimeoutExpired):
                raise
            return None


class World:
    """A place to run suites in; subclasses have swap, or a stand-in for it."""
    name = "none"
    directory = WORK
    environment = {}
    enter = None                # called by the program's process before its exec

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def around(self, suite, told):
        """Returns the words before a suite's command."""
        return []

    def traffic(self):
        return traffic()

    def summary(self, told):
        return json.loads(machine.read(told, "{}"))

    def attempt(self, suite):
        log = self.directory / "log" / f"{suite.name}-{self.name}.log"
        told = log.with_suffix(".json")
        scratch = (DISK if machine.IN_GUEST else self.directory) / "scratch"
        log.parent.mkdir(parents=True, exist_ok=True)
        told.unlink(missing_ok=True)
        # The same path in both worlds: some suites show it.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        before, began = self.traffic(), time.monotonic()
        status = run_logged([*self.around(suite, told), *suite.command], log, suite.seconds,
                            scratch, self.environment, self.enter)
        seconds = time.monotonic() - began
        swapped_in, swapped_out = (now - then for now, then in zip(self.traffic(), before))
        shutil.rmtree(scratch, ignore_errors=True)
        said = self.summary(told)
        stats = said.get("stats") or {}
        return Run(suite.verdict_of(f"none after {suite.seconds} s" if status is None else status,
                                    log.read_text(errors="replace")),
                   round(seconds, 2), swapped_in, swapped_out, stats.get("prefetched"),
                   said.get("oom_kills", 0))

    def run(self, suite):
        """Runs a suite; again if the OOM killer struck."""
        for _ in range(OOM_TRIES):
            result = self.attempt(suite)
            if not result.oom_kills:
                break
        return result


class Disk(World):
    """The kernel's own swap, in a file."""
    name = "disk"

    def __enter__(self):
        self.file = DISK / "swapfile"
        DISK.mkdir(parents=True, exist_ok=True)
        try:
            with road.interrupts.deferred():
                # It may hold pages of programs.
                with open(os.open(self.file, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
                    os.posix_fallocate(f.fileno(), 0, SIZE)
                for argv in (["mkswap", self.file], ["swapon", self.file]):
                    subprocess.run(argv, check=True, capture_output=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with road.interrupts.deferred():
            road.clear_programs()
            if str(self.file) in machine.swaps():
                machine.swapoff(str(self.file))
            self.file.unlink(missing_ok=True)

    def attempt(self, suite):
        cgroup = parts.Cgroup(f"ebb-outside-{os.getpid()}", suite.limit)
        self.enter = cgroup.enter
        try:
            result = super().attempt(suite)
            result.oom_kills = cgroup.events("oom_kill")
        finally:
            cgroup.remove()
        return result


class Ebb(World):
    """ebb as the only swap."""
    name = "ebb"

    def __enter__(self):
        self.road = road.Road(WORK, SIZE)
        self.road.__enter__()
        return self

    def __exit__(self, *failure):
        self.road.__exit__(*failure)

    def around(self, suite, told):
        return [machine.BIN / "ebbctl", "run", "--quiet", "--mem", f"{suite.limit}M", "--json", told,
                "--policy", "auto", "--"]


class Loop(World):
    """A block device without swap, over a file on the disk."""
    name = "disk"
    block = None

    def file(self):
        path = DISK / "device"
        with open(path, "wb") as f:
            f.truncate(SIZE)
        return path

    def __enter__(self):
        DISK.mkdir(parents=True, exist_ok=True)
        try:
            self.block = subprocess.run(
                ["losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show", self.file()],
                check=True, capture_output=True, text=True).stdout.strip()
        except BaseException:
            self.__exit__()
            raise
        self.environment = {"DEVICE": self.block}
        return self

    def __exit__(self, *_):
        if self.block:
            subprocess.run(["losetup", "-d", self.block], check=True)
        (DISK / "device").unlink(missing_ok=True)

    def traffic(self):
        fields = machine.read(f"/sys/block/{Path(self.block).name}/stat").split()
        return int(fields[2]) * 512 // PAGE, int(fields[6]) * 512 // PAGE


class KilledEbb(Loop):
    """A device of ebb without swap, whose servers are killed one after another."""
    name = "ebb"
    donor = server = None

    def file(self):
        size = f"{SIZE >> 20}M"
        self.donor = parts.Donor(WORK / "log" / "donor.log", memory=size)
        self.server = dataplane.Server(DISK, WORK / "log" / "swapd.log", [self.donor], size=size, slab="16M",
                                       options=("--deadline", "10s"))
        return self.server.file

    def __exit__(self, *failure):
        try:
            super().__exit__(*failure)
        finally:
            for daemon in self.server, self.donor:
                if daemon:
                    daemon.stop()

    @contextmanager
    def killing(self):
        """Yields a list of the servers that are killed meanwhile."""
        killed, ended = [], threading.Event()

        def kill():
            while not ended.wait(random.uniform(*KILL_SECONDS)):
                with suppress(ProcessLookupError):
                    if told := self.server.ready():
                        os.kill(told["server"], signal.SIGKILL)
                        killed.append(told["server"])

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            yield killed
        finally:
            ended.set()
            thread.join()

    def attempt(self, suite):
        with self.killing() as killed:
            result = super().attempt(suite)
        result.kills = len(killed)
        return result


def worlds(suite):
    """Returns the world without ebb, and that with it."""
    return (Loop(), KilledEbb()) if suite.kills else (Disk(), Ebb())
