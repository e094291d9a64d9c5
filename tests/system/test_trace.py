# SPDX-License-Identifier: GPL-2.0-or-later
"""
Traces from the program that faults to the simulator that agrees with the kernel.  The
fixtures were recorded from real programs, see tests/fixtures/README.md.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import xml.etree.ElementTree as ElementTree
import zlib

import pytest

import machine
import parts
import policies
from machine import BIN, MachineError, wait_for
from parts import USAGE
from rows import few

FIXTURES = sorted((machine.REPO / "tests" / "fixtures").glob("*.trace"))
POLICIES = sorted(p.name.removesuffix(".bpf.c")
                  for p in (machine.REPO / "policies").glob("*.bpf.c"))
FAULTS = ("misses", "hits", "late")


def sim(*argv, check=True):
    done = subprocess.run([BIN / "ebb-sim", *map(str, argv)], text=True, capture_output=True,
                          timeout=300)
    if check and done.returncode:
        raise MachineError(f"ebb-sim: {done.stderr}")
    return done


def sim_json(file, policy="none", **options):
    argv = [w for k, v in options.items() for w in (f"--{k}", v)]
    return json.loads(sim("trace", file, "--policy", policy, "--json", *argv).stdout)


def refused(done):
    """It failed as wrong usage with one line; returns that."""
    assert done.returncode == USAGE
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    return done.stderr


def within(value, expected, share):
    return abs(value - expected) <= max(expected * share, 1)


@pytest.fixture(params=FIXTURES, ids=lambda p: p.stem)
def fixture(request):
    return request.param


def test_there_are_fixtures():
    assert len(FIXTURES) >= 2
    assert all(f.stat().st_size < 200_000 for f in FIXTURES)


def test_simulator_agrees_with_the_kernel(fixture):
    told = parts.ebbctl_json("trace", "show", fixture)
    assert told["policy"] == "none" and told["misses"] > 400 and told["lost"] == 0
    assert within(sim_json(fixture)["misses"], told["misses"], 0.05)


@pytest.mark.parametrize("policy", few([*POLICIES, "leap,pw_max=8,ahead=0,speculate=1"], "auto", "replay"))
def test_simulator_is_deterministic(fixture, policy):
    first, second = (sim("trace", fixture, "--policy", policy, "--json").stdout for _ in "ab")
    assert first == second
    x = json.loads(first)
    assert x["prefetched"] == x["hits"] + x["late"] + x["wasted"] + x["outstanding"]


def test_more_memory_is_never_worse(fixture):
    had = parts.ebbctl_json("trace", "show", fixture)["memory"]
    misses = [sim_json(fixture, memory=had * k // 4)["misses"] for k in (4, 5, 6, 8)]
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] < misses[0]


def test_simulator_refuses_less_memory(fixture):
    had = parts.ebbctl_json("trace", "show", fixture)["memory"]
    said = refused(sim("trace", fixture, "--memory", had - 4096, check=False))
    assert "below the recorded" in said and "record with" in said
    assert "at least" in refused(sim("trace", fixture, "--memory", 0, check=False))


def test_slower_devices_cost_more(fixture):
    lost = [sim_json(fixture, "leap", latency=f"{us}us")["lost_ns"] for us in (5, 50, 500)]
    assert lost == sorted(lost) and lost[0] < lost[2]


def test_simulator_knows_every_policy():
    listed = [line.split()[0] for line in sim("policies").stdout.splitlines() if line[0] != " "]
    assert listed == POLICIES


def test_simulator_takes_a_policy_from_a_file(tmp_path):
    text = (machine.REPO / "policies" / "leap.bpf.c").read_text()
    built = policies.compile_policy(tmp_path, text, "leap", ("so",))
    assert sim_json(FIXTURES[0], built) == sim_json(FIXTURES[0], "leap")
    other = tmp_path / "other.so"
    other.write_bytes(built.read_bytes())
    assert "other_policy" in refused(sim("trace", FIXTURES[0], "-p", other, check=False))
    other.write_text("")
    assert "cannot load" in refused(sim("trace", FIXTURES[0], "-p", other, check=False))


@pytest.mark.parametrize("argv, says", [
    (["--policy", "nosuch"], "nosuch"), (["--policy", "leap,nosuch=1"], "nosuch"),
    (["--policy", "leap,pw_max=0"], "1 to"), (["--policy", "leap,pw_max=x"], "whole number"),
    (["--memory", "12Q"], "12Q"), (["--latency", "soon"], "soon"), (["--nosuch"], "nosuch"),
])
def test_simulator_refuses_nonsense(argv, says):
    assert says in refused(sim("trace", FIXTURES[0], *argv, check=False))


@pytest.mark.parametrize("argv, says", [
    (("--mixes", 1, "--slab", "2M"), "slab: has no effect on mixes; leave out --slab"),
    (("--churn", 1, "--still"), "still: has no effect on mixes; leave out --still"),
    (("--run", "4K"), "run: has no effect on machines without --mixes"),
    (("--order", "columns"), "order: has no effect on machines without --mixes"),
    (("--mixes", 1, "--device", "1G"), "--device: '1G' is out of range; give 80G to"),
])
def test_options_of_another_simulation(argv, says):
    done = sim("cluster", *argv, check=False)
    assert done.returncode == USAGE and says in done.stderr


def test_extents_as_json():
    argv = ("extents", "--clients", 64, "--sections", 8, "--seeds", 3, "--rounds", 2)
    table = sim(*argv).stdout
    schemes = json.loads(sim(*argv, "--json").stdout)["schemes"]
    for name, scheme in schemes.items():
        [line] = [line for line in table.splitlines() if line.startswith(f"{name} ")]
        of = scheme["allocate"]
        for number in (of["swaps"], of["last_swaps"], of["trips"]):
            assert f" {number:.3f} " in line
        for key in ("swaps", "trips"):
            assert f" {of[key + '_low']:.2f}-{of[key + '_high']:.2f} " in line
        assert f"{name} {scheme['used']:.1f} %" in table
    done = sim("extents", "--sections", 1, check=False)
    assert done.returncode == USAGE and "give a larger --sections or --fill" in done.stderr


@pytest.mark.parametrize("run", ["show", "plot", "sim"])
def test_files_that_are_no_whole_trace(run, tmp_path):
    picture = tmp_path / "out.svg"
    file = tmp_path / "bad.trace"
    whole = FIXTURES[0].read_bytes()

    def told(content):
        file.write_bytes(content)
        if run == "sim":
            return refused(sim("trace", file, check=False))
        more = ["-o", picture] if run == "plot" else []
        return refused(parts.ebbctl("trace", run, file, *more, check=False))

    assert "not a trace" in told(b"time_ns,duration_ns,vpn\n1,2,3\n")
    assert "empty file" in told(b"")
    assert "truncated" in told(whole[:-1])
    assert "truncated" in told(whole[:100])
    assert "damaged" in told(whole[:-9] + b"\x55" + whole[-8:])
    assert "version" in told(whole[:8] + b"\x09" + whole[9:])
    assert not picture.exists()


def test_what_is_whole_of_a_truncated_trace(tmp_path):
    file = tmp_path / "cut.trace"
    whole = FIXTURES[0].read_bytes()
    # Behind the first block, whose size is in its head.
    cut = 512 + 16 + int.from_bytes(whole[516:520], "little")
    file.write_bytes(whole[:cut])
    assert parts.ebbctl_json("trace", "show", file, "--partial")["records"] >= 0
    assert "truncated" in refused(parts.ebbctl("trace", "show", file, check=False))


def test_names_do_not_steer_the_terminal(tmp_path):
    """Of the program, in a file of somebody else's."""
    trace = bytearray(FIXTURES[0].read_bytes())
    trace[448:464] = b"\x1b[2J\nx".ljust(16, b"\0")
    trace[508:512] = struct.pack("<I", zlib.crc32(bytes(trace[384:508])))
    (tmp_path / "named.trace").write_bytes(trace)
    said = parts.ebbctl("trace", "show", tmp_path / "named.trace").stdout
    assert said.startswith("?[2J x in ") and "\x1b" not in said


