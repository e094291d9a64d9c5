# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebb-swapd and ebb-donord by their file: what is written to DIR/swap is read back, byte
for byte, whatever happens to the donor.  No swap is on here, so donors may be killed.
"""
import hashlib
import itertools
import json
import mmap
import os
import random
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

import machine
from dataplane import MIB, PAGE, SLAB, only_shm, only_tcp
from dataplane import donor_at, pages, place, server, transport, world    # fixtures
from machine import BIN, wait_for
from parts import noted
from ports import free_port

pytestmark = pytest.mark.beside


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


@only_tcp
@pytest.mark.parametrize("durability, slots", [("none", 29), ("disk", 66)])
def test_locked_memory(world, durability, slots):
    """As in ebb-swapd(8): for requests, 15 MiB of libraries and tables, 3 of its own; 0.3 for the size."""
    s = world.serve(world.donor(), durability=durability)
    wait_for(s.ready, 20, "a standby")
    told = [machine.read(f"/proc/{pid}/status") for pid in (s.pid, *s.children())]
    kib = [int(re.search(r"VmRSS:\s+(\d+)", text)[1]) for text in told]
    assert len(kib) == 3 and slots << 10 < max(kib) < (slots + 24) << 10, kib


def test_memory_that_is_not_aligned(world):
    """Direct I/O from and to the middle of pages, of the largest requests and of more."""
    s = world.serve(world.donor())
    fd = os.open(s.file, os.O_RDWR | os.O_DIRECT)
    try:
        for size in 32 * PAGE, 33 * PAGE, 2 * MIB:
            memory = memoryview(mmap.mmap(-1, 2 * size + PAGE))
            written, found = memory[512:512 + size], memory[size + 1024:2 * size + 1024]
            written[:] = os.urandom(size)
            assert os.pwritev(fd, [written], 5 * PAGE) == size
            assert os.preadv(fd, [found], 5 * PAGE) == size and found == written
    finally:
        os.close(fd)


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
    assert s.status()["slabs"] == {"total": 32, "unmapped": 31, "mapping": 0, "mapped": 1, "away": 0, "lost": 0}


def test_through_a_loop_device(world):
    """What swap is going to be on: direct I/O, many requests at a time."""
    s = world.serve(world.donor())
    loop = subprocess.run(["/sbin/losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show",
                           s.file], check=True, capture_output=True, text=True).stdout.strip()
    try:
        assert s.status()["open"] == 1
        data = os.urandom(32 * MIB)
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
    model = bytearray(p.model[first * PAGE:(first + count) * PAGE])
    buf = mmap.mmap(-1, 32 * PAGE)
    try:
        while not stop.is_set():
            n = rnd.randint(1, 32)
            at = rnd.randrange(count - n)
            view = memoryview(buf)[:n * PAGE]
            if rnd.random() < 0.5:
                view[:] = p.content(n * PAGE)
                assert os.pwritev(p.fd, [view], (first + at) * PAGE) == n * PAGE
                model[at * PAGE:(at + n) * PAGE] = view
            else:
                assert os.preadv(p.fd, [view], (first + at) * PAGE) == n * PAGE
                assert buf[:n * PAGE] == model[at * PAGE:(at + n) * PAGE], f"pages {first + at} + {n}"
            view.release()
            # Leaves processor time to those that answer.
            time.sleep(0.002)
    except Exception as e:
        errors.append(e)


@contextmanager
def load(p, threads=4):
    """Writers that check what they read, each on its part of the file."""
    stop, errors = threading.Event(), []
    each = p.size // PAGE // threads
    crew = [threading.Thread(target=hammer, args=(p, i * each, each, i, stop, errors))
            for i in range(threads)]
    for t in crew:
        t.start()
    try:
        yield errors
    finally:
        stop.set()
        for t in crew:
            t.join(60)
    assert not any(t.is_alive() for t in crew), "a request was never answered"
    assert not errors, errors[0]


def hammer_all(p, seconds, meanwhile=lambda: None):
    with load(p, threads=6):
        time.sleep(seconds / 2)
        meanwhile()
        time.sleep(seconds / 2)


def test_concurrent_requests(world):
    s = world.serve(world.donor())
    hammer_all(world.open(s), 3)
    told = s.stats()
    assert told["pages_read_backup"] == told["donor_losses"] == 0


@only_tcp
def test_small_reads_pass_large_ones(world):
    """Eight read 64 pages at a time, as prefetches do, and one a page, as a miss does."""
    s = world.serve(world.donor())
    p, stop, wrong, errors, reads = world.open(s), threading.Event(), [], [], [0] * 8
    for page in range(0, 512, 64):
        p.write(page, p.content(64 * PAGE))

    def read(i):
        while not stop.is_set():
            if p.read(64 * i, 64) != p.model[64 * i * PAGE:64 * (i + 1) * PAGE]:
                wrong.append(i)
            reads[i] += 1

    def passed():
        told = s.stats()
        return told["large_reads_held"] > 50 and told["overtakes"] > 2 and min(reads) > 5

    crew = [threading.Thread(target=noted, args=(errors, read, i)) for i in range(8)]
    for t in crew:
        t.start()
    try:
        end = time.monotonic() + 60
        while not passed() and time.monotonic() < end:
            for page in range(0, 512, 8):
                if p.read(page, 1) != p.model[page * PAGE:(page + 1) * PAGE]:
                    wrong.append(page)
    finally:
        stop.set()
        for t in crew:
            t.join()
    assert not errors, errors[0]
    told = s.stats()
    assert passed(), (told["large_reads_held"], told["overtakes"], reads)
    assert wrong == []


def test_overlapping_requests_are_not_torn(world):
    """Eight writers of one range: a reader sees one version whole, of any writer."""
    s = world.serve(world.donor())
    p, stop, errors = world.open(s), threading.Event(), []

    def write(value):
        with mmap.mmap(-1, 16 * PAGE) as buf:
            # Pages of one word would not be sent.
            buf[:] = (bytes([value]) * (PAGE - 8) + b"not same") * 16
            while not stop.is_set():
                assert os.pwritev(p.fd, [buf], 40 * PAGE) == len(buf)

    def overlapped():
        """One that needs no time may be through before the next is read."""
        return world.shm or s.stats()["conflicts"] > 0

    crew = [threading.Thread(target=noted, args=(errors, write, i + 1)) for i in range(8)]
    for t in crew:
        t.start()
    try:
        # The file's own lock may order direct writes; reads it does not hold back.
        reads, end = 0, time.monotonic() + 60
        while reads < 400 or (not overlapped() and time.monotonic() < end):
            got = set(p.read(40, 16).replace(b"not same", b""))
            reads += 1
            if len(got) != 1:
                errors.append(got)
    finally:
        stop.set()
        for t in crew:
            t.join()
    assert not errors, errors[0]
    assert overlapped()


def test_killed_donor_costs_no_byte(world):
    donor = world.donor()
    s = world.serve(donor)
    p = world.open(s)
    p.write_random(300)
    donor.kill()
    p.check()
    told = s.stats()
    assert told["donor_absences"] == 1
    assert told["pages_read_backup"] > 300
    assert s.status()["slabs"]["away"] > 0
    # Without a donor the device goes on, from the disk.
    p.write_random(50)
    p.check()
    assert s.stats()["pages_written_backup_only"] > 50


@pytest.mark.long
def test_donor_killed_under_load(world):
    donor = world.donor()
    s = world.serve(donor)
    hammer_all(world.open(s), 4, meanwhile=donor.kill)
    told = s.stats()
    assert told["donor_absences"] == 1 and told["pages_read_backup"] > 0
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
        for i in range(4):
            donors[-1].kill()
            wait_for(lambda: s.stats()["donor_absences"] == i + 1, 5, "loss")
            donors.append(world.donor(**at))
            wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
            time.sleep(0.3)

    hammer_all(world.open(s), 2, meanwhile=flap)
    told = s.stats()
    assert told["donor_absences"] == 4
    assert told["pages_read_failed"] == told["pages_write_failed"] == 0


@only_tcp
def test_stopped_donor_is_lost_at_the_deadline(world):
    donor = world.donor()
    s = world.serve(donor, options=["--deadline", "1s"])
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    donor.signal(signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert p.read(0, 256) == p.model[:MIB]
        took = time.monotonic() - start
        # The watchdog would come after 15 s.
        assert 0.9 < took < 12
        p.write(10, os.urandom(PAGE))
    finally:
        donor.signal(signal.SIGCONT)
    # What the old connection still had on its way must not show.
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    p.write(300, os.urandom(MIB))
    p.check()
    # Once more on a machine that is too busy for such a deadline.
    assert s.stats()["donor_absences"] >= 1


@only_tcp
def test_a_server_that_slept_gives_its_donor_time(world):
    """As after a machine was stopped, on which both are."""
    donor = world.donor()
    s = world.serve(donor, options=["--deadline", "500ms"])
    p = world.open(s)
    server = s.server
    # On a busy machine the donor may stand still for longer than we wanted: then it is lost rightly.
    for _ in range(8):
        wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
        p.write(0, os.urandom(PAGE))
        before, errors = s.stats(), []
        reader = threading.Thread(target=noted, args=(errors, p.read, 0, 1))
        donor.signal(signal.SIGSTOP)
        try:
            reader.start()
            time.sleep(0.1)
            os.kill(server, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(server, signal.SIGCONT)
            time.sleep(0.2)
        finally:
            os.kill(server, signal.SIGCONT)
            donor.signal(signal.SIGCONT)
            reader.join(60)
        assert not reader.is_alive() and not errors, errors
        told = s.stats()
        grown = [told[k] - before[k] for k in ("donor_absences", "pages_read_backup", "pages_read_donor")]
        if grown == [0, 0, 1]:
            break
    assert grown == [0, 0, 1]


@only_shm
def test_stopped_donor_is_lost_by_its_silence(world):
    """Until then its pages are as good as ever, and nothing waits for it."""
    donor = world.donor()
    s = world.serve(donor, options=["--deadline", "1s"])
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    donor.signal(signal.SIGSTOP)
    try:
        p.write(10, os.urandom(PAGE))
        assert p.read(0, 256) == p.model[:MIB]
        told = s.stats()
        # A busy machine may have taken longer for this than the deadline.
        assert told["donor_absences"] or not told["pages_read_backup"]
        wait_for(lambda: s.donor_state() != "up", 5, "loss")
        before = s.stats()["pages_read_backup"]
        assert p.read(0, 256) == p.model[:MIB]
        assert s.stats()["pages_read_backup"] - before == 256
    finally:
        donor.signal(signal.SIGCONT)
    wait_for(lambda: s.donor_state() == "up", 15, "reconnect")
    p.write(300, os.urandom(MIB))
    p.check()
    assert s.stats()["donor_absences"] >= 1


def test_two_donors_share_and_one_is_enough(world):
    a, b = world.donor(), world.donor()
    s = world.serve(a, b)
    p = world.open(s)
    for i in range(32):
        p.write(i * 256, os.urandom(16 * PAGE))
    held = [d["slabs"] for d in s.status()["donors"]]
    # The split depends on the machines' memory use, which is equal for both here.
    assert sum(held) == 32
    more = held.index(max(held))
    (a, b)[more].kill()
    p.check()
    wait_for(lambda: s.donor_state(more) != "up", 5, "loss")
    # New homes for what is written again.
    p.write_random(40, most=8)
    p.check()
    assert s.status()["donors"][1 - more]["slabs"] > held[1 - more]


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


@only_shm
def test_a_slab_that_cannot_be_taken_costs_no_other(world):
    """Without descriptors there is no copy more, and every copy that was there."""
    donor, (usual, hard) = world.donor(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        s = world.serve(donor, durability="none")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, hard))
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    pid = s.server
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft >= min(hard, 4096)
    used = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    few = next(fd for fd in itertools.count() if fd not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))
    with pytest.raises(OSError):
        p.write(SLAB // PAGE, os.urandom(PAGE))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    line = "a slab cannot be taken: Too many open files; raise LimitNOFILE="
    wait_for(lambda: line in machine.read(s.log), 10, "a line in the log")
    assert s.stats()["donor_losses"] == 0
    assert p.read(0, 1) == p.model[:PAGE]
    # The donor's next word is that it has room.
    wait_for(lambda: s.status()["donors"][0]["free"] > 0, 10, "room at the donor")
    p.write(SLAB // PAGE, os.urandom(PAGE))
    p.check()


def test_failing_backup_disk(world):
    """Served from the donor meanwhile; afterwards an error, never an old page."""
    donor = world.donor()
    s = world.serve(donor, options=["--away-timeout", "2s"])
    p = world.open(s)
    p.write(0, os.urandom(MIB))
    p.write(2048, os.urandom(MIB))
    wait_for(lambda: not s.status()["backup"]["queue"], 10, "backup")
    # Nothing beyond 4 MiB can be written any more: what a full disk looks like.
    resource.prlimit(s.server, resource.RLIMIT_FSIZE, (4 * MIB, resource.RLIM_INFINITY))
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
    resource.prlimit(s.server, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    p.write(2050, os.urandom(4 * PAGE))
    p.write(3000, os.urandom(PAGE))
    p.check()
    assert s.status()["backup"]["failing"], "until the device is re-created"


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
    # If they did, they would each time.
    for _ in range(8):
        errors = []
        crew = [threading.Thread(target=noted, args=(errors, p.read, i * 16, 16)) for i in range(16)]
        start = time.monotonic()
        for t in crew:
            t.start()
        for t in crew:
            t.join()
        took = time.monotonic() - start
        assert not errors, errors[0]
        assert took >= 0.15
        if took < 16 * 0.15 / 2:
            break
    assert took < 16 * 0.15 / 2


# --- what is refused -----------------------------------------------------------------


def refused(tmp_path, status, *words, drop=(), **changed):
    """ebb-swapd with @changed options ends with @status, says @words, leaves nothing."""
    (tmp_path / "mnt").mkdir(exist_ok=True)
    options = {"name": "dp0", "size": "32M", "slab": "1M", "donor": "127.0.0.1:1",
               "backup": str(tmp_path / "backup"), "mount": str(tmp_path / "mnt"), **changed}
    argv = [str(BIN / "ebb-swapd")]
    for key, value in options.items():
        if key not in drop:
            for one in value if isinstance(value, list) else [value]:
                argv += [f"--{key}", one]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=120,
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
    donor = donor_at()
    refused(tmp_path, 5, "slabs are smaller", "a smaller --slab", donor=donor.address, slab="2M")
    wait_for(lambda: "its slabs of 2.0 MiB are larger" in machine.read(donor.log), 5, "log line")


@only_tcp
def test_second_server_of_a_name(world, tmp_path):
    s = world.serve(world.donor())
    done = subprocess.run([*map(str, s.argv_made)], text=True, capture_output=True, timeout=120,
                          env={**os.environ, "EBB_RUN_DIR": str(s.run)})
    assert done.returncode == 5 and "another ebb-swapd" in done.stderr
    # The first goes on as if nothing had been.
    assert s.status()["ok"] and os.path.ismount(s.mount) and s.backup.exists()


@only_tcp
def test_backup_file_of_another_server(world, tmp_path):
    s = world.serve(world.donor())
    argv = ["dp1" if a == "dp0" else str(a) for a in s.argv_made]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=120,
                          env={**os.environ, "EBB_RUN_DIR": str(s.run)})
    assert done.returncode == 1 and "in use by another ebb-swapd" in done.stderr
    assert s.backup.exists()


def test_daemon_in_the_background(donor_at, tmp_path):
    """Without --foreground the command returns when the file is there."""
    (tmp_path / "mnt").mkdir()
    subprocess.run([BIN / "ebb-swapd", "--name", "dp0", "--size", "32M", "--slab", "1M",
                    "--donor", donor_at().address, "--backup", tmp_path / "backup",
                    "--mount", tmp_path / "mnt"], check=True, timeout=120, stderr=subprocess.DEVNULL,
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


def test_it_ends_though_a_mount_namespace_has_a_copy(world):
    """One made while the device was up, such as a container's: the copy blocks nothing."""
    s = world.serve(world.donor())
    p = world.open(s)
    p.write_random(20)
    other = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                              "echo; exec sleep 60"], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        p.check()
        p.close()
        s.signal(signal.SIGTERM)
        wait_for(lambda: not s.alive(), 10, "end")
        assert str(s.mount) in machine.read(f"/proc/{other.pid}/mountinfo")
    finally:
        other.kill()
        other.communicate()


