# SPDX-License-Identifier: GPL-2.0-or-later
"""The example of libebbdsm, a key-value store, with real donors: answers, and processes that are killed."""
import random
import select
import subprocess
import threading

import pytest

import parts
from machine import BUILD, wait_for
from parts import ebbctl_json
from ports import free_port

pytestmark = pytest.mark.beside

KV = BUILD / "examples" / "dsm" / "kv"
SECONDS = 60


class Process:
    """A server or a client; .ask() gives it a line and returns the answer, "" after its end."""

    def __init__(self, *argv):
        self.popen = subprocess.Popen([KV, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)

    def hear(self):
        assert select.select([self.popen.stdout], [], [], SECONDS)[0], f"{self.popen.args}: nothing"
        return self.popen.stdout.readline().rstrip("\n")

    def ask(self, line):
        try:
            self.popen.stdin.write(f"{line}\n")
            self.popen.stdin.flush()
        except BrokenPipeError:
            return ""
        return self.hear()

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def end(self):
        """Returns (exit status, what it wrote to standard error)."""
        _, said = self.popen.communicate(timeout=SECONDS)
        return self.popen.returncode, said


@pytest.fixture
def start():
    started = []

    def make(*argv):
        started.append(Process(*argv))
        return started[-1]
    yield make
    for process in started:
        process.kill()
        for pipe in process.popen.stdin, process.popen.stdout, process.popen.stderr:
            try:
                pipe.close()
            except BrokenPipeError:
                pass


@pytest.fixture
def donors(tmp_path):
    """Two machines' donors: .here[i] are the addresses for a process of machine i."""
    both = [parts.Donor(tmp_path / f"donor{i}.log", port=free_port(), memory="32M", slab="8M",
                        also=[f"unix:{tmp_path}/donor{i}.sock"],
                        options=["--far", "16M", "--keep", "300ms", "--headroom", "0"]) for i in range(2)]
    both[0].here = [f"unix:{tmp_path}/donor0.sock,{both[1].address}",
                    f"{both[0].address},unix:{tmp_path}/donor1.sock"]
    yield both
    for d in both:
        d.stop()


@pytest.fixture
def store(donors, start):
    """store(machine) starts a client there, of a server on the first machine."""
    server = start("serve", donors[0].here[0], "0", "p", "0")
    port = server.hear()

    def client(machine):
        return start("client", donors[0].here[machine], str(machine), "p", f"127.0.0.1:{port}")
    client.server = server
    return client


def extents(donors):
    return [ebbctl_json("far", "show", d.address, "p")["extents"] for d in donors]


def test_answers(store):
    here, there = store(0), store(1)
    assert here.ask("get k") == there.ask("append k x") == here.ask("drop k") == "none"
    for client, other in (here, there), (there, here):
        assert client.ask("put k hello world") == "ok"
        assert client.ask("get k") == other.ask("get k") == "hello world"
        assert other.ask("append k , again") == "ok"
        assert client.ask("get k") == other.ask("get k") == "hello world, again"
        assert client.ask("append k !") == "ok"
        assert other.ask("get k") == client.ask("get k") == "hello world, again!"
        assert client.ask("put k short") == "ok" and other.ask("get k") == "short"
        assert client.ask("put e") == "ok" and other.ask("get e") == ""
        assert client.ask("drop k") == "ok" and other.ask("get k") == "none"
    long = "x" * 4000
    assert here.ask(f"put long {long}") == "ok" and there.ask("get long") == long
    assert there.ask("append long y") == "ok" and here.ask("get long") == long
    for client in here, there:
        assert client.end() == (0, "")


def test_memory_is_used_again(donors, store):
    """More values than memory, one after the other, from both machines."""
    clients = store(0), store(1)
    for i in range(6000):
        assert clients[i % 2].ask(f"put k{i % 7} {i}") == "ok"
    for i in range(5993, 6000):
        assert clients[i % 2].ask(f"get k{i % 7}") == str(i)
    assert max(extents(donors)) < 40


@pytest.mark.parametrize("line, says", [("x k", "no such verb"), ("put", "no verb and key"),
                                        ("get " + "k" * 32, "no verb and key"),
                                        ("put k " + "x" * 4001, "more than 4000 bytes")])
def test_wrong_lines(store, line, says):
    client = store(1)
    assert client.ask(line) == ""
    status, said = client.end()
    assert status == 2 and says in said


def test_usage(start):
    for argv in ((), ("serve",), ("x", "a", "0", "p", "1")):
        status, said = start(*argv).end()
        assert status == 2 and "usage: kv serve " in said


def put_and_append(client, key, said, failures):
    """Puts and appends as fast as it can, until the client is killed; said[0] is the confirmed text."""
    n = 0
    while True:
        n += 1
        answer = client.ask(f"put {key} {n}")
        if answer != "ok":
            break
        said[:] = [str(n)]
        for _ in range(3):
            said.append(said[0] + "+")
            answer = client.ask(f"append {key} +")
            if answer != "ok":
                break
            said[:] = [said[0] + "+"]
        if answer != "ok":
            break
    if answer:
        failures.append(answer)


@pytest.mark.parametrize("machine", [0, 1])
def test_a_client_is_killed(donors, store, machine):
    """What was confirmed to it is in the store, and the next client goes on."""
    other = store(1 - machine)
    assert other.ask("put mine kept") == "ok"
    before = extents(donors)
    for turn in range(6):
        client, said, failures = store(machine), [], []
        thread = threading.Thread(target=put_and_append, args=(client, f"k{turn}", said, failures))
        thread.start()
        threading.Event().wait(random.uniform(0.05, 0.3))
        client.kill()
        thread.join()
        assert not failures
        # Or the put that it had sent, which the server may receive at any later time.
        sent = str(int(said[0].rstrip("+")) + 1 if said else 1)
        assert other.ask(f"get k{turn}") in ("none", *said, sent), (said, sent)
        wait_for(lambda: other.ask(f"append k{turn} !") in ("ok", "none"), 30, "the dead client's loan is not over")
        assert other.ask(f"get k{turn}") in ("none", sent, *(f"{text}!" for text in (*said, sent))), (said, sent)
        assert other.ask("get mine") == "kept"
        other.ask(f"drop k{turn}")
    wait_for(lambda: max(a - b for a, b in zip(extents(donors), before)) <= 2, 30, "memory of dead clients is left")


def test_the_server_is_killed(donors, store):
    here, there = store(0), store(1)
    assert here.ask("put k hello") == "ok" and there.ask("get k") == "hello"
    store.server.kill()
    for client in here, there:
        assert client.ask("get k") == ""
        status, said = client.end()
        assert status == 1 and "the server has exited; start it again" in said
    wait_for(lambda: extents(donors) == [0, 0], 30, "memory of the dead server is left")
