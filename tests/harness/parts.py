# SPDX-License-Identifier: GPL-2.0-or-later
"""ebb's programs, a cgroup and the scan program, for tests to drive."""
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import machine
from machine import BIN, BUILD, MachineError, read, wait_for

SCAN = BUILD / "tests" / "scan"

# Exit statuses of ebb's programs: daemon/lib/base/error.h.
FAILED, USAGE, UNSUPPORTED, NO_DAEMON, REFUSED = 1, 2, 3, 4, 5

# How a process ends of which the kernel cannot read a page: by a fault of its own, or, if the page
# has the thread's rseq area, on its way back to user mode.
UNREADABLE = -signal.SIGBUS, -signal.SIGSEGV


class Cgroup:
    """A memory cgroup (v1 with its v2 twin, or v2) below the tests' parent."""

    def __init__(self, name, limit_mib=None):
        root, self.version = machine.memory_root()
        self.path = root / name
        self.rel = f"/{name}"
        self.twins = [r / name for r in machine.cgroup_roots() if r != root]
        for d in (self.path, *self.twins):
            d.mkdir(parents=True)
        self.limit_mib = limit_mib
        if limit_mib:
            self.set_limit(limit_mib)

    def remove_twins(self):
        while self.twins:
            machine.cgroup_rmdir(self.twins.pop())

    def set_limit(self, mib):
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.path / name).write_text(str(mib << 20))

    def set(self, name, value):
        (self.path / name).write_text(str(value))

    def enter(self):
        """Moves the calling process into the cgroup; for subprocess's preexec_fn."""
        for d in (self.path, *self.twins):
            (d / "cgroup.procs").write_text("0")

    def usage(self):
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int(read(self.path / name, "0"))

    def events(self, key):
        """Returns a counter of memory.events, or of memory.oom_control on v1."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        rows = dict(line.split() for line in read(self.path / name).splitlines())
        return int(rows[key])

    def evict(self):
        """Reclaims as much as possible, including swap cache."""
        what = ("memory.force_empty", 0) if self.version == 1 else ("memory.reclaim", "1G")
        try:
            self.set(*what)
        except OSError as e:    # v2: less was reclaimed than requested; v1: not all
            if e.errno not in (errno.EAGAIN, errno.EBUSY):
                raise

    def pids(self):
        return [int(p) for p in read(self.path / "cgroup.procs").split()]

    def remove(self):
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.pids(), 30, f"{self.path}: processes that do not end")
        for d in (self.path, *self.twins):
            machine.cgroup_rmdir(d)


def scan_argv(mib=64, pattern="seq", passes=1, write=False, seed=1, options=()):
    argv = [str(SCAN), "--json", "--mib", str(mib), "--pattern", pattern,
            "--passes", str(passes), "--seed", str(seed), *options]
    return argv + ["--write"] if write else argv


def scan(cgroup=None, check=True, timeout=240, **what):
    """Runs scan to its end in @cgroup."""
    return subprocess.run(scan_argv(**what), text=True, capture_output=True, timeout=timeout,
                          check=check, preexec_fn=cgroup.enter if cgroup else None)


def scan_json(**what):
    return json.loads(scan(**what).stdout.splitlines()[-1])


def tried(attempt, good, times=5):
    """
    Returns attempt()'s first result that is good(), or the last one: a busy machine may spoil one
    attempt, a fault spoils each.
    """
    for _ in range(times):
        told = attempt()
        if good(told):
            break
    return told


def noted(errors, function, *args):
    """Calls @function; the exception that ends it is appended to @errors.  For threads of a test."""
    try:
        function(*args)
    except Exception as e:
        errors.append(e)


class Scan:
    """A scan that has filled its memory and waits for go(); .ready has its pid, address and pages."""

    def __init__(self, cgroup=None, options=(), **what):
        self.process = subprocess.Popen(
            scan_argv(options=("--pause", *options), **what), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=cgroup.enter if cgroup else None)
        line = self.process.stdout.readline()
        if not line:
            raise MachineError(f"scan: ended with {self.process.wait()} before it was ready: "
                               f"{self.process.stderr.read()}")
        self.ready = json.loads(line)
        self.pid = self.process.pid

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self, timeout=240):
        """Returns its report; fails if a word was wrong or scan was killed."""
        status, told = self.outcome(timeout)
        if status:
            raise MachineError(f"scan: status {status}: {told}")
        return told

    def outcome(self, timeout=240):
        """Returns (exit status, report or error output)."""
        out, err = self.process.communicate(timeout=timeout)
        lines = out.splitlines()
        if self.process.returncode == 0 and lines:
            return 0, json.loads(lines[-1])
        return self.process.returncode, out + err

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        # On a dead swap device scan may never end: limit the wait.
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            pass


def fill_while_stalled(donor, cgroup, mib, seconds=2):
    """
    Fills and scans @mib in @cgroup while @donor does not run for @seconds; returns the exit status.
    """
    donor.process.send_signal(signal.SIGSTOP)
    try:
        s = subprocess.Popen(scan_argv(mib=mib), stdout=subprocess.DEVNULL,
                             preexec_fn=cgroup.enter)
        time.sleep(seconds)
    finally:
        donor.process.send_signal(signal.SIGCONT)
    try:
        return s.wait(240)
    finally:
        s.kill()


class Regions:
    """tests/programs/regions in @cgroup; costs() are ns per page, one value per second."""

    def __init__(self, cgroup, total, hot, pass_ms):
        self.process = subprocess.Popen(
            [BUILD / "tests" / "regions", str(total), str(hot), str(pass_ms)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=cgroup.enter)
        assert self.process.stdout.readline() == "filled\n"

    def costs(self, seconds):
        return [float(self.process.stdout.readline()) for _ in range(seconds)]

    def resident(self):
        """Returns the mapped bytes by the kernel's count, not ebb's."""
        for line in read(f"/proc/{self.process.pid}/status").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise AssertionError("no RssAnon")

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


class Failed(Exception):
    """A command of ebb exited with a status other than 0."""

    def __init__(self, argv, done):
        self.status, self.said = done.returncode, (done.stderr or "") + (done.stdout or "")
        super().__init__(f"{' '.join(map(str, argv))}: status {done.returncode}: {self.said.strip()}")


def ebbctl(*argv, check=True, timeout=120, **kwargs):
    """Runs ebbctl; returns the CompletedProcess, or raises Failed if @check."""
    argv = [str(BIN / "ebbctl"), *map(str, argv)]
    done = subprocess.run(argv, text=True, capture_output=True, timeout=timeout, **kwargs)
    if check and done.returncode:
        raise Failed(argv, done)
    return done


def ebbctl_json(*argv, **kwargs):
    """Returns the decoded output of ebbctl VERB --json ...; options precede a program's arguments."""
    argv = list(argv)
    at = argv.index("--") if "--" in argv else len(argv)
    argv.insert(at, "--json")
    return json.loads(ebbctl(*argv, **kwargs).stdout)


