# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmarks there are: what each asks, about how long it takes, how its ratios are drawn."""
from dataclasses import dataclass

BETTER = "baseline / ebb: right of 1 ebb is better"
# What a run can be narrowed or widened with: tests/bench/README.md.
KNOBS = ("ONLY", "RUNS", "MIB", "PERCENTS", "CPUS", "DONOR", "DELAYS", "MODES", "POLICIES",
         "POLICY", "THREADS", "MARKERS", "ROUNDS", "LIMIT", "MINUTES", "FLOOR", "BESIDE", "SPIN",
         "CONNECTIONS", "KEEP", "AWAKE")


@dataclass(frozen=True)
class Bench:
    """`make bench-NAME`, which writes build/bench/NAME.json."""
    name: str
    minutes: float              # a first guess, with two processors and no knobs
    question: str
    method: str = ""            # heading of docs/benchmarks.md, as in a link
    axis: str = BETTER
    also: tuple = ()            # params that its table shows

    @property
    def goal(self):
        return f"bench-{self.name}"


ALL = (
    Bench("seal", 0.2, "what does it take to seal and to open a page?"),
    Bench("policy", 0.5, "what does a call of each policy take?", also=("hits",)),
    Bench("drift", 3, "how wrong is what a heap holds of its pages?", "bench-drift",
          also=("unseen", "stale", "out", "cached")),
    Bench("hooks", 6, "what does a fault cost those who gain nothing?", "method"),
    Bench("map-ahead", 5, "does it pay to map what was fetched before the program comes?",
          "method"),
    Bench("neighbour", 6, "what does a greedy neighbour cost a miss?", "method",
          "p99 beside it / p99 alone: right of 1 a miss waits longer"),
    Bench("device", 8, "what does a page cost on its way through the device?", "bench-device",
          "first / second: right of 1 the second is better"),
    Bench("scan", 15, "how much is gained where order is perfect, and lost where there is none?",
          "method"),
    Bench("guest", 30, "what does a page cost next to what the kernel and others have?", "bench-guest",
          "first / second: right of 1 the second takes less", also=("nothing",)),
    Bench("latency", 60, "from which device latency on does it pay?", "bench-latency",
          also=("miss_us",)),
    Bench("apps", 150, "does ebb ever do harm?", "method",
          also=("coverage", "accuracy", "awake")),
    Bench("advise", 160, "does what `ebbctl advise` says come true?", "bench-advise",
          "misses: predicted / measured; time: of the best policy / of the advised one"),
    Bench("prefetch", 180, "which policy finds which order, and what is it worth?",
          "bench-prefetch", also=("donor", "coverage", "accuracy")),
    Bench("gc", 200, "what do collectors cost on far memory?", "bench-gc",
          "plain concurrent collector / this one: right of 1 this one is better",
          also=("donor", "live_mib", "threads", "markers", "cycles", "mutator_misses", "gc_misses",
                "fetched_pages", "swapped_in", "swapped_out", "dropped_mib",
                "mutator_cpu_seconds", "pause_p50_ms", "pause_p99_ms", "pause_max_ms")),
)


def choose(only, skip):
    """Those named in @only, or all, without those in @skip: NAME,...; ValueError names the unknown."""
    known = {b.name: b for b in ALL}
    named = {text: [n.removeprefix("bench-") for n in (text or "").split(",") if n]
             for text in (only, skip)}
    unknown = [n for names in named.values() for n in names if n not in known]
    if unknown:
        raise ValueError(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    return [b for b in ALL if (not named[only] or b.name in named[only]) and b.name not in named[skip]]
