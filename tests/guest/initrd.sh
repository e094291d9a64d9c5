#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=dash
# /init of the initial ramdisk: the host's root, read-only by 9p, below a
# writable layer in memory, becomes the guest's root.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev

stop() {
	echo "guest: $*" >/dev/console
	$b poweroff -f
}

for m in /modules/*; do
	$b insmod "$m" || stop "cannot load $m"
done

share="trans=virtio,version=9p2000.L,msize=512000"
$b mount -t 9p -o "ro,$share,cache=loose" host /host || stop "cannot mount the host's root"
# What is written stays in memory: bounded, or a runaway log takes the guest down.
$b mount -t tmpfs -o size=25%,mode=755 memory /memory
$b mkdir /memory/upper /memory/work
$b mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root ||
	stop "cannot lay a writable layer over the host's root"
$b mkdir -p /root/hostout
$b mount -t 9p -o "rw,$share" out /root/hostout || stop "cannot mount the directory for results"

for d in proc sys dev; do
	$b mount --move /$d /root/$d
done
exec $b switch_root /root /bin/bash /hostout/init.sh
