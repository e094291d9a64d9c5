# SPDX-License-Identifier: GPL-2.0-or-later
"""A real etcd, for tests to start, ask and kill."""
import base64
import json
import shutil
import ssl
import subprocess
import urllib.request

from machine import MachineError, wait_for
from ports import free_port

PREFIX = "/ebb/donors/"


def openssl(*argv, cwd):
    subprocess.run(["openssl", *argv], cwd=cwd, check=True, capture_output=True)


def certificates(directory, address="127.0.0.1"):
    """Creates a CA and certificates of an etcd at @address and of a client; returns @directory."""
    directory.mkdir()
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca",
            cwd=directory)
    (directory / "ext").write_text(f"subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("etcd", "us"):
        openssl("req", "-new", *ec, "-keyout", f"{name}.key", "-out", "csr", "-subj", f"/CN={name}",
                cwd=directory)
        openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "ext", "-out", f"{name}.pem", cwd=directory)
        (directory / f"{name}.key").chmod(0o600)
    return directory


class Etcd:
    """
    An etcd at @address of the network namespace in which it is started.  Its data is in @directory,
    which start(fresh=True) removes first; @tls has its certificates.
    """

    def __init__(self, directory, log, tls=None, address="127.0.0.1"):
        self.directory, self.log, self.tls, self.process = directory, log, tls, None
        self.ports = free_port(), free_port()
        self.url = f"{'https' if tls else 'http'}://{address}:{self.ports[0]}"
        self.trust = None
        if tls:
            self.trust = ssl.create_default_context(cafile=tls / "ca.pem")
            self.trust.load_cert_chain(tls / "us.pem", tls / "us.key")
        self.start()

    def settings(self):
        """Returns its settings in ebb.conf, which are, with dashes, options of ebb-donord."""
        files = {"etcd_ca": "ca.pem", "etcd_cert": "us.pem", "etcd_key": "us.key"} if self.tls else {}
        return {"etcd": self.url, **{key: self.tls / name for key, name in files.items()}}

    def config(self):
        """Returns the lines of [donors]."""
        return "\n".join(f"{key} = {value}" for key, value in self.settings().items())

    def options(self):
        return [x for key, value in self.settings().items() for x in (f"--{key.replace('_', '-')}", value)]

    def start(self, fresh=False):
        if fresh:
            shutil.rmtree(self.directory)
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
            # An etcd that is killed before its first election never elects itself.
            return "leader" in self.call("maintenance/status", {})
        except OSError:
            return False

    def call(self, path, body, token=None):
        headers = {"Authorization": token} if token else {}
        ask = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(ask, timeout=30, context=self.trust) as f:
            return json.loads(f.read())

    def keys(self):
        """Returns {address: value} of the registered donors."""
        end = PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
        code = lambda s: base64.b64encode(s.encode()).decode()
        found = self.call("kv/range", {"key": code(PREFIX), "range_end": code(end)}).get("kvs", [])
        plain = lambda s: base64.b64decode(s).decode()
        return {plain(kv["key"]).removeprefix(PREFIX): json.loads(plain(kv["value"])) for kv in found}

    def put(self, key, value):
        code = lambda s: base64.b64encode(s.encode()).decode()
        self.call("kv/put", {"key": code(PREFIX + key), "value": code(value)})

    def delete(self, key):
        self.call("kv/deleterange", {"key": base64.b64encode((PREFIX + key).encode()).decode()})

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
