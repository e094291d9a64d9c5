# SPDX-License-Identifier: GPL-2.0-or-later
"""The link between a guest and its peer, for TCP."""
import subprocess
from pathlib import Path

import machine

GUEST, PEER = "10.9.0.2", "10.9.0.1"
PORTS = (7070, 7071)
MAC = "52:54:00:00:00:0"  # then a digit: tests/guest/guest.py


def up(address):
    """Gives this machine's end of the link @address."""
    subprocess.run(["modprobe", "virtio_net"], check=True)
    # udev may rename it.
    name, = machine.wait_for(
        lambda: [d.name for d in Path("/sys/class/net").iterdir()
                 if machine.read(d / "address").startswith(MAC)], 10, "the link")
    subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
