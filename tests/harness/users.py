# SPDX-License-Identifier: GPL-2.0-or-later
"""Users without entries in a password file: processes with their own numbers."""
import contextlib
import errno
import json
import shutil
import subprocess
import tempfile
import time
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


# Connects again and again and keeps what it has; with a request, it does not read the answer.
FLOOD = """
import socket, sys
all = []
while True:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    try:
        s.connect(sys.argv[1])
        s.sendall(sys.argv[2].encode())
    except OSError:
        pass
    all.append(s)
    if len(all) == 100:
        print("many", flush=True)
    del all[:-500]
"""


def answers_root(ask):
    """Root's requests are answered within 1 s; 5 s on a busy machine."""
    for _ in range(5):
        began = time.monotonic()
        assert ask("status")["ok"]
        assert time.monotonic() - began < 5


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

    def as_user(self, groups, argv, user=USER):
        member = [f"--groups={','.join(map(str, groups))}"] if groups else ["--clear-groups"]
        return ["setpriv", f"--reuid={user}", f"--regid={user}", *member, "--", *map(str, argv)]

    def run(self, groups, *argv, user=USER, **kwargs):
        """Runs @argv as a user with the supplementary @groups."""
        return subprocess.run(self.as_user(groups, argv, user), text=True, capture_output=True, timeout=300,
                              cwd=self.path, **kwargs)

    @contextlib.contextmanager
    def flood(self, groups, path, request=""):
        """Meanwhile this user connects to the socket at @path all the time."""
        argv = self.as_user(groups, ["/usr/bin/python3", "-c", FLOOD, path, request])
        with subprocess.Popen(argv, text=True, stdout=subprocess.PIPE, cwd=self.path) as user:
            try:
                assert user.stdout.readline() == "many\n"
                yield
                assert user.poll() is None
            finally:
                user.kill()
        # Requests that the user left behind are answered in turn; until then its connections count.
        deadline = time.monotonic() + 60
        while self.ask(groups, path, "status").get("code") == errno.EBUSY:
            assert time.monotonic() < deadline, f"{path}: connections of a dead process still count"
            time.sleep(0.05)

    def ctl(self, groups, *argv, **kwargs):
        return self.run(groups, self.ebbctl, *argv, **kwargs)

    def ask(self, groups, path, verb, user=USER, **what):
        """Returns a control socket's answer to this user."""
        done = self.run(groups, "/usr/bin/python3", "-c", ASK, path, json.dumps({"verb": verb, **what}),
                        user=user)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
