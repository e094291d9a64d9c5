#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# kernel.sh: builds directories of the kernel that sources.py has configured; the objects are the
# verdict.  The working directory is beside the kernel's.
set -e
unset MAKEFLAGS MFLAGS MAKELEVEL
output=$(realpath ../tinyconfig)
rm -rf "$output/mm" "$output/fs"
make -s -j2 -C ../linux O="$output" mm/ fs/
cd "$output"
objects=$(find mm fs -name '*.o' | LC_ALL=C sort)
echo "objects $(echo "$objects" | wc -l): $(echo "$objects" | xargs sha256sum | sha256sum)"
