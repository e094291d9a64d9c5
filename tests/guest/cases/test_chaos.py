# SPDX-License-Identifier: GPL-2.0-or-later
"""
A program larger than its memory checks its own pages while donors die, stop and come
back, and the server of its device dies as well, for EBB_SOAK_SECONDS; `make soak` does more, and for longer.
"""
import os
import random
import signal
import time

import parts
from cluster import Checker
from machine import wait_for

SECONDS = int(os.environ.get("EBB_SOAK_SECONDS", 30))
SEED = int(os.environ.get("EBB_SOAK_SEED", 1))
MIB, LIMIT, PORTS = 48, 24, (7070, 7071, 7072)


class Donors:
    def __init__(self, factory):
        self.factory = factory
        self.now = {port: self.make(port) for port in PORTS}

    def make(self, port):
        return self.factory(port=port, memory="64M", slab="1M", drain="2s")

    def fault(self, rnd):
        port, what = rnd.choice(PORTS), rnd.choice(("kill", "stop", "end"))
        donor = self.now[port]
        if what == "stop":
            donor.signal(signal.SIGSTOP)
            time.sleep(rnd.uniform(1, 2.5))
            donor.signal(signal.SIGCONT)
            return
        donor.kill() if what == "kill" else donor.stop()
        time.sleep(rnd.uniform(0.2, 1))
        self.now[port] = self.make(port)


def test_swapping_while_donors_fail(swap_lock, donor_factory, cgroup, logs):
    donors, rnd = Donors(donor_factory), random.Random(SEED)
    others = [x for port in PORTS[1:] for x in ("--donor", f"127.0.0.1:{port}")]
    device = parts.Device(donors.now[PORTS[0]], slab="1M", options=others)
    c = cgroup(limit_mib=LIMIT)
    options = ("--memory", MIB, "--pause", 200, "--progress", 10)
    checker = Checker(None, logs / "checker.log", options, enter=c.enter)
    faults, kills, last, end = 0, 0, 0, time.monotonic() + SECONDS
    try:
        wait_for(lambda: (device.used_kib() or 0) > 4 << 10, 60, "pages on the device")
        while time.monotonic() < end:
            assert not checker.failed(), checker.failed()
            if rnd.random() < 0.3:
                # Before the fault: the next server must find its donors during the fault.
                os.kill(wait_for(device.status_with_standby, 30, "a standby")["server"], signal.SIGKILL)
                kills += 1
            donors.fault(rnd)
            faults += 1
            time.sleep(rnd.uniform(0.5, 2))
            if time.monotonic() - last > 10:
                last = time.monotonic()
                print(f"{faults} faults, {kills} servers killed, {device.stats()['donor_losses']} donors lost",
                      flush=True)
        told = checker.stop(timeout=240)
        assert told["bad"] == 0 and told["verified"] == told["pages"]
        assert device.stats()["donor_losses"] >= faults / 8
        assert device.stats()["pages_read_failed"] == 0
    finally:
        checker.kill()
        device.destroy()
