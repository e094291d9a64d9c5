# SPDX-License-Identifier: GPL-2.0-or-later
"""The machine runs out of memory as a whole, no cgroup limit: the data plane must not need any."""
import subprocess
import threading
import time

import machine
import parts

SECONDS = 45


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
    """Dirty page cache all the time, on the disk that also holds the backup."""
    while time.monotonic() < until:
        subprocess.run(["dd", "if=/dev/zero", "of=/var/tmp/dirt", "bs=1M", "count=64",
                        "conv=fsync"], stderr=subprocess.DEVNULL, check=True)


def test_hog_of_twice_the_memory(swap_lock, donor_factory, ebbd):
    """The donor holds a part, the backup the rest; a file writer competes for what is left."""
    donor = donor_factory(memory="64M", slab="16M")
    device = parts.Device(donor, size="1G")
    try:
        servers = [p for p, name in machine.processes().items() if name in ("ebb-swapd", "ebbd")]
        assert all(locked_kib(p) > 0 for p in servers)
        s = parts.Scan(mib=2 * memory_available_mib(), passes=1000, pattern="seq", write=True)
        writer = threading.Thread(target=write_files, args=(time.monotonic() + SECONDS,))
        try:
            s.go()
            writer.start()
            writer.join(SECONDS + 120)
            assert not writer.is_alive(), "the file writer does not come to an end"
            assert s.process.poll() is None, s.outcome()
            assert all(swapped_kib(p) == 0 for p in servers), "the data plane was swapped out"
            assert (device.used_kib() or 0) > 0
        finally:
            s.kill()
        # Wrong words are told as they are found, at the next line of scan's output.
        assert "differ" not in s.process.stderr.read()
    finally:
        device.destroy()
