#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
lint.py [COMPILER-FLAG...]: runs, in parallel, every check that runs no program of ebb.

Files that clang-tidy and clang-format have passed are remembered in build/lint.
"""
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

REPO = Path(__file__).resolve().parents[1]
CACHE = REPO / "build/lint"
PYTHON = [sys.executable, "-B"]
TIDIED = ("daemon/", "policies/", "userlib/", "lib/")
# Files per check.
BATCH = 12
COLUMNS = 100


def listed(*patterns):
    told = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=REPO, check=True,
                          capture_output=True, text=True).stdout.split("\0")
    return [f for f in told if f and (REPO / f).is_file()]


def run_to_end(*argv):
    return subprocess.run(argv, cwd=REPO, check=True, stdout=subprocess.PIPE).stdout


def run(*argv):
    """Runs a check; returns its complaints."""
    done = subprocess.run(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return (done.stdout.rstrip() or f"{argv[0]}: exit status {done.returncode}") if done.returncode else ""


def style(files):
    """Checks license, tabs and ends of lines."""
    wrong = []
    for f in files:
        text = (REPO / f).read_text()
        lines = text.splitlines()
        if not any("SPDX-License-Identifier: " in line for line in lines[:2]):
            wrong.append(f"{f}:1: no SPDX-License-Identifier in the first two lines")
        if text and not text.endswith("\n"):
            wrong.append(f"{f}:{len(lines)}: no newline at the end")
        for number, line in enumerate(lines, 1):
            at = f"{f}:{number}"
            if line != line.rstrip():
                wrong.append(f"{at}: blanks at the end of the line")
            if f.endswith((".c", ".h")) and re.match(r"\t* {8}", line):
                wrong.append(f"{at}: blanks instead of a tab")
            # Messages may be long: people search for them.
            if f.endswith((".c", ".h", ".rs")) and len(line.expandtabs(8)) > COLUMNS and '"' not in line:
                wrong.append(f"{at}: longer than {COLUMNS} columns")
    return "\n".join(wrong)


def pyflakes(files):
    """Runs pyflakes; drops complaints about imported fixtures, which arguments shadow."""
    wrong = run(*PYTHON, "-m", "pyflakes", *files).splitlines()
    fixture = lambda said: "fixture" in (REPO / said.split(":")[0]).read_text().splitlines()[
        int(said.split(":")[1]) - 1]
    return "\n".join(w for w in wrong if "redefinition of unused" not in w and not (
        "imported but unused" in w and fixture(w)))


def man_pages(files):
    """Runs mandoc; drops what only says something of the machine that it runs on."""
    # One stream for both would mix parts of their lines.
    done = subprocess.run(["mandoc", "-T", "lint", *files], cwd=REPO, capture_output=True, text=True)
    wrong = [line for line in (done.stdout + done.stderr).splitlines()
             if not re.search("referenced manual not found|outdated mandoc.db", line)]
    for f in files:
        for name, section in re.findall(r"^\.Xr (ebb\S*) (\d)", (REPO / f).read_text(), re.M):
            if f"docs/man/{name}.{section}" not in files:
                wrong.append(f"{f}: no such page: {name}({section})")
    return "\n".join(wrong)


def shell_files():
    """Returns files with a shell's suffix or first line; sourced files have a directive."""
    return [f for f in listed() if f.endswith(".sh") or
            (REPO / f).open("rb").read(40).startswith((b"#!/bin/sh", b"#!/bin/bash"))]


def spacing(f, replacements):
    """
    Returns clang-format's changes within lines and of statements' indentation.  Line breaks, the
    alignment of continued lines, comments, tables and macros are left to the author.
    """
    text, wrong = (REPO / f).read_bytes(), []
    for r in ElementTree.fromstring(replacements).iter("replacement"):
        at = int(r.get("offset"))
        end = at + int(r.get("length"))
        old, new = text[at:end], (r.text or "").encode()
        # clang-format reads C as C++: `class` is a name here, and ~ after a cast looks binary.
        within = b"\n" not in old + new and new in (b"", b" ") and \
            not text[end:].startswith((b"/*", b"//", b"~")) and not text[:at].endswith(b"class")
        statement = b"\n" in old and b"\n" in new and b"\\" not in old and text[:at].endswith((b";", b"}"))
        if within or statement:
            number = text.count(b"\n", 0, at) + 1
            wrong.append(f"{f}:{number}: clang-format: {old.decode()!r} is to be {new.decode()!r}")
    return "\n".join(wrong)


def formatted(files):
    """Runs clang-format once: its start takes longer than a file does."""
    documents = run_to_end("clang-format", "--output-replacements-xml", *files).split(b"<?xml ")[1:]
    assert len(documents) == len(files), documents
    wrong = "\n".join(filter(None, (spacing(f, b"<?xml " + d) for f, d in zip(files, documents))))
    return wrong or passed("format", files)


def tidy(files, flags):
    wrong = run("clang-tidy", "--quiet", *files, "--", *flags)
    if wrong:
        return "\n".join(line for line in wrong.splitlines() if not line.endswith(" generated."))
    return passed("tidy", files)


def analyzed(files):
    """Runs compilers' analyzers over programs of libebbdsm."""
    return run(*PYTHON, "tests/analyze.py", *files) or passed("analyze", files)


def passed(check, files):
    for f in files:
        stamp = CACHE / check / f
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return ""


def changed(check, files, *others):
    """Returns the files that have not passed since they, or any of @others, changed."""
    newest = max((REPO / f).stat().st_mtime for f in others)
    stamp = lambda f: CACHE / check / f
    return [f for f in files if not stamp(f).exists() or
            stamp(f).stat().st_mtime < max(newest, (REPO / f).stat().st_mtime)]


def batches(files):
    return [files[i:i + BATCH] for i in range(0, len(files), BATCH)]


def main():
    flags = [f for f in sys.argv[1:] if f not in ("-Werror", "-MMD", "-MP")]
    checks = [(f"clang-tidy, {len(files)} files", lambda files=files: tidy(files, flags))
              for files in batches(changed("tidy", [f for f in listed("*.c") if f.startswith(TIDIED)],
                                           ".clang-tidy", *listed("*.h")))]
    checks += [(f"clang-format, {len(files)} files", lambda files=files: formatted(files))
               for files in batches(changed("format", listed("*.c", "*.h"), ".clang-format"))]
    checks += [(f"analyzers, {len(files)} files", lambda files=files: analyzed(files))
               for files in batches(changed("analyze", listed("userlib/dsm/examples/*.c", "tests/misuse/*.c"),
                                            "tests/analyze.py", *listed("userlib/dsm/*.h")))]
    checks += [
        ("layers", lambda: run(*PYTHON, "tests/layers.py", "--built")),
        ("language", lambda: run(*PYTHON, "tests/language.py")),
        ("style", lambda: style(listed("*.c", "*.h", "*.rs", "*.py", "*.sh", "*.mk", "Makefile"))),
        ("pyflakes", lambda: pyflakes(listed("*.py"))),
        ("shellcheck", lambda: run("shellcheck", "-x", *shell_files())),
        ("mandoc", lambda: man_pages(listed("docs/man/*"))),
    ]
    start, bad = time.monotonic(), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (name, _), wrong in zip(checks, pool.map(lambda check: check[1](), checks)):
            if wrong:
                bad += 1
                print(f"lint: {name}:\n{wrong}", flush=True)
    print(f"lint: {len(checks) - bad} checks passed, {bad} failed, after {time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
