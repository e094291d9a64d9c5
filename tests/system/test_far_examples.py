# SPDX-License-Identifier: GPL-2.0-or-later
"""The examples of libebbfar with a real donor: what they promise when their processes are killed."""
import os
import random
import re
import select
import subprocess
import threading
import time

import pytest

import parts
from machine import BUILD, wait_for
from parts import ebbctl_json
from ports import free_port
from rows import few

pytestmark = pytest.mark.beside

WAYS = [("unix", "unix"), ("tcp", "tcp"), ("unix", "tcp"), ("tcp", "unix")]

EXAMPLES = BUILD / "examples" / "far"
SECONDS = 60
SLOTS = 255


class Process:
    """An example; .say() and .hear() are its input and output."""

    def __init__(self, *argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE):
        self.popen = subprocess.Popen([EXAMPLES / argv[0], *argv[1:]], stdin=stdin, bufsize=0,
                                      stdout=stdout, stderr=subprocess.PIPE)
        self.heard = b""

    def say(self, words):
        self.popen.stdin.write(f"{words}\n".encode())

    def hear(self):
        """Returns a line, or "" at the end."""
        while b"\n" not in self.heard:
            assert select.select([self.popen.stdout], [], [], SECONDS)[0], f"{self.popen.args}: nothing"
            more = os.read(self.popen.stdout.fileno(), 65536)
            if not more:
                return ""
            self.heard += more
        words, self.heard = self.heard.split(b"\n", 1)
        return words.decode()

    def ask(self, words):
        """Returns the answer to a line, or "" if the process has exited."""
        try:
            self.say(words)
        except BrokenPipeError:
            return ""
        return self.hear()

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def end(self):
        """Returns (exit status, what it wrote to standard error)."""
        if self.popen.stdin:
            self.popen.stdin.close()
        status = self.popen.wait(SECONDS)
        return status, self.popen.stderr.read().decode()


@pytest.fixture
def start():
    """start(NAME, ARGUMENT...) starts an example."""
    started = []

    def make(*argv, **options):
        started.append(Process(*argv, **options))
        return started[-1]
    yield make
    for process in started:
        process.kill()
        for pipe in (process.popen.stdin, process.popen.stdout, process.popen.stderr):
            if pipe:
                pipe.close()


@pytest.fixture
def donor(tmp_path):
    d = parts.Donor(tmp_path / "donor.log", port=free_port(), memory="32M", slab="8M",
                    also=[f"unix:{tmp_path}/donor.sock"],
                    options=["--far", "16M", "--keep", "1s", "--headroom", "0"])
    d.at = {"tcp": d.address, "unix": f"unix:{tmp_path}/donor.sock"}
    yield d
    d.stop()


def nothing_is_left(donor):
    """The donor has freed what killed processes had, and the others what was theirs."""
    wait_for(lambda: ebbctl_json("far", "show", donor.address, "p")["extents"] == 0, 30, "extents are left")


# --- index ------------------------------------------------------------------------

KEYS = 200


def text(turn):
    return f"{turn:05d}" * 8


class Updates(threading.Thread):
    """Stores all keys again and again; .turn[key] is the last turn that the writer has confirmed."""

    def __init__(self, writer):
        super().__init__()
        self.writer, self.turn, self.stop = writer, dict.fromkeys(range(1, KEYS + 1), 0), False
        for key in self.turn:
            assert writer.ask(f"{key} {text(0)}") == str(key)

    def run(self):
        for turn in range(1, 100000):
            for key in self.turn:
                if self.stop or self.writer.ask(f"{key} {text(turn)}") != str(key):
                    return
                self.turn[key] = turn


def read_some(reader, updates, until, enough=0):
    """Reads @enough entries and more until @until() or the reader exits; returns how many, or what was wrong."""
    count = 0
    while not until() or count < enough:
        key = random.randint(1, KEYS + 20)
        least = updates.turn.get(key)
        answer = reader.ask(str(key))
        if not answer:
            return count
        if least is None:
            assert answer == str(key)
            continue
        found = re.fullmatch(rf"{key} (\d{{5}})\1{{7}}", answer)
        assert found and int(found.group(1)) >= least, f"at least {least}: {answer}"
        count += 1
    return count


