# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbdsm_sync.h by ctypes."""
import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p

from dsm_member import SO, Name, Space


class Arc(ctypes.Structure):
    _fields_ = [("value", Name), ("at", c_uint64), ("stamp", c_uint64)]


WORD = [POINTER(Name), c_uint32]
for name, arguments in {
        "words_new": [POINTER(c_uint64), c_uint32, POINTER(Name)], "load": [*WORD, POINTER(c_uint64)],
        "store": [*WORD, c_uint64], "add": [*WORD, c_uint64, POINTER(c_uint64)],
        "cas": [*WORD, c_uint64, c_uint64, POINTER(c_uint64)],
        "mutex_new": [c_char_p, c_size_t, POINTER(Name)], "mutex_drop": [POINTER(Name)],
        "lock": [POINTER(Name), c_int, POINTER(c_void_p)], "consistent": [POINTER(Name)],
        "unlock": [POINTER(Name), c_void_p],
        "channel_new": [c_uint32, c_size_t, POINTER(Name)], "channel_close": [POINTER(Name)],
        "send": [POINTER(Name), c_char_p, c_size_t, c_int],
        "receive": [POINTER(Name), c_char_p, c_size_t, POINTER(c_size_t), c_int],
        "leave": [c_uint64, c_uint64], "arc_new": [POINTER(Name), POINTER(Arc)],
        "clone": [POINTER(Arc)], "unclone": [POINTER(Arc)]}.items():
    getattr(SO, f"ebbdsm_{name}").argtypes = [c_void_p, *arguments]


class SyncSpace(Space):
    """Functions return 0 or a negative errno, those that read a value or that errno."""

    def call(self, verb, *args):
        args = [byref(a) if isinstance(a, Arc) else a for a in args]
        return super().call(verb, *args)

    def made(self, verb, *args):
        name = Name()
        assert self.call(verb, *args, name) == 0, self.why()
        return name

    def load(self, words, i):
        value = c_uint64()
        return self.call("load", words, i, byref(value)) or value.value

    def lock(self, mutex, timeout_ms=-1):
        """Returns the result, and the address of the object."""
        content = c_void_p()
        r = self.call("lock", mutex, timeout_ms, byref(content))
        return r, content.value

    def receive(self, channel, timeout_ms=-1):
        room, size = ctypes.create_string_buffer(4096), c_size_t()
        return self.call("receive", channel, room, len(room), byref(size), timeout_ms) or room.raw[:size.value]

    def shared(self, content):
        """Returns an object with one owner."""
        box, arc = self.new(content), Arc()
        assert self.call("arc_new", box, arc) == 0, self.why()
        return arc
