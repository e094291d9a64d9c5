# SPDX-License-Identifier: GPL-2.0-or-later
"""
Boots a guest, runs one command in it and judges the outcome.  A second guest, its peer, may be at
the other end of a link.  Guests use KVM if it can run a stock kernel, else software emulation.
"""
import os
import re
import shlex
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import kernel as kernels
from kernel import REPO, STORE, tool

# Checks of a stock kernel; each is fatal, so that the guest dies.
HARDENED = (
    "kfence.sample_interval=20 panic_on_warn=1 oops=panic softlockup_panic=1 "
    "sysctl.kernel.hung_task_panic=1 sysctl.kernel.hung_task_timeout_secs=60 "
    # Emulation on a busy machine may stall for seconds without an error.
    # At boot it looks like a timer without interrupts.
    "sysctl.kernel.watchdog_thresh=30 no_timer_check sysrq_always_enabled")

# Memory checks, only for guests with our module: they take a seventh to a fifth of the time.
MEMORY_CHECKED = "slub_debug=FZPU page_poison=1 init_on_free=1"

# Kernel messages of faults that do not end in a panic.
TROUBLE = re.compile(
    r"Kernel panic|Oops[:#]|BUG[: ]|WARNING:|blocked for more than|soft lockup|"
    r"KFENCE:|general protection fault|Object padding|Redzone|Poison overwritten|"
    r"guest: cannot|guest: out of time")

# One thread executes all processors of a guest.  With a thread for each, a processor may execute an
# instruction that another is patching (jump labels), and the guest dies; and two guests at a time
# take three quarters longer on two processors.
CODE_MIB = 256 # cache of translated code
EMULATION = ["-accel", f"tcg,thread=single,tb-size={CODE_MIB}"]

# A host with less available memory than this many guests does not lock that of a guest.
ROOM = 4

DISK_MIB = 4096


def accelerator():
    """
    Returns "kvm" or "tcg".  /dev/kvm without hardware virtualization, as in a VM with kvm-pvm,
    interprets stock kernels: slower than emulation, or "KVM internal error" at shlx.
    """
    chosen = os.environ.get("EBB_GUEST_ACCEL")
    if chosen:
        return chosen
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    able = flags and {"vmx", "svm"} & set(flags.group(1).split())
    return "kvm" if able and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


@dataclass
class Options:
    kernel: str = "6.12"
    memory: int = 1024          # MiB
    cpus: int = 1
    timeout: int = 300          # seconds of wall time, boot included
    systemd: bool = False
    before: str = ""            # script of the repository that prepares the machine for systemd
    shutdown: bool = False      # shut down by systemd; otherwise the guest is switched off
    memory_checked: bool = True # with MEMORY_CHECKED
    append: str = ""            # further kernel parameters
    name: str = ""              # of the directory for results
    environment: dict = field(default_factory=dict)
    peer: list = field(default_factory=list) # command of a second guest
    peer_memory: int = 0        # MiB; 0: as this guest


@dataclass
class Result:
    ok: bool
    status: int                 # exit status of the command; -1 if there is none
    reason: str                 # empty if ok
    directory: Path
    seconds: float
    trouble: list               # console lines that name a kernel fault


def guest_run(command, options, output=print):
    """Runs @command (a list) in a new guest; calls @output with each line of its output."""
    k = kernels.fetch(options.kernel, lambda text: output(f"guest: {text}"))
    name = options.name or f"{options.kernel}-{time.strftime('%H%M%S')}-{id(options) & 0xffff:04x}"
    directory = STORE / "runs" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with peer_running(k, directory / "peer", options) as (devices, descriptors):
        qemu = boot(k, directory, command, options, subprocess.PIPE, devices, descriptors)
        started = time.monotonic()
        timed_out = threading.Event()

        def stop():
            timed_out.set()
            press_sysrq(directory, "9wml")
            qemu.kill()

        timer = threading.Timer(options.timeout, stop)
        timer.start()
        try:
            with open(directory / "output.log", "w") as log:
                for line in qemu.stdout:
                    line = line.rstrip("\r\n")
                    log.write(line + "\n")
                    log.flush()
                    output(line)
            qemu.wait()
        finally:
            timer.cancel()
            end(qemu, directory)
    return judge(directory, options, time.monotonic() - started, timed_out.is_set(),
                 qemu.returncode)


@contextmanager
def peer_running(k, directory, options):
    """
    Runs the peer, if any.  Yields the guest's devices and open descriptors: the other end of the
    link, and a port to the monitor of the peer's emulator, which can pull the cable (`set_link nic
    off`) and end the machine (`quit`).
    """
    if not options.peer:
        yield [], []
        return
    directory.mkdir()
    link, monitor = socket.socketpair(), socket.socketpair()
    here, there = ([s.fileno() for s in ends] for ends in zip(link, monitor))
    with open(directory / "output.log", "w") as log, link[1], monitor[1]:
        qemu = boot(k, directory, options.peer,
                    replace(options, systemd=False, before="", shutdown=False,
                            memory=options.peer_memory or options.memory), log,
                    [*nic(2, there[0]), "-chardev", f"socket,id=monitor,fd={there[1]}",
                     "-mon", "chardev=monitor"], there)
    with link[0], monitor[0]:
        try:
            yield [*nic(1, here[0]), "-device", "virtio-serial", "-chardev",
                   f"socket,id=peer,fd={here[1]}", "-device", "virtserialport,chardev=peer"], here
        finally:
            end(qemu, directory)


