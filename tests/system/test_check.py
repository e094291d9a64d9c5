# SPDX-License-Identifier: GPL-2.0-or-later
"""What `make check` does beside running tests."""
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

import machine
import skips

sys.path.insert(0, str(machine.REPO / "tests"))
import check
from check import boots

pytestmark = pytest.mark.beside

CHECK = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import check
check.REPORTS = Path(sys.argv[2])
check.PYTEST = ["/bin/sh", "-c", "trap 'sleep 1; echo ended; exit' TERM; echo begun; while :; do sleep 0.1; done"]
wait = check.subprocess.Popen.wait
def told_wait(*args):
    check.subprocess.Popen.wait = wait
    sys.stdout.write("begun\\n")
    sys.stdout.flush()
    return wait(*args)
check.subprocess.Popen.wait = told_wait
check.exit_on_sigterm()
check.run_pytest("system", "-m", "not long")
"""


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_ends_the_tests_and_waits_for_their_cleanup(tmp_path, signals):
    done = subprocess.Popen([sys.executable, "-B", "-c", CHECK, str(machine.REPO / "tests"), str(tmp_path)],
                            stdout=subprocess.PIPE, text=True)
    try:
        # Both the program and the wait for it.
        for _ in range(2):
            assert done.stdout.readline() == "begun\n"
        for _ in range(signals):
            done.send_signal(signal.SIGTERM)
        assert done.stdout.read() == "ended\n"
        assert done.wait(30) == 128 + signal.SIGTERM
    finally:
        done.kill()


SKIPS = [("guest test_a.py::*[[]6.1]", "no driver", "6.12 has it"), ("guest test_a.py::test_b*", "no clone", "shallow")]


def test_a_skip_for_another_reason_is_not_allowed():
    assert skips.why_allowed(SKIPS, "guest test_a.py::test_c[6.1]", "there is no driver here") == "6.12 has it"
    assert skips.why_allowed(SKIPS, "guest test_a.py::test_b[6.1]", "no clone") == "shallow"
    assert skips.why_allowed(SKIPS, "guest test_a.py::test_c[6.1]", "no memory") is None
    assert skips.why_allowed(SKIPS, "guest test_a.py::test_c[6.12]", "no driver") is None


def test_the_list_of_allowed_skips():
    assert skips.read(skips.FILE.read_text())
    for line in ("guest : why", "guest :  : why", "guest : text : "):
        with pytest.raises(machine.MachineError, match="allowed-skips:2: a part is missing"):
            skips.read(f"# comment\n{line}\n")


@pytest.mark.parametrize("cases, status", [
    ([("a", ""), ("b", "no driver")], 0),   # boots.py names skips, and check.py judges them
    ([("b", "no driver")], 0),
    ([("b", "no memory")], 1),
    ([], 1),
])
def test_a_guest_whose_tests_are_all_skipped_has_passed_only_if_each_may_be(monkeypatch, capsys, cases, status):
    monkeypatch.setattr(boots.skips, "read", lambda text: SKIPS)
    suite = ElementTree.Element("testsuite", name="6.1 smoke")
    for name, reason in cases:
        case = ElementTree.SubElement(suite, "testcase", classname="guest.cases.test_a", name=f"test_{name}[6.1]")
        if reason:
            ElementTree.SubElement(case, "skipped", message=reason)
    passed = ElementTree.Element("testsuite", name="6.12 smoke")
    ElementTree.SubElement(passed, "testcase", classname="guest.cases.test_a", name="test_a[6.12]")
    assert boots.summary([passed, suite], 1) == status
    said = capsys.readouterr().out
    assert ("FAILED" in said) == bool(status), said


@pytest.fixture
def tree(tmp_path):
    """A repository with a file."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("one\n")
    (tree / ".gitignore").write_text("/build/\n")
    for argv in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", tree, *argv], check=True)
    return tree


def key(tree):
    return machine.tree_key.__wrapped__(tree)


def test_what_passed_is_of_one_state_of_the_tree(tree, monkeypatch):
    monkeypatch.delenv(machine.TREE, raising=False)
    keys = [key(tree)]
    (tree / "build").mkdir()
    (tree / "build/file").write_text("ignored\n")
    assert keys[0] and key(tree) == keys[0]
    for name, text in (("file", "two\n"), ("new", "one\n"), ("new", "two\n"), ("newer", "two\n")):
        (tree / name).write_text(text)
        keys.append(key(tree))
    subprocess.run(["git", "-C", tree, "add", "."], check=True)
    keys.append(key(tree))
    assert len(set(keys)) == len(keys)


def test_a_tree_of_another_user_has_a_state(tree, monkeypatch):
    monkeypatch.delenv(machine.TREE, raising=False)
    before = key(tree)
    for path in [tree, tree / ".git", *(tree / ".git").rglob("*")]:
        os.chown(path, 65534, 65534)
    assert key(tree) == before


