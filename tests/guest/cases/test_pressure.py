# SPDX-License-Identifier: GPL-2.0-or-later
"""The whole machine runs out of memory, without a cgroup limit: the data plane must not need any."""
import socket
import subprocess
import threading
import time

import machine
import parts

SECONDS = 60


def memory_available_mib():
    row = next(l for l in machine.read("/proc/meminfo").splitlines() if l.startswith("MemAvailable"))
    return int(row.split()[1]) >> 10


def locked_kib(pid):
    row = next(l for l in machine.read(f"/proc/{pid}/status").splitlines() if l.startswith("VmLck"))
    return int(row.split()[1])


def swapped_kib(pid):
    row = next(l for l in machine.read(f"/proc/{pid}/status").splitlines() if l.startswith("VmSwap"))
    return int(row.split()[1])


def write_files(until):
    """Keeps dirtying page cache, on the disk that also has the backup."""
    while time.monotonic() < until:
        subprocess.run(["dd", "if=/dev/zero", "of=/var/tmp/dirt", "bs=1M", "count=64",
                        "conv=fsync"], stderr=subprocess.DEVNULL, check=True)


def send(sender, until):
    with sender:
        while time.monotonic() < until:
            sender.sendall(bytes(64 << 10))


def talk(until, received):
    """Sends a stream through the network stack, whose buffers compete for memory."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver = listener.accept()[0]
    other_end = threading.Thread(target=send, args=(sender, until))
    other_end.start()
    with receiver:
        while (block := receiver.recv(64 << 10)):
            received.append(len(block))
    other_end.join()


def test_hog_of_twice_the_memory(swap_lock, donor_factory, ebbd):
    """The donor has a part, the backup the rest; files and network compete for memory."""
    donor = donor_factory(memory="64M", slab="16M")
    device = parts.Device(donor, size="1G")
    try:
        servers = [p for p, name in machine.processes().items() if name in ("ebb-swapd", "ebbd")]
        assert all(locked_kib(p) > 0 for p in servers)
        s = parts.Scan(mib=2 * memory_available_mib(), passes=1000, pattern="seq", write=True)
        until, received = time.monotonic() + SECONDS, []
        load = [threading.Thread(target=write_files, args=(until,), name="files"),
                threading.Thread(target=talk, args=(until, received), name="network")]
        try:
            s.go()
            for t in load:
                t.start()
            for t in load:
                t.join(SECONDS + 300)
                assert not t.is_alive(), f"{t.name}: does not come to an end"
            assert sum(received) > 4 << 20
            assert s.process.poll() is None, s.outcome()
            assert all(swapped_kib(p) == 0 for p in servers), "the data plane was swapped out"
            assert (device.used_kib() or 0) > 0
        finally:
            s.kill()
        # scan reports wrong words at its next line of output.
        assert "differ" not in s.process.stderr.read()
    finally:
        device.destroy()
