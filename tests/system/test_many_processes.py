# SPDX-License-Identifier: GPL-2.0-or-later
"""Prefetching for more processes than ebbd has descriptors of, which take turns."""
import subprocess

import parts
import policies
from machine import wait_for
from parts import ebbctl

PROCESSES, TURNS = 80, 16
STRIDE, AHEAD, WINDOW = 32, 16, 8   # pages

# Processes with an area each, and no other memory that can be swapped out.  "out" pages all areas
# out; in "turn" number N, one process after the other touches page N * STRIDE and the pages that
# this had the policy request in the turn before.
PROGRAM = f"""
import ctypes, mmap, os, socket, sys
libc = ctypes.CDLL(None)
PAGES = {TURNS * STRIDE}

def child(s):
    assert libc.mlockall(1 | 2 | 4) == 0 # MCL_CURRENT, _FUTURE, _ONFAULT
    area = mmap.mmap(-1, PAGES << 12, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert libc.munlock(ctypes.c_void_p(address), ctypes.c_size_t(len(area))) == 0
    turn = 0
    while command := s.recv(1):
        if command == b"o":
            for page in range(PAGES):
                area[page << 12] = page % 255 + 1
            area.madvise(21) # MADV_PAGEOUT
        else:
            touched = [turn * {STRIDE}]
            if turn:
                ahead = (turn - 1) * {STRIDE} + {AHEAD}
                touched += range(ahead, ahead + {WINDOW})
            for page in touched:
                assert area[page << 12] == page % 255 + 1
            turn += 1
        s.send(command)

assert libc.mlockall(1 | 2) == 0 # its own misses would have pages beside its mappings requested
children = []
for _ in range({PROCESSES}):
    mine, its = socket.socketpair()
    if not os.fork():
        for s in (mine, *children):
            s.close()
        child(its)
        os._exit(0)
    its.close()
    children.append(mine)
print(flush=True)
for line in sys.stdin:
    for s in children:
        s.send(line[:1].encode())
        assert s.recv(1)
    print(flush=True)
for s in children:
    s.close()
for _ in children:
    assert os.wait()[1] == 0
"""


class Processes:
    def __init__(self, cgroup):
        self.process = subprocess.Popen(["/usr/bin/python3", "-B", "-c", PROGRAM], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        preexec_fn=cgroup.enter)
        assert self.process.stdout.readline() == "\n"

    def do(self, word):
        print(word, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "\n"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0


def test_a_process_stays_known_while_others_take_their_turns(ebbd, device, cgroup, tmp_path):
    """A thread tells its mappings four times a second; here, several turns pass in between."""
    c = cgroup()
    body = f"if (f->kind == EBB_MISS) ebb_prefetch(f, f->vpn + {AHEAD}, 1, {WINDOW});"
    ebbctl("policy", "load", policies.compile_policy(tmp_path, policies.source(body=body)))
    ebbctl("policy", "attach", "mine", c.path)
    executor = lambda: policies.call("status")["executor"]
    processes = Processes(c)
    try:
        processes.do("out")
        c.evict()           # the swap cache, too
        before, asked = executor(), parts.stats(c)
        for _ in range(TURNS):
            processes.do("turn")
        now = parts.stats(c)
        requests = now["requests"] - asked["requests"]
        assert requests > PROCESSES * TURNS / 2
        assert now["dropped"] == asked["dropped"]
        wait_for(lambda: executor()["requests"] >= before["requests"] + requests, 10, "requests")
        growth = {k: v - before[k] for k, v in executor().items()}
        assert [growth[k] for k in ("unknown", "full", "not_memory")] == [0, 0, 0], growth
        assert growth["pages"] > (now["request_pages"] - asked["request_pages"]) / 2, growth
    finally:
        processes.end()
