# SPDX-License-Identifier: GPL-2.0-or-later
"""
`ebbctl advise`: its advice for recordings, and whether third-party programs
then behave as advised, at sizes that were not recorded.  `make bench-advise` is the long version.
"""
import json
import signal
import subprocess
import sys

import pytest

import machine
import parts
from parts import REFUSED, USAGE

sys.path.insert(0, str(machine.REPO / "tests" / "bench"))
import measure

FIXTURES = sorted((machine.REPO / "tests" / "fixtures").glob("*.trace"))
POLICIES = sorted(p.name.removesuffix(".bpf.c")
                  for p in (machine.REPO / "policies").glob("*.bpf.c"))
TRUE = "/bin/true"

PYTHON = ["/usr/bin/python3", str(machine.REPO / "tests" / "demo" / "programs" / "join.py"),
          "150000", "30000"]
# Keys in no order, so that B-trees are descended anywhere.
SQLITE = ["/bin/sh", "-c", """exec sqlite3 -batch :memory: "
CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b INTEGER);
WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < 600000)
INSERT INTO t SELECT n, hex(n * 2654435761 % 4294967296) || '-' || n || '-customer-of-the-year', n % 977 FROM c;
WITH RECURSIVE p(n, id) AS (SELECT 0, 12345 UNION ALL
SELECT n + 1, (id * 16807) % 2147483647 FROM p WHERE n < 20000)
SELECT count(*), sum(b) FROM p JOIN t ON t.id = p.id % 600000;" """]
JQ = ["/bin/sh", "-c", "seq 60000 | jq -s -c 'map({a: ., b: tostring}) | "
      "(map(.a) | add), (map(.b | length) | add)'"]
# Its pages stay clean: what the kernel reclaims does not depend on how fast it writes.
SCAN = [str(machine.BUILD / "tests" / "scan"), "--mib", "64", "--pattern", "random", "--passes", "3"]
PROGRAMS = {"scan": SCAN, "python3": PYTHON, "sqlite3": SQLITE, "jq": JQ}


def advise(*argv, **kwargs):
    return parts.ebbctl_json("advise", *argv, **kwargs)


def refused(*argv, says, status=USAGE):
    done = parts.ebbctl("advise", *argv, check=False)
    assert done.returncode == status and says in done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


@pytest.fixture(params=FIXTURES, ids=lambda p: p.stem)
def fixture(request):
    return request.param


@pytest.mark.beside
def test_advice_from_a_recording(fixture):
    told = parts.ebbctl_json("trace", "show", fixture)
    answer = advise("--trace", fixture, "--sizes", "110,100,90,1")
    assert answer["recorded"]["misses"] == told["misses"]
    assert answer["recorded"]["memory"] == told["memory"] < answer["needed"]
    assert answer["unknown"][-1] == 1
    sizes = answer["sizes"]
    assert [s["percent"] for s in sizes] + answer["unknown"] == [110, 100, 90, 1]
    for size in sizes:
        assert [p["policy"] for p in size["policies"]] == POLICIES
        assert size["best"] in POLICIES
        for p in size["policies"]:
            assert p["misses_low"] <= p["misses"] <= p["misses_high"]
            assert 1 <= p["slowdown_low"] <= p["slowdown"] <= p["slowdown_high"]
    misses = [next(p["misses"] for p in s["policies"] if p["policy"] == "none") for s in sizes]
    assert misses == sorted(misses)
    assert advise("--trace", fixture, "--sizes", "110,100,90,1") == answer


