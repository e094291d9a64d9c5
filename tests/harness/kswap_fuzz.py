# SPDX-License-Identifier: GPL-2.0-or-later
"""Random messages to ebb_swap.ko: valid, with wrong values, or with wrong bytes."""
import random
import struct

from kswap import (ATTRIBUTE, BYTES, COMMAND, FLAGS, NLM_F_ACK, NLM_F_DUMP, SIZES, Refused,
                   attribute, encode)

MIB = 1 << 20
# Fields that each command takes.
FIELDS = {
    "create": ("device", "size", "slab_size", "queues", "depth", "deadline", "pool", "copies", "seal",
               "backup", "key", "key_number"),
    "destroy": ("device",),
    "connect": ("device", "address", "port", "class", "key", "key_number"),
    "disconnect": ("device", "session", "force"),
    "map": ("device", "slab", "session", "copies"),
    "unmap": ("device", "slab", "session", "force", "class"),
    "migrate": ("device", "slab", "session", "from", "class"),
    "drain": ("device", "session", "target"),
    "status": ("device",),
    "slabs": ("device", "class"),
    "class": ("device", "class", "copies", "seal"),
    "assign": ("device", "cgroup", "class"),
    "trust": ("device", "session"),
}
# Sizes that are valid and beyond this guest's memory are left out.
VALUES = {
    "size": (8 * MIB, 16 * MIB, 64 * MIB, 0, 3, 5 * MIB, (1 << 44) + MIB, 1 << 62, (1 << 64) - 1),
    "slab_size": (MIB, 4 * MIB, 0, 1, 3 * MIB, 1 << 31, (1 << 64) - 1),
    "pool": (0, 4096, MIB, 4095, 1 << 31, (1 << 64) - 1),
    "depth": (1, 64, 0, 1025, 1 << 31),
    "queues": (1, 2, 0, 17, 1 << 31),
    "deadline": (1, 1000, 0, 600001, (1 << 32) - 1),
    "copies": (1, 2, 3, 4, 5, 7, 0, 8, 1 << 31),
    "backup": ("", "/dev/nothing", "/dev/null", "/tmp", "x" * 255, "y" * 300),
    "address": ("", "nonsense", "10.9.0.1", "::1", "203.0.113.1", "9" * 46, "9" * 60),
    "slab": (0, 1, 2, 3, 7, 63, 64, (1 << 32) - 1),
    "class": (0, 1, 2, 7, 8, (1 << 32) - 1),
    "cgroup": (0, 1, 2, (1 << 64) - 1),
}
INTEGERS = (0, 1, 2, 3, 63, 64, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


class Messages:
    """
    Messages of a seed, sent by send().  @kept is a device that they may use but not spoil: they do
    not FORCE anything there, and its slabs keep the backup.
    """

    def __init__(self, netlink, seed, kept, port, key):
        self.netlink, self.kept, self.port, self.key = netlink, kept, port, key
        self.random = random.Random(seed)
        self.outcomes = {} # (command, errno): number
        self.sessions = [(kept, 0)] # (device, session) that there have been

    def value(self, name):
        r = self.random
        if name == "device":
            return r.choice((self.kept, r.randrange(40, 44), r.randrange(40, 44), r.choice(INTEGERS)))
        if name == "port":
            return r.choice((self.port, 0, 9, 65535))
        if name in BYTES:
            return r.choice((getattr(self.key, "secret" if name == "key" else "number"),
                             r.randbytes(32 if name == "key" else 8), r.randbytes(r.randrange(40))))
        return r.choice(VALUES.get(name, INTEGERS))

    def fields(self, command):
        """Returns mostly the fields that the command needs, with mostly valid values."""
        r = self.random
        chosen = {name: self.value(name) for name in FIELDS[command] if r.random() < 0.8}
        if command == "create":
            chosen = {"device": r.randrange(40, 44), "slab_size": MIB, "size": 8 * MIB,
                      "key": self.key.secret, "key_number": self.key.number}
            chosen |= {name: self.value(name) for name in r.sample(FIELDS[command], r.randrange(3))
                       if name != "device"}
        if command == "connect" and r.random() < 0.5:
            chosen |= {"address": "10.9.0.1", "port": self.port}
            chosen.pop("key", None), chosen.pop("key_number", None)
        if "session" in chosen and r.random() < 0.6:
            chosen["device"], chosen["session"] = r.choice(self.sessions[-8:])
        if r.random() < 0.1:
            name = r.choice(sorted(set(SIZES) | {"session", "slab", "state", "event"}))
            chosen[name] = r.choice(INTEGERS) & (0xffff if name == "port" else (1 << 32) - 1)
        if chosen.get("device") == self.kept:
            chosen.pop("force", None)
            if not chosen.get("copies", 2) & 2:
                chosen["copies"] = 3
        return {name: r.random() < 0.5 if name in FLAGS else value for name, value in chosen.items()}

    def spoilt(self, body):
        """Returns @body with wrong bytes, lengths, duplicates, or more attributes."""
        r, body = self.random, bytearray(body)
        for _ in range(r.randrange(1, 4)):
            how = r.randrange(6)
            if how == 0 and body:
                body[r.randrange(len(body))] ^= 1 << r.randrange(8)
            elif how == 1:
                del body[r.randrange(len(body) + 1):]
            elif how == 2:
                body += r.randbytes(r.randrange(1, 24))
            elif how == 3:
                body += body[:64]
            elif how == 4:
                kind = r.randrange(max(ATTRIBUTE.values()) + 3) | r.choice((0, 0, 1 << 14, 1 << 15))
                body += attribute(kind, r.randbytes(r.choice((0, 1, 2, 4, 8, 32))))
            elif len(body) >= 4:
                struct.pack_into("=H", body, 0, r.choice((0, 3, 4, 5, 8, 400, 65535)))
        return bytes(body)

    def send(self):
        """Sends one message.  The module answers: with 0, or an errno."""
        r = self.random
        command = r.choice(sorted(FIELDS))
        fields = self.fields(command)
        body = encode(fields)
        if r.random() < 0.4 and "force" not in fields and command != "unmap":
            body = self.spoilt(body)
        number = COMMAND[command] if r.random() < 0.98 else r.randrange(256)
        dump = (command in ("status", "slabs")) != (r.random() < 0.03)
        try:
            answer = self.netlink.send(self.netlink.family, number, body,
                                       NLM_F_DUMP if dump else NLM_F_ACK)
            error = 0
            if number == COMMAND["connect"]:
                told = self.netlink.decode(answer[0])
                self.sessions.append((fields.get("device"), told["session"]))
        except Refused as e:
            error = e.errno
        assert 0 <= error < 4096
        self.outcomes[command, error] = self.outcomes.get((command, error), 0) + 1
