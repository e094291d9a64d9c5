# SPDX-License-Identifier: GPL-2.0-or-later
"""The programs of bench-gc and bench-heap."""
from dataclasses import dataclass

from gc_table import WEAK


@dataclass(frozen=True)
class Program:
    """@size: -n per live MiB; rounds, or @share per cent of one, for a run of some seconds."""
    name: str
    binary: str
    size: int
    rounds: int
    share: int = 100
    env: tuple = ()
    own: bool = False           # uses libebbgc's interface: not on bdwgc


PROGRAMS = (
    Program("regression", "regression", 5400, 3),
    Program("kmeans", "kmeans", 6500, 4),
    Program("closure", "closure", 1750, 2),
    Program("pagerank", "pagerank", 4700, 1),
    Program("triangles", "triangles", 2800, 2),
    Program("kv-write", "kv", 3400, 1, 75, ("KV_WRITES=60",)),
    Program("kv-read", "kv", 3400, 1, 75, ("KV_WRITES=20",)),
    Program("orders", "orders", 8200, 1, 8),
    Program("quads", "quads", 21900, 4),
    Program(WEAK[0], "intern", 9000, 1, 40, own=True),
    Program(WEAK[1], "properties", 4500, 1, 30, own=True),
)
