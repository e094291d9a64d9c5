# SPDX-License-Identifier: GPL-2.0-or-later
"""
Tasks of libebbdsm and donors with --far: workers and spawners that are killed at each of their messages,
or at any time where they map the memory; where tasks and boxes go.
"""
import ctypes
import errno
import os
import random
import threading
import time

import pytest

from dsm_member import Name, Process, Space
from machine import wait_for
from parts import ebbctl_json
from test_dsm import content, donor, SIZE, wire  # noqa: F401: fixtures

pytestmark = pytest.mark.beside

CANCELLED, DEAD = -errno.ECANCELED, -errno.EOWNERDEAD


def only_one_is_left(d):
    wait_for(lambda: len(ebbctl_json("far", "show", d.tcp, "p")["members"]) == 1, 30,
             "extents of a dead member are left")


def change(space, call):
    """Changes box 0, drops box 1, makes box 2; the result is the arguments' first letter."""
    box = call.box[0]
    assert space.value(box, SIZE) == content("a")
    space.change(box, content("A"))
    assert space.drop(call.box[1]) == 0
    call.box[2] = space.new(content("n"))
    ctypes.memmove(call.result, call.args, 1)
    call.result_size = 1
    return 7


def worker(where, say, hear, at_once, log):
    b = Space(where)

    def counted(space, call):
        os.write(log, b"x")
        return change(space, call)
    b.functions(counted, waiting=1)
    say("ready")
    at_once()
    while b.work(20000) == 0:
        pass


class Spawner:
    """A process with boxes whose tasks are executed by one that is killed."""

    def __init__(self, where):
        self.a = Space(where)
        self.a.functions(lambda space, call: 0)
        self.log = os.pipe()
        os.set_blocking(self.log[0], False)

    def executed(self):
        try:
            return len(os.read(self.log[0], 4096))
        except BlockingIOError:
            return 0

    def spawn(self):
        boxes = [self.a.new(content(letter)) for letter in "ab"]
        job = self.a.spawned(boxes, b"yes", 16)
        if not isinstance(job, tuple):
            assert all(not box.stamp for box in boxes)
            return job
        for box, letter in zip(boxes, "ab"):
            assert self.a.value(box, SIZE) == content(letter)
            assert self.a.drop(box) == 0
        return None

    def check(self, job, alive):
        """Joins it; nothing is left.  Returns how it ended, and which boxes came back."""
        a = self.a
        r, result = a.joined(job, 30)
        executed, back = self.executed(), ""
        assert r in (0, CANCELLED, DEAD), (r, result.error)
        assert executed <= 1 and (r != 0 or executed == 1) and (r != CANCELLED or executed == 0)
        assert r != 0 or (result.status == 7 and result.content == b"y")
        assert r == 0 or not alive
        for box in result.box:
            if box.stamp:
                back += a.value(box, SIZE)[:1].decode()
                assert a.drop(box) == 0
        assert (back == "An") if r == 0 else back in ("", "b", "ab") if r == DEAD else back == "ab", (r, back)
        wait_for(lambda: a.settle() == 0 and a.counts.places == 0, 30, "a place is left")
        return r, back


@pytest.mark.parametrize("lost", [False, True])
def test_a_worker_is_killed_at_each_message(donor, wire, lost):
    d = donor()
    spawner, link = Spawner(d.unix), wire(d.port)
    outcomes, message, ended = set(), 0, False
    while not ended:
        process = Process(lambda say, hear: worker(link.address, say, hear, lambda: None, spawner.log[1]))
        assert process.hear() == "ready"

        def kill(n):
            if n == message:
                process.kill()
                return not lost
            return n < message
        link.messages, link.at_message = 0, kill
        job = spawner.spawn()
        if not job:
            break
        r, back = spawner.check(job, alive=False)
        outcomes.add((r, back))
        ended = r == 0 and link.messages <= message
        process.kill()
        process.end()
        link.at_message = None
        only_one_is_left(d)
        message += 1
    assert message > 8
    assert {(CANCELLED, "ab"), (DEAD, "ab"), (DEAD, ""), (0, "An")} <= outcomes, outcomes
    spawner.a.close()


def test_a_worker_is_killed_at_any_time(donor):
    """One that maps the memory."""
    d = donor()
    spawner = Spawner(d.unix)
    outcomes = set()
    for _ in range(25):
        process = Process(lambda say, hear: worker(d.unix, say, hear, lambda: say("go"), spawner.log[1]))
        assert process.hear() == "ready" and process.hear() == "go"
        job = spawner.spawn()
        time.sleep(random.uniform(0, 0.0015))
        process.kill()
        process.end()
        if job:
            outcomes.add(spawner.check(job, alive=False))
        only_one_is_left(d)
    assert outcomes
    spawner.a.close()


