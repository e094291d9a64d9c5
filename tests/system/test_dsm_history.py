# SPDX-License-Identifier: GPL-2.0-or-later
"""
Histories of members of a space, recorded while messages are late and members are killed, are linearizable
for each box; and those of a library with a fault of a published system are not.
"""
import json
import subprocess

import pytest

import parts
from machine import BUILD
from ports import free_port
from rows import few

pytestmark = pytest.mark.beside

PROGRAM = BUILD / "tests" / "dsm_history"
SEEDS = 10
OPERATIONS = ("new", "write", "read", "lend", "borrow", "return", "give", "accept", "reclaim")


@pytest.fixture
def donors(tmp_path):
    """Lists of donors for members at home at the first, at the second, and at the first over TCP."""
    both = [parts.Donor(tmp_path / f"donor{i}.log", port=free_port(), memory="64M", slab="16M",
                        also=[f"unix:{tmp_path}/donor{i}.sock"],
                        options=["--far", "48M", "--keep", "30ms", "--headroom", "0"]) for i in range(2)]
    local = [f"unix:{tmp_path}/donor{i}.sock" for i in range(2)]
    yield [f"{local[0]},{both[1].address}", f"{both[0].address},{local[1]}",
           f"{both[0].address},{both[1].address}"]
    for d in both:
        d.stop()


def history(donors, mutant, seed, steps=400, kills=0, delay_us=300):
    done = subprocess.run([PROGRAM, mutant, str(seed), str(steps), str(kills), str(delay_us), *donors],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("kills", few([0, 20], 20))
def test_histories_are_linearizable(donors, kills):
    """Also of boxes of which the borrower was killed: they are as they were."""
    seen = dict.fromkeys((*OPERATIONS, "restored"), 0)
    for seed in range(4 * SEEDS):
        told, text = history(donors, "none", seed, kills=kills)
        assert told["verdict"] == "linearizable", text
        assert told["operations"] > 300
        for name in seen:
            seen[name] += told[name]
        if seed >= 2 and (seen["restored"] or not kills):
            break
    # What is checked occurs.
    assert all(seen[name] > 10 for name in OPERATIONS), seen
    assert bool(seen["restored"]) == bool(kills)


@pytest.mark.parametrize("mutant, operation", [("colours", "read"), ("late", "reclaim"), ("survives", "read")])
def test_faults_are_found(donors, mutant, operation):
    """Each by the operation that has the wrong result."""
    for seed in range(SEEDS):
        told, text = history(donors, mutant, seed)
        if told["verdict"] == "not linearizable":
            assert f"the response to a {operation}," in text
            return
        assert told["verdict"] == "linearizable", text
    pytest.fail(f"{SEEDS} histories of the fault {mutant} are linearizable")