def in_threads(*jobs):
    """Runs (function, arguments)s in threads; returns their results."""
    results = [None] * len(jobs)

    def run(i):
        try:
            results[i] = jobs[i][0](*jobs[i][1:])
        except BaseException as e: # pylint: disable=broad-except
            results[i] = e
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("writes, reads", few(WAYS, ("unix", "tcp"), ("tcp", "unix")))
def test_index(donor, start, writes, reads):
    """Four processes: each answer is one that the writer has stored, and not an old one."""
    writer = start("index", "write", donor.at[writes], "p")
    name = writer.hear()
    updates = Updates(writer)
    readers = [start("index", "read", donor.at[reads], "p", name) for _ in range(3)]
    for reader in readers:
        assert reader.ask("7") == f"7 {text(0)}" and reader.ask(str(KEYS + 1)) == str(KEYS + 1)
    updates.start()
    end = time.monotonic() + 1.5
    try:
        def until():
            return time.monotonic() > end
        assert min(in_threads(*[(read_some, r, updates, until, 21) for r in readers])) > 20
        # A reader that is killed disturbs no other.
        readers[0].say("5")
        readers[0].kill()
        end = time.monotonic() + 0.5
        assert min(in_threads(*[(read_some, r, updates, until, 6) for r in readers[1:]])) > 5
    finally:
        updates.stop = True
        updates.join()
    for process in readers[1:] + [writer]:
        assert process.end() == (0, "")
    nothing_is_left(donor)


@pytest.mark.parametrize("reads, count", [("unix", 50000), ("tcp", 2000)])
def test_index_reads_are_whole(donor, start, tmp_path, reads, count):
    """One entry that changes all the time, as fast as the writer can, and three readers."""
    (tmp_path / "keys").write_text("7\n" * count)
    updates = "".join(f"7 {text(turn)}\n" for turn in range(1000)).encode()
    writer = start("index", "write", donor.at["unix"], "p")
    name = writer.hear()
    assert writer.ask(f"7 {text(0)}") == "7"
    readers = []
    for i in range(3):
        with (tmp_path / "keys").open() as keys, (tmp_path / f"{i}").open("w") as out:
            readers.append(start("index", "read", donor.at[reads], "p", name, stdin=keys, stdout=out))
    while any(reader.popen.poll() is None for reader in readers):
        writer.popen.stdin.write(updates)
        while select.select([writer.popen.stdout], [], [], 0)[0]:
            os.read(writer.popen.stdout.fileno(), 65536)
    for i, reader in enumerate(readers):
        assert reader.end() == (0, "")
        answers = (tmp_path / f"{i}").read_text().splitlines()
        assert len(answers) == count and len(set(answers)) > 10
        assert [a for a in answers if not re.fullmatch(r"7 (\d{5})\1{7}", a)] == []


@pytest.mark.parametrize("writes, reads", few(WAYS, ("unix", "tcp"), ("tcp", "unix")))
def test_index_whose_writer_is_killed(donor, start, writes, reads):
    """Readers return what it has stored, or say that it has exited; never another member's bytes."""
    writer = start("index", "write", donor.at[writes], "p")
    name = writer.hear()
    updates = Updates(writer)
    readers = [start("index", "read", donor.at[reads], "p", name) for _ in range(3)]
    updates.start()

    def kill():
        time.sleep(0.3)
        writer.kill()
        # Takes the memory as soon as it is free, and fills it.
        start("index", "write", donor.at[writes], "p").hear()
    in_threads((kill,), *[(read_some, r, updates, lambda: False) for r in readers])
    updates.join()
    for reader in readers:
        status, said = reader.end()
        assert status == 1 and "the writer has exited; start it" in said, said
    again = start("index", "write", donor.at[writes], "p")
    name = again.hear()
    assert again.ask("7 seven") == "7"
    reader = start("index", "read", donor.at[reads], "p", name)
    assert reader.ask("7") == "7 seven" and reader.ask("8") == "8"
    assert reader.end() == again.end() == (0, "")