def test_the_simulator_is_not_found_by_path(tmp_path):
    """Root's PATH may lead through directories of others: ebb-sim is the one beside ebbctl."""
    beside, others, ran = tmp_path / "sbin", tmp_path / "others", tmp_path / "ran"
    for directory in beside, others:
        directory.mkdir()
    shutil.copy(BIN / "ebbctl", beside)
    (others / "ebb-sim").write_text(f"#!/bin/sh\ntouch {ran}\n")
    (others / "ebb-sim").chmod(0o755)

    def shown():
        return subprocess.run([beside / "ebbctl", "trace", "show", FIXTURES[0]], cwd=others, text=True,
                              env={"PATH": f"{others}:."}, capture_output=True)
    done = shown()
    assert done.returncode == 1 and "ebb-sim: not found; install it beside ebbctl" in done.stderr
    shutil.copy(BIN / "ebb-sim", beside)
    done = shown()
    assert done.returncode == 0 and "misses" in done.stdout
    assert not ran.exists()


def test_csv_has_every_record(fixture):
    told = parts.ebbctl_json("trace", "show", fixture)
    lines = parts.ebbctl("trace", "show", fixture, "--csv").stdout.splitlines()
    head, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    assert head[:6] == ["time_ns", "duration_ns", "vpn", "tgid", "tid", "kind"]
    assert len(rows) == told["records"]
    assert sum(r[5] == "miss" for r in rows) == told["misses"]
    assert len({(r[3], r[2]) for r in rows}) == told["pages"]


