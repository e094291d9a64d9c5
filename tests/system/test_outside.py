# SPDX-License-Identifier: GPL-2.0-or-later
"""
The runner of suites that others wrote: what it reports of stand-ins for suites, in stand-ins for
the worlds without and with ebb.  No suite runs here, and no swap is on but in the last test.
"""
import json
import shutil
import sys

import pytest

import machine
import parts

OUTSIDE = machine.REPO / "tests" / "outside"
sys.path.insert(0, str(OUTSIDE))
import check_outside as runner
import suites
import worlds
from suites import Suite

beside = pytest.mark.beside


class StandIn(worlds.World):
    """A world whose programs see its name in $WORLD, and whose swap is a number."""

    def __init__(self, name, directory, pages=5000, oom_kills=()):
        self.name, self.directory, self.pages, self.oom_kills = name, directory, pages, list(oom_kills)
        self.runs = self.entered = 0

    def __enter__(self):
        self.entered += 1
        return self

    def __exit__(self, *_):
        self.entered -= 1

    def around(self, suite, told):
        assert self.entered == 1
        self.runs += 1
        return ["env", f"WORLD={self.name}"]

    def traffic(self):
        return self.runs * self.pages, 0

    def summary(self, told):
        return {"stats": {"prefetched": 7} if self.name == "ebb" else None,
                "oom_kills": self.oom_kills.pop(0) if self.oom_kills else 0}


def suite(script, **what):
    return Suite("stand-in", ("sh", "-c", script), **{"verdict": r"^count .*$", "limit": 16, **what})


@pytest.fixture
def compared(tmp_path):
    """compared(suite, ebb={...}, disk={...}) returns the result and the two worlds."""
    def compare(of, ebb=None, disk=None):
        pair = StandIn("disk", tmp_path, **(disk or {})), StandIn("ebb", tmp_path, **(ebb or {}))
        return runner.compare(of, pair), *pair
    return compare


@beside
def test_same_verdict_passes_with_its_figures(compared):
    told, disk, ebb = compared(suite("echo count 5; echo in $WORLD"))
    assert told["outcome"] == "same" and not told["reason"]
    assert told["ebb"]["verdict"] == ["exit status 0", "count 5"] == told["disk"]["verdict"]
    assert told["ebb"]["swapped_in"] == 5000 and told["ebb"]["prefetched"] == 7
    assert told["disk"]["prefetched"] is None
    assert (disk.runs, ebb.runs) == (1, 1) and not disk.entered + ebb.entered


@beside
@pytest.mark.parametrize("script", [
    'if [ $WORLD = ebb ]; then echo count 6; else echo count 5; fi',
    'echo count 5; if [ $WORLD = ebb ]; then echo count 6; fi',
    'if [ $WORLD = disk ]; then echo count 6; fi; echo count 5'])
def test_another_verdict_with_ebb_is_reported(compared, script):
    told, disk, ebb = compared(suite(script))
    assert told["outcome"] == "FAILED"
    assert "without ebb: 'count " in told["reason"] or "with ebb: 'count " in told["reason"]
    assert "count 6" in told["reason"]
    # It ran again without ebb, but not with it: a rare error of ebb is not tried away.
    assert (disk.runs, ebb.runs) == (1 + runner.AGAIN, 1)


@beside
def test_another_exit_status_with_ebb_is_reported(compared):
    of = suite("echo count 5; test $WORLD = disk", passes=False)
    assert "exit status 1" in compared(of)[0]["reason"]
    assert compared(suite("echo count 5; exit 3", passes=False))[0]["outcome"] == "same"
    assert compared(suite("echo count 5; exit 3"))[0]["reason"] == "without ebb: exit status 3: count 5"


@beside
def test_verdict_that_varies_without_ebb_is_no_fault_of_ebb(compared, tmp_path):
    of = suite(f'if [ $WORLD = ebb ]; then echo count 2; else echo x >>{tmp_path}/n; '
               f'echo count $(wc -l <{tmp_path}/n); fi')
    told, disk, _ = compared(of)
    assert told["outcome"] == "same" and disk.runs == 2
    assert told["reason"] == "varies without ebb, too: without ebb: 'count 1'; with ebb: 'count 2'"


