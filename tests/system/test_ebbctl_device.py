# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbctl device: bad input, and the life of devices."""
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

import machine
import parts
import users
from machine import BIN, read
from parts import FAILED, NO_DAEMON, REFUSED, UNSUPPORTED, USAGE, ebbctl, ebbctl_json
from ports import free_port
from refusals import CREATE, GOOD, refuse
from refusals import away    # fixture
from terminal import Terminal


# --- bad input --------------------------------------------------------------

@pytest.mark.parametrize("name", ["A", "-x", "a/b", "..", "", "x" * 32])
def test_bad_device_names(away, name):
    refuse(USAGE, *CREATE, *GOOD, "--", name, says=["invalid name"])
    refuse(USAGE, "device", "destroy", "--", name, says=["invalid name"])
    refuse(USAGE, "device", "abort", "--", name, says=["invalid name"])


@pytest.mark.parametrize("option", ["--size", "--slab", "--priority"])
@pytest.mark.parametrize("value", ["12Q", "-1", "", "1e", "99999999999999999999T"])
def test_bad_sizes(away, option, value):
    refuse(USAGE, *CREATE, "x", *GOOD, f"{option}={value}", says=[option, f"'{value}'"])


def test_device_create_bad_input(away):
    assert "--size" in refuse(USAGE, *CREATE, "x", "--donor", "127.0.0.1:1")
    assert "--donors" in refuse(NO_DAEMON, *CREATE, "x", "--size", "64M")
    refuse(USAGE, *CREATE, "x", *GOOD, "--size", "1M", says=["--size", "out of range"])
    refuse(USAGE, *CREATE, "x", *GOOD, "--scope", "some", says=["some", "any|attached"])
    refuse(USAGE, *CREATE, "x", "--size", "64M", "--donor", "127.0.0.1:99999", says=["99999"])
    refuse(USAGE, *CREATE, "x", "y", *GOOD, says=["y"])


