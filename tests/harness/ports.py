# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports on loopback for servers that tests start."""
import itertools
import os
import random
import socket

# Below those that the kernel gives to connections (ip_local_port_range): whoever connects in the
# meantime, or asks for any port, does not get one of these.
FIRST, LAST = 10000, 32000
# Tests that run at the same time have each a part of them, and begin anywhere in it.
SHARES = 16
worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES
share = range(LAST - FIRST)[worker::SHARES]
mine = itertools.count(random.Random(os.getpid()).randrange(len(share)))


def free_port():
    """Nobody has it, and no other test is told of it before its server is there."""
    while True:
        port = FIRST + share[next(mine) % len(share)]
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
