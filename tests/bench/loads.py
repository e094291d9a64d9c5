# SPDX-License-Identifier: GPL-2.0-or-later
"""
Loads of bench-prefetch and bench-latency: scans with known access patterns, each checking its
own data, and JVM programs with a garbage collector.
"""
from dataclasses import dataclass, field

from measure import road

WALKS = road.machine.BUILD / "tests" / "walks"
SCAN = road.machine.BUILD / "tests" / "scan"
CLASSES = road.machine.BUILD / "tests" / "java"
JARS = "/usr/share/java"
# Debian's, even if another java comes first in PATH.
JAVA = "/usr/lib/jvm/default-java/bin/java"

ORDERED, HARMLESS, COLLECTED = "ordered", "harmless", "collected"
# ebb's policies to try on each kind; those that ebbd lacks are omitted.
CANDIDATES = {ORDERED: ("streams", "replay"), HARMLESS: ("streams", "replay"),
              COLLECTED: ("gcaware", "streams")}
# Local memory of loads that must fit, per cent of their size.
FITTING = 150
# Heap size over MIB=; local memory is a quarter of the heap.
HEAP = 4
HEAP_PERCENT = 25


@dataclass(frozen=True, eq=False)
class Walk:
    """A program of this tree, measured after its warm-up passes."""
    name: str
    words: tuple                # command line
    passes: int
    warm: int = 0
    share: float = 1.0          # of MIB=: less for programs that compute a lot
    kind: str = ORDERED
    targets: dict = field(default_factory=dict)     # least gain by transport
    coverage: float = None      # least, of the measured part
    fits: bool = False
    program: str = str(WALKS)
    marked = True

    def bytes(self, mib):
        return max(int(mib * self.share), 4) << 20

    def limit(self, mib, percent):
        return self.bytes(mib) * percent // 100

    def percents(self, chosen):
        return [FITTING] if self.fits else chosen

    def argv(self, mib, mark):
        return [self.program, *self.words, "--mib", str(self.bytes(mib) >> 20), "--passes",
                str(self.passes + self.warm), "--warm", str(self.warm), "--mark", str(mark)]


def scan(name, pattern, *words, **what):
    return Walk(name, ("--json", "--pattern", pattern, *words), program=str(SCAN), **what)


def walk(name, **what):
    return Walk(name, ("--kind", name), **what)


@dataclass(frozen=True, eq=False)
class Java:
    """An unmodified virtual machine, timed from exec to exit."""
    name: str
    collector: str
    words: tuple                # class and arguments; {n} is a size that fits the heap
    per_mib: float              # {n} per MiB of heap
    jar: str = None
    kind = COLLECTED
    targets = {}
    coverage = None
    marked = False

    def heap(self, mib):
        return mib * HEAP

    def bytes(self, mib):
        return self.heap(mib) << 20

    def limit(self, mib, percent):
        return self.bytes(mib) * percent // 100

    def percents(self, chosen):
        return [HEAP_PERCENT]

    def argv(self, mib, mark):
        heap = self.heap(mib)
        path = ":".join([str(CLASSES), *([f"{JARS}/{self.jar}"] if self.jar else [])])
        words = [w.replace("{n}", str(int(self.per_mib * heap))) for w in self.words]
        return [JAVA, f"-Xms{heap}m", f"-Xmx{heap}m", f"-XX:+Use{self.collector}GC",
                "-Dderby.stream.error.file=/dev/null", "-cp", path, *words]


def least(tcp=None, shm=None):
    return {t: v for t, v in (("tcp", tcp), ("shm", shm)) if v}


WALKED = (
    scan("seq", "seq", passes=3, targets=least(1.5, 1.8)),
    scan("reverse", "reverse", passes=2, targets=least(1.5, 1.8)),
    scan("stride:2", "stride:2", passes=1, targets=least(2.2, 3)),
    scan("stride:7", "stride:7", passes=1, targets=least(2.2, 3)),
    scan("stride:64", "stride:64", passes=2, targets=least(2.2, 3)),
    walk("sum:3", passes=2, targets=least(shm=2.5)),
    walk("sum:8", passes=2, targets=least(shm=2)),
    walk("threads:8", passes=3, targets=least(shm=1.3)),
    walk("column", passes=1, targets=least(shm=3)),
    walk("multiply", passes=1, share=0.75, targets=least(shm=1.3)),
    scan("chase", "chase", passes=1, warm=1, targets=least(1.8, 2.5), coverage=0.8),
    scan("chase:2048", "chase", "--node", "2048", passes=1, warm=1, targets=least(1.8, 2.5),
         coverage=0.8),
    walk("pagerank", passes=9, warm=1, targets=least(shm=2), coverage=0.8),
    walk("join", passes=1, warm=1, targets=least(shm=1.3), coverage=0.8),
    scan("uniform", "random", passes=1, kind=HARMLESS),
    walk("zipf", passes=1, kind=HARMLESS),
    scan("fits", "seq", passes=40, kind=HARMLESS, fits=True),
)

# Concurrent: Shenandoah.  ZGC maps its heap, shared memory, at three addresses and uses all of them.
COLLECTORS = ("G1", "Shenandoah")
PROGRAMS = (
    ("graph", ("GraphAnalytics", "{n}", "3"), 900, None),
    ("regression", ("BoxedRegression", "{n}", "10"), 900, None),
    ("h2", ("JdbcLoad", "jdbc:h2:mem:load", "{n}", "400"), 60, "h2.jar"),
    ("derby", ("JdbcLoad", "jdbc:derby:memory:load;create=true", "{n}", "240"), 25, "derby.jar"),
)
JVM = tuple(Java(f"{name}-{c.lower()}", c, words, per_mib, jar)
            for name, words, per_mib, jar in PROGRAMS for c in COLLECTORS)
ALL = WALKED + JVM


def choose(text, default):
    """Returns the loads named in @text; sum stands for sum:3 and sum:8, h2 for both collectors."""
    if not text:
        return list(default)
    chosen = []
    for word in text.split(","):
        found = [x for x in ALL if x.name == word]
        found = found or [x for x in ALL if x.name.startswith((word + ":", word + "-"))
                          or (word == "jvm" and x in JVM)]
        if not found:
            raise ValueError(f"ONLY={word}: there is no such program; there are "
                             + ", ".join(["jvm", *(x.name for x in ALL)]))
        chosen += [x for x in found if x not in chosen]
    return chosen
