# SPDX-License-Identifier: GPL-2.0-or-later
"""A real etcd on loopback, for tests to start, ask and kill."""
import base64
import json
import socket
import subprocess
import urllib.request

from machine import MachineError, wait_for
from ports import free_port

PREFIX = "/ebb/donors/"


class Etcd:
    """Its data in @directory, or beside it after start(fresh=True); @tls has its certificates."""

    def __init__(self, directory, log, tls=None):
        self.directory, self.log, self.tls, self.process = directory, log, tls, None
        self.ports = free_port(), free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.ports[0]}"
        self.start()

    def start(self, fresh=False):
        if fresh:
            self.directory = self.directory.with_name(self.directory.name + "-fresh")
        peer = f"http://127.0.0.1:{self.ports[1]}"
        argv = ["etcd", "--data-dir", self.directory, "--listen-client-urls", self.url,
                "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
                "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        if self.tls:
            argv += ["--cert-file", self.tls / "etcd.pem", "--key-file", self.tls / "etcd.key",
                     "--trusted-ca-file", self.tls / "ca.pem", "--client-cert-auth"]
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(list(map(str, argv)), stdout=out, stderr=out,
                                            stdin=subprocess.DEVNULL, start_new_session=True)
        wait_for(self.answers, 60, "etcd")

    def answers(self):
        if self.process.poll() is not None:
            raise MachineError(f"etcd ended: {self.log.read_text()[-500:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.ports[0]), 1):
                return bool(self.tls) or self.call("maintenance/status", {})
        except OSError:
            return False

    def call(self, path, body, token=None):
        headers = {"Authorization": token} if token else {}
        ask = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(ask, timeout=30) as f:
            return json.loads(f.read())

    def keys(self):
        """{address: value} of the donors there."""
        end = PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
        code = lambda s: base64.b64encode(s.encode()).decode()
        found = self.call("kv/range", {"key": code(PREFIX), "range_end": code(end)}).get("kvs", [])
        plain = lambda s: base64.b64decode(s).decode()
        return {plain(kv["key"]).removeprefix(PREFIX): json.loads(plain(kv["value"])) for kv in found}

    def put(self, key, value):
        code = lambda s: base64.b64encode(s.encode()).decode()
        self.call("kv/put", {"key": code(PREFIX + key), "value": code(value)})

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
