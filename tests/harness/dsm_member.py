# SPDX-License-Identifier: GPL-2.0-or-later
"""libebbdsm by ctypes, and a link to a donor that counts, delays, or kills at a message."""
import ctypes
import errno
import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_size_t, c_uint, c_uint64, c_void_p

from machine import BUILD


class Name(ctypes.Structure):
    """A box, view, loan or parcel."""
    _fields_ = [("at", c_uint64), ("stamp", c_uint64)]

    def words(self):
        return f"{self.at:x} {self.stamp:x}"

    @classmethod
    def of(cls, words):
        return cls(*(int(w, 16) for w in words.split()))


class Options(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("donors", POINTER(c_char_p)), ("donor_count", c_uint),
                ("home", c_uint), ("pool", c_char_p), ("key", c_char_p), ("cache", c_size_t),
                ("timeout_ms", c_uint), ("resume_ms", c_uint), ("error", ctypes.c_char * 512), ("replicas", c_uint),
                ("unused", c_uint)]


class Counts(ctypes.Structure):
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in (
        "hits", "misses", "round_trips", "requests", "posted", "cached", "places", "at_twins", "lost",
        "bare")]


class Call(ctypes.Structure):
    """What a function of a task gets."""
    _fields_ = [("function", c_uint), ("args", c_void_p), ("args_size", c_size_t), ("result", c_void_p),
                ("result_size", c_size_t), ("box", Name * 8)]


Function = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, POINTER(Call))


class Functions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("table", POINTER(Function)), ("count", c_uint), ("waiting", c_uint),
                ("build", c_char_p), ("error", ctypes.c_char * 256)]


class Task(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("function", c_uint), ("args", c_char_p), ("args_size", c_size_t),
                ("result_size", c_size_t), ("box", Name * 8), ("error", ctypes.c_char * 256)]


class Result(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("bytes", c_void_p), ("bytes_size", c_size_t), ("status", ctypes.c_int),
                ("donor", c_uint), ("member", c_uint), ("box", Name * 8), ("error", ctypes.c_char * 256)]


# What libebbdsm needs is not in the system's path.
ctypes.CDLL(str(BUILD / "lib/libebbfar.so.1"), ctypes.RTLD_GLOBAL)
SO = ctypes.CDLL(str(BUILD / "lib/libebbdsm.so.1"), use_errno=True)
SO.ebbdsm_why.restype = c_char_p
POINTERS = {"borrow", "borrow_mut", "borrow_view", "borrow_loan"}
ARGUMENTS = {"new": [c_char_p, c_size_t, POINTER(Name)], "drop": [POINTER(Name)],
             "borrow": [POINTER(Name)], "return": [POINTER(Name), c_void_p],
             "borrow_mut": [POINTER(Name)], "return_mut": [POINTER(Name), c_void_p],
             "borrow_view": [POINTER(Name), POINTER(c_size_t)], "return_view": [POINTER(Name), c_void_p],
             "borrow_loan": [POINTER(Name), POINTER(c_size_t)], "return_loan": [POINTER(Name), c_void_p],
             "lend_mut": [POINTER(Name), POINTER(Name)], "reclaim": [POINTER(Name)],
             "give": [POINTER(Name), POINTER(Name)], "accept": [POINTER(Name), POINTER(Name)],
             "new_at": [c_uint64, c_char_p, c_size_t, POINTER(Name)],
             "register": [POINTER(Functions)], "spawn": [POINTER(Task), POINTER(c_void_p)],
             "spawn_at": [c_uint64, POINTER(Task), POINTER(c_void_p)], "cancel": [c_void_p],
             "join": [POINTER(c_void_p), ctypes.c_int, POINTER(Result)], "work": [ctypes.c_int],
             "settle": [], "why": [], "close": []}
for name, arguments in ARGUMENTS.items():
    getattr(SO, f"ebbdsm_{name}").argtypes = [c_void_p, *arguments]
    if name in POINTERS:
        getattr(SO, f"ebbdsm_{name}").restype = c_void_p