@pytest.mark.parametrize("line, says", [("x", "no key"), ("0 zero", "no key"), ("1 " + "x" * 48, "longer than 47")])
def test_index_lines_that_cannot_be(donor, start, line, says):
    writer = start("index", "write", donor.at["unix"], "p")
    writer.hear()
    assert writer.ask(line) == ""
    status, said = writer.end()
    assert status == 2 and says in said, said


def test_index_is_full(donor, start):
    writer = start("index", "write", donor.at["unix"], "p")
    writer.hear()
    for key in range(1, 16385):
        assert writer.ask(f"{key} {key}") == str(key)
    assert writer.ask("7 again") == "7"
    assert writer.ask("20000 x") == ""
    status, said = writer.end()
    assert status == 1 and "No space" in said, said


# --- queue ------------------------------------------------------------------------

def line(number):
    return f"{number} " * (1 + number % 30)


def lines(path, n):
    """Returns a file with lines 1 to @n, opened."""
    path.write_text("".join(f"{line(i)}\n" for i in range(1, n + 1)))
    return path.open()


def numbers(consumer, most=10**9):
    """Returns the numbers of the lines that it prints, up to @most of them; fails at a wrong text."""
    found = []
    while len(found) < most and (said := consumer.hear()):
        number, rest = said.split(" ", 1)
        assert rest == line(int(number)).rstrip("\n"), said
        found.append(int(number))
    return found


def confirmed(producer):
    """Returns the last number that it has confirmed."""
    last = 0
    while said := producer.hear():
        last = int(re.fullmatch(r"confirmed (\d+)", said).group(1))
    return last


@pytest.mark.parametrize("produces, consumes", few(WAYS, ("unix", "tcp"), ("tcp", "unix")))
def test_queue(donor, start, tmp_path, produces, consumes):
    with lines(tmp_path / "lines", 1000) as stdin:
        producer = start("queue", "produce", donor.at[produces], "p", stdin=stdin)
    consumer = start("queue", "consume", donor.at[consumes], "p", producer.hear())
    told, last = in_threads((numbers, consumer), (confirmed, producer))
    assert told == list(range(1, 1001)) and last == 1000
    assert producer.end() == consumer.end() == (0, "")
    nothing_is_left(donor)


@pytest.mark.parametrize("consumes", ["unix", "tcp"])
def test_queue_passes_each_line_on_at_once(donor, start, consumes):
    producer = start("queue", "produce", donor.at["tcp"], "p")
    consumer = start("queue", "consume", donor.at[consumes], "p", producer.hear())
    for i in range(1, 20):
        producer.say(f"line {i}")
        assert consumer.hear() == f"{i} line {i}"
    # Empty lines are lines.
    producer.say("")
    assert consumer.hear() == "20 "
    producer.popen.stdin.close()
    assert confirmed(producer) == 20
    assert consumer.end() == (0, "")


def test_queue_is_bounded(donor, start, tmp_path):
    """Without a consumer the producer reads what fits in the queue, and waits."""
    long = "x" * 250 + "\n"
    (tmp_path / "lines").write_text(long * 1000)
    with (tmp_path / "lines").open() as stdin:
        producer = start("queue", "produce", donor.at["unix"], "p", stdin=stdin)
    name = producer.hear()

    def position():
        told = open(f"/proc/{producer.popen.pid}/fdinfo/0").read()
        return int(re.search(r"pos:\s*(\d+)", told).group(1))
    wait_for(lambda: position() >= SLOTS * len(long), 30, "it does not send")
    time.sleep(0.3)
    assert position() <= (SLOTS + 1) * len(long) + 8192
    consumer = start("queue", "consume", donor.at["tcp"], "p", name)
    assert sum(1 for _ in iter(consumer.hear, "")) == 1000
    assert confirmed(producer) == 1000


