# SPDX-License-Identifier: GPL-2.0-or-later
"""placement=: programs share the executor's CPU, and get back the affinity that they had."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import machine
import parts
from machine import wait_for
from parts import ebbctl, ebbctl_json
from rows import few

USAGE = 2
CPUS = os.sched_getaffinity(0)
RECORD = machine.PINS / "placement"
CPUSETS = machine.cpuset_root()

# Swaps all the while, and starts what it is told to.
STARTER = """
import subprocess, sys, threading, time
heap = bytearray(48 << 20)
def sweep():
    while True:
        for at in range(0, len(heap), 4096):
            heap[at] = heap[at] + 1 & 255
threading.Thread(target=sweep, daemon=True).start()
print(flush=True)
for line in sys.stdin:
    if line == "thread\\n":
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        print(flush=True)
    else:
        print(subprocess.Popen(["/bin/sh", "-c", line]).pid, flush=True)
"""

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU")


def masks(pid):
    """The affinities of all threads of @pid."""
    return {frozenset(os.sched_getaffinity(int(t.name))) for t in Path(f"/proc/{pid}/task").iterdir()}


def pinned(pid):
    """Returns the CPU of @pid if it has one alone."""
    mask, *other = masks(pid)
    return min(mask) if len(mask) == 1 and not other else None


def free(pid):
    return masks(pid) == {frozenset(CPUS)}


def placement(c):
    return parts.stats(c)["placement"]


def place(c, mode):
    ebbctl("policy", "set", c.path, f"placement={mode}")


def wait_pinned(pid):
    """Waits until @pid has one CPU, and returns it."""
    wait_for(lambda: pinned(pid) is not None, 10, "the placement")
    return pinned(pid)


def wait_state(c, *states):
    wait_for(lambda: placement(c)["state"] in states, 10, f"a state of {states}")


def thread_of(ebbd, name):
    for task in Path(f"/proc/{ebbd.pid}/task").iterdir():
        if machine.read(task / "comm").strip() == name:
            return task
    raise AssertionError(f"no thread {name}")


def executor(ebbd):
    return os.sched_getaffinity(int(thread_of(ebbd, "ebbd-prefetch").name))


class Starter:
    """STARTER in @cgroup."""

    def __init__(self, cgroup):
        self.process = subprocess.Popen([sys.executable, "-c", STARTER], text=True, preexec_fn=cgroup.enter,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process.stdout.readline()
        self.pid = self.process.pid
        self.children = []

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def start(self, command):
        """Returns the process of `sh -c command`."""
        self.children.append(int(self.tell(command)))
        return self.children[-1]

    def kill(self):
        for pid in [*self.children, self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture
def scan(device, cgroup):
    """scan(...) is a program that swaps all the while, in a cgroup of its own: (cgroup, scan)."""
    made = []

    def make(policy, *params, program=None):
        c = cgroup(limit_mib=24)
        ebbctl("policy", "attach", policy, c.path, *params)
        s = program(c) if program else parts.Scan(cgroup=c, mib=48, passes=1000, write=True)
        made.append(s)
        if not program:
            s.go()
        return c, s

    yield make
    for s in made:
        s.kill()


@pytest.fixture
def cpuset():
    """A cpuset with all CPUs: cpuset.move(PID), cpuset.allow(CPUS)."""
    if not CPUSETS:
        pytest.skip("no cpuset hierarchy of cgroup v1")

    class Cpuset:
        path = CPUSETS / f"ebb-test-{os.getpid()}"

        def allow(self, cpus):
            (self.path / "cpuset.cpus").write_text(",".join(map(str, cpus)))

        def move(self, pid):
            (self.path / "cgroup.procs").write_text(str(pid))

    c = Cpuset()
    c.path.mkdir()
    (c.path / "cpuset.mems").write_text(machine.read(CPUSETS / "cpuset.mems"))
    c.allow(CPUS)
    yield c
    for pid in machine.read(c.path / "cgroup.procs").split():
        (CPUSETS / "cgroup.procs").write_text(pid)
    c.path.rmdir()


def test_together_and_restored(ebbd_lock, logs, scan):
    """By a change of the setting, by detach, by ebbd's end, and by the ebbd after one that crashed."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        c, s = scan("leap", "placement=together")
        cpu = wait_pinned(s.pid)
        wait_for(lambda: placement(c)["state"] == "together" and placement(c)["cpu"] == cpu, 10, "the state")
        assert RECORD.exists()
        assert f"together on CPU {cpu}" in ebbctl("status").stdout
        wait_for(lambda: executor(ebbd) == {cpu}, 10, "the executor to follow")
        wait_for(lambda: placement(c)["together_ns"] > 0, 10, "the time")

        place(c, "off")
        wait_for(lambda: free(s.pid) and placement(c)["state"] == "off", 10, "all CPUs")
        assert placement(c)["cpu"] is None
        wait_for(lambda: not RECORD.exists(), 10, "the end of the record")
        wait_for(lambda: executor(ebbd) == CPUS, 10, "the executor to return")
        row, = ebbctl_json("status")["attachments"]
        assert row["placement"]["setting"] == row["params"]["placement"] == "off"

        place(c, "together")
        wait_pinned(s.pid)
        ebbctl("policy", "detach", c.path)
        wait_for(lambda: free(s.pid), 10, "all CPUs after detach")

        ebbctl("policy", "attach", "leap", c.path, "placement=together")
        wait_pinned(s.pid)
        ebbd.kill()
        assert pinned(s.pid) is not None and RECORD.exists()
        # What systemd runs after a crash.
        subprocess.run([parts.BIN / "ebbd", "--restore"], check=True)
        assert free(s.pid) and not RECORD.exists()
        ebbd = parts.Ebbd(logs / "ebbd.log")
        wait_pinned(s.pid)
        assert subprocess.run([parts.BIN / "ebbd", "--restore"], check=False).returncode != 0
        assert pinned(s.pid) is not None
        ebbd.kill()
        # The next one restores before it decides again.
        ebbd = parts.Ebbd(logs / "ebbd.log")
        assert "placement: restored the CPU affinity of pinned threads: 1" in machine.read(logs / "ebbd.log")
        assert placement(c)["setting"] == "together"
        wait_pinned(s.pid)
        ebbd.stop()
        assert free(s.pid) and not RECORD.exists()
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_restored_after_a_kill_during_a_release(ebbd_lock, logs, scan):
    """ebbd marks a thread as released before it restores the affinity."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        _, s = scan("leap", "placement=together")
        wait_pinned(s.pid)
        ebbd.kill()
        bpftool = ["/usr/sbin/bpftool", "-j", "map"]
        dump = subprocess.run([*bpftool, "dump", "pinned", RECORD / "pinned"], capture_output=True, check=True)
        for entry in json.loads(dump.stdout):
            value = bytearray(int(b, 16) for b in entry["value"])
            value[24:32] = time.monotonic_ns().to_bytes(8, "little")   # .released
            value[40] |= 1 << 4                                         # EBB_PINNED_RELEASED
            subprocess.run([*bpftool, "update", "pinned", RECORD / "pinned", "key", *entry["key"],
                            "value", *map(str, value)], check=True)
        assert pinned(s.pid) is not None
        subprocess.run([parts.BIN / "ebbd", "--restore"], check=True)
        assert free(s.pid) and not RECORD.exists()
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_a_cpuset_that_loses_the_cpu_and_regains_it(ebbd, scan, cpuset):
    c, s = scan("leap", "placement=off")
    cpuset.move(s.pid)
    place(c, "together")
    cpu = wait_pinned(s.pid)
    cpuset.allow(CPUS - {cpu})
    wait_state(c, "one CPU", "together")
    wait_for(lambda: cpu not in {*set().union(*masks(s.pid))} and placement(c)["cpu"] != cpu, 10, "another CPU")
    place(c, "off")
    wait_state(c, "off")
    cpuset.allow(CPUS)
    assert free(s.pid)
    # While ebbd cannot see it.
    place(c, "together")
    cpu = wait_pinned(s.pid)
    os.kill(ebbd.pid, signal.SIGSTOP)
    cpuset.allow(CPUS - {cpu})
    cpuset.allow(CPUS)
    os.kill(ebbd.pid, signal.SIGCONT)
    place(c, "off")
    wait_for(lambda: free(s.pid), 10, "all CPUs")


@pytest.mark.long
def test_children_in_other_cgroups(ebbd_lock, logs, scan, cgroup):
    """They are released, also those of a program that was pinned when ebbd was killed."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        c, s = scan("leap", "placement=together", program=Starter)
        cpu = wait_pinned(s.pid)
        other = cgroup()
        move = f"echo $$ >{other.path}/cgroup.procs; exec sleep 1000"
        # Stopped, ebbd cannot be faster than the move.
        os.kill(ebbd.pid, signal.SIGSTOP)
        child = s.start(move)
        wait_for(lambda: machine.read(f"/proc/{child}/comm") == "sleep\n", 10, "the child")
        assert pinned(child) == cpu
        os.kill(ebbd.pid, signal.SIGCONT)
        wait_for(lambda: free(child), 10, "all CPUs for a child in another cgroup")
        # A child that sets an affinity of its own, the same, keeps it.
        own = s.start(f"exec taskset -c {cpu} sleep 1000")
        grand = s.start("sleep 1000 & sleep 1000")
        wait_for(lambda: machine.read(f"/proc/{own}/comm") == "sleep\n", 10, "the child")
        wait_for(lambda: free(grand), 10, "all CPUs for a child")
        s.tell("thread")
        wait_for(lambda: pinned(s.pid) == cpu and len(os.listdir(f"/proc/{s.pid}/task")) >= 3, 10, "a thread")
        ebbd.kill()
        orphan = s.start(move)
        wait_for(lambda: machine.read(f"/proc/{orphan}/comm") == "sleep\n", 10, "the child")
        assert pinned(orphan) == cpu
        ebbd = parts.Ebbd(logs / "ebbd.log")
        wait_for(lambda: free(orphan), 10, "all CPUs for a child that no ebbd saw")
        wait_pinned(s.pid)
        place(c, "off")
        wait_for(lambda: free(s.pid), 10, "all CPUs for all threads")
        assert pinned(own) == cpu
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(ebbd.pid, signal.SIGCONT)
        ebbd.stop()
        machine.pins_remove()