class Space:
    """A handle; functions return 0, a negative errno or, those that borrow, a pointer or that errno."""

    def __init__(self, *donors, home=0, pool=b"p", timeout_ms=20000, resume_ms=0, replicas=0):
        self.dsm = c_void_p()
        listed = (c_char_p * len(donors))(*(d.encode() for d in donors))
        o = Options(size=ctypes.sizeof(Options), donors=listed, donor_count=len(donors), home=home,
                    pool=pool, timeout_ms=timeout_ms, resume_ms=resume_ms, replicas=replicas)
        assert SO.ebbdsm_open(byref(o), byref(self.dsm)) == 0, o.error

    def call(self, verb, *args):
        args = [byref(a) if isinstance(a, Name) else a for a in args]
        got = getattr(SO, f"ebbdsm_{verb}")(self.dsm, *args)
        return got if verb not in POINTERS or got else -ctypes.get_errno()

    def __getattr__(self, verb):
        return lambda *args: self.call(verb.rstrip("_"), *args)

    def new(self, content):
        box = Name()
        assert self.call("new", content, len(content), box) == 0, self.why()
        return box

    def offer(self, verb, box):
        """Returns the loan or parcel."""
        offered = Name()
        assert self.call(verb, box, offered) == 0, self.why()
        return offered

    def value(self, box, size):
        p = self.call("borrow", box)
        assert p > 0, (p, self.why())
        content = ctypes.string_at(p, size)
        assert self.call("return", box, p) == 0
        return content

    def change(self, box, content):
        p = self.call("borrow_mut", box)
        assert p > 0, (p, self.why())
        ctypes.memmove(p, content, len(content))
        assert self.call("return_mut", box, p) == 0

    def see(self, view, size):
        """Returns the value, or a negative errno."""
        p = self.call("borrow_view", view, None)
        if p < 0:
            return p
        content = ctypes.string_at(p, size)
        assert self.call("return_view", view, p) == 0
        return content

    def functions(self, *functions, waiting=0, build=b"test"):
        """Registers functions(space, call), which return a status."""
        table = (Function * len(functions))(*(Function(lambda _, call, f=f: f(self, call.contents))
                                              for f in functions))
        f = Functions(size=ctypes.sizeof(Functions), table=table, count=len(functions), waiting=waiting,
                      build=build)
        assert self.call("register", byref(f)) == 0, f.error
        self.table = table

    def spawned(self, boxes=(), args=b"", result=0, where=None, function=0):
        """Returns a job, or (errno, text)."""
        t = Task(size=ctypes.sizeof(Task), function=function, args=args, args_size=len(args), result_size=result)
        for i, box in enumerate(boxes):
            t.box[i] = box
        job = c_void_p()
        r = self.call("spawn", byref(t), byref(job)) if where is None else \
            self.call("spawn_at", where, byref(t), byref(job))
        for i, box in enumerate(boxes):
            box.at, box.stamp = t.box[i].at, t.box[i].stamp
        return job if r == 0 else (r, t.error.decode())

    def joined(self, job, seconds, room=64):
        """Returns what ebbdsm_join() does, and the result with .content."""
        content = ctypes.create_string_buffer(room)
        result = Result(size=ctypes.sizeof(Result), bytes=ctypes.addressof(content), bytes_size=room)
        r = self.call("join", byref(job), int(seconds * 1000), byref(result))
        result.content = content.raw[:result.bytes_size] if r == 0 else b""
        return r, result

    def reclaimed(self, box, seconds):
        """Reclaims a box as soon as no live borrower has it."""
        end = time.monotonic() + seconds
        while (r := self.call("reclaim", box)) == -errno.EBUSY and time.monotonic() < end:
            time.sleep(0.01)
        return r

    @property
    def counts(self):
        c = Counts(size=ctypes.sizeof(Counts))
        SO.ebbdsm_count(self.dsm, byref(c))
        return c


class Wire:
    """
    A link to the donor at @port.  Replies are late by .delay seconds.  .at_message(n), if set, is called
    with the number of each message of the client, from 0 on; if it returns False the message is lost.
    """

    def __init__(self, port):
        self.port, self.delay, self.at_message, self.messages = port, 0, None, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.pairs, self.late, self.running = {}, [], True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.running:
            wait = max(0, self.late[0][0] - time.monotonic()) if self.late else 0.02
            ready = select.select([self.server, *self.pairs], [], [], min(wait, 0.02))[0]
            while self.late and self.late[0][0] <= time.monotonic():
                _, to, data = self.late.pop(0)
                self.send(to, data)
            for s in ready:
                if s is self.server:
                    client, _ = self.server.accept()
                    try:
                        donor = socket.create_connection(("127.0.0.1", self.port))
                    except OSError:
                        # The donor has exited.
                        client.close()
                        continue
                    for end in client, donor:
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.pairs[client], self.pairs[donor] = (donor, True), (client, False)
                elif s in self.pairs:
                    self.forward(s, *self.pairs[s])

    def forward(self, s, to, is_client):
        try:
            data = s.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.end(s, to)
        elif not is_client:
            # Behind what is late: replies keep their order.
            if self.delay or self.late:
                self.late.append((time.monotonic() + self.delay, to, data))
            else:
                self.send(to, data)
        else:
            n, self.messages = self.messages, self.messages + 1
            if not self.at_message or self.at_message(n):
                self.send(to, data)

    def send(self, to, data):
        try:
            to.sendall(data)
        except OSError:
            pass

    def end(self, *ends):
        for s in ends:
            if self.pairs.pop(s, None):
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.close()

    def stop(self):
        self.running = False
        self.thread.join()
        self.end(*list(self.pairs))
        self.server.close()


class Process:
    """A process that runs @function(say, hear) with a pipe to this one, from the start on."""

    def __init__(self, function):
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                ours.close()
                function(lambda words: theirs.sendall(f"{words}\n".encode()), lines(theirs))
                os._exit(0)
            except BaseException as e:
                theirs.sendall(f"failed {e!r}\n".encode())
            finally:
                os._exit(1)
        theirs.close()
        self.socket, self.hear = ours, lines(ours)

    def say(self, words):
        try:
            self.socket.sendall(f"{words}\n".encode())
        except OSError:
            pass

    def kill(self):
        """Kills it; one that has ended may be the sender of a message that is late."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def end(self):
        """Returns the status of its end."""
        self.socket.close()
        return os.waitpid(self.pid, 0)[1]


def lines(s):
    """Returns a function that receives a line, or "" at the end."""
    held = b""

    def hear():
        nonlocal held
        while b"\n" not in held:
            try:
                more = s.recv(4096)
            except OSError:
                more = b""
            if not more:
                return ""
            held += more
        line, held = held.split(b"\n", 1)
        return line.decode()
    return hear
