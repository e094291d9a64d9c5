#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# kernel.sh SOURCE OUTPUT: builds directories of a configured kernel; the objects are the verdict.
set -e
unset MAKEFLAGS MFLAGS MAKELEVEL
rm -rf "$2/mm" "$2/fs"
make -s -j2 -C "$1" O="$2" mm/ fs/
cd "$2"
find mm fs -name '*.o' | LC_ALL=C sort >"$OLDPWD/list"
echo "objects $(wc -l <"$OLDPWD/list"): $(xargs sha256sum <"$OLDPWD/list" | sha256sum)"
