#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# sysbench.sh: transactions from a fixed seed on MariaDB; the tables' checksums are the verdict.
set -e
mariadb-install-db --no-defaults --user=root --datadir="$PWD/data" --skip-test-db \
	--auth-root-authentication-method=normal >install.log 2>&1
# A socket's path may have 107 bytes.
socket=$(mktemp -u /tmp/ebb-outside-XXXXXX)
mariadbd --no-defaults --user=root --datadir="$PWD/data" --socket="$socket" --skip-networking \
	--innodb-buffer-pool-size=96M --innodb-flush-log-at-trx-commit=0 --pid-file="$PWD/pid" \
	>server.log 2>&1 &
client() {
	mariadb --no-defaults --user=root --socket="$socket" --batch --skip-column-names "$@"
}
tries=0
until client -e 'select 1' >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ $tries -lt 600 ] || exit 1
	sleep 0.1
done
client -e 'create database sbtest'
bench() {
	sysbench oltp_read_write --db-driver=mysql --mysql-user=root --mysql-socket="$socket" \
		--mysql-db=sbtest --tables=2 --table-size=100000 --threads=1 --events=300 --time=0 \
		--rand-seed=7 --rand-type=uniform "$@"
}
bench prepare
# Its seed is for `run` alone.
for table in sbtest1 sbtest2; do
	client sbtest -e "update $table set k = 1 + crc32(id) % 100000,
		c = left(sha2(id, 512), 120), pad = left(sha2(-id, 256), 60)"
done
bench run
client sbtest -e 'check table sbtest1, sbtest2 extended' | sed 's/^sbtest\.//'
client sbtest -e 'checksum table sbtest1, sbtest2' | sed 's/^sbtest\.//'
client -e shutdown
wait
