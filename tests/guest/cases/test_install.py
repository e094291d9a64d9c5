# SPDX-License-Identifier: GPL-2.0-or-later
"""
The Debian packages on a machine with systemd are installed, used, upgraded while pages are out,
removed and purged.  The tests run in sequence on one machine: `make guest-install`.
"""
import json
import os
import pwd
import shutil
import signal
import subprocess
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

import kmodule
import machine
import parts
from kswap import Kswap
from machine import read, wait_for
from systemd import main_pid, run, service_drop_in, sleep_locks

DEBS = machine.BUILD / "deb"
PACKAGES = ("ebb", "libebbgc1", "libebbgc-dev", "ebb-doc")
DEVICE = "ebb-device@ebb0"
EBBCTL = "/usr/sbin/ebbctl"
# The donor's end of a link into its own network namespace.
DONOR = "10.9.0.2:7070"
# 34 MB in Redis, more than REDIS_MIB.
KEYS = range(10000, 50000)
REDIS_MIB = 24


def deb(package):
    found = sorted(DEBS.glob(f"{package}_*.deb"))
    assert len(found) == 1, f"{package}: {found}; run make deb"
    return found[0]


def ebbctl_json(*argv):
    return json.loads(run(EBBCTL, argv[0], "--json", *argv[1:]))


def ask(verb):
    return parts.control("/run/ebb/devices/ebb0.sock", verb)


def server():
    status = ask("status")
    return status["holder"], status["server"]


def at_donor():
    """Returns the number of pages whose newest content is at the donor."""
    return sum(copy["pages"] for slab in ask("slab.list")["slabs"] for copy in slab["copies"])


def kill_server():
    """Kills the server once it has a standby; waits until that serves."""
    def with_standby():
        status = ask("status")
        return read(f"/proc/{status['standby']}/comm").strip() == "ebb-standby" and status

    def served_by_another():
        try:
            return server()[1] not in (0, gone)
        except (OSError, ValueError):
            return False

    gone = wait_for(with_standby, 60, "a standby")["server"]
    os.kill(gone, signal.SIGKILL)
    wait_for(served_by_another, 60, "the standby to take over")


def out_kib():
    return sum(machine.swaps().values())


@pytest.fixture(scope="module", autouse=True)
def swap_off():
    """Takes swap off first, whatever fails."""
    yield
    for device in machine.ebb_swaps():
        machine.swapoff(device)


def test_install():
    # Remove the host's settings, which start no service and rebuild the index of man pages.
    Path("/usr/sbin/policy-rc.d").unlink(missing_ok=True)
    Path("/var/lib/man-db/auto-update").unlink(missing_ok=True)
    run("dpkg", "-i", *(deb(p) for p in PACKAGES))
    assert run("systemctl", "is-active", "ebbd") == "active"
    for unit in ("ebbd", "ebb-sleep"):
        assert run("systemctl", "is-enabled", unit) == "enabled"
    for unit in ("ebb-donord.service", "ebb-metrics.socket"):
        assert run("systemctl", "is-enabled", unit, check=False) == "disabled"
    assert pwd.getpwnam("ebb-donord").pw_uid < 1000
    for group in ("ebb", "ebb-admin"):
        run("getent", "group", group)


def test_doctor():
    told = run(EBBCTL, "doctor")
    print(told)
    assert "have" in told and "MISSING" not in told


def test_donor_is_nobody_and_elsewhere():
    run("ip", "netns", "add", "lender")
    run("ip", "link", "add", "lend0", "type", "veth", "peer", "name", "lend1", "netns", "lender")
    run("ip", "addr", "add", "10.9.0.1/24", "dev", "lend0")
    run("ip", "-n", "lender", "addr", "add", "10.9.0.2/24", "dev", "lend1")
    run("ip", "link", "set", "lend0", "up")
    run("ip", "-n", "lender", "link", "set", "lend1", "up")
    run(EBBCTL, "key", "create", "/etc/ebb/guest.key", "--name", "guest")
    run("install", "-d", "-o", "ebb-donord", "-m", "700", "/etc/ebb/keys")
    run("install", "-o", "ebb-donord", "-m", "600", "/etc/ebb/guest.key", "/etc/ebb/keys")
    service_drop_in("ebb-donord", "netns", "NetworkNamespacePath=/run/netns/lender\n")
    Path("/etc/default/ebb-donord").write_text(
        f'EBB_DONOR_ARGS="--listen {DONOR} --memory 128M --slab 16M --keys /etc/ebb/keys"\n')
    run("systemctl", "start", "ebb-donord")

    pid = main_pid("ebb-donord")
    status = dict(l.split(":\t", 1) for l in read(f"/proc/{pid}/status").splitlines())
    assert status["Uid"].split()[0] == str(pwd.getpwnam("ebb-donord").pw_uid)
    assert int(status["CapEff"], 16) == 0
    assert int(status["VmLck"].split()[0]) >= 128 << 10
    assert parts.control("/run/ebb/donord.sock", "status")["total"] == 128 << 20


