#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# fio.sh: random writes to $DEVICE, each block read again and compared with its checksum.
exec fio --name=verify --filename="$DEVICE" --size=64M --rw=randwrite --bs=4k --direct=1 --ioengine=libaio \
	--iodepth=8 --verify=crc32c --verify_fatal=1 --randseed=7 --output-format=normal