def nic(number, descriptor):
    # With an MTU of at least 4200, RDMA sends a page in one packet.
    return ["-netdev", f"socket,id=link,fd={descriptor}", "-device",
            f"virtio-net-pci,id=nic,netdev=link,mac=52:54:00:00:00:0{number},host_mtu=4200"]


def memory_lock(memory):
    """
    Returns the options that lock a guest's @memory [MiB].  Without them, a host that reclaims idle
    memory pages it out to whatever swap is on, and that may be a test's own small device.
    """
    available = int(re.search(r"MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text())[1]) >> 10
    fits = available >= ROOM * (memory + CODE_MIB)
    return ["-overcommit", "mem-lock=on"] if fits and os.geteuid() == 0 else []


def boot(k, directory, command, options, output, devices, descriptors):
    """Starts a guest with additional @devices, whose @descriptors stay open."""
    prepare(directory, k, command, options)
    console = directory / "console.log"
    # The guest dies with this process.
    argv = [tool("setpriv"), "--pdeathsig", "KILL", tool("qemu-system-x86_64"),
            *(["-accel", "kvm"] if accelerator() == "kvm" else []), *EMULATION,
            "-cpu", "max",
            "-smp", str(options.cpus), "-m", f"{options.memory}M",
            *memory_lock(options.memory),
            "-machine", "q35", "-nodefaults", "-no-reboot", "-display", "none",
            "-kernel", str(k.image), "-initrd", str(k.initrd),
            "-serial", f"file:{console}", "-serial", "stdio",
            "-monitor", "unix:monitor,server=on,wait=off",
            "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,"
                       "multidevs=remap",
            "-virtfs", f"local,path={directory},mount_tag=out,security_model=none",
            "-drive", f"file={directory}/disk.img,format=raw,if=virtio,cache=unsafe",
            "-append", f"console=ttyS0 loglevel=5 panic=-1 mitigations=off "
                       f"{HARDENED} {MEMORY_CHECKED if options.memory_checked else ''} "
                       f"{options.append}", *devices]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output,
                            stderr=open(directory / "qemu.log", "w"), text=True,
                            errors="replace", cwd=directory, pass_fds=descriptors)


def end(qemu, directory):
    qemu.kill()
    qemu.wait()
    for name in ("disk.img", "monitor"):
        (directory / name).unlink(missing_ok=True)


def press_sysrq(directory, keys):
    """Makes a hung guest dump its state on the console."""
    try:
        # By descriptor: the repository's path may exceed the limit of a socket's path.
        where = os.open(directory, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(f"/proc/self/fd/{where}/monitor")
            for key in keys:
                s.sendall(f"sendkey alt-sysrq-{key}\n".encode())
                time.sleep(1.5)
        os.close(where)
    except OSError as e:
        print(f"guest: monitor: {e}")


def prepare(directory, k, command, options):
    disk = directory / "disk.img"
    with open(disk, "wb") as f:
        f.truncate(DISK_MIB << 20)
    kernels.run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E",
                "nodiscard,lazy_itable_init=1", str(disk))
    shutil.copy(REPO / "tests/guest/init.sh", directory / "init.sh")
    exports = "".join(f"export {key}={shlex.quote(value)}\n"
                      for key, value in options.environment.items())
    (directory / "command").write_text(exports + shlex.join(command) + "\n")
    settings = {"repo": REPO, "modules": k.modules, "series": options.kernel,
                "deadline": max(options.timeout - 30, 10), "systemd": int(options.systemd),
                "before": options.before, "shutdown": int(options.shutdown)}
    (directory / "settings").write_text(
        "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in settings.items()))


def judge(directory, options, seconds, timed_out, qemu_status):
    told = [directory / name for name in ("console.log", "dmesg", "peer/console.log")]
    text = "".join(f.read_text(errors="replace") for f in told if f.exists())
    trouble = list(dict.fromkeys(line for line in text.splitlines() if TROUBLE.search(line)))
    rc = directory / "rc"
    status = int(rc.read_text() or -1) if rc.exists() else -1
    reason = ""
    if timed_out:
        reason = f"no end after {options.timeout} s"
    elif status == -1:
        reason = "the guest died without a verdict"
        if qemu_status > 0:
            reason += f" (qemu: {(directory / 'qemu.log').read_text().strip()})"
    elif trouble:
        reason = f"the kernel complained: {trouble[0].strip()}"
    elif status:
        reason = f"the command's status is {status}"
    return Result(not reason, status, reason, directory, seconds, trouble)


def console_tail(result, lines=40):
    console = result.directory / "console.log"
    text = console.read_text(errors="replace") if console.exists() else ""
    return "\n".join(text.splitlines()[-lines:])
