# SPDX-License-Identifier: GPL-2.0-or-later
"""
ebbctl top and metrics against sockets that answer as ebb's daemons do; the metrics by
promtool and a real Prometheus; dashboard, alerts and catalog; what ebb-stats(7) says of maps.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest

import machine
import statspage
from control_server import ControlServer, error, write_record
from machine import REPO, wait_for
from parts import REFUSED, USAGE, ebbctl, ebbctl_json
from prometheus import OF_CGROUPS, RULES, MetricsSocket, Prometheus, promtool
from terminal import Terminal

pytestmark = pytest.mark.beside

MIB = 1 << 20
COUNTERS = ("misses hits late wasted prefetched outstanding file_majors zero_majors swapped_in swapped_out "
            "written shared epochs requests request_pages dropped miss_ns late_ns gc_misses gc_hits "
            "by_chance clean").split()
SERVER_COUNTERS = (
    "requests read_requests write_requests pages_read_donor pages_read_backup pages_read_zero "
    "pages_read_failed pages_written_donor pages_written_backup_only pages_write_failed conflicts "
    "large_reads_held overtakes "
    "donor_losses donor_absences donor_errors late_replies pages_bad_donor pages_bad_backup backup_errors fuse_errors "
    "slab_maps slab_map_refusals slab_map_failures slab_unmaps slabs_asked_back slabs_kept slabs_revoked "
    "slabs_to_disk pages_same pages_read_same pages_discarded pages_repaired waiting").split()
# Of the real one's status the page has all: test_stats.py.
EXECUTOR = {name: (10 ** 9 if name.endswith("_ns") else 1) * (7000 + i)
            for i, name in enumerate(statspage.sections()["status: executor"])}


class World:
    """Daemons whose counters grow by `step` with each question."""

    def __init__(self, run):
        self.path, self.made, self.step, self.asked, self.cgroups = run, [], 100, 0, ["/x", "/y/z"]
        self.serve("control", self.ebbd)
        write_record(run, "ebb0", size=64 * MIB, slab=MIB)
        self.serve("devices/ebb0", self.device)
        self.serve("donord", self.lender)

    def serve(self, name, answer):
        self.made.append(ControlServer(self.path / f"{name}.sock", answer))

    def ebbd(self, request):
        if request["verb"] == "status":
            return {"version": "9.8.7", "abi": 2, "uptime_s": 60, "attachments": [], "executor": EXECUTOR,
                    "donors": {"known": 5, "missing": 2, "frozen": True}}
        self.asked += self.step
        row = lambda i, name: {
            "path": name, "policy": "leap", **dict.fromkeys(COUNTERS, self.asked * (i + 1)),
            "miss_ns_log2": [self.asked if b == 14 else 0 for b in range(32)],
            "hit_ns_log2": [self.asked if b == 11 else 0 for b in range(32)],
            "offload": {"target": 0.02, "slowdown": 0.01, "saved": MIB, "reclaimed_pages": 7}}
        return {"cgroups": [row(i, name) for i, name in enumerate(self.cgroups)]}

    def device(self, request):
        donors = [{"address": "h:1", "transport": "tcp", "state": "up", "slabs": 3, "reserved": 4 * MIB,
                   "total": 4 * MIB, "free": MIB,
                   "memory": 8 * MIB, "used": MIB, "read_ns": 20000, "connects": 1, "losses": 0,
                   "absences": 0, "revoked": 0, "bad_pages": 0},
                  {"address": "h:2", "transport": "tcp", "state": "up", "leaving": "quarantined", "slabs": 1,
                   "total": 4 * MIB, "free": 0, "memory": 8 * MIB, "used": MIB, "read_ns": 0, "connects": 2,
                   "losses": 1, "absences": 2, "revoked": 1, "bad_pages": 3}]
        if request["verb"] == "stats":
            return {**dict.fromkeys(SERVER_COUNTERS, self.asked), "donor_read_ns_log2": [self.asked] * 32}
        return {"pid": 1, "durability": "disk", "reservation": {"wanted": 4 * MIB, "missing": 0}, "live": MIB, "mapped": 2 * MIB, "aborted": False, "sealed": True,
                "copies": {"wanted": 1, "present": 4, "missing": 2, "filling": 0, "leaving": 0},
                "repair": {"rate": 0}, "slabs": {"total": 64, "unmapped": 60, "mapping": 0, "mapped": 4, "lost": 0},
                "backup": {"failing": False, "queue": 1, "backlog": 12, "backlog_most": 4096}, "donors": donors}

    def lender(self, request):
        return {"total": 8 * MIB, "free": MIB, "lent": 7 * MIB, "promised": 0, "lendable": MIB, "draining": False, "borrowers": [],
                "machine": {"memory": 16 * MIB, "available": 8 * MIB}, "slabs": {"lent": 7, "clean": 1, "withdrawn": 1},
                "evictions": {"asked": 1, "returned": 1, "refused": 0, "revoked": 0, "revoked_backed": 0},
                "throttled": [{"name": "k", "ms": 5}]}


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("EBB_RUN_DIR", str(tmp_path))
    w = World(tmp_path)
    yield w
    for s in w.made:
        s.close()


def names_of(text):
    """Metrics of an exposition, without what a type adds to a name."""
    samples = re.findall(r"^(ebb_\w+?)(?:_bucket|_sum|_count)?(?:\{.*\})? \S+$", text, re.M)
    assert samples
    return set(samples)


# --- metrics ------------------------------------------------------------------

def test_promtool_finds_nothing_to_say(world):
    world.cgroups.append('/odd"name\\with é and \x01')
    text = ebbctl("metrics", "--format", "prometheus").stdout
    done = promtool("check", "metrics", stdin=text)
    assert done.returncode == 0 and done.stdout + done.stderr == "", done.stdout + done.stderr
    spoilt = text.replace("# TYPE ebb_up gauge", "# TYPE ebb_up counter")
    assert promtool("check", "metrics", stdin=spoilt).returncode != 0


def test_openmetrics_is_what_the_standard_says(world):
    """Metrics in one piece each, with their type before, and an end."""
    lines = ebbctl("metrics").stdout.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    seen, current = set(), None
    for line in lines[:-2]:
        kind = re.fullmatch(r"# (HELP|TYPE) (\w+) (.+)", line)
        if kind and kind[1] == "HELP":
            assert kind[2] not in seen
            current = kind[2]
            seen.add(current)
        elif kind:
            assert kind[2] == current
            suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[kind[3]]
        else:
            name = re.match(r"\w+", line)[0]
            assert name in [current + s for s in suffixes], line
    assert len(seen) > 90


def test_all_of_the_executor_is_there(world):
    """Each with its own number; those in nanoseconds are seconds."""
    told = re.findall(r"^ebb_prefetch_\w+ (\S+)$", ebbctl("metrics").stdout, re.M)
    assert sorted(map(float, told)) == list(range(7000, 7000 + len(EXECUTOR)))


def test_slabs_of_the_donor_by_state(world):
    told = re.findall(r'^ebb_lender_slabs{state="(\w+)"} (\d+)$', ebbctl("metrics").stdout, re.M)
    assert dict(told) == {"lent": "7", "clean": "1", "withdrawn": "1"}


def test_no_daemon_is_told_not_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("EBB_RUN_DIR", str(tmp_path))
    assert re.findall(r"^[^#].*", ebbctl("metrics").stdout, re.M) == ["ebb_up 0"]


def test_a_refusal_is_an_error(world):
    world.made[0].answer = lambda request: error("control socket: not for you", REFUSED)
    for argv in (["metrics"], ["metrics", "--textfile", world.path], ["top", "--batch", "--count", "1"]):
        done = ebbctl(*argv, check=False)
        assert done.returncode == REFUSED and "not for you" in done.stderr and not done.stdout
    assert not (world.path / "ebb.prom").exists()


def test_textfile(world):
    ebbctl("metrics", "--textfile", world.path)
    text = (world.path / "ebb.prom").read_text()
    assert "# EOF" not in text and 'ebb_cgroup_misses_total{cgroup="/x"} 100\n' in text
    assert promtool("check", "metrics", stdin=text).returncode == 0
    ebbctl("metrics", "--textfile", world.path)
    assert 'ebb_cgroup_misses_total{cgroup="/x"} 200\n' in (world.path / "ebb.prom").read_text()
    assert sorted(p.name for p in world.path.glob("ebb.*")) == ["ebb.prom"]
    done = ebbctl("metrics", "--textfile", world.path / "nosuch", check=False)
    assert done.returncode == 1 and "nosuch" in done.stderr
    assert ebbctl("metrics", "--textfile", "x", "--http", check=False).returncode == USAGE


@pytest.fixture
def http(world):
    s = MetricsSocket(world.path)
    yield s
    s.close()


def raw(http, data, wait=60):
    """What comes back for @data, until the other end closes."""
    with socket.create_connection(("127.0.0.1", http.port)) as s:
        s.settimeout(wait)
        s.sendall(data)
        got = b""
        while piece := s.recv(65536):
            got += piece
    return got


def test_http(http):
    """One request, one answer; what is slow, large or no request does not get far."""
    slow = socket.create_connection(("127.0.0.1", http.port))
    started = time.monotonic()
    slow.sendall(b"GET /metrics HTTP/1.1\r\n")
    status, headers, body = http.get()
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "ebb_up 1\n" in body and "# EOF" not in body
    assert int(headers["Content-Length"]) == len(body.encode())
    status, headers, body = http.get(headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith("# EOF\n")
    assert http.get("/")[0] == http.get("/metrics/../etc")[0] == 404
    assert raw(http, b"POST /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 ")
    assert raw(http, b"\x16\x03\x01\n\n").startswith(b"HTTP/1.1 400 ")
    assert raw(http, b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 9000).startswith(b"HTTP/1.1 431 ")
    head = raw(http, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n")
    slow.settimeout(90)
    assert slow.recv(10) == b"" and time.monotonic() - started < 75
    slow.close()


def dashboard():
    return json.loads((REPO / "packaging" / "grafana" / "ebb.json").read_text())


def dashboard_queries():
    return [t["expr"] for p in dashboard()["panels"] for t in p.get("targets", [])]


def test_prometheus_scrapes_it(world, http, tmp_path, logs):
    p = Prometheus(tmp_path, http.target, logs / "prometheus.log")
    try:
        p.scraped()
        wait_for(lambda: p.target()["lastError"] == "", 5, "no error")
        wait_for(lambda: p.value("ebb_up") == 1, 5, "ebb_up")
        wait_for(lambda: (p.value('rate(ebb_cgroup_misses_total{cgroup="/x"}[10s])') or 0) > 10, 30, "a rate")
        p99 = wait_for(lambda: (v := p.value('histogram_quantile(0.99, rate('
                                             'ebb_cgroup_miss_seconds_bucket{cgroup="/x"}[10s]))')) == v and v,
                       10, "a quantile")
        assert 2 ** 14 <= p99 * 1e9 <= 2 ** 15
        # What is wrong in this world is what is told.
        firing = lambda: {a["labels"]["alertname"] for a in p.ask("alerts")["alerts"] if a["state"] == "firing"}
        wait_for(lambda: "EbbDonorQuarantined" in firing(), 30, "an alert")
        assert "EbbDonorLost" not in firing()
        for query in dashboard_queries():
            for variable, value in (("$__rate_interval", "10s"), ("$instance", ".*"), ("$cgroup", ".*"),
                                    ("$device", ".*")):
                query = query.replace(variable, value)
            assert p.ask("query", query=query) is not None, query
        groups = p.ask("rules")["groups"]
        assert {r["health"] for g in groups for r in g["rules"]} <= {"ok", "unknown"}
    finally:
        p.stop()


# --- alerts, dashboard, catalog --------------------------------------------------

def test_alerts():
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("test", "rules", REPO / "tests" / "fixtures" / "ebb.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    done = promtool("check", "config", RULES.with_name("prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    # Each alert has a case of its own.
    tested = (REPO / "tests" / "fixtures" / "ebb.rules.test.yml").read_text()
    for alert in re.findall(r"alert: (\w+)", RULES.read_text()):
        assert alert in tested, alert


def test_what_alerts_and_dashboard_ask_for_is_there(world):
    exposed = names_of(ebbctl("metrics", "--format", "prometheus").stdout)
    # These cgroups do not exist: test_stats.py sees what only real ones have.
    exposed |= OF_CGROUPS
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    variables = [v["query"]["query"] for v in dashboard()["templating"]["list"] if v["type"] == "query"]
    queries = dashboard_queries() + variables
    queries += re.findall(r"expr: (?:>-\n)?((?:.+\n(?:          .+\n)*))", RULES.read_text())
    assert len(queries) > 50
    for query in queries:
        for name in re.findall(r"\bebb_\w+", query):
            assert re.sub("_(bucket|sum|count)$", "", name) in exposed, name
        assert set(re.findall(r"\bebb:\w+(?::\w+)*", query)) <= recorded, query
    ids = [p["id"] for p in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def event_ids():
    return dict(re.findall(r'E\((\w+), "([0-9a-f]{32})"\)',
                           (REPO / "daemon" / "lib" / "base" / "log_events.h").read_text()))


def test_catalog(tmp_path):
    """journald's own compiler takes it; it, the man page and the code have the same numbers."""
    directory = tmp_path / "usr" / "lib" / "systemd" / "catalog"
    directory.mkdir(parents=True)
    (tmp_path / "var" / "lib" / "systemd" / "catalog").mkdir(parents=True)
    text = (REPO / "packaging" / "systemd" / "ebb.catalog").read_text()
    (directory / "ebb.catalog").write_text(text)
    done = subprocess.run(["journalctl", f"--root={tmp_path}", "--update-catalog"], capture_output=True, text=True)
    assert done.returncode == 0 and "ignoring" not in done.stderr.lower(), done.stderr
    listed = subprocess.run(["journalctl", f"--root={tmp_path}", "--list-catalog"], capture_output=True, text=True)
    assert set(re.findall(r"^([0-9a-f]{32})", listed.stdout, re.M)) == set(event_ids().values()), listed.stdout
    assert set(re.findall(r"^\.It Li ([0-9a-f]{32})", statspage.PAGE.read_text(), re.M)) == set(event_ids().values())
    assert len(set(event_ids().values())) == len(event_ids()) >= 10