@beside
@pytest.mark.parametrize("pages, outcome", [(999, "FAILED"), (1000, "same")])
def test_run_without_swapping_proves_nothing(compared, pages, outcome):
    told, *_ = compared(suite("echo count 5"), ebb={"pages": pages})
    assert told["outcome"] == outcome
    assert ("proves nothing: 999 pages swapped in" in told["reason"]) == (outcome == "FAILED")


@beside
def test_suite_may_count_what_goes_out_or_servers(compared):
    told, *_ = compared(suite("echo count 5", counted="swapped_out"))
    assert told["reason"] == "proves nothing: 0 pages swapped out, at least 1000 expected"
    told, *_ = compared(suite("echo count 5", kills=2))
    assert told["reason"] == "proves nothing: 0 servers killed, at least 2 expected"


class Guest:
    """A stand-in for a guest, which leaves a result or none."""

    def __init__(self, tmp_path, results, ok=True, trouble=()):
        self.directory, self.ok, self.trouble, self.reason = tmp_path, ok, trouble, "" if ok else "BUG: it"
        if results is not None:
            (tmp_path / "results.json").write_text(json.dumps(results))

    def __call__(self, command, options, output):
        self.command, self.options = command, options
        return self


IN_GUEST = suite("true", guest=True)


@beside
@pytest.mark.parametrize("outcome, ok, trouble, reason", [
    ("same", True, (), ""), ("FAILED", False, (), "other lines"), ("FAILED", False, ("BUG",), "guest: BUG: it; "),
    ("same", False, ("BUG",), "guest: BUG: it; "), (None, False, (), "guest: BUG: it; ")])
def test_result_comes_from_the_guest(tmp_path, monkeypatch, outcome, ok, trouble, reason):
    results = outcome and [result(IN_GUEST, outcome, "other lines" if outcome == "FAILED" else "")]
    stand_in = Guest(tmp_path, results, ok, trouble)
    monkeypatch.setattr(runner.guest, "guest_run", stand_in)
    told = runner.run_suite(IN_GUEST)
    assert stand_in.options.environment == {"ONLY": "stand-in"}
    assert told["outcome"] == ("FAILED" if reason else "same")
    assert told["reason"].partition("see ")[0] == reason


@beside
def test_suite_is_skipped_without_an_emulator(monkeypatch):
    def no_guest(*_):
        raise runner.kernel.GuestError("qemu-system-x86_64: not found")
    monkeypatch.setattr(runner.guest, "guest_run", no_guest)
    with pytest.raises(runner.Skip, match="no emulator: qemu"):
        runner.run_suite(IN_GUEST)


@beside
def test_suite_that_says_nothing_fails(compared):
    told, _, ebb = compared(suite("echo done"))
    assert told["reason"] == "without ebb: no verdict: 0 lines of at least 1; exit status 0"
    assert not ebb.runs


@beside
def test_suite_that_does_not_end_fails(compared):
    told, *_ = compared(suite("echo count 5; test $WORLD = disk || exec sleep 60", seconds=5))
    assert told["reason"] == "with ebb: did not end: exit status none after 5 s"


@beside
def test_run_that_the_oom_killer_struck_is_repeated(compared):
    told, *_, ebb = compared(suite("echo count 5"), ebb={"oom_kills": [1, 2]})
    assert told["outcome"] == "same" and ebb.runs == 3
    told, *_ = compared(suite("echo count 5"), ebb={"oom_kills": [1] * 9})
    assert told["reason"] == "with ebb: the OOM killer struck 1 times with 16 MiB"


def result(of, outcome, reason=""):
    figures = dict(worlds.Run(["exit status 0", "x"], 1.5, 2000, 3000))
    return {"suite": of.name, "outcome": outcome, "reason": reason, "disk": figures,
            "ebb": {**figures, "prefetched": 11}}


def three(outcomes):
    return [Suite(name, ("true",), "x", 16) for name in outcomes], \
        lambda of: result(of, outcomes[of.name])


