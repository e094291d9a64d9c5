# SPDX-License-Identifier: GPL-2.0-or-later
"""`ebbctl policy load`, `unload`, `show`: policies of a user's own, good and bad."""
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import machine
import parts
import policies
from machine import wait_for
from parts import REFUSED, USAGE, ebbctl, ebbctl_json
from rows import few


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Where this ebbd keeps what it loads."""
    directory = tmp_path / "state"
    monkeypatch.setenv("EBB_STATE_DIR", str(directory))
    return directory / "policies"


def names():
    return [p["name"] for p in ebbctl_json("policy", "list")["policies"]]


def kept(state):
    return sorted(p.name for p in state.iterdir()) if state.exists() else []


def refuse(status, file, *says):
    done = ebbctl("policy", "load", file, check=False)
    assert done.returncode == status, (file, done.stderr)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    for word in says:
        assert word in done.stderr, done.stderr
    return done.stderr


def test_life_of_a_policy(state, ebbd, tmp_path, cgroup):
    before, c = names(), cgroup()
    file = policies.compile_policy(tmp_path, policies.source())
    told = ebbctl_json("policy", "load", file)
    assert (told["name"], told["done"]) == ("mine", "loaded")
    assert names() == before + ["mine"]
    assert kept(state) == ["mine.bpf.o"]
    assert (state / "mine.bpf.o").read_bytes() == file.read_bytes()

    ebbctl("policy", "attach", "mine", c.path, "window=9")
    shown = ebbctl_json("policy", "show", c.path)
    assert shown["values"] == {"window": 9} and shown["run"] == "kernel"
    assert shown["by"] == "command" and shown["stats"]["requests"] == 0
    assert shown["cost"]["verified"] >= shown["cost"]["instructions"] // 2 > 0
    shown = ebbctl_json("policy", "show", "mine")
    assert shown["cgroups"] == [str(c.path)] and shown["origin"] == "loaded"
    assert str(c.path) in ebbctl("policy", "show", "mine").stdout

    done = ebbctl("policy", "unload", "mine", check=False)
    assert done.returncode == REFUSED and str(c.path) in done.stderr
    assert "mine" in names() and policies.attached()[c.rel]["policy"] == "mine"
    ebbctl("policy", "detach", c.path)
    ebbctl("policy", "unload", "mine")
    assert names() == before and kept(state) == []
    ebbctl("policy", "load", file)  # its slot is free again
    assert names() == before + ["mine"]


def test_cost_is_measured(state, ebbd, tmp_path):
    """A loop of known length shows in the trial; what comes with ebb is measured when asked for."""
    loop = ("__u64 x = f->vpn;\n\tEBB_ROLLED\n\tfor (int i = 0; i < 1000; i++)"
            "\n\t\tx = x * 3 + (x >> 7);\n\t*(volatile __u64 *)&s->last = x;")
    quick = ebbctl_json("policy", "load", policies.compile_policy(tmp_path, policies.source()))
    slow = ebbctl_json("policy", "load", policies.compile_policy(
        tmp_path, policies.source("loop", loop), "loop"))
    assert 0 < quick["call_ns"] < 2000
    assert slow["call_ns"] > quick["call_ns"] + 500  # 1000 turns at a bit less than 1 ns and more
    leap = ebbctl_json("policy", "show", "leap", "--time", "200ms")
    assert leap["cost"]["calls"] > 500 and leap["cost"]["median_ns"] > 0
    assert {p["name"] for p in leap["programs"]} == {"fault_enter", "fault_minor", "fault_major"}
    assert all("runs" in p for p in leap["programs"])


UNCHECKED = ("__u64 k = f->vpn;\n\tstruct ebb_counters *c = bpf_map_lookup_elem(&counters, &k);"
             "\n\tc->misses++;")


def spoilt(tmp_path):
    """Returns (file, exit status, words of the message) of what is refused after a quick look."""
    good = policies.compile_policy(tmp_path / "good", policies.source())
    make = lambda name, **how: policies.compile_policy(
        tmp_path / name, policies.source(name, **how), name)
    text, empty, fifo = tmp_path / "text.bpf.o", tmp_path / "empty.bpf.o", tmp_path / "fifo"
    text.write_text("not an object\n")
    empty.write_bytes(b"")
    os.mkfifo(fifo)
    abi = "#undef EBB_ABI\n#define EBB_ABI 77"
    wrong_range = ("WINDOW", 'EBB_PARAM(WINDOW, "window", 8, 9, 64, "pages")')
    reserved = ("WINDOW", 'EBB_PARAM(WINDOW, "detect", 8, 1, 64, "pages")')
    truncated = tmp_path / "truncated.bpf.o"
    truncated.write_bytes(good.read_bytes()[:good.stat().st_size // 2])
    return [
        (tmp_path / "nothing", USAGE, ["No such file"]),
        (tmp_path, USAGE, ["not an object file"]),
        (text, USAGE, ["not an object file"]),
        (empty, USAGE, ["not an object file"]),
        (fifo, USAGE, ["not an object file"]),
        ("/dev/zero", USAGE, ["not an object file"]),
        (truncated, USAGE, []),
        (machine.BIN / "ebbctl", USAGE, ["not an object for BPF"]),
        (machine.BUILD / "bpf" / "evict.bpf.o", USAGE, ["no policy in it"]),
        (make("other_abi", before=abi), USAGE, ["ABI 77", "policy.mk"]),
        (policies.patched(good, "unlicensed", b"license\0", b"xicense\0"), USAGE, ["no license"]),
        (policies.patched(good, "mit", b"GPL\0", b"MIT\0"), USAGE, ["'MIT'"]),
        (policies.patched(good, "no-btf", b".BTF\0", b".XTF\0"), USAGE, ["BTF"]),
        (policies.patched(good, "empty", b"perf_event\0", b"perf_xvent\0"), USAGE, ["program"]),
        (make("bad_range", params=(wrong_range,)), USAGE, ["window", "between 9 and 64"]),
        (make("reserved_word", params=(reserved,)), USAGE, ["detect"]),
        (policies.renamed(good, "mine", "leap"), REFUSED, ["comes with ebb"]),
        (policies.renamed(good, "mine", "none"), REFUSED, ["comes with ebb"]),
        (policies.renamed(good, "mine", "MINE"), USAGE, ["name"]),
        (make("too_slow", body=turns(60000)), REFUSED, ["too slow"]),
        (make("unchecked", body=UNCHECKED), REFUSED,
         ["rejected by the verifier", "map_value_or_null", "verifier.log"]),
    ]


def turns(n):
    return (f"__u64 x = f->vpn;\n\tEBB_ROLLED\n\tfor (int i = 0; i < {n}; i++)"
            "\n\t\tx = x * 3 + (x >> 7);\n\t*(volatile __u64 *)&s->last = x;")


def too_slow(tmp_path):
    """Policies that the verifier or the trial refuses, some of them after seconds."""
    make = lambda name, **how: policies.compile_policy(tmp_path / name, policies.source(name, **how), name)
    # What only a collector's thread is made to wait for.
    collector = "if (!f->room || f->role != EBB_ROLE_GC)\n\t\treturn;\n\t" + turns(60000)
    again = "static long again(__u32 i, void *data)\n{\n\treturn 0;\n}"
    iterator = "extern int bpf_iter_num_new(void *it, int from, int to) __ksym;"
    return [
        (make("slow_collector", body=collector), REFUSED, ["too slow"]),
        (make("goes_round", before=again, body="bpf_loop(1 << 23, again, NULL, 0);"), REFUSED,
         ["bpf_loop()"]),
        (make("iterates", before=iterator, body="__u64 it;\n\n\tbpf_iter_num_new(&it, 0, 9);"),
         REFUSED, ["an iterator"]),
        (make("too_long", body=turns(160000)), REFUSED, ["too long"]),
        (make("too_endless", body=turns(100000000)), REFUSED, ["rejected by the verifier"]),
    ]


@pytest.mark.parametrize("which", few([spoilt, too_slow], spoilt), ids=lambda f: f.__name__)
def test_bad_ones_are_refused_and_change_nothing(state, ebbd, tmp_path, cgroup, which):
    c = cgroup()
    file = policies.compile_policy(tmp_path, policies.source())
    ebbctl("policy", "load", file)
    ebbctl("policy", "attach", "mine", c.path, "window=9")
    before = (ebbctl("policy", "list").stdout, policies.attached(), kept(state))
    for bad, status, says in which(tmp_path / "bad"):
        refuse(status, bad, *says)
        assert (ebbctl("policy", "list").stdout, policies.attached(), kept(state)) == before, bad
    last = "program is too large" if which is too_slow else "map_value_or_null"
    assert last in machine.read("/run/ebb/verifier.log")
    assert ebbd.alive()


@pytest.mark.long
def test_a_long_look_of_the_verifier_silences_nobody(state, ebbd, tmp_path):
    """Policies go quiet when ebbd's heartbeat is 2 s old; a refusal may take longer than that."""
    body = ("__u64 x = f->vpn;\n\tEBB_ROLLED\n\tfor (int i = 0; i < 100000000; i++)"
            "\n\t\tx = x * 3 + (x >> 7);\n\t*(volatile __u64 *)&s->last = x;")
    file = policies.compile_policy(tmp_path, policies.source(body=body))
    load = subprocess.Popen([machine.BIN / "ebbctl", "policy", "load", file],
                            stderr=subprocess.DEVNULL)
    ages = []
    while load.poll() is None:
        now = time.monotonic_ns()
        done = subprocess.run(["/usr/sbin/bpftool", "-j", "map", "dump", "pinned",
                               machine.PINS / "maps" / "meta"], capture_output=True, check=True)
        entry = json.loads(done.stdout)[0]
        ages.append(now - entry.get("formatted", entry)["value"]["heartbeat_ns"])
        time.sleep(0.05)
    assert load.returncode == REFUSED
    # One that is old when the next is not: this machine stood still.
    assert max(map(min, zip(ages, ages[1:]))) < 1.5e9


