# SPDX-License-Identifier: GPL-2.0-or-later
"""libebbgc under ebbd: epochs by a plain load, collectors known by their threads' names."""
import json
import os
import signal
import subprocess

import pytest

import machine
import parts
from machine import wait_for
from parts import ebbctl

LIMIT = 32
KV = machine.BUILD / "tests" / "gc" / "kv"


def run(cgroup, told, options, size=100000, rounds=1, under=()):
    """The program's own figures of a run that has to be right, by the command @under."""
    done = subprocess.run([*under, KV, "-n", str(size), "-r", str(rounds), "-j", told],
                          env={**os.environ, "EBBGC_OPTIONS": options}, text=True,
                          capture_output=True, preexec_fn=cgroup.enter, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(told.read_text()), done.stdout


@pytest.fixture(autouse=True)
def program():
    if not KV.exists():
        pytest.skip("build/tests/gc/kv: not built; run make gc-programs")


@pytest.mark.long
def test_epochs_come_from_ebbd(ebbd, device, cgroup, tmp_path):
    c = cgroup(limit_mib=LIMIT)
    # ebbd does not count for a cgroup without a policy.
    own, result = run(c, tmp_path / "own.json", "mode=memliner", size=1000)
    assert own["epoch_source"] == "own"
    ebbctl("policy", "attach", "none", c.path)
    # Whether epochs pass while a run of some seconds marks is the kernel's affair.
    for _ in range(5):
        told, first = run(c, tmp_path / "ebbd.json", "mode=memliner,check")
        assert told["epoch_source"] == "ebbd" and told["scans"] == 0
        if told["epoch"]:
            break
    # More than the heap's limit lives, so pages go and come, and epochs with them.
    assert parts.stats(c)["swapped_out"] > 0
    assert told["epoch"] > 0
    assert parts.stats(c)["epochs"] >= told["epoch"]
    _, second = run(c, tmp_path / "park.json", "mode=memliner,park,drop,check")
    assert first == second


def test_epochs_in_a_pid_namespace(ebbd, device, cgroup, tmp_path):
    """There, the program's number is 1: for ebbd, that of a process without a policy."""
    c = cgroup(limit_mib=LIMIT)
    ebbctl("policy", "attach", "none", c.path)
    told, _ = run(c, tmp_path / "told.json", "mode=memliner", size=1000, under=["/usr/bin/unshare", "--pid", "--fork"])
    assert told["epoch_source"] == "ebbd"


def test_slots_are_given_back(ebbd, device, cgroup, tmp_path):
    c = cgroup(limit_mib=LIMIT)
    ebbctl("policy", "attach", "none", c.path)
    for _ in range(3):
        told, _ = run(c, tmp_path / "told.json", "mode=memliner", size=1000)
        assert told["epoch_source"] == "ebbd"
    dump = subprocess.run(["/usr/sbin/bpftool", "-j", "map", "dump", "pinned",
                           str(machine.PINS / "maps" / "epoch_slots")],
                          text=True, capture_output=True, check=True)
    assert json.loads(dump.stdout) == []


@pytest.mark.long
def test_what_is_out_is_parked(ebbd, device, cgroup, tmp_path):
    """The kernel's word for it: pages that are swapped are waited for, then fetched in batches."""
    c = cgroup(limit_mib=28)
    ebbctl("policy", "attach", "none", c.path)
    # Not in checking mode, whose own walk brings everything in.
    results = set()
    for residency in ("pagemap_scan", "pagemap", "mincore"):
        # The program may bring in by itself all that is waited for, but not each time.
        for _ in range(5):
            told, result = run(c, tmp_path / "told.json",
                               f"mode=memliner,park,growth=1.3,residency={residency}",
                               size=150000, rounds=1)
            results.add(result)
            if told["fetch_calls"]:
                break
        assert told["parked_objects"] > 0, residency
        assert told["fetched_pages"] >= told["fetch_calls"] > 0, residency
    assert len(results) == 1


def test_faults_are_told(ebbd, device, cgroup, tmp_path):
    """The road of an arrival: fault, BPF, the mapped ring, the collector; and of a hint back."""
    c = cgroup(limit_mib=LIMIT)
    # ebbd reports nothing for a cgroup without a policy.
    told, _ = run(c, tmp_path / "told.json", "mode=memliner,park,arrivals,hints", size=1000)
    assert told["arrivals_shared"] == told["arrivals"] == told["hinted_pages"] == 0
    ebbctl("policy", "attach", "none", c.path)
    results, seen = set(), 0

    def sums_of(options, enough=lambda told: True):
        """Repeats the run until @enough accepts the sums: a single one may hint and mark nothing."""
        nonlocal seen
        sums = {"hinted_pages": 0, "arrived_objects": 0}
        for _ in range(5):
            told, result = run(c, tmp_path / "told.json", f"mode=memliner,{options},growth=1.3",
                               size=150000, rounds=1)
            results.add(result)
            shared = int("hints" in options)
            assert told["arrivals_shared"] == shared and (told["arrivals"] > 0) == shared, options
            seen += told["arrivals"] + told["arrivals_lost"]
            for name in sums:
                sums[name] += told[name]
            if enough(sums):
                break
        return sums
    assert sums_of("park") == {"hinted_pages": 0, "arrived_objects": 0}
    told = sums_of("hints", lambda told: told["hinted_pages"])
    # With hints alone nothing is marked for them.
    assert told["hinted_pages"] > 0 and told["arrived_objects"] == 0
    told = sums_of("park,arrivals,hints", lambda told: all(told.values()))
    assert all(told.values()), told
    assert len(results) == 1
    # No more than ebbd counts, of the program and its collector.
    s = parts.stats(c)
    assert 0 < seen <= s["misses"] + s["hits"] + s["late"]


def arrivals_head():
    """How many faults have been told of the process with the first slot."""
    done = subprocess.run(["/usr/sbin/bpftool", "-j", "map", "lookup", "pinned",
                           str(machine.PINS / "maps" / "arrivals"), "key", "0", "0", "0", "0"],
                          text=True, capture_output=True, check=True)
    return json.loads(done.stdout)["formatted"]["value"]["head"]


def test_faults_are_told_without_ebbd(ebbd, device, cgroup, logs, tmp_path):
    """What tells of misses is pinned: it outlives ebbd, and its successor takes it over."""
    c = cgroup(limit_mib=40)
    ebbctl("policy", "attach", "none", c.path)
    program = subprocess.Popen(
        [KV, "-n", "200000", "-r", "200"], stdout=subprocess.DEVNULL,
        env={**os.environ, "EBBGC_OPTIONS": "mode=memliner,park,arrivals,hints,growth=1.3"},
        preexec_fn=c.enter)
    try:
        wait_for(lambda: arrivals_head() > 100, 60, "faults before the kill")
        ebbd.kill()
        before = arrivals_head()
        wait_for(lambda: arrivals_head() > before + 100, 60, "faults without ebbd")
        successor = parts.Ebbd(logs / "successor.log")
        try:
            before = arrivals_head()
            wait_for(lambda: arrivals_head() > before + 100, 60, "faults after the restart")
            assert program.poll() is None
        finally:
            program.kill()
            program.wait()
            successor.stop()
    finally:
        program.kill()
        program.wait()


SWAP_LIMIT = 64


@pytest.mark.long
def test_a_heap_beyond_memory_and_swap(ebbd, device, cgroup, tmp_path):
    """Ends with the null reference, and without an OOM kill, which does happen with overcommit."""
    for options, status in (("concurrent", 2), ("memliner,park,drop", 2), ("stop", 2),
                            ("concurrent,overcommit", -signal.SIGKILL)):
        c = cgroup(limit_mib=LIMIT)
        if c.version == 1:
            c.set("memory.memsw.limit_in_bytes", LIMIT + SWAP_LIMIT << 20)
        else:
            c.set("memory.swap.max", SWAP_LIMIT << 20)
        done = subprocess.run([KV, "-n", "1000000", "-r", "1", "-j", tmp_path / "told.json"],
                              env={**os.environ, "EBBGC_OPTIONS": f"mode={options}"}, text=True,
                              capture_output=True, preexec_fn=c.enter, timeout=200)
        assert done.returncode == status, (options, done.stderr)
        assert ("kv: out of memory" in done.stderr) == (status == 2), options
        assert (c.events("oom_kill") == 0) == (status == 2), options
    # What fits has room to swap.  Where writes stall, the kernel kills in small cgroups nevertheless.
    for _ in range(5):
        c = cgroup(limit_mib=LIMIT)
        done = subprocess.run([KV, "-n", "200000", "-r", "1", "-j", tmp_path / "told.json"],
                              env={**os.environ, "EBBGC_OPTIONS": "mode=concurrent"}, text=True,
                              capture_output=True, preexec_fn=c.enter, timeout=200)
        if not c.events("oom_kill"):
            break
    assert done.returncode == 0, (done.returncode, done.stderr, c.events("oom_kill"))


def test_collectors_are_known(ebbd, device, cgroup, tmp_path):
    c = cgroup(limit_mib=LIMIT)
    ebbctl("policy", "attach", "none", c.path)
    run(c, tmp_path / "told.json", "mode=concurrent,incognito")
    assert parts.stats(c)["gc_misses"] == 0
    # The mutator's misses may have swapped in all pages that the collector needs, but not each time.
    for _ in range(8):
        run(c, tmp_path / "told.json", "mode=concurrent")
        if parts.stats(c)["gc_misses"]:
            break
    assert parts.stats(c)["gc_misses"] > 0
