# SPDX-License-Identifier: GPL-2.0-or-later
"""
systemctl for the documents' examples, for ebbd and ebb-donord from the build tree:
`enable --now`, `start`, `stop`, `restart`, `reload`; other units, which never run here, only
`disable`.  PID 1 may not be systemd, and must not be disturbed if it is.

EBB_EXAMPLES is the directory of one document's examples; etc/ in it stands for /etc.
"""
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import parts
from machine import BIN, REPO, read, wait_for

HERE = Path(os.environ["EBB_EXAMPLES"])
STOP_SECONDS = 90
UNITS = ("ebbd", "ebb-donord")
DISABLED = ("ebb-sleep", "ebb-metrics.socket", "ebb-device@ebb0")


def pid_file(unit):
    return HERE / f"{unit}.pid"


def log(unit):
    return HERE / f"{unit}.log"


def running(unit):
    """Returns the unit's pid, or 0.  Zombies have no executable."""
    pid = int(read(pid_file(unit), "0"))
    try:
        return pid if pid and os.readlink(f"/proc/{pid}/exe") else 0
    except OSError:
        return 0


def configuration():
    """Joins ebb.conf and its drop-ins to one file, in the sequence in which ebbd reads them."""
    etc = HERE / "etc" / "ebb"
    files = [etc / "ebb.conf", *sorted(etc.glob("ebb.conf.d/*.conf"))]
    whole = HERE / "whole.conf"
    whole.write_text("\n".join(read(f) for f in files))
    return whole


def donor_arguments():
    """Returns the unit's arguments, or those in /etc/default/ebb-donord."""
    unit = REPO / "packaging" / "systemd" / "ebb-donord.service"
    said = re.search(r'^Environment=EBB_DONOR_ARGS="(.*)"$', unit.read_text(), re.M)[1]
    own = re.search(r'^EBB_DONOR_ARGS="?(.*?)"?$', read(HERE / "etc/default/ebb-donord"), re.M)
    return shlex.split(own[1] if own else said)


def start(unit):
    if running(unit):
        return
    argv = [BIN / "ebbd", "--config", configuration()] if unit == "ebbd" else \
        [BIN / "ebb-donord", *donor_arguments()]
    pid_file(unit).write_text(str(parts.Daemon(argv, log(unit), timeout=60).pid))


def stop(unit):
    pid = running(unit)
    if pid:
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not running(unit), STOP_SECONDS, f"{unit}: the end")
    pid_file(unit).unlink(missing_ok=True)


def reload(unit):
    configuration()
    said = len(read(log(unit)))
    os.kill(running(unit), signal.SIGHUP)
    if unit == "ebbd":
        wait_for(lambda: "configuration read" in read(log(unit))[said:], 10,
                 f"{unit}: to read its configuration: {read(log(unit))[said:]}")
    else:
        time.sleep(0.2)


def main():
    words = [w for w in sys.argv[1:] if w != "--now"]
    now = "--now" in sys.argv
    units = UNITS + DISABLED if words[:1] == ["disable"] else UNITS
    if len(words) < 2 or any(u.removesuffix(".service") not in units for u in words[1:]):
        sys.exit(f"systemctl {' '.join(words)}: not among what the examples may ask")
    verbs = {"enable": [start] if now else [], "start": [start], "stop": [stop],
             "disable": [stop] if now else [], "restart": [stop, start], "reload": [reload]}
    for unit in words[1:]:
        for step in verbs[words[0]]:
            step(unit.removesuffix(".service"))


if __name__ == "__main__":
    main()
