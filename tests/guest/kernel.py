# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian kernels for the guests: fetched by apt, unpacked below build/, never installed."""
import fcntl
import lzma
import os
import re
import shutil
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
STORE = REPO / "build" / "guest"
TOOLS = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"

# Names of the metapackages in Debian 12.
SERIES = {"6.12": "linux-image-6.12-amd64", "6.1": "linux-image-amd64"}

# Modules for mounting the host's root; others are loaded from there.
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


class GuestError(Exception):
    """An error for users: THING: CAUSE; REMEDY."""


def tool(name):
    path = shutil.which(name, path=TOOLS)
    if not path:
        raise GuestError(f"{name}: not installed; `sudo make check` installs what guests need")
    return path


def run(*argv, **kwargs):
    return subprocess.run([tool(argv[0]), *argv[1:]], check=True, text=True,
                          capture_output=True, **kwargs).stdout


def version_key(package):
    return [int(n) for n in re.findall(r"\d+", package)]


def resolve(series):
    """Returns the package of the newest kernel of a series in apt."""
    wanted = re.compile(r"linux-image-%s\.\d[^ ]*-amd64$" % re.escape(series))
    plain = lambda p: wanted.match(p) and not re.search(r"cloud|rt-|unsigned|dbg", p)
    try:
        names = re.findall(r"Depends: (\S+)", run("apt-cache", "depends", SERIES[series]))
    except subprocess.CalledProcessError:
        names = []
    names = [n for n in names if plain(n)]
    if not names:
        # On other releases of Debian the metapackage points to another series.
        names = [n for n in run("apt-cache", "pkgnames", f"linux-image-{series}.").split()
                 if plain(n)]
    if not names:
        raise GuestError(f"kernel {series}: apt knows no package of it; run apt-get update")
    return max(names, key=version_key)


class Kernel:
    """An unpacked kernel: .version, .image, .modules (a directory), .initrd."""

    def __init__(self, series, root):
        self.series, self.root = series, root
        self.modules = next(root.glob("usr/lib/modules/*"), None) or \
            next(root.glob("lib/modules/*"))
        self.version = self.modules.name
        self.image = root / "boot" / f"vmlinuz-{self.version}"
        self.initrd = root / "initrd.gz"


def fetch(series, say=lambda text: None):
    """Returns the Kernel; downloads it if build/ lacks it."""
    if series not in SERIES:
        raise GuestError(f"kernel {series}: unknown; one of {', '.join(SERIES)}")
    STORE.mkdir(parents=True, exist_ok=True)
    root = STORE / f"linux-{series}"
    with open(STORE / f"linux-{series}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "initrd.gz").exists():
            shutil.rmtree(root, ignore_errors=True)
            package = resolve(series)
            say(f"fetching {package}")
            staging = STORE / f"linux-{series}.part"
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            try:
                run("apt-get", "download", package, cwd=staging)
            except subprocess.CalledProcessError as e:
                raise GuestError(f"{package}: download failed: {e.stderr.strip()}; "
                                 "run apt-get update") from e
            deb = next(staging.glob("*.deb"))
            run("dpkg-deb", "-x", str(deb), str(staging))
            deb.unlink()
            kernel = Kernel(series, staging)
            run("depmod", "-b", str(kernel.modules.parents[2]), kernel.version)
            initrd_write(kernel)
            staging.rename(root)
        kernel = Kernel(series, root)
        if kernel.initrd.stat().st_mtime < max(Path(__file__).stat().st_mtime,
                                               (REPO / "tests/guest/initrd.sh").stat().st_mtime):
            initrd_write(kernel)
        return kernel


def packages(names):
    """Downloads Debian packages to build/guest/packages, which guests install with dpkg."""
    store = STORE / "packages"
    store.mkdir(parents=True, exist_ok=True)
    with open(STORE / "packages.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = [n for n in names if not list(store.glob(f"{n}_*.deb"))]
        try:
            for name in wanted:
                run("apt-get", "download", name, cwd=store)
        except subprocess.CalledProcessError as e:
            raise GuestError(f"{name}: download failed: {e.stderr.strip()}; run apt-get update") from e


def module_files(kernel, names):
    """Returns the files to insmod for @names, dependencies first, without built-in modules."""
    name_of = lambda path: Path(path).name.split(".ko")[0].replace("-", "_")
    needs = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[name_of(path)] = (path, rest.split())
    order = []
    for name in names:
        if name not in needs:
            continue
        path, rest = needs[name]
        # modules.dep lists the deepest dependency last.
        for f in [*reversed(rest), path]:
            if f not in order:
                order.append(f)
    return [kernel.modules / f for f in order]


def cpio_entry(name, data=b"", mode=0o100644):
    """Returns one member of a "newc" archive (cpio(5)), owned by root."""
    head = "070701" + "".join("%08x" % n for n in (
        0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0))
    text = head.encode() + name.encode() + b"\0"
    text += b"\0" * (-len(text) % 4)
    return text + data + b"\0" * (-len(data) % 4)


def initrd_write(kernel):
    """Writes an initrd: busybox, the modules for mounting the host's root, and initrd.sh as /init."""
    import gzip

    busybox = Path("/bin/busybox")
    if not busybox.exists():
        raise GuestError("busybox: not installed; apt-get install busybox-static")
    parts = [cpio_entry(d, mode=0o40755) for d in
             ("bin", "proc", "sys", "dev", "modules", "host", "memory", "root")]
    parts.append(cpio_entry("bin/busybox", busybox.read_bytes(), 0o100755))
    parts.append(cpio_entry("init", (REPO / "tests/guest/initrd.sh").read_bytes(), 0o100755))
    for number, path in enumerate(module_files(kernel, BOOT_MODULES)):
        data = path.read_bytes()
        if path.suffix == ".xz":
            data = lzma.decompress(data)
        parts.append(cpio_entry("modules/%02d-%s" % (number, path.name.removesuffix(".xz")), data))
    parts.append(cpio_entry("TRAILER!!!", mode=0))
    staging = kernel.initrd.with_suffix(".part")
    staging.write_bytes(gzip.compress(b"".join(parts), 1))
    staging.rename(kernel.initrd)