def test_auto(ebbd, scan):
    """They share while one thread runs, and separate when there are two; this is the default."""
    c, s = scan("leap")
    assert placement(c)["setting"] == "auto"
    wait_pinned(s.pid)
    wait_state(c, "together")
    other = parts.Scan(cgroup=c, mib=48, passes=1000, write=True)
    try:
        other.go()
        wait_state(c, "apart")
        wait_for(lambda: free(s.pid) and free(other.pid), 10, "all CPUs")
    finally:
        other.kill()
    # After a pause of four seconds.
    wait_for(lambda: placement(c)["state"] == "together", 30, "another attempt")
    # A setting ends it.
    place(c, "off")
    wait_for(lambda: free(s.pid), 10, "all CPUs")


@pytest.mark.long
def test_a_cgroup_with_very_many_below_is_left_alone(ebbd, scan):
    c, s = scan("leap")
    wait_pinned(s.pid)
    below = [c.path / f"below{i}" for i in range(520)]
    try:
        for b in below:
            b.mkdir()
        wait_state(c, "many threads")
        assert free(s.pid)
    finally:
        for b in below:
            b.rmdir()
    wait_pinned(s.pid)


@pytest.mark.long
def test_auto_leaves_programs_that_nothing_prefetches_for(ebbd, scan):
    c, s = scan("none")
    wait_state(c, "apart")
    time.sleep(3)       # longer than it takes to decide
    assert free(s.pid) and placement(c)["together_ns"] == 0


