# SPDX-License-Identifier: GPL-2.0-or-later
"""
Where fentry is allowed, two programs see one fault: bpf/exact when its page was read, bpf/fault at
its end, unless it is of direct I/O.  It is counted once, whatever ebbd does meanwhile.
"""
import os
import subprocess
from pathlib import Path

import pytest

import machine
import parts
import policies
from overtaking import OVERTAKEN, Program, exec_id, fault, growth

READAHEAD = Path("/proc/sys/vm/page-cluster")


@pytest.fixture
def watched(ebbd, device, cgroup):
    """An attached cgroup, without readahead of the kernel."""
    assert policies.call("status")["hooks"] == "fentry"
    before = READAHEAD.read_text()
    READAHEAD.write_text("0")
    c = cgroup()
    policies.call("policy.attach", cgroup=str(c.path), policy="none")
    yield c
    READAHEAD.write_text(before)


def test_direct_io_that_overtakes_ebbd_makes_its_prefetch_late(watched):
    program = Program(watched)
    program.out()
    program.does("touch", 0)
    told = fault(program, range(128, 192, 16), OVERTAKEN, by="direct")
    assert (told["late"], told["wasted"], told["misses"]) == (1, 0, 0) and told["late_ns"], told
    # Long ago: read by ebbd, and evicted.
    told = fault(program, range(512, 576, 16), 10**9, by="direct")
    assert (told["late"], told["wasted"], told["misses"]) == (0, 1, 1), told
    program.end()


@pytest.mark.parametrize("how", ["touch", "direct"])
def test_a_fault_is_counted_once_while_ebbd_requests_its_page(watched, how):
    process = subprocess.Popen([machine.BUILD / "tests" / "overtaken"], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               preexec_fn=watched.enter)
    owner, exec_of_it = os.stat(watched.path).st_ino, 0
    told = {}

    def go():
        told["faults"], told["ns"] = map(int, ask(f"{how} {owner} {exec_of_it}").split())

    def ask(line):
        print(line, file=process.stdin, flush=True)
        return process.stdout.readline()

    assert process.stdout.readline() == "out\n"
    watched.evict()
    ask(f"touch {owner} 0")     # ebbd learns the process
    exec_of_it = exec_id(process.pid)
    for _ in range(3):
        assert process.stdout.readline() == "out\n"
        watched.evict()
        grown = growth(watched, go)
        assert told["faults"] > 512, told
        assert grown["misses"] + grown["late"] == told["faults"], (grown, told)
        assert grown["late"] > 0 and grown["misses"] > 0, (grown, told)
        assert grown["miss_ns"] + grown["late_ns"] <= told["ns"], (grown, told)
    process.stdin.close()
    assert process.wait(30) == 0
    assert parts.stats(watched)["outstanding"] == 0
