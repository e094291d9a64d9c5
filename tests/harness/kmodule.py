# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko in a guest: the module, Soft-RoCE, a donor, a backup disk, a device."""
import json
import mmap
import os
import struct
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import machine
import parts
from key import shared_key
from kswap import BACKUP, DONOR, NO_SESSION, SECOND, Kswap    # fixtures import the first
from machine import BUILD, wait_for

PAGE = 4096
ADDRESS, PORT = "10.9.0.1", 7471
CONFIGFS = Path("/sys/kernel/config")


def run(*argv):
    return subprocess.run([str(a) for a in argv], check=True, text=True,
                          capture_output=True).stdout


def module_path():
    path = BUILD / "kmod" / os.uname().release / "ebb_swap.ko"
    assert path.exists(), f"{path}: not built; run make kmod-guest"
    return path


@contextmanager
def faults(function, error, times, after=0):
    """
    Makes @times calls of a kernel function return -@error, from the next but @after on.  Yields a
    function that returns the calls left.
    """
    run("insmod", module_path().parent / "fault/ebb_fault.ko", f"function={function}",
        f"error={-error}", f"times={times}", f"after={after}")
    try:
        yield lambda: int(machine.read("/sys/module/ebb_fault/parameters/left"))
    finally:
        run("rmmod", "ebb_fault")


def module_loaded():
    return any(line.startswith("ebb_swap ") for line in machine.read("/proc/modules").splitlines())


def soft_roce():
    """Creates rxe0 on one end of a veth, with MTU 4200: a page fits in one packet."""
    if Path("/sys/class/infiniband/rxe0").exists():
        return
    run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    run("ip", "link", "set", "v1", "mtu", "4200", "up")
    soft_roce_on("v0", ADDRESS)


def soft_roce_between(address):
    """Creates rxe0 on this guest's end of the link to its peer, with MTU 4200."""
    run("modprobe", "virtio_net")
    soft_roce_on("eth0", address)


def soft_roce_on(netdev, address):
    run("modprobe", "-a", "rdma_rxe", "rdma_ucm")
    run("ip", "addr", "add", f"{address}/24", "dev", netdev)
    run("ip", "link", "set", netdev, "mtu", "4200", "up")
    rxe_add(netdev, address)


def rxe_add(netdev="v0", address=ADDRESS, name="rxe0"):
    run("rdma", "link", "add", name, "type", "rxe", "netdev", netdev)
    # The address's GID appears shortly after the link.
    gids = Path(f"/sys/class/infiniband/{name}/ports/1/gids")
    gid = "ffff:%02x%02x:%02x%02x" % tuple(map(int, address.split(".")))
    wait_for(lambda: any(machine.read(g).strip().endswith(gid) for g in gids.iterdir()), 10,
             f"{name}: no GID of its address")


def rxe_remove():
    """Removes rxe0 once no program has it open: kill donors before or at the same time."""
    run("rdma", "link", "delete", "rxe0")


def rdma_objects():
    """Returns {"qp": N, ...} of kernel users' objects on rxe0; the CM keeps one QP."""
    told = json.loads(run("rdma", "-j", "resource", "show"))[0]
    return {kind: told[kind] for kind in ("pd", "cq", "qp", "mr")}


class Disk:
    """A RAM disk with 4 KiB blocks that can be told to fail."""

    def __init__(self, mib, delay_us=0):
        run("modprobe", "null_blk", "nr_devices=0")
        if not (CONFIGFS / "nullb").exists():
            run("mount", "-t", "configfs", "configfs", CONFIGFS)
        self.directory = CONFIGFS / "nullb" / "nullb0"
        self.directory.mkdir()
        for name, value in (("size", mib), ("memory_backed", 1), ("blocksize", PAGE),
                            ("irqmode", 2 if delay_us else 0),
                            ("completion_nsec", delay_us * 1000), ("power", 1)):
            (self.directory / name).write_text(str(value))
        self.sectors = mib << 11
        self.path = "/dev/nullb0"

    def fail(self):
        # Ascending, in the kernel's pieces: 6.1 finds nothing in ranges that it has split.
        for first in range(0, self.sectors, 512):
            (self.directory / "badblocks").write_text(f"+{first}-{first + 511}")

    def heal(self):
        (self.directory / "badblocks").write_text(f"-0-{self.sectors - 1}")

    def remove(self):
        (self.directory / "power").write_text("0")
        self.directory.rmdir()


class RdmaDonor(parts.Daemon):
    def __init__(self, log, memory="64M", slab="4M", port=PORT, drain="0", address=ADDRESS, keys=None,
                 options=(), keep="0"):
        """@keys: a path [the shared key's]; @keep: session grace period, 0: sessions end at once."""
        self.port = port
        super().__init__([machine.BIN / "ebb-donord", "--listen", f"127.0.0.1:{port}", "--memory",
                          memory, "--slab", slab, "--drain-timeout", drain, "--keep", keep,
                          "--rdma-kernel", f"{address}:{port}", "--keys", keys or shared_key().path,
                          *options], log)

    def ask(self, verb="status"):
        """Asks the first donor that runs."""
        return parts.control("/run/ebb/donord.sock", verb)