def test_device_of_a_unit_by_ublk(series):
    if series == "6.1":
        pytest.skip("Debian's 6.1 has no ublk_drv")
    Path("/etc/ebb/devices/ebb1.conf").write_text(
        f'EBB_DEVICE_ARGS="--frontend ublk --size 64M --slab 16M --key /etc/ebb/guest.key --donor {DONOR}"\n')
    run("systemctl", "start", "ebb-device@ebb1")
    assert [d for d in machine.swaps() if d.startswith("/dev/ublkb")]
    try:
        told = run("systemd-run", "--quiet", "--wait", "--pipe", "-p", "MemoryMax=16M",
                   parts.SCAN, "--json", "--mib", "24", "--passes", "2")
        assert json.loads(told.splitlines()[-1])["bad"] == 0
        assert parts.control("/run/ebb/devices/ebb1.sock", "stats")["pages_written_donor"] > 1000
    finally:
        run("systemctl", "stop", "ebb-device@ebb1")
    assert run("systemctl", "is-active", "ebb-device@ebb1", check=False) == "inactive"
    assert not [d for d in machine.swaps() if d.startswith("/dev/ublkb")]
    assert not Path("/run/ebb/devices/ebb1.json").exists()


@pytest.fixture
def module():
    """Loads the module, with Soft-RoCE on this end of the donor's link; modprobe@ does not find it here."""
    run("modprobe", "-a", "rdma_rxe", "rdma_ucm")
    for argv in (("ip",), ("ip", "-n", "lender")):
        run(*argv, "link", "set", "lend0" if len(argv) == 1 else "lend1", "mtu", "4200")
    kmodule.rxe_add("lend0", kmodule.ADDRESS)
    run("insmod", kmodule.module_path())
    yield
    run("rmmod", "ebb_swap")
    kmodule.rxe_remove()


def test_device_of_a_unit_by_the_module(module, tmp_path):
    """Tests the rights that the unit leaves ebbctl; no process serves the device."""
    unit, config = "ebb-device@ebb2", Path("/etc/ebb/devices/ebb2.conf")
    disk = kmodule.Disk(64)
    donor = kmodule.RdmaDonor(tmp_path / "donord.log")
    config.write_text(f'EBB_DEVICE_ARGS="--frontend kmod --size 64M --slab 4M --backup {disk.path} '
                      f'--donors rdma:{kmodule.ADDRESS}:{kmodule.PORT} --key {kmodule.shared_key().path}"\n')
    try:
        # The unit may open only disks in DeviceAllow=.
        run("systemctl", "start", unit, check=False)
        assert run("systemctl", "is-active", unit, check=False) == "failed"
        said = run("journalctl", "-u", unit, "-n", "30", "-o", "cat")
        assert f"DeviceAllow={disk.path} rw in a drop-in" in said, said
        service_drop_in(unit, "backup", f"DeviceAllow={disk.path} rw\n")
        run("systemctl", "start", unit)
        assert "/dev/ebb2" in machine.swaps()
        told = run("systemd-run", "--quiet", "--wait", "--pipe", "-p", "MemoryMax=16M",
                   parts.SCAN, "--json", "--mib", "24", "--passes", "2")
        assert json.loads(told.splitlines()[-1])["bad"] == 0
        with closing(Kswap()) as netlink:
            counts = netlink.status(2)["counts"]
        assert counts["write_donor"] > 1000 and counts["write_backup"] > 1000
        run("systemctl", "stop", unit)
        assert run("systemctl", "is-active", unit, check=False) == "inactive"
        assert not Path("/dev/ebb2").exists() and not Path("/run/ebb/devices/ebb2.json").exists()
        wait_for(lambda: sleep_locks() == [], 30, "ebbd to let go")
    finally:
        if "/dev/ebb2" in machine.swaps():
            machine.swapoff("/dev/ebb2")
        run(EBBCTL, "device", "destroy", "ebb2", check=False)
        donor.stop()
        disk.remove()
        shutil.rmtree(f"/etc/systemd/system/{unit}.service.d", ignore_errors=True)
        run("systemctl", "daemon-reload")


