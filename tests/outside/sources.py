# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's source, as Debian packages it, below build/outside/."""
import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness")]

import machine

SERIES = "6.12"
PACKAGE = f"linux-source-{SERIES}"
STORE = machine.BUILD / "outside"
# For the kernel's build.
PACKAGES = ("gcc", "make", "flex", "bison", "bc", "xz-utils", "libelf-dev")


class Unavailable(Exception):
    """The source cannot be downloaded or configured."""


def run(*argv, cwd=STORE):
    done = subprocess.run(list(map(str, argv)), cwd=cwd, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Unavailable(f"{' '.join(map(str, argv[:3]))}: {' / '.join(done.stdout.splitlines()[-4:])}")


def unpack(root):
    """Downloads the package and unpacks it to @root."""
    part = STORE / "source.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    run("apt-get", "download", PACKAGE, cwd=part)
    deb, = part.glob("*.deb")
    run("dpkg-deb", "-x", deb, part)
    deb.unlink()
    run("tar", "-xf", part / f"usr/src/{PACKAGE}.tar.xz", cwd=part)
    (part / PACKAGE).rename(root)
    shutil.rmtree(part)


def kernel():
    """Unpacks the source and configures the smallest kernel in tinyconfig/, beside it."""
    source, output = STORE / "linux", STORE / "tinyconfig"
    STORE.mkdir(parents=True, exist_ok=True)
    with open(STORE / "source.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not source.exists():
            unpack(source)
        if (output / "prepared").exists():
            return
        output.mkdir(exist_ok=True)
        for target in ("tinyconfig", "prepare"):
            # Its build is not this one's: without our flags.
            run("env", "-u", "MAKEFLAGS", "-u", "MFLAGS", "-u", "MAKELEVEL",
                "make", "-s", "-j2", "-C", source, f"O={output}", target)
        (output / "prepared").touch()
