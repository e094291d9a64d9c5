# SPDX-License-Identifier: GPL-2.0-or-later
"""zswap in front of ebb, on this machine's kernel."""
from zswap_cases import *
