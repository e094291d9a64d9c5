#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Runs /hostout/command inside the guest with the second serial port as its
# output, and powers off.
. /hostout/settings
stty -F /dev/ttyS1 raw -echo
export EBB_GUEST=$series

# A command that hangs says where before the host loses patience.
(
	sleep "$deadline"
	echo "guest: out of time after $deadline s; blocked tasks and memory follow" >/dev/ttyS1
	for key in 9 w m l; do echo $key >/proc/sysrq-trigger; done
) >/dev/console 2>&1 &

cd "$repo" || exit
echo "guest: $(uname -r) up after $(cut -d' ' -f1 /proc/uptime) s" >/dev/console
bash /hostout/command >/dev/ttyS1 2>&1 </dev/null
rc=$?
# Everything the command started and left must not keep the results from the disk.
dmesg >/hostout/dmesg
read -r up idle </proc/uptime
echo "guest: done with status $rc after $up s, of which its processors were idle for $idle s" >/dev/console
echo $rc >/hostout/rc
sync -f /hostout/rc
if [ $$ = 1 ]; then
	echo o >/proc/sysrq-trigger
	# Nothing more can be loaded once the disks are shut down, and PID 1 must not end.
	while :; do :; done
fi
