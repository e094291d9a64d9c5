# SPDX-License-Identifier: GPL-2.0-or-later
"""
Faults of a cluster: context managers that inject a fault on entry and undo it on exit.
"""
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable


@contextmanager
def killed(donor):
    """Kills the donor with SIGKILL; restarts it at the same address."""
    donor.kill()
    yield
    donor.start()


@contextmanager
def ended(donor):
    """Ends the donor with SIGTERM, so that it drains."""
    donor.drain()
    yield
    donor.start()


@contextmanager
def stopped(donor):
    donor.stop()
    yield
    donor.go_on()


@contextmanager
def unplugged(donor):
    donor.node.unplug()
    yield
    donor.node.plug()


@contextmanager
def cut_off(cluster):
    """Takes the borrower off the network: all donors are out of reach."""
    cluster.node.unplug()
    try:
        yield
    finally:
        cluster.node.plug()


@contextmanager
def entries_removed(etcd, addresses):
    """Removes some donors' entries from etcd; the donors put them again within seconds."""
    values = etcd.keys()
    for address in addresses:
        etcd.delete(address)
    yield
    # A donor that ended before it could.
    for address in set(addresses) & set(values) - set(etcd.keys()):
        etcd.put(address, json.dumps(values[address]))


@contextmanager
def squeezed(donor):
    """Makes the donor's machine run out of memory, so that it recalls slabs."""
    donor.squeeze()
    yield
    donor.relax()


@contextmanager
def etcd_killed(etcd, fresh=False):
    """@fresh: restarts it without its data."""
    etcd.kill()
    yield
    etcd.start(fresh)


@contextmanager
def control_plane_killed(plane, donors, without, under_way):
    """
    Reconfigures ebbd to the list @without some donors and kills it once their slabs migrate, for
    which the function @under_way waits.  The next ebbd has the list @donors again.
    """
    plane.configure(without)
    under_way()
    plane.kill()
    yield
    plane.configure(donors)
    plane.start()


@contextmanager
def altered(donor, direction):
    """Alters a page on its way "from" or "to" the donor."""
    donor.node.alter(direction, donor.port)
    yield
    donor.node.heal()


def losing(direction, percent):
    @contextmanager
    def fault(donor):
        for d in ("from", "to") if direction == "both" else (direction,):
            donor.node.lose(d, percent)
        yield
        donor.node.heal()
    return fault


@dataclass
class Fault:
    name: str
    of: Callable            # of(donor) is the context manager
    seconds: tuple          # shortest and longest duration
    loses: bool             # a borrower must count a loss or an absence of that donor
    needs: str = ""         # feature of the network: see Network.lacks()


# By the deadline of 300 ms: faults to be detected last longer, short ones do not.
DONOR_FAULTS = (
    Fault("kill -9", killed, (0.3, 1.5), True),
    Fault("SIGTERM", ended, (0.3, 1.5), False),
    Fault("SIGSTOP", stopped, (1.8, 2.5), True),
    Fault("short SIGSTOP", stopped, (0.02, 0.2), False),
    Fault("link down", unplugged, (1.8, 2.5), True),
    Fault("short link down", unplugged, (0.02, 0.2), False),
    Fault("link down past the grace period", unplugged, (8, 9), True),
    Fault("nothing from it", losing("from", 100), (1.8, 2.5), True, "loss"),
    Fault("nothing to it", losing("to", 100), (1.8, 2.5), True, "loss"),
    Fault("out of memory", squeezed, (1, 3), False),
    Fault("a tenth lost", losing("both", 10), (0.5, 2.5), False, "loss"),
)