def content(page, version):
    """Returns a page's content: its number and a version in each 16 bytes."""
    return struct.pack("<QQ", page, version) * (PAGE // 16)


class KernelDevice:
    """/dev/ebbN, accessed directly by pages."""

    def __init__(self, mib=32, slab_mib=4, key=None, **settings):
        """@key: a Key [the shared one]."""
        self.netlink = Kswap()
        key = key or shared_key()
        settings.update(key=key.secret, key_number=key.number)
        self.number = self.netlink.create(mib << 20, slab_size=slab_mib << 20, **settings)
        self.path = f"/dev/ebb{self.number}"
        self.pages = mib << 8
        self.slabs = mib // slab_mib
        wait_for(lambda: os.path.exists(self.path), 10, self.path)
        self.fd = -1
        self.users = [] # users of the device, with end()

    def connect(self, port=PORT, of=None, key=None):
        """@key: the donor's own."""
        own = {"key": key.secret, "key_number": key.number} if key else {}
        return self.netlink.connect(self.number, ADDRESS, port, of, **own)

    def map(self, session, copies, slabs=None):
        for slab in slabs if slabs is not None else range(self.slabs):
            self.netlink.call("map", device=self.number, slab=slab, session=session,
                              copies=copies)

    def counts(self):
        return self.netlink.status(self.number)["counts"]

    def session(self, number=0):
        return next(s for s in self.netlink.status(self.number)["sessions"]
                    if s["session"] == number)

    def wait_closed(self, number=0, seconds=20):
        wait_for(lambda: self.session(number)["state"] == "closed", seconds,
                 f"session {number}: not closed")

    def slab_table(self, of=None):
        return self.netlink.slabs(self.number, of)

    def drain(self, session, target=None, slabs=None):
        """Drains @session; its slabs, or @slabs of them, migrate to @target."""
        self.netlink.call("drain", device=self.number, session=session)
        for slab, s in enumerate(self.slab_table()):
            if session in (s["session"], s["second"]) and (slabs is None or slab in slabs):
                self.netlink.call("migrate", device=self.number, slab=slab, session=target,
                                  **{"from": session})

    def wait_copied(self, seconds=60, of=None):
        """Waits until no slab migrates and all pages are at their places."""
        wait_for(lambda: all(s["source"] == NO_SESSION and not s["uncopied"]
                             for s in self.slab_table(of)), seconds, "the copier is not through")

    def wait_behind(self, seconds=60):
        """Waits until the backup has all written pages."""
        wait_for(lambda: not self.netlink.status(self.number)["pool_used"], seconds,
                 "the pool is not empty")

    def open(self):
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        return self.fd

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def write(self, first, count, version):
        with mmap.mmap(-1, count * PAGE) as buffer:
            for i in range(count):
                buffer[i * PAGE:(i + 1) * PAGE] = content(first + i, version)
            assert os.pwritev(self.open(), [buffer], first * PAGE) == count * PAGE

    def read(self, first, count):
        """Returns the bytes of pages."""
        with mmap.mmap(-1, count * PAGE) as buffer:
            assert os.preadv(self.open(), [buffer], first * PAGE) == count * PAGE
            return [buffer[i * PAGE:(i + 1) * PAGE] for i in range(count)]

    def bad(self, first, count, version):
        """Returns the pages that do not hold @version."""
        return [first + i for i, page in enumerate(self.read(first, count))
                if page != content(first + i, version)]

    def race(self, rounds, writers=4):
        """Writes different versions to overlapping pages by threads; the last is unspecified."""
        def write(which):
            for i in range(rounds):
                self.write(i % 2 * 2, 4, version=which * 1000 + i)

        threads = [threading.Thread(target=write, args=(n + 1,)) for n in range(writers)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def swap_on(self, latency_us=1000000):
        """
        @latency_us: above it the kernel's write-back throttling admits fewer swap-outs, in emulation
        too easily by default; None: the kernel's default.
        """
        run("/sbin/mkswap", self.path)
        wbt = Path(f"/sys/block/ebb{self.number}/queue/wbt_lat_usec")
        if wbt.exists() and latency_us:
            wbt.write_text(str(latency_us))
        run("/sbin/swapon", "--discard", self.path)

    def destroy(self):
        """Destroys the device; a second call does nothing."""
        if not self.netlink:
            return
        for user in self.users:
            user.end()
        self.close()
        if self.path in machine.swaps():
            machine.swapoff(self.path)
        # Without udev, another process may still probe the device.
        for attempt in range(50):
            try:
                self.netlink.call("destroy", device=self.number)
                break
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.1)
        self.netlink.close()
        self.netlink = None
