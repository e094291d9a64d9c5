# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests themselves promise: one that fails does not fail the next."""
import fcntl
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import examples
import machine
from dataplane import Server
from parts import Donor

sys.path.insert(0, str(machine.REPO / "tests"))
import check


def run_sample(tmp_path, sample, **env):
    return subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-v", "--basetemp", tmp_path / "t",
         machine.REPO / "tests/system/samples" / sample],
        env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_what_a_test_leaves_is_removed_and_told(tmp_path):
    # A shard of its own: what other tests have is not this one's to remove.
    done = run_sample(tmp_path, "leaving.py", **{machine.SHARD: str(tmp_path)})
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "left behind, and removed: mount: " in done.stdout and "process: sleep (" in done.stdout
    assert "ERROR at teardown of test_leaves" in done.stdout


def test_to_a_whole_run_all_of_ebb_belongs(tmp_path, monkeypatch):
    """Also what a test started with an environment of its own; else that may be another's."""
    monkeypatch.delenv(machine.SHARD, raising=False)
    done = run_sample(tmp_path, "held.py", **{machine.HELD: "1"})
    assert "ERROR at teardown of test_leaves" in done.stdout, done.stdout
    assert "left behind, and removed: process: ebbd (" in done.stdout, done.stdout
    done = run_sample(tmp_path, "held.py", **{machine.HELD: ""})
    assert "2 passed" in done.stdout and "error" not in done.stdout, done.stdout


def test_what_cannot_be_removed_is_told(monkeypatch):
    monkeypatch.setattr(machine, "ebb_swaps", list)
    monkeypatch.setattr(machine, "left_since", partial(machine.left_since, seconds=0))
    there = {"mount: /a": (3, lambda: None), "process: b (1)": (4, lambda: there.pop("process: b (1)"))}
    found = dict
    with pytest.raises(machine.MachineError, match=re.escape(
            "left behind, and removed: process: b (1); left behind, and still there: mount: /a")):
        with machine.nothing_left(lambda: found()):
            found = lambda: dict(there)


def test_a_mount_that_a_process_uses_is_removed_after_it(monkeypatch):
    monkeypatch.setattr(machine, "ebb_swaps", list)
    there = {}

    def unmount():
        if "process: b (1)" not in there:
            del there["mount: /a"]
    there.update({"mount: /a": (3, unmount), "process: b (1)": (4, lambda: there.pop("process: b (1)"))})
    machine.clean(found=lambda: dict(there))
    assert there == {}


def test_what_the_documents_examples_start_is_of_this_run(tmp_path):
    with examples.Examples(tmp_path / "x", "beside") as x:
        assert x.shell.pid in machine.test_processes()


def test_an_exception_in_a_thread_fails_its_test(tmp_path):
    sample = tmp_path / "test_threads.py"
    sample.write_text("import threading\n"
                      "def test():\n"
                      "    thread = threading.Thread(target=lambda: 1 / 0)\n"
                      "    thread.start()\n"
                      "    thread.join()\n")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-c", machine.REPO / "tests/pytest.ini", "--rootdir", tmp_path,
         sample], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout, done.stdout


def with_conftest(sample, text, *prefix):
    """Runs the file @sample with tests/conftest.py."""
    sample.write_text(text)
    return subprocess.run(
        [*prefix, sys.executable, "-B", "-m", "pytest", sample, "--rootdir", sample.parent, "-p", "conftest",
         "-p", "no:cacheprovider"],
        env={**os.environ, "PYTHONPATH": str(machine.REPO / "tests")},
        capture_output=True, text=True, check=False)


def test_children_inherit_no_ignored_signals(tmp_path):
    """As from `nohup make check &` in a script."""
    done = with_conftest(tmp_path / "test_signals.py",
                         "import subprocess\n"
                         "def test():\n"
                         "    said = subprocess.check_output(['grep', 'SigIgn', '/proc/self/status'])\n"
                         "    assert int(said.split()[1], 16) & 7 == 0\n",
                         "env", "--ignore-signal=INT,HUP,QUIT")
    assert done.returncode == 0, done.stdout


