#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Counts the costs of a page between a block device and remote memory, in a guest with Debian's
6.12: the kernel module over Soft-RoCE, also with seals, inbox NVMe over RDMA and over TCP with a
target in RAM, nbd with nbdkit, and ebb-swapd by ublk.  RUNS= (5) interleaved rounds of fio, random
reads of 4 KiB; ONLY=kmod,kmod-sealed picks devices.  Emulated time means nothing: the context
switches, interrupts, RDMA packets and doorbells of the whole guest are counted.  One part stops a
donor while pages are read and written.
"""
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import measure
import road
from road import machine, parts

import kmodule
from kmodule import ADDRESS, DONOR

KERNEL = "6.12"
GUEST_SECONDS = 7200    # on a busy machine emulation takes several times as long
MIB = 64
SEALED = 1                      # class of pages
DEPTHS = {1: 2000, 32: 8000}    # reads per round: enough to hide the costs of fio's start
STOPPED_LOOPS = 4               # passes that write and read back all pages: 131072
STOPPED_AT_LEAST = 100000
CONFIGFS = Path("/sys/kernel/config/nvmet")
TRACING = Path("/sys/kernel/tracing")
SENT = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")

WHAT = {"switches": "context switches", "interrupts": "interrupts", "packets": "RDMA packets",
        "doorbells": "doorbells", "us": "time", "cpu": "CPU time"}
TIMES = ("us", "cpu")
# SAME: tolerates occasional packets of the connection itself.
(NO_MORE, no_more), (SAME, same) = measure.not_below(1), measure.not_below(0.99)
FEWER = "interval above 1"
VERDICT = {NO_MORE: no_more, SAME: same, None: None,
           FEWER: lambda ratio, low, high: None if low is None else low > 1}
# Pairs of devices: counts to compare, and their targets.
PAIRS = (
    ("nvme-rdma", "kmod", {"packets": NO_MORE, "doorbells": NO_MORE, "interrupts": NO_MORE,
                           "switches": NO_MORE, "us": None}),
    ("nbd", "ublk-shm", {"switches": FEWER, "interrupts": None, "us": None}),
    ("nbd", "ublk-tcp", {"switches": FEWER, "interrupts": None, "us": None}),
    ("nvme-tcp", "ublk-tcp", {"switches": None, "interrupts": None, "us": None}),
    ("ublk-shm", "kmod", {"switches": None, "interrupts": None, "us": None}),
    # Seals cost only CPU time, and the emulator's AES says nothing about a processor's.
    ("kmod", "kmod-sealed", {"packets": SAME, "doorbells": SAME, "interrupts": None,
                             "switches": None, "cpu": None, "us": None}),
)
NAMES = ("kmod", "kmod-sealed", "nvme-rdma", "nvme-tcp", "nbd", "ublk-shm", "ublk-tcp", "nothing")
# Least count per read: a ratio cannot use zero.
LEAST = 1e-3


def run(*argv):
    try:
        return kmodule.run(*argv)
    except subprocess.CalledProcessError as e:
        raise road.Failure(f"{' '.join(map(str, argv))}: {e.stderr.strip()}") from None


# --- counters --------------------------------------------------------------

class Doorbells:
    """Counts calls by which any user posts work to Soft-RoCE."""

    def __init__(self, stack):
        self.hits = TRACING / "kprobe_profile"
        # Truncating would remove other users' probes, and open() would seek.
        fd = os.open(TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"p:ebb/doorbell rdma_rxe:rxe_post_send\n")
        os.close(fd)
        # Only the hits are wanted, not the trace.
        (TRACING / "tracing_on").write_text("0")
        switch = TRACING / "events/ebb/doorbell/enable"
        switch.write_text("1")
        stack.callback(switch.write_text, "0")

    def read(self):
        return int(re.search(r"\bdoorbell\s+(\d+)", self.hits.read_text())[1])


def interrupts():
    """Counts all interrupts but the timer's, which depend on time."""
    found = 0
    for line in machine.read("/proc/interrupts").splitlines()[1:]:
        name, *rest = line.split()
        if name != "LOC:":
            found += sum(int(n) for n in rest[:os.cpu_count()] if n.isdigit())
    return found


def busy_us():
    """Returns the us that all processors were busy."""
    user, nice, system, _, _, irq, softirq = map(int, machine.read("/proc/stat").split()[1:8])
    return (user + nice + system + irq + softirq) * 1e6 / os.sysconf("SC_CLK_TCK")