@beside
def test_resumes_with_what_has_not_passed(tmp_path, capsys):
    chosen, run = three({"a": "same", "b": "FAILED", "c": "same"})
    assert not runner.show(runner.run_all(chosen, run, tmp_path))
    again = []
    results = runner.run_all(chosen, lambda of: again.append(of.name) or result(of, "same"), tmp_path)
    assert again == ["b"] and [r["suite"] for r in results] == ["a", "b", "c"]
    assert runner.show(results)
    assert "a: passed before in this tree" in capsys.readouterr().out


@beside
def test_only_listed_reasons_skip(tmp_path, capsys):
    chosen, run = three({"a": "same", "b": "same"})

    def one(of):
        if of.name == "b":
            raise runner.Skip("packages", "no network")
        return run(of)

    assert runner.show(runner.run_all(chosen, one, tmp_path))
    out = capsys.readouterr().out
    assert out.splitlines()[-2] == f"skipped: b: {suites.SKIPS['packages']}: no network"
    assert not (tmp_path / "outside-b.json").exists()
    with pytest.raises(KeyError):
        runner.Skip("unlisted", "no network")


@beside
def test_nothing_but_skips_is_a_failure(tmp_path):
    assert not runner.show([runner.skipped(Suite("a", (), "x", 16), "no network")])


@beside
def test_errors_of_one_suite_leave_the_others(tmp_path):
    chosen, run = three({"a": "same", "b": "same"})

    def one(of):
        if of.name == "a":
            raise machine.MachineError("donor: no memory")
        return run(of)

    results = runner.run_all(chosen, one, tmp_path)
    assert [(r["outcome"], r["reason"]) for r in results] == [("FAILED", "donor: no memory"), ("same", "")]


@beside
def test_table_has_every_figure(capsys):
    of = Suite("a", (), "x", 16)
    runner.show([result(of, "same"), runner.skipped(of, "why")])
    head, row, none = [line.split() for line in capsys.readouterr().out.splitlines()[:3]]
    assert row == ["a", "same", "2", "1.5", "1.5", "2000", "2000", "11"]
    assert none == ["a", "skipped", *["-"] * 6]