def test_auto_leaves_programs_that_do_not_swap(ebbd, device, cgroup):
    c = cgroup()
    ebbctl("policy", "attach", "leap", c.path, "placement=auto")
    assert placement(c) == {"setting": "auto", "state": "idle", "cpu": None, "together_ns": 0}


@pytest.mark.long
def test_own_affinity_is_kept(ebbd, scan):
    """Of a program that has one, and of one that sets it while it shares a CPU."""
    own = {min(CPUS)}
    c, s = scan("leap", "placement=off")
    os.sched_setaffinity(s.pid, own)
    place(c, "together")
    wait_state(c, "own affinity")
    assert os.sched_getaffinity(s.pid) == own
    os.sched_setaffinity(s.pid, CPUS)
    cpu = wait_pinned(s.pid)
    other = CPUS - {cpu}
    os.sched_setaffinity(s.pid, other)
    wait_state(c, "own affinity")
    time.sleep(1)       # ebbd looks twice
    assert os.sched_getaffinity(s.pid) == other
    os.sched_setaffinity(s.pid, CPUS)
    time.sleep(1)
    assert free(s.pid) and placement(c)["state"] == "own affinity"
    place(c, "off")
    wait_state(c, "off")
    # To the very CPU that ebbd chose, but not while ebbd pins.
    place(c, "together")
    cpu = wait_pinned(s.pid)
    wait_state(c, "together")
    os.sched_setaffinity(s.pid, {cpu})
    wait_state(c, "own affinity")
    place(c, "off")
    wait_state(c, "off")
    time.sleep(0.5)
    assert pinned(s.pid) == cpu


def test_processes_that_do_not_swap(ebbd, scan):
    """They keep their CPUs, and ebbd chooses no CPU to which a user has confined one."""
    c, s = scan("leap", "placement=off")
    taken = min(CPUS)
    idle = subprocess.Popen(["/bin/sleep", "1000"], preexec_fn=c.enter)
    own = subprocess.Popen(["/usr/bin/taskset", "-c", str(taken), "/bin/sleep", "1000"], preexec_fn=c.enter)
    try:
        wait_for(lambda: pinned(own.pid) == taken, 10, "taskset")
        place(c, "together")
        assert wait_pinned(s.pid) != taken
        assert free(idle.pid)
        # One that leaves the cgroup is not forgotten.
        (c.path.parent / "cgroup.procs").write_text(str(s.pid))
        wait_for(lambda: free(s.pid), 10, "all CPUs for a process that left")
        assert pinned(own.pid) == taken and free(idle.pid)
    finally:
        for p in (idle, own):
            p.kill()
            p.wait()


