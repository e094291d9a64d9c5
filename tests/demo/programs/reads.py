# SPDX-License-Identifier: GPL-2.0-or-later
"""Composition of DNA reads: each base counted, and a motif looked for."""
import sys

with open(sys.argv[1]) as f:
    reads = f.read().split("\n")
for base in "ACGT":
    print(base, sum(read.count(base) for read in reads))
print("GATTACA", sum("GATTACA" in read for read in reads))
