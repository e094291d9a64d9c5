# SPDX-License-Identifier: GPL-2.0-or-later
"""
The server dies, again and again, while its file is written, read and checked: no page is
lost, old or exchanged, and no request fails.  No swap is on here.
"""
import ctypes
import fcntl
import mmap
import os
import random
import resource
import signal
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest

import machine
from dataplane import MIB, PAGE, SLAB, Server, only_shm, only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import BIN, BUSY, wait_for
from protocol import BYE, KEEP, MAP, READ, RELEASE, REMAP, RESUME, WRITE, connect, frame, hello, reply
from rows import few
from test_copies import slabs_at, whole
from test_dataplane import load
from test_protocol import FakeDonor

pytestmark = pytest.mark.beside

NO_SPACE, NO_SLAB, NO_SESSION = 5, 6, 10
SEED = int(os.environ.get("EBB_TAKEOVER_SEED", 1))
KILLS = int(os.environ.get("EBB_TAKEOVER_KILLS", 6))


def failures(s):
    told = s.stats()
    return {k: told[k] for k in ("pages_read_failed", "pages_write_failed", "fuse_errors",
                                 "pages_bad_donor", "pages_bad_backup") if told[k]}


SETUPS = {
    "disk": {"durability": "disk"},
    "disk, sealed": {"durability": "disk", "options": ["--seal", "on"]},
    "replicas": {"durability": "replicas=2", "donors": 3},
    "replicas, sealed": {"durability": "replicas=2", "donors": 3, "options": ["--seal", "on"]},
    "none": {"durability": "none", "donors": 2},
    "none, sealed": {"durability": "none", "donors": 2, "options": ["--seal", "on"]},
}


@pytest.mark.parametrize("setup", few(SETUPS, "disk", "replicas, sealed", "none"))
def test_server_killed_again_and_again(world, setup):
    what = dict(SETUPS[setup])
    donors = [world.donor(memory="80M") for _ in range(what.pop("donors", 1))]
    s = world.serve(*donors, **what)
    p, rnd = world.open(s), random.Random(SEED)
    with load(p) as errors:
        for i in range(KILLS):
            time.sleep(rnd.uniform(0, 0.3))
            told = s.kill_server()
            assert told["takeovers"] == i + 1 and not errors
    assert not failures(s)
    assert s.stats()["donor_losses"] == 0, "each donor kept what it had"
    assert s.status()["pid"] == s.pid


def keyed(tmp_path, name="spark"):
    """Options of a donor, and of a server, with the same key."""
    key = tmp_path / f"{name}.key"
    subprocess.run([BIN / "ebbctl", "key", "create", key, "--name", name], check=True,
                   stdout=subprocess.DEVNULL)
    return ["--keys", key], ["--key", key]


@only_tcp
@pytest.mark.parametrize("connections", few(["1", "4"], "4"))
def test_server_killed_with_tls(world, tmp_path, connections):
    there, here = keyed(tmp_path)
    donor = world.donor(memory="80M", options=there)
    s = world.serve(donor, durability="none",
                    options=[*here, "--connections", connections])
    assert s.status()["donors"][0]["tls"] and s.status()["sealed"]
    p, rnd = world.open(s), random.Random(SEED)
    with load(p) as errors:
        for _ in range(KILLS):
            time.sleep(rnd.uniform(0, 0.3))
            s.kill_server()
            assert not errors
    assert not failures(s)
    assert s.stats()["donor_losses"] == 0


def test_every_page_is_there_after_a_takeover(world):
    s = world.serve(world.donor(), durability="none")
    p = world.open(s)
    p.write_random(300)
    p.write(5, bytes([7]) * PAGE * 4)                   # of one word
    p.discard(100, 300)
    for _ in range(3):
        s.kill_server()
        p.check()
        p.write_random(50)
        p.check()
    assert not failures(s)


@only_tcp
def test_a_takeover_takes_no_memory(world):
    """Every page that its loop touches was there before: not one fault."""
    def faults(pid):
        fields = machine.read(f"/proc/{pid}/task/{pid}/stat").rpartition(")")[2].split()
        return int(fields[7]) + int(fields[9])
    s = world.serve(world.donor(), durability="none", options=["--seal", "on"])
    p = world.open(s)
    p.write_random(300)
    told = wait_for(s.ready, 10, "a standby")

    def settled():
        first = faults(told["standby"])
        time.sleep(1)
        return faults(told["standby"]) == first
    wait_for(settled, 10, "its preparations to end")
    before = faults(told["standby"])
    os.kill(told["server"], signal.SIGKILL)
    p.check()
    assert wait_for(s.told, 10, "a successor")["server"] == told["standby"]
    assert faults(told["standby"]) - before < 5


