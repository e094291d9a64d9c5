#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# postgres.sh: transactions of pgbench from a fixed seed; their sums are the verdict, which
# PostgreSQL's checks of indexes and of pages complete.
set -e
for bin in /usr/lib/postgresql/*/bin; do :; done
# PostgreSQL refuses root.  Another user may not reach this directory.
as() {
	setpriv --reuid postgres --regid postgres --clear-groups --inh-caps +dac_override \
		--ambient-caps +dac_override "$@"
}
# A socket's path may have 107 bytes.
socket=$(mktemp -d /tmp/ebb-outside-XXXXXX)
end() {
	[ ! -e data/postmaster.pid ] || as "$bin/pg_ctl" stop --pgdata=data --silent --mode=immediate
	rm -rf "$socket"
}
trap end EXIT
chown postgres . "$socket"
as "$bin/initdb" --pgdata=data --data-checksums --auth=trust --no-sync >initdb.log
as "$bin/pg_ctl" start --pgdata=data --silent --wait --log=server.log -o "-k $socket -c listen_addresses= \
	-c shared_buffers=96MB -c huge_pages=off -c fsync=off"
bench() {
	"$bin/pgbench" -h "$socket" -U postgres "$@" postgres
}
query() {
	"$bin/psql" -h "$socket" -U postgres -At -F ' ' -c "$1" postgres
}
bench --initialize --quiet --scale=5 2>&1
bench --client=4 --transactions=1000 --random-seed=7
for table in accounts:abalance tellers:tbalance branches:bbalance history:delta; do
	query "select 'sum of ${table%:*}', count(*), sum(${table#*:}) from pgbench_${table%:*}"
done
query 'create extension amcheck' >/dev/null
"$bin/pg_amcheck" -h "$socket" -U postgres --heapallindexed --parent-check postgres && echo "amcheck finds nothing"
as "$bin/pg_ctl" stop --pgdata=data --silent --mode=fast
as "$bin/pg_checksums" --check --pgdata=data
