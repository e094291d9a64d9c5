# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=sh
# redis-bitmaps.sh RESP DAYS TIMES: counts each day's active users by BITCOUNT.
. "$(dirname "$0")/redis.sh"
ask --pipe <"$1" >/dev/null
for _ in $(seq "$3"); do
	for day in $(seq "$2"); do
		echo "BITCOUNT active:$day"
	done | ask | cksum
done
# A pipe hides it when the server was killed half-way.
ask ping >/dev/null
