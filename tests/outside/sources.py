# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's source, as Debian packages it, and what is built of it; all below build/."""
import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE.parent / "guest")]

import machine

SERIES = "6.12"
PACKAGE = f"linux-source-{SERIES}"
STORE = machine.BUILD / "outside"
# For the kernel's build and for its tests.
PACKAGES = ("gcc", "make", "flex", "bison", "bc", "xz-utils", "libelf-dev", "libnuma-dev", "libcap-dev")
PROGRAMS = {"mm": ("cow", "uffd-unit-tests", "pagemap_ioctl", "madv_populate"),
            "cgroup": ("test_memcontrol", "test_zswap")}


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


def tree():
    """Returns the unpacked source; downloads it if build/ lacks it."""
    STORE.mkdir(parents=True, exist_ok=True)
    root = STORE / f"linux-{SERIES}"
    with open(STORE / "source.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
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
    return root


def selftests():
    """Builds the kernel's tests; returns the directory of their directories."""
    source, output = tree(), STORE / "selftests"
    headers = output / "headers"
    wanted = [output / room / name for room, names in PROGRAMS.items() for name in names]
    if not all(program.exists() for program in wanted):
        make("-C", source, f"O={headers}", "headers")
        for room, names in PROGRAMS.items():
            (output / room).mkdir(parents=True, exist_ok=True)
            make("-C", source / "tools/testing/selftests" / room, f"OUTPUT={output / room}",
                 f"KHDR_INCLUDES=-isystem {headers}/usr/include", *(output / room / n for n in names))
    return {"selftests": output}


def kernel():
    """Configures the smallest kernel and builds what its objects need."""
    source, output = tree(), STORE / "tinyconfig"
    if not (output / "include/generated/asm-offsets.h").exists():
        output.mkdir(exist_ok=True)
        make("-C", source, f"O={output}", "tinyconfig")
        make("-C", source, f"O={output}", "prepare")
    return {"source": source, "output": output}
