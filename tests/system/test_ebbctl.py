# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbctl: bad input of every verb, then the verbs on real devices and a real ebbd."""
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import control_server
import machine
import parts
import users
from machine import BIN, read
from parts import ebbctl, ebbctl_json
from ports import free_port
from terminal import Terminal

FAILED, USAGE, UNSUPPORTED, NO_DAEMON, REFUSED = 1, 2, 3, 4, 5
MAN = machine.REPO / "docs" / "man" / "ebbctl.8"


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A run directory of its own: no daemon and no devices, whatever the machine has."""
    monkeypatch.setenv("EBB_RUN_DIR", str(tmp_path / "run"))
    return tmp_path


def refuse(status, *argv, says=(), **kwargs):
    """The command fails so, names thing, cause and remedy on one line, and prints nothing else."""
    done = ebbctl(*argv, check=False, **kwargs)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert re.fullmatch(r"ebbctl: [^:]+: .+", lines[0]), lines[0]
    for word in says:
        assert word in lines[0], lines[0]
    return lines[0]


def verbs():
    """(object, action or None) of every command, from the help."""
    text = ebbctl("help").stdout
    rows = re.findall(r"^  ([a-z]+)(?: ([a-z]+))?  +\S", text, re.M)
    assert len(rows) >= 16
    return [(o, a or None) for o, a in rows]


def words(verb):
    return [w for w in verb if w]


# --- what every verb has in common -----------------------------------------

def test_help_of_every_verb():
    for verb in verbs():
        done = ebbctl(*words(verb), "--help")
        assert done.stdout.startswith(f"Usage: ebbctl {' '.join(words(verb))}")
        assert len(done.stdout.splitlines()) <= 24
        assert ebbctl("help", *words(verb)).stdout == done.stdout


def test_unknown_option_of_every_verb(away):
    for verb in verbs():
        refuse(USAGE, *words(verb), "--bogus", says=["--bogus"])


def test_unknown_words(away):
    refuse(USAGE, "frobnicate", says=["frobnicate", "help"])
    refuse(USAGE, "device", "frobnicate", says=["frobnicate", "create", "destroy"])
    refuse(USAGE, "device", says=["device", "create"])
    refuse(USAGE, "help", "frobnicate", says=["frobnicate"])
    refuse(USAGE, "status", "extra", says=["extra"])
    refuse(USAGE, "completion", "csh", says=["csh", "bash"])


def test_missing_arguments(away):
    for argv in (["device", "create"], ["device", "destroy"], ["device", "abort"],
                 ["policy", "attach"], ["policy", "attach", "leap"], ["policy", "detach"],
                 ["policy", "set"], ["policy", "set", "x"], ["policy", "load"],
                 ["policy", "unload"], ["policy", "show"], ["run"], ["record"],
                 ["donor", "drain"], ["donor", "undrain"], ["donor", "trust"],
                 ["slab", "migrate"], ["slab", "migrate", "x"]):
        refuse(USAGE, *argv, says=["missing"])


def test_version():
    assert re.fullmatch(r"ebbctl \d+\.\d+\.\d+\n", ebbctl("version").stdout)
    assert ebbctl("--version").stdout == ebbctl("version").stdout
    assert ebbctl_json("version")["version"] in ebbctl("version").stdout


def test_errors_in_json(away):
    done = ebbctl("status", "--json", check=False)
    assert done.returncode == NO_DAEMON
    told = json.loads(done.stdout)
    assert told["exit"] == NO_DAEMON
    assert told["error"] in done.stderr


def test_json_is_text_whatever_it_names(away):
    """Names of cgroups and threads may be any bytes; that of a thread ends within a letter."""
    names = {b"\xff\xfe": "\ufffd\ufffd", "\u00e9\u20ac\U0001f600".encode(): "\u00e9\u20ac\U0001f600",
             "caf\u00e9".encode()[:-1]: "caf\ufffd", b"\xed\xa0\x80x": "\ufffd\ufffd\ufffdx", b"": None}
    for name, shown in names.items():
        done = subprocess.run([BIN / "ebbctl", "stats", "--json", b"none-" + name], capture_output=True)
        told = json.loads(done.stdout.decode())
        assert done.returncode and (shown or "") in told["error"]


def test_full_disk_is_noticed():
    with open("/dev/full", "w") as full:
        done = subprocess.run([BIN / "ebbctl", "help"], stdout=full, stderr=subprocess.PIPE,
                              text=True)
    assert done.returncode == FAILED
    assert "stdout" in done.stderr


def test_man_page_knows_every_option():
    man = MAN.read_text().replace("\\-", "-")
    for verb in verbs():
        assert f".It Ic {' '.join(words(verb))}" in man, verb
        usage = ebbctl(*words(verb), "--help").stdout
        section = man.split(f".It Ic {' '.join(words(verb))}", 1)[1]
        section = re.split(r"^\.(?:It Ic|Sh) ", section, maxsplit=1, flags=re.M)[0]
        for option in set(re.findall(r"--([a-z-]+)", usage.split("Example")[0])):
            if option not in ("json", "help"):
                assert f"Fl -{option}" in section, f"{verb}: --{option}"


def test_completion():
    script = ebbctl("completion", "bash").stdout

    def complete(line):
        ask = (f'{script}\nCOMP_WORDS=({line} "")\n'
               'w=${COMP_WORDS[-2]}\n[[ $w == *_ ]] && { unset "COMP_WORDS[-1]"; COMP_WORDS[-1]=${w%_}; }\n'
               'COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_ebbctl 2>/dev/null\nprintf "%s\\n" "${COMPREPLY[@]}"')
        env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", ask], text=True, capture_output=True, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert set(complete("ebbctl")) == {o for o, _ in verbs()}
    assert set(complete("ebbctl device")) == {a for o, a in verbs() if o == "device"}
    assert complete("ebbctl device cr_") == ["create"]
    assert complete("ebbctl device create x --scope") == ["any", "attached"]
    assert "--donor-memory" in complete("ebbctl run --_")
    assert complete("ebbctl completion") == ["bash", "zsh"]


# --- bad input, verb by verb ------------------------------------------------

CREATE = ["device", "create"]
GOOD = ["--size", "64M", "--donor", "127.0.0.1:1"]


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
    assert "--donors" in refuse(USAGE, *CREATE, "x", "--size", "64M")
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


def test_no_device_of_that_name(away):
    refuse(USAGE, "device", "destroy", "nosuch", says=["nosuch", "device list"])
    refuse(USAGE, "device", "abort", "nosuch", "--yes", says=["nosuch", "device list"])
    assert ebbctl_json("device", "list") == {"devices": []}
    assert "device create" in ebbctl("device", "list").stdout


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


@pytest.mark.parametrize("argv", [
    ["status"], ["stats"], ["policy", "list"], ["policy", "load", "/etc/hostname"],
    ["policy", "unload", "x"], ["policy", "show", "x"],
    ["run", "--mem", "64M", "--", "true"],
])
def test_without_daemon(away, argv):
    before = set(machine.leftovers())
    refuse(NO_DAEMON, *argv, says=["control.sock", "ebbd"])
    assert not machine.left_since(before)


def test_without_daemon_on_a_cgroup(away, cgroup):
    c = cgroup(64).path
    for argv in (["policy", "attach", "leap", c], ["policy", "detach", c],
                 ["policy", "set", c, "x=1"], ["stats", c],
                 ["record", c, "-o", "/dev/null", "--seconds", "1"]):
        refuse(NO_DAEMON, *argv, says=["control.sock"])


@pytest.mark.parametrize("argv", [
    ["policy", "attach", "leap", "/no/such"], ["policy", "detach", "/no/such"],
    ["policy", "set", "/no/such", "x=1"], ["stats", "/no/such"],
    ["record", "/no/such", "-o", "/tmp/x", "--seconds", "1"],
])
def test_cgroup_that_does_not_exist(away, argv):
    root, _ = machine.memory_root()
    refuse(USAGE, *argv, says=["/no/such", str(root)])


@pytest.mark.parametrize("word", ["x", "=1", "x=", "x=1k", "x=-1", "x=99999999999999999999",
                                  "run=moon"])
def test_bad_parameters(away, cgroup, word):
    c = cgroup(64).path
    refuse(USAGE, "policy", "attach", "leap", c, word, says=[f"'{word}'"])
    refuse(USAGE, "policy", "set", c, word, says=[f"'{word}'"])
    refuse(USAGE, "run", "--mem", "64M", f"--param={word}", "true", says=[f"'{word}'"])


def test_run_bad_input(away):
    refuse(USAGE, "run", "--mem", "12Q", "true", says=["--mem", "'12Q'"])
    refuse(USAGE, "run", "true", says=["--mem"])
    refuse(USAGE, "run", "--mem", "64M", "--name", "a/b", "true", says=["a/b"])
    refuse(USAGE, "run", "--mem", "64M", "--no-track", "--record", "x", "true", says=["--no-track"])
    refuse(REFUSED, "run", "--mem", "64M", "--no-track", "true", says=["device create", "--start"])


def test_record_bad_input(away, cgroup):
    c = cgroup(64).path
    assert "-o FILE" in refuse(USAGE, "record", c, "--seconds", "1")
    refuse(USAGE, "record", c, "-o", "x", "--seconds", "soon", says=["'soon'"])
    for verb in ("record", "report"):
        refuse(USAGE, verb, c, "-o", "x", "--seconds", "0", says=["--seconds", "'0'"])


def test_no_root(away):
    """As an unprivileged user: requests that need root say so; the rest works."""
    copy = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        copy.chmod(0o755)
        shutil.copy(BIN / "ebbctl", copy)
        as_nobody = dict(user=65534, group=65534, env={"EBB_RUN_DIR": "/nonexistent/ebb"})

        def run(*argv):
            return subprocess.run([copy / "ebbctl", *argv], text=True, capture_output=True, **as_nobody)

        for argv in (["device", "create", "x", *GOOD], ["device", "destroy", "x"],
                     ["device", "abort", "x", "--yes"], ["run", "--mem", "64M", "true"], ["doctor"]):
            done = run(*argv)
            assert done.returncode == REFUSED, done.stderr
            assert "needs root; use sudo" in done.stderr
        assert run("version").returncode == 0
        assert run("device", "list").returncode == 0
    finally:
        shutil.rmtree(copy)


# --- doctor ----------------------------------------------------------------

def test_doctor():
    done = ebbctl("doctor", "--json", check=False)
    told = json.loads(done.stdout)
    missing = [c for c in told["checks"] if c["state"] == "MISSING"]
    assert told["missing"] == len(missing)
    assert done.returncode == (UNSUPPORTED if missing else 0)
    assert {"kernel BTF", "BPF perf_event", "memory controller", "/dev/fuse", "process_madvise",
            "PR_SET_IO_FLUSHER", "locked memory", "zswap off", "vm.page-cluster",
            "others on swap"} <= {c["name"] for c in told["checks"]}
    for c in told["checks"]:
        assert (c["remedy"] is None) == (c["state"] == "have"), c
    plain = ebbctl("doctor", check=False)
    assert plain.returncode == done.returncode
    assert plain.stderr == ""


def test_doctor_sees_what_is_missing():
    """Without CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN nothing loads; it says so."""
    done = subprocess.run(["setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin",
                           "--inh-caps=-bpf,-perfmon,-sys_admin", BIN / "ebbctl", "doctor", "--json"],
                          text=True, capture_output=True)
    told = json.loads(done.stdout)
    states = {c["name"]: c for c in told["checks"]}
    assert done.returncode == UNSUPPORTED
    assert states["BPF perf_event"]["state"] == "MISSING"
    assert "CAP_BPF" in states["BPF perf_event"]["remedy"]


@pytest.mark.parametrize("kib", [1024, 1 << 20])
def test_doctor_of_the_memory_reserve(kib, tmp_path):
    """Less free memory than the kernel's own default; the file is one of this mount namespace only."""
    shown = tmp_path / "min_free"
    shown.write_text(f"{kib}\n")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --bind "$0" '
                           '/proc/sys/vm/min_free_kbytes && exec "$1" doctor --json', shown,
                           BIN / "ebbctl"], text=True, capture_output=True)
    row, = (c for c in json.loads(done.stdout)["checks"] if c["name"] == "vm.min_free_kbytes")
    if kib == 1024:
        assert row["state"] == "degraded" and "sysctl vm.min_free_kbytes=" in row["remedy"]
    else:
        assert row["state"] == "have"
    assert row["found"].startswith(str(kib))