def test_device_of_a_unit():
    assert sleep_locks() == []
    # With it, devices do not hold off sleep: test_sleep.py.
    run("systemctl", "disable", "ebb-sleep")
    Path("/etc/ebb/devices/ebb0.conf").write_text(
        f'EBB_DEVICE_ARGS="--size 128M --slab 16M --key /etc/ebb/guest.key --donor {DONOR}"\n')
    run("systemctl", "start", DEVICE)
    assert len(machine.ebb_swaps()) == 1
    for pid in server():
        assert "ebb-swapd-ebb0.scope" in read(f"/proc/{pid}/cgroup")
    assert "/run/ebb/mnt/ebb0" in read(f"/proc/{pid}/mounts")
    assert "/run/ebb/mnt/ebb0" not in read("/proc/self/mounts")
    status = ask("status")
    assert {k: status[k] for k in ("locked", "realtime", "oom_protected", "io_flusher", "sealed")} == \
        dict.fromkeys(("locked", "realtime", "oom_protected", "io_flusher", "sealed"), True)


def test_a_device_holds_off_sleep():
    assert len(sleep_locks()) == 1 and "ebb0" in sleep_locks()[0]
    asked = subprocess.run(["systemctl", "suspend", "--check-inhibitors=yes"], text=True,
                           capture_output=True, timeout=60, check=False)
    assert asked.returncode != 0 and "inhibited" in asked.stderr, asked
    # The next server and the supervisor hold the lock, too.
    kill_server()
    assert len(sleep_locks()) == 1


def test_a_device_of_the_module_holds_off_sleep():
    """ebbd holds the lock, by the device's record and without the module, as there is no server."""
    record = Path("/run/ebb/devices/ebb9.json")
    told = json.loads(Path("/run/ebb/devices/ebb0.json").read_text())
    record.write_text(json.dumps(told | {"name": "ebb9", "frontend": "kmod", "block": "/dev/ebb9",
                                         "major": 0, "minor": 0, "donor": "rdma:10.9.0.2:7071"}))
    try:
        parts.control("/run/ebb/control.sock", "device.refresh")
        wait_for(lambda: [why for why in sleep_locks() if "ebb9" in why], 30, "ebbd to hold off sleep")
    finally:
        record.unlink()
        parts.control("/run/ebb/control.sock", "device.refresh")
    wait_for(lambda: len(sleep_locks()) == 1, 30, "ebbd to let go")


FILL = """for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
              redis.call('SET', 'key:' .. i, string.rep(i, 128))
          end return 0"""
# Counts the values that differ from those written.
CHECK = """local bad = 0 for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
               if redis.call('GET', 'key:' .. i) ~= string.rep(i, 128) then bad = bad + 1 end
           end return bad"""


def redis(script, keys):
    return run("redis-cli", "EVAL", script, "0", str(keys[0]), str(keys[-1]))


def chunks(size=1000):
    return [KEYS[i:i + size] for i in range(0, len(KEYS), size)]


def test_redis_in_a_slice_with_a_policy():
    Path("/etc/ebb/ebb.conf.d/slice.conf").write_text('[cgroup "/ebb.slice"]\npolicy = leap\n')
    run("systemctl", "reload", "ebbd")
    # Debian's unit, with a limit so that it is swapped out.
    service_drop_in("redis-server", "ebb", f"Slice=ebb.slice\nMemoryMax={REDIS_MIB}M\n")
    Path("/etc/redis/redis.conf").write_text(
        "bind 127.0.0.1\nport 6379\nsave ''\ndir /var/lib/redis\n")
    run("systemctl", "start", "redis-server")
    assert "/ebb.slice/redis-server.service" in read(f"/proc/{main_pid('redis-server')}/cgroup")
    for keys in chunks():
        assert redis(FILL, keys) == "0"
    assert out_kib() > 4 << 10
    print(ask("stats"))
    wait_for(lambda: at_donor() > 1000, 60, "pages at the donor")
    for keys in chunks():
        assert redis(CHECK, keys) == "0"
    stats = ebbctl_json("stats", "ebb.slice")["cgroups"][0]
    assert stats["misses"] + stats["hits"] + stats["late"] > 1000


