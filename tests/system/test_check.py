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