def counts(doorbells):
    switches = re.search(r"^ctxt (\d+)", machine.read("/proc/stat"), re.M)
    time.sleep(0.02)    # Soft-RoCE's counters in sysfs may be 10 ms old
    return {"switches": int(switches[1]), "interrupts": interrupts(),
            "packets": int(machine.read(SENT)), "doorbells": doorbells.read(), "cpu": busy_us()}


@dataclass(frozen=True)
class Place:
    """MIB of a device, and the cgroup of these pages; None = the root."""
    path: str
    first_mib: int = 0
    cgroup: parts.Cgroup | None = None


def fio(place, *options):
    done = subprocess.run(
        ["fio", "--name=x", f"--filename={place.path}", f"--offset={place.first_mib}M",
         f"--size={MIB}M", "--direct=1", "--bs=4k", "--disk_util=0", "--eta=never",
         "--output-format=json", *options], capture_output=True, text=True,
        preexec_fn=place.cgroup and place.cgroup.enter)
    if done.returncode:
        raise road.Failure(f"{place.path}: fio: {done.stderr.strip()} {done.stdout[-400:]}")
    # fio prints other messages before the JSON.
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]


def sample(place, depth, doorbells):
    """Returns the counts per read of a page, and its times in us."""
    reads = DEPTHS[depth]
    before = counts(doorbells)
    told = fio(place, "--rw=randread", "--norandommap", f"--number_ios={reads}",
               f"--iodepth={depth}", f"--ioengine={'psync' if depth == 1 else 'libaio'}")
    after = counts(doorbells)
    done = told["read"]["total_ios"]
    if done < reads:
        raise road.Failure(f"{place.path}: {done} of {reads} reads")
    return {**{k: max((after[k] - before[k]) / done, LEAST) for k in before},
            "us": 1e6 / told["read"]["iops"]}


# --- the devices -----------------------------------------------------------

def kmod(stack, top):
    run("insmod", kmodule.module_path())
    stack.callback(run, "rmmod", "ebb_swap")
    donor = kmodule.RdmaDonor(top / "donord-rdma.log", memory=f"{2 * MIB}M")
    stack.callback(donor.stop)
    device = kmodule.KernelDevice(mib=2 * MIB)
    stack.callback(device.destroy)
    half = device.slabs // 2
    device.map(device.connect(), DONOR, range(half))
    cgroup = parts.Cgroup("bench-sealed")
    device.netlink.call("class", device=device.number, copies=DONOR, seal=True, **{"class": SEALED})
    device.netlink.call("assign", device=device.number, cgroup=os.stat(cgroup.path).st_ino,
                        **{"class": SEALED})
    device.map(device.connect(of=SEALED), DONOR, range(half, device.slabs))
    return device, donor, {"kmod": Place(device.path), "kmod-sealed": Place(device.path, MIB, cgroup)}


class Targets:
    """The kernel's NVMe target: a RAM disk, exported by each transport."""

    def __init__(self):
        run("modprobe", "-a", "nvmet", "nvmet-rdma", "nvmet-tcp", "nvme-rdma", "nvme-tcp")
        run("modprobe", "brd", "rd_nr=2", f"rd_size={MIB << 10}", "max_part=0")
        if not CONFIGFS.exists():
            run("mount", "-t", "configfs", "configfs", CONFIGFS.parent)

    def serve(self, number, transport, port):
        name = f"ebb-{transport}"
        subsystem, listener = CONFIGFS / "subsystems" / name, CONFIGFS / "ports" / str(number + 1)
        subsystem.mkdir()
        (subsystem / "attr_allow_any_host").write_text("1")
        space = subsystem / "namespaces" / "1"
        space.mkdir()
        (space / "device_path").write_text(f"/dev/ram{number}")
        (space / "enable").write_text("1")
        listener.mkdir()
        for key, value in (("trtype", transport), ("adrfam", "ipv4"), ("traddr", ADDRESS),
                           ("trsvcid", port)):
            (listener / f"addr_{key}").write_text(str(value))
        os.symlink(subsystem, listener / "subsystems" / name)
        return name

    def connect(self, stack, number, transport, port):
        """Returns the block device."""
        name = self.serve(number, transport, port)
        fd = os.open("/dev/nvme-fabrics", os.O_RDWR)
        try:
            os.write(fd, f"transport={transport},traddr={ADDRESS},trsvcid={port},nqn={name},"
                         f"nr_io_queues={os.cpu_count()}".encode())
            instance = re.search(r"instance=(\d+)", os.read(fd, 200).decode())[1]
        finally:
            os.close(fd)
        stack.callback(Path(f"/sys/class/nvme/nvme{instance}/delete_controller").write_text, "1")
        return machine.wait_for(lambda: self.device_of(name), 30, f"{name}: no block device")

    @staticmethod
    def device_of(name):
        for subsystem in Path("/sys/class/nvme-subsystem").glob("nvme-subsys*"):
            if machine.read(subsystem / "subsysnqn").strip() == name:
                for block in subsystem.rglob("nvme*n1"):
                    device = Path("/dev") / block.name
                    if re.fullmatch(r"nvme\d+n1", block.name) and device.is_block_device():
                        return str(device)
        return None