def test_servers_die_while_redis_has_pages_out():
    for _ in range(3):
        assert out_kib() > 4 << 10
        kill_server()
        for keys in chunks(4000):
            assert redis(CHECK, keys) == "0"
    stats = ask("stats")
    print(stats)
    assert ask("status")["takeovers"] == 4
    assert stats["pages_read_failed"] == stats["pages_write_failed"] == 0


def test_a_stop_is_refused_and_the_unit_takes_its_device_back():
    def state():
        return run("systemctl", "is-active", DEVICE, check=False)

    # The swapped-out pages do not fit into the limit of the cgroup.
    before, config = server(), Path("/etc/ebb/devices/ebb0.conf")
    run("systemctl", "stop", DEVICE, check=False)
    assert state() == "failed" and len(machine.ebb_swaps()) == 1
    text = config.read_text()
    config.write_text(text.replace("128M", "96M"))
    run("systemctl", "start", DEVICE, check=False)
    assert state() == "failed"
    said = run("journalctl", "-u", DEVICE, "-n", "30", "-o", "cat")
    assert f"--size {128 << 20}, not {96 << 20}" in said, said
    config.write_text(text)
    run("systemctl", "start", DEVICE)
    assert state() == "active" and server() == before
    for keys in chunks(4000):
        assert redis(CHECK, keys) == "0"


def as_user(name, *argv, **kwargs):
    return run("setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups", *argv, **kwargs)


def test_groups():
    """Members of ebb can read, members of ebb-admin also change, others neither."""
    run("useradd", "-M", "stranger")
    run("useradd", "-M", "-G", "ebb", "reader")
    run("useradd", "-M", "-G", "ebb-admin", "keeper")
    told = json.loads(as_user("reader", EBBCTL, "stats", "--json"))
    assert told["cgroups"][0]["misses"] > 0
    assert "ebb.slice" in as_user("reader", EBBCTL, "status")
    change = (EBBCTL, "policy", "set", "ebb.slice", "pw_max=32")
    for name, command, group in (("stranger", (EBBCTL, "stats"), "ebb;"),
                                 ("stranger", change, "ebb;"), ("reader", change, "ebb-admin;")):
        with pytest.raises(AssertionError, match=f"is not in group {group}"):
            as_user(name, *command)
    as_user("keeper", *change)
    assert "pw_max=32" in run(EBBCTL, "status")


def test_metrics():
    run("systemctl", "start", "ebb-metrics.socket")
    with urllib.request.urlopen("http://127.0.0.1:9753/metrics", timeout=60) as answer:
        told = answer.read().decode()
    assert 'ebb.slice"' in told and "# TYPE ebb_" in told
    run("systemctl", "stop", "ebb-metrics.socket")


class Load:
    """Reads values from Redis repeatedly and checks the answers."""

    def __init__(self):
        self.asked, self.wrong, self.stopping = 0, [], threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        while not self.stopping.is_set():
            for keys in chunks(200):
                if self.stopping.is_set():
                    break
                try:
                    answer = redis(CHECK, keys)
                except Exception as e:
                    answer = str(e)
                self.asked += 1
                if answer != "0":
                    self.wrong.append(answer)
                # Leave some of the only processor's time to dpkg.
                self.stopping.wait(0.5)

    def stop(self):
        self.stopping.set()
        self.thread.join()


def misses():
    return ebbctl_json("stats", "ebb.slice")["cgroups"][0]["misses"]


