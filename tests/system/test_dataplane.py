# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebb-swapd and ebb-donord by their file: what is written to DIR/swap is read back, byte
for byte, whatever happens to the donor.  No swap is on here, so donors may be killed.
Tests run with each transport unless they say otherwise.
"""
import hashlib
import itertools
import json
import mmap
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

import machine
import parts
from machine import BIN, wait_for

MIB = 1 << 20
PAGE = 4096
SLAB = MIB


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server(parts.Daemon):
    """An ebb-swapd in the foreground, with its own run directory."""

    def __init__(self, directory, log, donors, size="32M", slab="1M", backup=None, options=()):
        self.directory, self.mount = directory, directory / "mnt"
        self.run, self.backup = directory / "run", backup or directory / "backup"
        self.mount.mkdir(exist_ok=True)
        self.argv_made = [BIN / "ebb-swapd", "--name", "dp0", "--size", size, "--slab", slab,
                          "--backup", self.backup, "--mount", self.mount, "--foreground", *options]
        for d in donors:
            self.argv_made += ["--donor", d.address if hasattr(d, "address") else d]
        super().__init__(self.argv_made, log, env={"EBB_RUN_DIR": str(self.run)})
        self.file = self.mount / "swap"

    def ask(self, verb):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(10)
            s.connect(str(self.run / "devices" / "dp0.sock"))
            s.sendall(json.dumps({"verb": verb}).encode() + b"\n")
            return json.loads(s.makefile().readline())

    def stats(self):
        return self.ask("stats")

    def status(self):
        return self.ask("status")

    def donor_state(self, i=0):
        return self.status()["donors"][i]["state"]


class Pages:
    """Direct I/O on the file, with a model of what it must hold."""

    def __init__(self, server, seed=1):
        self.fd = os.open(server.file, os.O_RDWR | os.O_DIRECT)
        self.size = os.fstat(self.fd).st_size
        self.model = bytearray(self.size)
        self.random = random.Random(seed)

    def close(self):
        if self.fd < 0:
            return
        try:
            os.close(self.fd)
        except OSError:
            pass  # closing asks the server, which may be gone
        self.fd = -1

    def write(self, page, data):
        with mmap.mmap(-1, len(data)) as buf:
            buf[:] = data
            assert os.pwritev(self.fd, [buf], page * PAGE) == len(data)
        self.model[page * PAGE:page * PAGE + len(data)] = data

    def read(self, page, count):
        with mmap.mmap(-1, count * PAGE) as buf:
            assert os.preadv(self.fd, [buf], page * PAGE) == count * PAGE
            return buf[:]

    def write_random(self, n, most=64):
        for _ in range(n):
            count = self.random.randint(1, most)
            page = self.random.randrange(self.size // PAGE - count)
            self.write(page, self.random.randbytes(count * PAGE))

    def check(self, piece=MIB):
        for at in range(0, self.size, piece):
            want = self.model[at:at + piece]
            got = self.read(at // PAGE, len(want) // PAGE)
            if got != want:
                bad = [i for i in range(len(want) // PAGE)
                       if got[i * PAGE:(i + 1) * PAGE] != want[i * PAGE:(i + 1) * PAGE]]
                pytest.fail(f"pages {[at // PAGE + b for b in bad][:8]} are wrong")


@pytest.fixture(params=["tcp", "shm"])
def transport(request):
    return request.param


only_tcp = pytest.mark.parametrize("transport", ["tcp"])
only_shm = pytest.mark.parametrize("transport", ["shm"])


@pytest.fixture
def place(transport, tmp_path):
    """place() is where a donor may listen, as keywords of donor_at."""
    numbers = itertools.count()

    def make():
        if transport == "tcp":
            return {"port": free_port()}
        return {"path": tmp_path / f"donor{next(numbers)}.sock"}
    return make


@pytest.fixture
def donor_at(donor_factory, place):
    """donor_at(**what) starts a donor at a place of its own, or at place()'s."""
    def make(**what):
        if not {"port", "path"} & set(what):
            what.update(place())
        return donor_factory(slab="1M", memory=what.pop("memory", "48M"), **what)
    return make


@pytest.fixture
def server(tmp_path, logs):
    made = []

    def make(*donors, **what):
        made.append(Server(tmp_path, logs / f"swapd{len(made)}.log", donors, **what))
        return made[-1]

    yield make
    for s in made:
        s.stop()
        assert not os.path.ismount(s.mount)


@pytest.fixture
def pages():
    made = []

    def make(server, **what):
        made.append(Pages(server, **what))
        return made[-1]

    yield make
    for p in made:
        p.close()


# Fixtures end in the reverse order of their set-up: files close before servers
# stop, servers stop before donors.
@pytest.fixture
def world(donor_at, server, pages, place, transport):
    class World:
        donor, serve, open = staticmethod(donor_at), staticmethod(server), staticmethod(pages)
        new_place, shm = staticmethod(place), transport == "shm"
    return World


