#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
lint.py [COMPILER-FLAG...]: every check that runs no program of ebb, in parallel.

clang-tidy's results are cached in build/lint.
"""
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CACHE = REPO / "build/lint"
PYTHON = [sys.executable, "-B"]
TIDIED = ("daemon/", "policies/", "userlib/", "lib/")
# As many files as clang-tidy takes at once.
BATCH = 12


def listed(*patterns):
    told = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=REPO, check=True,
                          capture_output=True, text=True).stdout.split("\0")
    return [f for f in told if f and (REPO / f).is_file()]


def run(*argv):
    """What is wrong, or nothing."""
    done = subprocess.run(argv, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return (done.stdout.rstrip() or f"{argv[0]}: exit status {done.returncode}") if done.returncode else ""


def style(files):
    """License, tabs and ends of lines."""
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
    return "\n".join(wrong)


def pyflakes(files):
    """Without complaints about pytest's fixtures: they are imported, and shadowed by arguments."""
    wrong = run(*PYTHON, "-m", "pyflakes", *files).splitlines()
    fixture = lambda said: "fixture" in (REPO / said.split(":")[0]).read_text().splitlines()[
        int(said.split(":")[1]) - 1]
    return "\n".join(w for w in wrong if "redefinition of unused" not in w and not (
        "imported but unused" in w and fixture(w)))


def shell_files():
    """Those with a name or a first line of the shell's; sourced ones name it in a directive."""
    return [f for f in listed() if f.endswith(".sh") or
            (REPO / f).open("rb").read(40).startswith((b"#!/bin/sh", b"#!/bin/bash"))]


def tidy(files, flags):
    """Files whose stamp is newer than all headers are not looked at again."""
    wrong = run("clang-tidy", "--quiet", *files, "--", *flags)
    if wrong:
        return "\n".join(line for line in wrong.splitlines() if not line.endswith(" generated."))
    for f in files:
        stamp = CACHE / f
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return ""


def untidied(files):
    headers = [*listed("*.h"), ".clang-tidy"]
    newest = max((REPO / f).stat().st_mtime for f in headers)
    old = lambda f: not (CACHE / f).exists() or \
        (CACHE / f).stat().st_mtime < max(newest, (REPO / f).stat().st_mtime)
    return [f for f in files if old(f)]


def main():
    flags = [f for f in sys.argv[1:] if f not in ("-Werror", "-MMD", "-MP")]
    c = untidied([f for f in listed("*.c") if f.startswith(TIDIED)])
    checks = [(f"clang-tidy, {len(c[i:i + BATCH])} files", lambda i=i: tidy(c[i:i + BATCH], flags))
              for i in range(0, len(c), BATCH)]
    checks += [
        ("layers", lambda: run(*PYTHON, "tests/layers.py")),
        ("language", lambda: run(*PYTHON, "tests/language.py")),
        ("style", lambda: style(listed("*.c", "*.h", "*.py", "*.sh", "*.mk", "Makefile"))),
        ("pyflakes", lambda: pyflakes(listed("*.py"))),
        ("shellcheck", lambda: run("shellcheck", "-x", *shell_files())),
        ("mandoc", lambda: run("mandoc", "-T", "lint", "-W", "warning", *listed("docs/man/*"))),
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
