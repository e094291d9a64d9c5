# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=sh
# redis-gets.sh RESP COMMANDS: fills a server, then asks for keys in random order.
. "$(dirname "$0")/redis.sh"
ask --pipe <"$1" >/dev/null
ask <"$2" | cksum
# A pipe hides it when the server was killed half-way.
ask ping >/dev/null
