# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbctl: what every verb has in common, bad input of verbs, and doctor."""
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import machine
from machine import BIN
from parts import FAILED, NO_DAEMON, REFUSED, UNSUPPORTED, USAGE, ebbctl, ebbctl_json
from refusals import GOOD, refuse
from refusals import away    # fixture

MAN = machine.REPO / "docs" / "man" / "ebbctl.8"


def verbs():
    """(object, action or None) of every command, from the help."""
    text = ebbctl("help").stdout
    rows = re.findall(r"^  ([a-z]+)(?: ([a-z]+))?  +\S", text, re.M)
    assert len(rows) >= 16
    return [(o, a or None) for o, a in rows]


def words(verb):
    return [w for w in verb if w]


# --- what every verb has in common ------------------------------------------

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
    refuse(USAGE, "help", "doctor", "list", says=["doctor: takes no action", "ebbctl help doctor"])
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
    # Wherever --json is, and whatever is wrong.
    for argv in (["status", "--bogus", "--json"], ["status", "--json", "--bogus"], ["status", "--bogus", "-j"],
                 ["frobnicate", "--json"], ["device", "--json"], ["device", "frobnicate", "--json"]):
        done = ebbctl(*argv, check=False)
        assert done.returncode == USAGE
        told = json.loads(done.stdout)
        assert told["exit"] == USAGE and told["error"] in done.stderr
    assert ebbctl("status", "--bogus", "--", "--json", check=False).stdout == ""


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

def test_no_device_of_that_name(away):
    refuse(USAGE, "device", "destroy", "nosuch", says=["nosuch", "device list"])
    refuse(USAGE, "device", "abort", "nosuch", "--yes", says=["nosuch: no such device", "device list"])
    assert ebbctl_json("device", "list") == {"devices": []}
    assert "device create" in ebbctl("device", "list").stdout


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
    for name in ("a/b", ".x"):
        refuse(USAGE, "run", "--mem", "64M", "--name", name, "true", says=[name, "without '/'", "'.'"])
    for argv in (["--json", "--mem", "64M"], ["--mem", "64M", "--json"], ["--mem", "64M", "--record", "--start"]):
        refuse(USAGE, "run", *argv, "--", "true", says=["value missing", "FILE"])
    refuse(USAGE, "run", "--mem", "64M", "--no-track", "--record", "x", "true", says=["--no-track"])
    refuse(REFUSED, "run", "--mem", "64M", "--no-track", "true", says=["device create", "--start"])


def test_record_bad_input(away, cgroup):
    c = cgroup(64).path
    assert "-o FILE" in refuse(USAGE, "record", c, "--seconds", "1")
    refuse(USAGE, "record", c, "-o", "x", "--seconds", "soon", says=["'soon'"])
    for verb in ("record", "report"):
        refuse(USAGE, verb, c, "-o", "x", "--seconds", "0", says=["--seconds", "'0'", "at least 1us"])


def test_advise_bad_input(away):
    refuse(USAGE, "advise", says=["no input", "exactly one of"])
    refuse(USAGE, "advise", "--trace", "x", "--cgroup", "y", says=["several inputs", "exactly one of"])


def test_no_key_for_all_addresses_of_a_machine(away):
    ebbctl("key", "create", away / "own.key", "--name", "spark")
    for address in ("0.0.0.0:7070", "0.0.0.0", "[::]:7070", "rdma:[0::0]"):
        refuse(USAGE, "key", "derive", away / "own.key", address, away / "derived.key",
               says=["give the address that borrowers use"])
    assert not (away / "derived.key").exists()


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


# --- doctor -----------------------------------------------------------------