@pytest.mark.parametrize("cap", ["-ipc_lock", "+ipc_lock"])
def test_doctor_of_locked_memory(cap):
    """Below the limit anybody may lock; what counts is a server's memory, which is more."""
    done = subprocess.run(["prlimit", "--memlock=65536", "setpriv", f"--bounding-set={cap}",
                           f"--inh-caps={cap}", BIN / "ebbctl", "doctor", "--json"],
                          text=True, capture_output=True)
    state, = (c["state"] for c in json.loads(done.stdout)["checks"] if c["name"] == "locked memory")
    assert state == ("have" if cap == "+ipc_lock" else "MISSING")


# --- devices ---------------------------------------------------------------

def test_device_life(device):
    assert device.block in machine.swaps()
    [told] = [d for d in ebbctl_json("device", "list")["devices"] if d["name"] == device.name]
    assert told["state"] == "on" and told["on"]
    assert told["donor"] == device.donor.address
    assert told["size"] == 256 << 20
    assert told["server"]["pid"] == told["server_pid"] == device.server
    assert device.name in ebbctl("device", "list").stdout
    info = Path(f"/sys/block/{Path(device.block).name}")
    assert read(info / "loop/dio").strip() == "1"
    assert read(info / "queue/logical_block_size").strip() == "4096"
    assert read(info / "queue/wbt_lat_usec", "0").strip() == "0"
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
    same = {"--size": "256M", "--slab": "16M", "--donors": device.donor.address}
    record = Path(f"/run/ebb/devices/{device.name}.json")
    before = record.read_text()
    told = json.loads(before)

    def again(**others):
        options = same | {f"--{k.replace('_', '-')}": v for k, v in others.items()}
        return ["device", "create", device.name, "--adopt", *(x for o in options.items() for x in o)]

    for others in ({}, {"seal": "auto", "backup": "/var/lib/ebb"}, {"priority": str(told["priority"])}):
        assert ebbctl_json(*again(**others)) | {"other_swap": None} == told | {"other_swap": None}
    for others, has in (({"size": "512M"}, str(256 << 20)), ({"slab": "32M"}, str(16 << 20)),
                        ({"priority": str(told["priority"] - 1)}, str(told["priority"])),
                        ({"frontend": "ublk"}, "fuse"), ({"durability": "none"}, "disk"),
                        ({"backup": "/srv"}, told["backup"]), ({"scope": "attached"}, "any"),
                        ({"key": "/etc/ebb/x.key"}, "none"), ({"seal": "off"}, "auto"),
                        ({"connections": "2"}, "1"),
                        ({"donors": "127.0.0.1:1"}, device.donor.address)):
        [option] = others
        refuse(REFUSED, *again(**others), says=[device.name, f"--{option.replace('_', '-')} {has}, not "])
    # Without donors those of the configuration are meant.
    refuse(REFUSED, "device", "create", device.name, "--adopt", "--size", "256M", "--slab", "16M",
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


def test_destroy_for_programs_prints_its_result_only(slow):
    done = ebbctl("device", "destroy", slow.name, "--json")
    assert json.loads(done.stdout) == {"name": slow.name, "destroyed": True} and done.stderr == ""


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


def test_scope_attached(swap_lock, donor, cgroup):
    if machine.swaps():
        pytest.skip("other swap is on")
    c = cgroup(64)
    # v2's limit holds for all below, so the outermost cgroup has it.
    knob = c.path / "memory.swappiness" if c.version == 1 else c.path.parent / "memory.swap.max"
    before = read(knob)
    d = parts.Device(donor, name="scoped", options=["--scope", "attached"])
    try:
        assert read(knob).strip() == "0"
    finally:
        d.destroy()
    assert read(knob) == before
    assert not Path("/run/ebb/devices/scoped.scope").exists()


@pytest.fixture
def scoped(swap_lock, away, cgroup):
    """Two cgroups and a device of that scope, but for the device; .attached is what its ebbd says."""
    class World:
        run, attached, silent = away / "run", [], False
        a, b = cgroup(name="a"), cgroup(name="b")

        def answer(self, request):
            if request["verb"] != "status":
                return {}
            return control_server.error("busy") if self.silent else {
                "attachments": [{"cgroup": str(c)} for c in self.attached]}

        def limited(self, c):
            name = "memory.swappiness" if c.version == 1 else "memory.swap.max"
            return read(c.path / name).strip() == "0"

    w = World()
    control_server.write_record(w.run, "scoped", scope="attached", backup="", mount=str(away / "mnt"))
    server = control_server.ControlServer(w.run / "control.sock", w.answer)
    yield w
    server.close()
    ebbctl("device", "destroy", "scoped")
    assert not w.limited(w.a) and not w.limited(w.b)
    assert not (w.run / "devices" / "scoped.scope").exists()


def test_scope_while_ebbd_is_silent(scoped):
    """Attached cgroups keep their swap while ebbd does not answer."""
    w = scoped
    w.attached = [w.a.path]
    ebbctl("policy", "attach", "none", w.a.path)
    assert not w.limited(w.a) and w.limited(w.b)
    w.silent = True
    done = ebbctl("policy", "attach", "none", w.b.path)
    assert "ebbd does not answer" in done.stderr
    assert not w.limited(w.a) and not w.limited(w.b)
    ebbctl("policy", "detach", w.b.path)
    assert not w.limited(w.a)
    w.silent = False
    ebbctl("policy", "detach", w.b.path)
    assert not w.limited(w.a) and w.limited(w.b)


def test_scope_with_many_attached(scoped):
    """As many as ebbd takes."""
    w = scoped
    w.attached = [w.b.path / f"none-{i}" for i in range(1023)] + [w.a.path]
    ebbctl("policy", "detach", w.a.path)
    assert not w.limited(w.a)


def test_scope_of_two_at_once(scoped):
    """One after the other, or values to restore would be lost."""
    file = scoped.run / "devices" / "scoped.scope"
    with open(scoped.run / "devices" / "scope.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        p = subprocess.Popen([BIN / "ebbctl", "policy", "attach", "none", scoped.a.path])
        time.sleep(1)
        assert p.poll() is None and not file.exists()
    assert p.wait(60) == 0 and file.exists()


# --- policies and statistics -------------------------------------------------

def test_hooks_that_are_demanded(ebbd_lock, logs, tmp_path):
    """What the kernel does not take, as auto finds, ebbd does not begin without."""
    config = tmp_path / "ebb.conf"
    config.write_text("[bpf]\nhooks = fentry\n")
    daemon = parts.Ebbd(logs / "ebbd.log")
    try:
        used = ebbctl_json("status")["hooks"]
        daemon.stop()
        if used == "fentry":
            daemon = parts.Ebbd(logs / "ebbd.log", config=config)
            assert ebbctl_json("status")["hooks"] == "fentry"
            return
        done = subprocess.run([BIN / "ebbd", "--config", config], capture_output=True, text=True, timeout=60)
        assert done.returncode == UNSUPPORTED
        assert re.search(r"hooks = fentry: cannot attach to do_swap_page .*: .*; write auto or tracepoints", done.stderr)
        daemon = parts.Ebbd(logs / "ebbd.log")
        assert ebbctl_json("status")["hooks"] == used
    finally:
        daemon.stop()
        machine.pins_remove()


def test_policies(ebbd, cgroup):
    c = cgroup(64)
    names = {p["name"]: p for p in ebbctl_json("policy", "list")["policies"]}
    assert {"none", "stride", "leap"} <= set(names)
    for name in names:
        assert name in ebbctl("policy", "list").stdout
    refuse(USAGE, "policy", "attach", "nosuch", c.path, says=["nosuch"])
    param = names["leap"]["params"][0]
    ebbctl("policy", "attach", "leap", c.path, f"{param['name']}={param['max']}")
    [told] = [a for a in ebbctl_json("status")["attachments"] if a["cgroup"] == str(c.path)]
    assert told["policy"] == "leap"
    assert told["params"][param["name"]] == param["max"]
    ebbctl("policy", "set", c.rel, f"{param['name']}={param['min']}")
    [told] = [a for a in ebbctl_json("status")["attachments"] if a["cgroup"] == str(c.path)]
    assert told["params"][param["name"]] == param["min"]
    refuse(USAGE, "policy", "set", c.path, "nosuch=1", says=["nosuch"])
    refuse(USAGE, "policy", "set", c.path, f"{param['name']}={param['max'] + 1}",
           says=[param["name"]])
    status = ebbctl("status").stdout
    assert str(c.path) in status and "leap" in status
    ebbctl("policy", "detach", c.path)
    assert not ebbctl_json("status")["attachments"]


def test_stats_of_a_scan(ebbd, device, cgroup):
    c = cgroup(48)
    ebbctl("policy", "attach", "leap", c.path)
    parts.scan(c, mib=96, pattern="seq", passes=2, write=True)
    [row] = ebbctl_json("stats", c.path)["cgroups"]
    assert row["path"].endswith(c.rel) and row["policy"] == "leap"
    used = row["hits"] + row["late"]
    assert used > 1000
    assert row["coverage"] == pytest.approx(used / (used + row["misses"]), rel=1e-4)
    assert row["accuracy"] == pytest.approx(used / row["prefetched"], rel=1e-4)
    assert 0 < row["miss_p50_ns"] <= row["miss_p99_ns"]
    assert row["lost_ns"] == row["miss_ns"] + row["late_ns"]
    assert c.rel in ebbctl("stats").stdout


# --- run ---------------------------------------------------------------------

def run(*argv, options=(), **kwargs):
    return ebbctl("run", "--mem", "64M", *options, "--", *argv, check=False, **kwargs)


def nothing_of_run_left():
    return not [c for c in machine.ebb_cgroups() if "ebb-run-" in str(c)]


def test_run_passes_status_and_streams(ebbd, device):
    done = run("sh", "-c", "cat; echo err >&2; exit 7", input="hello\n")
    assert done.returncode == 7
    assert done.stdout == "hello\n"
    assert "err\n" in done.stderr
    assert "exit status 7" in done.stderr and "peak" in done.stderr
    done = run("sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    done = run("/no/such/program")
    assert done.returncode == 127
    done = run("/etc/passwd")
    assert done.returncode == 126
    assert nothing_of_run_left()


def test_run_limits_and_counts(ebbd, device, tmp_path):
    summary = tmp_path / "s.json"
    argv = parts.scan_argv(mib=128, pattern="seq", passes=2, write=True)
    done = run(*argv, options=["--json", summary])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
    told = json.loads(summary.read_text())
    assert told["limit"] == 64 << 20
    assert 0 < told["peak"] <= 65 << 20
    assert told["policy"] == "auto" and told["oom_kills"] == 0
    assert told["stats"]["swapped_out"] > 1000
    assert told["stats"]["coverage"] > 0.5
    assert "coverage" in done.stderr and "lost to misses" in done.stderr
    assert nothing_of_run_left()


def test_run_without_tracking(ebbd, device, tmp_path):
    summary = tmp_path / "s.json"
    done = run("true", options=["--no-track", "--quiet", "--json", summary])
    assert done.returncode == 0 and done.stderr == ""
    told = json.loads(summary.read_text())
    assert told["tracked"] is False and told["policy"] is None and "stats" not in told


def test_run_unknown_policy(ebbd, device):
    done = run("true", options=["--policy", "nosuch"])
    assert done.returncode == USAGE
    assert "nosuch" in done.stderr
    assert nothing_of_run_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_run_passes_signals(ebbd, device, number):
    p = subprocess.Popen([BIN / "ebbctl", "run", "--mem", "64M", "--", "sh", "-c",
                          f"trap 'echo got; exit 9' {number.name[3:]}; echo up; while :; do sleep 0.1; done"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "up\n"
    p.send_signal(number)
    out, _ = p.communicate(timeout=120)
    assert (out, p.returncode) == ("got\n", 9)
    assert nothing_of_run_left()


def test_run_with_signals_that_the_caller_ignores(ebbd, device):
    """As below nohup: the program ignores what the caller ignores, and no more."""
    def ignored(*options):
        """A bit each; env(1) cannot reset signals 32 and up, which glibc keeps for itself."""
        told = subprocess.run(
            ["env", "--default-signal", *options, BIN / "ebbctl", "run", "--mem", "64M", "--",
             "grep", "SigIgn", "/proc/self/status"],
            stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
        return int(told, 16) & (1 << 31) - 1

    assert ignored() == 0
    bits = {signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE}
    assert ignored(*(f"--ignore-signal={n.name[3:]}" for n in bits)) == \
        sum(1 << n - 1 for n in bits)
    assert nothing_of_run_left()


def test_run_as_the_invoking_user(ebbd, device):
    env = {**os.environ, "SUDO_UID": "65534", "SUDO_GID": "65534", "SUDO_USER": "nobody"}
    ask = ["sh", "-c", "id -u; id -g; id -G; echo $USER"]
    assert run(*ask, env=env).stdout.split() == ["65534", "65534", "65534", "nobody"]
    assert run(*ask, options=["--root"], env=env).stdout.split()[0] == "0"


def test_run_says_when_the_oom_killer_struck(ebbd, device):
    """256 MiB of swap and 64 of memory do not hold 400."""
    ask = "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = i >> 12 & 255"
    done = run("/usr/bin/python3", "-c", ask)
    assert done.returncode == 128 + signal.SIGKILL
    assert "OOM kills" in done.stderr
    assert nothing_of_run_left()


def test_run_ends_what_the_program_left(ebbd, device):
    done = run("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
    assert "ended 1 processes" in done.stderr
    assert not Path(f"/proc/{done.stdout.strip()}/exe").exists()
    assert nothing_of_run_left()


def test_run_that_nobody_listens_to(ebbd, device):
    """As before `| head`: what it has to say is lost, what it made is taken away."""
    p = subprocess.Popen([BIN / "ebbctl", "run", "--mem", "64M", "--", "sh", "-c",
                          "read x; kill -PIPE $$"],
                         stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    p.stderr.close()
    p.stdin.close()
    # The program's SIGPIPE is what it was.
    assert p.wait(120) == 128 + signal.SIGPIPE
    assert nothing_of_run_left() and not ebbctl_json("status")["attachments"]


def test_run_keep(ebbd, device):
    done = run("true", options=["--keep", "--name", "kept"])
    assert done.returncode == 0
    root, _ = machine.memory_root()
    kept = [c for c in machine.ebb_cgroups() if "ebb-kept" in c.name]
    try:
        assert root / "ebb-kept" in kept or root / "system.slice/ebb-kept.scope" in kept
        assert run("true", options=["--name", "kept"]).returncode == REFUSED
    finally:
        ebbctl("policy", "detach", "ebb-kept", check=False)
        for c in kept:
            c.rmdir()


def test_run_start(swap_lock):
    """Starts all that is missing for the program, and stops it afterwards."""
    before = set(machine.leftovers())
    argv = parts.scan_argv(mib=128, pattern="seq", passes=2, write=True)
    done = ebbctl("run", "--mem", "64M", "--start", "--donor-memory", "512M", "--", *argv,
                  check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "coverage" in done.stderr
    assert not machine.left_since(before)


def test_run_start_that_fails_leaves_nothing(swap_lock, away):
    before = set(machine.leftovers())
    done = ebbctl("run", "--mem", "64M", "--start", "--donor-memory", "512M", "--policy", "nosuch",
                  "--", "true", check=False, timeout=240)
    assert done.returncode == USAGE, done.stderr
    assert "nosuch" in done.stderr
    assert not machine.left_since(before)


def test_record(ebbd, device, cgroup, tmp_path):
    c = cgroup(48)
    ebbctl("policy", "attach", "none", c.path)
    scan = parts.Scan(c, mib=96, pattern="seq", write=True)
    try:
        file = tmp_path / "faults"
        recorder = subprocess.Popen([BIN / "ebbctl", "record", c.path, "-o", file, "--seconds", "60"],
                                    stdout=subprocess.PIPE, text=True)
        machine.wait_for(lambda: file.exists() and file.stat().st_size >= 512, 10, "the recording to begin")
        scan.go()
        scan.result()
        # ^C ends the recording in good order.
        recorder.send_signal(signal.SIGINT)
        out, _ = recorder.communicate(timeout=120)
        assert recorder.returncode == 0
        assert str(file) in out and file.stat().st_size > 1000
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
