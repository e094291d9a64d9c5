# SPDX-License-Identifier: GPL-2.0-or-later
"""Units, for tests in a guest with systemd."""
import json
import subprocess
from pathlib import Path

UNITS = Path("/etc/systemd/system")


def run(*argv, check=True, timeout=600):
    """Returns a command's output; with @check the command must succeed."""
    done = subprocess.run(argv, text=True, capture_output=True, timeout=timeout, check=False)
    said = f"{' '.join(map(str, argv))}: {done.returncode}: {done.stdout}{done.stderr}"
    assert not check or done.returncode == 0, said
    return done.stdout.strip()


def main_pid(unit):
    return int(run("systemctl", "show", "-p", "MainPID", "--value", unit))


def service_drop_in(service, name, lines, section="Service"):
    """Installs a drop-in of @service and reloads systemd."""
    directory = UNITS / f"{service}.service.d"
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.conf").write_text(f"[{section}]\n{lines}")
    run("systemctl", "daemon-reload")


def sleep_locks():
    """Returns the reasons of ebb's locks that inhibit sleep."""
    told = run("busctl", "--json=short", "call", "org.freedesktop.login1", "/org/freedesktop/login1",
               "org.freedesktop.login1.Manager", "ListInhibitors")
    return [row[2] for row in json.loads(told)["data"][0]
            if "sleep" in row[0].split(":") and row[1] == "ebb" and row[3] == "block"]
