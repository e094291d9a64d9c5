#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# PID 1 of a guest: mounts what a test expects, runs /hostout/command and leaves
# its exit status in /hostout/rc.  No rc file means that the kernel died.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TERM=dumb LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
. /hostout/settings # repo, modules, deadline, systemd, before, shutdown

version=$(uname -r)
mkdir -p "/lib/modules/$version" /dev/pts /dev/shm
mount --bind "$modules" "/lib/modules/$version"
modprobe -a virtio_blk ext4 fuse loop
# The writable layer is memory that could itself be swapped out, so whatever
# backs a swap device lives on a disk.
mkdir -p /mnt/disk && mount -t ext4 -o noatime /dev/vda /mnt/disk
mkdir -p /mnt/disk/tmp /mnt/disk/ebb /var/tmp /var/lib/ebb
mount --bind /mnt/disk/tmp /var/tmp
mount --bind /mnt/disk/ebb /var/lib/ebb

# A repository below /tmp would vanish behind the guest's own.
mkdir -p /mnt/repository
mount --bind "$repo" /mnt/repository
tmp_mount() {
	mount -t tmpfs -o mode=1777 tmpfs /tmp
	case $repo in /tmp/*) mkdir -p "$repo" && mount --bind /mnt/repository "$repo" ;; esac
}

if [ "$systemd" = 1 ]; then
	. "$repo/tests/guest/systemd.sh"
	if [ -n "$before" ] && ! (cd "$repo" && bash -e "$before") >/hostout/before.log 2>&1; then
		echo "guest: cannot prepare: $before: see before.log" >/dev/console
	fi
	exec /sbin/init
fi

mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run && mkdir -p /run/lock
tmp_mount
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for c in memory io pids cpu; do
	echo +$c >/sys/fs/cgroup/cgroup.subtree_control
done
mount -t bpf bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
ip link set lo up

exec bash "$repo/tests/guest/payload.sh"
