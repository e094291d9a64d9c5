#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Kernel headers of the guests' kernels, unpacked below build/, never installed.

  tests/guest/headers.py 6.12        prints the directory for `make kmod KDIR=`
"""
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kernel as kernels
from kernel import GuestError, STORE, run


def store():
    """Returns the directory for headers, without spaces: the kernel's build accepts none."""
    if " " not in str(STORE):
        return STORE
    directory = Path(f"/var/tmp/ebb-headers-{hashlib.sha1(str(STORE).encode()).hexdigest()[:8]}")
    directory.mkdir(exist_ok=True)
    return directory


def packages(version):
    """Returns the packages of one kernel's headers and of their link targets."""
    top = f"linux-headers-{version}"
    try:
        text = run("apt-cache", "depends", "--no-recommends", "--no-suggests", top)
    except subprocess.CalledProcessError as e:
        raise GuestError(f"{top}: apt knows none; remove {STORE} to get a newer kernel") from e
    return [top, *re.findall(r"Depends: (linux-(?:headers|kbuild)-\S+)", text)]


def fetch(series, say=lambda text: None):
    """Returns the directory for KDIR; downloads the headers if build/ lacks them."""
    version = kernels.fetch(series, say).version
    root = store() / f"headers-{series}"
    directory = root / "usr/src" / f"linux-headers-{version}"
    with open(store() / f"headers-{series}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            return directory
        staging = store() / f"headers-{series}.part"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        names = packages(version)
        say(f"fetching {' '.join(names)}")
        try:
            run("apt-get", "download", *names, cwd=staging)
        except subprocess.CalledProcessError as e:
            raise GuestError(f"{names[0]}: download failed: {e.stderr.strip()}; "
                             "run apt-get update") from e
        for deb in staging.glob("*.deb"):
            run("dpkg-deb", "-x", str(deb), str(staging))
            deb.unlink()
        shutil.rmtree(root, ignore_errors=True)
        staging.rename(root)
        # Debian's Makefile includes its common part by the installed path.
        makefile = directory / "Makefile"
        makefile.write_text(makefile.read_text().replace("/usr/src/", f"{root}/usr/src/"))
        return directory


def main():
    try:
        for series in sys.argv[1:]:
            print(fetch(series, lambda text: print(f"  {text}", file=sys.stderr)))
    except GuestError as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