def test_server_and_standby_killed_at_once(world):
    s = world.serve(world.donor(memory="80M"), durability="none")
    p = world.open(s)
    with load(p) as errors:
        for _ in range(4):
            told = wait_for(s.ready, 10, "a standby")
            for pid in (told["server"], told["standby"]):
                os.kill(pid, signal.SIGKILL)
            wait_for(s.ready, 20, "two more")
            time.sleep(0.3)
            assert not errors
    assert not failures(s)


def test_standby_killed(world):
    s = world.serve(world.donor(), durability="none")
    p = world.open(s)
    p.write_random(100)
    first = wait_for(s.ready, 10, "a standby")
    os.kill(first["standby"], signal.SIGKILL)
    again = wait_for(lambda: (n := s.ready()) and n["standby"] != first["standby"] and n, 15, "another")
    assert again["server"] == first["server"] and again["takeovers"] == 0
    s.kill_server()
    p.check()


def test_successor_killed_in_its_takeover(world):
    """The standby dies right after the server: in the midst of what it does."""
    s = world.serve(world.donor(memory="80M"), durability="none")
    p, rnd = world.open(s), random.Random(SEED)
    with load(p) as errors:
        for _ in range(5):
            told = wait_for(s.ready, 10, "a standby")
            os.kill(told["server"], signal.SIGKILL)
            time.sleep(rnd.uniform(0, 0.02))
            os.kill(told["standby"], signal.SIGKILL)
            wait_for(s.ready, 20, "two more")
            assert not errors
    assert not failures(s)


def test_holder_killed(world):
    """The others go on, and say what is missing; one more takeover is possible."""
    s = world.serve(world.donor(memory="80M"), durability="none")
    p = world.open(s)
    p.write_random(100)
    told = wait_for(s.ready, 10, "a standby")
    assert told["holder"] == told["pid"] == s.pid and told["watchdog"]
    s.process.kill()
    s.process.wait(60)
    try:
        wait_for(lambda: s.status()["holder"] == 0, 5, "notice")
        now = s.status()
        assert now["pid"] == now["server"] == told["server"] and not now["watchdog"]
        wait_for(lambda: "the supervisor exited" in machine.read(s.log), 5, "a line in the log")
        p.check()
        os.kill(now["server"], signal.SIGKILL)
        p.check()
        p.write_random(50)
        p.check()
        assert wait_for(s.told, 10, "a successor")["pid"] == told["standby"]
        p.close()
    finally:
        for pid in (told["server"], told["standby"]):
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
    wait_for(lambda: told["standby"] not in machine.processes(), 10, "end")
    assert not os.path.ismount(s.mount) and not list((s.run / "devices").iterdir())


def test_server_killed_while_slabs_move(world):
    a, b = world.donor(memory="80M"), world.donor(memory="80M")
    s = world.serve(a, durability="none", options=["--repair-rate", "8M"])
    p = world.open(s)
    p.write_random(400)
    s.do("donors.set", donors=[a.address, b.address])
    wait_for(lambda: len(s.status()["donors"]) == 2 and s.donor_state(1) == "up", 5, "second donor")
    s.do("donor.drain", donor=a.address)
    for _ in range(6):
        time.sleep(0.3)
        s.kill_server()
        p.check()
    s.do("donor.drain", donor=a.address)
    wait_for(lambda: slabs_at(s, a) == 0 and whole(s), 60, "slabs at the other donor")
    p.check()
    assert not failures(s)


def test_donor_and_server_killed_at_once(world):
    donors = [world.donor(memory="80M") for _ in range(3)]
    # For two deadlines it looks for the donor.
    s = world.serve(*donors, durability="replicas=2", options=["--deadline", "2s"])
    with load(world.open(s)) as errors:
        time.sleep(0.5)
        told = wait_for(s.ready, 10, "a standby")
        donors[0].kill()
        os.kill(told["server"], signal.SIGKILL)
        wait_for(s.ready, 20, "a successor")
        time.sleep(1)
        assert not errors
    wait_for(lambda: whole(s), 60, "copies")
    assert not failures(s)


