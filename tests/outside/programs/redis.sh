#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# redis.sh: redis-benchmark on database 1 must leave database 0 as it was.
set -e
redis-server --port 0 --unixsocket "$PWD/socket" --save '' --appendonly no \
	--enable-debug-command local --daemonize no >server.log 2>&1 &
cli() {
	redis-cli -s "$PWD/socket" "$@"
}
tries=0
until cli ping >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ $tries -lt 300 ] || exit 1
	sleep 0.1
done
cli debug populate 60000 page 1024 >/dev/null
echo "keys before: $(cli dbsize)"
echo "digest before: $(cli debug digest)"
redis-benchmark -s "$PWD/socket" --dbnum 1 -t set,get,incr,lpush,lpop,sadd,hset,zadd,mset \
	-c 4 -n 5000 -r 5000 -d 512 --csv
cli -n 1 flushdb >/dev/null
echo "keys after: $(cli dbsize)"
echo "digest after: $(cli debug digest)"
cli shutdown nosave
wait
