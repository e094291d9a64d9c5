# SPDX-License-Identifier: GPL-2.0-or-later
"""slowdown=: what a program does not use goes to the donors, what it uses stays."""
import statistics
import time

import pytest

import machine
import parts
from parts import USAGE, ebbctl, ebbctl_json

MIB = 1 << 20


def offload(cgroup):
    return parts.stats(cgroup)["offload"]


def wait_for(seconds, condition):
    """Whether it becomes true; @seconds are an idle machine's."""
    end = time.monotonic() + machine.BUSY * seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.5)
    return condition()


@pytest.mark.long
def test_cold_memory_goes(ebbd, device, cgroup):
    group = cgroup()
    ebbctl("policy", "attach", "none", group.path)
    program = parts.Regions(group, 128, 32, 200)
    used_before = group.usage()
    before = statistics.median(program.costs(4))
    assert program.resident() > 120 * MIB
    assert "offload" not in parts.stats(group)
    ebbctl("policy", "set", group.path, "slowdown=2%")
    assert wait_for(60, lambda: program.resident() < 64 * MIB), offload(group)
    # For a moment: where the machine's noise counts as slowdown, some of it comes back.
    assert wait_for(60, lambda: min(offload(group)[k] for k in ("saved", "swapped")) > 50 * MIB), \
        offload(group)
    program.costs(2)
    cheap = lambda cost: cost < 2 * before + 100
    after = parts.tried(lambda: statistics.median(program.costs(8)), cheap)
    told = offload(group)
    # Paged out and freed, not only unmapped.
    assert group.usage() < used_before * 0.6, (group.usage(), told)
    assert program.resident() > 28 * MIB
    assert cheap(after), (before, after, told)
    assert told["target"] == 0.02
    # A kernel that pages out idle memory by itself (DAMON) may have taken part of it.
    assert told["reclaimed_pages"] > 8 * MIB // 4096
    assert told["resident"] + told["saved"] == told["resident_at_start"]
    assert device.used_kib() > 50 * 1024
    assert "OFFLOADED" in ebbctl("stats").stdout
    # Off: no more is taken, and what is out stays until it is asked for.
    ebbctl("policy", "set", group.path, "slowdown=off")
    time.sleep(1.5)
    row = parts.stats(group)
    assert "offload" not in row
    program.stop()


def test_a_cgroup_below_that_goes_is_no_loss(ebbd, device, cgroup):
    """What it lost goes with its counters."""
    group = cgroup()
    if group.version == 2:
        group.set("cgroup.subtree_control", "+memory")
    child = parts.Cgroup(f"{group.rel[1:]}/child", limit_mib=24)
    try:
        ebbctl("policy", "attach", "none", group.path, "slowdown=2%")
        ebbctl("policy", "attach", "none", child.path)
        assert parts.scan_json(mib=32, passes=2, pattern="random", cgroup=child)["bad"] == 0
        assert parts.stats(child)["miss_ns"] > 0
        time.sleep(1)       # a period has seen it
        ebbctl("policy", "detach", child.path)
        told = []
        for _ in range(15):
            time.sleep(0.1)
            told.append(offload(group)["slowdown"])
        assert max(told) < 1000, told
    finally:
        child.remove()


@pytest.mark.long
@pytest.mark.parametrize("pass_ms", [200, 2000])
def test_even_use_is_backed_off_from(ebbd, device, cgroup, pass_ms):
    group = cgroup()
    ebbctl("policy", "attach", "none", group.path, "slowdown=2%")
    program = parts.Regions(group, 96, 96, pass_ms)
    program.costs(20)
    # A program that gets no processor does not use its memory either.
    assert wait_for(5, lambda: program.resident() > 72 * MIB), offload(group)
    assert wait_for(5, lambda: offload(group)["slowdown"] < 0.20), offload(group)
    told = offload(group)
    # It was tried: pages came back.
    assert told["touched_on_trial"] + parts.stats(group)["misses"] > 0, told
    program.stop()


def test_nothing_goes_without_a_device(ebbd, cgroup):
    group = cgroup()
    ebbctl("policy", "attach", "none", group.path, "slowdown=10%")
    program = parts.Regions(group, 32, 4, 200)
    program.costs(4)
    wait_for(4, lambda: offload(group)["state"] == "no room on a device")
    told = offload(group)
    assert told["state"] == "no room on a device"
    assert told["reclaimed_pages"] == 0
    assert program.resident() > 31 * MIB
    program.stop()


def test_target_outlives_ebbd(ebbd_lock, logs, cgroup):
    group = cgroup()
    ebbd = parts.Ebbd(logs / "ebbd.log")
    try:
        ebbctl("policy", "attach", "none", group.path, "slowdown=0.5%")
        ebbd.kill()
        ebbd = parts.Ebbd(logs / "ebbd.log")
        rows = ebbctl_json("status")["attachments"]
        assert [r["params"].get("slowdown") for r in rows if r["cgroup"] == str(group.path)] == ["0.5%"]
        # A new policy with other parameters begins from their initial values.
        ebbctl("policy", "attach", "none", group.path)
        assert "offload" not in parts.stats(group)
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_declared(ebbd_lock, logs, cgroup):
    group = cgroup()
    conf = logs / "ebb.conf"
    conf.write_text(f'[cgroup "{group.rel}"]\npolicy = none\nslowdown = 1.5%\n')
    ebbd = parts.Ebbd(logs / "ebbd.log", config=conf)
    try:
        row = ebbctl_json("status")["attachments"][0]
        assert row["cgroup"] == str(group.path)
        assert row["params"] == {"slowdown": "1.5%"}
        assert row["offload"]["target"] == 0.015
    finally:
        ebbd.stop()
        machine.pins_remove()


def test_bad_targets(ebbd, cgroup):
    group = cgroup()
    ebbctl("policy", "attach", "none", group.path, "slowdown=2%")
    for bad in ("abc", "-1", "-1%", "51%", "50.1", "2.55%", "", "1e1", "2 %", "%"):
        for verb in (["policy", "set", group.path], ["policy", "attach", "none", group.path]):
            done = ebbctl(*verb, f"slowdown={bad}", check=False)
            assert done.returncode == USAGE, (bad, done)
            assert done.stderr.startswith("ebbctl: slowdown: "), done.stderr
            assert len(done.stderr.splitlines()) == 1
    rows = ebbctl_json("status")["attachments"]
    assert rows[0]["params"]["slowdown"] == "2.0%"
    ebbctl("policy", "set", group.path, "slowdown=50")
    ebbctl("policy", "set", group.path, "slowdown=0")
    assert "slowdown" not in ebbctl_json("status")["attachments"][0]["params"]