def test_every_byte_comes_back_from_the_donor(world):
    s = world.serve(world.donor())
    p = world.open(s)
    p.check()
    assert s.stats()["pages_read_zero"] == p.size // PAGE
    p.write_random(300)
    p.check()
    p.check(piece=24 * PAGE)
    told = s.stats()
    assert told["pages_read_donor"] > 300
    assert told["pages_read_backup"] == 0
    assert told["pages_written_backup_only"] == 0
    assert told["donor_losses"] == told["fuse_errors"] == told["waiting"] == 0


def test_requests_across_slabs_and_sources(world):
    """One read of zeroes and donor pages of two slabs."""
    s = world.serve(world.donor())
    p = world.open(s)
    edge = SLAB // PAGE
    p.write(edge - 3, os.urandom(5 * PAGE))
    p.write(edge + 10, os.urandom(PAGE))
    assert p.read(edge - 20, 60) == p.model[(edge - 20) * PAGE:(edge + 40) * PAGE]
    assert s.stats()["slabs_mapped"] == 2


def test_a_slab_is_mapped_by_its_first_write(world):
    s = world.serve(world.donor())
    p = world.open(s)
    p.read(0, 1)
    assert s.status()["slabs"]["mapped"] == 0
    p.write(0, os.urandom(PAGE))
    assert s.status()["slabs"] == {"total": 32, "unmapped": 31, "mapping": 0, "mapped": 1, "lost": 0}


def test_through_a_loop_device(world):
    """What swap is going to be on: direct I/O, many requests at a time."""
    s = world.serve(world.donor())
    loop = subprocess.run(["/sbin/losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show",
                           s.file], check=True, capture_output=True, text=True).stdout.strip()
    try:
        assert s.status()["open"] == 1
        data = random.Random(3).randbytes(32 * MIB)
        fd = os.open(loop, os.O_RDWR | os.O_DIRECT)
        try:
            with mmap.mmap(-1, len(data)) as buf:
                buf[:] = data
                assert os.pwritev(fd, [buf], 0) == len(data)
            with mmap.mmap(-1, len(data)) as buf:
                assert os.preadv(fd, [buf], 0) == len(data)
                assert hashlib.sha256(buf).digest() == hashlib.sha256(data).digest()
        finally:
            os.close(fd)
        # SIGTERM is refused while somebody has the file open.
        s.signal(signal.SIGTERM)
        wait_for(lambda: "in use" in machine.read(s.log), 10, "refusal in the log")
        assert s.alive() and s.status()["open"] == 1
    finally:
        subprocess.run(["/sbin/losetup", "-d", loop], check=True)


def hammer(p, first, count, seed, stop, errors):
    """Writes and checks pages of its own until told to stop."""
    rnd = random.Random(seed)
    model = bytearray(count * PAGE)
    buf = mmap.mmap(-1, 32 * PAGE)
    try:
        while not stop.is_set():
            n = rnd.randint(1, 32)
            at = rnd.randrange(count - n)
            view = memoryview(buf)[:n * PAGE]
            if rnd.random() < 0.5:
                view[:] = rnd.randbytes(n * PAGE)
                assert os.pwritev(p.fd, [view], (first + at) * PAGE) == n * PAGE
                model[at * PAGE:(at + n) * PAGE] = view
            else:
                assert os.preadv(p.fd, [view], (first + at) * PAGE) == n * PAGE
                assert view == model[at * PAGE:(at + n) * PAGE], f"pages {first + at} + {n}"
            view.release()
    except (OSError, AssertionError) as e:
        errors.append(e)


def hammer_all(p, seconds, meanwhile=lambda: None, threads=6):
    stop, errors = threading.Event(), []
    each = p.size // PAGE // threads
    crew = [threading.Thread(target=hammer, args=(p, i * each, each, i, stop, errors))
            for i in range(threads)]
    for t in crew:
        t.start()
    try:
        time.sleep(seconds / 2)
        meanwhile()
        time.sleep(seconds / 2)
    finally:
        stop.set()
        for t in crew:
            t.join(60)
    assert not any(t.is_alive() for t in crew)
    assert not errors, errors[0]


def test_concurrent_requests(world):
    s = world.serve(world.donor())
    hammer_all(world.open(s), 3)
    told = s.stats()
    assert told["pages_read_backup"] == told["donor_losses"] == 0


