# SPDX-License-Identifier: GPL-2.0-or-later
"""
The programs that benchmarks judge by: that they do their work, find a wrong word, and
leave what warms them up out of what they report.  No swap.
"""
import json
import os
import select
import subprocess

import pytest

import machine
import parts

WALKS = machine.BUILD / "tests" / "walks"
KINDS = ("sum:3", "sum:8", "threads:3", "column", "multiply", "pagerank", "pagerank:4", "join",
         "zipf")
MIB = 2


def argv(kind, *more):
    if kind.startswith("chase"):
        node = kind.partition(":")[2] or "4096"
        return parts.scan_argv(mib=MIB, pattern="chase", passes=3,
                               options=("--node", node, "--warm", "1", *more))
    return [str(WALKS), "--kind", kind, "--mib", str(MIB), "--passes", "3", "--warm", "1", *more]


@pytest.mark.parametrize("kind", [*KINDS, "chase", "chase:256"])
def test_every_word_is_right(kind):
    told = json.loads(subprocess.run(argv(kind), check=True, capture_output=True, timeout=120).stdout)
    assert told["bad"] == 0
    assert len(told["pass_seconds"]) == 3 and min(told["pass_seconds"]) > 0
    assert told["seconds"] == pytest.approx(sum(told["pass_seconds"][1:]), rel=0.05)


class Marked:
    """A program that waits at its mark, and what it says afterwards."""

    def __init__(self, fifo, kind):
        os.mkfifo(fifo)
        self.fifo = fifo
        self.process = subprocess.Popen(argv(kind, "--mark", str(fifo)), stdout=subprocess.PIPE)
        fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([fd], [], [], 120)[0]
            while not os.read(fd, 64):
                pass
        finally:
            os.close(fd)

    def mapping(self):
        """(start, end) of its largest anonymous mapping that is no thread's stack."""
        found = []
        for line in machine.read(f"/proc/{self.process.pid}/maps").splitlines():
            words = line.split()
            start, end = (int(x, 16) for x in words[0].split("-"))
            if words[1] == "rw-p" and len(words) == 5 and end - start < 2 * MIB << 20:
                found.append((end - start, start, end))
        return max(found)[1:]

    def finish(self):
        self.fifo.write_text("go\n")
        out = self.process.communicate(timeout=120)[0]
        return self.process.returncode, json.loads(out)


# Not zipf: the program may never access that page.
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "zipf"] + ["chase", "chase:256"])
def test_a_page_of_zeroes_is_found(tmp_path, kind):
    """What a swap device that loses a page would do, in the middle of the memory."""
    m = Marked(tmp_path / "mark", kind)
    start, end = m.mapping()
    with open(f"/proc/{m.process.pid}/mem", "r+b", buffering=0) as memory:
        memory.seek((start + end) // 2 // 4096 * 4096)
        memory.write(bytes(4096))
    status, told = m.finish()
    assert status == 1
    assert told["bad"] > 0


@pytest.mark.parametrize("words", [["--kind", "nosuch"], ["--kind", "column:3"], ["--kind", "sum:x"],
                                   ["--kind", "sum:0"], ["--kind", "sum", "--mib", "0"], [],
                                   ["--kind", "zipf", "--passes", "2", "--warm", "2"]])
def test_what_makes_no_sense_is_refused(words):
    done = subprocess.run([WALKS, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr and not done.stdout