def test_a_fixture_ends_the_others_when_one_cannot_be_ended(tmp_path):
    done = with_conftest(tmp_path / "test_ends.py",
                         "import parts\n"
                         "ended = []\n"
                         "class Donor:\n"
                         "    def __init__(self, log):\n"
                         "        pass\n"
                         "    def stop(self):\n"
                         "        ended.append(self)\n"
                         "        raise OSError('it does not end')\n"
                         "parts.Donor = Donor\n"
                         "def test_two(donor_factory):\n"
                         "    donor_factory(), donor_factory()\n"
                         "def test_both_were_asked():\n"
                         "    assert len(ended) == 2\n")
    assert "2 passed, 1 error" in done.stdout and "it does not end" in done.stdout, done.stdout


def test_what_a_killed_run_leaves_is_told_from_what_is_used(tmp_path, logs):
    donor = Donor(logs / "donor.log", path=tmp_path / "ebb-donor.sock")
    server = Server(tmp_path, logs / "swapd.log", [donor])
    line = f"mount: {server.mount}"
    try:
        assert line in machine.leftovers()
        assert line not in machine.abandoned(), "it is served"
        server.kill()
        machine.wait_for(lambda: machine.dead_mount(server.mount), 10, "the mount to be dead")
        assert line not in machine.abandoned(), "ebb-donord runs"
        donor.stop()
        assert line in machine.abandoned()
        machine.clean({line})
        assert line not in machine.leftovers()
    finally:
        if server.alive():
            server.kill()
        donor.stop()
        machine.clean({line})


# One file for each clause that tests/layers.py enforces, with what it is to say.
WRONG = {
    "daemon/lib/base/up.c": ('#include "lib/wire/wire.h"', "include daemon/lib/base/up.c -> daemon/lib/wire/wire.h"),
    "daemon/swapd/other.c": ('#include "donord/loop.h"', "include daemon/swapd/other.c -> daemon/donord/loop.h"),
    "kmod-swap/lost.c": ('#include "nowhere.h"', "include kmod-swap/lost.c -> nowhere.h"),
    "userlib/gc/out.c": ('#include "lib/base/bytes.h"', "include userlib/gc/out.c -> daemon/lib/base/bytes.h"),
    "daemon/donord/a.c": ('#include "b.h"', "cycle daemon/donord/a"),
    "daemon/donord/b.c": ('#include "a.h"', "cycle daemon/donord/b"),
    "daemon/lib/rules/allocates.c": ("void *p = realloc(q, 1);", "word pure daemon/lib/rules/allocates.c"),
    "daemon/lib/rules/waits.c": ("#include <poll.h>", "word pure daemon/lib/rules/waits.c"),
    "daemon/swapd/page/all.h": ("struct swapd *s;", "word struct-swapd daemon/swapd/page/all.h"),
    "daemon/swapd/donor/bits.c": ("bits_set(b, 1);", "word bits daemon/swapd/donor/bits.c"),
    "daemon/swapd/donor/names.c": ("if (t == &transport_tcp)", "word transport-name daemon/swapd/donor/names.c"),
    "daemon/ebbd/attach/map.c": ('"prefetched"', "word prefetched-map daemon/ebbd/attach/map.c"),
    "daemon/ebbd/prefetch/locks.c": ("HOLD(&x->lock);", "word mutex daemon/ebbd/prefetch/locks.c"),
    "daemon/donord/pool/up.c": ("/* */ f(\"session/\");", "word session-in-pool daemon/donord/pool/up.c"),
    "daemon/donord/session/slab.c": ("s->state = LEND_LENT;", "word slab-state daemon/donord/session/slab.c"),
    "daemon/ebbctl/loads.c": ("dlopen(name);", "word dlopen daemon/ebbctl/loads.c"),
    "daemon/ebbctl/late.c": ("clock_gettime(CLOCK_MONOTONIC, &t);", "word clock daemon/ebbctl/late.c"),
    "daemon/ebbctl/page.c": ("#define PAGE 4096", "word page-size daemon/ebbctl/page.c"),
    "bpf/vmlinux.h": ("", "word generated bpf/vmlinux.h"),
}
RIGHT = {"daemon/lib/wire/wire.h": "", "daemon/lib/base/bytes.h": "", "daemon/donord/loop.h": "",
         "daemon/donord/a.h": '#include "lib/base/bytes.h"', "daemon/donord/b.h": ""}


