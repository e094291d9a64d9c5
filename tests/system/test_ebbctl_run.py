# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbctl run and ebbctl record: what programs get, and what is left of them."""
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import machine
import parts
from machine import BIN
from parts import REFUSED, USAGE, ebbctl, ebbctl_json
from refusals import away    # fixture


def run(*argv, options=(), **kwargs):
    return ebbctl("run", "--mem", "64M", *options, "--", *argv, check=False, **kwargs)


def nothing_of_run_left():
    return not [c for c in machine.ebb_cgroups() if "ebb-run-" in str(c)]


def test_run_passes_status_and_streams(ebbd, device):
    done = run("sh", "-c", "cat; echo err >&2; exit 7", input="hello\n")
    assert done.returncode == 7
    assert done.stdout == "hello\n"
    assert "err\n" in done.stderr
    assert "exit status 7" in done.stderr and "peak" in done.stderr
    done = run("sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    done = run("/no/such/program")
    assert done.returncode == 127
    done = run("/etc/passwd")
    assert done.returncode == 126
    assert nothing_of_run_left()


def test_run_limits_and_counts(ebbd, device, tmp_path):
    summary = tmp_path / "s.json"
    argv = parts.scan_argv(mib=128, pattern="seq", passes=2, write=True)
    done = run(*argv, options=["--json", summary])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
    told = json.loads(summary.read_text())
    assert told["limit"] == 64 << 20
    assert 0 < told["peak"] <= 65 << 20
    assert told["policy"] == "auto" and told["oom_kills"] == 0
    assert told["stats"]["swapped_out"] > 1000
    assert told["stats"]["coverage"] > 0.5
    assert "coverage" in done.stderr and "lost to misses" in done.stderr
    assert nothing_of_run_left()


def test_run_without_tracking(ebbd, device, tmp_path):
    summary = tmp_path / "s.json"
    done = run("true", options=["--no-track", "--quiet", "--json", summary])
    assert done.returncode == 0 and done.stderr == ""
    told = json.loads(summary.read_text())
    assert told["tracked"] is False and told["policy"] is None and "stats" not in told


def test_run_unknown_policy(ebbd, device):
    done = run("true", options=["--policy", "nosuch"])
    assert done.returncode == USAGE
    assert "nosuch" in done.stderr
    assert nothing_of_run_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_run_passes_signals(ebbd, device, number):
    p = subprocess.Popen([BIN / "ebbctl", "run", "--mem", "64M", "--", "sh", "-c",
                          f"trap 'echo got; exit 9' {number.name[3:]}; echo up; while :; do sleep 0.1; done"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "up\n"
    p.send_signal(number)
    out, _ = p.communicate(timeout=120)
    assert (out, p.returncode) == ("got\n", 9)
    assert nothing_of_run_left()


def test_run_with_signals_that_the_caller_ignores(ebbd, device):
    """As below nohup: the program ignores what the caller ignores, and no more."""
    def ignored(*options):
        """A bit each; env(1) cannot reset signals 32 and up, which glibc keeps for itself."""
        told = subprocess.run(
            ["env", "--default-signal", *options, BIN / "ebbctl", "run", "--mem", "64M", "--",
             "grep", "SigIgn", "/proc/self/status"],
            stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
        return int(told, 16) & (1 << 31) - 1

    assert ignored() == 0
    bits = {signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE}
    assert ignored(*(f"--ignore-signal={n.name[3:]}" for n in bits)) == \
        sum(1 << n - 1 for n in bits)
    assert nothing_of_run_left()


def test_run_as_the_invoking_user(ebbd, device):
    env = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody"}
    ask = ["sh", "-c", "id -u; id -g; id -G; echo $USER"]
    assert run(*ask, env=env).stdout.split() == ["65534", "65534", "65534", "nobody"]
    assert run(*ask, options=["--root"], env=env).stdout.split()[0] == "0"


def test_run_says_when_the_oom_killer_struck(swap_lock, ebbd, donor):
    """128 MiB of swap and 64 of memory do not hold 300."""
    ask = "x = bytearray(300 << 20)\nfor i in range(0, len(x), 4096): x[i] = i >> 12 & 255"
    device = parts.Device(donor, size="128M")
    try:
        done = run("/usr/bin/python3", "-c", ask)
    finally:
        device.destroy()
    assert done.returncode == 128 + signal.SIGKILL
    assert "OOM kills" in done.stderr
    assert nothing_of_run_left()


def test_run_ends_what_the_program_left(ebbd, device):
    done = run("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
    assert "ended 1 processes" in done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}/exe").exists()
    assert nothing_of_run_left()


def test_run_ends_what_is_below_its_cgroup(ebbd, device):
    """The program may make cgroups in its scope, and move processes there."""
    root, version = machine.memory_root()
    where = "0::" if version == 2 else ":memory:"
    done = run("sh", "-c", f"""c={root}$(sed -n 's/^.*{where}//p' /proc/self/cgroup)/below
                               mkdir $c; sleep 1000 >/dev/null 2>&1 &
                               echo $! >$c/cgroup.procs && echo $!""", options=["--root"])
    assert "ended 1 processes" in done.stderr, done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}/exe").exists()
    assert nothing_of_run_left()


def test_run_that_nobody_listens_to(ebbd, device):
    """As before `| head`: what it has to say is lost, what it made is taken away."""
    p = subprocess.Popen([BIN / "ebbctl", "run", "--mem", "64M", "--", "sh", "-c",
                          "read x; kill -PIPE $$"],
                         stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    p.stderr.close()
    p.stdin.close()
    # The program's SIGPIPE is what it was.
    assert p.wait(120) == 128 + signal.SIGPIPE
    assert nothing_of_run_left() and not ebbctl_json("status")["attachments"]


def test_run_keep(ebbd, device):
    done = run("true", options=["--keep", "--name", "kept"])
    assert done.returncode == 0
    root, _ = machine.memory_root()
    kept = [c for c in machine.ebb_cgroups() if "ebb-kept" in c.name]
    try:
        assert root / "ebb-kept" in kept or root / "system.slice/ebb-kept.scope" in kept
        assert run("true", options=["--name", "kept"]).returncode == REFUSED
    finally:
        ebbctl("policy", "detach", "ebb-kept", check=False)
        for c in kept:
            c.rmdir()


def test_run_start(swap_lock):
    """Starts all that is missing for the program, and stops it afterwards."""
    before = set(machine.leftovers())
    argv = parts.scan_argv(mib=128, pattern="seq", passes=2, write=True)
    done = ebbctl("run", "--mem", "64M", "--start", "--donor-memory", "512M", "--", *argv,
                  check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "coverage" in done.stderr
    assert not machine.left_since(before)


def test_run_start_while_another_run_uses_it(swap_lock):
    """The run that started the services leaves them to another, and names the command that ends them."""
    before = set(machine.leftovers())
    held = ["--", "sh", "-c", "echo up; read x; true"]

    def begin(*options):
        p = subprocess.Popen([BIN / "ebbctl", "run", "--mem", "64M", "--quiet", *options, *held], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert p.stdout.readline() == "up\n", p.communicate()
        return p

    first = begin("--start", "--donor-memory", "512M")
    other = begin()
    told = first.communicate(timeout=120)[1]
    command = re.search(r'run "(ebbctl device destroy ebb0 && kill \d+ \d+)"$', told, re.M)
    try:
        assert command, told
        assert [a["policy"] for a in ebbctl_json("status")["attachments"]] == ["auto"]
        assert [d["name"] for d in ebbctl_json("device", "list")["devices"]] == ["ebb0"]
        assert other.communicate(timeout=120)[1] == "" and other.returncode == 0
    finally:
        other.kill()
        if command:
            subprocess.run(["sh", "-c", command[1]], check=True, timeout=120,
                           env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
    assert not machine.left_since(before)

    first = begin("--start", "--donor-memory", "512M")
    other = begin()
    assert other.communicate(timeout=120)[1] == ""
    assert first.communicate(timeout=120)[1] == ""
    assert not machine.left_since(before)


def test_run_start_that_fails_leaves_nothing(swap_lock, away):
    before = set(machine.leftovers())
    done = ebbctl("run", "--mem", "64M", "--start", "--donor-memory", "512M", "--policy", "nosuch",
                  "--", "true", check=False, timeout=240)
    assert done.returncode == USAGE, done.stderr
    assert "nosuch" in done.stderr
    assert not machine.left_since(before)


@pytest.mark.long
def test_record(ebbd, device, cgroup, tmp_path):
    c = cgroup(48)
    ebbctl("policy", "attach", "none", c.path)
    scan = parts.Scan(c, mib=96, pattern="seq", write=True)
    try:
        file = tmp_path / "faults"
        recorder = subprocess.Popen([BIN / "ebbctl", "record", c.path, "-o", file, "--seconds", "60"],
                                    stdout=subprocess.PIPE, text=True)
        machine.wait_for(lambda: file.exists() and file.stat().st_size >= 512, 10, "the recording to begin")
        scan.go()
        scan.result()
        # ^C ends the recording in good order.
        recorder.send_signal(signal.SIGINT)
        out, _ = recorder.communicate(timeout=120)
        assert recorder.returncode == 0
        assert str(file) in out and file.stat().st_size > 1000
    finally:
        scan.kill()