@pytest.fixture
def event(tmp_path):
    """A program that logs an event and a line."""
    source, program = tmp_path / "event.c", tmp_path / "event"
    source.write_text('#include "lib/base/log.h"\nint main(void)\n{\n\tlog_setup("ebb-swapd", LOG_LVL_INFO);\n'
                      '\tlog_field("EBB_DEVICE", "ebb7");\n\tlog_event(EVENT_DONOR_LOST, LOG_LVL_WARN, '
                      '"donor %s lost\\nfor good", "h:1");\n\tlog_warn("no event");\n\treturn 0;\n}\n')
    subprocess.run(["cc", "-D_GNU_SOURCE", f"-I{REPO}/daemon", "-o", program, source,
                    REPO / "daemon" / "lib" / "base" / "log.c"], check=True)
    return program


def in_own_mounts(*argv, **env):
    done = subprocess.run(["unshare", "--mount", *map(str, argv)], text=True, capture_output=True, timeout=300,
                          env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    return done.stdout


LISTEN = """
import os, socket, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.makedirs("/run/systemd/journal")
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind("/run/systemd/journal/socket")
s.settimeout(20)
told = subprocess.run([sys.argv[1]], stderr=subprocess.PIPE, text=True, check=True).stderr
print(told + "--")
print(s.recv(4096).decode(), end="")
s.setblocking(False)
try:
    print("and", s.recv(4096))
except BlockingIOError:
    pass
"""


def test_events_go_to_the_journal(event):
    told = lambda **env: in_own_mounts("/usr/bin/python3", "-c", LISTEN, event, **env)
    entry = ("MESSAGE=donor h:1 lost for good\nPRIORITY=4\n"
             f"MESSAGE_ID={event_ids()['DONOR_LOST']}\nSYSLOG_IDENTIFIER=ebb-swapd\nEBB_DEVICE=ebb7\n")
    plain = "ebb-swapd: warning: "
    assert told() == f"{plain}donor h:1 lost for good\n{plain}no event\n--\n{entry}"
    # Where stderr goes to the journal, too, it is told once.
    assert told(JOURNAL_STREAM="1:2") == f"<4>no event\n--\n{entry}"


JOURNALD = """
mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/log && mount -t tmpfs tmpfs /var/lib/systemd || exit 1
mkdir -p /run/systemd/journal /run/log/journal /var/lib/systemd/catalog
mount --bind "$2" /usr/lib/systemd/catalog || exit 1
/lib/systemd/systemd-journald >&2 & journald=$!
for i in $(seq 600); do [ -S /run/systemd/journal/socket ] && break; sleep 0.1; done
journalctl --update-catalog
"$1"
for i in $(seq 600); do
	journalctl -D /run/log/journal --no-pager -q -x "MESSAGE_ID=$3" EBB_DEVICE=ebb7 > /run/told && [ -s /run/told ] && break
	sleep 0.1
done
cat /run/told
kill $journald
"""


def test_the_journal_explains_them(event, tmp_path):
    """systemd's own, with the catalog."""
    (tmp_path / "catalog").mkdir()
    shutil.copy(REPO / "packaging" / "systemd" / "ebb.catalog", tmp_path / "catalog")
    told = in_own_mounts("sh", "-c", JOURNALD, "sh", event, tmp_path / "catalog", event_ids()["DONOR_LOST"])
    assert "ebb-swapd" in told and "donor h:1 lost for good" in told
    assert "Subject: A donor of device ebb7 is lost" in told and "ebbctl donor list" in told


# --- ebb-stats(7) ------------------------------------------------------------------

def btf_maps():
    """{map: set of the fields of its key and value} of the object that declares them."""
    shown = subprocess.run(["/usr/sbin/bpftool", "-j", "btf", "dump", "file",
                            machine.BUILD / "bpf" / "fault.bpf.o"], capture_output=True, text=True, check=True)
    types = {t["id"]: t for t in json.loads(shown.stdout)["types"]}

    def fields(id):
        while types[id]["kind"] in ("PTR", "TYPEDEF", "CONST"):
            id = types[id]["type_id"]
        t = types[id]
        return {m["name"] for m in t["members"]} if t["kind"] == "STRUCT" else set()

    found = {}
    (section,) = [t for t in types.values() if t["kind"] == "DATASEC" and t["name"] == ".maps"]
    for v in section["vars"]:
        variable = types[v["type_id"]]
        members = {m["name"]: m["type_id"] for m in types[variable["type_id"]]["members"]}
        found[variable["name"]] = set().union(*(fields(members[k]) for k in ("key", "value") if k in members))
    return found


def test_page_and_maps_agree():
    source = (REPO / "daemon" / "ebbd" / "plane" / "plane.c").read_text()
    pinned = re.findall(r'"(\w+)"', source.split("pinned_maps[] = {", 1)[1].split("};", 1)[0])
    page, maps = statspage.sections(), btf_maps()
    assert sorted(statspage.maps()) == sorted(pinned)
    for name in pinned:
        assert sorted(page[name]) == sorted(maps[name]), name


@pytest.mark.parametrize("title, file, functions", [
    ("stats of a device", "swapd/control/status.c", ["device_stats"]),
    ("stats of a kernel-module device", "ebbd/kmod/report.c", ["kmod_report_stats"]),
    ("donor list: local", "donord/control.c", ["status_json", "add_registration"]),
    ("donor list: local.machine", "donord/control.c", ["machine_json"]),
    ("donor list: local.slabs", "donord/control.c", ["slabs_json"]),
    ("donor list: local.evictions", "donord/control.c", ["evictions_json"]),
    ("donor list: local.borrowers[]", "donord/control.c", ["borrower_json"]),
    ("donor list: local.throttled[]", "donord/control.c", ["throttled_json"])])
def test_page_and_sources_agree(title, file, functions):
    """Members that no command's answer has in every test."""
    source = (REPO / "daemon" / file).read_text()
    members = set()
    for function in functions:
        body = re.split(rf"^\w.*\b{function}\(", source, flags=re.M)[1].split("\n}\n")[0]
        members |= set(re.findall(r'"(\w+)",', body))
    assert sorted(statspage.sections()[title]) == sorted(members)


# --- top ---------------------------------------------------------------------------

def test_top_batch(world):
    out = ebbctl("top", "--batch", "--count", "2", "--interval", "200ms").stdout
    frames = out.split("\n\n")
    assert out.count("CGROUP") == out.count("BACKUP QUEUE") == out.count("LENDS") == 2
    assert "ebbd 9.8.7" in frames[0]
    rows = [l.split() for l in frames[1].splitlines()]
    # /y/z grows twice as fast.
    assert [r[-1] for r in rows[1:]] == ["/y/z", "/x"]
    fast, slow = (float(r[0]) for r in rows[1:])
    assert 1.9 < fast / slow < 2.1 and slow > 10
    assert "12/4096" in out and "2/2" in out and "up, quarantined" in out
    names = ebbctl("top", "-b", "-n1", "-i", "0.1", "--sort", "name", "--filter", "/x").stdout
    assert "/y/z" not in names and "/x" in names


def test_top_json(world):
    frame = ebbctl_json("top", "--count", "1", "--interval", "300ms", "--sort", "hits", "--reverse")
    assert [r["name"] for r in frame["cgroups"]] == ["/x", "/y/z"]
    row = frame["cgroups"][0]
    assert frame["seconds"] >= 0.3
    assert row["misses_s"] == pytest.approx(100 / frame["seconds"], rel=0.02)
    assert row["coverage"] == pytest.approx(2 / 3, rel=1e-3)
    assert row["lateness"] == pytest.approx(0.5)
    assert 2 ** 14 <= row["miss_p50_ns"] <= row["miss_p99_ns"] <= 2 ** 15
    assert frame["devices"][0]["io_s"] > 0 and frame["donors"][1]["losses"] == 1


def test_top_says_no(world):
    assert "not a terminal" in ebbctl("top", check=False).stderr
    for bad in (["--sort", "nosuch"], ["--interval", "1ms"], ["--interval", "2h"], ["--count", "-1"]):
        assert ebbctl("top", "-b", *bad, check=False).returncode == USAGE, bad


@pytest.fixture
def terminal(world):
    t = Terminal("top", "--interval", "200ms")
    yield t
    t.close()


def test_top_live(terminal, world):
    t = terminal
    t.expect("CGROUP")
    t.expect("/y/z")
    t.expect("by misses")
    t.expect("BACKUP QUEUE")
    t.press("s")
    t.expect("hits")
    t.press("r")
    t.expect("reversed")
    t.press("p")
    t.expect("PAUSED")
    asked = len(world.made[0].asked)
    time.sleep(1)
    t.read()
    assert len(world.made[0].asked) == asked
    t.press("p")
    wait_for(lambda: len(world.made[0].asked) > asked, 10, "a request after the pause")
    t.press("/y\n")
    t.expect("only")
    t.press("+")
    t.expect("0.4 s")
    t.press("q")
    wait_for(t.ended, 10, "the end")
    assert t.status == 0
    # The terminal is restored: alternate screen left, cursor shown.
    assert "\x1b[?1049l" in t.text


@pytest.mark.parametrize("how", ["\x03", signal.SIGTERM])
def test_top_ends_as_asked(terminal, how):
    terminal.expect("CGROUP")
    if isinstance(how, str):
        terminal.press(how)
    else:
        os.kill(terminal.pid, how)
    wait_for(terminal.ended, 10, "the end")
    assert "\x1b[?1049l" in terminal.text