def threads_of(pid):
    """Returns a line for each thread of a process that hangs: name, state, CPU time, place in the kernel."""
    lines = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        stat = read(task / "stat").rpartition(")")[2].split() or ["?"] * 13
        stack = " < ".join(line.partition("] ")[2].partition("+")[0]
                           for line in read(task / "stack").splitlines()[:8])
        lines.append(f"  {read(task / 'comm').strip()}: {stat[0]}, user {stat[11]}, kernel {stat[12]}: {stack}")
    return "\n".join(lines)


class Daemon:
    """A program of ebb that reports READY on our descriptor."""

    def __init__(self, argv, log, timeout=120, env=None):
        self.argv, self.log = list(map(str, argv)), Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = os.pipe()
        with open(self.log, "a") as out:
            self.process = subprocess.Popen(
                [*self.argv, "--ready-fd", str(theirs)], pass_fds=(theirs,),
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, **(env or {})})
        os.close(theirs)
        self.pid = self.process.pid
        try:
            self.wait_ready(ours, timeout)
        finally:
            os.close(ours)

    def wait_ready(self, fd, timeout):
        os.set_blocking(fd, False)
        said, deadline = b"", time.monotonic() + timeout
        while b"READY\n" not in said:
            try:
                piece = os.read(fd, 64)
            except BlockingIOError:
                piece = None
            if piece == b"":
                # The program may have reported READY and gone to the background.
                status = self.process.wait(timeout)
                raise MachineError(f"{self.argv[0]}: ended with {status}: {self.tail()}")
            said += piece or b""
            if time.monotonic() > deadline:
                where = threads_of(self.pid)
                self.process.kill()
                raise MachineError(f"{self.argv[0]}: not ready after {timeout} s: {self.tail()}\n{where}")
            if piece is None:
                time.sleep(0.02)

    def tail(self):
        return " / ".join(read(self.log).splitlines()[-5:])

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """Sends SIGKILL, as a crash or the OOM killer would."""
        self.process.kill()
        self.process.wait(120)

    def stop(self, timeout=120):
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise MachineError(f"{self.argv[0]}: still there {timeout} s after SIGTERM") from None
        return self.process.returncode


