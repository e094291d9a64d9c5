# SPDX-License-Identifier: GPL-2.0-or-later
"""All benchmarks: the question, estimated duration and meaning of the ratio of each."""
from dataclasses import dataclass

# Variables that narrow or widen a run: tests/bench/README.md.
KNOBS = ("ONLY", "RUNS", "MIB", "PERCENTS", "CPUS", "DONOR", "DELAYS", "MODES", "POLICIES",
         "POLICY", "COMPUTE", "THREADS", "MARKERS", "ROUNDS", "LIMIT", "MINUTES", "FLOOR", "BESIDE",
         "PATTERN", "SPIN", "CONNECTIONS", "KEEP", "AWAKE", "OLD", "QUICK")


@dataclass(frozen=True)
class Bench:
    """`make bench-NAME`, which writes build/bench/NAME.json."""
    name: str
    minutes: float              # estimate for two processors without knobs
    question: str
    method: str = ""            # heading of docs/benchmarks.md or tests/bench/methods.md, as in a link
    ratio: str = ""             # meaning of the ratio, if not baseline / ebb

    @property
    def goal(self):
        return f"bench-{self.name}"

    @property
    def script(self):
        """The name of its file in tests/bench."""
        return "speed.py" if self.name in ("seal", "policy") else f"{self.name.replace('-', '_')}.py"


ALL = (
    Bench("seal", 0.2, "how long does it take to seal and open a page, and to compute its MAC?"),
    Bench("policy", 0.5, "how long does a call of each policy take?"),
    Bench("far", 4, "how fast is far memory, compared with a socket and with malloc?", "bench-far",
          "bare exchange / ebb; request / ebb; malloc / ebb"),
    Bench("dsm", 12, "what do programs that share objects send and wait for, by libebbdsm and otherwise?", "bench-dsm",
          "another way / libebbdsm"),
    Bench("drift", 3, "how often is a heap wrong about the residency of its pages?", "bench-drift"),
    Bench("hooks", 6, "what do the BPF hooks cost a fault that gains nothing?", "method"),
    Bench("idle", 15, "what does ebbd cost while a thousand attached cgroups are idle?", "bench-idle"),
    Bench("neighbour", 6, "how much longer does a miss take beside a program with heavy prefetching?", "method",
          "a miss beside the neighbour / alone"),
    Bench("device", 8, "how long does a page take through the device?", "bench-device",
          "first / second"),
    Bench("cost", 14, "how much processor time does a page take, and where?", "bench-cost",
          "floor / this mode"),
    Bench("cost-guest", 20, "what does a page take on cgroup v2, and with ublk, by counts?",
          "bench-cost-guest", "first / second"),
    Bench("heap", 22, "does a heap gain if objects leave it, not pages?", "bench-heap", "swap / far objects"),
    Bench("scan", 15, "what do perfect access patterns gain, and what do random ones lose?",
          "method"),
    Bench("guest", 30, "what does a page cost, compared with other kernel and user-space data paths?", "bench-guest",
          "first / second"),
    Bench("latency", 60, "from which device latency on does prefetching pay?", "bench-latency"),
    Bench("apps", 270, "do real programs gain or lose?", "method"),
    Bench("advise", 160, "are the predictions of `ebbctl advise` right?", "bench-advise",
          "misses: predicted / measured; time: fastest policy / advised policy"),
    Bench("prefetch", 180, "which policy recognizes which access pattern, and what is it worth?",
          "bench-prefetch"),
    Bench("gc", 400, "what do garbage collectors cost in remote memory?", "bench-gc",
          "plain concurrent collector / this collector; slowdown: short of memory / all local"),
)


def choose(only, skip):
    """Returns the benchmarks in @only, or all, without @skip: NAME,...; ValueError names unknown ones."""
    known = {b.name: b for b in ALL}
    named = {text: [n.removeprefix("bench-") for n in (text or "").split(",") if n]
             for text in (only, skip)}
    unknown = [n for names in named.values() for n in names if n not in known]
    if unknown:
        raise ValueError(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    return [b for b in ALL if (not named[only] or b.name in named[only]) and b.name not in named[skip]]