def test_overlapping_requests_are_not_torn(world):
    """Eight writers of one range: whoever is last, a reader sees one of them whole."""
    s = world.serve(world.donor())
    p, stop, errors = world.open(s), threading.Event(), []

    def write(value):
        with mmap.mmap(-1, 16 * PAGE) as buf:
            buf[:] = bytes([value]) * len(buf)
            while not stop.is_set():
                os.pwritev(p.fd, [buf], 40 * PAGE)

    crew = [threading.Thread(target=write, args=(i + 1,)) for i in range(8)]
    for t in crew:
        t.start()
    try:
        # The file's own lock may order direct writes; reads it does not hold back.
        for _ in range(400):
            got = set(p.read(40, 16))
            if len(got) != 1:
                errors.append(got)
    finally:
        stop.set()
        for t in crew:
            t.join()
    assert not errors, errors[0]
    # One that needs no time may be through before the next is read.
    assert s.stats()["conflicts"] > 0 or world.shm


def test_killed_donor_costs_no_byte(world):
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    p.write_random(300)
    donor.kill()
    p.check()
    told = s.stats()
    assert told["donor_losses"] == 1
    assert told["pages_read_backup"] > 300
    assert s.status()["slabs"]["lost"] > 0
    # Without a donor the device goes on, from the disk.
    p.write_random(50)
    p.check()
    assert s.stats()["pages_written_backup_only"] > 50


def test_donor_killed_under_load(world):
    donor = world.donor()
    s = world.serve(donor)
    hammer_all(world.open(s), 4, meanwhile=donor.kill)
    told = s.stats()
    assert told["donor_losses"] == 1 and told["pages_read_backup"] > 0
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


