# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
# A machine as an administrator leaves it before a reboot: the package is installed, a
# donor, a device and two programs are on from the next boot on.  What ends says so in
# /hostout/ends: its name, how it ended, at which uptime, and whether swap was still on.
rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update
dpkg -i build/deb/ebb_*.deb

echo 'EBB_DONOR_ARGS="--listen 127.0.0.1:7070 --memory 128M --slab 16M"' >/etc/default/ebb-donord
mkdir -p /etc/ebb/devices /etc/ebb/ebb.conf.d
echo 'EBB_DEVICE_ARGS="--size 128M --slab 16M --donor 127.0.0.1:7070"' >/etc/ebb/devices/ebb0.conf
printf '[cgroup "/ebb.slice"]\npolicy = leap\n' >/etc/ebb/ebb.conf.d/slice.conf

scan="$PWD/build/tests/scan"
units=/etc/systemd/system
cat >$units/walker.service <<-END
	[Unit]
	Description=A program of ebb.slice
	[Service]
	Slice=ebb.slice
	MemoryMax=16M
	ExecStart=/bin/sh -c 'sleep infinity | $scan --json --mib 24 --passes 2 --hold'
	StandardOutput=file:/run/walker
	[Install]
	WantedBy=multi-user.target
END
# In no order with a shutdown: it has its pages until systemd-shutdown kills it.
cat >$units/stubborn.service <<-END
	[Unit]
	Description=A program that no stop reaches
	DefaultDependencies=no
	After=ebb-device@ebb0.service
	[Service]
	MemoryMax=16M
	ExecStart=/bin/sh -c 'sleep infinity | $scan --json --mib 24 --passes 2 --hold'
	StandardOutput=file:/run/stubborn
END
cat >/usr/local/sbin/says-its-end <<-'END'
	#!/bin/sh
	read up idle </proc/uptime
	echo "$1 $SERVICE_RESULT $up $(grep -c /dev/loop /proc/swaps)" >>/hostout/ends
END
chmod +x /usr/local/sbin/says-its-end
for unit in walker ebb-device@ ebb-donord ebbd; do
	mkdir -p $units/$unit.service.d
	printf '[Service]\nExecStopPost=+/usr/local/sbin/says-its-end %%p\n' >$units/$unit.service.d/ends.conf
done
systemctl enable ebb-donord ebb-device@ebb0 walker
