# SPDX-License-Identifier: GPL-2.0-or-later
"""
An RDMA peer of ebb-donord --rdma-kernel or ebb_swap.ko that sends arbitrary messages
(tests/programs/rdma_stranger.c); and a peer with the key (docs/protocol.md), written
independently: it shares no line with daemon/lib/wire/wire_proof.c.
"""
import hmac
import os
import struct
import subprocess
import threading
import time
from queue import Empty, Queue

import machine

FRAME = struct.Struct("<IBBHQIIII")
FRAME_MAGIC = 0x31424245
HELLO, MAP, UNMAP, PING = 1, 2, 3, 6
NOT_GREETED = 3
REFUSALS = ("unknown", "version", "open", "no key", "other key", "bad proof", "full", "failed")


def mac(secret, label, *parts):
    return hmac.new(secret, label.encode().ljust(16, b"\0") + b"".join(parts), "sha256").digest()


def u32(number):
    return struct.pack("<I", number)


class Stranger:
    """A running rdma_stranger, whose output is read as lists of words."""

    def __init__(self, how, address, port):
        self.process = subprocess.Popen([machine.BUILD / "tests/rdma_stranger", how, address,
                                         str(port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)
        self.said = Queue()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.said.put(line.split())

    def tell(self, data):
        self.process.stdin.write((data if isinstance(data, str) else data.hex()) + "\n")
        self.process.stdin.flush()

    def next(self, seconds=20):
        return self.said.get(timeout=seconds)

    def silent(self, seconds=0.5):
        try:
            return not self.next(seconds)
        except Empty:
            return True

    def end(self):
        self.process.kill()
        self.process.wait()


class Opening(Stranger):
    """A connection that is about to be requested."""

    def __init__(self, address, port):
        super().__init__("connect", address, port)
        word, number = self.next()
        assert word == "qp", (word, number)
        self.qp = int(number)

    def request(self, data):
        """Returns ("accepted", peer's queue pair, private data) or ("rejected", None, private data)."""
        self.tell(data)
        answer = self.next()
        if answer[0] == "rejected":
            return "rejected", None, bytes.fromhex(answer[1]) if len(answer) > 1 else b""
        assert answer[0] == "accepted", answer
        return "accepted", int(answer[1]), bytes.fromhex(answer[2])


def refusal(data):
    """Returns the word for a rejection's reason."""
    magic, version, why = struct.unpack_from("<4sII", data)
    return REFUSALS[why] if magic == b"EBBN" and version == 1 else None


def stated(key, session, queue, queues, version=1):
    """Returns a request's fields before its proof."""
    return b"EBBK" + struct.pack("<HBBQ", version, queue, queues, session) + key.number


def reply_of(data):
    """Returns (nonce, proof) of an acceptance."""
    magic, version = struct.unpack_from("<4sI", data)
    assert (magic, version) == (b"EBBD", 1), data
    return data[8:40], data[40:72]


def secret_of(key, request, nonce, borrower, donor):
    return mac(key.secret, "ebb kmod session", request, nonce, u32(borrower), u32(donor))


class Borrower:
    """A borrower with a key that follows the protocol unless a test changes that."""

    def __init__(self, key, address, port, queues=1, session=None):
        self.key, self.address, self.port, self.queues = key, address, port, queues
        self.session = session or int.from_bytes(os.urandom(8), "little")
        self.connections, self.sent, self.received, self.tag = [], 0, 0, 0
        c = self.open()
        text = stated(key, self.session, 0, queues) + os.urandom(16)
        self.opened = text + mac(key.secret, "open", text, u32(c.qp))[:16]
        word, donor, data = c.request(self.opened)
        assert word == "accepted", refusal(data)
        nonce, proof = reply_of(data)
        self.secret = secret_of(key, self.opened, nonce, c.qp, donor)
        assert proof == mac(self.secret, "donor")

    def open(self):
        self.connections.append(Opening(self.address, self.port))
        return self.connections[-1]

    def join_request(self, queue, qp):
        text = stated(self.key, self.session, queue, self.queues)
        return text + mac(self.secret, "join", text, u32(qp))

    def join(self, queue):
        c = self.open()
        request = self.join_request(queue, c.qp)
        word, donor, data = c.request(request)
        assert word == "accepted", refusal(data)
        nonce, proof = reply_of(data)
        assert not any(nonce)
        assert proof == mac(self.secret, "joined", request, u32(c.qp), u32(donor))

    def marked(self, frame, before=None):
        before = self.sent if before is None else before
        return frame + mac(self.secret, "to donor", struct.pack("<Q", before), frame)[:16]

    def frame(self, op, payload=b"", slab=0, generation=0):
        self.tag += 1
        return FRAME.pack(FRAME_MAGIC, op, 0, 0, self.tag, slab, generation, 0,
                          len(payload)) + payload

    def hello(self):
        name = b"stranger".ljust(24, b"\0")
        return self.frame(HELLO, struct.pack("<IIQQ", 3, 0, self.session, 1 << 20) + name)

    def say(self, message):
        self.connections[0].tell(message)
        self.sent += 1

    def hear(self):
        """Returns (status, payload) after checking the MAC; None: the connection is closed."""
        word, *rest = self.connections[0].next()
        if word == "closed":
            return None
        assert word == "got", (word, rest)
        message = bytes.fromhex(rest[0])
        frame, mark = message[:-16], message[-16:]
        told = mac(self.secret, "to borrower", struct.pack("<Q", self.received), frame)
        assert mark == told[:16]
        self.received += 1
        self.heard = message
        return FRAME.unpack_from(frame)[3], frame[FRAME.size:]

    def ask(self, op, payload=b""):
        self.say(self.marked(self.hello() if op == HELLO else self.frame(op, payload)))
        return self.hear()

    def map(self):
        return self.ask(MAP, struct.pack("<II", 0, 0))

    def end(self):
        for c in self.connections:
            c.end()


class Impostor:
    """A process that listens at a donor's address."""

    def __init__(self, address, port):
        self.stranger = Stranger("listen", address, port)
        assert self.stranger.next() == ["listening"]

    def heard(self):
        """Returns the next event other than an established connection, which may follow messages."""
        said = self.stranger.next()
        return said if said[0] != "accepted" else self.heard()

    def requested(self):
        """Returns (borrower's queue pair, ours, private data) of the next request."""
        word, borrower, ours, data = self.heard()
        assert word == "request", word
        return int(borrower), int(ours), bytes.fromhex(data)

    def answer(self, data):
        self.stranger.tell(data)

    def silent(self, seconds=1):
        """Returns whether no event but connects and disconnects arrives."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                said = self.stranger.next(0.2)
            except Empty:
                continue
            if said[0] in ("got", "request"):
                return False
        return True

    def end(self):
        self.stranger.end()


class Lender(Impostor):
    """A donor with the key that completes the handshake of one borrower with two connections."""

    def __init__(self, key, address, port):
        super().__init__(address, port)
        self.key, self.received, self.sent = key, 0, 0

    def accept(self, spoil=lambda queue, proof: proof):
        """Accepts the next request, with the valid proof changed by @spoil."""
        borrower, ours, data = self.requested()
        request, nonce = data[:56], bytes(32)
        queue = request[6]
        if queue == 0:
            nonce = os.urandom(32)
            self.secret = secret_of(self.key, request, nonce, borrower, ours)
            proof = mac(self.secret, "donor")
        else:
            proof = mac(self.secret, "joined", request, u32(borrower), u32(ours))
        self.answer(b"EBBD" + u32(1) + nonce + spoil(queue, proof))

    def say(self, frame, spoil=0):
        mark = mac(self.secret, "to borrower", struct.pack("<Q", self.sent), frame)[:16]
        self.sent += 1
        self.stranger.tell(frame + bytes([mark[0] ^ spoil]) + mark[1:])

    def call(self, op):
        """Returns (tag, slab, generation) of the borrower's next frame, a request of @op."""
        word, data = self.heard()
        assert word == "got", word
        frame, mark = bytes.fromhex(data)[:-16], bytes.fromhex(data)[-16:]
        assert mark == mac(self.secret, "to donor", struct.pack("<Q", self.received), frame)[:16]
        self.received += 1
        _, its, direction, _, tag, slab, generation, *_ = FRAME.unpack_from(frame)
        assert (its, direction) == (op, 0)
        return tag, slab, generation

    def reply(self, op, tag, payload=b"", slab=0, generation=0, status=0):
        # A grant follows a frame of length 0.
        length = 0 if op == MAP else len(payload)
        self.say(FRAME.pack(FRAME_MAGIC, op, 1, status, tag, slab, generation, 0, length) + payload)

    def grant(self, tag, slab, generation, size=4 << 20):
        """Answers a MAP by memory that does not exist."""
        self.reply(MAP, tag, struct.pack("<QQII", 1 << 32, size, 1, 0), slab, generation)

    def greet(self):
        """Answers a HELLO."""
        tag, *_ = self.call(HELLO)
        self.reply(HELLO, tag, struct.pack("<IHHQQQQQQQ", 3, 0, 0, 4 << 20, 64 << 20, 64 << 20, 0, 0, 0, 0))

    def evict(self, spoil=0):
        self.say(FRAME.pack(FRAME_MAGIC, 8, 0, 0, 0, 0, 1, 0, 0), spoil)
