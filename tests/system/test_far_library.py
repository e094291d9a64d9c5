# SPDX-License-Identifier: GPL-2.0-or-later
"""
libebbfar and an ebb-donord with --far: links that are cut, members that are killed, donors that
restart.
"""
import ctypes
import errno
import os
import random
import select
import signal
import socket
import struct
import threading
import time
import traceback

import pytest

import parts
from machine import BUILD, wait_for
from ports import free_port

pytestmark = pytest.mark.beside

CREATE, SHARED = 1, 2
SECTION = 2 << 20
ARENAS, SECTIONS = 2, 4    # of the pool; of each arena, the first one of which has the table


class Extent(ctypes.Structure):
    _fields_ = [("place", ctypes.c_uint64), ("size", ctypes.c_uint64),
                ("generation", ctypes.c_uint64)]


class Object(ctypes.Structure):
    _fields_ = [("extent", Extent), ("offset", ctypes.c_uint32), ("stamp", ctypes.c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("donor", ctypes.c_char_p), ("key", ctypes.c_char_p),
                ("pool", ctypes.c_char_p), ("flags", ctypes.c_uint), ("timeout_ms", ctypes.c_uint),
                ("error", ctypes.c_char * 512), ("resume_ms", ctypes.c_uint)]


def library():
    so = ctypes.CDLL(str(BUILD / "lib/libebbfar.so.1"))
    so.ebbfar_why.restype = ctypes.c_char_p
    return so


SO = library()
NAMES = {"free": [ctypes.POINTER(Extent)], "withdraw": [ctypes.POINTER(Extent)],
         "alloc": [ctypes.c_size_t, ctypes.POINTER(Extent)],
         "take": [ctypes.c_uint32, ctypes.POINTER(Extent)],
         "read": [ctypes.POINTER(Extent), ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t],
         "write": [ctypes.POINTER(Extent), ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t],
         "cas": [ctypes.POINTER(Extent), ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64,
                 ctypes.POINTER(ctypes.c_uint64)],
         "add": [ctypes.POINTER(Extent), ctypes.c_uint64, ctypes.c_uint64,
                 ctypes.POINTER(ctypes.c_uint64)],
         "notify": [ctypes.c_uint32, ctypes.c_uint64],
         "small_alloc": [ctypes.c_size_t, ctypes.POINTER(Object)],
         "small_free": [ctypes.POINTER(Object)]}
for name, arguments in NAMES.items():
    getattr(SO, f"ebbfar_{name}").argtypes = [ctypes.c_void_p, *arguments]


def options(donor, flags=CREATE | SHARED, **more):
    return Options(size=ctypes.sizeof(Options), donor=donor.encode(), pool=b"p", flags=flags, **more)


class Member:
    """A handle; its functions return 0 or a negative errno."""

    def __init__(self, donor, flags=CREATE | SHARED, **more):
        self.far = ctypes.c_void_p()
        o = options(donor, flags, **more)
        assert SO.ebbfar_open(ctypes.byref(o), ctypes.byref(self.far)) == 0, o.error

    def __getattr__(self, name):
        return lambda *args: getattr(SO, f"ebbfar_{name}")(self.far, *args)

    def allocate(self, size):
        x = Extent()
        return x if self.alloc(size, ctypes.byref(x)) == 0 else None

    def word(self, x):
        old = ctypes.c_uint64()
        assert self.add(ctypes.byref(x), 0, 0, ctypes.byref(old)) == 0, self.why()
        return old.value


class Link:
    """Forwards connections to the donor, until it is cut."""

    def __init__(self, port):
        self.port, self.up, self.pairs = port, True, []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.running = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.running:
            ends = {a: b for pair in self.pairs for a, b in (pair, pair[::-1])}
            ready, _, _ = select.select([self.server, *ends], [], [], 0.005)
            if not self.up:
                self.end()
            if self.server in ready:
                member, _ = self.server.accept()
                if self.up:
                    self.pairs.append((member, socket.create_connection(("127.0.0.1", self.port))))
                else:
                    member.close()
            for end in ready:
                if end in ends and any(end in pair for pair in self.pairs):
                    self.forward(end, ends[end])

    def forward(self, end, other):
        try:
            data = end.recv(65536)
            other.sendall(data)
        except OSError:
            data = b""
        if not data:
            self.end()

    def end(self):
        for pair in self.pairs:
            for s in pair:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()
        self.pairs = []

    def cut(self, seconds):
        self.up = False
        time.sleep(seconds)
        self.up = True

    def stop(self):
        self.running = False
        self.thread.join()
        self.end()
        self.server.close()


@pytest.fixture
def donor_at(tmp_path):
    """donor_at(port, keep) starts a donor, also at a unix socket."""
    started = []

    def start(port, keep="2s"):
        started.append(parts.Donor(tmp_path / "donor.log", port=port, memory="32M", slab="8M",
                                   also=[f"unix:{tmp_path}/donor.sock"],
                                   options=["--far", "16M", "--keep", keep, "--headroom", "0"]))
        return started[-1]
    yield start
    for donor in started:
        donor.stop()


@pytest.fixture
def link():
    links = []

    def make(port):
        links.append(Link(port))
        return links[-1]
    yield make
    for made in links:
        made.stop()


def test_short_cuts(donor_at, link):
    """Over a link that is cut again and again, each ADD takes effect once and tells its order."""
    port = free_port()
    donor_at(port, keep="60s")
    road = link(port)
    member = Member(road.address)
    x, done = member.allocate(4096), threading.Event()
    assert member.write(ctypes.byref(x), 0, bytes(8), 8) == 0

    def cut():
        while not done.is_set():
            road.cut(random.uniform(0, 0.05))
            time.sleep(random.uniform(0.01, 0.1))
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        old, n, end = ctypes.c_uint64(), 0, time.monotonic() + 4
        while time.monotonic() < end or n <= 10:
            assert member.add(ctypes.byref(x), 0, 1, ctypes.byref(old)) == 0, member.why()
            assert old.value == n
            n += 1
    finally:
        done.set()
        thread.join()
    assert member.word(x) == n
    member.close()


def test_cut_for_less_and_for_more_than_the_grace_period(donor_at, link):
    port = free_port()
    donor_at(port, keep="4s")
    road = link(port)
    member, other = Member(road.address), Member(f"127.0.0.1:{port}", flags=0)
    x = member.allocate(SECTION)
    road.cut(1)
    assert member.write(ctypes.byref(x), 8, b"still here", 10) == 0, member.why()
    road.up = False
    # The donor has freed the section, and another member gets it.
    got = []
    wait_for(lambda: sum(1 for y in iter(lambda: other.allocate(SECTION), None)
                         if not got.append(y)) and len(got) == ARENAS * (SECTIONS - 1),
             30, "the extent is not freed")
    road.up = True
    assert member.write(ctypes.byref(x), 8, b"too late", 8) == -errno.ESHUTDOWN
    assert b"fenced" in member.why() and b"4000 ms" in member.why()
    assert member.free(ctypes.byref(x)) == -errno.ESHUTDOWN
    member.close()
    other.close()


def test_donor_restarts(donor_at, tmp_path):
    port = free_port()
    first = donor_at(port)
    by_tcp, mapped = Member(f"127.0.0.1:{port}"), Member(f"unix:{tmp_path}/donor.sock")
    x = by_tcp.allocate(4096)
    first.kill()
    # Nothing listens there: over TCP that may be a firewall's word.
    assert mapped.notify(1, 1) == -errno.ESHUTDOWN
    assert b"exited" in mapped.why()
    donor_at(port)
    assert by_tcp.free(ctypes.byref(x)) == -errno.ESHUTDOWN
    assert b"restarted" in by_tcp.why()
    mapped.close()
    by_tcp.close()


def forever(donor, verb, ready, go):
    """Executes a verb again and again from @go on, until the process is killed."""
    member, old = Member(donor, flags=0), ctypes.c_uint64()
    # Members that were killed before may have all memory until their grace period ends.
    x = wait_for(lambda: member.allocate(8192), 30, "no memory")
    do = {"alloc": lambda: member.allocate(4096 << random.randrange(8)),
          "write": lambda: member.write(ctypes.byref(x), 0, bytes(8192), 8192),
          "cas": lambda: member.cas(ctypes.byref(x), 0, 0, 1, ctypes.byref(old)),
          "add": lambda: member.add(ctypes.byref(x), 8, 1, ctypes.byref(old)),
          "withdraw": lambda: member.withdraw(ctypes.byref(x)),
          "notify": lambda: member.notify(1, 5)}

    def free():
        y = member.allocate(4096 << random.randrange(10))
        if y:
            member.free(ctypes.byref(y))
    do["free"] = free
    objects = []

    def small():
        """Blocks come and go."""
        o = Object()
        if len(objects) < 400 and member.small_alloc(random.randrange(1, 4096), ctypes.byref(o)) == 0:
            objects.append(o)
        else:
            while objects:
                assert member.small_free(ctypes.byref(objects.pop(random.randrange(len(objects))))) == 0
    do["small"] = small
    os.write(ready, b"r")
    os.read(go, 1)
    while True:
        do[verb]()


def kill_two(where, verb):
    """Kills two members in the middle of @verb."""
    children = []
    waits, go = os.pipe()
    try:
        for _ in range(2):
            ours, theirs = os.pipe()
            pid = os.fork()
            if not pid:
                try:
                    forever(where, verb, theirs, waits)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            children.append(pid)
            os.close(theirs)
            assert os.read(ours, 1) == b"r"
            os.close(ours)
        # The first one could leave no memory for the second.
        os.write(go, b"gg")
        time.sleep(random.uniform(0.005, 0.03))
    finally:
        os.close(waits)
        os.close(go)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        ends = [os.waitpid(pid, 0)[1] for pid in children]
    assert ends == [signal.SIGKILL] * 2


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_killed_in_each_verb(donor_at, tmp_path, transport):
    """Nothing of a killed member is left, and no byte of another one changes."""
    port = free_port()
    donor_at(port, keep="1s")
    where = f"127.0.0.1:{port}" if transport == "tcp" else f"unix:{tmp_path}/donor.sock"
    member = Member(f"127.0.0.1:{port}")
    mine, content = member.allocate(4096), os.urandom(4096)
    assert member.write(ctypes.byref(mine), 0, content, 4096) == 0
    for verb in "alloc", "free", "write", "cas", "add", "withdraw", "notify", "small":
        kill_two(where, verb)
    found = []

    def all_free():
        for y in found:
            assert member.free(ctypes.byref(y)) == 0
        found[:] = iter(lambda: member.allocate(SECTION), None)
        # The extent of this member is where the table is.
        return len(found) == ARENAS * (SECTIONS - 1)
    wait_for(all_free, 30, "extents of killed members are left")
    back = ctypes.create_string_buffer(4096)
    assert member.read(ctypes.byref(mine), 0, back, 4096) == 0
    assert back.raw == content
    member.close()
