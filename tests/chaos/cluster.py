# SPDX-License-Identifier: GPL-2.0-or-later
"""
One borrower and some donors, each on its own machine, and the faults that may happen to them.
Each fault can be undone; heal() undoes all.  The servers of the devices may be killed, stopped
and cut off, because swap is on only in guests.
"""
import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import machine
import parts
from control_server import write_record
from etcd import Etcd, certificates
from machine import BIN, BUILD, MachineError, wait_for
from network import Network

CHECKER = BUILD / "tests" / "checker"
PORT, PAGE, SLAB = 7070, 4096, 1 << 20
MACHINE_MIB, HEADROOM_MIB = 2048, 256
# Most seconds until a program is ready, also on an emulated machine.
START_SECONDS = 90


def left_of(directory):
    """Returns the lines of machine.things() below @directory: mounts, loop devices, processes."""
    inside = f"{directory}/"
    found = dict(machine.mount_thing(d) for _, d, _ in machine.mounts() if d.startswith(inside))
    found.update(machine.loop_thing(d) for d, file in machine.loops().items() if file.startswith(inside))
    found.update(machine.process_thing(pid, name) for pid, name in machine.processes().items()
                 if inside in machine.read(f"/proc/{pid}/cmdline"))
    return found


class Checker:
    """
    A running checker program on @path, or on its own memory, by @options.  stop() returns its
    report.  A bad page ends the program at once: see failed().
    """

    def __init__(self, path, log, options=(), enter=None):
        self.log = Path(log)
        argv = [CHECKER, *map(str, options), *([path] if path else [])]
        with open(self.log, "w") as err, open(self.output(), "w") as out:
            self.process = subprocess.Popen(argv, text=True, stdout=out, stderr=err,
                                            stdin=subprocess.DEVNULL, start_new_session=True,
                                            preexec_fn=enter)

    def output(self):
        return self.log.with_suffix(".json")

    def operations(self):
        """Returns the number of its read and write system calls, including failed ones."""
        rows = machine.read(f"/proc/{self.process.pid}/io").splitlines()
        return sum(int(row.split()[1]) for row in rows if row.startswith(("syscr:", "syscw:")))

    def failed(self):
        """Returns the fault found, or ""."""
        if self.process.poll() in (None, 0):
            return ""
        return machine.read(self.log).strip() or f"checker: status {self.process.returncode}"

    def stop(self, timeout=120):
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise MachineError(f"checker: still there {timeout} s after SIGTERM") from None
        if self.failed():
            raise MachineError(self.failed())
        return json.loads(machine.read(self.output()).splitlines()[-1])

    def kill(self):
        self.process.kill()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            pass  # its I/O ends with the device


class Loop:
    """A loop device on @file, set up as for swap, including discards."""

    def __init__(self, file):
        self.device = subprocess.run(
            ["/sbin/losetup", "--direct-io=on", "--sector-size", "4096", "-f", "--show", file],
            check=True, capture_output=True, text=True).stdout.strip()

    def close(self):
        subprocess.run(["/sbin/losetup", "-d", self.device], check=True)


class SwapArea(Loop):
    """Swap on @file, on until close()."""

    def __init__(self, file):
        super().__init__(file)
        for argv in (["mkswap"], ["swapon", "--discard=pages"]):
            subprocess.run([f"/sbin/{argv[0]}", *argv[1:], self.device], check=True, capture_output=True)

    def used_kib(self):
        return machine.swaps()[self.device]

    def close(self):
        machine.swapoff(self.device)
        super().close()


class EtcdMachine(Etcd):
    """An etcd on its own machine.  @keyed: etcd and its clients have certificates."""

    def __init__(self, node, directory, log, keyed):
        self.node = node
        directory.mkdir()
        super().__init__(directory / "data", log, address=node.address,
                         tls=certificates(directory / "tls", node.address) if keyed else None)

    def start(self, fresh=False):
        with self.node.inside():
            super().start(fresh)

    def call(self, *what):
        with self.node.inside():
            return super().call(*what)


