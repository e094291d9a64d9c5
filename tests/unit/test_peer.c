// SPDX-License-Identifier: GPL-2.0-or-later
/* Which users may send which requests to a control socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/control/peer.h"

#define SERVER 700

static const struct peer_groups groups = {
	.readers = { "ebb", 500 }, .admins = { "ebb-admin", 501 },
};

static enum peer_level judge(uid_t uid, const gid_t *of, int n)
{
	return peer_judge(&groups, SERVER, uid, of, n);
}

static void by_membership(void **unused)
{
	const gid_t none[] = { 100, 4 }, reader[] = { 100, 500 }, primary[] = { 500 };
	const gid_t admin[] = { 100, 501 }, both[] = { 501, 500 }, turned[] = { 500, 501 };

	assert_int_equal(judge(1000, none, 2), PEER_STRANGER);
	assert_int_equal(judge(1000, none, 0), PEER_STRANGER);
	assert_int_equal(judge(1000, reader, 2), PEER_READER);
	assert_int_equal(judge(1000, primary, 1), PEER_READER);
	assert_int_equal(judge(1000, admin, 2), PEER_ADMIN);
	assert_int_equal(judge(1000, both, 2), PEER_ADMIN);
	assert_int_equal(judge(1000, turned, 2), PEER_ADMIN);
}

static void the_owner_has_no_need_of_groups(void **unused)
{
	const gid_t none[] = { 100 };

	assert_int_equal(judge(0, none, 1), PEER_OWNER);
	assert_int_equal(judge(SERVER, none, 1), PEER_OWNER);
	assert_int_equal(peer_judge(NULL, SERVER, 0, none, 1), PEER_OWNER);
	assert_int_equal(peer_judge(NULL, SERVER, 1000, none, 1), PEER_STRANGER);
}

/* A group that is not there has no members, whatever a process claims to be in. */
static void a_group_that_is_missing_lets_nobody_in(void **unused)
{
	const struct peer_groups missing = {
		.readers = { "ebb", PEER_NO_GROUP }, .admins = { "ebb-admin", PEER_NO_GROUP },
	};
	const gid_t odd[] = { PEER_NO_GROUP, 500 };

	assert_int_equal(peer_judge(&missing, SERVER, 1000, odd, 2), PEER_STRANGER);
}

static void groups_are_named_or_numbered(void **unused)
{
	struct peer_groups g;

	setenv("EBB_GROUP", "4711", 1);
	setenv("EBB_ADMIN_GROUP", "root", 1);
	peer_groups_find(&g);
	assert_int_equal(g.readers.gid, 4711);
	assert_string_equal(g.readers.name, "4711");
	assert_int_equal(g.admins.gid, 0);
	setenv("EBB_GROUP", "no such group at all", 1);
	setenv("EBB_ADMIN_GROUP", "12x", 1);
	peer_groups_find(&g);
	assert_true(g.readers.gid == PEER_NO_GROUP);
	assert_true(g.admins.gid == PEER_NO_GROUP);
	unsetenv("EBB_GROUP");
	unsetenv("EBB_ADMIN_GROUP");
	peer_groups_find(&g);
	assert_string_equal(g.readers.name, "ebb");
	assert_string_equal(g.admins.name, "ebb-admin");
}

static void the_kernel_tells_who_it_is(void **unused)
{
	struct peer_info p = { .uid = 12345 };
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(peer_read(pair[0], &groups, &p), 0);
	assert_int_equal(p.uid, geteuid());
	assert_int_equal(p.pid, getpid());
	assert_int_equal(p.level, PEER_OWNER);
	close(pair[0]);
	close(pair[1]);
	assert_true(peer_read(pair[0], &groups, &p) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(by_membership), cmocka_unit_test(the_owner_has_no_need_of_groups),
		cmocka_unit_test(a_group_that_is_missing_lets_nobody_in),
		cmocka_unit_test(groups_are_named_or_numbered),
		cmocka_unit_test(the_kernel_tells_who_it_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
