# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=sh
# Sourced: a redis-server of our own on a Unix socket, without persistence; ask() talks to it.
set -e
dir=$(mktemp -d)
redis-server --port 0 --unixsocket "$dir/s" --save '' --appendonly no --dir "$dir" \
	--daemonize no --loglevel warning >"$dir/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || :; wait $server 2>/dev/null || :; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP
ask() {
	redis-cli -s "$dir/s" "$@"
}
until ask ping >/dev/null 2>&1; do
	kill -0 $server || { cat "$dir/log" >&2; exit 1; }
	sleep 0.05
done
