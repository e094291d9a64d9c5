# SPDX-License-Identifier: GPL-2.0-or-later
"""
tests/promises: what docs/security.md, docs/operations.md and docs/limits.md promise, with the tests
that enforce it.  The file says how it is written; check() says what is wrong in it.
"""
import ast
import functools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Before tests/bench, which has another guest.py.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "guest"))

import boots
import docs
from machine import REPO

FILE = REPO / "tests" / "promises"
DOCUMENTS = ("docs/security.md", "docs/operations.md", "docs/limits.md")


@dataclass
class Promise:
    line: int
    quote: str
    tests: list = field(default_factory=list)   # (line, text)


@dataclass
class Section:
    line: int
    document: str
    heading: str
    none: str = None        # why it promises nothing
    promises: list = field(default_factory=list)


class Malformed(Exception):
    pass


def words(text):
    return " ".join(text.split())


def read(text):
    """Returns the sections that @text, in the format of tests/promises, lists."""
    found, document = [], None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or re.match(r"#( |$)", line):
            continue
        quote = re.fullmatch(r'"(.+)"', line)
        if line.endswith(".md"):
            document = line
        elif line.startswith("## ") and document:
            found.append(Section(number, document, line[3:]))
        elif line.startswith("none: ") and found:
            found[-1].none = line[6:]
        elif quote and found:
            found[-1].promises.append(Promise(number, words(quote[1])))
        elif line.startswith("\t") and found and found[-1].promises:
            found[-1].promises[-1].tests.append((number, line.strip()))
        else:
            raise Malformed(f"tests/promises:{number}: neither a document, a heading, a promise "
                            f"in quotes nor a test after a tab")
    return found


@functools.cache
def sections_of(path):
    """Returns {heading: its lines} of a document."""
    found, fenced, heading = {}, False, None
    for line in path.read_text().splitlines():
        fenced ^= line.startswith("```")
        if not fenced and line.startswith("#"):
            heading = line.lstrip("#").strip()
            found[heading] = []
        elif heading:
            found[heading].append(line)
    return found


def denials(lines):
    """Returns the cells that say what an attacker cannot do."""
    column = None
    for line in lines:
        cells = [words(cell) for cell in line.strip("|").split("|")] if line[:1] == "|" else []
        if column is None or not cells:
            column = cells.index("cannot") if "cannot" in cells else None
        elif not line.startswith("| ---") and cells[column] not in ("", "the same"):
            yield cells[column]


@functools.cache
def tests_in(path):
    """Returns the names of the tests in a file, which is none of ours without any."""
    text = path.read_text()
    if path.suffix == ".py":
        return {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)
                and n.name.startswith("test_")}
    return set(re.findall(r"\b(?:cmocka_unit_test\w*|TEST)\((\w+)", text))


def in_a_group(file, name):
    """Returns whether a guest runs this test, perhaps with some of its parameters."""
    return any(listed == file or listed.partition("[")[0] == f"{file}::{name}"
               for boot in boots.BOOTS for listed in boot.files)


def wrong_test(text):
    """Returns what is wrong with one line below a promise; "" = nothing."""
    kind, _, what = text.partition(": ")
    if kind == "untested":
        return ""
    if kind == "default":
        *program, option, value = what.split()
        shown = re.search(rf"(?s){option}\b(.*?)(\n  -|\Z)", docs.usage(*program))
        if not shown or f"[{value}]" not in words(shown[1]):
            return f"{option} of {' '.join(program)} is not {value} by default"
        return ""
    if kind == "constant":
        file, name, value = what.split()
        source = REPO / file
        if not source.is_file() or \
                not re.search(rf"(?m)^#define {name} +{value}( +/\*.*)?$", source.read_text()):
            return f"{name} in {file} is not {value}"
        return ""
    file, _, name = text.partition("::")
    path = REPO / "tests" / file
    if not re.fullmatch(r"(unit/|system/test_|guest/cases/test_)\w+\.(c|py)", file) or \
            not path.is_file():
        return f"{file}: no file of tests"
    if name not in tests_in(path):
        return f"{text}: there is no such test"
    return "" if path.parent.name != "cases" or in_a_group(path.name, name) else \
        f"{text}: no group of tests/guest/boots.py runs it"


def check(text):
    """Returns (faults, untested promises) of @text."""
    faults, untested, sections = [], [], read(text)

    def fault(line, what):
        faults.append(f"tests/promises:{line}: {what}")

    listed = {(s.document, s.heading): s for s in sections}
    if len(listed) != len(sections):
        fault(0, "a section is there twice")
    for document in DOCUMENTS:
        for heading, lines in sections_of(REPO / document).items():
            s = listed.pop((document, heading), None)
            if not s:
                fault(0, f'{document}, "{heading}": list its promises, or "none: " and the reason')
                continue
            body = words("\n".join(lines))
            if bool(s.none) == bool(s.promises):
                fault(s.line, "has promises, or none and a reason")
            for p in s.promises:
                if body.count(p.quote) != 1:
                    fault(p.line, f'"{p.quote}": {body.count(p.quote)} times in {document}, '
                                  f'"{heading}"')
                if not p.tests:
                    fault(p.line, "no test enforces it")
                for number, test in p.tests:
                    wrong = wrong_test(test)
                    if wrong:
                        fault(number, wrong)
                    if test.startswith("untested: "):
                        untested.append(f'{document}: "{p.quote}": {test[10:]}')
            for cell in denials(lines):
                if not any(p.quote in cell for p in s.promises):
                    fault(s.line, f'"{cell}": no promise is quoted from this cell')
    for s in listed.values():
        fault(s.line, f'{s.document}: no section is called "{s.heading}"')
    return faults, untested
