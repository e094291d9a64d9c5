# SPDX-License-Identifier: GPL-2.0-or-later
"""A control socket's server in place of ebbd, ebb-swapd or ebb-donord, and device records."""
import json
import socket
import threading
from contextlib import suppress


class ControlServer(threading.Thread):
    """Answers each request with answer(request), a dict; .asked has the requests."""

    def __init__(self, path, answer=lambda request: {}):
        super().__init__(daemon=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.answer, self.asked = answer, []
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(path))
        self.listening.listen()
        self.start()

    def run(self):
        while True:
            try:
                c, _ = self.listening.accept()
            except OSError:
                return
            # A client may be killed, or stop waiting, before its answer.
            with suppress(ConnectionError), c, c.makefile() as f:
                line = f.readline()
                if not line:
                    continue
                self.asked.append(json.loads(line))
                answer = {"ok": True, **self.answer(self.asked[-1])}
                c.sendall(json.dumps(answer).encode() + b"\n")

    def close(self):
        if self.listening.fileno() >= 0:
            self.listening.shutdown(socket.SHUT_RDWR)
            self.listening.close()


def error(text, status=1):
    return {"ok": False, "error": text, "code": 22, "exit": status}


def write_record(run, name, **members):
    """Writes the record of a served device."""
    texts = ("frontend", "block", "donor", "backup", "mount", "scope")
    numbers = ("major", "minor", "size", "slab", "priority", "server_pid")
    (run / "devices").mkdir(parents=True, exist_ok=True)
    (run / "devices" / f"{name}.json").write_text(json.dumps(
        {"name": name, **dict.fromkeys(texts, "x"), **dict.fromkeys(numbers, 1), **members}))
