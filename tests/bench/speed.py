#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""speed.py NAME PROGRAM: writes a program's native timings as rows; no root, no swap."""
import json
import subprocess
import sys

import measure
import road


def row(told):
    return {"name": told["name"], "params": told.get("params", {}), "baseline": None,
            "ebb": measure.rounded(told["value"]), "unit": told["unit"], "ratio": None,
            "low": None, "high": None, "runs": told["runs"], "target": None, "met": None}


def bench(program):
    done = subprocess.run([program], capture_output=True, text=True)
    if done.returncode:
        raise road.Failure(f"{program}: {done.stderr.strip() or done.returncode}")
    return [row(json.loads(line)) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    name, program = sys.argv[1:]
    sys.exit(measure.main(name, lambda: bench(program)))
