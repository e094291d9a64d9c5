#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Measures a page's way through the device: fio on loop devices over the simplest FUSE file, and
over ebb-swapd with a shm donor and with a tcp donor, the latter also without seals (open) and
with keys (keyed: TLS, and a MAC on each header); RUNS= (5) interleaved rounds.  No swap.
SPIN=USEC adds a server that polls for this time before it sleeps (spun), CONNECTIONS=N a
keyed one with N data connections (several).
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import measure
import road
from road import machine, parts

BARE = machine.BUILD / "tests" / "barefuse"
MIB = 512
SECONDS = 2
# Pairs of devices to compare.
PAIRS = (("bare", "shm"), ("bare", "tcp"), ("tcp", "shm"), ("open", "tcp"), ("tcp", "keyed"))
SPIN = os.environ.get("SPIN")
if SPIN:
    PAIRS += (("bare", "spun"), ("tcp", "spun"))
CONNECTIONS = os.environ.get("CONNECTIONS")
if CONNECTIONS:
    PAIRS += (("keyed", "several"),)
SEALED = {("open", "tcp"): 0.9}
# Kind of access, KiB per request, queue depth, least share of the first device's rate by pair.
JOBS = (("randread", 4, 1, {("bare", "shm"): 0.9, ("bare", "tcp"): 0.5, **SEALED}),
        ("randread", 4, 32, {("bare", "shm"): 0.8, ("bare", "tcp"): 0.5, **SEALED}),
        ("randread", 64, 1, {}), ("read", 128, 4, {}),
        ("randwrite", 4, 1, SEALED), ("randwrite", 64, 1, {}))


@dataclass
class Sample:
    us: float           # us per request
    p50: float
    p99: float
    p999: float
    cpu: float          # us per page, of the server and its donor