def test_new_donor_is_used_again(world):
    at = world.new_place()
    first = world.donor(**at)
    s = world.serve(first)
    p = world.open(s)
    p.write_random(100)
    first.kill()
    wait_for(lambda: s.donor_state() != "up", 5, "loss")
    world.donor(**at)
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    # Old pages are on the disk only; what is written now is at the donor.
    p.write(0, os.urandom(MIB))
    before = s.stats()
    assert p.read(0, MIB // PAGE) == p.model[:MIB]
    after = s.stats()
    assert after["pages_read_donor"] - before["pages_read_donor"] == MIB // PAGE
    assert after["pages_read_backup"] == before["pages_read_backup"]
    p.check()
    assert s.status()["donors"][0]["connects"] == 2


def test_donor_flapping_under_load(world):
    """Lost and found several times, and no page is ever old."""
    at = world.new_place()
    donors = [world.donor(**at)]
    s = world.serve(donors[0])

    def flap():
        for _ in range(4):
            donors[-1].kill()
            donors.append(world.donor(**at))
            wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
            time.sleep(0.3)

    hammer_all(world.open(s), 2, meanwhile=flap)
    told = s.stats()
    assert told["donor_losses"] == 4
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


@only_tcp
def test_stopped_donor_is_lost_at_the_deadline(world):
    donor = world.donor()
    s = world.serve(donor, options=["--deadline", "300ms"])
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    donor.signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert p.read(0, 256) == p.model[:MIB]
        took = time.monotonic() - start
        assert 0.25 < took < 3
        p.write(10, os.urandom(PAGE))
    finally:
        donor.signal(signal.SIGCONT)
    # What the old connection still had on its way must not show.
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    p.write(300, os.urandom(MIB))
    p.check()
    assert s.stats()["donor_losses"] == 1


@only_shm
def test_stopped_donor_is_lost_by_its_silence(world):
    """Until then its pages are as good as ever, and nothing waits for it."""
    donor = world.donor()
    s = world.serve(donor, options=["--deadline", "300ms"])
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    donor.signal(signal.SIGSTOP)
    try:
        p.write(10, os.urandom(PAGE))
        assert p.read(0, 256) == p.model[:MIB]
        assert s.stats()["pages_read_backup"] == 0
        wait_for(lambda: s.donor_state() != "up", 5, "loss")
        assert p.read(0, 256) == p.model[:MIB]
        assert s.stats()["pages_read_backup"] == 256
    finally:
        donor.signal(signal.SIGCONT)
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    p.write(300, os.urandom(MIB))
    p.check()
    assert s.stats()["donor_losses"] == 1


def test_two_donors_share_and_one_is_enough(world):
    a, b = world.donor(), world.donor()
    s = world.serve(a, b)
    p = world.open(s)
    for i in range(32):
        p.write(i * 256, os.urandom(16 * PAGE))
    held = [d["slabs"] for d in s.status()["donors"]]
    assert sum(held) == 32 and min(held) >= 12, "two choices keep equal donors level"
    a.kill()
    p.check()
    wait_for(lambda: s.donor_state(0) != "up", 5, "loss")
    # New homes for what is written again.
    p.write_random(40, most=8)
    p.check()
    assert s.status()["donors"][1]["slabs"] > held[1]


def test_full_donor(world):
    """What does not fit at the donor lives on the disk; nothing fails."""
    s = world.serve(world.donor(memory="4M"))
    p = world.open(s)
    for i in range(32):
        p.write(i * 256, os.urandom(32 * PAGE))
    p.check()
    told = s.stats()
    assert told["slabs_mapped"] == 4
    assert told["pages_written_backup_only"] == 28 * 32
    assert told["donor_losses"] == 0


def test_failing_backup_disk(world):
    """Served from the donor meanwhile; afterwards an error, never an old page."""
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    p.write(2048, os.urandom(MIB))
    wait_for(lambda: not s.status()["backup"]["queue"], 10, "backup")
    # Nothing beyond 4 MiB can be written any more: what a full disk looks like.
    resource.prlimit(s.pid, resource.RLIMIT_FSIZE, (4 * MIB, resource.RLIM_INFINITY))
    p.write(10, os.urandom(PAGE))
    p.write(2050, os.urandom(4 * PAGE))
    p.check()
    wait_for(lambda: s.status()["backup"]["failing"], 10, "report")
    assert s.stats()["pages_read_backup"] == 0
    wait_for(lambda: "pages are safe at the donors only" in machine.read(s.log), 5, "log line")
    donor.kill()
    assert p.read(0, 256) == p.model[:MIB]
    with pytest.raises(OSError):
        p.read(2052, 1)
    assert p.read(2054, 8) == p.model[2054 * PAGE:2062 * PAGE]
    with pytest.raises(OSError):
        p.write(3000, os.urandom(PAGE))
    # The disk recovers, and a page that is written again is as good as any.
    resource.prlimit(s.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    p.write(2050, os.urandom(4 * PAGE))
    p.write(3000, os.urandom(PAGE))
    p.check()


@only_tcp
def test_delay_is_seen_in_every_read(world):
    s = world.serve(world.donor(delay="5ms"))
    p = world.open(s)
    p.write(0, os.urandom(4 * MIB))
    start = time.monotonic()
    for i in range(20):
        p.read(i * 3, 1)
    assert time.monotonic() - start >= 20 * 0.005
    histogram = s.stats()["donor_read_ns_log2"]
    assert sum(histogram) == 20
    assert sum(histogram[:22]) == 0, "4.2 ms is the 22nd bucket's lower bound"


@only_tcp
def test_delays_do_not_add_up(world):
    """Sixteen pipelined requests are held back together, not one after the other."""
    s = world.serve(world.donor(delay="150ms"))
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    crew = [threading.Thread(target=lambda i=i: p.read(i * 16, 16)) for i in range(16)]
    start = time.monotonic()
    for t in crew:
        t.start()
    for t in crew:
        t.join()
    assert 0.15 <= time.monotonic() - start < 16 * 0.15 / 2


# --- what is refused -----------------------------------------------------------------


def refused(tmp_path, status, *words, drop=(), **changed):
    """ebb-swapd with @changed options ends with @status, says @words, leaves nothing."""
    (tmp_path / "mnt").mkdir(exist_ok=True)
    options = {"name": "dp0", "size": "32M", "slab": "1M", "donor": "127.0.0.1:1",
               "backup": str(tmp_path / "backup"), "mount": str(tmp_path / "mnt"), **changed}
    argv = [str(BIN / "ebb-swapd")]
    for key, value in options.items():
        if key not in drop:
            argv += [f"--{key}", value]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=30,
                          env={**os.environ, "EBB_RUN_DIR": str(tmp_path / "run")})
    assert done.returncode == status, done.stderr
    for word in words:
        assert word in done.stderr
    assert not os.path.ismount(tmp_path / "mnt")
    assert not (tmp_path / "backup").exists()
    assert not list((tmp_path / "run" / "devices").glob("*.sock"))
    return done.stderr


def test_refused_connection(tmp_path):
    port = free_port()
    refused(tmp_path, 1, f"donor 127.0.0.1:{port}: Connection refused; start ebb-donord",
            donor=f"127.0.0.1:{port}")


def test_bad_options(tmp_path):
    refused(tmp_path, 2, "12Q", size="12Q")
    refused(tmp_path, 2, "whole pages", size="1000001")
    refused(tmp_path, 2, "--slab", slab="64K")
    refused(tmp_path, 2, "HOST:PORT", donor="127.0.0.1:99999")
    refused(tmp_path, 2, "--donor: not given", drop=("donor",))
    refused(tmp_path, 2, "Bad Name", name="Bad Name")


@only_tcp
def test_missing_mount_directory(tmp_path, donor_at):
    gone = str(tmp_path / "no such")
    refused(tmp_path, 1, f"mount {gone}: No such file", "create", donor=donor_at().address, mount=gone)


@only_tcp
def test_missing_backup_directory(tmp_path, donor_at):
    refused(tmp_path, 1, "backup", "create its directory", donor=donor_at().address,
            backup=str(tmp_path / "no such" / "backup"))


@only_tcp
def test_backup_without_space(tmp_path, donor_at):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "ebb-test", small], check=True)
    try:
        refused(tmp_path, 1, "32.0 MiB are needed", "16.0 MiB", donor=donor_at().address,
                backup=str(small / "backup"))
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)


