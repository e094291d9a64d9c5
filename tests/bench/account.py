# SPDX-License-Identifier: GPL-2.0-or-later
"""
What one run used, by component: processor time and context switches of every thread, interrupts,
faults, pages, and, while tests/bench/count runs, system calls, softirqs and BPF programs.
"""
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field

from measure import road
from road import machine

COUNT = machine.BUILD / "tests" / "count"
EXECUTOR = "ebbd-prefetch"
# Components of a page's cost.  "interrupts" are those that hit an idle CPU: the others are part of
# the time of the thread that they interrupted.
COMPONENTS = ("program", "executor", "ebbd", "ebb-swapd", "ebb-donord", "loop", "kernel",
              "interrupts")
# Threads beside the measured ones: this benchmark, and all other processes.
BESIDE = ("bench", "other")
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
# System calls that copy between user space and the kernel and return the number of bytes; others
# that ebb uses.  Numbers of x86-64, for which count.bpf.c is compiled.
MOVERS = {0: "read", 1: "write", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
          44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 295: "preadv",
          296: "pwritev", 310: "process_vm_readv", 311: "process_vm_writev", 327: "preadv2",
          328: "pwritev2"}
CALLS = {**MOVERS, 3: "close", 7: "poll", 16: "ioctl", 24: "sched_yield", 28: "madvise",
         202: "futex", 208: "io_getevents", 209: "io_submit", 230: "clock_nanosleep",
         232: "epoll_wait", 257: "openat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
         299: "recvmmsg", 307: "sendmmsg", 321: "bpf", 426: "io_uring_enter",
         440: "process_madvise", 441: "epoll_pwait2"}


# --- readers ---------------------------------------------------------------

@dataclass
class Thread:
    pid: int                    # of its process
    name: str
    ns: int = 0                 # on a CPU so far
    voluntary: int = 0          # context switches so far
    involuntary: int = 0


def parse_switches(status):
    """Returns (voluntary, involuntary) context switches in the text of /proc/PID/status."""
    found = dict(re.findall(r"^(\w+)_ctxt_switches:\s*(\d+)$", status, re.M))
    return int(found.get("voluntary", 0)), int(found.get("nonvoluntary", 0))


def parse_interrupts(text, cpus):
    """Returns {name: sum over all CPUs} of /proc/interrupts or /proc/softirqs; devices together."""
    found = {}
    for line in text.splitlines()[1:]:
        name, _, rest = line.partition(":")
        counts = [int(n) for n in rest.split()[:cpus] if n.isdigit()]
        name = "device" if name.strip().isdigit() else name.strip()
        found[name] = found.get(name, 0) + sum(counts)
    return found


def parse_busy(text, cpus, at_us):
    """
    Returns the us that all CPUs were busy until @at_us, less a constant: time less idle time,
    which the kernel measures, while it samples the others by ticks.
    """
    fields = [int(n) for n in text.split("\n", 1)[0].split()[1:]]
    idle, iowait, steal = fields[3], fields[4], fields[7] if len(fields) > 7 else 0
    return at_us * cpus - (idle + iowait + steal) * TICK_US


def parse_words(text, *keys):
    """Returns {key: number} of lines such as "pswpin 12"."""
    rows = dict(line.split()[:2] for line in text.splitlines() if " " in line)
    return {key: int(rows.get(key, 0)) for key in keys}


def parse_faults(stat):
    """Returns (minor, major) faults in the text of /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[7]), int(fields[9])) if len(fields) > 9 else (0, 0)


def tasks():
    """Yields (pid, tid) of all threads."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            tids = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue
        for tid in tids:
            yield int(pid), int(tid)


def parents():
    """Returns {pid: its parent's pid}."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        fields = machine.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if fields:
            found[int(pid)] = int(fields[1])
    return found


def family(pid, of):
    """Returns @pid and its descendants by the map @of, from a pid to its parent's."""
    found = {pid}
    while more := {p for p, parent in of.items() if parent in found} - found:
        found |= more
    return found


