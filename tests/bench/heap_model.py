# SPDX-License-Identifier: GPL-2.0-or-later
"""
What bench-heap calculates: the time of a program whose heap is swapped, by counted swap-ins and by
what one has cost in bench-gc; and whose objects are far, by research's formula and by a replay.
"""
import json
import re
from dataclasses import dataclass

from measure import road

RESULTS = road.REPO / "docs" / "results"
# A far fetch, us; ms per MiB in and out; the barrier; of far-heap's prediction, and pessimistic.
EXPECTED = (2, 0.45, 0.2)
PESSIMISTIC = (4, 0.9, 0.5)
BARRIER = 1.05
MIB = 1 << 20
# What leaves of the limit for regions: less the process, 4 MiB, and a sixteenth.
PROCESS, RESERVE = 2 * MIB, 4 * MIB
# A read of a page through the device over TCP takes so much longer than from shm (docs/limits.md);
# what a far fetch is then given in addition.
TCP_PAGE_US, ADDED_US = 98 - 46, 40
POLICIES = ("auto", "none", "leap")
MODES = ("concurrent", "ebb")
LIVE_MIB = 128


@dataclass(frozen=True)
class Known:
    """What bench-gc has measured of a program; seconds, None: not known."""
    local: float                # with all memory
    short: float = None         # the fastest mode with so many per cent of it
    mode: str = None            # that mode
    swapped_in: float = None    # its pages
    page_us: float = None       # per page swapped in
    source: str = ""

    def swapped(self, pages, mib=LIVE_MIB, more_us=0):
        """Returns the modelled seconds with @pages swapped in; None if a page's price is not known."""
        if self.local is None or self.page_us is None:
            return None
        return self.local * mib / LIVE_MIB + pages * (self.page_us + more_us) / 1e6


def budget(limit):
    """Returns the bytes of @limit that a far store may use."""
    return int((limit - PROCESS - RESERVE) * 15 / 16)


def results(kernel):
    """Returns (rows of bench-gc, where they are): this kernel's if there are any, else others."""
    paths = sorted(RESULTS.glob("*/gc.json"), key=lambda p: (p.parent.name != kernel, p.parent.name))
    for path in paths:
        return json.loads(path.read_text())["rows"], path.parent.name
    return [], ""


def ended(row):
    """Does the row's time end with the program, not at a limit?"""
    p = row["params"]
    return (p.get("live_mib"), p.get("donor"), p.get("threads"), p.get("markers")) == (LIVE_MIB, "shm", 1, 1) \
        and row["ebb"] and p.get("swapped_in") is not None and not p.get("cut") and "regime" not in p


def known(rows, source, program, percent):
    """Returns Known: the fastest of the collector's modes and of the policies, each by its median."""
    found = {}
    for row in rows:
        at = re.fullmatch(rf"{program}, (\d+) %, ({'|'.join(POLICIES)}), ({'|'.join(MODES)})", row["name"])
        if at and ended(row):
            found.setdefault(int(at[1]), []).append((row["ebb"], f"{at[3]}, {at[2]}", row["params"]))
    fastest = {p: min(some, key=lambda f: f[0]) for p, some in found.items()}
    if 100 not in fastest:
        return Known(None, source=source)
    local, short = fastest.pop(100)[0], fastest.get(percent)
    # Where the program was ended at a limit, a page costs what it does with other percentages.
    near = short or min(fastest.values(), key=lambda f: f[0], default=None)
    page_us = (near[0] - local) / near[2]["swapped_in"] * 1e6 if near else None
    if not short:
        return Known(local, page_us=page_us, source=source)
    return Known(local, short[0], short[1], short[2]["swapped_in"], page_us, source)


def predicted(local, told, how=EXPECTED):
    """Returns the seconds of a program with far objects by far-heap's formula and counts of a replay."""
    fetch_us, in_ms, out_ms = how
    return (local * 1.05 * BARRIER + told["fetches"] * fetch_us / 1e6
            + told["home_bytes"] / MIB * in_ms / 1e3 + told["left_bytes"] / MIB * out_ms / 1e3)


def delayed(seconds, told, followed):
    """
    Returns the seconds with ADDED_US for each read of the donor; @followed: it sends an object and
    those that the program then follows references to in one reply, at best all of them.
    """
    reads = told["fetches"] + told["homes"] - (told["followed"] if followed else 0)
    return seconds + reads * ADDED_US / 1e6


def replayed(local, plain, seconds):
    """Returns the program's seconds: @local, and what the replay took beyond one with all memory."""
    return local + max(seconds - plain, 0)
