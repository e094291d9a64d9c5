# SPDX-License-Identifier: GPL-2.0-or-later
"""Lua 5.4.4 on libebbgc prints what Debian's lua5.4 prints (tests/runtimes/lua)."""
import importlib.util
from pathlib import Path

import pytest

import machine

CHECK = Path(__file__).resolve().parents[1] / "runtimes/lua/check.py"
PROGRAMS = machine.BUILD / "runtimes/lua"
SOURCE = PROGRAMS / "lua5.4_5.4.4.orig.tar.gz"


def load():
    spec = importlib.util.spec_from_file_location("check_lua", CHECK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load()
# Those of `make check`: the others take minutes.
SHORT = ("scripts-weak_resize", "bench-binary_trees", "bench-queens")


def parameters():
    for s in check.scripts():
        name = f"{s.parent.name}-{s.stem}"
        marks = [] if name in SHORT else pytest.mark.long
        yield pytest.param(s, id=name, marks=marks)


@pytest.mark.parametrize("script", parameters())
def test_script(script):
    if not SOURCE.exists():
        pytest.skip(f"{SOURCE.name}: not downloaded; run make lua")
    assert check.compare(PROGRAMS, script) == []
