# SPDX-License-Identifier: GPL-2.0-or-later
"""ebbctl policy and stats on a real ebbd, and the scope of a device, which follows attachments."""
import fcntl
import re
import subprocess
import time
from pathlib import Path

import pytest

import control_server
import machine
import parts
from machine import BIN, read
from parts import UNSUPPORTED, USAGE, ebbctl, ebbctl_json
from refusals import refuse
from refusals import away    # fixture


# --- scope ------------------------------------------------------------------

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


def test_scope_record_of_any_size(scoped):
    """And one that cannot be read is kept: it has the limits to restore."""
    w, file = scoped, scoped.run / "devices" / "scoped.scope"
    gone = w.b.path / "gone"
    w.attached = [w.a.path]
    gone.mkdir()
    ebbctl("policy", "attach", "none", w.a.path)
    gone.rmdir()
    assert w.limited(w.b)
    text = file.read_text()
    file.write_text("[{")
    assert "cannot read which limits" in ebbctl("policy", "attach", "none", w.a.path).stderr
    assert file.read_text() == "[{"
    file.write_text(" " * (3 << 20) + text)
    w.attached = [w.a.path, w.b.path]
    ebbctl("policy", "attach", "none", w.b.path)
    assert not w.limited(w.b) and str(gone) not in file.read_text()


def test_scope_of_two_at_once(scoped):
    """One after the other, or values to restore would be lost."""
    file = scoped.run / "devices" / "scoped.scope"
    with open(scoped.run / "devices" / "scope.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        p = subprocess.Popen([BIN / "ebbctl", "policy", "attach", "none", scoped.a.path])
        time.sleep(1)
        assert p.poll() is None and not file.exists()
    assert p.wait(60) == 0 and file.exists()


# --- policies and statistics ------------------------------------------------

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
