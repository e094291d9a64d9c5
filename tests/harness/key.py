# SPDX-License-Identifier: GPL-2.0-or-later
"""Key files of ebb, including one that all tests of the kernel module share."""
import functools
import hashlib
import os
from pathlib import Path

import parts


class Key:
    """A key file."""

    def __init__(self, path):
        self.path = Path(path)
        _, self.name, *_, secret = self.path.read_text().split()
        self.secret = bytes.fromhex(secret)
        text = self.name.encode().ljust(32, b"\0") + self.secret
        self.number = hashlib.sha256(text).digest()[:8]

    @classmethod
    def create(cls, path, name):
        parts.ebbctl("key", "create", path, "--name", name)
        return cls(path)


    def derive(self, address, path):
        """Returns the key of the donor at @address."""
        parts.ebbctl("key", "derive", self.path, address, path)
        return Key(path)


@functools.cache
def shared_key():
    """Returns the default key of donors and devices, which a guest and its peer share."""
    # Not named ebb*: the test of a purge takes such files for ebb's.
    path = "/run/shared.key"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(f"ebb-key-1 shared {'5a' * 32}\n")
    return Key(path)
