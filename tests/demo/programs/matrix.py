# SPDX-License-Identifier: GPL-2.0-or-later
"""Maxima of every 1024th column of a matrix, then sums of each row backwards, last row first."""
import sys

import numpy as np

rows, columns = map(int, sys.argv[1:3])
rng = np.random.default_rng(7)
m = np.empty((rows, columns), np.float32)
for i in range(rows):
    m[i] = rng.random(columns, dtype=np.float32)
for run in range(3):
    print("columns", sum(float(m[:, j].max()) for j in range(0, columns, 1024)))
for run in range(2):
    print("rows", sum(float(m[i, ::-1].cumsum().max()) for i in range(rows - 1, -1, -1)))