class Swapd(Daemon):
    """An ebb-swapd in the foreground: the started process is the supervisor."""

    @property
    def server(self):
        """Returns the pid of the active server."""
        return self.status()["server"]

    def children(self):
        return machine.children(self.pid)

    def told(self):
        """Returns its status, or None if the server dies while it answers."""
        try:
            return self.status()
        except (OSError, ValueError):
            return None

    def ready(self):
        """Returns its status if a standby is ready, else a false value."""
        told = self.told()
        return told and read(f"/proc/{told['standby']}/comm").strip() == "ebb-standby" and told

    def kill_server(self, seconds=20):
        """Kills the active server; returns the status of the next one."""
        told = wait_for(self.ready, seconds, "a standby")
        os.kill(told["server"], signal.SIGKILL)
        return wait_for(lambda: (now := self.told()) and now["server"] != told["server"] and now,
                        seconds, "a successor")

    def kill(self):
        """Kills all its processes: any one of them would keep the device alive."""
        self.signal(signal.SIGSTOP)
        for pid in self.children():
            os.kill(pid, signal.SIGKILL)
        super().kill()


class Donor(Daemon):
    """
    A donor on loopback at @port, or sharing its memory through the socket @path, or at @listen; and
    at @also.  It has its own run directory, and does not wait for borrowers when it is stopped.
    """

    def __init__(self, log, port=7070, memory="256M", slab="16M", delay=None, path=None, also=(),
                 drain="0", options=(), run=None, listen=None):
        self.address = listen or (f"unix:{path}" if path else f"127.0.0.1:{port}")
        argv = [BIN / "ebb-donord", "--listen", self.address, "--memory", memory, "--slab", slab,
                "--drain-timeout", drain, *options]
        self.also = list(also)
        argv += [x for a in self.also for x in ("--listen", a)]
        self.own_run = None if run else tempfile.mkdtemp(prefix="ebb-donor-")
        self.run = Path(run or self.own_run)
        try:
            super().__init__(argv + (["--delay", delay] if delay else []), log,
                             env={"EBB_RUN_DIR": str(self.run)})
        except BaseException:
            self.remove_run()
            raise

    def remove_run(self):
        if self.own_run:
            shutil.rmtree(self.own_run, ignore_errors=True)

    def ask(self, verb="status", **what):
        return control(self.run / "donord.sock", verb, **what)

    def stop(self, timeout=120):
        try:
            return super().stop(timeout)
        finally:
            self.remove_run()


def control_answer(path, verb, **what):
    """
    Returns a control socket's answer.  Retries, because on a busy machine the request may come
    later than one second, after which the server disconnects.
    """
    for _ in range(5):
        with socket.socket(socket.AF_UNIX) as s, suppress(BrokenPipeError, ConnectionResetError):
            s.settimeout(60)
            s.connect(str(path))
            s.sendall(json.dumps({"verb": verb, **what}).encode() + b"\n")
            if line := s.makefile().readline():
                return json.loads(line)
    raise ConnectionResetError(f"{path}: {verb}: no answer")


def control(path, verb, **what):
    """Asks a control socket; returns the answer or raises MachineError."""
    answer = control_answer(path, verb, **what)
    if not answer["ok"]:
        raise MachineError(answer["error"])
    return answer


class Ebbd(Daemon):
    def __init__(self, log, config=None):
        super().__init__([BIN / "ebbd"] + (["--config", config] if config else []), log)