def test_layers_are_enforced(tmp_path):
    files = {**{path: text for path, (text, _) in WRONG.items()}, **RIGHT}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/layers.py").write_text((machine.REPO / "tests/layers.py").read_text())
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    done = subprocess.run([sys.executable, "-B", tmp_path / "tests/layers.py"], capture_output=True,
                          text=True, check=False)
    said = {line.split(": new;")[0] for line in done.stdout.splitlines() if ": new;" in line}
    assert done.returncode == 1 and said == {f"layers: {fault}" for _, fault in WRONG.values()}, done.stderr


def check_py(*options, **env):
    return subprocess.run([sys.executable, "-B", machine.REPO / "tests/check.py", *options],
                          env={**os.environ, **env}, capture_output=True, text=True, check=False)


def test_an_interrupted_build_ends_with_its_children():
    with check.process(["sh", "-c", "sleep 1000 & echo $!; wait"], group=True,
                       stdout=subprocess.PIPE, text=True) as p:
        child = Path("/proc", p.stdout.readline().strip())
        assert child.exists()
    machine.wait_for(lambda: not child.exists(), 30, "the end of the child")


def test_options_of_check_run_nothing():
    done = check_py("--help")
    assert (done.returncode, done.stdout.split()[0]) == (0, "check.py"), done.stdout
    done = check_py("--al")
    assert (done.returncode, done.stdout) == (2, ""), done.stdout


def test_swap_in_a_directory_with_a_space_is_found(monkeypatch):
    """Else what a test turned on stays on: the path in the kernel's table is not the file's."""
    table = "Filename Type Size Used Priority\n/a\\040b\\134c file 1024 8 -2\n"
    monkeypatch.setattr(machine, "read", lambda path: table)
    assert machine.swaps() == {"/a b\\c": 8}


def test_a_second_run_is_refused_and_removes_nothing(monkeypatch, tmp_path):
    """Its start removes remains of dead runs, to which objects between two steps look alike."""
    monkeypatch.setattr(machine, "RUN_LOCK", str(tmp_path / "lock"))
    monkeypatch.delenv(machine.HELD, raising=False)
    second = "import machine, sys\n" \
             "machine.RUN_LOCK = sys.argv[1]\n" \
             "with machine.sole_run('second'):\n" \
             "    print('ran')\n"

    def run(**env):
        return subprocess.run(
            [sys.executable, "-B", "-c", second, machine.RUN_LOCK], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(machine.REPO / "tests/harness"), **env}, check=False)

    with machine.sole_run("first"):
        assert run().stdout == "ran\n", "a program of the run"
        done = run(**{machine.HELD: ""})
        assert f"first (pid {os.getpid()}) uses this machine" in done.stderr, done.stderr
        assert done.stdout == ""
    assert run().stdout == "ran\n"


def test_what_another_run_makes_is_not_removed(monkeypatch, tmp_path):
    """Else one test that a developer runs kills the programs of a whole run beside it."""
    monkeypatch.setattr(machine, "RUN_LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(machine, "processes", dict)
    monkeypatch.delenv(machine.HELD, raising=False)
    monkeypatch.delenv(machine.SHARD, raising=False)
    cgroup = machine.memory_root()[0] / f"ebb-test-{os.getpid()}"
    assert not machine.another_run()
    try:
        with open(machine.RUN_LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert machine.another_run()
            with machine.nothing_left():
                cgroup.mkdir()
            assert cgroup.exists()
    finally:
        cgroup.rmdir()
