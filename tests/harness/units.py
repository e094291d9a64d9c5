# SPDX-License-Identifier: GPL-2.0-or-later
"""
The unit files of ebb, and programs confined to a unit's rights.

  units.py UNIT PROGRAM [ARG...]   runs PROGRAM under the unit's SystemCallFilter= and RestrictRealtime=
"""
import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

UNITS = Path(__file__).resolve().parents[2] / "packaging" / "systemd"
# Constants of libseccomp.
ALLOW, ERRNO = 0x7fff0000, 0x00050000


def names():
    return [p.name for p in UNITS.iterdir() if p.suffix != ".catalog"]


def settings(unit, key):
    """Returns the values of @key= in a unit file, in file sequence."""
    lines = (UNITS / unit).read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def confined(unit, *user):
    """
    Returns the beginning of a command line that confines the rest to the unit's capabilities,
    system calls and scheduling policies, and to its own mount namespace if the unit has one.
    @user: options of setpriv for another user.
    """
    words = " ".join(settings(unit, "CapabilityBoundingSet")).split()
    names = ["-all", *(f"+{w.removeprefix('CAP_').lower()}" for w in words)]
    mounts = ["unshare", "--mount", "--propagation", "slave", "--"] \
        if settings(unit, "PrivateMounts") == ["yes"] else []
    return [*mounts, "setpriv", "--bounding-set", ",".join(names), "--inh-caps", "-all", "--no-new-privs",
            *user, "--", "/usr/bin/python3", "-B", __file__, unit]


def members(word):
    """Returns the system calls of a word of SystemCallFilter=."""
    if not word.startswith("@"):
        return {word}
    told = subprocess.run(["systemd-analyze", "--no-pager", "syscall-filter", word], text=True,
                          capture_output=True, check=True).stdout
    lines = (line.strip() for line in told.splitlines()[1:])
    return {name for line in lines if line and not line.startswith("#") for name in members(line)}


def system_calls(unit):
    """Returns the allowed system calls of a unit: lines add, lines with "~" remove."""
    names = set()
    for line in settings(unit, "SystemCallFilter"):
        these = set().union(*(members(w) for w in line.removeprefix("~").split()))
        names = names - these if line.startswith("~") else names | these
    return names


class Compare(ctypes.Structure):
    """struct scmp_arg_cmp"""
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64),
                ("b", ctypes.c_uint64)]


EQUAL = 4
TIMESHARED = (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE)


def load_filter(names, realtime=True):
    """
    Makes all other system calls fail with EPERM, for this process and its children; without
    @realtime also changes to a real-time policy.
    """
    lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(ERRNO | errno.EPERM)))
    numbers = {lib.seccomp_syscall_resolve_name(name.encode()) for name in names}
    setter = lib.seccomp_syscall_resolve_name(b"sched_setscheduler")
    rules = {number: [[]] for number in numbers if number >= 0}
    if not realtime:
        rules[setter] = [[Compare(1, EQUAL, policy)] for policy in TIMESHARED]
    for number, conditions in sorted(rules.items()):
        for wanted in conditions:
            r = lib.seccomp_rule_add_array(context, ctypes.c_uint32(ALLOW), number, len(wanted),
                                           (Compare * len(wanted))(*wanted))
            assert r == 0, (number, r)
    r = lib.seccomp_load(context)
    assert r == 0, r


if __name__ == "__main__":
    load_filter(system_calls(sys.argv[1]), settings(sys.argv[1], "RestrictRealtime") != ["yes"])
    os.execvp(sys.argv[2], sys.argv[2:])
