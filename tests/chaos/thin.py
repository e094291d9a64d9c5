# SPDX-License-Identifier: GPL-2.0-or-later
"""
A file system that is larger than the disk below it: preallocation succeeds, and writes fail
once the disk is full, as on a thinly provisioned volume, or wait while it is hung.
"""
import subprocess
from contextlib import contextmanager


class ThinDisk:
    """An ext4 of @size MiB at .directory, of which @room MiB can be written."""

    def __init__(self, below, size=64, room=12):
        # machine.py recognizes the tests' mounts by this name.
        self.below = below / "ebb-chaos"
        self.directory = self.below / "fs"
        self.below.mkdir()
        self.run("mount", "-t", "tmpfs", "-o", f"size={room}m", "ebb-chaos", self.below)
        self.mounted = [self.below]
        try:
            self.directory.mkdir()
            image = self.below / "image"
            self.run("truncate", "-s", f"{size}M", image)
            # No journal: a failed journal write would end all writing for good.
            self.run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1", image)
            self.run("mount", "-o", "loop", image, self.directory)
            self.mounted.append(self.directory)
        except BaseException:
            self.close()
            raise

    def run(self, *argv):
        subprocess.run(list(map(str, argv)), check=True, capture_output=True)

    def grow(self, room=256):
        self.run("mount", "-o", f"remount,size={room}m", self.below)

    @contextmanager
    def hung(self):
        """Every write waits, as on a disk that does not answer."""
        self.run("fsfreeze", "--freeze", self.directory)
        try:
            yield
        finally:
            self.run("fsfreeze", "--unfreeze", self.directory)

    def close(self):
        for directory in reversed(self.mounted):
            self.run("umount", directory)
        self.below.rmdir()
