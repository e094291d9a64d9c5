# SPDX-License-Identifier: GPL-2.0-or-later
"""
Jobs of real donors with --far-jobs for a heap whose objects are spread over two of them and a
program: marks, copies, a donor that is killed before and after each message, and what status,
metrics and ebb-stats(7) say.
"""
import json
import re
import signal
import subprocess

import pytest

import statspage
from control_server import ControlServer
from key import Key
from machine import BUILD, wait_for
from parts import ebbctl, ebbctl_json
from ports import free_port
from rows import few

pytestmark = pytest.mark.beside

PROGRAM = BUILD / "tests/far_jobs"
DONE, FAILED, ABANDONED = 0, 1, 3
OPTIONS = ("--far", "48M", "--far-jobs", "4M", "--far-jobs-cpu", "100")


@pytest.fixture
def make(donor_factory, tmp_path):
    """make(): a donor with jobs; .local is its unix socket."""
    made = []

    def donor(*options):
        local = f"unix:{tmp_path}/d{len(made)}.sock"
        made.append(donor_factory(port=free_port(), memory="48M", slab="8M", also=[local],
                                  options=options or OPTIONS))
        made[-1].local = local
        return made[-1]
    return donor


def run(*argv, status=DONE):
    done = subprocess.run([PROGRAM, *map(str, argv)], capture_output=True, text=True, timeout=100)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout) if done.stdout else done.stderr


def jobs(donor):
    return donor.ask()["far"]["jobs"]


@pytest.mark.parametrize("places", ["tcp", "shm", "both"])
def test_marks_are_those_of_a_local_trace(make, places):
    a, b = make(), make()
    at = [d.local if place == "shm" else d.address
          for d, place in zip((a, b), {"both": ("tcp", "shm")}.get(places, (places, places)))]
    for seed in range(1, 4):
        told = run("trace", seed, 30, *at)
        # References go both ways, and are passed on once each.
        assert told["received"] > told["sent"] > 100 and told["visited"] > told["sent"]
        assert told["marks"] == 20
    for d in a, b:
        now = jobs(d)
        assert now["cycles"] == 3 and now["abandoned"] == 0 and now["heaps"] == now["regions"] == 0
        assert now["used"] == 0 and now["marked"] > 1000 and now["references"] > now["marked"]


def test_a_share_of_a_processor(make):
    """With 1 % the same work is done, in pieces; requests that come too early do nothing."""
    a = make("--far", "48M", "--far-jobs", "4M", "--far-jobs-cpu", "1")
    told = run("trace", 5, 30, a.address)
    assert jobs(a)["postponed"] >= 1 and jobs(a)["percent"] == 1 and told["visited"] > 1000


def test_copies_at_two_donors_are_equal(make):
    a, b = make(), make()
    told = run("copies", 4, 24, a.address, b.local)
    assert told["requests"] >= 2
    assert jobs(a)["evacuated"] == jobs(b)["evacuated"] == told["bytes"] > 100000


@pytest.mark.parametrize("when", few(["before", "after"], "after"))
def test_donor_killed_at_each_message(make, when):
    """The cycle is abandoned, whatever the message, and no mark of it is used."""
    a, n, messages = make(), 0, None
    while messages is None or n < messages:
        b, n = make(), n + 1
        if messages is None:
            messages = run("trace", 2, 6, a.address, b.address)["messages"]
        at = n if when == "before" else -n
        done = subprocess.run([PROGRAM, "--kill", f"{b.pid}:{at}", "trace", "2", "6", a.address,
                               b.address], capture_output=True, text=True, timeout=100)
        assert b.process.wait(60) == -signal.SIGKILL
        # The replies to the last two, with the marks of both, have arrived: it is not needed.
        complete = when == "after" and n > messages - 2
        assert done.returncode == (DONE if complete else ABANDONED), f"{n}: {done.stdout}{done.stderr}"
        assert json.loads(done.stdout)["marks"] in ((4,) if complete else (0, 2))
    assert messages >= 6
    now = jobs(a)
    assert now["heaps"] == now["used"] == 0 and now["abandoned"] >= messages // 2


def test_without_jobs(make):
    """Off by default."""
    a = make("--far", "48M")
    assert "runs no jobs; start ebb-donord with --far-jobs SIZE" in \
        run("trace", 1, 3, a.address, status=FAILED)
    assert "jobs" not in a.ask()["far"]


def test_memory_is_limited(make):
    a = make("--far", "48M", "--far-jobs", "1M", "--keep", "100ms")
    assert "No space left" in run("speed", 1, 1100, a.address, status=FAILED)
    # The program has failed, and its heap ends with its grace period.
    wait_for(lambda: jobs(a)["used"] == 0, 30, "tables are left")
    run("trace", 1, 30, a.address)


def test_with_a_key(make, tmp_path):
    key = Key.create(tmp_path / "one.key", "one")
    a = make(*OPTIONS, "--keys", str(key.path))
    assert run("--key", key.path, "trace", 1, 12, a.address)["visited"] > 100
    assert "key" in run("trace", 1, 12, a.address, status=FAILED)


def test_status_and_metrics(make, monkeypatch):
    a = make()
    monkeypatch.setenv("EBB_RUN_DIR", str(a.run))
    run("trace", 1, 12, a.address)
    metrics = ebbctl("metrics").stdout
    assert f"ebb_lender_far_jobs_limit_bytes {4 << 20}\n" in metrics
    assert "ebb_lender_far_jobs_cycles_total 1\n" in metrics
    assert re.search(r'^ebb_lender_far_jobs_requests_total{kind="trace"} [1-9]', metrics, re.M)
    assert re.search(r"^ebb_lender_far_jobs_busy_seconds_total [0-9.]+(e-\d+)?$", metrics, re.M)
    ebbd = ControlServer(a.run / "control.sock", lambda request: {})
    try:
        status = ebbctl_json("status")
    finally:
        ebbd.close()
    assert [x for x in statspage.differences("status", {"far": status["far"]}) if "far" in x] == []
