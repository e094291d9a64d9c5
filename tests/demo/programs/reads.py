# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts each base of DNA reads and searches for a motif."""
import sys

with open(sys.argv[1]) as f:
    reads = f.read().split("\n")
for base in "ACGT":
    print(base, sum(read.count(base) for read in reads))
print("GATTACA", sum("GATTACA" in read for read in reads))