def test_watchdog():
    """A hung ebbd is killed, and the next one has its attachments; programs continue."""
    before, missed = main_pid("ebbd"), misses()
    os.kill(before, signal.SIGSTOP)
    assert redis(CHECK, KEYS[:200]) == "0"
    wait_for(lambda: main_pid("ebbd") not in (0, before), 240, "a new ebbd", 1)
    run("systemctl", "start", "ebbd")
    assert run("systemctl", "show", "-p", "NRestarts", "--value", "ebbd") == "1"
    assert misses() >= missed
    assert any(row["cgroup"].endswith("/ebb.slice") for row in ebbctl_json("status")["attachments"])
    assert redis(CHECK, KEYS[:200]) == "0"


def next_version(package):
    """Returns the package with a later version."""
    tree, made = Path("/var/tmp/next"), Path(f"/var/tmp/{package}-next.deb")
    run("dpkg-deb", "-R", deb(package), tree)
    control = tree / "DEBIAN" / "control"
    lines = [l + "+next" if l.startswith("Version: ") else l
             for l in control.read_text().splitlines()]
    control.write_text("\n".join(lines) + "\n")
    run("dpkg-deb", "-Znone", "-b", tree, made)
    shutil.rmtree(tree)
    return made


def test_upgrade_under_load():
    package = next_version("ebb")
    before = main_pid("ebbd"), main_pid("ebb-donord"), main_pid("redis-server"), *server()
    missed = misses()
    assert missed > 0 and out_kib() > 4 << 10
    load = Load()
    try:
        run("dpkg", "-i", package)
        upgraded = load.asked
        wait_for(lambda: load.asked > upgraded + 3 or load.wrong, 120, "Redis to answer")
    finally:
        load.stop()
    after = main_pid("ebbd"), main_pid("ebb-donord"), main_pid("redis-server"), *server()
    assert run("dpkg-query", "-W", "-f=${Version}", "ebb").endswith("+next")
    assert upgraded > 0 and load.wrong == []
    assert after[0] not in (0, before[0]), "ebbd is not restarted"
    assert after[1:] == before[1:], "a donor, a server or the program is restarted"
    assert misses() >= missed, "the new ebbd does not go on with the counters"


def test_removal_is_refused_where_pages_fit_nowhere():
    # Must fail: the swapped-out pages do not fit into the limit of the cgroup.
    run("dpkg", "-r", "ebb", check=False)
    assert run("dpkg-query", "-W", "-f=${db:Status-Status}", "ebb") not in ("config-files", "not-installed")
    assert machine.ebb_swaps() and Path("/usr/sbin/ebbctl").exists()
    assert redis(CHECK, KEYS[:500]) == "0"
    run("systemctl", "stop", "redis-server")
    # Completes the state that prerm's failure left.
    run("dpkg", "--configure", "-a")


def test_removal_and_purge():
    run("dpkg", "-r", "ebb")
    assert not machine.ebb_swaps() and sleep_locks() == []
    assert not Path("/usr/sbin/ebbd").exists() and not Path("/sys/fs/bpf/ebb").exists()
    # ebb.slice belongs to systemd and may have other programs in it.
    assert [l for l in machine.leftovers() if not l.endswith("/ebb.slice")] == []
    # Remove the units' files of this test, which purging must not touch.
    for unit in ("ebb-donord", "redis-server"):
        shutil.rmtree(f"/etc/systemd/system/{unit}.service.d")
    run("dpkg", "-P", *PACKAGES)
    run("systemctl", "daemon-reload")
    for pattern in ("/etc/ebb*", "/etc/default/ebb*", "/run/ebb*", "/var/lib/ebb/*", "/usr/sbin/ebb*",
                    "/usr/lib/ebb*", "/usr/include/ebb*", "/usr/share/ebb*", "/usr/share/man/man*/ebb*",
                    "/lib/systemd/system/ebb*", "/etc/systemd/system/*.wants/ebb*",
                    "/etc/systemd/system/*.requires/ebb*",
                    "/usr/lib/*/libebbgc*", "/usr/share/doc/ebb*", "/usr/lib/*.d/ebb*",
                    "/var/lib/systemd/deb-systemd-helper*/*ebb*", "/var/lib/dpkg/info/*ebb[!a-z]*"):
        assert list(Path("/").glob(pattern[1:])) == [], pattern
    units = run("systemctl", "list-units", "--all", "--plain", "--no-legend", "ebb*").splitlines()
    assert [u for u in units if not u.split()[0].endswith(".slice")] == []