def spawning(where, say, hear):
    a = Space(where)
    a.functions(lambda space, call: 0)
    say("ready")
    hear()
    boxes = [a.new(content(letter)) for letter in "ab"]
    # The seat of a spawner that died before it rang is free after the next ring.
    while isinstance(job := a.spawned(boxes, b"yes", 16), tuple):
        assert job[0] == -errno.EAGAIN, job
    say("spawned")
    r, result = a.joined(job, 30)
    assert r == 0 and result.content == b"y", (r, result.error)
    assert a.value(result.box[0], SIZE) == content("A")
    assert a.settle() == 0
    say("done")
    hear()


@pytest.mark.parametrize("lost, mapped", [(False, False), (True, True)])
def test_a_spawner_is_killed_at_each_message(donor, wire, lost, mapped):
    """Its worker has one seat, which is free again, and drops what nobody accepts."""
    d = donor()
    b, link, executed = Space(d.unix if mapped else d.tcp), wire(d.port), []

    def counted(space, call):
        executed.append(1)
        return change(space, call)
    b.functions(counted, waiting=1)
    stop = []

    def work():
        while not stop:
            r = b.work(50)
            assert r in (0, -errno.EAGAIN), (r, b.why())
    thread = threading.Thread(target=work)
    thread.start()
    message, ended, seen = 0, False, set()
    try:
        while not ended:
            process = Process(lambda say, hear: spawning(link.address, say, hear))
            assert process.hear() == "ready"
            executed.clear()

            def kill(n):
                if n == message:
                    process.kill()
                    return not lost
                return n < message
            link.messages, link.at_message = 0, kill
            process.say("go")
            said = process.hear()
            assert said in ("", "spawned"), said
            if said:
                said = process.hear()
                assert said in ("", "done"), said
            ended = said == "done"
            process.kill()
            process.end()
            link.at_message = None
            wait_for(lambda: b.settle() == 0 and b.counts.places == 0, 30, "a place is left")
            only_one_is_left(d)
            assert len(executed) <= 1
            seen.add(len(executed))
            message += 1
    finally:
        stop.append(1)
        thread.join()
    assert message > 10 and seen == {0, 1}
    b.close()


def test_no_task_is_executed_twice(donor):
    """Workers are killed at random; a task that was not begun is spawned again."""
    d = donor()
    a, places = Space(d.unix), [d.unix, d.tcp]
    a.functions(lambda space, call: 0)
    log = os.pipe()
    os.set_blocking(log[0], False)

    def adder(where, say, hear):
        b = Space(where)

        def executed(space, call):
            os.write(log[1], ctypes.string_at(call.args, 4))
            time.sleep(0.001)
            return 0
        b.functions(executed, waiting=4)
        say("ready")
        while b.work(20000) in (0, -errno.EAGAIN):
            pass
    workers, jobs, runs, ended = [], {}, {}, {}
    for number in range(120):
        while len(workers) < 3:
            where = places[len(workers) % 2]
            workers.append(Process(lambda say, hear: adder(where, say, hear)))
            assert workers[-1].hear() == "ready"
        job = a.spawned(args=number.to_bytes(4, "little"))
        if not isinstance(job, tuple):
            jobs[number] = job
        if number % 8 == 7:
            process = workers.pop(random.randrange(len(workers)))
            time.sleep(random.uniform(0, 0.003))
            process.kill()
            process.end()
        if number % 4 == 3:
            for n, j in jobs.items():
                ended[n], result = a.joined(j, 30)
                assert ended[n] in (0, CANCELLED, DEAD), (ended[n], result.error)
            jobs.clear()
    for n, j in jobs.items():
        ended[n], _ = a.joined(j, 30)
    try:
        seen = os.read(log[0], 1 << 16)
    except BlockingIOError:
        seen = b""
    for i in range(0, len(seen), 4):
        n = int.from_bytes(seen[i:i + 4], "little")
        runs[n] = runs.get(n, 0) + 1
    for n, r in ended.items():
        assert runs.get(n, 0) == {0: 1, CANCELLED: 0}.get(r, runs.get(n, 0)) and runs.get(n, 0) <= 1, (n, r)
    assert len(ended) > 60 and list(ended.values()).count(0) > 40
    for process in workers:
        process.kill()
        process.end()
    assert a.settle() == 0 and a.counts.places == 0
    a.close()
