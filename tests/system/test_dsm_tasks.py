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

import parts
from dsm_member import Name, Process, Space
from machine import wait_for
from parts import ebbctl_json
from rows import STEP
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


def outcomes_of_kills(d, spawner, link, lost):
    """Kills a worker at its first message, another one at its second, and so on."""
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
        assert job
        r, back = spawner.check(job, alive=False)
        outcomes.add((r, back))
        ended = r == 0 and link.messages <= message
        process.kill()
        process.end()
        link.at_message = None
        only_one_is_left(d)
        message += 1
    assert message > 8
    return outcomes


@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_worker_is_killed_at_each_message(donor, wire, lost):
    d = donor()
    spawner, link = Spawner(d.unix), wire(d.port)
    outcomes = set()
    # On a busy machine messages go together, and the worker is killed at fewer points.
    for _ in range(5):
        outcomes |= outcomes_of_kills(d, spawner, link, lost)
        if outcomes >= {(CANCELLED, "ab"), (DEAD, "ab"), (DEAD, ""), (0, "An")}:
            break
    else:
        pytest.fail(f"{outcomes}")
    spawner.a.close()


@pytest.mark.long
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


@pytest.mark.parametrize("lost, mapped", [
    (True, True), pytest.param(False, False, marks=pytest.mark.long)])
def test_a_spawner_is_killed_at_each_message(donor, wire, lost, mapped):
    """Its worker has one seat, which is free again, and drops what is not accepted."""
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
            message += STEP
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


# --- placement and status ---------------------------------------------------------

def DONOR(i):
    return i << 61


def fill_machine(path):
    """In a namespace of this process, 95 % of the machine's memory is in use."""
    libc = ctypes.CDLL(None, use_errno=True)
    path.write_text("MemTotal:       1000000 kB\nMemFree:          20000 kB\nMemAvailable:     50000 kB\n")
    assert libc.unshare(0x20000) == 0, os.strerror(ctypes.get_errno())
    assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
    assert libc.mount(str(path).encode(), b"/proc/meminfo", None, 0x1000, None) == 0


def working(donors, home, say, prepare=lambda: None):
    prepare()
    b = Space(*donors, home=home)
    b.functions(lambda space, call: home, waiting=8)
    say("ready")
    while b.work(20000) in (0, -errno.EAGAIN):
        pass


def place_of(a, **spawn):
    """Returns the donor where a task was executed."""
    job = a.spawned(**spawn)
    assert not isinstance(job, tuple), job
    r, result = a.joined(job, 30)
    assert r == 0 and result.status == result.donor, (r, result.error)
    for box in result.box:
        assert not box.stamp or a.drop(box) == 0
    return result.donor


@pytest.fixture
def idle_machine(tmp_path):
    """In a namespace of a process, the machine is idle."""
    libc = ctypes.CDLL(None, use_errno=True)
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 0 0 1000 0 0 0 0\n")

    def prepare():
        assert libc.unshare(0x20000) == 0, os.strerror(ctypes.get_errno())
        assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
        assert libc.mount(str(stat).encode(), b"/proc/stat", None, 0x1000, None) == 0
    return prepare


def test_tasks_go_to_their_boxes(donor, idle_machine, tmp_path):
    """Unless that machine is full."""
    x, y = donor(), donor()
    a = Space(x.unix, y.tcp)
    a.functions(lambda space, call: 0)
    workers = [Process(lambda say, hear: working((x.unix, y.tcp), 0, say, idle_machine)),
               Process(lambda say, hear: working((x.tcp, y.unix), 1, say, idle_machine))]
    assert [w.hear() for w in workers] == ["ready"] * 2
    box = Name()
    assert a.new_at(DONOR(1), content("y"), SIZE, box) == 0 and box.at >> 61 == 1
    assert a.value(box, SIZE) == content("y")
    for _ in range(3):
        assert [place_of(a, where=DONOR(i)) for i in (0, 1, 0)] == [0, 1, 0]
        assert place_of(a, where=box.at) == 1
    # Without a place, that of its first box.
    assert place_of(a, boxes=[box]) == 1
    workers[1].kill()
    workers[1].end()
    wait_for(lambda: len(ebbctl_json("far", "show", y.tcp, "p")["members"]) == 2, 30, "a worker is left")

    def both():
        fill_machine(tmp_path / "meminfo")
        idle_machine()
    workers[1] = Process(lambda say, hear: working((x.tcp, y.unix), 1, say, both))
    assert workers[1].hear() == "ready"
    time.sleep(0.6)
    assert [place_of(a, where=DONOR(1)) for _ in range(3)] == [0, 0, 0]
    workers[0].kill()
    workers[0].end()
    wait_for(lambda: len(ebbctl_json("far", "show", x.tcp, "p")["members"]) == 2, 30, "a worker is left")
    # There is no other machine.
    time.sleep(0.6)
    assert place_of(a, where=DONOR(0)) == 1
    for w in workers[1:]:
        w.kill()
        w.end()
    a.close()


