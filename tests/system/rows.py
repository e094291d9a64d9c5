# SPDX-License-Identifier: GPL-2.0-or-later
"""Rows of parametrized tests."""
import pytest


def few(values, *chosen):
    """Returns @values as parameters; `make check` runs only those that are @chosen, `make check-all` all."""
    values = list(values)
    assert all(c in values for c in chosen), chosen
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=[] if v in chosen else pytest.mark.long)
            for v in values]
