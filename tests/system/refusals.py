# SPDX-License-Identifier: GPL-2.0-or-later
"""What ebbctl does with a request that it refuses: its exit status and its one line."""
import re

import pytest

from parts import ebbctl

# A device that could be created, but for its name.
CREATE = ["device", "create"]
GOOD = ["--size", "64M", "--donor", "127.0.0.1:1"]


@pytest.fixture
def away(tmp_path, monkeypatch):
    """A run directory of its own: no daemon and no devices, whatever the machine has."""
    monkeypatch.setenv("EBB_RUN_DIR", str(tmp_path / "run"))
    return tmp_path


def refuse(status, *argv, says=(), **kwargs):
    """The command fails so, names thing, cause and remedy on one line, and prints nothing else."""
    done = ebbctl(*argv, check=False, **kwargs)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert re.fullmatch(r"ebbctl: [^:]+: .+", lines[0]), lines[0]
    for word in says:
        assert word in lines[0], lines[0]
    return lines[0]
