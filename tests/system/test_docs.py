# SPDX-License-Identifier: GPL-2.0-or-later
"""The documents are right: their examples run, and what they link to and name is there."""
import itertools
import re
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

import docs
import examples
import promises
from machine import BIN, REPO

DOCUMENTS = docs.documents()


def those(*worlds):
    found = [p for p in DOCUMENTS if docs.world(p) in worlds]
    return pytest.mark.parametrize("path", found, ids=docs.name)


@those("ebbd", "swap")
def test_examples(path, swap_lock, tmp_path):
    examples.run(path, tmp_path)


@pytest.mark.beside
@those("beside")
def test_examples_beside(path, tmp_path):
    examples.run(path, tmp_path)


def problems(check):
    found = [p for path in DOCUMENTS for p in check(path)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.beside
def test_every_example_has_a_directive():
    problems(docs.unclear)
    ways = [b.directive[0] for p in DOCUMENTS for b in docs.consoles(p) for _ in b.commands()]
    assert ways.count("run") > ways.count("not run")


@pytest.mark.beside
def test_links():
    problems(docs.broken_links)


@pytest.mark.beside
def test_files():
    problems(docs.missing_files)


@pytest.mark.beside
def test_commands_and_options():
    problems(docs.wrong_commands)


@pytest.mark.beside
def test_configurations(tmp_path):
    """What is shown of ebb.conf is one; units are systemd's."""
    conf, checked = tmp_path / "ebb.conf", 0
    for b in (b for p in DOCUMENTS for b in docs.blocks(p) if b.language == "ini"):
        text = "\n".join(b.lines) + "\n"
        if re.search(r"^\[(Service|Slice)\]$", text, re.M):
            continue
        for file in re.findall(r"= /etc/ebb/(\S+)$", text, re.M):
            (tmp_path / file).touch(mode=0o600)
        conf.write_text(text.replace("/etc/ebb/", f"{tmp_path}/"))
        done = subprocess.run([BIN / "ebbd", "--check-config", "--config", conf],
                              capture_output=True, text=True)
        assert done.returncode == 0, f"{b.where}: {done.stderr}"
        checked += 1
    assert checked > 2


def table(path, heading):
    """Rows of the first table below a heading, without its head."""
    lines = path.read_text().split(f"\n{heading}\n", 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ---"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 1:])
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


@pytest.mark.beside
def test_defaults():
    """Those of docs/tuning.md are those of ebb.conf, and of the policies."""
    tuning = REPO / "docs" / "tuning.md"
    conf = (REPO / "packaging" / "ebb.conf").read_text()
    rows = table(tuning, "## ebbd: ebb.conf(5)")
    assert len(rows) == len(re.findall(r"^#(?!prefix)\w+ = ", conf, re.M))
    for key, default, *_ in rows:
        section, name = re.fullmatch(r"`\[(\w+)\] (\w+)`", key).groups()
        of = conf.split(f"[{section}]\n", 1)[1].split("\n[")[0]
        assert f"#{name} = {default}\n" in of + "\n", key
    told = subprocess.run([BIN / "ebb-sim", "policies"], capture_output=True, text=True,
                          check=True).stdout
    parameters, policy = {}, None
    for line in told.splitlines():
        policy = line.split()[0] if not line.startswith(" ") else policy
        if line.startswith(" "):
            name, value = line.split()[0].split("=")
            parameters[policy, name] = value
    checked = 0
    for name, policies, default, _ in table(tuning, "## Policies"):
        for policy in re.findall(r"`(\w+)`", policies):
            assert parameters[policy, name.strip("`")] == default, (policy, name)
            checked += 1
    assert checked > 5


def strings(file, function):
    """What is quoted in a function of a source file."""
    body = re.split(rf"^[^\s].*\b{function}\(", (REPO / file).read_text(), flags=re.M)[1]
    return set(re.findall(r'"([^"%]+)"', body.split("\n}\n")[0]))


@pytest.mark.beside
def test_states():
    """docs/operations.md has every state that people are shown, and no other."""
    operations = REPO / "docs" / "operations.md"

    def told(heading):
        return {s for row in table(operations, heading) for s in re.findall(r"`([^`]+)`", row[0])}

    words = dict(re.findall(r'{ "([^"]+)", "([^"]+)" }',
                            (REPO / "daemon/ebbctl/verbs/device_view.c").read_text()))

    def shown(states):
        return {words.get(state, state) for state in states}

    assert told("## Device states") == shown(strings("daemon/ebbctl/device/list.c", "state_of"))
    assert told("## Donor states") == {"not used"} | shown(strings(
        "daemon/swapd/donor/donor_table.c", "donor_state_text")) - {"absent"}
    assert told("## Offload states") == strings("daemon/ebbd/attach/offload_control.c",
                                                "offload_state_name")
    source = "".join(p.read_text() for p in (REPO / "daemon").rglob("*.c"))
    for line in told("## Lines in a device's log"):
        for piece in re.split(r"\.\.\.", line):
            assert piece.strip(" :;") in source, line


MOST_UNTESTED = 2


@pytest.mark.beside
def test_promises():
    """Each promise of promises.DOCUMENTS has a test, in tests/promises."""
    faults, untested = promises.check(promises.FILE.read_text())
    assert not faults, "\n" + "\n".join(faults)
    print("\n".join(untested))
    assert len(untested) <= MOST_UNTESTED, "\n" + "\n".join(untested)


@pytest.mark.beside
def test_wrong_promises_are_found(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(
        "# Top\nNothing.\n## Sure\nAll is\nwell. All is well. It holds.\n"
        "| attacker | can | cannot |\n| --- | --- | --- |\n| a | | read a page |\n")
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.c").write_text("cmocka_unit_test(here)\n")
    monkeypatch.setattr(promises, "REPO", tmp_path)
    monkeypatch.setattr(promises, "DOCUMENTS", ("docs/a.md",))
    right = ('docs/a.md\n## Top\nnone: a title\n## Sure\n"It holds."\n\tunit/test_a.c::here\n'
             '"read a page"\n\tuntested: hard\n')
    assert promises.check(right) == ([], ['docs/a.md: "read a page": hard'])
    for old, new, says in (("It holds", "It fails", "0 times"),
                           ("It holds.", "All is well.", "2 times"),
                           ("a.c::here", "a.c::there", "no such test"),
                           ("test_a.c", "test_b.c", "no file of tests"),
                           ('"read a page"\n\tuntested: hard\n', "", "no promise is quoted"),
                           ("\tuntested: hard\n", "", "no test enforces it"),
                           ("none: a title\n", "", "has promises, or none"),
                           ("## Top\nnone: a title\n", "", "list its promises"),
                           ("## Sure", "## Sore", 'no section is called "Sore"')):
        assert any(says in f for f in promises.check(right.replace(old, new))[0]), new
    guest = "guest/cases/test_b.py::test_b"
    (tmp_path / "tests" / "guest" / "cases").mkdir(parents=True)
    (tmp_path / "tests" / guest.partition("::")[0]).write_text("def test_b():\n    pass\n")
    in_guest = right.replace("unit/test_a.c::here", guest)
    assert promises.check(in_guest)[0] == [f"tests/promises:6: {guest}: no group of tests/guest/boots.py runs it"]
    for files in (("test_b.py",), ("test_a.py", "test_b.py::test_b"), ("test_b.py::test_b[tcp]",)):
        monkeypatch.setattr(promises.boots, "BOOTS", (promises.boots.Boot("b", files),))
        assert promises.check(in_guest)[0] == []
    with pytest.raises(promises.Malformed):
        promises.check(right + "It holds.\n")


@pytest.mark.beside
def test_the_map_has_every_document():
    text = (REPO / "docs" / "README.md").read_text()
    for path in (REPO / "docs").glob("*.md"):
        assert path.name == "README.md" or re.search(rf"\]\({path.name}[)#]", text), \
            f"{path.name}: docs/README.md does not lead there"
    for path in (REPO / "docs" / "man").iterdir():
        page = f"{path.stem}({path.suffix[1:]})"
        assert page in text, f"{page}: docs/README.md does not name it"


@pytest.mark.beside
def test_figures():
    """Well-formed, with text for screen readers, readable on white and on black."""
    figures = list((REPO / "docs" / "figures").glob("*.svg"))
    assert figures
    shown = "".join(p.read_text() for p in DOCUMENTS)
    for path in figures:
        root = ElementTree.parse(path).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title") is not None, path
        assert "prefers-color-scheme: dark" in path.read_text(), path
        assert path.stat().st_size < 12 << 10, path
        assert f"figures/{path.name}" in shown, f"{path}: no document shows it"


@pytest.mark.beside
def test_the_checks_find_what_is_wrong(tmp_path, monkeypatch):
    """Each of the above, on a document that has it all."""
    monkeypatch.setattr(docs, "REPO", tmp_path)
    path = tmp_path / "README.md"
    path.write_text("# Top\n[a](gone.md) [b](#top) [c](#nowhere) `docs/gone.md` `README.md`\n"
                    "`ebbctl frob` `ebbctl device frob` `ebbctl device list --frob` `--frob`\n"
                    "`ebbctl device list --json` `--durability`\n\n"
                    "```console\n$ true\n```\n\n<!-- not run: no time -->\n```console\n$ true\n```\n"
                    "\n```sh\ntrue\n```\n\n    sudo make\n")
    (tmp_path / "docs").mkdir()
    docs.tree.cache_clear()
    try:
        assert len(list(docs.broken_links(path))) == 2
        assert len(list(docs.missing_files(path))) == 1
        assert len(list(docs.wrong_commands(path))) == 4
        assert len(list(docs.unclear(path))) == 4
    finally:
        docs.tree.cache_clear()


@pytest.mark.parametrize("expected, output, same", [
    (["a  b"], "a b\n", True),
    (["a b"], "a b\nc\n", False),
    (["a", "..."], "a\nb\nc\n", True),
    (["...", "c"], "a\nb\nc\n", True),
    (["a ... d"], "a b c d\n", True),
    (["a ... d"], "a b\nc d\n", False),
    (["a ... d"], "a  d\n", True),
    (["a ... d"], "ad\n", False),
    (["a..., d ..."], "ab, d\n", True),
    (["(a.b)"], "(axb)\n", False),
])
@pytest.mark.beside
def test_what_is_shown(expected, output, same):
    assert docs.agrees(expected, output) == same


@pytest.mark.beside
def test_an_example_that_fails_is_found(tmp_path):
    with examples.Examples(tmp_path / "x", "beside") as x:
        assert x.run("cd / && a=1") == (0, "")
        assert x.run("pwd; echo $a") == (0, "/\n1\n")
        assert x.run("false | true")[0] == 1
        assert x.run("ls /etc/ebb") == (0, "ebb.conf.d\n")
