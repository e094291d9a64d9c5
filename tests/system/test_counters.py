# SPDX-License-Identifier: GPL-2.0-or-later
"""What becomes of a fault that is not simply a miss or a hit, and of the time it takes."""
import time

import pytest

import parts
import policies
from machine import wait_for
from overtaking import OVERTAKEN, REQUEST_AGE, Program, enter, fault, growth


@pytest.fixture
def program(ebbd, device, cgroup):
    c = cgroup()
    policies.call("policy.attach", cgroup=str(c.path), policy="none")
    p = Program(c)
    p.out()
    yield p
    p.end()


def test_a_program_that_overtakes_ebbd_makes_its_prefetch_late(program):
    """It is not wasted: the policy was right, and the page was used."""
    program.does("touch", 0)
    told = fault(program, range(128, 192, 16), OVERTAKEN)
    assert (told["late"], told["wasted"], told["misses"]) == (1, 0, 0), told
    # Long ago: read by ebbd, and evicted.
    told = fault(program, range(512, 576, 16), 10**9)
    assert (told["late"], told["wasted"], told["misses"]) == (0, 1, 1), told


def test_a_file_that_replaced_a_prefetched_page_is_no_late_prefetch(program):
    """The program unmapped the page unread.  Only bpf/exact can tell."""
    policies.call("policy.attach", cgroup=str(program.cgroup.path), policy="none",
                  params={"detect": 1})
    program.does("touch", 0)
    program.does("replace", 512)
    enter(program, 512, 0)
    before = parts.stats(program.cgroup)
    program.does("touch", 512)
    told = {k: v - before[k] for k, v in parts.stats(program.cgroup).items() if isinstance(v, int)}
    exact = policies.call("status")["hooks"] == "fentry"
    assert (told["late"], told["file_majors"]) == ((0, 1) if exact else (1, 0)), told
    assert (told["hits"], told["misses"]) == (0, 0), told


@pytest.mark.long
def test_a_miss_does_not_begin_at_a_request_of_the_programs_own(program):
    """MADV_WILLNEED reads without a fault."""
    told = growth(program.cgroup, lambda: program.does("want_then_touch", 0, 512))
    assert told["misses"] == 1 and told["miss_ns"] < REQUEST_AGE * 10**9, told


def test_a_miss_does_not_begin_at_an_earlier_fault(program):
    """... of the thread on the same page, while hits were detected."""
    def detect(on):
        policies.call("policy.attach", cgroup=str(program.cgroup.path), policy="none",
                      params={"detect": on})

    begin = time.monotonic_ns()
    detect(1)
    program.does("touch", 0)
    assert growth(program.cgroup, lambda: program.does("touch", 512))["misses"] == 1
    detect(0)
    time.sleep(3)           # detection goes off after 2 s

    def touched():
        """A page that is still being written is not evicted, and then the fault is no miss."""
        program.cgroup.evict()
        told = growth(program.cgroup, lambda: program.does("touch", 512))
        return told["misses"] and told
    for _ in range(3):
        told = wait_for(touched, 10, "a page that is not in memory")
        assert told["misses"] == 1 and told["miss_ns"] < 3 * 10**9, told
    stats = parts.stats(program.cgroup)
    assert stats["miss_ns"] + stats["late_ns"] <= time.monotonic_ns() - begin
