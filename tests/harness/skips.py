# SPDX-License-Identifier: GPL-2.0-or-later
"""tests/allowed-skips: which tests may be skipped, for which reasons."""
import fnmatch

from machine import MachineError, REPO

FILE = REPO / "tests" / "allowed-skips"


def read(text):
    """Returns [(pattern, text of pytest's reason, why that is allowed)] of a file like tests/allowed-skips."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split(" : ", 2)]
        if len(fields) < 3 or not all(fields):
            raise MachineError(f"tests/allowed-skips:{number}: a part is missing; write PATTERN : TEXT : REASON")
        rows.append(tuple(fields))
    return rows


def why_allowed(rows, name, said):
    """Returns why the test @name may be skipped with the reason @said, or None."""
    return next((why for pattern, text, why in rows
                 if fnmatch.fnmatchcase(name, pattern) and text in said), None)
