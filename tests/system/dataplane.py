# SPDX-License-Identifier: GPL-2.0-or-later
"""
A server and its donors without swap on, and its file with a model of what it holds;
each test that uses these fixtures runs with each transport unless it says otherwise.
"""
import ctypes
import itertools
import mmap
import os
import random
import threading
from contextlib import ExitStack

import pytest

import parts
from ports import free_port

MIB = 1 << 20
PAGE = 4096
SLAB = MIB


class Server(parts.Swapd):
    """
    An ebb-swapd in the foreground, with its own run directory; backup="": without one.  No donor is
    lost because the machine is busy, unless @options have a shorter --deadline.
    """

    def __init__(self, directory, log, donors, size="32M", slab="1M", backup=None, options=(),
                 durability=None):
        self.directory, self.mount = directory, directory / "mnt"
        self.run, self.backup = directory / "run", directory / "backup" if backup is None else backup
        self.mount.mkdir(exist_ok=True)
        self.argv_made = [parts.BIN / "ebb-swapd", "--name", "dp0", "--size", size, "--slab", slab,
                          "--mount", self.mount, "--foreground", *options]
        if "--deadline" not in options:
            self.argv_made += ["--deadline", "5s"]
        if durability:
            self.argv_made += ["--durability", durability]
        if self.backup and durability in (None, "disk"):
            self.argv_made += ["--backup", self.backup]
        for d in donors:
            self.argv_made += ["--donor", d.address if hasattr(d, "address") else d]
        super().__init__(self.argv_made, log, env={"EBB_RUN_DIR": str(self.run)})
        self.file = self.mount / "swap"

    def ask(self, verb, **arguments):
        return parts.control_answer(self.run / "devices" / "dp0.sock", verb, **arguments)

    def do(self, verb, **arguments):
        """A verb that must succeed."""
        told = self.ask(verb, **arguments)
        assert told["ok"], told
        return told

    def slabs(self):
        return {s["slab"]: s for s in self.do("slab.list")["slabs"]}

    def stats(self):
        return self.ask("stats")

    def status(self):
        return self.ask("status")

    def donor_state(self, i=0):
        return self.status()["donors"][i]["state"]


LIBC = ctypes.CDLL(None, use_errno=True)
HUGE = 2 * MIB


def huge(size):
    """Returns private memory of huge pages, which costs few page faults."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def address(memory, at=0):
    return ctypes.byref(ctypes.c_char.from_buffer(memory, at))


class Pages:
    """Direct I/O on the file, with a model of what it must hold."""

    def __init__(self, server, seed=1):
        self.fd = os.open(server.file, os.O_RDWR | os.O_DIRECT)
        self.size = os.fstat(self.fd).st_size
        self.model = huge(max(self.size, HUGE))
        self.random = random.Random(seed)
        self.pool = memoryview(self.random.randbytes(MIB))
        self.of_thread = threading.local()

    def close(self):
        if self.fd < 0:
            return
        try:
            os.close(self.fd)
        except OSError:
            pass  # closing asks the server, which may have exited
        self.fd = -1

    def buffer(self, size):
        """Returns the calling thread's memory for direct I/O."""
        memory = getattr(self.of_thread, "memory", None)
        if memory is None or len(memory) < size:
            memory = self.of_thread.memory = huge(max(size, HUGE))
        return memory

    def write(self, page, data):
        memory = self.buffer(len(data))
        memory[:len(data)] = data
        assert os.pwritev(self.fd, [memoryview(memory)[:len(data)]], page * PAGE) == len(data)
        self.model[page * PAGE:page * PAGE + len(data)] = data

    def read_in_place(self, page, count):
        memory = self.buffer(count * PAGE)
        assert os.preadv(self.fd, [memoryview(memory)[:count * PAGE]], page * PAGE) == count * PAGE
        return memory

    def read(self, page, count):
        return self.read_in_place(page, count)[:count * PAGE]

    def discard(self, page, count):
        """What a loop device makes of a discard."""
        punch_and_keep_size = 3
        r = LIBC.fallocate(self.fd, punch_and_keep_size, ctypes.c_long(page * PAGE),
                           ctypes.c_long(count * PAGE))
        assert r == 0, os.strerror(ctypes.get_errno())
        self.model[page * PAGE:(page + count) * PAGE] = bytes(count * PAGE)

    def content(self, size):
        """Returns random bytes: a part of a pool, because new ones take far longer."""
        at = self.random.randrange(len(self.pool) - size)
        return self.pool[at:at + size]

    def write_random(self, n, most=64):
        for _ in range(n):
            count = self.random.randint(1, most)
            page = self.random.randrange(self.size // PAGE - count)
            self.write(page, self.content(count * PAGE))

    def check(self, piece=MIB):
        for at in range(0, self.size, piece):
            size = min(piece, self.size - at)
            got = self.read_in_place(at // PAGE, size // PAGE)
            if LIBC.memcmp(address(got), address(self.model, at), ctypes.c_size_t(size)):
                bad = [at // PAGE + i for i in range(size // PAGE)
                       if got[i * PAGE:(i + 1) * PAGE] != self.model[at + i * PAGE:at + (i + 1) * PAGE]]
                pytest.fail(f"pages {bad[:8]} are wrong")


@pytest.fixture(params=["tcp", "shm"])
def transport(request):
    return request.param


only_tcp = pytest.mark.parametrize("transport", ["tcp"])
only_shm = pytest.mark.parametrize("transport", ["shm"])


@pytest.fixture
def place(transport, tmp_path):
    """place() is where a donor may listen, as keywords of donor_at."""
    numbers = itertools.count()

    def make():
        if transport == "tcp":
            return {"port": free_port()}
        return {"path": tmp_path / f"donor{next(numbers)}.sock"}
    return make


@pytest.fixture
def donor_at(donor_factory, place):
    """donor_at(**what) starts a donor at a place of its own, or at place()'s."""
    def make(**what):
        if not {"port", "path"} & set(what):
            what.update(place())
        return donor_factory(slab="1M", memory=what.pop("memory", "48M"), **what)
    return make


@pytest.fixture
def server(tmp_path, logs):
    made = []

    def make(*donors, **what):
        made.append(Server(tmp_path, logs / f"swapd{len(made)}.log", donors, **what))
        undo.callback(end, made[-1])
        return made[-1]

    def end(s):
        s.stop()
        assert not os.path.ismount(s.mount)

    with ExitStack() as undo:
        yield make


@pytest.fixture
def pages():
    def make(server, **what):
        p = Pages(server, **what)
        undo.callback(p.close)
        return p

    with ExitStack() as undo:
        yield make


# Fixtures end in the reverse order of their set-up: files close before servers
# stop, servers stop before donors.
@pytest.fixture
def world(donor_at, server, pages, place, transport):
    class World:
        donor, serve, open = staticmethod(donor_at), staticmethod(server), staticmethod(pages)
        new_place, shm = staticmethod(place), transport == "shm"
    return World
