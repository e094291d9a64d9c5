# SPDX-License-Identifier: GPL-2.0-or-later
"""Users without entries in a password file: processes with their own numbers."""
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from machine import BIN

READERS, ADMINS, USER = 54321, 54322, 54300

ASK = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(50)
s.connect(sys.argv[1])
try:
    s.sendall(sys.argv[2].encode() + b"\\n")
except OSError:
    pass
print(s.makefile().readline())
"""


def name_groups(monkeypatch):
    """Makes daemons that are started from now on accept these groups."""
    monkeypatch.setenv("EBB_GROUP", str(READERS))
    monkeypatch.setenv("EBB_ADMIN_GROUP", str(ADMINS))


class Place:
    """A directory that any user can read, with an ebbctl: build/ may be private."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="ebb-users-", dir="/tmp"))
        self.path.chmod(0o755)
        self.ebbctl = self.path / "ebbctl"
        shutil.copy(BIN / "ebbctl", self.ebbctl)

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, groups, *argv, **kwargs):
        """Runs @argv as a user with the supplementary @groups."""
        member = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        return subprocess.run(["setpriv", f"--reuid={USER}", f"--regid={USER}", *member, "--",
                               *map(str, argv)], text=True, capture_output=True, timeout=300,
                              cwd=self.path, **kwargs)

    def ctl(self, groups, *argv, **kwargs):
        return self.run(groups, self.ebbctl, *argv, **kwargs)

    def ask(self, groups, path, verb, **what):
        """Returns a control socket's answer to this user."""
        done = self.run(groups, "/usr/bin/python3", "-c", ASK, path, json.dumps({"verb": verb, **what}))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
