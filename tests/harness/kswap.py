# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko's netlink family (include/ebb/swap.h), encoded here: valid and invalid messages."""
import os
import re
import socket
import struct

from key import shared_key
from machine import REPO

NETLINK_GENERIC, NETLINK_EXT_ACK, SOL_NETLINK, NETLINK_CAP_ACK = 16, 11, 270, 10
NETLINK_ADD_MEMBERSHIP = 1
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 1, 4, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200
CTRL_ID, CTRL_GETFAMILY, CTRL_A_FAMILY_ID, CTRL_A_FAMILY_NAME = 16, 3, 1, 2
CTRL_A_MCAST_GROUPS, CTRL_A_MCAST_GRP_ID = 7, 2


def constants():
    """Returns the header's enums, the only list of numbers."""
    text = (REPO / "include/ebb/swap.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    found = {}
    for body in re.findall(r"enum \w+ \{(.*?)\}", text, re.S):
        value = -1
        for item in filter(None, (i.strip() for i in body.split(","))):
            name, _, given = (p.strip() for p in item.partition("="))
            value = int(given) if given else value + 1
            found[name.removeprefix("EBB_SWAP_")] = value
    return found


C = constants()
COMMAND = {n[4:].lower(): v for n, v in C.items() if n.startswith("CMD_")}
ATTRIBUTE = {n[2:].lower(): v for n, v in C.items() if n.startswith("A_")}
COUNT = {v: n[2:].lower() for n, v in C.items() if n.startswith("C_")}
EVENT = {v: n[6:].lower() for n, v in C.items() if n.startswith("EVENT_")}
CAUSE = {v: n[6:].lower() for n, v in C.items() if n.startswith("CAUSE_")}
STATE = {C[n]: n.lower() for n in ("CONNECTING", "LIVE", "FAILED", "CLOSED", "AWAY")}
DONOR, BACKUP, SECOND = C["DONOR"], C["BACKUP"], C["SECOND"]
NO_SESSION = 0xffffffff
SIZES = {"size": "Q", "slab_size": "Q", "port": "H", "donor_free": "Q", "pool": "Q", "cgroup": "Q"}
STRINGS = ("backup", "address", "reason")
BYTES = ("key", "key_number")
FLAGS = ("force", "seal")
SLAB = struct.Struct("=IIIIIIIIQQII")


class Refused(OSError):
    """The kernel's errno with the text of its extended acknowledgement and its attribute."""

    def __init__(self, number, text, offset):
        super().__init__(number, f"{os.strerror(number)}: {text}")
        self.text, self.offset = text, offset


def attribute(kind, payload):
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            return
        yield kind & 0x3fff, data[4:length]
        data = data[(length + 3) & ~3:]


def encode(fields):
    out = b""
    for name, value in fields.items():
        if value is None or value is False:
            continue
        if name in FLAGS:
            payload = b""
        elif name in BYTES:
            payload = bytes(value)
        elif name in STRINGS:
            payload = str(value).encode() + b"\0"
        else:
            payload = struct.pack("=" + SIZES.get(name, "I"), value)
        out += attribute(ATTRIBUTE[name], payload)
    return out


def number(data):
    return int.from_bytes(data, "little")


class Kswap:
    """A socket to the module."""

    def __init__(self):
        self.open()
        body = self.send(CTRL_ID, CTRL_GETFAMILY, attribute(CTRL_A_FAMILY_NAME, b"ebb_swap\0"))[0]
        told = dict(attributes(body))
        self.family = number(told[CTRL_A_FAMILY_ID])
        # The family has one multicast group: events.
        group = next(attributes(told[CTRL_A_MCAST_GROUPS]))[1]
        self.group = number(dict(attributes(group))[CTRL_A_MCAST_GRP_ID])

    def open(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
        self.socket.settimeout(60)
        for option in (NETLINK_EXT_ACK, NETLINK_CAP_ACK):
            self.socket.setsockopt(SOL_NETLINK, option, 1)
        self.sequence = 0

    def close(self):
        self.socket.close()

    def send(self, family, command, body, flags=NLM_F_ACK, length=None, reserved=0):
        """Returns the bodies of the replies; @length: overrides the header's length."""
        self.sequence += 1
        message = struct.pack("=BBH", command, 1, reserved) + body
        head = struct.pack("=IHHII", length or 16 + len(message), family, NLM_F_REQUEST | flags,
                           self.sequence, 0)
        self.socket.send(head + message)
        replies = []
        while True:
            data = self.socket.recv(1 << 17)
            while data:
                size, kind, flags_, sequence, _ = struct.unpack_from("=IHHII", data)
                message, data = data[16:size], data[(size + 3) & ~3:]
                if sequence != self.sequence:
                    continue
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    error = struct.unpack_from("=i", message)[0]
                    if error:
                        raise self.refusal(-error, kind, flags_, message)
                    return replies
                replies.append(message[4:])

    @staticmethod
    def refusal(error, kind, flags, message):
        text, offset = "", None
        if flags & NLM_F_ACK_TLVS:
            start = 4 if kind == NLMSG_DONE else 20
            for kind, payload in attributes(message[start:]):
                if kind == 1:
                    text = payload.rstrip(b"\0").decode()
                elif kind == 2:
                    offset = number(payload)
        return Refused(error, text, offset)

    def call(self, command, **fields):
        return self.send(self.family, COMMAND[command], encode(fields))

    def answer(self, command, name, **fields):
        return number(dict(attributes(self.call(command, **fields)[0]))[ATTRIBUTE[name]])

    def create(self, size, **fields):
        """Creates a device, with the tests' shared key unless @fields have another."""
        if not {"key", "key_number"} & fields.keys():
            fields |= {"key": shared_key().secret, "key_number": shared_key().number}
        return self.answer("create", "device", size=size, **fields)

    def connect(self, device, address, port, of=None, **key):
        return self.answer("connect", "session", device=device, address=address, port=port,
                           **{"class": of}, **key)

    def status(self, device):
        """Returns a device's {..., counts: {name: number}, sessions: [{...}], classes, cgroups}."""
        for body in self.send(self.family, COMMAND["status"], b"", NLM_F_DUMP):
            told = self.decode(body)
            if told["device"] == device:
                return told
        raise KeyError(device)

    def devices(self):
        return [self.decode(b)["device"]
                for b in self.send(self.family, COMMAND["status"], b"", NLM_F_DUMP)]

    def decode(self, body):
        names = {v: k for k, v in ATTRIBUTE.items()}
        told = {"sessions": [], "counts": {}, "classes": [], "cgroups": []}
        for kind, payload in attributes(body):
            name = names[kind]
            if name == "counts":
                told["counts"] = {COUNT[k]: number(p) for k, p in attributes(payload) if k}
            elif name == "session_info":
                s = self.decode(payload)
                s["state"] = STATE[s["state"]]
                told["sessions"].append(s)
            elif name in ("class_info", "cgroup_info"):
                one = self.decode(payload)
                told["classes" if name == "class_info" else "cgroups"].append(
                    {k: one[k] for k in ("class", "copies", "cgroup", "seal") if k in one})
            elif name == "cause":
                told[name] = CAUSE[number(payload)]
            elif name in ("draining", "seal"):
                told[name] = True
            elif name in BYTES:
                told[name] = payload
            elif name in STRINGS:
                told[name] = payload.rstrip(b"\0").decode()
            elif name != "pad":
                told[name] = number(payload)
        return told

    def slabs(self, device, of=None):
        """Returns a list of dicts, one per slab, for pages of class @of."""
        found = []
        for body in self.send(self.family, COMMAND["slabs"],
                              encode({"device": device, "class": of}), NLM_F_DUMP):
            table = dict(attributes(body))[ATTRIBUTE["slab_table"]]
            for row in SLAB.iter_unpack(table):
                found.append(dict(zip(("session", "copies", "remote", "generation", "written",
                                       "donor_only", "source", "uncopied", "reads", "writes",
                                       "recalled", "second"), row)))
                # Separate the bits of EBB_SWAP_LACKING().
                found[-1]["lacking"], found[-1]["copies"] = divmod(found[-1]["copies"], 1 << 8)
        return found


class Events(Kswap):
    """A socket that receives the module's events."""

    def __init__(self):
        super().__init__()
        self.socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, self.group)

    def next(self, seconds=20):
        """Returns {"event": name, "device": N, "session": N, ...}; TimeoutError without an event."""
        self.socket.settimeout(seconds)
        data = self.socket.recv(1 << 16)
        size, kind = struct.unpack_from("=IH", data)
        assert kind == self.family and data[16] == COMMAND["event"]
        told = self.decode(data[20:size])
        return {**{k: v for k, v in told.items()
                   if k not in ("sessions", "counts", "classes", "cgroups")},
                "event": EVENT[told["event"]]}