@pytest.mark.parametrize("produces, consumes", few(WAYS, ("unix", "unix"), ("tcp", "unix")))
def test_queue_whose_consumer_is_killed(donor, start, produces, consumes):
    """The next consumer gets all that the producer has not seen confirmed."""
    producer = start("queue", "produce", donor.at[produces], "p")
    name = producer.hear()
    first = start("queue", "consume", donor.at[consumes], "p", name)

    def feed(begin, end):
        for i in range(begin, end):
            producer.say(line(i))
    # Lines remain for the second, however fast the first is.
    _, told = in_threads((feed, 1, 751), (numbers, first, random.randint(1, 700)))
    first.kill()
    told += numbers(first)
    assert told == list(range(1, len(told) + 1))
    second = start("queue", "consume", donor.at[consumes], "p", name)

    def rest():
        feed(751, 1501)
        producer.popen.stdin.close()
    more, last, _ = in_threads((numbers, second), (confirmed, producer), (rest,))
    # It begins with the first that is not confirmed; others may be printed twice.
    assert len(told) - SLOTS <= more[0] <= len(told) + 1
    assert more == sorted(set(more)) and set(told) | set(more) == set(range(1, 1501)) and last == 1500
    assert second.end() == (0, "")
    status, said = producer.end()
    # The first one may have been killed before its first doorbell: then the producer knew none.
    assert status == 0 and ("the consumer has exited" in said or not said), said
    nothing_is_left(donor)


@pytest.mark.parametrize("produces, consumes", few(WAYS, ("unix", "unix"), ("unix", "tcp")))
def test_queue_whose_producer_is_killed(donor, start, produces, consumes):
    """The consumer says so, and has all that was confirmed."""
    producer = start("queue", "produce", donor.at[produces], "p")
    consumer = start("queue", "consume", donor.at[consumes], "p", producer.hear())
    count = random.randint(1, 400)

    def feed():
        for i in range(1, count + 1):
            producer.say(line(i))
        producer.kill()
    _, told, last = in_threads((feed,), (numbers, consumer), (confirmed, producer))
    assert told == list(range(1, len(told) + 1)) and last <= len(told) <= count
    status, said = consumer.end()
    assert status == 1 and f"the producer has exited after line {len(told)};" in said, said
    nothing_is_left(donor)


def test_queue_with_two_consumers(donor, start, tmp_path):
    """Lines may be printed twice, but all are, and none is wrong."""
    with lines(tmp_path / "lines", 3000) as stdin:
        producer = start("queue", "produce", donor.at["unix"], "p", stdin=stdin)
    name = producer.hear()
    both = [start("queue", "consume", donor.at[at], "p", name) for at in ("unix", "tcp")]
    *told, last = in_threads(*[(numbers, c) for c in both], (confirmed, producer))
    assert set(told[0]) | set(told[1]) == set(range(1, 3001)) and last == 3000


# --- both -------------------------------------------------------------------------

@pytest.mark.parametrize("argv", [("index",), ("index", "read"), ("queue", "consume", "a", "b"), ("queue", "x")])
def test_usage(start, argv):
    status, said = start(*argv).end()
    assert status == 2 and f"usage: {argv[0]} " in said


@pytest.mark.parametrize("argv", [("index", "read"), ("queue", "consume")])
@pytest.mark.parametrize("name, status", [("x", 2), ("1:2:3", 2), ("1:0:10000:0", 1), ("0:200000:10000:0", 1),
                                          ("1:200000:100000:ffffffffffff", 1), ("300:200000:10000:0", 1)])
def test_wrong_names(donor, start, argv, name, status):
    process = start(*argv, donor.at["tcp"], "p", name)
    if argv[0] == "index":
        process.ask("1")
    ended, said = process.end()
    assert ended == status and said.count("\n") == 1, said


def test_a_donor_that_exits(donor, start):
    """All processes say so."""
    writer = start("index", "write", donor.at["unix"], "p")
    producer = start("queue", "produce", donor.at["tcp"], "p")
    consumer = start("queue", "consume", donor.at["unix"], "p", producer.hear())
    producer.say("a line")
    reader = start("index", "read", donor.at["unix"], "p", writer.hear())
    assert consumer.hear() == "1 a line" and writer.ask("1 one") == "1"
    assert reader.ask("1") == "1 one"
    donor.kill()
    assert writer.ask("2 two") == "" and reader.ask("1") == ""
    for process in writer, reader, consumer:
        status, said = process.end()
        assert status == 1 and "exited" in said, said
    # A donor that does not answer may be started again in time.
    producer.kill()
