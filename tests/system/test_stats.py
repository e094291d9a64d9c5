# SPDX-License-Identifier: GPL-2.0-or-later
"""Statistics of a real ebbd under a program that swaps: all ways to read them, and their permissions."""
import os
import re

import pytest

import machine
import parts
import statspage
import users
from machine import wait_for
from parts import REFUSED
from prometheus import OF_CGROUPS, MetricsSocket, Prometheus, promtool
from terminal import Terminal
from users import ADMINS, READERS

MIB, LIMIT = 128, 64


@pytest.fixture(autouse=True)
def groups(monkeypatch):
    users.name_groups(monkeypatch)


@pytest.fixture
def place():
    p = users.Place()
    yield p
    p.remove()


@pytest.fixture
def swapping(groups, ebbd, device, cgroup):
    """A cgroup with a program that swaps all the while."""
    c = cgroup(limit_mib=LIMIT)
    parts.ebbctl("policy", "attach", "leap", c.path, "slowdown=2%")
    s = parts.Scan(mib=MIB, passes=1000, write=True, cgroup=c)
    try:
        s.go()
        wait_for(lambda: parts.stats(c)["hits"] > 1000, 60, "hits")
        yield c
    finally:
        s.kill()


def waited(c):
    """Seconds that threads of @c waited for memory, by metrics."""
    text = parts.ebbctl("metrics", "--format", "prometheus").stdout
    return float(re.search(rf'^ebb_cgroup_pressure_some_seconds(?:_total)?{{cgroup="{re.escape(c.rel)}"}} (.*)$',
                           text, re.M)[1])


def test_every_way_tells_the_same(swapping, device, tmp_path, logs):
    c = swapping
    # The page has each member of the answers and each pinned map, and nothing else.
    assert statspage.differences("stats", parts.ebbctl_json("stats")) == []
    assert statspage.differences("status", parts.ebbctl_json("status")) == []
    assert sorted(os.listdir(machine.PINS / "maps")) == sorted(statspage.maps())

    text = parts.ebbctl("metrics", "--format", "prometheus").stdout
    done = promtool("check", "metrics", stdin=text)
    assert done.returncode == 0 and done.stdout + done.stderr == "", done.stdout + done.stderr
    there = {name for name in OF_CGROUPS if f'{name}{{cgroup="{c.rel}"}}' in text}
    assert there == {name for name in OF_CGROUPS
                     if "pressure" not in name or os.path.exists("/proc/pressure/memory")}
    metrics = MetricsSocket()
    prometheus = Prometheus(tmp_path, metrics.target, logs / "prometheus.log")
    terminal = Terminal("top", "--interval", "500ms", "--filter", c.rel)
    try:
        terminal.expect(c.rel[-20:])
        terminal.expect("leap")
        pressure = os.path.exists("/proc/pressure/memory")
        before, waited_before = parts.stats(c), waited(c) if pressure else 0
        frame = parts.ebbctl_json("top", "--count", "1", "--interval", "1s", "--filter", c.rel)
        after = parts.stats(c)
        (row,) = frame["cgroups"]
        most = (after["hits"] - before["hits"]) / frame["seconds"]
        assert 0 < row["hits_s"] <= most
        assert 0.3 < row["coverage"] <= 1 and 0.3 < row["accuracy"] <= 1
        assert row["in_s"] > 0 and row["out_s"] > 0 and 0 < row["memory"] <= LIMIT << 20
        assert frame["devices"][0]["io_s"] > 0 and frame["devices"][0]["donors"] == "1/1"
        assert frame["ebbd"]["pages_s"] > 0
        # On a busy machine ebbd reclaims in time, and the program waits for the processor alone.
        if pressure:
            most = (waited(c) - waited_before) / frame["seconds"]
            assert 0 <= row["some"] <= most * 1.001 # both are rounded
            assert waited(c) > 0

        prometheus.scraped()
        label = f'{{cgroup="{c.rel}"}}'
        first = parts.stats(c)["hits"]
        wait_for(lambda: (prometheus.value(f"ebb_cgroup_hits_total{label}") or 0) >= first, 20, "a scrape")
        # The time of the query makes it one scrape; what came since is only more.
        scraped = {k: prometheus.value(f"ebb_cgroup_{name}_total{label}") for k, name in (
            ("hits", "hits"), ("swapped_in", "swapped_in_pages"), ("misses", "misses"))}
        now = parts.stats(c)
        for k, v in scraped.items():
            assert before[k] <= v <= now[k], k
        assert prometheus.value("ebb_up") == 1
        assert prometheus.value('ebb_device_swap_on{device="test0"}') == 1
        assert prometheus.value("ebb_device_pages_read_donor_total") > 0
        assert prometheus.value(f'ebb_cgroup_miss_seconds_bucket{{cgroup="{c.rel}",le="+Inf"}}') > 0
        terminal.press("q")
        wait_for(terminal.ended, 10, "the end of top")
        assert terminal.status == 0
    finally:
        terminal.close()
        prometheus.stop()
        metrics.close()


def test_who_may_read_and_change(swapping, ebbd, place):
    c = swapping
    for argv in (["stats"], ["status"], ["metrics"], ["top", "-b", "-n", "1", "-i", "200ms"], ["policy", "list"],
                 ["policy", "show", "leap"], ["stats", c.path]):
        done = place.ctl([READERS], *argv)
        assert done.returncode == 0 and "leap" in done.stdout, f"{argv}: {done.stderr}"
        done = place.ctl([], *argv)
        assert done.returncode == REFUSED and f"is not in group {READERS}" in done.stderr, done.stderr
    for argv in (["policy", "set", c.path, "detect=1"], ["policy", "detach", c.path],
                 ["policy", "attach", "stride", c.path]):
        done = place.ctl([READERS], *argv)
        assert done.returncode == REFUSED, done.stderr
        for word in (argv[1], f"group {ADMINS}", "usermod"):
            assert word in done.stderr
        done = place.ctl([ADMINS], *argv)
        assert done.returncode == 0, done.stderr
    assert parts.stats(c)["policy"] == "stride"
    log = ebbd.log.read_text()
    for verb in ("set", "detach", "attach"):
        assert re.search(rf"user {users.USER} \(process \d+\): policy\.{verb} .*{re.escape(str(c.path))}", log), log

    # Nor do they hold up root.
    for request in ("", '{"verb":"stats"}\n'):
        with place.flood([READERS], "/run/ebb/control.sock", request):
            users.answers_root(lambda verb: parts.control_answer("/run/ebb/control.sock", verb))

    # What runs as root, writes files as root or concerns other machines is root's.
    policy = machine.BUILD / "policies" / "leap.bpf.o"
    for verb, what in (("policy.load", {"file": str(policy)}), ("policy.unload", {"policy": "leap"}),
                       ("record.start", {"cgroup": str(c.path), "file": str(place.path / "t")}),
                       ("device.refresh", {}), ("epoch.share", {"pid": 1})):
        told = place.ask([READERS, ADMINS], "/run/ebb/control.sock", verb, **what)
        assert not told["ok"] and told["exit"] == REFUSED and "permitted to root only" in told["error"], told
    done = place.run([READERS, ADMINS], "ls", machine.PINS / "maps")
    assert done.returncode != 0 and "denied" in done.stderr