class Device:
    """A swap device of `ebbctl device create`, on until destroy()."""

    def __init__(self, donor, name="test0", size="256M", slab="16M", options=()):
        self.name, self.donor, self.size = name, donor, size
        ebbctl("device", "create", name, "--size", size, "--slab", slab,
               "--donor", donor.address, *options)
        self.record = json.loads(Path(f"/run/ebb/devices/{name}.json").read_text())
        self.block = self.record["block"]
        self.server = self.record["server_pid"]    # the supervisor, which exits last

    def used_kib(self):
        return machine.swaps().get(self.block)

    def stats(self):
        """Returns the server's counters: pages_read_donor, pages_read_backup, donor_losses, ..."""
        return control(f"/run/ebb/devices/{self.name}.sock", "stats")

    def status(self):
        """Returns its status: live and mapped bytes, slabs, copies, donors, ..."""
        return control(f"/run/ebb/devices/{self.name}.sock", "status")

    def slabs(self):
        """Returns the used or mapped slabs of a small device: live pages, copies."""
        return control(f"/run/ebb/devices/{self.name}.sock", "slab.list")["slabs"]

    def status_if_any(self):
        """Returns the status, or None if the server dies while it answers."""
        try:
            return self.status()
        except (OSError, ValueError):
            return None

    def successor(self, gone, seconds=30):
        """Waits for a server other than the processes @gone; returns its status."""
        return wait_for(lambda: (now := self.status_if_any()) and now["server"] not in gone and now,
                        seconds, "a successor")

    def status_with_standby(self):
        """Returns the status if a standby is ready, else None."""
        told = self.status_if_any()
        if told and read(f"/proc/{told['standby']}/comm").strip() == "ebb-standby":
            return told
        return None

    def processes(self):
        """Returns supervisor, server and standby; any of them can replace the others."""
        told = self.status()
        return [p for p in (told["holder"], told["server"], told["standby"]) if p]

    def block_pages(self):
        """Returns (read, written) pages in the block layer's counters of the device."""
        fields = read(f"/sys/block/{self.block.removeprefix('/dev/')}/stat").split()
        return int(fields[2]) // 8, int(fields[6]) // 8

    def destroy(self):
        """Takes swap off, with a deadline, then removes everything below it."""
        if self.block in machine.swaps():
            machine.swapoff(self.block)
        done = ebbctl("device", "destroy", self.name, check=False)
        if done.returncode and Path(f"/run/ebb/devices/{self.name}.json").exists():
            raise Failed(["device", "destroy", self.name], done)


def run_dir_clear():
    """Removes files of a killed daemon in /run/ebb, which would disturb the next test."""
    shutil.rmtree("/run/ebb", ignore_errors=True)


def stats(cgroup):
    """Returns the counters of one cgroup in `ebbctl stats`."""
    rows = ebbctl_json("stats", cgroup.path)["cgroups"]
    if len(rows) != 1:
        raise MachineError(f"{cgroup.path}: {len(rows)} rows in ebbctl stats, not one")
    return rows[0]


def pinned_map(name):
    """Returns the entries of a pinned map, which outlives ebbd, as bpftool shows them."""
    done = subprocess.run(["/usr/sbin/bpftool", "-j", "map", "dump", "pinned",
                           str(machine.PINS / "maps" / name)],
                          text=True, capture_output=True, check=True)
    return [entry.get("formatted", entry) for entry in json.loads(done.stdout)]


def pinned_rows():
    """Returns the map cgroup_stats: totals that ebbd writes, and none without it."""
    return [entry["value"] for entry in pinned_map("cgroup_stats")]


def counted(cgroup, counter):
    """Returns what the BPF programs have counted, with or without ebbd."""
    number = cgroup.path.stat().st_ino
    of, = (entry["values"] for entry in pinned_map("counters") if entry["key"] == number)
    return sum(one["value"][counter] for one in of)


def pinned_stats(cgroup):
    """Returns the counters of one cgroup in pinned_rows()."""
    for value in pinned_rows():
        if value["path"] == cgroup.rel:
            return value
    raise MachineError(f"{cgroup.rel}: not in the pinned map cgroup_stats")