def test_full_and_missing_state_directories(state, ebbd, tmp_path):
    """What cannot be kept is not loaded."""
    file, before = policies.compile_policy(tmp_path, policies.source()), names()
    state.parent.write_text("in the way\n")
    refuse(1, file, str(state))
    state.parent.unlink()
    state.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "ebb-test", state], check=True)
    try:
        refuse(1, file, str(state), "No space left")
        assert kept(state) == [] and names() == before
    finally:
        subprocess.run(["umount", state], check=True)
    ebbctl("policy", "load", file)


@pytest.mark.long
def test_no_more_than_fit(state, ebbd, tmp_path):
    file = policies.compile_policy(tmp_path, policies.source())
    room = 31 - (len(names()) - 1)
    for i in range(room):
        ebbctl("policy", "load", policies.renamed(file, "mine", f"p{i:03}"))
    refuse(REFUSED, policies.renamed(file, "mine", "p999"), "31 policies")
    assert len(names()) == 32 and len(kept(state)) == room
    ebbctl("policy", "unload", "p007")
    ebbctl("policy", "load", policies.renamed(file, "mine", "p999"))


def test_replaced_where_it_is_attached(state, ebbd, tmp_path, cgroup):
    c = cgroup()
    params = (policies.WINDOW, ("DEPTH", 'EBB_PARAM(DEPTH, "depth", 3, 0, 9, "turns")'),
              ("OLD", 'EBB_PARAM(OLD, "old", 1, 0, 9, "gone later")'))
    ebbctl("policy", "load", policies.compile_policy(tmp_path, policies.source(params=params)))
    ebbctl("policy", "attach", "mine", c.path, "window=60", "depth=7")
    narrow = ("WINDOW", 'EBB_PARAM(WINDOW, "window", 8, 1, 32, "pages")')
    told = ebbctl_json("policy", "load", policies.compile_policy(
        tmp_path, policies.source(params=(("NEW", 'EBB_PARAM(NEW, "new", 5, 0, 9, "new")'),
                                          params[1], narrow))))
    assert told["done"] == "replaced"
    assert set(told["dropped"].split(", ")) == {"window", "old"}
    assert policies.attached()[c.rel]["params"] == {"new": 5, "depth": 7, "window": 8}


