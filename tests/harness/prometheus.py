# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian's Prometheus on loopback, and a server in place of systemd's socket unit."""
import json
import os
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

from machine import BIN, REPO, MachineError, wait_for
from ports import free_port

# Metrics that are read from a cgroup's files.
OF_CGROUPS = {"ebb_cgroup_memory_bytes", "ebb_cgroup_memory_limit_bytes",
              "ebb_cgroup_pressure_some_seconds_total", "ebb_cgroup_pressure_full_seconds_total"}
RULES = REPO / "packaging" / "prometheus" / "ebb.rules.yml"


def promtool(*argv, stdin=None):
    return subprocess.run(["promtool", *map(str, argv)], input=stdin, text=True, timeout=300,
                          capture_output=True)


class MetricsSocket(threading.Thread):
    """Acts as ebb-metrics.socket: starts a process per connection, with that as standard input."""

    def __init__(self, run=None, ebbctl=BIN / "ebbctl"):
        super().__init__(daemon=True)
        self.argv, self.env = [str(ebbctl), "metrics", "--http"], {"EBB_RUN_DIR": str(run)} if run else None
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.target, self.children = f"127.0.0.1:{self.port}", []
        self.start()

    def run(self):
        while True:
            try:
                c, _ = self.listening.accept()
            except OSError:
                return
            with c:
                self.children.append(subprocess.Popen(self.argv, stdin=c, stdout=subprocess.DEVNULL,
                                                      env=self.env and {**os.environ, **self.env}))

    def get(self, path="/metrics", headers=(), timeout=300):
        """Returns (status, headers, body) of a request."""
        ask = urllib.request.Request(f"http://{self.target}{path}", headers=dict(headers))
        try:
            with urllib.request.urlopen(ask, timeout=timeout) as f:
                return f.status, dict(f.headers), f.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, dict(e.headers), e.read().decode()

    def close(self):
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        for c in self.children:
            c.wait(60)


class Prometheus:
    """A Prometheus that scrapes @target every two seconds, with ebb's rules."""

    def __init__(self, directory, target, log):
        self.port, self.log = free_port(), log
        config = directory / "prometheus.yml"
        config.write_text(json.dumps({
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "ebb", "static_configs": [{"targets": [target]}]}],
            "rule_files": [str(RULES)]}))
        with open(log, "a") as out:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/data",
                 f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def ask(self, path, **what):
        """Returns an answer of its API, or None as long as there is none."""
        if self.process.poll() is not None:
            raise MachineError(f"prometheus ended: {self.log.read_text()[-500:]}")
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(what)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as f:
                return json.loads(f.read())["data"]
        except OSError:
            return None

    def value(self, query):
        """Returns the single value of @query, or None as long as there is none."""
        found = self.ask("query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def scraped(self, seconds=60):
        """Waits until it has stored a scrape."""
        wait_for(lambda: self.value('up{job="ebb"}') == 1, seconds, "a scrape", interval=0.3)

    def target(self):
        return self.ask("targets")["activeTargets"][0]

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)
