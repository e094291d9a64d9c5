# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
# Installs the killers of test_pressure_net.py, which systemd starts with their own settings.
rm -f /usr/sbin/policy-rc.d /var/lib/man-db/auto-update
dpkg -i --force-depends build/guest/packages/*.deb
# It conflicts with nohang: systemd would start one of them, by chance.
systemctl disable nohang-desktop