@dataclass
class Snapshot:
    """Counters of the machine at one moment, while the program waits."""
    threads: dict = field(default_factory=dict)     # tid -> Thread
    busy_us: float = 0.0
    at: float = 0.0
    interrupts: dict = field(default_factory=dict)
    softirqs: dict = field(default_factory=dict)
    pages: dict = field(default_factory=dict)       # pswpin, pswpout
    faults: tuple = (0, 0)
    counted: dict = field(default_factory=dict)     # answer of count
    ebb: dict = field(default_factory=dict)         # row of ebbctl stats

    def read_times(self):
        """Reads what this process itself changes: closest to the measured part."""
        cpus = os.cpu_count()
        self.at = time.monotonic()
        self.busy_us = parse_busy(machine.read("/proc/stat"), cpus, self.at * 1e6)
        for pid, tid in tasks():
            told = machine.read(f"/proc/{pid}/task/{tid}/schedstat").split()
            if told:
                thread = self.threads.setdefault(tid, Thread(pid, ""))
                thread.ns = int(told[0])

    def read_rest(self, program, count, ebb):
        cpus = os.cpu_count()
        self.interrupts = parse_interrupts(machine.read("/proc/interrupts"), cpus)
        self.softirqs = parse_interrupts(machine.read("/proc/softirqs"), cpus)
        self.pages = parse_words(machine.read("/proc/vmstat"), "pswpin", "pswpout")
        self.faults = parse_faults(machine.read(f"/proc/{program}/stat"))
        self.counted = count.read() if count else {}
        self.ebb = ebb() if ebb else {}
        for pid, tid in tasks():
            thread = self.threads.setdefault(tid, Thread(pid, ""))
            thread.name = machine.read(f"/proc/{pid}/task/{tid}/comm").strip()
            thread.voluntary, thread.involuntary = parse_switches(
                machine.read(f"/proc/{pid}/task/{tid}/status"))


def at_start(program, count, ebb):
    s = Snapshot()
    s.read_rest(program, count, ebb)
    s.read_times()
    return s


def at_end(program, count, ebb):
    s = Snapshot()
    s.read_times()
    s.read_rest(program, count, ebb)
    return s


class Count:
    """tests/bench/count, for the duration of a `with`: ends with it, and so do its BPF programs."""

    def __enter__(self):
        self.process = subprocess.Popen([COUNT], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, start_new_session=True)
        if self.process.stdout.readline() != "ready\n":
            said = self.process.communicate()[1]
            raise road.Failure(said.strip() or f"count: ended with {self.process.returncode}")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.process.stderr.close()

    def read(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise road.Failure(f"count: ended with {self.process.wait()}")
        return json.loads(line)


# --- differences -----------------------------------------------------------

def component(thread, roles, kernel):
    """
    Returns (component, name) of a thread.  @roles are {pid: program, ebbd, ebb-swapd, ebb-donord or
    bench}, @kernel the pids of kernel threads.  The name of a kworker shows the work queue that it
    served last: kworker/u4:1-loop0, kworker/0:1H-kblockd.
    """
    role = roles.get(thread.pid)
    if role:
        return ("executor" if role == "ebbd" and thread.name == EXECUTOR else role,
                f"{role}/{thread.name}")
    if thread.pid not in kernel:
        return "other", "other"
    worker = re.match(r"kworker/[^-+]*[-+](\S+)", thread.name)
    if worker:
        queue = re.sub(r"\d+$", "", worker[1])
        return ("loop" if queue == "loop" else "kernel"), f"kworker {queue}"
    if re.match(r"loop\d+$", thread.name):
        return "loop", "loop"
    return "kernel", re.sub(r"/?[\d:H]*$", "", thread.name)


def added(into, key, value):
    into[key] = into.get(key, 0) + value


@dataclass
class Used:
    """Differences of two snapshots."""
    seconds: float
    pages: int                  # swapped in
    out: int                    # swapped out
    busy_us: float
    faults: tuple               # minor, major
    us: dict                    # component -> us
    threads: dict               # name -> us
    switches: dict              # component -> [voluntary, involuntary]
    interrupts: dict
    softirqs: dict              # name -> count
    calls: dict                 # component -> {name: count}
    moved: dict                 # component -> bytes
    bpf: dict                   # name -> [ns, runs]
    handled: dict               # interrupt or softirq -> [count, us, us while idle]
    ebb: dict                   # counters of ebbctl stats
    visits: int = 0             # accesses to pages


def minus(after, before):
    return {key: value - before.get(key, 0) for key, value in after.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)}


