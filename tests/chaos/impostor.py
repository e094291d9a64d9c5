# SPDX-License-Identifier: GPL-2.0-or-later
"""
A donor that a device is told to use, and that replays at other donors the number by which the device
resumes its session here.
"""
import socket
import struct

from machine import MachineError

FRAME = struct.Struct("<4sBBHQIIII")
HELLO, VERSION, RESUME, KEEP = 1, 3, 2, 1
HELLO_DATA = struct.Struct("<IIQQ24s")     # version, flags, number, size of a slab, name


def receive(s, n):
    got = b""
    while len(got) < n:
        piece = s.recv(n - len(got))
        if not piece:
            raise MachineError("impostor: the other side hung up")
        got += piece
    return got


class Impostor:
    def __init__(self, path):
        self.path = path
        path.unlink(missing_ok=True)
        self.address = f"unix:{path}"
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.listening.settimeout(20)
        self.hello = None

    def listen(self):
        """Waits for the device's HELLO, which it does not answer."""
        s, _ = self.listening.accept()
        with s:
            s.settimeout(20)
            head = FRAME.unpack(receive(s, FRAME.size))
            self.hello = HELLO_DATA.unpack(receive(s, head[-1]))

    def resume(self, path):
        """Tries to resume the session at the donor's socket @path; returns the donor's status."""
        _, _, number, slab, name = self.hello
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20)
            s.connect(path)
            s.sendall(FRAME.pack(b"EBB1", HELLO, 0, 0, 0, 0, 0, 0, HELLO_DATA.size) +
                      HELLO_DATA.pack(VERSION, KEEP | RESUME, number, slab, name))
            return FRAME.unpack(receive(s, FRAME.size))[3]

    def close(self):
        self.listening.close()
        self.path.unlink(missing_ok=True)
