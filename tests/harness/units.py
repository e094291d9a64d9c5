# SPDX-License-Identifier: GPL-2.0-or-later
"""The unit files of ebb, and programs with no more rights than these give them."""
import machine

UNITS = machine.REPO / "packaging" / "systemd"


def names():
    return [p.name for p in UNITS.iterdir() if p.suffix != ".catalog"]


def settings(unit, key):
    """The values of @key= in a unit file, in order."""
    lines = (UNITS / unit).read_text().splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def bounded(unit):
    """A command line's beginning: what follows has the unit's capabilities and no others."""
    words = " ".join(settings(unit, "CapabilityBoundingSet")).split()
    names = ["-all", *(f"+{w.removeprefix('CAP_').lower()}" for w in words)]
    return ["setpriv", "--bounding-set", ",".join(names), "--inh-caps", "-all", "--no-new-privs"]
