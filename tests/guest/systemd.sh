# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
# Sourced by init.sh before systemd takes over as PID 1: one unit that runs the
# payload, and nothing of the host that only costs time.

# With this file systemd believes to be in a container and ignores the command line.
rm -f /.dockerenv /run/.containerenv
# Emptying /tmp through the overlay takes longer than the test.
mkdir -p /etc/tmpfiles.d
for f in tmp x11; do ln -sf /dev/null /etc/tmpfiles.d/$f.conf; done
tmp_mount
# Nothing is new since the root file system was created: no indexes to rebuild.
touch /etc/.updated /var/.updated

# Services of the host's own: whatever was enabled there.
rm -rf /etc/systemd/system/*.wants
mkdir -p /etc/systemd/system/multi-user.target.wants
for u in getty.target getty@.service serial-getty@.service systemd-ask-password-wall.path \
	systemd-ask-password-console.path systemd-binfmt.service proc-sys-fs-binfmt_misc.automount \
	systemd-udev-trigger.service systemd-update-utmp.service systemd-update-utmp-runlevel.service \
	systemd-random-seed.service systemd-tmpfiles-clean.timer dev-hugepages.mount \
	modprobe@drm.service modprobe@dm_mod.service modprobe@efi_pstore.service; do
	ln -sf /dev/null /etc/systemd/system/$u
done

off="ExecStopPost=/bin/systemctl --no-block poweroff -ff"
[ "$shutdown" = 1 ] && off="ExecStopPost=/bin/systemctl --no-block poweroff"
cat >/etc/systemd/system/guest-payload.service <<-END
	[Unit]
	Description=Guest payload
	After=multi-user.target
	[Service]
	Type=oneshot
	StandardOutput=journal+console
	ExecStart=/bin/bash "$repo/tests/guest/payload.sh"
	$off
	Environment=HOME=/root TERM=dumb LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
	[Install]
	WantedBy=multi-user.target
END
ln -sf ../guest-payload.service /etc/systemd/system/multi-user.target.wants/
