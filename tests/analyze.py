#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
analyze.py [FILE...]: runs GCC's analyzer and clang's thread-safety analysis over programs of
libebbdsm: its examples, of which neither may complain, and the files of tests/misuse.

Such a file has a mistake within #ifdef MISUSE, and says in its first lines which compiler must warn
of it, and how: "// gcc: -Wanalyzer-malloc-leak".  Without MISUSE, neither may complain.
"""
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# The optimizer finds values that are not initialized; the analyzer works best without it.
COMPILERS = {"gcc": ("gcc -O0 -fanalyzer", "gcc -O2"), "clang": ("clang -Wthread-safety",)}
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Iuserlib/dsm", "-c", "-o", "/dev/null")
EXPECTED = re.compile(r"^// (gcc|clang): (-W\S+)$", re.M)


def warnings(compiler, path, *flags):
    """Returns (options of warnings, what the compiler says)."""
    said = ""
    for command in COMPILERS[compiler]:
        done = subprocess.run([*command.split(), *FLAGS, *flags, path], cwd=REPO, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        said += done.stdout
        if done.returncode:
            return {"errors"}, said
    return set(re.findall(r"warning: .*\[(?:CWE-\d+\] \[)?(-W[\w-]+)", said)), said


def complaints(path):
    """Returns what is wrong with the file, or with what compilers say of it."""
    wrong = []
    for compiler in COMPILERS:
        found, said = warnings(compiler, path)
        if found:
            wrong.append(f"{path}: {compiler} complains:\n{said}")
    if not path.startswith("tests/misuse/"):
        return wrong
    expected = EXPECTED.findall((REPO / path).read_text())
    if not expected:
        wrong.append(f"{path}: says of no compiler how it warns")
    for compiler, option in expected:
        found, said = warnings(compiler, path, "-DMISUSE")
        if option not in found:
            wrong.append(f"{path}: {compiler} does not warn of the misuse by {option}:\n{said or '(nothing)'}")
    return wrong


def files():
    return sorted(str(p.relative_to(REPO)) for d in ("userlib/dsm/examples", "tests/misuse")
                  for p in (REPO / d).glob("*.c"))


def main():
    wrong = [line for path in sys.argv[1:] or files() for line in complaints(path)]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