def test_donor_with_smaller_slabs(tmp_path, donor_at):
    refused(tmp_path, 1, "slabs are smaller", donor=donor_at().address, slab="2M")


@only_tcp
def test_second_server_of_a_name(world, tmp_path):
    s = world.serve(world.donor())
    done = subprocess.run([*map(str, s.argv_made)], text=True, capture_output=True, timeout=30,
                          env={**os.environ, "EBB_RUN_DIR": str(s.run)})
    assert done.returncode == 5 and "another ebb-swapd" in done.stderr
    # The first goes on as if nothing had been.
    assert s.status()["ok"] and os.path.ismount(s.mount) and s.backup.exists()


@only_tcp
def test_backup_file_of_another_server(world, tmp_path):
    s = world.serve(world.donor())
    argv = ["dp1" if a == "dp0" else str(a) for a in s.argv_made]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=30,
                          env={**os.environ, "EBB_RUN_DIR": str(s.run)})
    assert done.returncode == 1 and "in use by another ebb-swapd" in done.stderr
    assert s.backup.exists()


def test_daemon_in_the_background(donor_at, tmp_path):
    """Without --foreground the command returns when the file is there."""
    (tmp_path / "mnt").mkdir()
    subprocess.run([BIN / "ebb-swapd", "--name", "dp0", "--size", "32M", "--slab", "1M",
                    "--donor", donor_at().address, "--backup", tmp_path / "backup",
                    "--mount", tmp_path / "mnt"], check=True, timeout=30, stderr=subprocess.DEVNULL,
                   env={**os.environ, "EBB_RUN_DIR": str(tmp_path / "run")})
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(tmp_path / "run/devices/dp0.sock"))
        sock.sendall(b'{"verb":"status"}\n')
        pid = json.loads(sock.makefile().readline())["pid"]
    assert (tmp_path / "mnt/swap").stat().st_size == 32 * MIB
    assert machine.read(f"/proc/{pid}/cmdline").startswith("@"), "systemd-shutdown spares it"
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: pid not in machine.processes(), 10, "end")
    assert not os.path.ismount(tmp_path / "mnt")
    assert not (tmp_path / "backup").exists()
    assert not list((tmp_path / "run/devices").iterdir())


def test_killed_server_leaves_io_errors_not_a_hang(world, tmp_path):
    """No swap is on: the kernel ends the connection with the server."""
    s = world.serve(world.donor())
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    s.kill()
    with pytest.raises(OSError):
        p.read(0, 1)
    p.close()
    subprocess.run(["umount", s.mount], check=True)
    s.backup.unlink()


def test_abort_turns_waiting_into_errors(world):
    """What `ebbctl device abort` does; the server ends by itself and says so."""
    s = world.serve(world.donor())
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    number = s.status()["fuse_connection"]
    with open(f"/sys/fs/fuse/connections/{number}/abort", "w") as f:
        f.write("1")
    with pytest.raises(OSError):
        p.read(0, 1)
    assert s.process.wait(10) == 1
    assert "aborted" in machine.read(s.log)


def test_watchdog_aborts_a_stopped_server(world):
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "1s"])
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    assert s.status()["watchdog"]
    # Should the watchdog fail, this test still ends.
    rescue = threading.Timer(20, s.signal, [signal.SIGCONT])
    rescue.start()
    s.signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(OSError):
            p.read(0, 1)
        assert 0.8 < time.monotonic() - start < 15
    finally:
        rescue.cancel()
        s.signal(signal.SIGCONT)
    assert s.process.wait(10) == 1


def test_watchdog_leaves_a_stopped_idle_server_alone(world):
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "500ms"])
    s.signal(signal.SIGSTOP)
    time.sleep(1.5)
    s.signal(signal.SIGCONT)
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    p.check()
    assert not s.status()["aborted"]


def test_idle_server_is_not_aborted(world):
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "500ms"])
    time.sleep(2)
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    p.check()
    assert not s.status()["aborted"]


def test_unaligned_requests_are_refused(world):
    s = world.serve(world.donor())
    p = world.open(s)
    with pytest.raises(OSError):
        os.pwrite(p.fd, b"x" * 512, 512)
    with pytest.raises(OSError):
        os.pwrite(p.fd, b"x" * PAGE, p.size)
    assert os.pread(p.fd, PAGE, p.size) == b""
    p.check()


# --- strangers and bad frames at the donor ---------------------------------------------

HELLO, MAP, UNMAP, READ, WRITE, PING = range(1, 7)


def frame(op, tag=0, slab=0, generation=0, offset=0, length=0, magic=b"EBB1", direction=0, status=0):
    return magic + struct.pack("<BBHQIIII", op, direction, status, tag, slab, generation, offset, length)


