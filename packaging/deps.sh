#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# deps.sh NO_DEPS PACKAGE...: installs the Debian packages that are missing.
no_deps=$1
shift

missing=
for p in "$@"; do
	dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ -n "$no_deps" ]; then
	echo "missing packages:$missing; NO_DEPS is set, so install them yourself" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "missing packages:$missing; run: sudo apt-get install$missing" >&2
	exit 1
fi
echo "  APT     $missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# Services of the packages, such as redis, must not start here.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
	trap 'rm -f $policy' EXIT
fi
# shellcheck disable=SC2086
if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "apt-get could not install:$missing" >&2
	exit 1
fi
rm -f "$log"
