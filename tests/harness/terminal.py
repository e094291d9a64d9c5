# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbctl on a terminal: sends keys and reads the screen."""
import os
import pty
import re
import select
import signal
import time

from machine import BIN, wait_for


class Terminal:
    """ebbctl on a terminal of its own."""

    def __init__(self, *argv, size=(40, 200)):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ["LINES"], os.environ["COLUMNS"] = map(str, size)
            os.execv(BIN / "ebbctl", ["ebbctl", *argv])
        self.text, self.status = "", None

    def read(self, seconds=0.1):
        """Returns the output of @seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and select.select([self.fd], [], [], left)[0]:
            try:
                piece = os.read(self.fd, 65536)
            except OSError:
                break
            if not piece:
                break
            self.text += piece.decode(errors="replace")

    def plain(self):
        return re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][0-9A-B]|[=>78])", " ", self.text)

    def expect(self, word, seconds=20):
        """Redraws until @word appears: ncurses sends differences only."""
        def there():
            self.press("\x0c")
            for _ in range(10):
                self.read(0.05)
                if word in self.plain():
                    return True
            return False
        wait_for(there, seconds, f"'{word}' in {self.plain()[-600:]!r}")

    def press(self, keys):
        """Discards the output so far, then sends @keys."""
        self.read(0.02)
        self.text = ""
        os.write(self.fd, keys.encode())

    def ended(self):
        """Returns the exit status, or None; reads the output so that the process can exit."""
        self.read(0.02)
        pid, status = os.waitpid(self.pid, os.WNOHANG) if self.status is None else (0, 0)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None

    def close(self):
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            wait_for(self.ended, 10, "the end")
        os.close(self.fd)