def thread_costs(before, after, roles, kernel):
    """Returns ({component: us}, {thread name: us}, {component: [voluntary, involuntary]})."""
    us, threads, switches = {}, {}, {}
    for tid, now in after.items():
        then = before.get(tid) or Thread(now.pid, now.name)
        # One kworker serves several queues: loop is one that served the device last at either end.
        part, name = component(then, roles, kernel)
        if part != "loop":
            part, name = component(now, roles, kernel)
        spent = (now.ns - then.ns) / 1e3
        added(us, part, spent)
        if spent:
            added(threads, name, spent)
        both = switches.setdefault(part, [0, 0])
        both[0] += now.voluntary - then.voluntary
        both[1] += now.involuntary - then.involuntary
    return us, threads, switches


def call_costs(before, after, roles):
    """Returns ({component: {call: count}}, {component: bytes moved}) of two answers of count."""
    calls, moved = {}, {}
    then = {(pid, number): (n, size) for pid, number, n, size in before.get("calls", [])}
    for pid, number, n, size in after.get("calls", []):
        part = roles.get(pid)
        if not part or part == "bench":
            continue
        old_n, old_size = then.get((pid, number), (0, 0))
        if n > old_n:
            added(calls.setdefault(part, {}), CALLS.get(number, f"call {number}"), n - old_n)
        if number in MOVERS:
            added(moved, part, size - old_size)
    return calls, moved


def bpf_costs(before, after):
    """Returns {name: [ns, runs]} of all BPF programs that ran; several of a name together."""
    then = {number: (ns, runs) for number, _, ns, runs in before.get("bpf", [])}
    found = {}
    for number, name, ns, runs in after.get("bpf", []):
        old_ns, old_runs = then.get(number, (0, 0))
        if runs > old_runs:
            both = found.setdefault(name or f"program {number}", [0, 0])
            both[0] += ns - old_ns
            both[1] += runs - old_runs
    return found


def handler_costs(before, after):
    """Returns {kind: [count, us, us while idle]} of softirqs and interrupts."""
    then = before.get("times", {})
    return {kind: [n - o[0], (ns - o[1]) / 1e3, (idle - o[2]) / 1e3]
            for kind, (n, ns, idle) in after.get("times", {}).items()
            for o in [then.get(kind, (0, 0, 0))] if n > o[0]}


def used(before, after, roles, kernel):
    us, threads, switches = thread_costs(before.threads, after.threads, roles, kernel)
    calls, moved = call_costs(before.counted, after.counted, roles)
    handled = handler_costs(before.counted, after.counted)
    if handled:
        us["interrupts"] = sum(idle for _, _, idle in handled.values())
    return Used(seconds=after.at - before.at, pages=after.pages["pswpin"] - before.pages["pswpin"],
                out=after.pages["pswpout"] - before.pages["pswpout"],
                busy_us=after.busy_us - before.busy_us,
                faults=tuple(a - b for a, b in zip(after.faults, before.faults)), us=us,
                threads=threads, switches=switches,
                interrupts=minus(after.interrupts, before.interrupts),
                softirqs=minus(after.softirqs, before.softirqs), calls=calls, moved=moved,
                bpf=bpf_costs(before.counted, after.counted), handled=handled,
                ebb=minus(after.ebb, before.ebb))


# --- costs of a page -------------------------------------------------------

def page_costs(timed, counted, in_memory_us):
    """
    Returns {component: us per page swapped in} of the run @timed.  The program's time is less
    @in_memory_us, that of the same accesses with all memory.  Interrupts of idle CPUs are those of
    the run @counted.
    """
    costs = {part: timed.us.get(part, 0.0) / timed.pages for part in COMPONENTS}
    costs["program"] -= in_memory_us / timed.pages
    costs["interrupts"] = counted.us.get("interrupts", 0.0) / counted.pages
    return costs


def calls_per_page_moved(counted):
    """Returns {component: system calls per page that was swapped in or out} of one run."""
    pages = max(counted.pages + counted.out, 1)
    return {part: sum(calls.values()) / pages for part, calls in counted.calls.items()}


def explained(timed, counted):
    """
    Returns (share of the machine's busy time that the components explain, share of threads beside
    them) of all these runs together: /proc/stat is too coarse for one.  The rest has no thread:
    the idle task's way into and out of sleep, and threads that ended.
    """
    parts = beside = 0.0
    for t, c in zip(timed, counted, strict=True):
        parts += sum(t.us.get(part, 0.0) for part in COMPONENTS if part != "interrupts")
        parts += c.us.get("interrupts", 0.0) / max(c.pages, 1) * t.pages
        beside += sum(t.us.get(part, 0.0) for part in BESIDE)
    busy = max(sum(t.busy_us for t in timed), 1.0)
    return parts / busy, beside / busy