@pytest.fixture
def listener():
    """Something that accepts connections and says nothing: not a donor."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        yield f"127.0.0.1:{s.getsockname()[1]}"


def test_donor_that_refuses(away):
    port = free_port()
    refuse(FAILED, *CREATE, "x", "--size", "64M", "--donor", f"127.0.0.1:{port}", "--backup", away,
           says=["device x", f"127.0.0.1:{port}", "refused", "ebb-donord"])
    assert not list(away.glob("x*"))

IMPOSTOR = """
import ctypes, time
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, b"ebb-swapd")
print("named", flush=True)
time.sleep(600)
"""


def test_another_users_process_is_no_server(away):
    """Whatever it is called: else anybody could keep a device from being made, or pass for its server."""
    p = subprocess.Popen(["/usr/bin/python3", "-c", IMPOSTOR, "--mount", away / "run" / "mnt" / "x"],
                         stdout=subprocess.PIPE, text=True, user=users.USER, group=users.USER,
                         extra_groups=[])
    try:
        assert p.stdout.readline() == "named\n"
        refuse(USAGE, "device", "destroy", "x", says=["no such device"])
        assert p.poll() is None
    finally:
        p.kill()
        p.wait()


def test_backup_without_space(away, listener):
    small = away / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8M", "ebb-small", small], check=True)
    try:
        refuse(FAILED, *CREATE, "x", "--size", "64M", "--donor", listener, "--backup", small,
               says=[str(small), "8.0 MiB", "64.0 MiB", "--backup"])
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)


def test_backup_directory_that_is_not_there(away, listener):
    refuse(USAGE, *CREATE, "x", "--size", "64M", "--donor", listener, "--backup", away / "no",
           says=[str(away / "no"), "No such file"])
    refuse(USAGE, *CREATE, "x", "--size", "64M", "--donor", listener, "--backup", "relative",
           says=["relative", "absolute"])


def test_donor_that_is_none(away, listener):
    """The server finds out; nothing of the device is left."""
    before = set(machine.leftovers())
    done = ebbctl(*CREATE, "x", "--size", "64M", "--donor", listener, "--backup", away, check=False)
    if done.returncode == 0:
        ebbctl("device", "destroy", "x")
    assert not machine.left_since(before)
    assert not list(away.glob("x*"))
    assert ebbctl_json("device", "list")["devices"] == []


def test_backup_that_is_there_already(away, listener):
    (away / "x.backup").write_text("precious")
    refuse(REFUSED, *CREATE, "x", "--size", "64M", "--donor", listener, "--backup", away,
           says=["x.backup", "exists"])
    assert (away / "x.backup").read_text() == "precious"


def test_backup_of_a_device_that_ended_with_the_machine(swap_lock, donor):
    """As after a power failure: it does not keep the device from being made again, unless it is in use."""
    left = Path("/var/lib/ebb/test0.backup")
    left.parent.mkdir(mode=0o700, exist_ok=True)
    left.write_text("old")
    try:
        with open(left, "r+") as server:
            fcntl.flock(server, fcntl.LOCK_EX)
            refuse(REFUSED, *CREATE, "test0", "--size", "64M", "--donor", donor.address,
                   says=["test0.backup", "exists"])
            assert left.read_text() == "old"
        d = parts.Device(donor)
        assert left.stat().st_size == 256 << 20
        d.destroy()
    finally:
        left.unlink(missing_ok=True)


def test_block_device_that_is_not_empty(away):
    """What --frontend kmod would write over is looked at; what cannot be told apart counts as well."""
    image = away / "image"
    with open(image, "wb") as f:
        f.truncate(64 << 20)
    loop = subprocess.run(["/sbin/losetup", "-f", "--show", image], check=True, capture_output=True,
                          text=True).stdout.strip()
    ebbctl("key", "create", away / "key", "--name", "x")
    keyless = [*CREATE, "x", "--frontend", "kmod", "--size", "64M", "--slab", "16M", "--donor",
               "rdma:127.0.0.1:1", "--backup", loop]
    plan = [*keyless, "--key", away / "key"]
    try:
        refuse(USAGE, *keyless, says=["RDMA requires a key; pass --key FILE"])
        # It fails for another reason: there is no module, or no donor.
        assert ebbctl(*plan, check=False).returncode in (FAILED, UNSUPPORTED)
        subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", loop], check=True)
        refuse(REFUSED, *plan, says=[loop, 'TYPE="ext4"', "wipefs"])
        # A device of ebb's leaves a swap area with such a label; a file system with one is somebody's.
        subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", "-L", "ebb-backup", loop], check=True)
        refuse(REFUSED, *plan, says=[loop, 'LABEL="ebb-backup"', "wipefs"])
        subprocess.run(["/sbin/wipefs", "-q", "-a", loop], check=True)
        subprocess.run(["/sbin/mkswap", "-q", "-L", "ebb-ebb0", loop], check=True)
        assert ebbctl(*plan, check=False).returncode in (FAILED, UNSUPPORTED)
        subprocess.run(["/sbin/mkfs.ext4", "-q", "-F", loop], check=True)
        with open(loop, "r+b") as f:
            f.write(b"-rom1fs-")
        refuse(REFUSED, *plan, says=[loop, "ambivalent", "wipefs"])
    finally:
        subprocess.run(["/sbin/losetup", "-d", loop], check=True)


def test_destroy_of_damaged_record(away):
    """What a broken creation left goes away, also without a readable record."""
    devices = away / "run" / "devices"
    devices.mkdir(parents=True)
    (devices / "half.json").write_text('{"name": "ha')
    (devices / "begun.partial").write_text(json.dumps({"backup": str(away / "begun.backup")}))
    (away / "begun.backup").write_text("")
    assert [d["state"] for d in ebbctl_json("device", "list")["devices"]] == ["half made"] * 2
    assert ebbctl("device", "list").stdout.count("incomplete") == 2
    ebbctl("device", "destroy", "half")
    ebbctl("device", "destroy", "begun")
    assert ebbctl_json("device", "list") == {"devices": []}
    assert not (away / "begun.backup").exists()


# --- devices ----------------------------------------------------------------

def test_device_life(device):
    assert device.block in machine.swaps()
    [told] = [d for d in ebbctl_json("device", "list")["devices"] if d["name"] == device.name]
    assert told["state"] == "on" and told["on"]
    assert told["donor"] == device.donor.address
    assert told["size"] == 1 << 30
    assert told["server"]["pid"] == told["server_pid"] == device.server
    assert device.name in ebbctl("device", "list").stdout
    info = Path(f"/sys/block/{Path(device.block).name}")
    assert read(info / "loop/dio").strip() == "1"
    assert read(info / "queue/logical_block_size").strip() == "4096"
    assert read(info / "queue/wbt_lat_usec", "0").strip() == "0"
    assert read(info / "queue/nr_requests").strip() == "64"
    assert read(info / "queue/max_sectors_kb").strip() == "128"
    areas = [line.split() for line in read("/proc/swaps").splitlines()[1:]]
    mine = [int(a[4]) for a in areas if a[0] == device.block]
    assert all(int(a[4]) < mine[0] for a in areas if a[0] != device.block)
    # Pages are root's, and those of the group "disk".
    assert not os.stat(device.block).st_mode & 0o007
    stranger = subprocess.run(["cat", Path(told["mount"], "swap")], user=65534, group=65534,
                              extra_groups=[], capture_output=True, text=True)
    assert "Permission denied" in stranger.stderr
    # Not in the cgroup of the caller.
    assert read(f"/proc/{device.server}/cgroup").find("ebb-test") < 0

    refuse(REFUSED, "device", "create", device.name, "--size", "64M", "--donor",
           device.donor.address, says=[device.name, "exists"])
    refuse(REFUSED, "device", "create", "other", "--size", "64M", "--donor", device.donor.address,
           "--scope", "attached", says=["attached", device.block])
    adopted(device)
    refuse(REFUSED, "device", "abort", device.name, says=["SIGBUS", "--yes"])
    assert device.block in machine.swaps()

    backup = Path(told["backup"])
    assert backup.exists()
    ebbctl("device", "destroy", device.name)
    assert device.block not in machine.swaps()
    assert device.block not in machine.loops()
    assert not backup.exists()
    assert told["mount"] not in machine.ebb_mounts()
    assert device.server not in machine.processes()
    refuse(USAGE, "device", "destroy", device.name, says=[device.name])


def adopted(device):
    """--adopt accepts an identical device, and names each difference."""
    same = {"--size": device.size, "--slab": "16M", "--donors": device.donor.address}
    record = Path(f"/run/ebb/devices/{device.name}.json")
    before = record.read_text()
    told = json.loads(before)

    def again(**others):
        options = same | {f"--{k.replace('_', '-')}": v for k, v in others.items()}
        return ["device", "create", device.name, "--adopt", *(x for o in options.items() for x in o)]

    for others in ({}, {"seal": "auto", "backup": "/var/lib/ebb"}, {"priority": str(told["priority"])}):
        assert ebbctl_json(*again(**others)) | {"other_swap": None} == told | {"other_swap": None}
    for others, has in (({"size": "512M"}, str(1 << 30)), ({"slab": "32M"}, str(16 << 20)),
                        ({"priority": str(told["priority"] - 1)}, str(told["priority"])),
                        ({"frontend": "ublk"}, "fuse"), ({"durability": "none"}, "disk"),
                        ({"backup": "/srv"}, told["backup"]), ({"scope": "attached"}, "any"),
                        ({"key": "/etc/ebb/x.key"}, "none"), ({"seal": "off"}, "auto"),
                        ({"connections": "2"}, "1"),
                        ({"donors": "127.0.0.1:1"}, device.donor.address)):
        [option] = others
        refuse(REFUSED, *again(**others), says=[device.name, f"--{option.replace('_', '-')} {has}, not "])
    # Without donors those of the configuration are meant.
    refuse(REFUSED, "device", "create", device.name, "--adopt", "--size", device.size, "--slab", "16M",
           says=["--donors", "ebbd's configuration"])
    # One of an older ebbctl.
    record.write_text(json.dumps({k: v for k, v in told.items() if k not in ("key", "seal")}))
    ebbctl(*again(key="/etc/ebb/x.key"))
    record.write_text("{}")
    refuse(REFUSED, *again(), says=["incomplete", "destroy"])
    record.write_text(before)
    assert device.block in machine.swaps()


def test_device_of_configured_donors(swap_lock, donor_factory, logs, tmp_path):
    """A device made without --donors begins with those of ebb.conf, and follows it."""
    donors = [donor_factory(port=free_port(), memory="128M", slab="16M") for _ in range(3)]
    a, b, c = (d.address for d in donors)
    config = tmp_path / "ebb.conf"
    dead = f"127.0.0.1:{free_port()}"
    config.write_text(f"[donors]\nlist = {a}, {dead}, {b}\n")
    daemon = parts.Ebbd(logs / "ebbd.log", config=config)
    try:
        ebbctl("device", "create", "test0", "--size", "64M", "--slab", "16M", "--durability", "replicas=2")
        used = lambda: {d["address"]: d for d in ebbctl_json("donor", "list")["donors"]}
        up = lambda: {x for x, d in used().items() if d["state"] == "up" and d["device"] == "test0"}
        assert up() == {a, b}
        machine.wait_for(lambda: dead in used() and used()[dead]["device"] == "test0", 15,
                         "ebbd to tell of the dead one, too")
        [told] = ebbctl_json("device", "list")["devices"]
        assert told["donor"] == f"{a},{b}"
        assert told["donors_from"] == "configuration" and told["durability"] == "replicas=2"
        assert told["backup"] == "" and not Path("/var/lib/ebb/test0.backup").exists()

        config.write_text(f"[donors]\nlist = {b}\nlist = {c}\n")
        daemon.signal(signal.SIGHUP)
        machine.wait_for(lambda: set(used()) == {b, c}, 20, "the device to follow")
        # What is wrong changes nothing, and without ebbd nothing changes.
        config.write_text(f"[donors]\nlist = {b}, {b}\n")
        daemon.signal(signal.SIGHUP)
        machine.wait_for(lambda: "twice" in read(daemon.log), 5, "the refusal")
        daemon.stop()
        assert set(used()) == {b, c}
    finally:
        ebbctl("device", "destroy", "test0", check=False)
        daemon.stop()
        machine.pins_remove()


def test_destroy_with_all_the_time(device):
    """More ms than an int holds."""
    ebbctl("device", "destroy", device.name, "--timeout", "1000h")
    assert device.block not in machine.swaps()


@pytest.mark.long
def test_destroy_waits_for_another_swapoff(swap_lock, donor_factory, cgroup):
    """systemd takes swap off at shutdown, too: the server stays until that is done."""
    d = parts.Device(donor_factory(delay="1ms"))
    try:
        c = cgroup(limit_mib=32)
        s = parts.Scan(cgroup=c, mib=96)
        try:
            c.set_limit(512)
            full = machine.swaps()[d.block]
            other = subprocess.Popen(["/sbin/swapoff", d.block])
            machine.wait_for(lambda: machine.swaps()[d.block] < full, 5, "the other one at work")
            assert machine.swaps()[d.block] > 16 << 10
            ebbctl("device", "destroy", d.name)
            assert other.wait(60) == 0
            s.go()
            assert s.result()["bad"] == 0
        finally:
            s.kill()
    finally:
        d.destroy()


@pytest.fixture
def slow(swap_lock, donor_factory, cgroup):
    """A device whose reads take 1 ms, with pages of two programs that fit in memory."""
    d = parts.Device(donor_factory(delay="1ms"))
    scans = []
    try:
        c = cgroup(limit_mib=24)
        for seed in (1, 2):
            scans.append(parts.Scan(cgroup=c, mib=32, seed=seed))
        c.set_limit(512)
        yield d
        for s in scans:
            s.go()
            assert s.result()["bad"] == 0
    finally:
        for s in scans:
            s.kill()
        d.destroy()


@pytest.mark.long
def test_interrupted_destroy_leaves_swap_on(slow):
    """The kernel completes the process whose pages it reads back; those of the other stay."""
    full = slow.used_kib()
    p = subprocess.Popen([BIN / "ebbctl", "device", "destroy", slow.name], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    machine.wait_for(lambda: slow.used_kib() < full, 10, "pages read back")
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    assert p.returncode not in (0, -signal.SIGINT) and out == ""
    # How long that takes decides which of two messages this is.
    assert re.fullmatch(r'ebbctl: device test0: .* still swapped out; .*'
                        r', run "ebbctl device destroy test0" to continue\n', err), err
    assert 0 < slow.used_kib() < full
    assert slow.server in machine.processes()
    done = ebbctl("device", "destroy", slow.name)
    assert done.stdout == f"device {slow.name}: removed\n" and slow.block not in machine.swaps()


@pytest.mark.long
def test_destroy_shows_progress_on_a_terminal(slow):
    t = Terminal("device", "destroy", slow.name)
    try:
        machine.wait_for(t.ended, 60, "the end")
        assert t.status == 0, t.text
        lines = re.findall(r"\r\x1b\[Kdevice test0: swapoff: (\d+) pages \([^)]*\) still swapped out"
                           r"(?:, \S+ \S+/s, \d+ s left)?", t.text)
        left = [int(n) for n in lines]
        assert len(left) > 1 and left == sorted(left, reverse=True), t.text
        assert t.text.endswith(f"\r\x1b[Kdevice {slow.name}: removed\r\n"), t.text
    finally:
        t.close()


@pytest.mark.long
def test_destroy_for_programs_prints_its_result_only(slow):
    done = ebbctl("device", "destroy", slow.name, "--json")
    assert json.loads(done.stdout) == {"name": slow.name, "destroyed": True} and done.stderr == ""


def test_swap_sleeps_and_wakes(device):
    """The block device stays while swap is off; test_sleep.py has the unit, in a guest."""
    swaps = machine.ebb_swaps()
    assert ebbctl("device", "sleep").stdout == f"device {device.name}: swap is off\n"
    assert not machine.ebb_swaps()
    assert ebbctl("device", "sleep").stdout == ""
    assert ebbctl_json("device", "wake") == {"devices": [device.name]}
    assert machine.ebb_swaps() == swaps
    assert ebbctl("device", "wake").stdout == ""
    # As before, nothing keeps the block device without swap.
    assert ebbctl("device", "destroy", device.name).stdout == f"device {device.name}: removed\n"
    assert Path(device.block).name not in {
        p.parent.parent.name for p in Path("/sys/block").glob("loop*/loop/backing_file")}


def test_destroy_waits_for_who_looks_into_the_loop_device(device):
    """As blkid may at any time: the file below is not let go before."""
    with open(device.block, "rb") as block:
        look = subprocess.Popen(["sleep", "4"], stdin=block)
    ebbctl("device", "destroy", device.name)
    assert look.wait() == 0
    assert not machine.ebb_mounts() and device.server not in machine.processes()


def test_destroy_refuses_what_would_kill(device, cgroup):
    """A cgroup that is full could not take its swapped pages back."""
    c = cgroup(32)
    scan = parts.Scan(c, mib=96, pattern="seq", write=True)
    try:
        said = refuse(REFUSED, "device", "destroy", device.name, says=[device.name, "--force"])
        assert c.rel in said
        assert device.block in machine.swaps()
        c.set_limit(512)
        ebbctl("device", "destroy", device.name)
        assert device.block not in machine.swaps()
        scan.go()
        scan.result()
    finally:
        scan.kill()


@pytest.mark.parametrize("delay", [0.01, 0.05, 0.1, 0.2, 0.4])
def test_create_interrupted(swap_lock, donor, delay):
    """At whatever moment ^C comes, there is a whole device or nothing."""
    before = set(machine.leftovers())
    p = subprocess.Popen([BIN / "ebbctl", "device", "create", "intr", "--size", "64M", "--slab", "16M",
                          "--donor", donor.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(delay)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=300)
    devices = ebbctl_json("device", "list")["devices"]
    assert [d["state"] for d in devices] == (["on"] if p.returncode == 0 else [])
    for d in devices:
        ebbctl("device", "destroy", d["name"])
    assert not machine.left_since(before)