def hello(version=1, borrower=1, slab=SLAB, name=b"tester"):
    return frame(HELLO, length=48) + struct.pack("<IIQQ24s", version, 0, borrower, slab, name)


def connect(donor):
    host, port = donor.address.split(":")
    if host == "unix":
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(5)
        s.connect(port)
        return s
    return socket.create_connection((host, int(port)), timeout=5)


def receive(s, n):
    got = b""
    while len(got) < n:
        piece = s.recv(n - len(got))
        if not piece:
            raise EOFError
        got += piece
    return got


def reply(s):
    head = struct.unpack("<4sBBHQIIII", receive(s, 32))
    keys = ("magic", "op", "direction", "status", "tag", "slab", "generation", "offset", "length")
    r = dict(zip(keys, head))
    has = r["op"] in (HELLO, PING, READ) and not r["status"]
    r["payload"] = receive(s, r["length"]) if has else b""
    return r


def closed(s):
    """Whether the donor hung up."""
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


MALFORMED = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "magic": hello()[:0] + frame(PING, magic=b"EBB2"),
    "opcode": frame(99),
    "direction": frame(PING, direction=1),
    "status": frame(PING, status=1),
    "oversized": frame(WRITE, length=2 * MIB),
    "huge": frame(WRITE, length=0xfffff000),
    "unaligned": frame(READ, length=100),
    "hello length": frame(HELLO, length=4000),
    "map length": frame(MAP, length=0),
}


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("greeted", [False, True])
def test_malformed_frames_close_the_connection(donor_at, kind, greeted):
    donor = donor_at()
    with connect(donor) as s:
        if greeted:
            s.sendall(hello())
            assert reply(s)["status"] == 0
        s.sendall(MALFORMED[kind])
        assert closed(s)
    wait_for(lambda: "malformed frame" in machine.read(donor.log), 5, "log line")
    with connect(donor) as s:
        s.sendall(hello())
        assert reply(s)["status"] == 0, "others are served"


def test_requests_are_checked(donor_at):
    donor = donor_at(memory="2M")
    with connect(donor) as s:
        s.sendall(hello(version=9))
        assert reply(s)["status"] == 1
        s.sendall(hello(slab=1 << 40))
        assert reply(s)["status"] == 2
        s.sendall(hello())
        told = reply(s)
        assert struct.unpack("<IIQQQ", told["payload"]) == (1, 0, MIB, 2 * MIB, 2 * MIB)
        s.sendall(hello())
        assert reply(s)["status"] == 3
        s.sendall(frame(MAP, length=8) + struct.pack("<II", 1, 0))
        assert reply(s)["status"] == 4, "heap slabs are not served"
        s.sendall(frame(READ, slab=0, length=PAGE))
        assert reply(s)["status"] == 6, "not mapped"
        s.sendall(frame(MAP, tag=5, length=8) + bytes(8))
        mine = reply(s)
        assert (mine["status"], mine["tag"]) == (0, 5)
        where = {"slab": mine["slab"], "generation": mine["generation"]}
        s.sendall(frame(WRITE, **where, offset=SLAB - PAGE, length=PAGE) + b"w" * PAGE)
        assert reply(s)["status"] == 0
        s.sendall(frame(READ, **where, offset=SLAB - PAGE, length=PAGE))
        assert reply(s)["payload"] == b"w" * PAGE
        s.sendall(frame(WRITE, **where, offset=SLAB - PAGE, length=2 * PAGE) + b"x" * 2 * PAGE)
        assert reply(s)["status"] == 8, "beyond the end; its payload is skipped"
        stale = {**where, "generation": where["generation"] ^ 1}
        s.sendall(frame(READ, **stale, length=PAGE))
        assert reply(s)["status"] == 7
        # Another connection cannot reach it.
        with connect(donor) as other:
            other.sendall(hello(borrower=2))
            reply(other)
            other.sendall(frame(READ, **where, offset=SLAB - PAGE, length=PAGE))
            assert reply(other)["status"] == 6
            other.sendall(frame(MAP, length=8) + bytes(8))
            assert reply(other)["status"] == 0
            other.sendall(frame(MAP, length=8) + bytes(8))
            assert reply(other)["status"] == 5, "nothing left"


