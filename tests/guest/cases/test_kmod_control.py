# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb_swap.ko's commands, valid and invalid, and its unloading."""
import ctypes
import errno
import glob
import os
import struct
import subprocess
import threading
import time
import traceback

import kmodule
import parts
import pytest
from kmod_fixtures import disk, donor, kernel_device, module, roce  # noqa: F401
from key import shared_key
from kmodule import ADDRESS, BACKUP, DONOR, PORT, SECOND, run
from kswap import ATTRIBUTE, COMMAND, Kswap, Refused, attribute, encode
from kswap_fuzz import Messages
from machine import wait_for
from stranger import HELLO, Lender
from test_kmod_key import Connecting, after    # fixtures

MIB = 1 << 20
LIBC, DELETE_MODULE = ctypes.CDLL(None, use_errno=True), 176


@pytest.fixture
def netlink(module):
    k = Kswap()
    yield k
    for d in k.devices():
        k.call("destroy", device=d)
    k.close()


def refused(call, *args, **fields):
    with pytest.raises(Refused) as e:
        call(*args, **fields)
    return e.value.errno, e.value.text


@pytest.mark.parametrize("field,number,fields", [
    ("size", errno.EINVAL, {"size": None}),
    ("size", errno.EINVAL, {"size": 0}),
    ("size", errno.EINVAL, {"size": 3}),
    ("size", errno.EINVAL, {"size": 5 * MIB}),
    ("size", errno.EFBIG, {"size": 1 << 62}),
    ("size", errno.EFBIG, {"size": 1 << 41, "slab_size": MIB}),
    ("slab size", errno.EINVAL, {"slab_size": 0}),
    ("slab size", errno.EINVAL, {"slab_size": 3 * MIB}),
    ("slab size", errno.EINVAL, {"slab_size": 2048 * MIB}),
    ("queues", errno.ERANGE, {"queues": 0}),
    ("queues", errno.ERANGE, {"queues": 17}),
    ("depth", errno.ERANGE, {"depth": 0}),
    ("depth", errno.ERANGE, {"depth": 1 << 31}),
    ("deadline", errno.ERANGE, {"deadline": 0}),
    ("device", errno.ERANGE, {"device": 64}),
    ("pool", errno.ERANGE, {"pool": 1 << 31}),
    ("pool", errno.ERANGE, {"pool": 4095}),
    ("key", errno.EINVAL, {"key": None, "key_number": None}),
    ("backup", errno.EINVAL, {"backup": ""}),
    ("backup", errno.ENOENT, {"backup": "/dev/nothing"}),
    ("backup", errno.ENOTBLK, {"backup": "/dev/null"}),
    ("backup", errno.EBUSY, {"backup": "/dev/vda"}),
])
def test_create_refuses(netlink, field, number, fields):
    settings = {"size": 8 * MIB, "slab_size": 4 * MIB, "key": shared_key().secret,
                "key_number": shared_key().number, **fields}
    got, text = refused(netlink.call, "create", **settings)
    assert (got, text.partition(":")[0]) == (number, field)
    assert netlink.devices() == []


def test_names(netlink, disk):
    small = disk(4)
    assert netlink.create(8 * MIB, slab_size=4 * MIB, device=5) == 5
    assert netlink.create(8 * MIB, slab_size=4 * MIB) == 0
    assert refused(netlink.create, 8 * MIB, slab_size=4 * MIB, device=5) == \
        (errno.EEXIST, "device: already exists")
    assert refused(netlink.create, 8 * MIB, slab_size=4 * MIB, backup="/dev/ebb0") == \
        (errno.EINVAL, "backup: an ebb device; name a disk or a partition")
    assert refused(netlink.create, 8 * MIB, slab_size=4 * MIB, backup=small.path) == \
        (errno.EINVAL, "backup: smaller than the device")
    # Rejected commands leave nothing: a valid one can open the disk.
    number = netlink.create(4 * MIB, slab_size=4 * MIB, backup=small.path)
    assert refused(netlink.create, 4 * MIB, slab_size=4 * MIB, backup=small.path)[0] == errno.EBUSY
    netlink.call("destroy", device=number)
    assert sorted(netlink.devices()) == [0, 5]


def test_create_and_destroy_often(netlink, donor):
    donor()
    for i in range(8):
        number = netlink.create(8 * MIB, slab_size=4 * MIB)
        session = netlink.connect(number, ADDRESS, PORT)
        netlink.call("map", device=number, slab=0, session=session)
        netlink.call("destroy", device=number)
    assert netlink.devices() == []


