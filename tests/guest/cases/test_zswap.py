# SPDX-License-Identifier: GPL-2.0-or-later
"""zswap in front of ebb, on kernels whose zswap is older."""
from zswap_cases import *