@pytest.mark.long
def test_realtime_is_left_alone(ebbd, scan):
    c, s = scan("leap", "placement=together")
    wait_pinned(s.pid)
    # It must not run: it would keep the server of its pages from a CPU.
    os.kill(s.pid, signal.SIGSTOP)
    os.sched_setscheduler(s.pid, os.SCHED_RR, os.sched_param(1))
    wait_state(c, "real-time")
    assert free(s.pid)
    os.sched_setscheduler(s.pid, os.SCHED_OTHER, os.sched_param(0))
    os.kill(s.pid, signal.SIGCONT)
    wait_pinned(s.pid)


def test_states_from_the_start(ebbd, cgroup):
    c, d = cgroup(), cgroup()
    ebbctl("policy", "attach", "none", c.path, "placement=off")
    assert placement(c)["state"] == "off"
    ebbctl("policy", "attach", "none", d.path, "placement=together")
    assert placement(d)["state"] == "idle"
    place(d, "off")
    assert placement(d)["state"] == "off"


def switches(ebbd):
    """How often the placement thread has waited."""
    status = machine.read(thread_of(ebbd, "ebbd-placement") / "status")
    return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.M)[1])


def test_no_wakeups_while_there_is_nothing_to_place(ebbd, cgroup):
    def rests():
        before = switches(ebbd)
        time.sleep(2)
        return switches(ebbd) == before
    c = cgroup()
    ebbctl("policy", "attach", "leap", c.path)
    wait_for(rests, 5, "a rest")
    before = switches(ebbd)
    assert placement(c)["state"] == "idle"
    place(c, "together")
    wait_for(lambda: switches(ebbd) > before + 3, 10, "rounds")
    place(c, "off")
    wait_for(rests, 5, "a rest again")


def test_the_executor_returns_to_its_own_affinity(ebbd, scan):
    """To the one that it had before it moved, not at ebbd's start."""
    c, s = scan("leap", "placement=off")
    tid = int(thread_of(ebbd, "ebbd-prefetch").name)
    own = {max(CPUS)}
    os.sched_setaffinity(tid, own)
    place(c, "together")
    cpu = wait_pinned(s.pid)
    wait_for(lambda: executor(ebbd) == {cpu}, 10, "the executor to follow")
    place(c, "off")
    wait_for(lambda: free(s.pid), 10, "all CPUs")
    wait_for(lambda: executor(ebbd) == own, 10, "the executor to return")


@pytest.mark.parametrize("case", few(["inherited", "twice", "meanwhile", "closed", "forked", "exited", "heard", "crowd"],
                                     "inherited", "twice", "closed", "exited", "heard", "crowd"))
def test_record(ebbd_lock, case):
    """See tests/programs/pins.c."""
    run_pins(case)


@pytest.mark.parametrize("case", ["shrunk", "left"])
def test_record_in_a_cpuset(ebbd_lock, cpuset, case):
    run_pins(case, str(cpuset.path))


def run_pins(*arguments):
    try:
        done = subprocess.run(["timeout", "120", machine.BUILD / "tests" / "pins", *arguments],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.returncode, done.stdout + done.stderr)
        assert not RECORD.exists()
    finally:
        machine.pins_remove()


def test_a_record_that_cannot_be_written(ebbd, logs, scan):
    """Without one, nothing is pinned, and the log says why."""
    (RECORD / "x").mkdir(parents=True)
    try:
        c, s = scan("leap", "placement=together")
        wait_state(c, "failed")
        assert free(s.pid)
        told = [line for line in machine.read(ebbd.log).splitlines() if "placement: " in line]
        assert len(told) == 1 and "cannot record" in told[0] and "CAP_SYS_NICE" not in told[0], told
    finally:
        (RECORD / "x").rmdir()
        RECORD.rmdir()
    place(c, "off")
    wait_state(c, "off")
    place(c, "together")
    wait_pinned(s.pid)


def test_bad_modes(ebbd, cgroup):
    c = cgroup()
    ebbctl("policy", "attach", "none", c.path, "placement=together")
    for bad in ("", "1", "Auto", "Together"):
        for verb in (["policy", "set", c.path], ["policy", "attach", "none", c.path]):
            done = ebbctl(*verb, f"placement={bad}", check=False)
            assert done.returncode == USAGE and done.stderr.startswith("ebbctl: placement: "), done
    assert ebbctl_json("status")["attachments"][0]["params"] == {"placement": "together"}
    place(c, "auto")
    assert ebbctl_json("status")["attachments"][0]["params"] == {}
