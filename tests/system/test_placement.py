# SPDX-License-Identifier: GPL-2.0-or-later
"""placement=: programs share the executor's CPU, and get all CPUs back."""
import os
import subprocess
import time
from pathlib import Path

import pytest

import machine
import parts
from machine import wait_for
from parts import ebbctl, ebbctl_json

USAGE = 2
CPUS = os.sched_getaffinity(0)
RECORD = Path("/run/ebb/ebbd.pinned")

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")


def masks(pid):
    """The affinities of all threads of @pid."""
    return {frozenset(os.sched_getaffinity(int(t.name))) for t in Path(f"/proc/{pid}/task").iterdir()}


def pinned(pid):
    """Returns the CPU of @pid if it has one alone."""
    mask, = masks(pid)
    return min(mask) if len(mask) == 1 else None


def free(pid):
    return masks(pid) == {frozenset(CPUS)}


def placement(c):
    return parts.stats(c)["placement"]


def executor(ebbd):
    for task in Path(f"/proc/{ebbd.pid}/task").iterdir():
        if machine.read(task / "comm").strip() == "ebbd-prefetch":
            return os.sched_getaffinity(int(task.name))
    raise AssertionError("no executor")


@pytest.fixture
def scan(device, cgroup):
    """scan(...) is a program that swaps all the while, in a cgroup of its own: (cgroup, scan)."""
    made = []

    def make(policy, *params):
        c = cgroup(limit_mib=24)
        ebbctl("policy", "attach", policy, c.path, *params)
        s = parts.Scan(cgroup=c, mib=48, passes=1000, write=True)
        made.append(s)
        s.go()
        return c, s

    yield make
    for s in made:
        s.kill()


def test_together_and_restored(ebbd_lock, logs, scan):
    """By a change of the setting, by detach, by ebbd's end, and by the ebbd after one that crashed."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        c, s = scan("leap", "placement=together")
        wait_for(lambda: placement(c)["state"] == "together", 10, "the placement")
        cpu = placement(c)["cpu"]
        assert pinned(s.pid) == cpu and RECORD.exists()
        assert f"together on CPU {cpu}" in ebbctl("status").stdout
        wait_for(lambda: executor(ebbd) == {cpu}, 10, "the executor to follow")
        wait_for(lambda: placement(c)["together_ns"] > 0, 10, "the time")

        ebbctl("policy", "set", c.path, "placement=off")
        wait_for(lambda: free(s.pid) and placement(c)["state"] == "off", 10, "all CPUs")
        assert placement(c)["cpu"] is None and not RECORD.exists()
        wait_for(lambda: executor(ebbd) == CPUS, 10, "the executor to return")
        row, = ebbctl_json("status")["attachments"]
        assert row["placement"]["setting"] == "off" and "placement" not in row["params"]

        ebbctl("policy", "set", c.path, "placement=together")
        wait_for(lambda: pinned(s.pid) is not None, 10, "the placement")
        ebbctl("policy", "detach", c.path)
        wait_for(lambda: free(s.pid), 10, "all CPUs after detach")

        ebbctl("policy", "attach", "leap", c.path, "placement=together")
        wait_for(lambda: pinned(s.pid) is not None, 10, "the placement")
        ebbd.kill()
        assert pinned(s.pid) is not None and RECORD.exists()
        # The next one restores it before it decides again.
        ebbd = parts.Ebbd(logs / "ebbd.log")
        assert "CPU affinity of its programs restored" in machine.read(logs / "ebbd.log")
        assert placement(c)["setting"] == "together"
        wait_for(lambda: pinned(s.pid) is not None, 10, "the placement")
        ebbd.stop()
        assert free(s.pid) and not RECORD.exists()
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_own_affinity_is_kept(ebbd, scan):
    """Of a program that has one, and of one that sets it while it shares a CPU."""
    own = {min(CPUS)}
    c, s = scan("leap", "placement=off")
    os.sched_setaffinity(s.pid, own)
    ebbctl("policy", "set", c.path, "placement=together")
    wait_for(lambda: placement(c)["state"] == "own affinity", 10, "the state")
    assert os.sched_getaffinity(s.pid) == own
    os.sched_setaffinity(s.pid, CPUS)
    wait_for(lambda: pinned(s.pid) is not None, 10, "the placement")
    other = CPUS - {pinned(s.pid)}
    os.sched_setaffinity(s.pid, other)
    wait_for(lambda: placement(c)["state"] == "own affinity", 10, "the state")
    time.sleep(1)       # ebbd looks twice
    assert os.sched_getaffinity(s.pid) == other
    os.sched_setaffinity(s.pid, CPUS)
    time.sleep(1)
    assert free(s.pid) and placement(c)["state"] == "own affinity"
    ebbctl("policy", "set", c.path, "placement=off")
    wait_for(lambda: placement(c)["state"] == "off", 10, "the state")
    ebbctl("policy", "set", c.path, "placement=together")
    wait_for(lambda: pinned(s.pid) is not None, 10, "the placement")


def test_only_programs_that_swap(ebbd, scan):
    """A process that does not swap keeps its CPUs; one that inherits a CPU gets all."""
    c, s = scan("leap", "placement=together")
    wait_for(lambda: pinned(s.pid) is not None, 10, "the placement")
    cpu = pinned(s.pid)
    idle = subprocess.Popen(["/bin/sleep", "1000"], preexec_fn=c.enter)
    heir = subprocess.Popen(["/usr/bin/taskset", "-c", str(cpu), "/bin/sleep", "1000"], preexec_fn=c.enter)
    try:
        wait_for(lambda: Path(f"/proc/{heir.pid}/comm").read_text() == "sleep\n" and free(heir.pid), 10,
                 "all CPUs for a process that does not swap")
        assert free(idle.pid) and pinned(s.pid) == cpu
        # One that leaves the cgroup is not forgotten.
        (c.path.parent / "cgroup.procs").write_text(str(s.pid))
        wait_for(lambda: free(s.pid), 10, "all CPUs for a process that left")
    finally:
        for p in (idle, heir):
            p.kill()
            p.wait()


def test_auto_decides(ebbd, scan):
    """Whatever is best here, it is decided, and the interrupt was measured."""
    c, s = scan("auto", "placement=auto")
    wait_for(lambda: placement(c)["interrupt_ns"], 10, "the measurement")
    told = wait_for(lambda: (now := placement(c))["state"] != "few pages out" and now, 20, "a decision")
    assert told["setting"] == "auto"
    assert told["state"] in ("together", "trial", "no gain", "parallel"), told
    ebbctl("policy", "detach", c.path)
    wait_for(lambda: free(s.pid), 10, "all CPUs")


def test_bad_modes(ebbd, cgroup):
    c = cgroup()
    ebbctl("policy", "attach", "none", c.path, "placement=auto")
    for bad in ("", "1", "apart", "Auto"):
        for verb in (["policy", "set", c.path], ["policy", "attach", "none", c.path]):
            done = ebbctl(*verb, f"placement={bad}", check=False)
            assert done.returncode == USAGE and done.stderr.startswith("ebbctl: placement: "), done
    assert ebbctl_json("status")["attachments"][0]["params"] == {"placement": "auto"}
    ebbctl("policy", "set", c.path, "placement=off")
    assert ebbctl_json("status")["attachments"][0]["params"] == {}