def free_at(donor):
    with connect(donor) as c:
        c.sendall(hello(borrower=77))
        return int.from_bytes(reply(c)["payload"][24:32], "little")


def test_nothing_stays_at_donors(world):
    """Slabs in no table are reclaimed at once; at the end all are."""
    donor = world.donor()
    s = world.serve(donor, durability="none")
    p = world.open(s)
    free = s.status()["donors"][0]["free"]
    for i in range(4):
        p.write(i * SLAB // PAGE, os.urandom(PAGE))
        s.kill_server()
    # The figures come with the next PING.
    wait_for(lambda: s.status()["donors"][0]["free"] == free - 4 * SLAB, 5, "four slabs")
    p.discard(0, p.size // PAGE)
    wait_for(lambda: s.status()["donors"][0]["free"] == free, 15, "none")
    p.close()
    s.stop()
    # Shared slabs are re-created; without BYE the donor would retain them for half a minute.
    wait_for(lambda: free_at(donor) == free, 20 / BUSY, "all of it")


@only_tcp
@pytest.mark.parametrize("durability, key", few([("disk", False), ("none", True)], ("none", True)),
                         ids=["disk", "keyed"])
def test_slabs_that_were_asked_back_as_the_server_died(world, tmp_path, durability, key):
    """The question is the first thing that its successor hears; it has what was there all the same."""
    there, here = keyed(tmp_path) if key else ([], [])
    donors = [world.donor(options=there) for _ in "ab"]
    s = world.serve(*donors, durability=durability, options=here)
    p = world.open(s)
    p.write_random(100)
    # They tell of the same machine's memory at different times: one may have got nothing.
    a = max(donors, key=lambda d: slabs_at(s, d))
    told = wait_for(s.ready, 10, "a standby")
    os.kill(told["server"], signal.SIGSTOP)
    a.ask("drain")
    wait_for(lambda: a.ask()["evictions"]["asked"], 5, "a question")
    os.kill(told["server"], signal.SIGKILL)
    p.check()
    assert wait_for(s.told, 10, "a successor")["server"] == told["standby"]
    assert s.stats()["donor_losses"] == 0
    wait_for(lambda: not any(slab["state"] == "mapping" for slab in s.slabs().values()), 10, "maps that end")
    wait_for(lambda: a.ask()["lent"] == 0, 30, "all of it back")
    p.check()
    assert not failures(s)


@only_tcp
def test_room_that_comes_back_is_known_at_once(world):
    """What the dead server was granted, and had no time to write down, is there for a first write."""
    class Donor(FakeDonor):
        def other(self, op):
            if op == RELEASE:
                self.free = 64 * MIB

    donor = Donor(lambda head, data: head + data)
    try:
        s = world.serve(donor, durability="none")
        p = world.open(s)
        p.write(0, os.urandom(PAGE))
        for i in range(1, 4):
            told = wait_for(s.ready, 10, "a standby")
            donor.free = 0
            os.kill(told["server"], signal.SIGKILL)
            p.write(i * SLAB // PAGE, os.urandom(PAGE))
        assert not failures(s)
        p.check()
    finally:
        donor.stop()


@only_tcp
def test_room_that_is_being_made(world):
    """A released slab is re-created before it is lent again, though it counts as free: a write waits."""
    class Donor(FakeDonor):
        full_until = 0

        def map_status(self):
            return NO_SPACE if time.monotonic() < self.full_until else 0

    donor = Donor(lambda head, data: head + data)
    try:
        s = world.serve(donor, durability="none")
        p = world.open(s)
        p.write(0, os.urandom(PAGE))
        told = wait_for(s.ready, 10, "a standby")
        donor.full_until = time.monotonic() + 0.7
        os.kill(told["server"], signal.SIGKILL)
        p.write(SLAB // PAGE, os.urandom(PAGE))
        assert time.monotonic() > donor.full_until
        p.check()
        assert not failures(s)
    finally:
        donor.stop()


@only_tcp
def test_room_elsewhere_is_known_at_once(world):
    """One donor has all there is, and no room; the other is empty."""
    full, empty = FakeDonor(lambda head, data: head + data), world.donor()
    try:
        s = world.serve(full, durability="none")
        p = world.open(s)
        p.write(0, os.urandom(PAGE))
        full.free = 0
        s.do("donors.set", donors=[full.address, empty.address])
        wait_for(lambda: len(s.status()["donors"]) == 2 and s.donor_state(1) == "up", 5, "second donor")
        told = wait_for(s.ready, 10, "a standby")
        os.kill(told["server"], signal.SIGKILL)
        p.write(SLAB // PAGE, os.urandom(PAGE))
        p.check()
        assert not failures(s)
    finally:
        full.stop()


def test_backup_goes_on(world):
    """Writes that were answered and not on the disk yet get there, in their order."""
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    for _ in range(5):
        for _ in range(60):
            p.write_random(1, most=8)
            p.write(3, os.urandom(PAGE))
        s.kill_server()
    donor.kill()
    p.check()
    assert not failures(s)


def hold_memory(pid, at):
    """Reads a word of @pid's memory to @at: it cannot be given up before that is done."""
    class Span(ctypes.Structure):
        _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    where = next(int(line.split("-")[0], 16) for line in machine.read(f"/proc/{pid}/maps").splitlines()
                 if line.split()[1].startswith("r"))
    here, there = Span(at, 8), Span(where, 8)
    ctypes.CDLL(None).process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)


@only_tcp
def test_what_a_dead_server_still_writes_comes_first(world, tmp_path):
    """
    The kernel waits for these writes before a process exits, unless another process holds its memory, as
    ps(1) does.  The disk here is another device's file, and slow when that is stopped.
    """
    (tmp_path / "disk").mkdir()
    with ExitStack() as undo:
        disk = Server(tmp_path / "disk", tmp_path / "disk.log", [world.donor()], durability="none",
                      options=["--watchdog", "60s"])
        undo.callback(disk.stop)
        open(disk.file, "rb").close()    # it has no FLUSH: then the kernel knows
        s = world.serve(world.donor(), backup=disk.file)
        undo.callback(s.stop)
        p = world.open(s)
        undo.callback(p.close)
        page = undo.enter_context(mmap.mmap(undo.enter_context(open(disk.file, "rb")).fileno(), PAGE,
                                            mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
        p.write_random(50)
        told = wait_for(s.ready, 10, "a standby")
        wait_for(lambda: s.status()["backup"]["queue"] == 0, 10, "an empty queue")
        processes = [disk.pid, *disk.children()]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            reader = threading.Thread(target=hold_memory, args=(
                told["server"], ctypes.addressof(ctypes.c_char.from_buffer(page))))
            reader.start()
            p.write(7, os.urandom(PAGE))
            time.sleep(0.5)
            assert reader.is_alive(), "it holds no memory"
            os.kill(told["server"], signal.SIGKILL)
            time.sleep(1)
            early = "the standby serves it now" in machine.read(s.log)
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)
        reader.join(10)
        assert not early, "it still writes"
        wait_for(s.told, 10, "a successor")
        p.check()
        assert not failures(s)


@only_tcp
def test_a_file_whose_locks_tell_nothing(world, tmp_path):
    """As on NFS, where the supervisor's flock(2) is such a lock: no process waits for them."""
    with open(tmp_path / "locked", "wb+") as f:
        lock = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        fcntl.fcntl(f, fcntl.F_OFD_SETLK, lock)
        s = world.serve(world.donor(), backup=tmp_path / "locked")
        p = world.open(s)
        p.write_random(50)
        s.kill_server()
        p.check()
        assert not failures(s)


def test_abort_after_a_takeover(world):
    s = world.serve(world.donor(), durability="none")
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    s.kill_server()
    with open(f"/sys/fs/fuse/connections/{s.status()['fuse_connection']}/abort", "w") as f:
        f.write("1")
    with pytest.raises(OSError):
        p.read(0, 1)
    assert s.process.wait(60) == 1


def test_stop_after_a_takeover(world):
    s = world.serve(world.donor())
    p = world.open(s)
    p.write_random(20)
    s.kill_server()
    p.close()
    processes = s.children()
    assert s.stop() == 0
    wait_for(lambda: not set(processes) & set(machine.processes()), 2, "the end of all")
    assert not s.backup.exists() and not list((s.run / "devices").iterdir())


def no_more_mappings(pid, limit=PAGE):
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


@only_shm
@pytest.mark.parametrize("for_long", few([False, True], True), ids=["a moment", "for long"])
def test_a_standby_that_cannot_map_what_is_there(world, for_long):
    """It tries again for two deadlines, and then lets another process try: no slab is released."""
    s = world.serve(world.donor(), durability="none",
                    options=["--deadline", "1s" if for_long else "5s"])
    p = world.open(s)
    p.write_random(100)
    told = wait_for(s.ready, 10, "a standby")
    no_more_mappings(told["standby"])
    os.kill(told["server"], signal.SIGKILL)
    time.sleep(0.5)
    if not for_long:
        no_more_mappings(told["standby"], resource.RLIM_INFINITY)
    now = wait_for(s.told, 20, "a successor")
    p.check()
    assert now["takeovers"] == 1 + for_long and (now["server"] == told["standby"]) != for_long
    assert not failures(s)
    wait_for(lambda: not for_long or "exit reason: slabs at a donor cannot be mapped" in machine.read(s.log),
             10, "a line in the log")


@only_shm
def test_a_copy_that_cannot_be_mapped_is_given_up_if_another_is_there(world):
    s = world.serve(world.donor(), options=["--deadline", "1s"])
    p = world.open(s)
    p.write_random(100)
    told = wait_for(s.ready, 10, "a standby")
    no_more_mappings(told["standby"])
    os.kill(told["server"], signal.SIGKILL)
    p.check()
    no_more_mappings(told["standby"], resource.RLIM_INFINITY)
    assert wait_for(s.told, 20, "a successor")["server"] == told["standby"]
    assert s.stats()["pages_read_backup"] and not failures(s)


def kill_both(told):
    for pid in (told["server"], told["standby"]):
        os.kill(pid, signal.SIGKILL)


def kill_all(processes):
    """True when there is none."""
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return not processes


@only_shm
def test_servers_that_crash_again_and_again(world):
    """Not for ever: after ten of them there are errors, and the log says why."""
    a, b = world.donor(), world.donor()
    s = world.serve(a, durability="none")
    p = world.open(s)
    # The supervisor does not know donors added later.
    s.do("donors.set", donors=[a.address, b.address])
    wait_for(lambda: len(s.status()["donors"]) == 2 and s.donor_state(1) == "up", 5, "second donor")
    p.write_random(200)
    for i in range(9):
        # Now and then before there is a standby.
        told = wait_for(s.ready if i % 3 else s.told, 10, "a server")
        os.kill(told["server"], signal.SIGSEGV)
        wait_for(lambda: (now := s.told()) and now["server"] != told["server"], 10, "another")
    p.check()
    # With no server left, the supervisor cleans up.
    told = wait_for(s.ready, 10, "a standby")
    for pid in (told["standby"], told["server"]):
        os.kill(pid, signal.SIGSEGV)
    assert s.process.wait(60) == 1
    with pytest.raises(OSError):
        p.read(0, 1)
    line = "its servers crash, 10 within 60 s or in a row; see the messages before this one, then destroy"
    wait_for(lambda: line in machine.read(s.log), 5, "a line in the log")
    assert not os.path.ismount(s.mount) and not list((s.run / "devices").iterdir())


@only_tcp
def test_servers_that_are_killed_do_not_count(world):
    """More than ten deaths by SIGKILL within 60 s, a crash of each of which would abort the device."""
    s = world.serve(world.donor())
    p = world.open(s)
    p.write_random(50)
    deaths = []
    # A busy machine may be slow to make servers.
    while len(deaths) < 12 or deaths[-1] - deaths[-12] >= 60:
        assert len(deaths) < 60, "no 12 servers within 60 s"
        s.kill_server()
        deaths.append(time.monotonic())
    p.check()
    p.write_random(50)
    p.check()
    assert s.alive() and not failures(s)
    assert "its servers crash" not in machine.read(s.log)


@only_tcp
def test_servers_that_cannot_be_made_do_not_count(world):
    """
    Nor do waiting requests fail: the supervisor retries until a server starts, here more often than
    servers may crash.
    """
    s = world.serve(world.donor(), durability="none")
    p = world.open(s)
    p.write_random(50)
    told = wait_for(s.ready, 10, "a standby")
    # Too little for a server's thread, and enough for a stack to grow: that it may not is a crash.
    size = int(machine.read(f"/proc/{s.pid}/statm").split()[0]) * PAGE
    soft = resource.prlimit(s.pid, resource.RLIMIT_AS, (size + MIB // 2, resource.RLIM_INFINITY))[0]
    kill_both(told)
    time.sleep(13)      # a try a second
    assert "died (" not in machine.read(s.log), "the writer of this line may wait for a server"
    resource.prlimit(s.pid, resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))
    p.check()
    wait_for(s.told, 10, "a server")
    made = 'died (exit status 1); no standby'
    wait_for(lambda: machine.read(s.log).count(made) > 1, 10, "a line of each")
    assert not failures(s)
    assert "its servers crash" not in machine.read(s.log)


@only_tcp
def test_stop_between_two_servers(world):
    """No server runs that could stop: the next one does."""
    s = world.serve(world.donor())
    p = world.open(s)
    p.write_random(20)
    p.close()
    kill_both(wait_for(s.ready, 10, "a standby"))
    told = wait_for(s.told, 10, "a server")
    # This one was just made: the holder waits a second before it makes another.
    wait_for(lambda: kill_all(s.children()), 5, "the end of both", interval=0.01)
    os.kill(s.pid, signal.SIGTERM)
    assert s.process.wait(60) == 0
    assert not os.path.ismount(s.mount)
    wait_for(lambda: told["pid"] not in machine.processes(), 2, "the end of all")


@only_tcp
def test_a_stop_that_the_standby_got(world):
    s = world.serve(world.donor())
    told = wait_for(s.ready, 10, "a standby")
    os.kill(told["standby"], signal.SIGTERM)
    assert s.process.wait(60) == 0


@only_tcp
def test_a_stop_that_was_refused_is_not_done_later(world):
    """All processes of a unit are told; the standby does not keep it for its time as a server."""
    s = world.serve(world.donor())
    p = world.open(s)
    p.write_random(20)
    told = wait_for(s.ready, 10, "a standby")
    for pid in (s.pid, told["server"], told["standby"]):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: "cannot stop" in machine.read(s.log), 5, "a line in the log")
    time.sleep(0.5)
    p.close()
    s.kill_server()
    time.sleep(0.7)
    assert os.path.ismount(s.mount) and s.told()


# --- the donor's side --------------------------------------------------------------------


def greet(donor, number, flags=0):
    c = connect(donor)
    c.sendall(hello(borrower=number, flags=flags))
    return c, reply(c)["status"]


def ask(c, op, **what):
    payload = what.pop("payload", b"")
    c.sendall(frame(op, **what) + payload)
    return reply(c)


@only_tcp
def test_a_successor_has_what_its_predecessor_had(donor_at):
    donor = donor_at(memory="8M")
    c, status = greet(donor, 5, KEEP)
    assert status == 0
    loans = [ask(c, MAP, tag=i, length=8, payload=bytes(8)) for i in range(3)]
    content = os.urandom(PAGE)
    for loan in loans:
        assert ask(c, WRITE, slab=loan["slab"], generation=loan["generation"], length=PAGE,
                   payload=content)["status"] == 0
    c.close()
    stranger, _ = greet(donor, 6, KEEP)
    first = {"slab": loans[0]["slab"], "generation": loans[0]["generation"]}
    assert ask(stranger, REMAP, **first)["status"] == NO_SLAB
    again, status = greet(donor, 5, KEEP | RESUME)
    assert status == 0
    assert ask(again, REMAP, **first)["status"] == 0
    assert ask(again, READ, length=PAGE, **first)["payload"] == content
    assert ask(again, REMAP, slab=first["slab"], generation=first["generation"] ^ 1)["status"] == 7
    assert ask(again, RELEASE)["status"] == 0
    for loan in loans[1:]:
        assert ask(again, READ, slab=loan["slab"], generation=loan["generation"],
                   length=PAGE)["status"] in (NO_SLAB, 7)
    assert ask(again, READ, length=PAGE, **first)["payload"] == content
    # A session that does not resume has no slabs.
    plain, status = greet(donor, 5, KEEP)
    assert status == 0 and ask(plain, REMAP, **first)["status"] in (NO_SLAB, 7)
    _, status = greet(donor, 5, KEEP | RESUME)
    assert status == NO_SESSION
    for s in (stranger, again, plain):
        s.close()


@only_tcp
def test_a_predecessors_late_write_never_arrives(donor_at):
    """Half of it has arrived at the next server's handshake: the other half is discarded."""
    donor = donor_at(memory="8M")
    old, _ = greet(donor, 5, KEEP)
    loan = ask(old, MAP, length=8, payload=bytes(8))
    where = {"slab": loan["slab"], "generation": loan["generation"], "length": PAGE}
    assert ask(old, WRITE, payload=b"1" * PAGE, **where)["status"] == 0
    old.sendall(frame(WRITE, offset=PAGE, **where) + b"2" * 1000)
    new, status = greet(donor, 5, KEEP | RESUME)
    assert status == 0
    assert ask(new, REMAP, slab=loan["slab"], generation=loan["generation"])["status"] == 0
    assert ask(new, WRITE, payload=b"3" * PAGE, offset=PAGE, **where)["status"] == 0
    try:
        old.sendall(b"2" * (PAGE - 1000))
        old.sendall(frame(WRITE, offset=PAGE, **where) + b"2" * PAGE)
    except OSError:
        pass
    time.sleep(0.2)
    assert ask(new, READ, offset=PAGE, **where)["payload"] == b"3" * PAGE
    old.close(), new.close()


@only_tcp
@pytest.mark.parametrize("says", ["nothing", "bye"])
def test_bye_releases_at_once(donor_at, says):
    donor = donor_at(memory="2M")
    c, _ = greet(donor, 5, KEEP if says == "bye" else 0)
    for _ in range(2):
        assert ask(c, MAP, length=8, payload=bytes(8))["status"] == 0
    if says == "bye":
        assert ask(c, BYE)["status"] == 0
    c.close()
    other, _ = greet(donor, 6)
    wait_for(lambda: ask(other, MAP, length=8, payload=bytes(8))["status"] == 0, 5, "a slab")
    other.close()


@only_tcp
def test_a_successor_comes_the_way_its_predecessor_came(donor_at, tmp_path):
    """Pages shared over a unix socket may be unsealed: a TCP session must not resume them."""
    donor = donor_at(memory="8M", also=[f"unix:{tmp_path}/d.sock"])
    local = SimpleNamespace(address=donor.also[0])
    c, status = greet(local, 5, KEEP)
    assert status == 0 and ask(c, MAP, length=8, payload=bytes(8))["status"] == 0
    assert greet(donor, 5, KEEP | RESUME)[1] == NO_SESSION
    assert ask(c, MAP, length=8, payload=bytes(8))["status"] == 0, "nor does it end the other"
    c.close()
    assert greet(donor, 5, KEEP | RESUME)[1] == NO_SESSION
    assert greet(local, 5, KEEP | RESUME)[1] == 0


@only_tcp
def test_a_key_that_is_taken_away_takes_along_what_is_kept(world, tmp_path):
    """Its borrower is disconnected, and no session may resume its slabs."""
    keys = [tmp_path / f"{name}.key" for name in ("spark", "flink")]
    for key in keys:
        subprocess.run([BIN / "ebbctl", "key", "create", key, "--name", key.stem], check=True,
                       stdout=subprocess.DEVNULL)
    donor = world.donor(memory="80M", options=["--keys", keys[0], "--keys", keys[1]])
    s = world.serve(donor, durability="none", options=["--key", keys[0]])
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    p.write(SLAB // PAGE, os.urandom(PAGE))
    s.kill()
    p.close()
    subprocess.run(["umount", s.mount], check=True)
    time.sleep(0.3)
    assert donor.ask()["lent"] == 2 * SLAB, "kept"
    keys[1].unlink()
    donor.signal(signal.SIGHUP)
    wait_for(lambda: "1 keys" in machine.read(donor.log), 5, "keys read again")
    assert donor.ask()["lent"] == 2 * SLAB, "another one's key is no reason"
    keys[0].unlink()
    donor.signal(signal.SIGHUP)
    wait_for(lambda: donor.ask()["lent"] == 0, 5, "all of it back")
    wait_for(lambda: "its key was removed; 2 slabs reclaimed" in machine.read(donor.log), 5, "log line")


@only_tcp
def test_what_is_kept_counts(donor_at):
    """An address has no more kept borrowers than it may have connections; the oldest give way."""
    donor = donor_at(memory="16M", options=["--peer-connections", "4"])
    for number in range(1, 11):
        c, status = greet(donor, number, KEEP)
        assert status == 0 and ask(c, MAP, length=8, payload=bytes(8))["status"] == 0
        c.close()
    # It may not have seen yet that the last one has closed.
    wait_for(lambda: donor.ask()["lent"] <= 4 << 20, 5, "an end of the oldest")
    assert greet(donor, 10, KEEP | RESUME)[1] == 0
    assert greet(donor, 1, KEEP | RESUME)[1] == NO_SESSION
