# SPDX-License-Identifier: GPL-2.0-or-later
"""
Machines for tests: network namespaces on one switch, with links that can be cut and made
lossy.  The namespaces have no names: they live only as long as this process and the processes
in them, so that nothing is left even after kill -9.

Addresses are 10.77.0.N, or 127.77.0.N on the same links: lo keeps only 127.0.0.1, and the
interfaces have route_localnet set.  So features that programs allow only on loopback, such as
connections without keys, can be tested over a network, too.
"""
import ctypes
import os
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
NFT = "/usr/sbin/nft"


libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(Exception):
    pass


def own_namespace():
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(fd):
    if libc.setns(fd, CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "setns(CLONE_NEWNET)")


def unshared_namespace():
    """Returns a descriptor of a new network namespace, which lives while the descriptor is open."""
    made = []

    def make():
        # Affects only this thread, which ends at once.
        if libc.unshare(CLONE_NEWNET) < 0:
            made.append(OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)"))
        else:
            made.append(own_namespace())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


class Namespace:
    def __init__(self):
        self.fd = unshared_namespace()
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        # prefix + argv runs a command inside.  nsenter execs: the pid is the program's.
        self.prefix = ["/usr/bin/nsenter", f"--net={self.path}", "--"]

    def name(self):
        """Returns the name as in /proc/PID/ns."""
        return os.readlink(self.path)

    def run(self, *argv, **kwargs):
        try:
            with self.inside():
                done = subprocess.run([*map(str, argv)], text=True, capture_output=True, timeout=30, **kwargs)
        except FileNotFoundError as e:
            raise NetworkError(str(e)) from None
        if done.returncode:
            raise NetworkError(f"{' '.join(map(str, argv))}: {done.stderr.strip()}")
        return done.stdout

    @contextmanager
    def inside(self):
        """Moves this thread, and the processes that it starts, into the namespace for a `with`."""
        home = own_namespace()
        enter(self.fd)
        try:
            yield
        finally:
            enter(home)
            os.close(home)

    def close(self):
        os.close(self.fd)


class Node(Namespace):
    """One machine: its eth0 is connected to @port of the switch."""

    def __init__(self, network, number):
        super().__init__()
        self.switch, self.port = network.switch, f"port{number}"
        self.lossy = {}     # nftables chain -> where it is
        self.address = network.address(number)
        self.switch.run("ip", "link", "add", self.port, "type", "veth",
                        "peer", "name", "eth0", "netns", self.path)
        self.switch.run("ip", "link", "set", self.port, "master", "switch", "up")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "del", "127.0.0.1/8", "dev", "lo")
        self.run("ip", "address", "add", "127.0.0.1/32", "dev", "lo")
        self.run("sysctl", "-qw", "net.ipv4.conf.eth0.route_localnet=1")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    # --- faults: each is undone by plug() or heal(), which may be called at any time

    def unplug(self):
        self.switch.run("ip", "link", "set", self.port, "down")

    def plug(self):
        self.switch.run("ip", "link", "set", self.port, "up")

    def lose(self, direction, percent=100):
        """
        Drops packets "from" this machine or "to" it, on the link, outside of both ends' stacks:
        no socket gets an error.
        """
        chance = "" if percent >= 100 else f"numgen random mod 100 < {percent} "
        # ARP still works: only IP packets are dropped.
        self.filter(direction, "", f"{chance}counter drop")

    def alter(self, direction, port):
        """
        Overwrites four bytes of the next segment "from" or "to" TCP port @port of this machine that
        carries a page.  Between namespaces segments have no checksums yet, so it is right after that.
        """
        self.filter(direction, "alter_", f"tcp {'sport' if direction == 'from' else 'dport'} {port} "
                    "meta length > 1000 limit rate 1/day burst 1 packets @ih,4000,32 set 0x5aa5c33c")

    def filter(self, direction, name, rule):
        """Applies an nftables rule to IP packets "from" or "to" this machine until heal()."""
        where, device = (self.switch, self.port) if direction == "from" else (self, "eth0")
        chain = f"netdev chaos {name}{direction}_{device}"
        rules = (f"add table netdev chaos; "
                 f"add chain {chain} {{ type filter hook ingress device {device} priority 0; }}; "
                 f"add rule {chain} meta protocol ip {rule}")
        where.run(NFT, rules)
        self.lossy[chain] = where

    def lost(self):
        """Returns the number of packets that lose() has dropped."""
        words = (self.switch.run(NFT, "list", "ruleset") + self.run(NFT, "list", "ruleset")).split()
        return sum(int(words[i + 1]) for i, word in enumerate(words) if word == "packets")

    def heal(self):
        while self.lossy:
            chain, where = self.lossy.popitem()
            where.run(NFT, "delete", "chain", *chain.split())

    def delay(self, text):
        self.switch.run("/usr/sbin/tc", "qdisc", "replace", "dev", self.port, "root", "netem",
                        "delay", *text.split())

    def retransmitted(self):
        """Returns the number of TCP segments that this machine has retransmitted."""
        rows = [line.split() for line in self.run("cat", "/proc/net/snmp").splitlines()]
        names, values = [r for r in rows if r[0] == "Tcp:"]
        return int(values[names.index("RetransSegs")])


class Network:
    """@loopback: uses addresses that programs treat as local."""

    def __init__(self, loopback=True):
        self.loopback = loopback
        self.switch, self.nodes = Namespace(), []
        self.switch.run("ip", "link", "add", "switch", "type", "bridge", "forward_delay", "0")
        self.switch.run("ip", "link", "set", "switch", "up")

    def address(self, number):
        return f"{'127.77' if self.loopback else '10.77'}.0.{number}"

    def add(self):
        self.nodes.append(Node(self, len(self.nodes) + 1))
        return self.nodes[-1]

    def lacks(self, what):
        """Returns why this kernel lacks "loss" or "delay"; "" if it has that."""
        node = self.nodes[0]
        try:
            if what == "loss":
                if not Path(NFT).exists():
                    return "nft is not installed; apt-get install nftables"
                node.lose("to", 1)
                node.heal()
            else:
                node.delay("1ms")
                self.switch.run("/usr/sbin/tc", "qdisc", "del", "dev", node.port, "root")
        except NetworkError as e:
            return f"this kernel has no {what} of packets: {e}"
        return ""

    def close(self):
        for node in self.nodes:
            node.close()
        self.switch.close()