def test_unload_and_destroy_are_refused_while_in_use(kernel_device, disk, cgroup):
    d = kernel_device(mib=64, backup=disk(64).path)
    d.swap_on()
    scan = parts.Scan(mib=24, passes=1, pattern="random", write=True, cgroup=cgroup(12))
    scan.go()
    for _ in range(5):
        assert subprocess.run(["rmmod", "ebb_swap"], capture_output=True).returncode
        assert refused(d.netlink.call, "destroy", device=d.number) == \
            (errno.EBUSY, "device: it is open; swapoff or unmount it first")
    assert scan.result()["bad"] == 0
    assert d.counts()["read_backup"] > 0
    parts.machine.swapoff(d.path)
    # The device is not open, but may have the only copy of a page.
    assert subprocess.run(["rmmod", "ebb_swap"], capture_output=True).returncode


def unload():
    """Unloads the module without a process; returns False if it is in use."""
    if not LIBC.syscall(DELETE_MODULE, b"ebb_swap", os.O_NONBLOCK):
        return True
    assert ctypes.get_errno() == errno.EWOULDBLOCK
    return False


def repeat(netlink, ends, commands):
    """Runs @commands in a process until the module is unloaded; status 0 if it always answers."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        while time.monotonic() < ends:
            commands(netlink)
    except Refused as e:
        status = e.errno not in (errno.ENODEV, errno.ENOENT) # going, gone
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def make_and_destroy(netlink):
    netlink.call("destroy", device=netlink.create(MIB, slab_size=MIB))


def ask_for_none(netlink):
    """Sends a command that a work queue runs."""
    try:
        netlink.call("trust", device=63, session=0)
    except Refused as e:
        if e.errno != errno.ENODEV:
            raise


def test_unloaded_while_it_works(roce):
    """A create command is rejected, or the module stays until its device is destroyed."""
    devices = lambda: glob.glob("/sys/block/ebb*")
    for _ in range(5):
        run("insmod", kmodule.module_path())
        ends = time.monotonic() + 60
        sockets = [Kswap(), Kswap()]
        clients = [repeat(k, ends, how) for k, how in zip(sockets, (make_and_destroy, ask_for_none))]
        wait_for(devices, 20, "no device is made")
        while not unload():
            assert time.monotonic() < ends, "it was in use all the time"
        assert [os.waitpid(pid, 0)[1] for pid in clients] == [0, 0]
        assert not kmodule.module_loaded() and not devices()
        for k in sockets:
            k.close()


def test_connect_refuses(kernel_device):
    d = kernel_device()
    call = lambda **fields: refused(d.netlink.call, "connect", device=d.number, **fields)
    assert call(port=PORT) == (errno.EINVAL, "address: not given")
    assert call(address=ADDRESS) == (errno.EINVAL, "port: not given, or 0")
    assert call(address=ADDRESS, port=0)[1].startswith("port:")
    assert call(address="nonsense", port=PORT) == (errno.EINVAL, "address: neither IPv4 nor IPv6")
    # No listener at the port; no route.
    assert call(address=ADDRESS, port=9)[0] == errno.ECONNREFUSED
    assert call(address="203.0.113.1", port=PORT)[1] == "address: no RDMA device has a route there"
    assert d.netlink.status(d.number)["sessions"] == []


def test_map_refuses(kernel_device, donor):
    lender = donor(memory="8M")
    d = kernel_device()
    s = d.connect()
    call = lambda command="map", **fields: refused(
        d.netlink.call, command, **{"device": d.number, "slab": 0, "session": s, **fields})
    assert call(device=9) == (errno.ENODEV, "device: no such device")
    assert call(device=None) == (errno.EINVAL, "device: not given")
    assert call(slab=None) == (errno.EINVAL, "slab: not given")
    assert call(slab=d.slabs) == (errno.ERANGE, "slab: beyond the device")
    assert call(session=s + 1)[0] == errno.ENOENT
    assert call(copies=0)[1].startswith("copies:")
    assert call(copies=BACKUP)[1].startswith("copies:")
    assert call(copies=8 | DONOR)[1].startswith("copies:")
    assert call(copies=DONOR | BACKUP) == (errno.EINVAL, "copies: the device has no backup")
    assert call("unmap", session=None) == (errno.ENOENT, "slab: not mapped")
    d.map(s, DONOR, [0, 1])
    assert call() == (errno.EEXIST, "slab: already mapped")
    assert call(slab=2) == (errno.ENOSPC, "no free slab")
    d.write(0, 4, version=1)
    only = "its donor has the only copy of some pages; FORCE loses them"
    assert call("unmap", session=None) == (errno.EBUSY, f"slab: {only}")
    assert call("disconnect", slab=None) == (errno.EBUSY, f"session: {only}")
    d.netlink.call("unmap", device=d.number, slab=0, force=True)
    with pytest.raises(OSError):
        d.read(0, 1)
    lender.kill()
    d.wait_closed()
    assert call() == (errno.ENOTCONN, "session: it has ended; connect again")


def test_refused_second_donor_changes_nothing(kernel_device, donor, disk):
    """Writes still go to the backup: the slab has one donor as before."""
    donor(memory="4M")
    donor(memory="4M", port=7472)
    d = kernel_device(mib=8, backup=disk(8).path)
    first, full = d.connect(), d.connect(7472)
    d.map(first, DONOR | BACKUP, [0])
    d.map(full, DONOR | BACKUP, [1])
    told = refused(d.netlink.call, "map", device=d.number, slab=0, session=full, copies=DONOR | SECOND)
    assert told == (errno.ENOSPC, "no free slab")
    assert d.slab_table()[0]["copies"] == DONOR | BACKUP
    d.write(0, 16, version=1)
    d.wait_behind()
    assert d.counts()["write_backup"] == 16


def test_slab_of_the_device_larger_than_the_donors(kernel_device, donor):
    donor(slab="1M", memory="8M")
    d = kernel_device(slab_mib=4)
    number, text = refused(d.netlink.connect, d.number, ADDRESS, PORT)
    assert number == errno.EPROTO and "slab" in text


def test_attributes_of_another_command_are_refused(netlink):
    number = netlink.create(8 * MIB, slab_size=4 * MIB)
    for command, fields in (("create", {"size": 8 * MIB, "session": 0}),
                            ("destroy", {"device": number, "force": True}),
                            ("map", {"device": number, "slab": 0, "size": 1})):
        assert refused(netlink.call, command, **fields)[0] == errno.EINVAL
    assert netlink.devices() == [number]


def test_malformed_messages(netlink):
    number = netlink.create(8 * MIB, slab_size=4 * MIB)
    family, destroy = netlink.family, COMMAND["destroy"]
    device = ATTRIBUTE["device"]
    bodies = [
        b"",                                             # nothing
        attribute(device, b"\1"),                        # too short
        attribute(device, struct.pack("=Q", number)),    # too long
        struct.pack("=HH", 400, device) + b"\0" * 4,     # longer than the message
        struct.pack("=HH", 2, device),                   # shorter than itself
        attribute(200, b"\0" * 4),                       # unknown
        attribute(device, struct.pack("=I", number)) + b"\xff" * 7,  # trailing bytes
    ]
    for body in bodies:
        with pytest.raises(Refused) as e:
            netlink.send(family, destroy, body)
        assert e.value.errno in (errno.EINVAL, errno.ERANGE), body
    with pytest.raises(Refused) as e:
        netlink.send(family, destroy, encode({"device": number}), reserved=1)
    assert e.value.errno == errno.EINVAL
    for command in (0, max(COMMAND.values()) + 1, 255):
        with pytest.raises(Refused) as e:
            netlink.send(family, command, encode({"device": number}))
        assert e.value.errno == errno.EOPNOTSUPP
    path = "x" * 300
    assert refused(netlink.create, 8 * MIB, slab_size=4 * MIB, backup=path)[0] in \
        (errno.EINVAL, errno.ERANGE)
    rnd = os.urandom(1)
    for length in range(0, 200, 3):
        try:
            netlink.send(family, COMMAND["create"], os.urandom(length))
        except Refused:
            pass
    assert number in netlink.devices(), rnd


def test_random_messages(kernel_device, disk, donor):
    """
    Each of many random messages is answered, and a device beside them works.  The seed and the
    number of messages are EBB_FUZZ_SEED [1] and EBB_FUZZ_MESSAGES [4000].
    """
    donor(memory="32M")
    d = kernel_device(mib=16, device=21, backup=disk(16).path)
    d.map(d.connect(), DONOR | BACKUP)
    d.open() # cannot be destroyed
    messages = Messages(d.netlink, int(os.environ.get("EBB_FUZZ_SEED", 1)), d.number, PORT,
                        shared_key())
    for i in range(int(os.environ.get("EBB_FUZZ_MESSAGES", 4000))):
        messages.send()
        if i % 100 == 0:
            page = messages.random.randrange(d.pages - 8)
            d.write(page, 8, version=i)
            assert d.bad(page, 8, i) == []
            assert d.netlink.status(d.number)["device"] == d.number
    print(sorted(messages.outcomes.items()))
    for command in ("create", "destroy", "connect", "map", "class", "assign", "status", "slabs"):
        assert messages.outcomes.get((command, 0)), f"no valid {command} among them"
    for number in d.netlink.devices():
        if number != d.number:
            d.netlink.call("destroy", device=number)
    d.write(0, d.pages // 2, version=1)
    assert d.bad(0, d.pages // 2, 1) == []


def test_connect_to_a_donor_that_is_silent_delays_nothing_else(kernel_device, donor, after):
    """Neither commands about other devices, nor other families and their registration."""
    silent = after(Lender(shared_key(), ADDRESS, PORT + 2))
    donor()
    slow = kernel_device(queues=1, deadline=120000)
    d = kernel_device(queues=1)
    s = d.connect()
    connecting = Connecting(slow, PORT + 2)
    silent.accept()
    silent.call(HELLO)
    other = Kswap() # asks the family of all families
    d.netlink.call("map", device=d.number, slab=0, session=s)
    assert {x["session"] for x in d.slab_table()} == {s, 0xffffffff}
    assert d.netlink.status(slow.number)["sessions"] == []
    assert len(other.slabs(slow.number)) == slow.slabs
    last = other.create(8 * MIB, slab_size=4 * MIB)
    other.call("destroy", device=last)
    other.close()
    run("modprobe", "psample") # registers a family
    run("modprobe", "-r", "psample")
    assert connecting.thread.is_alive(), "the connect has ended too early"
    silent.end()
    assert isinstance(connecting.result(), Refused)
    assert slow.netlink.status(slow.number)["sessions"] == []


def test_commands_of_a_client_that_is_gone(kernel_device, donor, after):
    """Its connect ends without it; those that wait for its device are answered."""
    silent = after(Lender(shared_key(), ADDRESS, PORT + 2))
    d = kernel_device(queues=1, deadline=120000)
    gone = Kswap()
    body = encode({"device": d.number, "address": ADDRESS, "port": PORT + 2})
    gone.socket.send(struct.pack("=IHHII", 20 + len(body), gone.family, 5, 99, 0) +
                     struct.pack("=BBH", COMMAND["connect"], 1, 0) + body)
    silent.accept()
    silent.call(HELLO)
    gone.close()
    destroying = threading.Thread(target=d.destroy)
    destroying.start()
    time.sleep(0.5)
    assert d.number in Kswap().devices()
    silent.end()
    destroying.join(60)
    assert not destroying.is_alive()
    assert d.number not in Kswap().devices()


def test_nobody_else_may(netlink):
    """Every command is rejected from a user without privileges."""
    probe = """
