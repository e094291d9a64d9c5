# SPDX-License-Identifier: GPL-2.0-or-later
"""Many attached cgroups with idle processes, and what ebbd does for them: calls and CPU time."""
import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import machine
import policies

COUNT = machine.BUILD / "tests" / "count"
CROWD = machine.BUILD / "tests" / "crowd"


class Count:
    """tests/bench/count, which counts system calls of process @pid, for the duration of a `with`."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        self.process = subprocess.Popen([COUNT, str(self.pid)], text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(30)

    def calls(self):
        """Returns the number of system calls of all threads of the process so far."""
        print(file=self.process.stdin, flush=True)
        told = json.loads(self.process.stdout.readline())
        assert not told["lost"]
        return sum(calls for _, _, calls, _ in told["calls"])


def cpu_ns(pid):
    """Returns the CPU time of all threads of a process."""
    return sum(int(machine.read(task / "schedstat", "0").split()[0])
               for task in Path(f"/proc/{pid}/task").iterdir())


@dataclass
class Idle:
    """ebbd's share of a time in which nothing happened."""
    seconds: float
    calls: int
    cpu_ns: int

    @property
    def busy(self):
        return self.cpu_ns / 1e9 / self.seconds


def idle(count, seconds):
    began, calls, cpu = time.monotonic(), count.calls(), cpu_ns(count.pid)
    time.sleep(seconds)
    return Idle(time.monotonic() - began, count.calls() - calls, cpu_ns(count.pid) - cpu)


class Crowd:
    """Cgroups below the directory @name of the tests' parent; `with` removes them, processes first."""

    def __init__(self, name="crowd"):
        base, self.version = machine.memory_root()
        self.base = base
        self.roots = [r / f"ebb-test-{os.getpid()}" / name for r in machine.cgroup_roots()]
        self.cgroups = []       # paths below the roots
        self.processes = None

    def __enter__(self):
        for root in self.roots:
            root.mkdir(parents=True)
            if self.version == 2:
                for d in (root.parent, root):
                    (d / "cgroup.subtree_control").write_text("+memory")
        return self

    def grow(self, cgroups):
        """Makes cgroups until there are @cgroups; returns the directories of the new ones."""
        fresh = range(len(self.cgroups), cgroups)
        self.cgroups += fresh
        for i in fresh:
            for root in self.roots:
                (root / str(i)).mkdir()
        return [self.directory(i) for i in fresh]

    def directory(self, i):
        return next(r / str(i) for r in self.roots if r.is_relative_to(self.base))

    def populate(self, each):
        """Starts @each idle processes in every cgroup."""
        self.processes = subprocess.Popen([CROWD], text=True, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE)
        for i in self.cgroups:
            print(each, *(r / str(i) for r in self.roots), file=self.processes.stdin)
        self.processes.stdin.close()
        assert self.processes.stdout.readline() == "ready\n"

    def __exit__(self, *_):
        if self.processes:
            self.processes.kill()
            self.processes.wait()
        for root in self.roots:
            for i in self.cgroups:
                machine.cgroup_rmdir(root / str(i))
            machine.cgroup_rmdir(root)
            if not any(p.is_dir() for p in root.parent.iterdir()):
                machine.cgroup_rmdir(root.parent)


def attach(directories, policy="none"):
    """Attaches @policy to each; returns the seconds that each took."""
    took = []
    for d in directories:
        began = time.monotonic()
        policies.call("policy.attach", cgroup=str(d), policy=policy)
        took.append(time.monotonic() - began)
    return took
