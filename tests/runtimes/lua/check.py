#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
check.py DIR [TESTS]: tests DIR/lua and DIR/lua-stress, which are Lua on libebbgc.

Runs each script of scripts/ and bench/ in checking mode, in several modes of the heap, and compares
what it prints with Debian's lua5.4.  With TESTS, the directory of Lua's official test suite, runs
that in its portable mode, after it has disabled the assertions that `skipped` lists.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REFERENCE = "lua5.4"
MODES = ("check,min=1M", "check,min=1M,mode=stop", "check,min=1M,address",
         "check,min=1M,mode=swapping,residency=simulated", "check,min=1M,nursery=64K",
         "check,min=1M,mode=swapping,residency=simulated,nursery=256K")
STRESS = ("check", "check,nursery=64K")
LIMIT = 300
# In gc.lua: with a nursery, as in Lua's generational mode, a finalizer that runs says nothing of
# older objects.
GC = (b"GC1(); GC2() end", b"GC1(); GC2(); collectgarbage() end")


def scripts():
    return sorted((HERE / "scripts").glob("*.lua")) + sorted((HERE / "bench").glob("*.lua"))


def output(program, script, options=None):
    """Returns the exit status and what the program prints, errors included."""
    env = {**os.environ, "EBBGC_OPTIONS": options} if options else os.environ
    done = subprocess.run([program, script], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=LIMIT, cwd=HERE)
    return done.returncode, done.stdout.decode(errors="replace").replace(str(program), "lua")


def compare(programs, script):
    """Returns what is wrong with a script's runs."""
    expected = output(shutil.which(REFERENCE), script)
    if expected[0]:
        return [f"{script.name}: {REFERENCE} fails: {expected[1]}"]
    runs = [(programs / "lua", mode) for mode in MODES] + [
        (programs / "lua-stress", mode) for mode in STRESS]
    wrong = []
    for program, mode in runs:
        found = output(program, script, mode)
        if found != expected:
            wrong.append(f"{script.name}: {program.name} with {mode}: exit status {found[0]}, "
                         f"prints\n{found[1]}instead of\n{expected[1]}")
    return wrong


def refusals(lua):
    """Returns what is wrong with the messages for options that no heap has."""
    script = scripts()[0]
    wrong = []
    for options, text in (("nursery=1", "not valid"), ("nosuch", "not valid")):
        status, printed = output(lua, script, options)
        if status != 1 or "lua: EBBGC_OPTIONS: " not in printed or text not in printed:
            wrong.append(f"{options}: exit status {status}, prints\n{printed}"
                         f"instead of a message with {text!r}")
    return wrong


def skipped():
    """Returns [(file, text, reason)] of the assertions that are not tested."""
    rows = []
    for line in (HERE / "skipped").read_text().splitlines():
        if line and not line.startswith("#"):
            file, text, reason = re.split(r" +: +", line, maxsplit=2)
            rows.append((file, text, reason))
    return rows


def suite(program, tests):
    """Runs a copy of the official test suite; returns what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "tests"
        shutil.copytree(tests, copy)
        for file, text, reason in skipped():
            old = (copy / file).read_bytes()
            if text.encode() not in old:
                return [f"skipped: {file} has no {text!r}"]
            (copy / file).write_bytes(old.replace(text.encode(), b"do end --" + text.encode()))
            print(f"  skipped  {file}: {text}: {reason}")
        plain = (copy / "gc.lua").read_bytes()
        for mode in MODES:
            (copy / "gc.lua").write_bytes(plain.replace(*GC) if "nursery" in mode else plain)
            done = subprocess.run([program, "-W", "-e", "_port=true", "all.lua"], cwd=copy,
                                  env={**os.environ, "EBBGC_OPTIONS": mode}, timeout=4 * LIMIT,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode or b"final OK" not in done.stdout:
                return [f"all.lua with {mode}: exit status {done.returncode}\n"
                        f"{done.stdout[-2000:].decode(errors='replace')}"]
            print(f"  ok       official tests with {mode}", flush=True)
    print(f"  {len(skipped())} assertions skipped")
    return []


def main():
    programs = Path(sys.argv[1]).resolve()
    tests = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if not shutil.which(REFERENCE):
        sys.exit(f"{REFERENCE}: not found; run apt-get install {REFERENCE}")
    if tests and not (tests / "all.lua").exists():
        sys.exit(f"{tests}: has no all.lua; pass the directory of Lua 5.4.4's tests")
    wrong = []
    for script in scripts():
        found = compare(programs, script)
        print(f"  {'FAILED ' if found else 'ok     '}  {script.name}", flush=True)
        wrong += found
    wrong += refusals(programs / "lua")
    if tests:
        wrong += suite(programs / "lua", tests)
    print("\n".join(wrong), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