def nbd(stack, top):
    run("modprobe", "nbd", "nbds_max=1", "max_part=0")
    socket = top / "nbd.sock"
    server = subprocess.Popen(["nbdkit", "-f", "-U", socket, "memory", f"{MIB}M"])
    stack.callback(server.wait)
    stack.callback(server.terminate)
    machine.wait_for(socket.exists, 30, socket)
    run("nbd-client", "-unix", socket, "/dev/nbd0", "-b", "4096")
    stack.callback(run, "nbd-client", "-d", "/dev/nbd0")
    machine.wait_for(lambda: machine.read("/sys/block/nbd0/size").strip() == str(MIB << 11), 30,
                     "/dev/nbd0: no size")
    return "/dev/nbd0"


def ublk(stack, top, name, address):
    """Starts ebb-swapd on ublk, without seals like the devices it is compared with."""
    donor = parts.Daemon([machine.BIN / "ebb-donord", "--listen", address, "--memory", f"{MIB}M",
                          "--slab", "4M", "--drain-timeout", "0"], top / f"donord-{name}.log",
                         env={"EBB_RUN_DIR": str(top / f"{name}-donor")})
    stack.callback(donor.stop)
    (top / name).mkdir()
    server = parts.Daemon(
        [machine.BIN / "ebb-swapd", "--name", name, "--size", f"{MIB}M", "--slab", "4M", "--donor",
         address, "--mount", top / name, "--frontend", "ublk", "--durability", "none", "--seal",
         "off", "--deadline", "20s", "--watchdog", "60s", "--foreground"], top / f"swapd-{name}.log",
        env={"EBB_RUN_DIR": str(top / f"{name}-run")})
    stack.callback(server.stop)
    return parts.control(top / f"{name}-run" / "devices" / f"{name}.sock", "status")["file"]


def nothing():
    """Returns a device that answers at once: the cost of fio and the guest themselves."""
    run("modprobe", "null_blk", "nr_devices=1", "queue_mode=0", "irqmode=0", "gb=1")
    return "/dev/nullb0"


def chosen():
    """Returns the names in ONLY=, or all."""
    only = [n for n in os.environ.get("ONLY", "").split(",") if n]
    unknown = set(only) - set(NAMES)
    if unknown:
        raise road.Failure(f"ONLY={','.join(unknown)}: there is no such device; there are "
                           f"{', '.join(NAMES)}")
    # Each value is reported beside that of "nothing".
    return [n for n in NAMES if not only or n in only or n == "nothing"]


def everything(stack, top):
    """Returns the places by name, the module's device and its donor."""
    kmodule.soft_roce()
    run("modprobe", "ublk_drv")
    device, donor, found = kmod(stack, top)
    targets = Targets()
    make = {"nvme-rdma": lambda: targets.connect(stack, 0, "rdma", 4420),
            "nvme-tcp": lambda: targets.connect(stack, 1, "tcp", 4421),
            "nbd": lambda: nbd(stack, top),
            "ublk-shm": lambda: ublk(stack, top, "shm", f"unix:{top}/donor.sock"),
            "ublk-tcp": lambda: ublk(stack, top, "tcp", f"127.0.0.1:{road.free_port()}"),
            "nothing": nothing}
    places = {n: found[n] if n in found else Place(make[n]()) for n in chosen()}
    for name, place in places.items():
        scheduler = Path(f"/sys/block/{Path(place.path).name}/queue/scheduler")
        if "none" in machine.read(scheduler):
            scheduler.write_text("none")
        # Write each page, or there would be nothing to fetch.
        if name != "nothing":
            fio(place, "--rw=write", "--iodepth=8", "--ioengine=libaio")
    sealed = sum(s["written"] for s in device.slab_table(SEALED))
    if "kmod-sealed" in places and sealed != MIB << 8:
        raise road.Failure(f"{device.path}: {sealed} pages are sealed, not {MIB << 8}")
    return places, device, donor


