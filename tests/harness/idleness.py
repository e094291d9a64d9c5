# SPDX-License-Identifier: GPL-2.0-or-later
"""A program with hot, warm and cold memory, and `ebbctl advise` that watches it."""
import json
import re
import signal
import subprocess

from machine import BIN, BUILD, MachineError


class Temperatures:
    """Three parts of @mib each; it reads the hot one all the time, the others when told."""

    def __init__(self, cgroup, mib, *options):
        self.process = subprocess.Popen([BUILD / "tests" / "temperatures", str(mib), *options], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=cgroup.enter)
        self.pid = json.loads(self.process.stdout.readline())["pid"]

    def read(self, part):
        """Reads a part; returns the number of major faults."""
        self.process.stdin.write(part + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        if told["bad"]:
            raise MachineError(f"{part}: {told['bad']} words are wrong")
        return told["faults"]

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


class Watch:
    """`ebbctl advise` on @cgroup; has taken its first reading."""

    def __init__(self, cgroup, *options):
        self.process = subprocess.Popen(
            [BIN / "ebbctl", "advise", "--cgroup", cgroup.path, "--json", *map(str, options)], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.source = self.await_line("watching .* by ([a-z]+) for").group(1)

    def await_line(self, pattern):
        """Waits for a line of progress."""
        said = ""
        while line := self.process.stderr.readline():
            said += line
            if match := re.search(pattern, line):
                return match
        raise MachineError(f"advise ended with {self.process.wait()} before '{pattern}': {said}")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        return self.report()

    def report(self):
        out, said = self.process.communicate(timeout=120)
        if self.process.returncode:
            raise MachineError(f"advise: status {self.process.returncode}: {said}")
        return json.loads(out)


def watch_program(program, cgroup, *options):
    """Reads the warm part after the first of the times to report; returns the report."""
    w = Watch(cgroup, "--idle", "2s,1h", "--for", "2h", *options)
    w.await_line("after .* idle")
    program.read("warm")
    return w.interrupt()


def is_right(report, mib):
    """Whether the cold part was idle all the time, and the warm one in the first window only."""
    row = report["idle"][0]
    return (1.9 * mib <= row["bytes"] / 2**20 <= 2.2 * mib
            and 0.9 * mib <= row["returned"] / 2**20 <= 1.1 * mib)
