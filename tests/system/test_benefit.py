# SPDX-License-Identifier: GPL-2.0-or-later
"""benefit=: ebbd pauses each source of requests now and then, and measures what the program gains by it."""
import subprocess
import sys

import pytest

import machine
import parts
from machine import wait_for
from parts import ebbctl, ebbctl_json

USAGE = 2
# Of maps/cgroups; <ebb/abi.h>.
BENEFIT, PAUSED_SHIFT, STREAMS = 1 << 9, 16, 2


# Swaps all the while, and computes for some 50 us a page: of programs that hardly do nothing is known.
PROGRAM = """
heap = bytearray(48 << 20)
print(flush=True)
while True:
    for at in range(0, len(heap), 4096):
        heap[at] = heap[at] + 1 & 255
        sum(range(4000))
"""


@pytest.fixture
def program(device, cgroup):
    """program(POLICY, PARAMETER...) runs PROGRAM in a cgroup of its own, which it returns."""
    made = []

    def make(policy, *params):
        c = cgroup(limit_mib=24)
        ebbctl("policy", "attach", policy, c.path, *params)
        p = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, preexec_fn=c.enter)
        made.append(p)
        p.stdout.readline()
        return c

    yield make
    for p in made:
        assert p.poll() is None, "it has ended"
        p.kill()
        p.wait(30)
        p.stdout.close()


def benefit(c):
    return parts.stats(c)["benefit"]


def source(c, name):
    """Returns the row of one source of requests, or None."""
    return next((s for s in parts.stats(c)["sources"] if s["source"] == name), None)


def flags(c):
    """The flags of maps/cgroups, as the BPF programs see them."""
    number = c.path.stat().st_ino
    return next(entry["value"]["flags"] for entry in parts.pinned_map("cgroups") if entry["key"] == number)


def wait_trials(c, name, n):
    wait_for(lambda: (source(c, name) or {"trials": 0})["trials"] >= n, 60, f"{n} trials of {name}")


@pytest.mark.long
def test_a_policy_that_gains(ebbd, program):
    """It is paused for trials alone; also seen in the map that the BPF programs read."""
    c = program("leap", "benefit=on")
    wait_for(lambda: benefit(c) == {"setting": "on", "state": "measuring"}, 30, "the state")
    # A pause is brief: some looks are enough.
    wait_for(lambda: flags(c) >> PAUSED_SHIFT == STREAMS, 60, "a pause", interval=0.01)
    wait_for(lambda: not flags(c) >> PAUSED_SHIFT, 2, "its end", interval=0.01)
    wait_trials(c, "streams", 3)
    row = source(c, "streams")
    assert row["state"] in ("unknown", "gains") and row["error"] > 0
    # Most pages are used; the three numbers are of different moments.
    assert row["used"] > row["pages"] // 2 > row["wasted"] and row["used"] <= parts.stats(c)["prefetched"]
    shown = ebbctl("stats", c.path).stdout
    assert "BENEFIT OF" in shown and "streams" in shown
    assert "BENEFIT" in ebbctl("status").stdout
    hits = parts.stats(c)["hits"]
    wait_for(lambda: parts.stats(c)["hits"] > hits + 1000, 10, "hits")

    ebbctl("policy", "set", c.path, "benefit=off")
    assert benefit(c) == {"setting": "off", "state": "off"}
    assert flags(c) & BENEFIT == 0 and not flags(c) >> PAUSED_SHIFT
    assert not source(c, "streams")["paused"] and "used" not in source(c, "streams")


@pytest.mark.long
def test_auto_tells_its_sources(ebbd, program):
    """Sequential accesses are the work of streams."""
    c = program("auto", "benefit=on")
    wait_trials(c, "streams", 1)
    row = next(a for a in ebbctl_json("status")["attachments"] if a["cgroup"] == str(c.path))
    assert row["params"]["benefit"] == "on" and row["benefit"]["setting"] == "on"
    by = {s["source"]: s["pages"] for s in row["sources"]}
    assert by["streams"] > 10 * sum(by.values()) / 11


@pytest.mark.long
def test_the_next_ebbd_resumes_and_goes_on(ebbd_lock, logs, program):
    """After a crash in a pause."""
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        c = program("leap", "benefit=on")
        wait_for(lambda: flags(c) >> PAUSED_SHIFT, 60, "a pause", interval=0.01)
        ebbd.kill()
        ebbd = parts.Ebbd(logs / "ebbd.log")
        assert benefit(c)["setting"] == "on" and flags(c) & BENEFIT
        wait_for(lambda: benefit(c)["state"] == "measuring", 30, "the state")
        ebbd.stop()
        assert not flags(c) >> PAUSED_SHIFT
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_idle_and_offloading(ebbd, device, cgroup):
    """Nothing is tried where nothing swaps, nor while offloading measures."""
    c, d = cgroup(), cgroup()
    ebbctl("policy", "attach", "leap", c.path, "benefit=on")
    ebbctl("policy", "attach", "leap", d.path, "benefit=on", "slowdown=2%")
    wait_for(lambda: benefit(d)["state"] == "offloading", 10, "the state")
    assert benefit(c) == {"setting": "on", "state": "idle"}
    assert parts.stats(c)["sources"] == parts.stats(d)["sources"] == []


def test_refused(ebbd, cgroup):
    c = cgroup()
    for value in ("1", "auto", ""):
        done = ebbctl("policy", "attach", "leap", c.path, f"benefit={value}", check=False)
        assert done.returncode == USAGE and "is not on or off" in done.stderr, done.stderr
