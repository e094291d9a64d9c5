# SPDX-License-Identifier: GPL-2.0-or-later
"""
What may happen to a cluster: context managers that do it on entry and undo it on exit.
"""
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable


@contextmanager
def killed(donor):
    """kill -9, and a new one at the same place."""
    donor.kill()
    yield
    donor.start()


@contextmanager
def ended(donor):
    """SIGTERM: it drains."""
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
def squeezed(donor):
    """Its machine runs out of memory: it asks slabs back."""
    donor.squeeze()
    yield
    donor.relax()


@contextmanager
def etcd_killed(etcd, fresh=False):
    """@fresh: it comes back without its data."""
    etcd.kill()
    yield
    etcd.start(fresh)


@contextmanager
def control_plane_killed(plane, donors, without, under_way):
    """
    ebbd takes donors off the list, which is @without them, and is killed as soon as their slabs
    are @under_way, a function that waits; its successor has the @donors again.
    """
    plane.configure(without)
    under_way()
    plane.kill()
    yield
    plane.configure(donors)
    plane.start()


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
    seconds: tuple          # shortest and longest that it lasts
    loses: bool             # a borrower must notice: it counts a loss of that donor
    needs: str = ""         # of the network: see Network.lacks()


# A deadline of 300 ms: what shall be noticed lasts longer, a hiccup does not.
DONOR_FAULTS = (
    Fault("kill -9", killed, (0.3, 1.5), True),
    Fault("SIGTERM", ended, (0.3, 1.5), False),
    Fault("SIGSTOP", stopped, (1.8, 2.5), True),
    Fault("short SIGSTOP", stopped, (0.02, 0.2), False),
    Fault("link down", unplugged, (1.8, 2.5), True),
    Fault("short link down", unplugged, (0.02, 0.2), False),
    Fault("nothing from it", losing("from", 100), (1.8, 2.5), True, "loss"),
    Fault("nothing to it", losing("to", 100), (1.8, 2.5), True, "loss"),
    Fault("out of memory", squeezed, (1, 3), False),
    Fault("a tenth lost", losing("both", 10), (0.5, 2.5), False, "loss"),
)
