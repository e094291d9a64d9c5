#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
fetch.py FILE: downloads the source of Lua 5.4.4 from Debian 12's archive to FILE.

apt-get checks the archive's signature; this script compares the checksum.  It writes to FILE's
directory only, and changes nothing in /etc or in apt's lists.
"""
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "lua5.4_5.4.4.orig.tar.gz"
SHA256 = "164c7849653b80ae67bec4b7473b884bf5cc8d2dca05653475ec2ed27b9ebf61"
SOURCE = """\
Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def download(to):
    """Downloads NAME to a directory."""
    (to / "lua.sources").write_text(SOURCE)
    for name in ("lists/partial", "archives/partial", "parts"):
        (to / name).mkdir(parents=True)
    apt = ["apt-get", "-qq", "-o", f"Dir::State::lists={to}/lists", "-o", f"Dir::Cache={to}",
           "-o", f"Dir::Etc::sourcelist={to}/lua.sources", "-o", f"Dir::Etc::sourceparts={to}/parts",
           "-o", "APT::Sandbox::User=", "-o", "Acquire::Retries=3"]
    subprocess.run([*apt, "update"], cwd=to, check=True, timeout=300)
    subprocess.run([*apt, "source", "--download-only", "lua5.4=5.4.4-3+deb12u1"], cwd=to, check=True,
                   timeout=300)


def main():
    file = Path(sys.argv[1]).resolve()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as name:
        to = Path(name)
        try:
            download(to)
        except (subprocess.SubprocessError, OSError) as e:
            sys.exit(f"{NAME}: cannot download: {e}; put the file there yourself: {file}")
        found = hashlib.sha256((to / NAME).read_bytes()).hexdigest()
        if found != SHA256:
            sys.exit(f"{NAME}: SHA-256 is {found}, expected {SHA256}")
        shutil.move(to / NAME, file)


if __name__ == "__main__":
    main()
