#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
language.py [--shrink] [--show RULE] [FILE...]: checks the language of documents, messages and comments.

Rules are listed below: words that ebb does not use and what to write instead, and the size of documents.
tests/language-faults lists how many faults of each rule remain in a place, that is a document or a
directory: COUNT RULE PLACE.  More faults than listed fail the check.  --shrink updates the list,
which may only shrink; --show prints each fault of a rule, or of all rules ("all").
"""
import argparse
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
LIST = REPO / "tests/language-faults"

COLUMNS = 100
README_LINES = 110
SCREEN_LINES = {"README.md": 60, "CONTRIBUTING.md": 50}

# In all texts.  Rule: (pattern, what to write).
WORDS = {
    "who": (r"(?<!user )(?<!users )(?<!person )(?<!people )(?<!operator )(?<!reader )(?<!readers )"
            r"\b(who|whom|whoever|nobody)\b",
            "it, that, or the noun: things are not persons"),
    "he": (r"\b(he|she|him|himself|herself)\b", "it, or the noun"),
    "late-hit": (r"\blate hits?\b", "late prefetch"),
    "ahead": (r"\b(fetch\w*|brought) ahead\b|\bbrought in\b", "prefetched"),
    "by-hand": (r"\bby hand\b", "at run time"),
    "under-way": (r"\bunder way\b", "in flight"),
    "retreat": (r"\bretreat\w*\b", "fall back to the backup"),
    "last-words": (r"\blast words\b", "exit reason"),
    "gone": (r"\b(is|are|was|were|be|been) gone\b", "exited, disconnected, removed"),
    "greet": (r"\bgreet(s|ed|ing|ings)?\b", "handshake"),
    "hang-up": (r"\b(hangs?|hung|hanging) up on\b", "disconnect"),
    "half-made": (r"\bhalf[- ]made\b", "incomplete"),
    "anew": (r"\banew\b", "re-create, again"),
    "looked-after": (r"\blook(s|ed|ing)? after\b", "managed"),
    "outlook": (r"\boutlooks?\b", "drain estimate"),
    "ask-back": (r"\bask(s|ed|ing)? back\b", "recall"),
    "give-back": (r"\bg[ai]v(e|es|en|ing) (\w+ )?back\b", "release"),
    "take-back": (r"\bt(ake|akes|ook|aken|aking) (\w+ )?back\b", "reclaimed"),
    "word-over": (r"\bone word over and over\b", "same-filled"),
    "drawn": (r"\bdrawn\b", "sampled at random"),
}
# In documents alone: code still uses them as names.
DOCUMENT_WORDS = {
    "takeover": (r"\b(takeovers?|holders?|successors?)\b", "failover, supervisor, next instance"),
    "silent": (r"\bsilent\b", "unresponsive, cannot connect"),
    "comes-back": (r"\b(comes?|came|coming) back\b", "is swapped in, reconnects"),
    "made-cold": (r"\bmade cold\b", "deactivated (MADV_COLD)"),
    "moves-away": (r"\bmov(e|es|ed|ing) away\b", "migrates"),
}

C_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
PYTHON_TEXT = re.compile(r'""".*?"""|(?<![\w"\'])#[^\n]*|f?"(?:\\.|[^"\\\n])*"', re.S)
# Interfaces: members and values of JSON, and a user's name.
INTERFACES = re.compile(r'"(outlook|half made|greeting|nobody)"')
# What a document quotes: blocks and spans of code.
QUOTED = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>", re.S | re.M)
ROFF_QUOTED = re.compile(r"^\.Bd -literal.*?^\.Ed|^\.(Xr|In|Ar|Va|Cm|Fl|Ic|Dl|Li|It Li|\\\").*?$", re.S | re.M)
SKIPPED = ("docs/results/", "tests/language.py", "tests/system/samples/", "tests/fuzz/corpus/", "tests/fixtures/")


def blank(found):
    """Returns blanks in the same lines, so that faults keep their line numbers."""
    return re.sub(r"[^\n]", " ", found.group(0))


def prose(path, text):
    """Returns @text with everything but language blanked."""
    if path.endswith(".md"):
        return QUOTED.sub(blank, text)
    if re.search(r"\.[1-9]$", path):
        return ROFF_QUOTED.sub(blank, text)
    pattern = PYTHON_TEXT if path.endswith((".py", ".mk", ".sh", "Makefile")) else C_TEXT
    kept, at = [], 0
    for found in pattern.finditer(text):
        kept.append(re.sub(r"[^\n]", " ", text[at:found.start()]) + found.group(0))
        at = found.end()
    return INTERFACES.sub(blank, "".join(kept))


def is_document(path):
    return path.endswith(".md") or re.search(r"\.[1-9]$", path)


def faults(path):
    """[(line, rule, remedy)] of one file."""
    text = (REPO / path).read_text(errors="replace")
    words = {**WORDS, **(DOCUMENT_WORDS if is_document(path) else {})}
    said = prose(path, text)
    found = [(said.count("\n", 0, m.start()) + 1, rule, f'"{m.group(0)}": write {remedy}')
             for rule, (pattern, remedy) in words.items()
             for m in re.finditer(pattern, said, re.I)]
    lines = text.splitlines()
    if path.endswith(".md"):
        # A table's row cannot be broken.
        found += [(n, "columns", f"longer than {COLUMNS} columns") for n, line in enumerate(lines, 1)
                  if len(line) > COLUMNS and not line.startswith(("|", "[!["))]
        most = README_LINES if path == "README.md" else \
            SCREEN_LINES.get(Path(path).name, len(lines))
        if len(lines) > most:
            found.append((most, "lines", f"{len(lines)} lines, at most {most}"))
    return found


def sources():
    listed = subprocess.run(["git", "-C", str(REPO), "ls-files", "--cached", "*.md", "*.[1-9]", "*.[ch]", "*.rs", "*.py",
                             "*.sh", "*.mk", "Makefile"], check=True, capture_output=True, text=True)
    return [p for p in listed.stdout.splitlines()
            if not p.startswith(SKIPPED) and (REPO / p).is_file()]


def place(path):
    """Files move between the directories of a program, faults included."""
    return "/".join(path.split("/")[:2])


def known():
    rows = [line.split() for line in LIST.read_text().splitlines() if line and line[0] != "#"] \
        if LIST.exists() else []
    return Counter({(rule, where): int(count) for count, rule, where in rows})


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shrink", action="store_true")
    p.add_argument("--show", metavar="RULE")
    p.add_argument("file", nargs="*")
    a = p.parse_args()
    found = {path: faults(path) for path in a.file or sources()}
    if a.show:
        for path, rows in found.items():
            for line, rule, remedy in rows:
                if a.show in (rule, "all"):
                    print(f"{path}:{line}: {rule}: {remedy}")
        return 0
    listed = known()
    now = Counter((rule, place(path)) for path, rows in found.items() for _, rule, _ in rows)
    worse = {key for key, n in now.items() if n > listed[key]}
    for path, rows in found.items():
        for line, rule, remedy in rows:
            key = rule, place(path)
            if key in worse:
                print(f"{path}:{line}: {rule}: {remedy} ({now[key]} faults, {listed[key]} listed)")
    if a.shrink:
        kept = {key: min(n, now[key]) for key, n in listed.items() if now[key]}
        LIST.write_text("# Faults of language that remain: COUNT RULE PLACE.  See language.py.\n" + "".join(
            f"{n} {rule} {where}\n" for (rule, where), n in sorted(kept.items(), key=lambda r: r[0][::-1])))
    elif sum(now.values()) < sum(listed.values()):
        print(f"language.py: {sum(listed.values()) - sum(now.values())} listed faults are gone; "
              "run language.py --shrink", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
