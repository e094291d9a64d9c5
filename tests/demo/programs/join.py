# SPDX-License-Identifier: GPL-2.0-or-later
"""join.py ROWS PROBES: runs a hash join; the build side is a dict of records."""
import random
import sys

rows, probes = map(int, sys.argv[1:3])
r = random.Random(7)
keys = r.sample(range(1 << 40), rows)
build = {key: (i, f"customer-{i:012d}", i * 7 % 1000) for i, key in enumerate(keys)}
total = matched = 0
for _ in range(probes):
    key = keys[int(r.random() * rows)] ^ (r.random() < 0.1)
    row = build.get(key)
    if row:
        matched += 1
        total += row[2] + len(row[1])
print(matched, total)
