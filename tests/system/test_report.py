# SPDX-License-Identifier: GPL-2.0-or-later
"""The page of `ebbctl report`, as a browser shows it."""
import json
import re
import signal
import struct
import subprocess
import time
import zlib
from dataclasses import dataclass

import pytest

import browser
import machine
import parts
from parts import USAGE

FIXTURES = sorted((machine.REPO / "tests" / "fixtures").glob("*.trace"))
PYTHON = machine.REPO / "tests" / "fixtures" / "python.trace"
MIB = 1 << 20


def report(trace, where, *options):
    parts.ebbctl("report", "--trace", trace, "-o", where, *options)
    return where / "index.html"


def embedded(page):
    text = page.read_text().split('<script type="application/json" id="data">')[1]
    return json.loads(text.split("</script>")[0])


def assert_quiet(shown):
    """It said nothing, and asked for nothing."""
    assert shown.said == []
    assert {u for u in shown.asked if not u.startswith("data:")} == set()


def assert_counts(shown, told):
    figures = shown.figures()
    assert {k: int(figures[k]) for k in ("misses", "hits", "late", "outs", "pages")} == \
        {k: told[k] for k in ("misses", "hits", "late", "outs", "pages")}


@pytest.mark.beside
@pytest.mark.parametrize("trace", FIXTURES, ids=lambda p: p.stem)
def test_data_are_those_of_the_trace(trace, tmp_path):
    told = parts.ebbctl_json("trace", "show", trace)
    page = report(trace, tmp_path / "out", "--json")
    data = embedded(page)
    assert json.loads((page.parent / "report.json").read_text()) == data
    assert all(data["summary"][k] == told[k] for k in ("records", "misses", "hits", "late", "outs",
                                                       "pages", "span_ns", "miss_ns", "late_ns"))
    assert all(data["about"][k] == told[k] for k in ("comm", "cgroup", "policy", "kernel", "memory"))
    for kind, of in (("miss", "misses"), ("hit", "hits"), ("late", "late"), ("out", "outs")):
        assert sum(data["rates"][kind]) == told[of]
    assert sum(data["latency_ns_log2"]["miss"]) == told["misses"]
    used = sum(1 + skip for skip in data["map"]["cells"][::2])
    assert 0 < used <= data["map"]["columns"] * data["map"]["rows"]
    assert sum(t["misses"] for t in data["threads"]) == told["misses"]
    regions = data["map"]["regions"]
    assert sum(r["to"] - r["from"] for r in regions) >= told["pages"] * 4096
    assert all(a["high"] <= b["low"] for a, b in zip(regions, regions[1:]))
    assert page.stat().st_size < MIB


@pytest.mark.beside
def test_page_needs_nothing(tmp_path):
    """No address, no import, and a policy that forbids both."""
    text = report(PYTHON, tmp_path).read_text()
    assert "default-src 'none'" in text
    without = text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert not re.search(r"https?:|//cdn|@import|\bsrc=|url\(|fetch\(|XMLHttp|WebSocket", without)


@pytest.mark.beside
@pytest.mark.long
def test_page_in_a_browser(tmp_path, logs):
    told = parts.ebbctl_json("trace", "show", PYTHON)
    page = report(PYTHON, tmp_path)
    shown = browser.show(page, logs / "report.png")
    assert_quiet(shown)
    assert_counts(shown, told)
    assert 'data-drawn="yes"' in shown.dom
    assert shown.count("canvas") == 1 and shown.count("svg", role="img") >= 3
    assert shown.count("rect", class_="miss") > 20
    # What an old recording lacks is stated in text.
    assert shown.count("p", class_="none") == 5      # no hit, and no sample


@pytest.mark.beside
@pytest.mark.long
def test_the_browser_would_tell(tmp_path):
    """What the page is checked for is seen in one that does it."""
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>undefined_function()</script>')
    shown = browser.show(page)
    assert any("undefined_function" in line for line in shown.said)
    assert "http://127.0.0.1:9/x.png" in shown.asked


@pytest.mark.long
@pytest.mark.beside
def test_dark_and_narrow(tmp_path, logs):
    page = report(PYTHON, tmp_path)
    for name, dark in (("light", False), ("dark", True)):
        shown = browser.show(page, logs / f"{name}.png", width=500, height=1100, dark=dark)
        assert_quiet(shown)
    light, dark = (picture(logs / f"{name}.png") for name in ("light", "dark"))
    assert light.brightness > 180 > 90 > dark.brightness
    # Both show the map.
    assert light.colours > 20 and dark.colours > 20


@pytest.mark.beside
def test_names_are_text(tmp_path, logs):
    """A program may be called anything, markup included."""
    name = b"</script><b>\"&"
    trace = bytearray(PYTHON.read_bytes())
    trace[448:464] = name.ljust(16, b"\0")
    trace[508:512] = struct.pack("<I", zlib.crc32(bytes(trace[384:508])))
    (tmp_path / "named.trace").write_bytes(trace)
    page = report(tmp_path / "named.trace", tmp_path)
    assert embedded(page)["about"]["comm"] == name.decode()
    shown = browser.show(page)
    assert_quiet(shown)
    assert "&lt;/script&gt;&lt;b&gt;" in shown.dom
    assert int(shown.figures()["misses"]) > 0


def varint(n):
    return bytes([n]) if n < 0x80 else bytes([n & 0x7f | 0x80]) + varint(n >> 7)