@pytest.mark.parametrize("by", few(["kind", "thread"], "kind"))
def test_plot(fixture, tmp_path, by):
    svg, png = tmp_path / "out.svg", tmp_path / "out.png"
    parts.ebbctl("trace", "plot", fixture, "-o", svg, "--by", by)
    root = ElementTree.parse(svg).getroot()
    paths = [p for p in root.iter("{http://www.w3.org/2000/svg}path")]
    assert len(paths) >= 2 and any(len(p.get("d")) > 1000 for p in paths)
    assert svg.stat().st_size < 1 << 20
    parts.ebbctl("trace", "plot", fixture, "-o", png, "--by", by)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.png", "out.svg"]


@pytest.mark.parametrize("by", ["kind", "thread"])
def test_plot_of_names_cut_within_a_character(tmp_path, by):
    """The kernel cuts a program's name after 15 bytes, the title cuts a file's after 80."""
    trace = bytearray(FIXTURES[0].read_bytes())
    trace[448:464] = "потокпот".encode()[:15] + b"\0"
    trace[508:512] = struct.pack("<I", zlib.crc32(bytes(trace[384:508])))
    file, svg = tmp_path / f"x{60 * 'п'}.trace", tmp_path / "out.svg"
    file.write_bytes(trace)
    parts.ebbctl("trace", "plot", file, "-o", svg, "--by", by)
    text = svg.read_bytes().decode()
    assert "потокпо? with " in text and f">x{39 * 'п'}?: " in text
    ElementTree.fromstring(text)


def test_plot_refuses(tmp_path):
    assert ".svg" in refused(parts.ebbctl("trace", "plot", FIXTURES[0], check=False))
    assert ".png" in refused(parts.ebbctl("trace", "plot", FIXTURES[0], "-o", tmp_path / "x.gif",
                                          check=False))
    done = parts.ebbctl("trace", "plot", FIXTURES[0], "-o", tmp_path / "no" / "x.svg", check=False)
    assert done.returncode == 1 and "directory" in done.stderr