def test_without_git_nothing_is_resumed(tree, monkeypatch, tmp_path, capsys):
    """As in a tarball, also in one that is below another repository."""
    monkeypatch.delenv(machine.TREE, raising=False)
    (tree / "below").mkdir()
    assert key(tree / "below") == "" and "nothing is resumed" in capsys.readouterr().out
    shutil.rmtree(tree / ".git")
    assert key(tree) == "" and "nothing is resumed" in capsys.readouterr().out
    monkeypatch.setattr(machine, "BUILD", tmp_path / "build")
    monkeypatch.setattr(machine, "tree_key", lambda: "")
    monkeypatch.setattr(check, "stage", lambda name, run, rows: rows.extend(run()))
    ran = []
    for _ in range(2):
        check.stage_once("a stage", lambda: ran.append(1) or [("a", "passed", "")], [])
    assert len(ran) == 2 and not (tmp_path / "build").exists()


def test_what_passed_natively_is_of_one_kernel(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "BUILD", tmp_path)
    monkeypatch.setattr(machine, "tree_key", lambda: "key")
    monkeypatch.setattr(check, "stage", lambda name, run, rows: rows.extend(run()))
    ran = []

    def once(kernel, native):
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=kernel))
        check.stage_once("a stage", lambda: ran.append(1) or [("a", "passed", "")], [], native)
        return len(ran)
    assert [once("6.1", True), once("6.1", True), once("6.12", True)] == [1, 1, 2]
    assert [once("6.1", False), once("6.12", False)] == [3, 3]
    monkeypatch.setenv("FRESH", "1")
    assert [once("6.12", True), once("6.12", True), once("6.12", False)] == [4, 4, 5]


def test_what_a_killed_pytest_left_is_found(tmp_path, monkeypatch):
    """It is no program of ebb, and has only the number of its pytest."""
    monkeypatch.setenv(machine.SHARD, str(tmp_path))
    runner = subprocess.Popen(["sh", "-c", f"export {machine.RUN}=$$; sleep 1000 & echo $!; wait"],
                              stdout=subprocess.PIPE, text=True)
    left = int(runner.stdout.readline())
    try:
        # The shell's child has its parent's environment until it executes sleep.
        machine.wait_for(lambda: machine.read(f"/proc/{left}/comm") == "sleep\n", 10, "the child")
        assert left not in machine.orphans(), "its pytest runs"
        runner.kill()
        runner.wait()
        assert machine.orphans() == {left: "sleep"}
        line = f"process: sleep ({left})"
        assert line in machine.things()
        machine.process_thing(left, "sleep")[1][1]()
        assert not machine.orphans()
    finally:
        runner.kill()
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def test_a_pytest_whose_number_is_used_again_is_over(monkeypatch):
    monkeypatch.setattr(machine, "variable", lambda process, name: "77")
    for began, over in ((None, True), (99, False), (100, False), (101, True)):
        monkeypatch.setattr(machine, "start_of", {"77": began, "78": 100}.get)
        assert machine.of_dead_run(Path("/proc/78")) == over


SWAPS = """Filename Type Size Used Priority
/dev/zram0 partition 1048572 0 100
/dev/zram1 partition 1048572 0 32767
/dev/zram2 partition 2097148 0 32767
/dev/loop3 partition 1048572 0 32767
/dev/loop4 partition 1048572 0 -2
{build}/demo/input/swapfile file 1048572 0 -3
/swapfile file 1048572 0 -4
"""


def test_swap_of_a_killed_benchmark_is_found(monkeypatch):
    files = {"/proc/swaps": SWAPS.format(build=str(machine.BUILD).replace(" ", "\\040")),
             "/sys/block/zram0/disksize": f"{1 << 30}\n", "/sys/block/zram1/disksize": f"{1 << 30}\n", "/sys/block/zram2/disksize": f"{2 << 30}\n"}
    monkeypatch.setattr(machine, "read", lambda path, otherwise="": files.get(path, otherwise))
    monkeypatch.setattr(machine, "ebb_mounts", list)
    monkeypatch.setattr(machine, "loops", lambda: {
        "/dev/loop3": f"{machine.BUILD}/demo/input/zswap.swap", "/dev/loop4": "/srv/disk.img"})
    assert machine.ebb_swaps() == ["/dev/zram1", "/dev/loop3", f"{machine.BUILD}/demo/input/swapfile"]


def test_cgroups_of_the_cpuset_controller_are_found(monkeypatch, tmp_path):
    memory, cpuset = tmp_path / "memory", tmp_path / "cpuset"
    for root, file in (memory, "memory.limit_in_bytes"), (cpuset, "cpuset.cpus"):
        (root / "ebb-test-1").mkdir(parents=True)
        (root / file).touch()
    monkeypatch.setattr(machine, "mounts", lambda: [("cgroup", str(d), "cgroup") for d in (memory, cpuset)])
    assert machine.ebb_cgroups() == [memory / "ebb-test-1", cpuset / "ebb-test-1"]
