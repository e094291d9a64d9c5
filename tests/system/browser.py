# SPDX-License-Identifier: GPL-2.0-or-later
"""A page in headless Chromium: what it became, what it said, what it asked for."""
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import machine

SECONDS = 300
# What the browser does on its own behalf is not the page's.
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
           "--disable-background-networking", "--disable-component-update", "--disable-sync",
           "--disable-default-apps", "--disable-extensions", "--hide-scrollbars",
           "--disable-features=NetworkTimeServiceQuerying,OptimizationHints,MediaRouter",
           "--enable-logging=stderr", "--virtual-time-budget=4000")

# It has pages of its own besides, which complain where it is slow.
OWN = re.compile(r", source: chrome://\S+ \(\d+\)$")


@dataclass
class Shown:
    dom: str            # after the page's script
    said: list          # lines of its console
    asked: set          # what it tried to load from a network

    def figures(self):
        """{id: value} of every <data id= value=>."""
        return {a["id"].removeprefix("figure-"): a.get("value")
                for a in attributes(self.dom, "data") if "id" in a}

    def count(self, tag, **wanted):
        return sum(all(a.get(k.strip("_")) == v for k, v in wanted.items())
                   for a in attributes(self.dom, tag))


class Attributes(HTMLParser):
    def __init__(self, tag):
        super().__init__()
        self.tag, self.found = tag, []

    def handle_starttag(self, tag, attrs):
        if tag == self.tag:
            self.found.append(dict(attrs))


def attributes(dom, tag):
    parser = Attributes(tag)
    parser.feed(dom)
    return parser.found


def show(page, screenshot=None, width=1280, height=2100, dark=False):
    """Loads the file @page in a network namespace without peers."""
    chromium = shutil.which("chromium")
    if not chromium:
        raise machine.MachineError("chromium: not installed; run make deps")
    with tempfile.TemporaryDirectory(prefix="ebb-browser-") as home:
        log = Path(home) / "net.json"
        argv = ["unshare", "--net", chromium, *OPTIONS, f"--user-data-dir={home}/data",
                f"--log-net-log={log}", f"--window-size={width},{height}"]
        argv += ["--blink-settings=preferredColorScheme=0"] if dark else []
        dom = run([*argv, "--dump-dom", f"file://{page}"], home)
        asked = requests(log)
        if screenshot:
            run([*argv, f"--screenshot={screenshot}", f"file://{page}"], home)
    said = [line for line in dom.stderr.splitlines() if "CONSOLE" in line and not OWN.search(line)]
    return Shown(dom.stdout, said, asked)


def run(argv, home):
    done = subprocess.run(argv, text=True, capture_output=True, timeout=SECONDS,
                          env={"HOME": home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    if done.returncode:
        raise machine.MachineError(f"chromium: status {done.returncode}: {done.stderr[-2000:]}")
    return done


def requests(log):
    """URLs that a page asked for, by Chromium's log of its network stack."""
    text = log.read_text()
    try:
        events = json.loads(text)["events"]
    except json.JSONDecodeError:
        # It may end before the log's last lines are written, each of which has one event.
        events = json.loads(text[:text.rindex("\n")].rstrip().rstrip(",") + "]}")["events"]
    begun = [e["params"] for e in events if "url" in e.get("params", {})]
    # What no page began is the browser's own: the time of day, lists of its maker's.
    return {p["url"] for p in begun if p.get("initiator", "not an origin") != "not an origin"}