class Recorder:
    """`ebbctl record`, ended by ^C or by itself."""

    def __init__(self, cgroup, file, *options):
        self.process = subprocess.Popen(
            [BIN / "ebbctl", "record", "--json", cgroup.path, "-o", file, *options], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: file.exists() and file.stat().st_size >= 512 or
                 self.process.poll() is not None, 10, "the recording to begin")

    def end(self):
        self.process.send_signal(signal.SIGINT)
        return self.outcome()

    def outcome(self, timeout=120):
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, json.loads(out), err


@pytest.mark.parametrize("pattern", ["seq", pytest.param("random", marks=pytest.mark.long)])
def test_record_show_and_simulate(ebbd, device, cgroup, tmp_path, pattern):
    """The same numbers by ebb's counters, in the trace, and from the simulator."""
    c, file = cgroup(limit_mib=32), tmp_path / "scan.trace"
    file.touch(0o644)
    parts.ebbctl("policy", "attach", "none", c.path)
    scan = parts.Scan(c, options=["--no-thp"], mib=48, passes=2, pattern=pattern)
    try:
        recorder = Recorder(c, file)
        before = parts.stats(c)
        scan.go()
        assert scan.result()["bad"] == 0
        counted = parts.stats(c)["misses"] - before["misses"]
        status, answer, _ = recorder.end()
    finally:
        scan.kill()
    assert status == 0 and answer["lost"] == 0 and counted > 500
    assert file.stat().st_mode & 0o777 == 0o600
    told = parts.ebbctl_json("trace", "show", file)
    assert within(told["misses"], counted, 0.01)
    assert told["memory"] == 32 << 20 and told["cgroup"] == c.rel and told["policy"] == "none"
    assert told["threads"][0]["comm"] == "scan" and told["threads"][0]["tid"] == scan.pid
    assert within(sim_json(file)["misses"], counted, 0.05)
    leap = sim_json(file, "leap", latency="80us")
    assert leap["coverage"] >= 0.9 if pattern == "seq" else leap["prefetched"] <= counted / 50