def trace_of_misses(times):
    """A trace with a miss at each of @times (ns), of pages one after the other."""
    records = b"".join(
        (bytes([4]) + b"".join(map(varint, (0, 1, 1, 0))) if not i else b"\0") + varint(2 * (t - before)) + varint(2)
        for i, (before, t) in enumerate(zip([0, *times], times)))
    head = struct.pack("<III", 1, len(records), len(times))
    block = head + struct.pack("<I", zlib.crc32(head + records)) + records
    end = struct.pack("<QQQQQQQII16s", len(times), 0, 0, 0, 0, times[-1], 512 + len(block), 0, 1, b"long").ljust(124, b"\0")
    return PYTHON.read_bytes()[:384] + end + struct.pack("<I", zlib.crc32(end)) + block


@pytest.mark.beside
def test_what_came_last_is_in_the_last_column(tmp_path):
    """Also where a nanosecond is less than a double tells of so long a time: of 104 days and more."""
    for span in (1000, 1 << 60):
        (tmp_path / "long.trace").write_bytes(trace_of_misses([0, span // 2, span]))
        data = embedded(report(tmp_path / "long.trace", tmp_path))
        assert data["rates"]["miss"][-1] == 1 and sum(data["rates"]["miss"]) == 3
        assert not any(data["rates"]["hit"])
        at = [skip + 1 for skip in data["map"]["cells"][::2]]
        columns = [(sum(at[:i + 1]) - 1) % data["map"]["columns"] for i in range(len(at))]
        assert columns[-1] == data["map"]["columns"] - 1 and columns[0] == 0


@pytest.mark.beside
def test_report_refuses(tmp_path):
    def refused(*argv, says, status=USAGE):
        done = parts.ebbctl("report", *argv, check=False)
        assert done.returncode == status and says in done.stderr
        assert len(done.stderr.splitlines()) == 1

    out = tmp_path / "out"
    refused("x.slice", says="-o DIR")
    refused("-o", out, says="--trace FILE")
    refused("x.slice", "--trace", PYTHON, "-o", out, says="excludes")
    refused("--trace", PYTHON, "--seconds", "3", "-o", out, says="--seconds")
    refused("--trace", tmp_path / "none", "-o", out, says="cannot read")
    (tmp_path / "file").write_text("")
    refused("--trace", PYTHON, "-o", tmp_path / "file", says="directory", status=1)
    (tmp_path / "cut.trace").write_bytes(PYTHON.read_bytes()[:9000])
    refused("--trace", tmp_path / "cut.trace", "-o", out, says="truncated")
    assert not (out / "index.html").exists()
    parts.ebbctl("report", "--trace", tmp_path / "cut.trace", "--partial", "-o", out)
    assert (out / "index.html").exists()


def test_report_of_a_running_cgroup(ebbd, device, cgroup, tmp_path, logs):
    """The report shows ebbd's counts; samples, windows and epochs are included."""
    c = cgroup(limit_mib=24)
    parts.ebbctl("policy", "attach", "leap", c.path)
    scan = parts.Scan(c, options=["--no-thp"], mib=40, passes=12, pattern="seq")
    out = tmp_path / "out"
    try:
        process = subprocess.Popen([machine.BIN / "ebbctl", "report", c.path, "--json", "-o", out],
                                   text=True, stdout=subprocess.PIPE)
        machine.wait_for(lambda: (out / "faults.trace").exists(), 20, "the recording to begin")
        before = parts.stats(c)
        scan.go()
        scan.result()
        after = parts.stats(c)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        answer = json.loads(process.communicate(timeout=300)[0])
    finally:
        scan.kill()
    page = out / "index.html"
    data, told = embedded(page), parts.ebbctl_json("trace", "show", answer["trace"])
    counted = {k: after[k] - before[k] for k in ("misses", "hits", "late")}
    assert answer["faults"] == sum(told[k] for k in counted)
    assert sum(counted.values()) * 0.99 <= answer["faults"] <= sum(counted.values()) * 1.01
    assert all(data["summary"][k] == told[k] for k in counted)
    s = data["samples"]
    assert len(s["time_ns"]) >= 5 and s["time_ns"] == sorted(s["time_ns"])
    assert max(s["resident"]) * 4096 <= 24 * MIB
    assert max(s["swapped"]) * 4096 >= 12 * MIB
    assert max(w or 0 for w in s["window"]) >= 2
    assert s["prefetched"][-1] > 1000 and s["prefetched"] == sorted(s["prefetched"])
    assert 0.5 < data["summary"]["coverage"] <= 1 and data["summary"]["accuracy"] > 0.5
    assert data["about"]["machine"]
    shown = browser.show(page, logs / "live.png")
    assert_quiet(shown)
    assert_counts(shown, told)
    assert shown.count("p", class_="none") == 0
    assert shown.count("path", class_="line") >= 5


# --- what a screenshot looks like --------------------------------------------

@dataclass
class Picture:
    brightness: float   # 0 to 255, on average
    colours: int


def picture(png):
    """Of an 8-bit PNG without interlacing, as Chromium writes them."""
    data = png.read_bytes()
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    assert depth == 8 and colour in (2, 6)
    step = 3 if colour == 2 else 4
    rows = unfilter(zlib.decompress(packed), width * step, height, step)
    seen = [bytes(row[i:i + 3]) for row in rows[::3] for i in range(0, len(row), 3 * step)]
    return Picture(sum(map(sum, seen)) / 3 / len(seen), len(set(seen)))


def unfilter(raw, stride, height, step):
    rows, before = [], bytearray(stride)
    for y in range(height):
        at = y * (stride + 1)
        row = bytearray(raw[at + 1:at + 1 + stride])
        for i in range(stride if raw[at] else 0):
            left, corner = (row[i - step], before[i - step]) if i >= step else (0, 0)
            row[i] = row[i] + predicted(raw[at], left, before[i], corner) & 255
        rows.append(row)
        before = row
    return rows


def predicted(kind, left, up, corner):
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    p = left + up - corner
    return min((left, up, corner), key=lambda v: abs(p - v))