SAMPLES = {
    "stressapptest": ("Stats: Completed: 8.00M in 4.0s 2.0MB/s, with 0 hardware incidents, 0 errors\n"
                      "Status: PASS - please verify no corrected errors\n",
                      ["0 hardware incidents, 0 errors", "Status: PASS"]),
    "stress-ng": ("stress-ng: metrc: [16] stressor       bogo ops real time  usr time  sys time   bogo ops/s\n"
                  "stress-ng: metrc: [16] qsort   1      0.26      0.19      0.06       230.99\n"
                  "stress-ng: metrc: [16] qsort           58173142.69 qsort comparisons per sec (mean)\n"
                  "stress-ng: fail:  [16] qsort: an element was out of order\n"
                  "stress-ng: info:  [16] unsuccessful run completed in 0.30s\n",
                  ["qsort   1", "fail:  [16] qsort: an element was out of order", "unsuccessful run"]),
    "python": ("test_a (test.test_x.T.test_a) ... ok\nRan 131 tests in 3.032s\n\nOK (skipped=4)\n"
               "FAIL: test_b (test.test_x.T.test_b)\n== Tests result: FAILURE ==\n",
               ["Ran 131 tests", "OK (skipped=4)", "FAIL: test_b (test.test_x.T.test_b)", "Tests result: FAILURE"]),
    "redis": ("keys before: 9\ndigest before: ab\n\"test\",\"rps\"\n\"SET\",\"7.5\",\"1\"\n",
              ["keys before: 9", "digest before: ab", "SET"]),
    "sysbench": ("    transactions:   300    (5.40 per sec.)\n    reconnects: 0\n"
                 "sbtest1\tcheck\tstatus\tOK\nsbtest1\t3394755546\n",
                 ["transactions:   300", "sbtest1\tcheck\tstatus\tOK", "sbtest1\t3394755546"]),
    "postgres": ("number of failed transactions: 0 (0.000%)\ntps = 168.3\nsum of history 4000 26011\n"
                 "amcheck finds nothing\nBlocks scanned:  12478\nBad checksums:  0\n",
                 ["number of failed transactions: 0 (0.000%)", "sum of history 4000 26011",
                  "amcheck finds nothing", "Bad checksums:  0"]),
    "kernel": ("objects 90: ab  -\n", ["objects 90: ab  -"]),
    "stockfish": ("info depth 7 nodes 2692\nNodes searched  : 259759\nNodes/second    : 868759\n", ["259759"]),
    "hpcc": ("WALL  1000  1000  80  80   1   1     0.00 PASSED    2.385  0.00\n"
             "    5 tests completed and passed residual checks.\nFound 3 errors in 2097152 locations (failed).\n"
             "Solution Validates: avg error less than 1.000000e-13\nSuccess=1\n",
             ["5 tests completed and passed residual checks", "Found 3 errors in 2097152 locations (failed).",
              "Solution Validates", "Success=1"]),
    "fio": ("verify: (groupid=0, jobs=1): err= 0: pid=1\n  issued rwts: total=16384,49152,0,0 short=0,0,0,0\n"
            "verify: bad header rand_seed 1, wanted 2\n",
            ["err= 0", "16384,49152,0,0", "verify: bad header rand_seed 1, wanted 2"]),
    **dict.fromkeys(("cow", "pagemap_ioctl", "madv_populate"), (
        "# [RUN] it\nok 1 test_a\n# ok 2 test_b # SKIP no\nnot ok 3 test_c\n# Totals: pass:1\n",
        ["ok 1 test_a", "ok 2 test_b # SKIP no", "not ok 3 test_c"])),
    "uffd-unit-tests": ("Testing UFFDIO_API (with syscall)... done\nTesting pagemap on anon... skipped [reason: x]\n"
                        "Userfaults unit tests: pass=1, skip=1, fail=0 (total=2)\n",
                        ["Testing UFFDIO_API (with syscall)... done", "Testing pagemap on anon... skipped [reason: x]",
                         "Userfaults unit tests: pass=1, skip=1, fail=0 (total=2)"]),
}


@beside
@pytest.mark.parametrize("name", [s.name for s in suites.SUITES])
def test_verdict_is_extracted(name):
    of, = suites.choose(name)
    text, said = SAMPLES[name]
    assert of.verdict_of(0, text) == ["exit status 0", *said]


@beside
def test_readme_lists_every_suite():
    rows = [line.split("|")[1].replace("(guest)", "").strip(" `") for line in (OUTSIDE / "README.md").read_text().splitlines()
            if line.startswith("| `")]
    assert [r for r in rows if not r.endswith((".py", "/"))] == [s.name for s in suites.SUITES]


@beside
def test_unknown_suite_is_refused(monkeypatch):
    with pytest.raises(SystemExit, match="ONLY=none: no such suite; there are stressapptest"):
        suites.choose("none")
    assert [s.name for s in suites.choose("redis")] == ["redis"]


@pytest.mark.long
@pytest.mark.parametrize("kind", [worlds.Disk, worlds.Ebb])
def test_worlds_swap_and_leave_nothing(swap_lock, kind, monkeypatch):
    """A program twice as large as its memory, in each world, with its real swap."""
    # Not below /tmp, which may be in memory: swap must not be.
    directory = machine.BUILD / "tests" / "outside"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for where, name in ((worlds, "WORK"), (kind, "directory")):
        monkeypatch.setattr(where, name, directory)
    of = Suite("scan", tuple(parts.scan_argv(mib=32, passes=3)), r'"bad":\s*\d+', 16)
    before = set(machine.swaps())
    with kind() as world:
        assert len(set(machine.swaps()) - before) == 1
        told = world.run(of)
    assert set(machine.swaps()) == before
    assert told.verdict[0] == "exit status 0" and told.verdict[1].endswith("0")
    assert told.swapped_in >= 8000 and not told.oom_kills
    assert (told.prefetched or 0) > 1000 if kind is worlds.Ebb else told.prefetched is None
    assert [p.name for p in directory.iterdir()] == ["log"]