@pytest.mark.beside
def test_recorded_size_is_as_recorded(fixture):
    """At the size that was recorded, misses are those of the kernel."""
    told = parts.ebbctl_json("trace", "show", fixture)
    needed = advise("--trace", fixture, "--sizes", "100")["needed"]
    percent = -(-told["memory"] * 100 // needed)
    size = advise("--trace", fixture, "--sizes", percent)["sizes"][0]
    assert told["memory"] <= size["memory"] <= told["memory"] * 1.05
    none = next(p for p in size["policies"] if p["policy"] == "none")
    assert told["misses"] * 0.5 <= none["misses"] <= told["misses"] * 1.05


@pytest.mark.beside
def test_table(fixture):
    said = parts.ebbctl("advise", "--trace", fixture, "--sizes", "120,1").stdout
    lines = said.splitlines()
    assert fixture.name in lines[0] and "needs" in lines[0] and "misses" in lines[0]
    assert sum(" * " in line for line in lines) == 1
    assert "1 %: below the recorded size" in lines[-1]


@pytest.mark.beside
def test_advise_refuses(tmp_path):
    refused(says="-- PROGRAM")
    refused("--cgroup", "x", "--", TRUE, says="one of")
    refused("--trace", FIXTURES[0], "--", TRUE, says="one of")
    refused("--full", "64M", "--", TRUE, says="require --cgroup")
    refused("--trace", FIXTURES[0], "--start", says="--start")
    refused("--sizes", "100,x", "--", TRUE, says="100,75,50,25")
    refused("--sizes", "0", "--", TRUE, says="100,75,50,25")
    refused("--sizes", "1,2,3,4,5,6,7,8,9", "--", TRUE, says="at most 8")
    refused("--sizes", "75,50", "--floor", "60", "--", TRUE, says="above the smallest")
    refused("--trace", tmp_path / "none", says="cannot read")
    (tmp_path / "cut").write_bytes(FIXTURES[0].read_bytes()[:2000])
    refused("--trace", tmp_path / "cut", says="truncated")


def test_advise_refuses_programs(ebbd, device):
    """Those that say nothing, and those that fail; no recording is left of them."""
    recordings = lambda: set(machine.Path("/var/lib/ebb").glob("advise-*"))
    before = recordings()
    refused("--", TRUE, says="needs at least", status=REFUSED)
    refused("--", "/bin/false", says="status 1", status=1)
    refused("--", "/no/such/program", says="/no/such/program: cannot run", status=127)
    assert recordings() <= before


def measured(argv, memory, told):
    parts.ebbctl("run", "--quiet", "--mem", memory, "--policy", "none", "--json", told, "--", *argv,
                 timeout=240)
    return json.loads(told.read_text())["stats"]["misses"]


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_predicted_misses(ebbd, device, tmp_path, name):
    """
    Recorded once at 45 % of the memory it needs, run at 55 and 70 %.  Where a program nearly
    fits, misses fall by a fifth for each per cent of memory, and runs differ: the measured
    count may be that of a size 4 % away.  Programs that write miss less on a busy machine,
    where dirty pages leave later.
    """
    argv, trace = PROGRAMS[name], tmp_path / "kept.trace"
    with measure.page_cluster(0):
        answer = advise("--sizes", "74,70,66,59,55,51", "--floor", "45", "-o", trace, "--", *argv,
                        timeout=240)
        misses = {s["percent"]: measured(argv, s["memory"], tmp_path / "run.json")
                  for s in answer["sizes"] if s["percent"] in (70, 55)}
    assert answer["recorded"]["lost"] == 0 and answer["recorded"]["misses"] > 1000
    assert answer["recorded"]["seconds"] > answer["seconds"] > 0
    assert parts.ebbctl_json("trace", "show", trace)["misses"] == answer["recorded"]["misses"]
    predicted = {s["percent"]: next(p["misses"] for p in s["policies"] if p["policy"] == "none")
                 for s in answer["sizes"]}
    print(json.dumps({"predicted": predicted, "measured": misses}))
    for percent, count in misses.items():
        assert (predicted[percent + 4] <= count <= predicted[percent - 4]
                or abs(predicted[percent] - count) <= 0.2 * count)


@pytest.mark.long
def test_full_recording_shows_more(ebbd, device, cgroup, tmp_path):
    """With less memory meanwhile, touches of what was resident are there; afterwards it is as before."""
    c, full = cgroup(limit_mib=96), tmp_path / "full.trace"
    name = "memory.limit_in_bytes" if c.version == 1 else "memory.high"
    before = machine.read(c.path / name)
    parts.ebbctl("policy", "attach", "none", c.path)
    scan = parts.Scan(c, options=["--no-thp"], mib=48, passes=2, pattern="seq")
    try:
        done = parts.ebbctl("record", c.path, "-o", full, "--full", "128M", check=False)
        assert done.returncode == REFUSED and "uses only" in done.stderr and not full.exists()
        process = subprocess.Popen([machine.BIN / "ebbctl", "record", c.path, "-o", full, "--full",
                                    "32M"], stdout=subprocess.DEVNULL)
        machine.wait_for(full.exists, 30, "the recording to begin")
        scan.go()
        assert scan.result()["bad"] == 0
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert machine.read(c.path / name) == before
    finally:
        scan.kill()
    told = parts.ebbctl_json("trace", "show", full)
    assert told["misses"] > 1000 and told["memory"] == 32 << 20 and told["samples"] >= 2
    # 16 MiB of it found no room; what was out when it began is missed with any memory.
    answer = advise("--trace", full, "--sizes", "110,100")
    assert 46 << 20 < answer["needed"] < 56 << 20 and not answer["unknown"]
    none = [next(p for p in s["policies"] if p["policy"] == "none") for s in answer["sizes"]]
    assert none[0]["misses"] < told["misses"] / 2


@pytest.mark.long
def test_full_recording_ends_with_who_began_it(ebbd, device, cgroup, tmp_path):
    """Killed, it leaves no limit behind."""
    c = cgroup(limit_mib=96)
    name = "memory.limit_in_bytes" if c.version == 1 else "memory.high"
    before = machine.read(c.path / name)
    parts.ebbctl("policy", "attach", "none", c.path)
    process = subprocess.Popen([machine.BIN / "ebbctl", "record", c.path, "-o", tmp_path / "x.trace",
                                "--full", "32M"])
    try:
        machine.wait_for(lambda: machine.read(c.path / name) != before, 10, "the lower limit")
    finally:
        process.kill()
        process.wait()
    machine.wait_for(lambda: machine.read(c.path / name) == before, 10, "the limit as it was")
    machine.wait_for(lambda: parts.ebbctl("trace", "show", tmp_path / "x.trace",
                                          check=False).returncode == 0, 30, "the recording to end")