def test_loaded_ones_outlive_ebbd(state, ebbd, tmp_path, cgroup, logs):
    """And so do attachments; what is damaged meanwhile is left out and named."""
    c, file = cgroup(), policies.compile_policy(tmp_path, policies.source())
    other = policies.renamed(file, "mine", "your")
    ebbctl("policy", "load", file)
    ebbctl("policy", "load", other)
    ebbctl("policy", "attach", "mine", c.path, "window=9")
    wait_for(lambda: parts.pinned_stats(c)["policy"] == "mine", 5, "published")
    file.unlink()
    ebbd.kill()
    (state / "your.bpf.o").write_bytes(b"damaged")
    successor = parts.Ebbd(logs / "successor.log")
    try:
        assert "mine" in names() and "your" not in names()
        row = policies.attached()[c.rel]
        assert (row["policy"], row["params"]) == ("mine", {"window": 9})
        assert "your.bpf.o: not an object file" in machine.read(successor.log)
        ebbctl("policy", "load", other)
    finally:
        successor.stop()


def test_what_the_kernel_rejected_is_not_verified_at_each_attach(state, ebbd, tmp_path, cgroup, logs):
    """As after an update of the kernel: any user's xattr could keep ebbd's main thread busy."""
    c, log = cgroup(), Path("/run/ebb/verifier.log")
    ebbctl("policy", "load", policies.compile_policy(tmp_path / "good", policies.source()))
    ebbd.kill()
    rejected = policies.compile_policy(tmp_path / "bad", policies.source(body=UNCHECKED))
    (state / "mine.bpf.o").write_bytes(rejected.read_bytes())
    successor = parts.Ebbd(logs / "successor.log")
    try:
        attach = lambda: ebbctl("policy", "attach", "mine", c.path, check=False)
        first, at = attach(), log.stat().st_mtime_ns
        again = attach()
        assert first.returncode == again.returncode == REFUSED
        assert first.stderr == again.stderr and "rejected by the verifier" in first.stderr
        assert log.stat().st_mtime_ns == at
    finally:
        successor.stop()


def test_policies_run_in_the_kernel_only(state, ebbd, tmp_path, cgroup):
    c = cgroup()
    native = policies.compile_policy(tmp_path, policies.source(), kinds=("so", "bpf.o"))
    refuse(USAGE, native, "mine.so")
    assert "mine" not in names() and kept(state) == []
    ebbctl("policy", "load", tmp_path / "mine.bpf.o")
    done = ebbctl("policy", "attach", "mine", c.path, "run=daemon", "window=3")
    assert "run=daemon: no longer supported and ignored" in done.stderr
    policies.call("policy.set", cgroup=str(c.path), run="daemon")
    assert "run=daemon: no longer supported and ignored" in machine.read(ebbd.log)
    row = policies.attached()[c.rel]
    assert row["run"] == "kernel" and row["params"] == {"window": 3}
    done = ebbctl("policy", "set", c.path, "run=moon", check=False)
    assert done.returncode == USAGE and "run=moon" in done.stderr