def test_doctor():
    done = ebbctl("doctor", "--json", check=False)
    told = json.loads(done.stdout)
    missing = [c for c in told["checks"] if c["state"] == "MISSING"]
    assert told["missing"] == len(missing)
    assert done.returncode == (UNSUPPORTED if missing else 0)
    assert {"kernel BTF", "BPF perf_event", "memory controller", "/dev/fuse", "process_madvise",
            "PR_SET_IO_FLUSHER", "locked memory", "zswap", "vm.page-cluster",
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


@pytest.mark.parametrize("there", [False, True])
def test_doctor_of_swap_tiers(there, tmp_path):
    """This kernel has no tiers: a directory of this mount namespace only stands in for one's."""
    if there:
        (tmp_path / "tiers").write_text("fast 0 100 32767\n")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --bind "$0" '
                           '/sys/kernel/mm/swap && exec "$1" doctor --json', tmp_path,
                           BIN / "ebbctl"], text=True, capture_output=True)
    row, = (c for c in json.loads(done.stdout)["checks"] if c["name"] == "swap tiers")
    if there:
        assert row["state"] == "note" and "/sys/kernel/mm/swap/tiers" in row["found"]
        assert "--scope attached" in row["remedy"]
    else:
        assert row["state"] == "have"


ZSWAP = {"enabled": "Y", "compressor": "lz4", "shrinker_enabled": "Y"}


@pytest.mark.parametrize("settings, stored, pool, judged, says", [
    (None, 0, 0, {"zswap": "note"}, "CONFIG_ZSWAP"),
    ({**ZSWAP, "enabled": "N"}, 0, 0, {"zswap": "note"}, "echo Y > /sys/module/zswap/parameters/enabled"),
    (ZSWAP, 100, 30, {"zswap": "have", "zswap compressor": "have", "zswap shrinker": "have"}, "3.3 : 1"),
    (ZSWAP, 1, 1, {"zswap": "have"}, "too little to judge"),
    (ZSWAP, 100, 90, {"zswap": "degraded"}, "echo N > /sys/module/zswap/parameters/enabled"),
    ({**ZSWAP, "shrinker_enabled": "N"}, 100, 30, {"zswap": "have", "zswap shrinker": "degraded"},
     "echo Y > /sys/module/zswap/parameters/shrinker_enabled"),
    ({"enabled": "Y", "compressor": "deflate", "zpool": "zbud"}, 100, 60,
     {"zswap": "have", "zswap compressor": "note", "zswap pool": "note", "zswap shrinker": "note"},
     "echo zsmalloc > /sys/module/zswap/parameters/zpool"),
], ids=["none", "off", "on", "empty", "incompressible", "shrinker", "old"])
def test_doctor_of_zswap(settings, stored, pool, judged, says, tmp_path):
    """On a stand-in for the kernel's files, in this mount namespace only."""
    (tmp_path / "module" / "parameters").mkdir(parents=True)
    for name, value in (settings or {}).items():
        (tmp_path / "module" / "parameters" / name).write_text(f"{value}\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"
                                      f"Zswap: {pool << 10} kB\nZswapped: {stored << 10} kB\n")
    done = subprocess.run(["unshare", "--mount", "sh", "-c", 'mount --bind "$0/module" /sys/module/zswap && '
                           'mount --bind "$0/meminfo" /proc/meminfo && exec "$1" doctor --json', tmp_path,
                           BIN / "ebbctl"], text=True, capture_output=True)
    rows = {c["name"]: c for c in json.loads(done.stdout)["checks"] if c["name"].startswith("zswap")}
    assert {name: rows[name]["state"] for name in judged} == judged, rows
    assert any(says in f"{c['found']} {c['remedy']}" for c in rows.values()), rows
    assert settings or set(rows) == {"zswap"}


@pytest.mark.parametrize("cap", ["-ipc_lock", "+ipc_lock"])
def test_doctor_of_locked_memory(cap):
    """Below the limit anybody may lock; what counts is a server's memory, which is more."""
    done = subprocess.run(["prlimit", "--memlock=65536", "setpriv", f"--bounding-set={cap}",
                           f"--inh-caps={cap}", BIN / "ebbctl", "doctor", "--json"],
                          text=True, capture_output=True)
    state, = (c["state"] for c in json.loads(done.stdout)["checks"] if c["name"] == "locked memory")
    assert state == ("have" if cap == "+ipc_lock" else "MISSING")
