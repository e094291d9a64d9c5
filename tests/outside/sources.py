# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's source, as Debian packages it, and its tests, below build/outside/."""
import fcntl
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness")]

import machine

SERIES = "6.12"
PACKAGE = f"linux-source-{SERIES}"
STORE = machine.BUILD / "outside"
SOURCE, SELFTESTS = STORE / "linux", STORE / "selftests"
# For the build of the kernel and of its tests.
PACKAGES = ("gcc", "make", "flex", "bison", "bc", "xz-utils", "libelf-dev")
PROGRAMS = ("cow", "uffd-unit-tests", "pagemap_ioctl", "madv_populate")


class Unavailable(Exception):
    """The source cannot be downloaded or built."""


def run(*argv, cwd=STORE):
    done = subprocess.run(list(map(str, argv)), cwd=cwd, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise Unavailable(f"{' '.join(map(str, argv[:3]))}: {' / '.join(done.stdout.splitlines()[-4:])}")


def make(*argv):
    # Its build is not this one's: without our flags.
    run("env", "-u", "MAKEFLAGS", "-u", "MFLAGS", "-u", "MAKELEVEL", "make", "-s", "-j2", *argv)


def unpack():
    """Downloads the package and unpacks it."""
    part = STORE / "source.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    run("apt-get", "download", PACKAGE, cwd=part)
    deb, = part.glob("*.deb")
    run("dpkg-deb", "-x", deb, part)
    deb.unlink()
    run("tar", "-xf", part / f"usr/src/{PACKAGE}.tar.xz", cwd=part)
    (part / PACKAGE).rename(SOURCE)
    shutil.rmtree(part)


@contextmanager
def unpacked(output):
    """Yields whether @output has yet to be built of the source, which is unpacked then."""
    STORE.mkdir(parents=True, exist_ok=True)
    with open(STORE / "source.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = output / "done"
        if done.exists():
            yield False
            return
        if not SOURCE.exists():
            unpack()
        output.mkdir(exist_ok=True)
        yield True
        done.touch()


def kernel():
    """Configures the smallest kernel in tinyconfig/, beside the source."""
    output = STORE / "tinyconfig"
    with unpacked(output) as wanted:
        for target in ("tinyconfig", "prepare") if wanted else ():
            make("-C", SOURCE, f"O={output}", target)


def selftests():
    """Builds the kernel's tests of mm in SELFTESTS."""
    headers = SELFTESTS / "headers"
    with unpacked(SELFTESTS) as wanted:
        if not wanted:
            return
        make("-C", SOURCE, f"O={headers}", "headers")
        make("-C", SOURCE / "tools/testing/selftests/mm", f"OUTPUT={SELFTESTS}",
             f"KHDR_INCLUDES=-isystem {headers}/usr/include", *(SELFTESTS / name for name in PROGRAMS))