def test_killed_server_leaves_io_errors_not_a_hang(world, tmp_path):
    """No swap is on: the kernel ends the connection with the last process that has it."""
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
    assert s.process.wait(60) == 1
    wait_for(lambda: "aborted" in machine.read(s.log), 5, "log line")


def signal_all(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def test_watchdog_aborts_a_device_that_nobody_serves(world):
    """Server and standby stand still: the first is killed, which does not help."""
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "3s"])
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    assert s.status()["watchdog"]
    both = [s.server, s.status()["standby"]]
    # Should the watchdog fail, this test still ends.
    rescue = threading.Timer(60, signal_all, [both, signal.SIGCONT])
    rescue.start()
    signal_all(both, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(OSError):
            p.read(0, 1)
        assert 2.4 < time.monotonic() - start < 50
    finally:
        rescue.cancel()
        signal_all(both, signal.SIGCONT)
    assert s.process.wait(60) == 1
    wait_for(lambda: "no answer for too long" in machine.read(s.log), 5, "log line")


def test_watchdog_replaces_a_stopped_server(world):
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "3s"])
    p = world.open(s)
    p.write_random(20)
    stopped = s.server
    os.kill(stopped, signal.SIGSTOP)
    p.check()
    told = s.status()
    assert told["takeovers"] == 1 and told["server"] != stopped and not told["aborted"]


def test_watchdog_leaves_a_stopped_idle_server_alone(world):
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "2s"])
    server = s.server
    os.kill(server, signal.SIGSTOP)
    time.sleep(2.4)
    os.kill(server, signal.SIGCONT)
    assert s.server == server
    p = world.open(s)
    p.write(0, os.urandom(PAGE))
    p.check()
    assert not s.status()["aborted"]


def test_idle_server_is_not_aborted(world):
    s = world.serve(world.donor(), options=["--deadline", "100ms", "--watchdog", "1800ms"])
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