def test_memory_is_zeroed_between_borrowers(donor_at):
    donor = donor_at(memory="1M")
    for borrower in (1, 2):
        with connect(donor) as s:
            s.sendall(hello(borrower=borrower))
            reply(s)
            wait_for(lambda: s.sendall(frame(MAP, length=8) + bytes(8)) or not
                     (last := reply(s))["status"] and [last], 5, "a slab")
            s.sendall(frame(PING))
            assert struct.unpack("<IIQQQ", reply(s)["payload"])[4] == 0
            # Generations are given in order, so the last one is what the log calls.
            s.sendall(frame(UNMAP, slab=0, generation=0))
            assert reply(s)["status"] == 7
    with connect(donor) as s:
        s.sendall(hello(borrower=3))
        reply(s)
        def take():
            s.sendall(frame(MAP, length=8) + bytes(8))
            r = reply(s)
            return r if not r["status"] else None
        mine = wait_for(take, 5, "a slab")
        where = {"slab": mine["slab"], "generation": mine["generation"]}
        s.sendall(frame(WRITE, **where, length=MIB) + b"s" * MIB)
        assert reply(s)["status"] == 0
        s.sendall(frame(UNMAP, **where))
        assert reply(s)["status"] == 0
        again = wait_for(take, 5, "a slab")
        assert again["generation"] != mine["generation"]
        s.sendall(frame(READ, slab=again["slab"], generation=again["generation"], length=MIB))
        assert reply(s)["payload"] == bytes(MIB)
        s.sendall(frame(READ, **where, length=PAGE))
        assert reply(s)["status"] == 7, "the old loan is void"


def test_a_new_connection_fences_the_old(donor_at):
    donor = donor_at()
    with connect(donor) as old, connect(donor) as new:
        old.sendall(hello(borrower=77))
        assert reply(old)["status"] == 0
        new.sendall(hello(borrower=77))
        assert reply(new)["status"] == 0
        assert closed(old)


def test_random_bytes_do_not_harm_the_donor(donor_at):
    donor = donor_at()
    rnd = random.Random(11)
    for _ in range(200):
        with connect(donor) as s:
            s.sendall(hello())
            reply(s)
            junk = bytearray(frame(rnd.randint(0, 8), tag=rnd.getrandbits(64), slab=rnd.randint(0, 3),
                                   offset=rnd.choice((0, PAGE, 1)), length=rnd.choice((0, PAGE, 8, MIB))))
            for _ in range(rnd.randint(0, 6)):
                junk[rnd.randrange(len(junk))] = rnd.getrandbits(8)
            try:
                s.sendall(bytes(junk) + rnd.randbytes(rnd.randint(0, 6000)))
            except OSError:
                pass
    assert donor.alive()
    with connect(donor) as s:
        s.sendall(hello())
        assert reply(s)["status"] == 0


def donord(*argv):
    return subprocess.run([BIN / "ebb-donord", *argv], text=True, capture_output=True, timeout=30)


@only_shm
def test_what_was_handed_over_is_not_lent_again(donor_at):
    """A borrower that keeps its mapping can neither see nor reach the next one's pages."""
    donor = donor_at(memory="1M")

    def borrow(s, borrower):
        s.sendall(hello(borrower=borrower))
        assert reply(s)["status"] == 0

        def take():
            s.sendall(frame(MAP, length=8) + bytes(8))
            head, fds, _, _ = socket.recv_fds(s, 32, 4)
            status = struct.unpack_from("<H", head, 6)[0]
            assert len(fds) == (status == 0)
            return fds or None
        fd, = wait_for(take, 5, "a slab")
        try:
            with pytest.raises(OSError):
                os.ftruncate(fd, PAGE)
            return mmap.mmap(fd, MIB)
        finally:
            os.close(fd)

    with connect(donor) as s:
        kept = borrow(s, 1)
        assert kept[:] == bytes(MIB)
        kept[:] = b"1" * MIB
    with connect(donor) as s, borrow(s, 2) as mine, kept:
        assert mine[:] == bytes(MIB)
        kept[:] = b"x" * MIB
        assert mine[:] == bytes(MIB)
        mine[:] = b"2" * MIB
        assert kept[:] == b"x" * MIB


@only_shm
def test_donor_is_for_its_own_user(donor_at):
    donor = donor_at()
    os.chmod(donor.address.removeprefix("unix:"), 0o666)
    os.chmod(Path(donor.address.removeprefix("unix:")).parent, 0o755)
    stranger = subprocess.run(
        ["/usr/bin/python3", "-c", "import os, socket, sys; s = socket.socket(socket.AF_UNIX); "
         "os.chdir(sys.argv[1]); os.setuid(65534); s.connect('./' + sys.argv[2]); "
         "print(s.recv(1))", *os.path.split(donor.address.removeprefix("unix:"))],
        text=True, capture_output=True, timeout=30)
    assert stranger.stdout == "b''\n", stranger
    wait_for(lambda: "its own user only" in machine.read(donor.log), 5, "log line")


def test_one_donor_two_transports(donor_factory, server, pages, tmp_path):
    """Both kinds of borrower at one donor, whose memory is then shared memory for both."""
    donor = donor_factory(slab="1M", memory="48M", path=tmp_path / "donor.sock",
                          also=[f"127.0.0.1:{free_port()}"])
    s = server(donor.also[0])
    p = pages(s)
    p.write_random(100)
    p.check()
    assert s.status()["donors"][0]["transport"] == "tcp"
    with connect(donor) as other:
        other.sendall(hello(borrower=5))
        assert reply(other)["status"] == 0


