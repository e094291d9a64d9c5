# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the examples of one document in one shell, and removes their leftovers, swap first."""
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import docs
import machine
import parts
from machine import BIN, REPO, MachineError

HARNESS = Path(__file__).resolve().parent
SECONDS = 120  # one command
SHIMS = {
    "systemctl": f'exec {sys.executable} -B {shlex.quote(str(HARNESS))}/systemctl.py "$@"',
    "sudo": 'exec "$@"',
    "scp": 'cp "$1" "${2#*:}"',  # HOST:PATH is on this machine
    "chown": ":",  # the user ebb-donord exists only if ebb is installed
    # The original is in Debian's package attr, which nothing else here needs.
    "setfattr": f'exec {sys.executable} -B {shlex.quote(str(HARNESS))}/setfattr.py "$@"',
}
CGROUP = "spark.slice"
# Queries may be repeated: on a busy machine the answer may lag behind earlier commands.
ASKS = re.compile(r"(sudo )?ebbctl (status|stats|(device|donor|slab) list)\b.*")
BEHIND_SECONDS = 60


class Examples:
    """
    @how is one of docs.WORLDS.  Paths of the installed system in a document are mapped to this
    directory, so that the examples do not configure the machine; its machines are mapped to
    addresses of this one.
    """

    def __init__(self, directory, how):
        self.directory, self.how, self.count = Path(directory), how, 0
        self.work = self.directory / "work"
        self.pinned_before = machine.PINS.is_dir()
        self.swaps_before = set(machine.ebb_swaps())
        self.devices_before = self.devices() if how != "beside" else set()
        self.cgroup = None
        for d in ("work", "bin", "etc/ebb/ebb.conf.d", "etc/default", "run", "state"):
            (self.directory / d).mkdir(parents=True)
        for shim, text in SHIMS.items():
            (self.directory / "bin" / shim).write_text(f"#!/bin/sh\n{text}\n")
            (self.directory / "bin" / shim).chmod(0o755)
        (self.work / "vmlinux.h").symlink_to(machine.BUILD / "bpf" / "vmlinux.h")
        self.paths = [("/etc/", f"{self.directory}/etc/"),
                      ("/root/", f"{self.work}/"),
                      ("/usr/share/ebb/policy.mk", shlex.quote(str(REPO / "policies" / "policy.mk"))),
                      ("/sys/fs/cgroup/", f"{machine.memory_root()[0]}/"),
                      ("10.0.0.", "127.0.0.")]
        env = {"PATH": f"{self.directory}/bin:{BIN}:/usr/sbin:/usr/bin:/sbin:/bin",
               "HOME": str(self.work), "LC_ALL": "C.UTF-8", "EDITOR": "touch",
               "EBB_EXAMPLES": str(self.directory), "EBB_STATE_DIR": str(self.directory / "state")}
        # By these the harness finds what an example leaves.
        for name in (machine.SHARD, machine.RUN, machine.HELD):
            if name in os.environ:
                env[name] = os.environ[name]
        if how == "beside":
            env["EBB_RUN_DIR"] = str(self.directory / "run")
            self.paths.append(("/run/ebb/", f"{self.directory}/run/"))
        self.env = env
        self.shell = None

    def __enter__(self):
        try:
            self.shell = subprocess.Popen(
                ["bash", "--norc", "--noprofile"], cwd=self.work, env=self.env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            self.run("set -o pipefail")
            if self.how == "ebbd":
                made = machine.memory_root()[0] / CGROUP
                made.mkdir()
                self.cgroup = made
                status, said = self.run("systemctl start ebbd")
                assert status == 0, said
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    def here(self, text):
        """Maps a document's paths and machines to this directory and machine."""
        for real, ours in self.paths:
            text = text.replace(real, ours)
        return text

    def run(self, text):
        """Runs a command in the shell; returns (status, output)."""
        self.count += 1
        script, out = (self.directory / f"{self.count}.{kind}" for kind in ("sh", "out"))
        script.write_text(self.here(text) + "\n")
        self.shell.stdin.write(f". {script} >{out} 2>&1 </dev/null; echo $?\n")
        self.shell.stdin.flush()
        if not select.select([self.shell.stdout], [], [], SECONDS)[0]:
            raise MachineError(f"{text}: not done after {SECONDS} s: {machine.read(out)[-400:]}")
        status = self.shell.stdout.readline()
        return int(status or -1), machine.read(out)

    def down(self):
        """Takes swap off first; while it is on, its servers must not be touched."""
        if self.how != "beside":
            self.swap_off()
        if self.shell:
            try:
                os.killpg(self.shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.shell.communicate()
        for pid in self.directory.glob("*.pid"):
            subprocess.run([self.directory / "bin" / "systemctl", "stop", pid.stem], env=self.env,
                           check=True)
        if self.how != "beside" and not self.pinned_before and machine.PINS.is_dir():
            machine.pins_remove()
        if self.cgroup:
            self.cgroup.rmdir()

    @staticmethod
    def devices():
        return {d["name"] for d in parts.ebbctl_json("device", "list")["devices"]}

    def swap_off(self):
        for device in self.devices() - self.devices_before:
            parts.ebbctl("device", "destroy", device, check=False, start_new_session=True)
        for device in set(machine.ebb_swaps()) - self.swaps_before:
            machine.swapoff(device)


def run(path, directory):
    """Runs all examples of a document; the first failure is reported as FILE:LINE."""
    how = docs.world(path)
    with Examples(directory, how) as examples:
        for block in docs.consoles(path):
            if block.directive[0] != "run" or block.directive[1] not in docs.WORLDS:
                continue
            for command in block.commands():
                where = f"{docs.name(path)}:{command.line}: {command.text}"
                shown = examples.here("\n".join(command.expected))

                def attempt():
                    status, said = examples.run(command.text)
                    assert status == 0, f"{where}\nstatus {status}:\n{said}"
                    return said

                def agrees(said):
                    return not command.expected or docs.agrees(shown.split("\n"), said)
                said, end = attempt(), time.monotonic() + BEHIND_SECONDS
                while not agrees(said) and ASKS.fullmatch(command.text) and time.monotonic() < end:
                    time.sleep(0.2)
                    said = attempt()
                assert agrees(said), f"{where}\nthe document shows\n{shown}\nit printed\n{said}"
