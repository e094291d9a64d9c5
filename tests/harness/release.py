# SPDX-License-Identifier: GPL-2.0-or-later
"""Release 0.1.0: its tree, programs and objects, for tests."""
import fcntl
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

import machine
import parts
import policies

COMMIT = "154d53e29a587bf0fdc883fd2d0672aafe455cd4"
TREE = machine.BUILD / "release" / COMMIT[:7]
BIN = TREE / "build" / "bin"
MISSING = f"commit {COMMIT[:7]} (release 0.1.0) is not in this repository"


def git(*argv):
    # The repository may belong to the user who called sudo.
    return subprocess.run(["git", "-C", str(machine.REPO), "-c", "safe.directory=*", *argv],
                          capture_output=True)


def make(directory, *targets):
    """Builds @targets of the release's tree in @directory, without variables of a make that runs the tests."""
    drop = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "SUDO_UID", "SUDO_GID")
    env = {k: v for k, v in os.environ.items() if k not in drop}
    done = subprocess.run(["make", "--no-print-directory", "NO_DEPS=1", f"-j{os.cpu_count()}", *targets],
                          cwd=directory, env=env, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


def tree():
    """Returns the release's directory, built at first use; skips the test if git lacks the commit."""
    machine.BUILD.mkdir(exist_ok=True)
    with open(machine.BUILD / "release.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (TREE / "complete").exists():
            if git("cat-file", "-e", COMMIT + "^{commit}").returncode:
                pytest.skip(MISSING)
            # It cannot be built below a path that contains a space.
            with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ebb-release-") as directory:
                with tarfile.open(fileobj=io.BytesIO(git("archive", COMMIT).stdout)) as archive:
                    archive.extractall(directory)
                make(directory, "all", "gc-programs")
                shutil.copytree(directory, TREE, symlinks=True, dirs_exist_ok=True)
            (TREE / "complete").touch()
    return TREE


@contextmanager
def programs(directory=BIN):
    """Makes parts.py run programs of @directory and policies.py use the release's headers."""
    now = parts.BIN, policies.POLICY_MK
    with tempfile.TemporaryDirectory(prefix="ebb-release-") as link:
        # Its policy.mk fails, too, if its path contains a space.
        (Path(link) / "tree").symlink_to(TREE)
        parts.BIN, policies.POLICY_MK = directory, Path(link) / "tree" / "policies" / "policy.mk"
        try:
            yield
        finally:
            parts.BIN, policies.POLICY_MK = now