def test_boxes_go_where_memory_is(donor):
    x, y = donor("30s"), donor("30s")
    a, b = Space(x.unix, y.tcp), Space(x.tcp, y.unix, home=1)
    box, size = Name(), 1 << 20
    assert a.new_at(2 ** 64 - 1, content("a"), SIZE, box) == 0
    taken = [a.new(bytes(size)) for _ in range(8)]
    assert {b.at >> 61 for b in taken} == {0}
    time.sleep(1.1)
    assert a.settle() == 0
    time.sleep(1.1)
    emptiest = Name()
    assert a.new_at(2 ** 64 - 1, content("b"), SIZE, emptiest) == 0
    assert emptiest.at >> 61 == 1
    # The home donor is filled, then the other one.
    more = []
    while not (r := a.call("new", bytes(size), size, box := Name())):
        more.append(box)
    assert r == -errno.ENOSPC
    homes = [b.at >> 61 for b in more]
    assert set(homes) == {0, 1} and homes == sorted(homes), homes
    # Boxes at the other donor are as those at home.
    assert a.value(more[-1], size) == bytes(size)
    a.change(more[-1], b"x" * size)
    assert a.value(more[-1], size) == b"x" * size
    loan = a.offer("lend_mut", more[-1])
    # There is no memory for what b borrows.
    assert a.drop(more[0]) == 0 and a.drop(more.pop(-2)) == 0
    p = b.borrow_loan(loan, None)
    assert p > 0, p
    ctypes.memmove(p, b"z" * size, size)
    assert b.return_loan(loan, p) == 0
    assert a.reclaim(more[-1]) == 0
    assert a.value(more[-1], size) == b"z" * size
    assert a.new_at(DONOR(2), content("c"), SIZE, Name()) == -errno.EINVAL
    b.close()
    a.close()


def test_status(donor):
    x, y = donor("30s"), donor("30s")
    a = Space(x.unix, y.tcp)
    boxes = [a.new(content("a")) for _ in range(3)]
    a.functions(lambda space, call: 0, build=b"one")
    b = Space(x.tcp, y.unix, home=1)
    b.functions(lambda space, call: 0, waiting=2, build=b"one")
    other = Name()
    assert a.new_at(DONOR(1), content("b"), SIZE, other) == 0
    jobs = [a.spawned() for _ in range(2)]
    time.sleep(1.1)
    assert (a.settle(), b.settle()) == (0, 0)
    both = f"{x.tcp},{y.tcp}"
    got = ebbctl_json("dsm", "status", both, "p")
    assert (got["pool"], got["waiting"], got["running"]) == ("p", 2, 0)
    first, second = got["donors"]
    assert (first["donor"], first["members"], second["members"]) == (x.tcp, 1, 1)
    # The objects of the tasks are boxes, too.
    assert first["boxes"] == 5 and second["boxes"] == 1 and second["bytes"] == 64 << 10
    assert first["total"] == 32 << 20 and first["pool_bytes"] == 16 << 20 and first["free"] == 16 << 20
    of_a, of_b = got["members"]
    assert (of_a["pid"], of_a["seats"], of_a["boxes"]) == (os.getpid(), 0, 6)
    assert (of_b["build"], of_b["seats"], of_b["waiting"]) == ("one", 2, 2)
    assert of_a["host"] == os.uname().nodename and 0 < of_a["memory"] < 1 and 0 <= of_a["cpu"] <= 1
    assert b.work(5000) == 0 and b.work(5000) == 0
    assert [a.joined(job, 30)[0] for job in jobs] == [0, 0]
    assert ebbctl_json("dsm", "status", both, "p")["waiting"] == 0
    text = parts.ebbctl("dsm", "status", both, "p").stdout
    assert "pool p: 2 processes; 0 tasks waiting, 0 running" in text and "one" in text
    refused = parts.ebbctl("dsm", "status", f"{y.tcp},{x.tcp}", "p", check=False)
    assert refused.returncode == 2 and "in the order of the programs" in refused.stderr
    assert "no such pool" in parts.ebbctl("dsm", "status", both, "q", check=False).stderr
    for box in [*boxes, other]:
        assert a.drop(box) == 0
    b.close()
    a.close()
    wait_for(lambda: ebbctl_json("dsm", "status", both, "p")["members"] == [], 10, "members that have left are listed")


def test_round_trips(donor):
    """What a spawner waits for at the donor of another machine, where its task is executed."""
    x, y = donor("30s"), donor("30s")
    a, b = Space(x.unix, y.tcp), Space(x.tcp, y.unix, home=1)
    a.functions(lambda space, call: 0)
    b.functions(change, waiting=2)

    def count(function):
        before = a.counts.round_trips
        return function(), a.counts.round_trips - before

    def once():
        boxes = [a.new(content(letter)) for letter in "ab"]
        job, spawn = count(lambda: a.spawned(boxes, b"yes", 16))
        assert not isinstance(job, tuple) and b.work(20000) == 0
        (r, result), join = count(lambda: a.joined(job, 30))
        assert r == 0 and result.content == b"y"
        for box in result.box:
            assert not box.stamp or a.drop(box) == 0
        assert (a.settle(), b.settle()) == (0, 0)
        return spawn, join
    found = [once() for _ in range(5)]
    # On a busy machine what is known may be too old each time.
    while len(found) < 50 and (2 not in {spawn for spawn, _ in found} or min(join for _, join in found) > 3):
        found.append(once())
    # With what is known of processes, or with a new look.
    assert {spawn for spawn, _ in found} <= {2, 4} and 2 in {spawn for spawn, _ in found}, found
    # The object, and two boxes.
    assert min(join for _, join in found) == 3, found
    b.close()
    a.close()