@only_shm
def test_shared_pages_are_locked_on_both_sides(world):
    """Shared memory can be swapped out but for a lock; the borrower's outlives the donor's."""
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    p.write(0, os.urandom(3 * MIB))

    def slabs(pid):
        """Locked KiB and all KiB of each mapped slab."""
        out, name = [], ""
        for line in machine.read(f"/proc/{pid}/smaps").splitlines():
            key, _, rest = line.partition(":")
            if "-" in line.split()[0] and ":" not in line.split()[0]:
                name = line
            elif "ebb-slab" in name and key in ("Size", "Rss", "Locked"):
                out.append((key, int(rest.split()[0])))
        return out
    for pid, count in ((s.pid, 3), (donor.pid, 48)):
        told = slabs(pid)
        assert [v for k, v in told if k == "Size"] == [1024] * count
        assert [v for k, v in told if k == "Rss"] == [1024] * count
        assert all(v for k, v in told if k == "Locked")
    mapped = len(slabs(s.pid))
    donor.kill()
    wait_for(lambda: s.donor_state() != "up", 5, "loss")
    assert mapped and not slabs(s.pid), "a lost donor's memory is let go"
    p.check()


def test_donor_refuses(donor_at):
    done = donord("--listen", "0.0.0.0:7070", "--memory", "64M")
    assert done.returncode == 5 and "not a loopback address" in done.stderr
    done = donord("--memory", "12Q")
    assert done.returncode == 2 and "12Q" in done.stderr
    done = donord()
    assert done.returncode == 2 and "--memory 4G" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "64M", "--slab", "64K")
    assert done.returncode == 2 and "1M to 1G" in done.stderr
    done = donord("--listen", "127.0.0.1:0", "--memory", "1M", "--slab", "2M")
    assert done.returncode == 2 and "not even one slab" in done.stderr
    taken = donor_at()
    done = donord("--listen", taken.address, "--memory", "2M", "--slab", "1M")
    assert done.returncode == 1 and "stop what listens there" in done.stderr


# --- strangers at the borrower ----------------------------------------------------------


class FakeDonor(threading.Thread):
    """Answers HELLO and MAP properly and READ as @mutate says."""

    def __init__(self, mutate):
        super().__init__(daemon=True)
        self.mutate, self.memory = mutate, {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            with s:
                try:
                    self.serve(s)
                except (EOFError, OSError):
                    pass

    def serve(self, s):
        info = struct.pack("<IIQQQ", 1, 0, SLAB, 64 * MIB, 64 * MIB)
        while True:
            h = struct.unpack("<4sBBHQIIII", receive(s, 32))
            op, tag, slab, generation, offset, length = h[1], *h[4:9]
            if op in (HELLO, PING):
                receive(s, length)
                s.sendall(frame(op, tag, direction=1, length=32) + info)
            elif op == MAP:
                receive(s, length)
                s.sendall(frame(op, tag, slab=tag & 0xffff, generation=1, direction=1))
            elif op == WRITE:
                self.memory[slab, offset] = receive(s, length)
                s.sendall(frame(op, tag, slab, generation, offset, length, direction=1))
            elif op == READ:
                data = self.memory[slab, offset]
                s.sendall(self.mutate(frame(op, tag, slab, generation, offset, length, direction=1), data))

    def stop(self):
        self.listener.close()


BAD_REPLIES = {
    "magic": lambda h, d: b"XXXX" + h[4:] + d,
    "length": lambda h, d: h[:28] + struct.pack("<I", 2 * MIB) + d,
    "status": lambda h, d: h[:6] + struct.pack("<H", 7) + h[8:],
    "unknown status": lambda h, d: h[:6] + struct.pack("<H", 700) + h[8:],
    "as a request": lambda h, d: h[:5] + b"\0" + h[6:] + d,
    "another tag, then nothing": lambda h, d: h[:8] + bytes([h[8] ^ 1]) + h[9:] + d,
    "another generation": lambda h, d: h[:20] + b"\xff" + h[21:] + d,
    "a longer payload": lambda h, d: h[:28] + struct.pack("<I", len(d) + PAGE) + d + bytes(PAGE),
    "hang up in the middle": lambda h, d: h + d[:100],
}


@only_tcp
@pytest.mark.parametrize("kind", BAD_REPLIES)
def test_a_donor_that_lies_is_lost_and_nobody_notices(world, kind):
    fake = FakeDonor(BAD_REPLIES[kind])
    try:
        s = world.serve(fake, options=["--deadline", "200ms"])
        p = world.open(s)
        p.write(0, os.urandom(8 * PAGE))
        assert p.read(0, 8) == p.model[:8 * PAGE]
        told = s.stats()
        assert told["donor_losses"] >= 1
        assert told["pages_read_backup"] == 8
    finally:
        fake.stop()