# --- rows ------------------------------------------------------------------

def stopped(device, donor):
    """Checks one-sidedness: writes and reads pages at a donor whose process is stopped."""
    before = device.counts()
    donor.signal(signal.SIGSTOP)
    try:
        told = fio(Place(device.path), "--rw=randwrite", f"--loops={STOPPED_LOOPS}",
                   "--iodepth=16", "--ioengine=libaio", "--verify=crc32c", "--verify_fatal=1")
    finally:
        donor.signal(signal.SIGCONT)
    after = device.counts()
    pages = sum(after[k] - before[k] for k in ("read_donor", "write_donor"))
    right = not told["error"] and device.session()["state"] == "live" and \
        all(after[k] == before[k] for k in ("read_failed", "write_failed", "donor_errors"))
    return {"name": "kmod, donor stopped: pages written, and read and verified",
            "params": {"written": after["write_donor"] - before["write_donor"],
                       "read": after["read_donor"] - before["read_donor"]},
            "baseline": None, "ebb": pages, "unit": "pages", "ratio": None, "low": None,
            "high": None, "runs": 1, "target": f">= {STOPPED_AT_LEAST}",
            "met": bool(right and pages >= STOPPED_AT_LEAST)}


def rows_of(depth, taken):
    for base, name, compared in PAIRS:
        if base not in taken or name not in taken:
            continue
        for what, target in compared.items():
            alone = statistics.median(s[what] for s in taken["nothing"])
            yield measure.row(
                f"QD {depth}, {WHAT[what]}: {base} to {name}",
                {"depth": depth, "counted": what, "nothing": measure.rounded(alone)},
                [s[what] for s in taken[base]], [s[what] for s in taken[name]],
                "us" if what in TIMES else "a page", target, VERDICT[target])


def inside():
    with ExitStack() as stack:
        top = Path("/mnt/disk/bench")
        top.mkdir()
        places, device, donor = everything(stack, top)
        doorbells = Doorbells(stack)
        order = list(places)
        for depth in DEPTHS:
            taken = {name: [] for name in places}
            for i in range(measure.runs(5)):
                for name in order[i % len(order):] + order[:i % len(order)]:
                    s = sample(places[name], depth, doorbells)
                    taken[name].append(s)
                    road.say(f"QD {depth:<2} {name:<11} " + "  ".join(
                        f"{s[k]:8.3f} {k}" for k in WHAT))
            yield from rows_of(depth, taken)
        if "kmod" in places:
            yield stopped(device, donor)


# --- host ------------------------------------------------------------------

def outside():
    try:
        tools = ("fio", "nbdkit", "nbd-client") if "nbd" in chosen() else ("fio",)
    except road.Failure as e:
        road.say(f"bench-guest: {e}")
        return 1
    missing = [f"{tool}: not installed; run make deps" for tool in tools
               if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin")]
    if missing:
        road.say("bench-guest: cannot run here:\n  " + "\n  ".join(missing))
        return 1
    where = road.REPO / "build" / "guest" / "runs" / "bench-guest"
    knobs = [f"{k}={v}" for k, v in measure.knobs().items()]
    done = subprocess.run(
        [sys.executable, "-B", road.REPO / "tests" / "guest" / "run.py", "--kernel", KERNEL,
         "--cpus", "2", "--memory", "1536", "--timeout", str(GUEST_SECONDS), "--name", where.name,
         "--", "env", *knobs, "/usr/bin/python3", "-B", "tests/bench/guest.py"], cwd=road.REPO)
    told = where / "guest.json"
    if told.exists():
        measure.BENCH.mkdir(parents=True, exist_ok=True)
        shutil.copy(told, measure.BENCH / "guest.json")
        road.say(f"{measure.BENCH / 'guest.json'}")
    return done.returncode


if __name__ == "__main__":
    if not machine.IN_GUEST:
        sys.exit(outside())
    measure.BENCH = Path("/hostout")
    sys.exit(measure.main("guest", inside))
