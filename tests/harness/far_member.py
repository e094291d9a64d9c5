# SPDX-License-Identifier: GPL-2.0-or-later
"""
A member of a pool of far memory, by libebbfar: far_member.py DONOR POOL SIZE... allocates an extent
of each SIZE, writes "ready N" (its number) and stays until its standard input ends.
"""
import ctypes
import os
import signal
import subprocess
import sys

import machine


NO_RESUME = 4 # EBBFAR_NO_RESUME: the donor frees what a killed member had at once


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("donor", ctypes.c_char_p), ("key", ctypes.c_char_p),
                ("pool", ctypes.c_char_p), ("flags", ctypes.c_uint), ("timeout_ms", ctypes.c_uint),
                ("error", ctypes.c_char * 512)]


class Extent(ctypes.Structure):
    _fields_ = [("place", ctypes.c_uint64), ("size", ctypes.c_uint64), ("generation", ctypes.c_uint64)]


def main(donor, pool, *sizes):
    library = ctypes.CDLL(str(machine.BUILD / "lib" / "libebbfar.so.1"))
    options = Options(ctypes.sizeof(Options), donor.encode(), None, pool.encode(), NO_RESUME, 60000)
    handle, extent = ctypes.c_void_p(), Extent()
    if library.ebbfar_open(ctypes.byref(options), ctypes.byref(handle)):
        sys.exit(options.error.decode())
    for size in sizes:
        failed = library.ebbfar_alloc(handle, ctypes.c_size_t(int(size)), ctypes.byref(extent))
        if failed:
            sys.exit(f"{size}: {os.strerror(-failed)}")
    print("ready", library.ebbfar_member(handle), flush=True)
    sys.stdin.read()


class Member:
    """Such a process; .number is its number."""

    def __init__(self, donor, pool, *sizes):
        argv = [sys.executable, "-B", __file__, donor, pool, *map(str, sizes)]
        self.process = subprocess.Popen(argv, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        words = self.process.stdout.readline().split()
        assert words[:1] == ["ready"], f"{argv}: it ended with {self.process.wait()}"
        self.number = int(words[1])

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