def test_run_records(ebbd, device, tmp_path):
    file, summary = tmp_path / "run.trace", tmp_path / "run.json"
    parts.ebbctl("run", "--mem", "24M", "--policy", "leap", "--record", file, "--json", summary,
                 "--", *parts.scan_argv(mib=40, passes=2))
    stats = json.loads(summary.read_text())["stats"]
    told = parts.ebbctl_json("trace", "show", file)
    assert all(within(told[k], stats[k], 0.01) for k in FAULTS)
    assert told["hits"] > 1000 and told["finished"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_owner_of_an_old_file_cannot_read_the_trace(ebbd, device, cgroup, tmp_path):
    """Nor a program that has it open: the trace is a new file, of root."""
    c, file = cgroup(limit_mib=32), tmp_path / "x.trace"
    file.write_text("old")
    os.chown(file, 65534, 65534)
    parts.ebbctl("policy", "attach", "none", c.path)
    with file.open() as old:
        parts.ebbctl("record", c.path, "-o", file, "--seconds", "0.2")
        assert old.read() == "old"
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (0, 0o600)
    assert parts.ebbctl_json("trace", "show", file)["finished"]


def test_recording_outlives_a_change_of_policy(ebbd, device, cgroup, tmp_path):
    c, file = cgroup(limit_mib=32), tmp_path / "scan.trace"
    parts.ebbctl("policy", "attach", "none", c.path)
    scan = parts.Scan(c, options=["--no-thp"], mib=48, passes=4, pattern="seq")
    try:
        recorder = Recorder(c, file)
        parts.ebbctl("policy", "attach", "leap", c.path)
        parts.ebbctl("policy", "set", c.path, "pw_max=64")
        before = parts.stats(c)
        scan.go()
        scan.result()
        after = parts.stats(c)
        assert recorder.end()[0] == 0
    finally:
        scan.kill()
    told = parts.ebbctl_json("trace", "show", file)
    assert told["hits"] > 1000
    assert all(within(told[k], after[k] - before[k], 0.01) for k in FAULTS)


@pytest.mark.long
def test_full_disk_ends_the_recording_only(ebbd, device, cgroup, tmp_path):
    c = cgroup(limit_mib=32)
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", small], check=True)
    try:
        parts.ebbctl("policy", "attach", "none", c.path)
        scan = parts.Scan(c, options=["--no-thp"], mib=48, passes=2, pattern="stride:7")
        try:
            recorder = Recorder(c, small / "x.trace", "--seconds", "100")
            scan.go()
            assert scan.result()["bad"] == 0
            status, answer, said = recorder.outcome()
        finally:
            scan.kill()
        assert status == 1
        assert "No space left" in said and "x.trace" in said and answer["exit"] == 1
        assert ebbd.alive()
        told = parts.ebbctl_json("trace", "show", small / "x.trace")
        assert told["records"] > 1000 and "No space left" in told["stopped"]
        # Nothing of it is left: the next recording begins as the first did.
        status, answer, _ = Recorder(c, tmp_path / "next.trace").end()
        assert status == 0
    finally:
        subprocess.run(["umount", small], check=True)


def test_record_ends_with_its_cgroup(ebbd, device, cgroup, tmp_path):
    c, file = cgroup(limit_mib=32), tmp_path / "x.trace"
    parts.ebbctl("policy", "attach", "none", c.path)
    recorder = Recorder(c, file)
    parts.ebbctl("policy", "detach", c.path)
    status, answer, _ = recorder.outcome()
    assert status == 0 and answer["records"] == 0
    # The recorder was told by a request that changes nothing.
    wait_for(lambda: "record.start" in machine.read(ebbd.log), 5, "log line")
    assert "record.check" not in machine.read(ebbd.log)
    assert parts.ebbctl_json("trace", "show", file)["finished"]


@pytest.mark.long
def test_record_ends_with_who_began_it(ebbd, device, cgroup, tmp_path):
    """A recorder that is killed leaves no recording that goes on until the disk is full."""
    c, file = cgroup(limit_mib=32), tmp_path / "x.trace"
    parts.ebbctl("policy", "attach", "none", c.path)
    recorder = Recorder(c, file)
    recorder.process.kill()
    recorder.process.wait()
    assert parts.ebbctl("record", c.path, "-o", tmp_path / "y", "--seconds", "1",
                        check=False).returncode == 5
    wait_for(lambda: parts.ebbctl("trace", "show", file, check=False).returncode == 0, 20,
             "the recording to end")
    parts.ebbctl("record", c.path, "-o", tmp_path / "y", "--seconds", "0.2")


def test_record_refuses(ebbd, device, cgroup, tmp_path):
    c, file = cgroup(limit_mib=32), tmp_path / "x.trace"
    done = parts.ebbctl("record", c.path, "-o", file, "--seconds", "1", check=False)
    assert done.returncode and "no policy" in done.stderr and not file.exists()
    parts.ebbctl("policy", "attach", "none", c.path)
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "fifo")
    for special in "/dev/null", tmp_path / "link", tmp_path / "fifo":
        done = parts.ebbctl("record", c.path, "-o", special, "--seconds", "1", check=False)
        assert done.returncode and "regular file" in done.stderr, special
    assert not file.exists()
    recorder = Recorder(c, file)
    try:
        done = parts.ebbctl("record", c.path, "-o", tmp_path / "y", "--seconds", "1", check=False)
        assert done.returncode == 5 and "already" in done.stderr
        assert not (tmp_path / "y").exists()
        other = cgroup()
        parts.ebbctl("policy", "attach", "none", other.path)
        done = parts.ebbctl("record", other.path, "-o", file, "--seconds", "1", check=False)
        assert done.returncode == 5 and "another recording" in done.stderr
    finally:
        status, answer, _ = recorder.end()
    assert status == 0 and answer["records"] == 0
    assert parts.ebbctl_json("trace", "show", file)["finished"]
    for long in ("/" + 5000 * "x", 4090 * "x"):
        done = parts.ebbctl("record", c.path, "-o", long, "--seconds", "1", check=False)
        assert done.returncode == USAGE and "too long" in done.stderr