class ControlPlane:
    """An ebbd on @node, which passes the list @donors to the devices of @run that follow()."""

    def __init__(self, node, run, log, donors):
        self.config, self.daemon = run / "ebb.conf", None
        self.argv, self.log = [*node.prefix, BIN / "ebbd", "--config", self.config], log
        self.run = run
        run.mkdir(parents=True, exist_ok=True)
        self.configure(donors)
        self.start()

    def start(self):
        self.daemon = parts.Daemon(self.argv, self.log, timeout=START_SECONDS, env={"EBB_RUN_DIR": str(self.run)})

    def configure(self, donors):
        """Sets the lines of [donors]."""
        self.config.write_text(f"[donors]\n{donors}\n")
        if self.daemon:
            self.daemon.signal(signal.SIGHUP)

    def failed(self):
        return self.daemon and not self.daemon.alive() and \
            f"ebbd ended with {self.daemon.process.returncode}: {self.daemon.tail()}"

    def kill(self):
        daemon, self.daemon = self.daemon, None
        daemon.kill()

    def close(self):
        if self.daemon:
            self.daemon.stop()
        machine.pins_remove()


class DonorMachine:
    """
    An ebb-donord on its own machine, which may be down.  @path: an additional unix socket for the
    borrower, as if on the same machine.  The donor registers in @etcd.
    """

    def __init__(self, node, directory, log, memory="64M", slab="1M", path=None, etcd=None, options=()):
        self.node, self.log = node, log
        self.port = PORT
        self.address, self.local = f"{node.address}:{PORT}", f"unix:{path}" if path else None
        # The donor's view of its machine's memory, and its own directory for the control socket.
        self.proc, self.run = Path(directory) / "proc", Path(directory) / "run"
        self.argv = [*node.prefix, BIN / "ebb-donord", "--listen", self.address,
                     "--memory", memory, "--slab", slab, "--headroom", f"{HEADROOM_MIB}M",
                     "--keep", "2s",
                     "--machine", self.proc, *options]
        if path:
            self.argv += ["--listen", self.local]
        if etcd:
            self.argv += ["--advertise", self.address, *etcd.options()]
        self.daemon = None
        self.relax()
        self.start()

    def start(self):
        if not self.up():
            self.daemon = parts.Daemon(self.argv, self.log, timeout=START_SECONDS,
                                       env={"EBB_RUN_DIR": str(self.run)})

    def up(self):
        return self.daemon is not None and self.daemon.alive()

    def kill(self):
        self.daemon.kill()

    def stop(self):
        self.daemon.signal(signal.SIGSTOP)

    def go_on(self):
        self.daemon.signal(signal.SIGCONT)

    def drain(self, timeout=60):
        """Sends SIGTERM and waits for the exit."""
        return self.daemon.stop(timeout)

    def lie(self, how):
        """
        Alters pages in the donor's memory without its knowledge, and returns how many
        pages.  "flip": a byte of each; "swap": each gets the one before it; "replay": each gets what it
        was a moment ago.  Skips slabs that the donor releases meanwhile.
        """
        pages = 0
        if how == "replay":
            return self.replay()
        with open(f"/proc/{self.daemon.pid}/mem", "r+b", buffering=0) as memory:
            for start, end in self.lent_memory():
                try:
                    memory.seek(start)
                    data = bytearray(memory.read(end - start))
                except OSError:
                    continue
                old, nothing = bytes(data), bytes(PAGE)
                used = [at for at in range(0, len(old), PAGE) if old[at:at + PAGE] != nothing]
                for i, at in enumerate(used):
                    if how == "flip":
                        data[at + 2000] = (data[at + 2000] + 1) % 256
                    else:
                        data[at:at + PAGE] = old[used[i - 1]:used[i - 1] + PAGE]
                try:
                    memory.seek(start)
                    memory.write(data)
                except OSError:
                    continue
                pages += len(used)
        return pages

    def replay(self, seconds=1):
        """Returns the number of pages that changed within @seconds, and are what they were again."""
        def read():
            found = {}
            for start, end in self.lent_memory():
                try:
                    memory.seek(start)
                    found[start] = memory.read(end - start)
                except OSError:
                    pass
            return found

        pages = 0
        with open(f"/proc/{self.daemon.pid}/mem", "r+b", buffering=0) as memory:
            old = read()
            time.sleep(seconds)
            new = read()
            for start in set(old) & set(new):
                for at in range(0, min(len(old[start]), len(new[start])), PAGE):
                    was = old[start][at:at + PAGE]
                    if was == new[start][at:at + PAGE] or was == bytes(PAGE):
                        continue
                    try:
                        memory.seek(start + at)
                        memory.write(was)
                        pages += 1
                    except OSError:
                        break
        return pages

    def ask(self, verb="status"):
        """Asks the donor's control socket."""
        return parts.control(self.run / "donord.sock", verb)

    def lent_memory(self):
        """Returns the mappings of its slabs: locked, writable, not dumped, of whole slabs."""
        found, low = [], None
        for line in machine.read(f"/proc/{self.daemon.pid}/smaps").splitlines():
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                low, _, high = key.partition("-")
                low, high = int(low, 16), int(high, 16)
            elif key == "VmFlags:" and {"wr", "lo", "dd"} <= set(rest.split()) and \
                    not (high - low) % SLAB:
                found.append((low, high))
        return found

    def tell_memory(self, available_mib):
        (self.proc / "pressure").mkdir(parents=True, exist_ok=True)
        (self.proc / "pressure" / "memory").write_text(
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
        # Replaced atomically: the donor reads the file once a second.
        new = self.proc / "new"
        new.write_text(f"MemTotal: {MACHINE_MIB << 10} kB\nMemFree: 0 kB\n"
                       f"MemAvailable: {available_mib << 10} kB\n")
        new.rename(self.proc / "meminfo")

    def squeeze(self):
        """Fakes a shortage: the machine's programs take nearly all memory, so the donor recalls slabs."""
        self.tell_memory(HEADROOM_MIB // 4)

    def relax(self):
        self.tell_memory(MACHINE_MIB - HEADROOM_MIB)

    def heal(self):
        self.relax()
        if self.up():
            self.go_on()
        self.node.plug()
        self.node.heal()
        self.start()

    def close(self):
        if self.up():
            self.go_on()
            self.daemon.stop()


class Borrower(parts.Swapd):
    """An ebb-swapd on @node with its own run directory, and its file."""

    def __init__(self, node, directory, log, donors, name="dp0", size="32M", slab="1M",
                 options=(), backup=True):
        self.name, self.directory = name, Path(directory)
        self.mount, self.run = self.directory / "mnt", self.directory.parent / "run"
        self.mount.mkdir(parents=True, exist_ok=True)
        self.backup = self.directory / "backup" if backup is True else backup or None
        argv = [*node.prefix, BIN / "ebb-swapd", "--name", name, "--size", size, "--slab", slab,
                "--mount", self.mount, "--foreground", *options]
        if self.backup:
            argv += ["--backup", self.backup]
        self.donors = [d if isinstance(d, str) else d.address for d in donors]
        argv += [x for address in self.donors for x in ("--donor", address)]
        super().__init__(argv, log, timeout=START_SECONDS, env={"EBB_RUN_DIR": str(self.run)})
        self.file = self.mount / "swap"

    def follow(self):
        """Makes the machine's ebbd manage its donors."""
        write_record(self.run, self.name, donors_from="configuration")

    def ask(self, verb, **what):
        return parts.control_answer(self.run / "devices" / f"{self.name}.sock", verb, **what)

    def order(self, verb, **what):
        """Sends a command as ask() does; the command must succeed."""
        answer = self.ask(verb, **what)
        if not answer["ok"]:
            raise MachineError(f"{self.name}: {verb} {what}: {answer['error']}")

    def stats(self):
        return self.ask("stats")

    def status(self):
        return self.ask("status")

    def states(self):
        return [d["state"] for d in self.status()["donors"]]

    def donor(self, address):
        """Returns the donor's row in status; state "absent" if it is not listed."""
        return next((d for d in self.status()["donors"] if d["address"] == address),
                    {"state": "absent", "losses": 0, "absences": 0, "slabs": 0})

    def losses(self):
        """Returns how often each donor was lost or went away."""
        return [d["losses"] + d["absences"] for d in self.status()["donors"]]

    def whole(self):
        """Returns whether every slab has all its replicas and none is in flight."""
        copies = self.status()["copies"]
        return not (copies["missing"] or copies["filling"] or copies["leaving"])

    def slabs(self):
        """Returns {slab: addresses of the donors with a complete replica}."""
        return {s["slab"]: [c["donor"] for c in s["copies"] if c["state"] == "complete"]
                for s in self.ask("slab.list")["slabs"]}

    def move(self, rnd, most=4):
        """Requests migration of up to @most slabs; returns the number of accepted requests."""
        where, taken = sorted(self.slabs()), 0
        donors = [d["address"] for d in self.status()["donors"]]
        for slab in rnd.sample(where, min(most, len(where))):
            taken += bool(self.ask("slab.migrate", slab=slab, to=rnd.choice(donors))["ok"])
        return taken

    def trust(self, donor):
        return self.ask("donor.trust", donor=donor)["ok"]

    # --- faults

    def disk_full(self):
        """Makes each write to the backup fail, as on a full disk."""
        resource.prlimit(self.server, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def disk_empty(self):
        resource.prlimit(self.server, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)

    def heal(self):
        if self.alive():
            self.disk_empty()

    def die(self):
        """Simulates a dead machine: kill -9, and removal of the mount and the backup."""
        self.kill()
        subprocess.run(["umount", "-l", self.mount], check=True)
        if self.backup:
            self.backup.unlink()

    def close(self):
        """Ends the server and removes a dead mount that it left."""
        (self.run / "devices" / f"{self.name}.json").unlink(missing_ok=True)
        try:
            self.stop()
        finally:
            if os.path.ismount(self.mount):
                subprocess.run(["umount", "-l", self.mount], check=False)


class Cluster:
    """
    @donors lending machines and one borrower; @local: donors also listen on unix sockets;
    @keyed: all share a key and trust no address; @etcd: donors register in an etcd.  serve()
    starts a device, check() a checker on it, control() an ebbd; close() ends all in reverse
    sequence.
    """

    def __init__(self, directory, logs, donors=4, local=False, keyed=False, etcd=False,
                 options=(), **donor_options):
        self.directory, self.logs = Path(directory), Path(logs)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.network = Network(loopback=not keyed)
        self.donors, self.borrowers, self.checkers = [], [], []
        self.etcd = self.plane = None
        self.key = self.directory / "test.key" if keyed else None
        if keyed:
            parts.ebbctl("key", "create", self.key, "--name", "test")
            options = (*options, "--keys", self.key)
        try:
            self.node = self.network.add()
            if etcd:
                self.etcd = EtcdMachine(self.network.add(), self.directory / "etcd",
                                        self.logs / "etcd.log", keyed)
            for i in range(donors):
                own = self.directory / f"donor{i}"
                self.donors.append(DonorMachine(
                    self.network.add(), own, self.logs / f"donor{i}.log",
                    path=own / "socket" if local else None, etcd=self.etcd, options=options,
                    **donor_options))
        except BaseException:
            self.close()
            raise

    def serve(self, name="dp0", donors=None, options=("--deadline", "300ms"), **what):
        if self.key:
            options = (*options, "--key", self.key)
        b = Borrower(self.node, self.directory / name, self.logs / f"{name}.log",
                     self.donors if donors is None else donors, name=name, options=options, **what)
        self.borrowers.append(b)
        return b

    def control(self, donors):
        self.plane = ControlPlane(self.node, self.directory / "run", self.logs / "ebbd.log", donors)
        return self.plane

    def check(self, borrower, options=("--pause", 300), path=None, enter=None):
        """@enter: moves the checker into a cgroup, where it checks its own memory, not the file."""
        c = Checker(None if enter else path or borrower.file,
                    self.logs / f"checker{len(self.checkers)}.log", options, enter)
        self.checkers.append(c)
        return c

    def failed(self):
        """Returns the first fault: a bad page, or a borrower or ebbd that exited; or ""."""
        for c in self.checkers:
            if c.failed():
                return c.failed()
        for b in self.borrowers:
            if not b.alive():
                return f"{b.name}: ebb-swapd ended with {b.process.returncode}: {b.tail()}"
        return self.plane and self.plane.failed() or ""

    def run(self, seconds):
        """Lets the load run for @seconds; raises the first fault."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.failed():
                raise MachineError(self.failed())
            time.sleep(0.1)

    def work(self, seconds, least=100):
        """As run(), and longer on a busy machine, until each checker has done @least operations."""
        enough = {c: c.operations() + least for c in self.checkers if c.process.poll() is None}
        self.run(seconds)
        for c, n in enough.items():
            self.wait(lambda: c.operations() >= n, 20, "load")

    def wait(self, condition, seconds, what):
        """As wait_for(), but a fault ends the wait."""
        def either():
            if self.failed():
                raise MachineError(self.failed())
            return condition()
        return wait_for(either, seconds, what)

    def all_up(self, borrower, seconds=20):
        all_of_them = ["up"] * len(borrower.donors)
        try:
            self.wait(lambda: borrower.states() == all_of_them, seconds, "all donors up")
        except MachineError as e:
            raise MachineError(f"{e}; {borrower.name}: {borrower.states()}") from None

    def heal(self):
        for what in (*self.donors, *self.borrowers, self.network.nodes[0]):
            what.heal()
        self.network.nodes[0].plug()

    def end_load(self):
        """Ends checkers and devices, not the donors."""
        try:
            for c in self.checkers:
                c.kill()
        finally:
            self.checkers = []
            borrowers, self.borrowers = self.borrowers, []
            plane, self.plane = self.plane, None
            if plane:
                plane.close()
            for b in borrowers:
                b.close()

    def close(self):
        try:
            self.end_load()
        finally:
            for d in self.donors:
                d.close()
            self.donors = []
            if self.etcd:
                self.etcd.kill()
            self.network.close()
