# SPDX-License-Identifier: GPL-2.0-or-later
"""The protocol of docs/protocol.md, from a borrower's side."""
import os
import socket
import struct
import time

from dataplane import PAGE, SLAB

(HELLO, MAP, UNMAP, READ, WRITE, PING, ACTIVITY, EVICT, JOIN, REMAP, RELEASE, BYE) = range(1, 13)
VERSION = 3                            # so that each newer side is tested with an older one
KEEP, RESUME = 1, 2                    # HELLO's flags
TOLD = struct.Struct("<IIQQQQQQQ")      # version, flags, slab, total, free, memory, used, session, identity


def frame(op, tag=0, slab=0, generation=0, offset=0, length=0, magic=b"EBB1", direction=0, status=0):
    return magic + struct.pack("<BBHQIIII", op, direction, status, tag, slab, generation, offset, length)


def hello(version=VERSION, borrower=1, slab=SLAB, name=b"tester", flags=0):
    return frame(HELLO, length=48) + struct.pack("<IIQQ24s", version, flags, borrower, slab, name)


def refusal(op, tag, payload):
    """Returns the reply of a donor that speaks VERSION only to a HELLO of another, or b""."""
    other = op == HELLO and struct.unpack_from("<I", payload)[0] != VERSION
    return frame(op, tag, direction=1, status=1) if other else b""


def connect(donor):
    host, port = donor.address.split(":")
    if host == "unix":
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(60)
        s.connect(port)
        return s
    return socket.create_connection((host, int(port)), timeout=60)


def receive(s, n):
    got = b""
    while len(got) < n:
        piece = s.recv(n - len(got))
        if not piece:
            raise EOFError
        got += piece
    return got


def parse(head):
    keys = ("magic", "op", "direction", "status", "tag", "slab", "generation", "offset", "length")
    return dict(zip(keys, struct.unpack("<4sBBHQIIII", head)))


def has_payload(f):
    """Of a frame that a donor sent."""
    if not f["direction"]:
        return f["op"] == ACTIVITY
    return f["op"] in (HELLO, PING, READ) and not f["status"]


def reply(s):
    f = parse(receive(s, 32))
    f["payload"] = receive(s, f["length"]) if has_payload(f) else b""
    return f


def closed(s):
    """Whether the donor hung up."""
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


class Borrower:
    """
    A borrower that answers the donor's requests while it waits: ACTIVITY by
    .rates {(slab, generation): pages a second} (None: not at all), EVICT by .evict_status.
    It releases promised slabs if .releases.
    """

    def __init__(self, donor, number=1, name=b"tester", rates=None, evict_status=0, releases=True):
        self.rates, self.evict_status, self.releases = rates, evict_status, releases
        self.slabs, self.fds, self.asked, self.evicted, self.tag = [], {}, [], [], 0
        self.socket = connect(donor)
        self.socket.sendall(hello(borrower=number, name=name))
        self.told = self.reply()
        assert self.told["status"] == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    def receive(self):
        """One frame."""
        s = self.socket
        head, fds, _, _ = socket.recv_fds(s, 32, 4) if s.family == socket.AF_UNIX else (receive(s, 32), [], 0, 0)
        if len(head) < 32:
            head += receive(s, 32 - len(head)) if head else b""
        if not head:
            raise EOFError
        f = parse(head)
        f["fds"] = fds
        f["payload"] = receive(s, f["length"]) if has_payload(f) else b""
        return f

    def answer(self, f):
        if f["op"] == ACTIVITY:
            loans = [struct.unpack_from("<II", f["payload"], i) for i in range(0, f["length"], 8)]
            self.asked.append(loans)
            if self.rates is not None:
                rates = struct.pack(f"<{len(loans)}Q", *(int(1000 * self.rates.get(x, 0)) for x in loans))
                self.socket.sendall(frame(ACTIVITY, f["tag"], length=f["length"], direction=1) + rates)
            return
        assert f["op"] == EVICT
        loan = f["slab"], f["generation"]
        self.evicted.append(loan)
        if self.evict_status is None:
            return
        self.socket.sendall(frame(EVICT, f["tag"], *loan, direction=1, status=self.evict_status))
        if self.evict_status == 0 and self.releases:
            self.socket.sendall(frame(UNMAP, 0, *loan))

    def reply(self, seconds=60):
        """The reply to the last request, after answering what comes before it."""
        end = time.monotonic() + seconds
        while True:
            self.socket.settimeout(max(end - time.monotonic(), 0.001))
            f = self.receive()
            if not f["direction"]:
                self.answer(f)
            elif f["op"] == UNMAP and f["tag"] == 0:
                assert f["status"] == 0
                self.slabs.remove((f["slab"], f["generation"]))
            else:
                return f

    def serve(self, until, seconds=60):
        """Answers the donor until @until() is true."""
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, "the donor did not do it"
            try:
                self.reply(0.1)
                raise AssertionError("a reply to nothing")
            except TimeoutError:
                pass

    def ask(self, op, slab=0, generation=0, offset=0, length=0, payload=b""):
        self.tag += 1
        self.socket.sendall(frame(op, self.tag, slab, generation, offset, length) + payload)
        f = self.reply()
        assert (f["op"], f["tag"]) == (op, self.tag)
        return f

    def map(self):
        """A slab, or the status."""
        f = self.ask(MAP, length=8, payload=bytes(8))
        if f["status"]:
            return f["status"]
        loan = f["slab"], f["generation"]
        self.slabs.append(loan)
        self.fds.update({loan: fd for fd in f["fds"]})
        return loan

    def map_many(self, n):
        for _ in range(n):
            assert isinstance(self.map(), tuple)
        return self.slabs

    def unmap(self, loan):
        assert self.ask(UNMAP, *loan)["status"] == 0
        self.slabs.remove(loan)

    def write(self, loan, data, page=0):
        return self.ask(WRITE, *loan, page * PAGE, len(data), data)["status"]

    def read(self, loan, pages=1, page=0):
        """The pages, or the status."""
        f = self.ask(READ, *loan, page * PAGE, pages * PAGE)
        return f["status"] or f["payload"]

    def ping(self):
        return dict(zip(("version", "flags", "slab", "total", "free", "memory", "used", "session", "zero"),
                        TOLD.unpack(self.ask(PING)["payload"])))