import os, sys
sys.path.insert(0, "tests/harness")
from kswap import COMMAND, Kswap, Refused, NLM_F_DUMP
k = Kswap()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for name, number in COMMAND.items():
    if name in ("unspec", "event"):
        continue
    try:
        k.send(k.family, number, b"", NLM_F_DUMP if name in ("status", "slabs") else 4)
        print(name, "allowed")
    except Refused as e:
        if e.errno != 1:
            print(name, e)
print("done")
"""
    done = subprocess.run(["/usr/bin/python3", "-c", probe], text=True, capture_output=True)
    assert done.stdout == "done\n", done.stdout + done.stderr


def test_status_of_many_slabs(kernel_device):
    """Slabs that fill several messages are reported without a call per slab."""
    d = kernel_device(mib=256, slab_mib=1)
    table = d.slab_table()
    assert len(table) == 256
    assert all(s["session"] == 0xffffffff and s["copies"] == DONOR for s in table)
    assert refused(d.netlink.slabs, 63)[0] == errno.ENODEV


def test_status_of_many_sessions(kernel_device, donor):
    """A socket that has received nothing yet gets 4 KiB at a time unless the module needs more."""
    donor()
    d = kernel_device(queues=1)
    for _ in range(60):
        d.connect()
    d.netlink.close()
    d.netlink.open()
    assert len(d.netlink.status(d.number)["sessions"]) == 60
