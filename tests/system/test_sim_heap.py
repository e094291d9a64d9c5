# SPDX-License-Identifier: GPL-2.0-or-later
"""
`ebb-sim heap`: recorded programs with Mako's collector, Semeru's and the far generation, and files
and options that it refuses.
"""
import json
import os
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

import machine
from parts import USAGE
from rows import few

pytestmark = pytest.mark.beside

MIB = 1 << 20
SCHEMES = ("mako", "semeru", "ebb")
PROGRAMS = {"kv": ("-n", 27200, "-r", 1), "pagerank": ("-n", 37600, "-r", 1)}


def record(program, file, **env):
    env = {**os.environ, "HEAP_TRACE": str(file), "HEAP_EVERY": str(MIB // 2), "HEAP_REFERENCES": "1",
           "EBBGC_OPTIONS": "mode=stop,markers=1", **env}
    binary = machine.BUILD / "tests" / "gc" / f"{program}-recorded"
    subprocess.run([binary, *map(str, PROGRAMS[program])], check=True, stdout=subprocess.PIPE, timeout=120,
                   env={k: v for k, v in env.items() if v is not None})
    return file


class Recorded(dict):
    """Records a program when a test first asks for it."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def __missing__(self, name):
        self[name] = record(name, self.directory / f"{name}.heap")
        return self[name]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    directory = tmp_path_factory.mktemp("heaps")
    return Recorded(directory)


def heap(*argv):
    return subprocess.run([machine.BIN / "ebb-sim", "heap", *map(str, argv)], text=True, capture_output=True,
                          timeout=300)


def simulated(*argv):
    done = heap(*argv, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["schemes"]) == set(SCHEMES)
    return told


def refused(*argv):
    """It failed as wrong usage with one line; returns that."""
    done = heap(*argv)
    assert done.returncode == USAGE and done.stdout == ""
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("program", few(PROGRAMS, "kv"))
def test_three_collectors(recorded, program):
    told = simulated(recorded[program], "--local", 40)
    mako, semeru, ebb = (told["schemes"][s] for s in SCHEMES)
    live = told["config"]["peak_bytes"]
    for s in (mako, semeru, ebb):
        assert s["lost"] == 0 and s["touches"] == mako["touches"] > 10000 and s["loads"] == mako["loads"] > 10000
        assert s["cycles"] > 3 and s["messages"] > 0 and s["control_bytes"] > s["messages"]
        assert s["local_most"] <= told["config"]["peak_bytes"] * 0.4 + MIB
        assert s["used_most"] > live * 0.9 and s["floating"] < live
        assert s["time_s"] > s["miss_s"] + (s["stop_ms"] + s["wait_ms"]) / 1e3
        assert s["stop_p90_ms"] <= s["stop_max_ms"] and s["traced"] > 0
    # Every load looks a place up, none does, only those do that find something far.
    assert mako["translations"] == mako["loads"] and semeru["translations"] == 0
    assert 0 < ebb["translations"] < ebb["tests"] <= ebb["loads"]
    # Polls come in pairs of rounds; only Mako has them, and tables that are paged.
    assert mako["polls"] % (4 * told["config"]["donors"]) < 4 * told["config"]["donors"] and mako["polls"] > 0
    assert mako["table_misses"] > 0 and semeru["polls"] == ebb["polls"] == ebb["waits"] == semeru["waits"] == 0
    # Semeru stops the world to evacuate.
    assert semeru["stop_max_ms"] > 5 * max(mako["stop_max_ms"], ebb["stop_max_ms"])
    assert ebb["fetches"] > 0 and ebb["full"] > 0 and ebb["overhead_bytes"] < mako["overhead_bytes"]


def test_utilisation_is_a_curve(recorded):
    for s in simulated(recorded["kv"])["schemes"].values():
        curve = s["utilisation"]
        windows, bounded = [p["window_s"] for p in curve], [p["bmu"] for p in curve]
        assert windows == sorted(windows) and len(windows) > 20
        assert windows[-1] == pytest.approx(s["time_s"], rel=1e-4)
        assert bounded == sorted(bounded) and all(0 <= p["bmu"] <= p["mmu"] <= 1 for p in curve)
        stopped = (s["stop_ms"] + s["wait_ms"]) / 1e3
        assert bounded[-1] == pytest.approx(1 - stopped / s["time_s"], rel=1e-3)
        # Within its longest pause a program does not run at all.
        longest = max(s["stop_max_ms"], s["wait_max_ms"]) / 1e3
        assert all(p["bmu"] < 1e-6 for p in curve if p["window_s"] <= longest)
        assert any(p["bmu"] > 0 for p in curve if p["window_s"] > longest)


def test_plain_view_and_picture(recorded, tmp_path):
    picture = tmp_path / "kv.svg"
    argv = (recorded["kv"], "-o", picture, "--donors", 3)
    plain, told = heap(*argv).stdout, simulated(*argv)
    assert told["picture"] == str(picture) and told["config"]["donors"] == 3
    for label, key in (("references loaded", "loads"), ("page faults from donors", "misses"),
                       ("messages", "messages"), ("stops of the world", "stops")):
        [line] = [line for line in plain.splitlines() if line.strip().startswith(label)]
        assert line.split()[-3:] == [str(told["schemes"][s][key]) for s in SCHEMES]
    assert "Modelled, not measured" in plain and "windows of 10 ms" in plain
    root = ElementTree.parse(picture).getroot()
    words = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Mako", "Semeru", "ebb", "window"} <= set(words)
    assert len([p for p in root.iter("{http://www.w3.org/2000/svg}path") if p.get("stroke-width") == "2"]) == 3


def test_it_is_deterministic(recorded):
    assert heap(recorded["kv"], "--json").stdout == heap(recorded["kv"], "--json").stdout


def test_options_have_effects(recorded):
    base = simulated(recorded["kv"])["schemes"]
    for option, value, key, schemes in (
            ("page", "1ms", "miss_s", ("mako", "semeru")), ("fetch", "1ms", "miss_s", ("ebb",)),
            ("stop", "10ms", "stop_max_ms", SCHEMES), ("translate", 900000, "translation_percent", ("mako", "ebb")),
            ("test", 900000, "translation_percent", ("ebb",)), ("touch", 900000, "time_s", SCHEMES)):
        told = simulated(recorded["kv"], f"--{option}", value)["schemes"]
        for s in schemes:
            assert told[s][key] > base[s][key], (option, s)
    assert simulated(recorded["kv"], "--test", 900000)["schemes"]["mako"] == base["mako"]
    assert simulated(recorded["kv"], "--ghosts", 1)["schemes"]["mako"]["rounds"] > base["mako"]["rounds"]
    slow = simulated(recorded["kv"], "--trip", "1ms", "--tracing", "16M", "--copying", "1M", "--bandwidth", "8M")
    assert slow["schemes"]["mako"]["stop_max_ms"] > base["mako"]["stop_max_ms"]
    assert slow["schemes"]["semeru"]["stop_max_ms"] > base["semeru"]["stop_max_ms"]
    # With all memory local there is nothing to wait for.
    local = simulated(recorded["kv"], "--local", 100, "--sparse", 1)["schemes"]["ebb"]
    assert local["fetches"] < base["ebb"]["fetches"] / 10


def test_recordings_with_references_replay_as_before(recorded, tmp_path):
    """bench-heap's replays ignore references."""
    replay = machine.BUILD / "tests" / "heap_replay"
    plain = record("kv", tmp_path / "plain.heap", HEAP_REFERENCES=None)
    assert plain.stat().st_size < recorded["kv"].stat().st_size
    told = [json.loads(subprocess.run([replay, "count", f], check=True, capture_output=True, text=True).stdout)
            for f in (plain, recorded["kv"])]
    for key in ("touches", "objects", "born_bytes", "peak_bytes", "pages"):
        assert told[0][key] == told[1][key]
    assert "record it with HEAP_REFERENCES=1" in refused(plain)


def test_damaged_files_are_refused(recorded, tmp_path):
    file = tmp_path / "some.heap"
    assert "cannot read: No such file or directory; give a recorded heap" in refused(file)
    assert "not a recorded heap; record one" in refused(tmp_path)
    for content in (b"", b"x" * 10000):
        file.write_bytes(content)
        assert "not a recorded heap; record one" in refused(file)
    whole = recorded["kv"].read_bytes()
    file.write_bytes(whole[:len(whole) // 2])
    assert "cut short; record it again" in refused(file)
    damaged = bytearray(whole)
    damaged[len(whole) // 2 & ~7:(len(whole) // 2 & ~7) + 64] = b"\xff" * 64
    file.write_bytes(damaged)
    assert "is damaged; record it again" in refused(file)


@pytest.mark.parametrize("argv, says", (
    (("--local", 1), "--local: 1 % of"), (("--local", 101), "--local"), (("--donors", 0), "--donors"),
    (("--donors", 17), "--donors"), (("--region", "100000"), "not a multiple of 64K; give 64K, 1M or 16M"),
    (("--region", "1G"), "--region"), (("--page", "soon"), "soon"), (("--full", 100), "--full"),
    (("--tracing", 0), "--tracing"), (("-o", "kv.txt"), "unknown format; give a name that ends in .svg or .png"),
    (("--nosuch",), "nosuch"),
))
def test_wrong_options(recorded, argv, says):
    assert says in refused(recorded["kv"], *argv)


def test_a_picture_that_cannot_be_written(recorded, tmp_path):
    done = heap(recorded["kv"], "-o", tmp_path / "none" / "kv.svg")
    assert done.returncode == 1 and "cannot write: No such file or directory; give a file in" in done.stderr