class Device:
    """A loop device on @file; @pids serve it."""

    def __init__(self, file, pids):
        self.file, self.pids, self.loop = file, pids, None

    def __enter__(self):
        self.loop = subprocess.run(
            ["losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show", self.file],
            check=True, capture_output=True, text=True).stdout.strip()
        self.fio("write", 256, 4, "--size", f"{MIB}M")
        return self

    def __exit__(self, *_):
        subprocess.run(["losetup", "-d", self.loop], check=True)

    def fio(self, what, kib, depth, *options):
        done = subprocess.run(
            ["fio", "--name=x", f"--filename={self.loop}", "--direct=1", f"--rw={what}",
             f"--bs={kib}k", f"--iodepth={depth}", "--output-format=json",
             f"--ioengine={'psync' if depth == 1 else 'libaio'}", *options],
            capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise road.Failure(f"fio: {done.stderr.strip()}")
        job = json.loads(done.stdout)["jobs"][0]
        return job["write" if "write" in what else "read"]

    def sample(self, what, kib, depth):
        cpu = sum(map(road.cpu_seconds, self.pids))
        told = self.fio(what, kib, depth, "--time_based", "--runtime", str(SECONDS))
        cpu = sum(map(road.cpu_seconds, self.pids)) - cpu
        at = {k: v / 1000 for k, v in told["clat_ns"]["percentile"].items()}
        return Sample(1e6 / told["iops"], at["50.000000"], at["99.000000"], at["99.900000"],
                      cpu * 1e6 * 4096 / told["io_bytes"])


def bare(stack, where):
    where.mkdir()
    server = subprocess.Popen([BARE, where, str(MIB)])
    stack.callback(server.wait, 30)
    stack.callback(subprocess.run, ["umount", where], check=True)
    machine.wait_for(lambda: (where / "swap").exists(), 20, f"{where}/swap")
    return stack.enter_context(Device(where / "swap", [server.pid]))


def ours(stack, where, address, lends=(), borrows=()):
    where.mkdir()
    log = measure.BENCH / "log"
    donor = parts.Daemon([machine.BIN / "ebb-donord", "--listen", address, "--memory",
                          f"{MIB}M", *lends], log / f"donor-{where.name}.log")
    stack.callback(donor.stop)
    backup = measure.BENCH / f"{where.name}.backup"
    server = parts.Daemon(
        [machine.BIN / "ebb-swapd", "--name", "bench", "--size", f"{MIB}M", "--donor", address,
         "--backup", backup, "--mount", where, "--foreground", *borrows],
        log / f"swapd-{where.name}.log", env={"EBB_RUN_DIR": str(where) + "-run"})
    stack.callback(server.stop)
    # The supervisor only watches; the serving processes are its children.
    processes = [server.pid, *machine.children(server.pid), donor.pid]
    return stack.enter_context(Device(where / "swap", processes))


def over_tcp(stack, where, lends=(), borrows=()):
    return ours(stack, where, f"127.0.0.1:{road.free_port()}", lends, borrows)


def key(top):
    path = top / "bench.key"
    if not path.exists():
        subprocess.run([machine.BIN / "ebbctl", "key", "create", path, "--name", "bench"],
                       check=True, capture_output=True)
    return path


def params(what, kib, depth, samples):
    return {"rw": what, "kib": kib, "depth": depth,
            **{f"{name}_{key}": measure.rounded(statistics.median(getattr(s, key) for s in taken))
               for name, taken in samples.items() for key in ("p50", "p99", "p999", "cpu")}}


def rows_of(what, kib, depth, least, taken):
    rows = []
    title = f"{what} {kib} KiB, {depth} at a time"
    for base, name in PAIRS:
        target = least.get((base, name))
        rows.append(measure.row(
            f"{title}: {base} to {name}",
            params(what, kib, depth, {k: taken[k] for k in (base, name)}),
            [s.us for s in taken[base]], [s.us for s in taken[name]], "us",
            target and f">= {target}",
            (lambda ratio, low, high: ratio >= target) if target else None))
    return rows


def check():
    """Checks the preconditions: unlike other benchmarks, this one needs neither ebbd nor swap."""
    missing = [f"build/{'/'.join(path.parts[-2:])}: not built; run make bench-device"
               for path in (BARE, machine.BIN / "ebb-swapd") if not path.exists()]
    if os.geteuid():
        missing.append("not root: mounts and loop devices need it; run it with sudo")
    if not shutil.which("fio"):
        missing.append("fio: not installed; run make deps")
    if road.mem_available() < 7 * MIB << 20:
        missing.append(f"memory: {7 * MIB} MiB needed; end something or use a larger machine")
    if missing:
        raise road.Failure("cannot run here:\n  " + "\n  ".join(missing))


def bench():
    check()
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ebb-")))
        devices = {"bare": bare(stack, top / "bare"),
                   "shm": ours(stack, top / "shm", f"unix:{top}/donor.sock"),
                   "tcp": over_tcp(stack, top / "tcp"),
                   "open": over_tcp(stack, top / "open", borrows=["--seal", "off"]),
                   "keyed": over_tcp(stack, top / "keyed", ["--keys", key(top)],
                                     ["--key", key(top)])}
        if SPIN:
            devices["spun"] = over_tcp(stack, top / "spun", borrows=["--spin", SPIN])
        if CONNECTIONS:
            devices["several"] = over_tcp(stack, top / "several", ["--keys", key(top)],
                                          ["--key", key(top), "--connections", CONNECTIONS])
        order = list(devices)
        for what, kib, depth, least in JOBS:
            taken = {name: [] for name in devices}
            for i in range(measure.runs(5)):
                for name in order[i % len(order):] + order[:i % len(order)]:
                    s = devices[name].sample(what, kib, depth)
                    taken[name].append(s)
                    road.say(f"{what:<9} {kib:>3} KiB x {depth:<2} {name:<5} {s.us:7.2f} us  "
                             f"p50 {s.p50:6.1f}  p99 {s.p99:7.1f}  CPU {s.cpu:5.2f} us/page")
            yield from rows_of(what, kib, depth, least, taken)


if __name__ == "__main__":
    sys.exit(measure.main("device", bench))
