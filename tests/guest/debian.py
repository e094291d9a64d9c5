#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Runs `make guest-install` on another release of Debian: builds a copy of this tree, and boots the
guests, in a root file system that debootstrap creates below build/guest.

  tests/guest/debian.py 13 [VARIABLE=VALUE...]
"""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "harness"))

import headers
import machine
from kernel import GuestError, REPO, TOOLS, run

ARCHIVE = "http://deb.debian.org/debian"
SECURITY = "http://deb.debian.org/debian-security"
# Name of the release, and its kernel.
RELEASES = {"13": ("trixie", "6.12")}
# What a machine with systemd has and make does not name; the rest comes with its dependencies.
PACKAGES = "make,dbus,libpam-systemd"

# In a mount and a PID namespace of its own, so that nothing remains: $1 is the root file system.
ENTER = """
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount -t tmpfs -o mode=755 tmpfs "$1/run"
root=$1
shift
exec chroot "$root" "$@"
"""


def root_of(release):
    return headers.store() / f"debian-{release}"


def tree_of(release):
    return root_of(release) / str(REPO).lstrip("/")


def report_of(release):
    """Returns the JUnit report of the guests."""
    return tree_of(release) / "build/tests/guest-install.xml"


def inside(root, *argv, **variables):
    """Runs a command in @root; returns its exit status."""
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "sh", root, *argv],
        env={"PATH": TOOLS, "HOME": "/root", "LANG": "C.UTF-8", "TERM": "dumb", **variables},
        stdin=subprocess.DEVNULL, check=False).returncode


def bootstrap(release):
    """Creates the root file system of @release, if build/ lacks it."""
    root, (name, _) = root_of(release), RELEASES[release]
    if root.exists():
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    print(f"  debian {release}: debootstrap {name}", flush=True)
    # Not in build/, of which the path may have a space, before it is complete.
    part = Path(tempfile.mkdtemp(prefix="ebb-debian-", dir="/var/tmp"))
    try:
        run("unshare", "--mount", "debootstrap", f"--include={PACKAGES}", name,
            str(part / "root"), ARCHIVE)
        (part / "root/etc/apt/sources.list").write_text(
            f"deb {ARCHIVE} {name} main\ndeb {ARCHIVE} {name}-updates main\n"
            f"deb {SECURITY} {name}-security main\n")
        shutil.move(part / "root", root)
    except subprocess.CalledProcessError as e:
        raise GuestError(f"debian {release}: debootstrap failed: {e.stdout[-400:]}{e.stderr[-400:]}") from e
    finally:
        shutil.rmtree(part, ignore_errors=True)


def copy_tree(release):
    """Replaces the copy of the tree, but for what was built there before."""
    tree = tree_of(release)
    tree.mkdir(parents=True, exist_ok=True)
    for old in tree.iterdir():
        if old.name != "build":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    with subprocess.Popen(["tar", "-c", "--exclude=./build", "--exclude=./.git", "."], cwd=REPO,
                          stdout=subprocess.PIPE) as tar:
        subprocess.run(["tar", "-x", "-C", tree], stdin=tar.stdout, check=True)


def main():
    release, variables = (sys.argv[1:] or [""])[0], sys.argv[2:]
    if release not in RELEASES:
        print(f"debian {release}: unknown; one of {', '.join(RELEASES)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print(f"debian {release}: debootstrap needs root; run sudo make guest-install", file=sys.stderr)
        return 1
    fresh = os.environ.pop("FRESH", "") # of the guests there, not of this machine's
    try:
        bootstrap(release)
        copy_tree(release)
    except (GuestError, OSError) as e:
        print(e, file=sys.stderr)
        return 1
    return inside(root_of(release), "make", "-s", "-C", str(REPO), "guest-install-here",
                  f"KERNEL={RELEASES[release][1]}", *variables, FRESH=fresh, **{machine.TREE: machine.tree_key()})


if __name__ == "__main__":
    sys.exit(main())
