# SPDX-License-Identifier: GPL-2.0-or-later
"""Ports on loopback for servers that tests start."""
import itertools
import os
import random
import socket

# Below the kernel's ephemeral ports (ip_local_port_range): neither connections nor binds to any
# port get one of these.
FIRST, LAST = 10000, 32000
# Parallel tests use separate parts of the range, each from a random start.
SHARES = 16
worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES
share = range(LAST - FIRST)[worker::SHARES]
mine = itertools.count(random.Random(os.getpid()).randrange(len(share)))


def free_port():
    """Returns a free port that no other test gets before its server listens."""
    while True:
        port = FIRST + share[next(mine) % len(share)]
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
