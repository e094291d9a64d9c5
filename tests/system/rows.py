# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows of parametrized tests, and the steps of loops."""
import os

import pytest

# By how much a loop that kills a process at each message goes on: `make check` takes every fifth.
STEP = 1 if os.environ.get("EBB_TEST_LONG") else 5


def few(values, *chosen):
    """Returns @values as parameters; `make check` runs only those that are @chosen, `make check-all` all."""
    values = list(values)
    assert all(c in values for c in chosen), chosen
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=[] if v in chosen else pytest.mark.long)
            for v in values]
