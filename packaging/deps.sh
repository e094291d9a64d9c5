#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# deps.sh NO_DEPS PACKAGE...: installs the Debian packages that are missing.
# EBB_POLICY_RC_D: instead of /usr/sbin/policy-rc.d, for tests.
no_deps=$1
shift

policy=${EBB_POLICY_RC_D:-/usr/sbin/policy-rc.d}
mark='# Of packaging/deps.sh of ebb, while it installs packages; process'
log=

# SIGKILL leaves the file, and no service of any package would start again.
if [ -e "$policy" ] && [ -w "$policy" ]; then
	pid=$(sed -n "s|^$mark ||p" "$policy")
	if [ -n "$pid" ] && ! grep -qs deps.sh "/proc/$pid/cmdline"; then
		rm -f "$policy"
	fi
fi

# One architecture a line; a package for another one does not help.
arch=$(dpkg --print-architecture 2>/dev/null)
missing=
for p in "$@"; do
	dpkg-query -W -f='${Architecture} ${db:Status-Status}\n' "$p" 2>/dev/null |
		grep -qxE "($arch|all) installed" || missing="$missing $p"
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
# dash runs no EXIT trap when a signal ends it. A signal takes effect when apt-get has ended.
own=
trap 'rm -f ${log:+"$log"} ${own:+"$own"}' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
log=$(mktemp)
# Services of the packages, such as redis, must not start here.
if [ ! -e "$policy" ]; then
	own=$policy
	printf '#!/bin/sh\n%s %s\nexit 101\n' "$mark" $$ >"$policy" && chmod +x "$policy"
fi
# shellcheck disable=SC2086
if ! { apt-get update && apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
	cat "$log" >&2
	echo "apt-get could not install:$missing" >&2
	exit 1
fi
