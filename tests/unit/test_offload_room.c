// SPDX-License-Identifier: GPL-2.0-or-later
/* Whether pages would go to a device of ebb's, and how many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ebbd/attach/offload_room.h"
#include "lib/base/paths.h"
#include "lib/control/control_server.h"

#define HEAD "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
#define OURS "/dev/loop0                              partition\t262144\t\t0\t\t200\n"
#define MIB (1ULL << 20)

static const char blocks[][64] = { "/dev/loop0", "/dev/loop1" };

static void a_margin_stays_free(void **unused)
{
	assert_int_equal(offload_room_parse(HEAD OURS, blocks, 2), 240 * MIB);
	assert_int_equal(offload_room_parse(HEAD
		"/dev/loop0 partition 262144 131072 200\n", blocks, 2), 112 * MIB);
	assert_int_equal(offload_room_parse(HEAD
		"/dev/loop0 partition 262144 245760 200\n", blocks, 2), 0);
	assert_int_equal(offload_room_parse(HEAD
		"/dev/loop0 partition 262144 262144 200\n", blocks, 2), 0);
}

static void two_of_ours_share(void **unused)
{
	assert_int_equal(offload_room_parse(HEAD OURS
		"/dev/loop1 partition 262144 0 200\n", blocks, 2), 480 * MIB);
	/* The kernel fills the first before the second. */
	assert_int_equal(offload_room_parse(HEAD OURS
		"/dev/loop1 partition 524288 0 100\n", blocks, 2), 240 * MIB);
}

static void listed_without_dev(void **unused)
{
	assert_int_equal(offload_room_parse(HEAD "/loop0 partition 262144 0 200\n", blocks, 2), 240 * MIB);
	assert_int_equal(offload_room_parse(HEAD "/loop00 partition 262144 0 200\n", blocks, 2), 0);
	assert_int_equal(offload_room_parse(HEAD "loop0 partition 262144 0 200\n", blocks, 2), 0);
}

static void pages_would_go_elsewhere(void **unused)
{
	assert_int_equal(offload_room_parse(HEAD, blocks, 2), 0);
	assert_int_equal(offload_room_parse("", blocks, 2), 0);
	assert_int_equal(offload_room_parse(HEAD OURS, blocks, 0), 0);
	assert_int_equal(offload_room_parse(HEAD OURS "/dev/sda2 partition 1048576 0 300\n",
					    blocks, 2), 0);
	assert_int_equal(offload_room_parse(HEAD "/dev/sda2 partition 1048576 0 200\n" OURS,
					    blocks, 2), 0);
	/* It is full, or comes after ours. */
	assert_int_equal(offload_room_parse(HEAD "/dev/sda2 partition 1048576 1048576 300\n" OURS,
					    blocks, 2), 240 * MIB);
	assert_int_equal(offload_room_parse(HEAD OURS "/swapfile file 1048576 0 -2\n", blocks, 2),
			 240 * MIB);
	/* Ours is full: what comes next is not ours. */
	assert_int_equal(offload_room_parse(HEAD "/dev/loop0 partition 262144 262144 200\n"
					    "/swapfile file 1048576 0 -2\n", blocks, 2), 0);
}

/* What a device's server says of itself; the test adds to it. */
struct server {
	int socket, donor_losses, backup_only;
	pthread_t thread;
	bool stop;
};

static int answer_stats(void *data, const char *verb, struct json_object *request,
			struct json_object *answer, struct error *e)
{
	struct server *s = data;

	assert_string_equal(verb, "stats");
	json_object_object_add(answer, "donor_losses", json_object_new_int(s->donor_losses));
	json_object_object_add(answer, "pages_written_backup_only",
			       json_object_new_int(s->backup_only));
	return 0;
}

static void *serve(void *data)
{
	struct server *s = data;
	struct control_server *server = NULL;
	struct pollfd in = { .events = POLLIN };

	assert_int_equal(control_server_new(&server, s->socket, NULL, answer_stats, s, NULL), 0);
	in.fd = control_server_fd(server);
	while (!__atomic_load_n(&s->stop, __ATOMIC_RELAXED))
		if (poll(&in, 1, 20) > 0)
			control_server_turn(server);
	control_server_free(&server);
	return NULL;
}

static void a_lost_donor_is_a_reason_to_wait(void **unused)
{
	struct device_record d = { .name = "t0", .frontend = "fuse", .block = "/dev/none",
				   .size = MIB, .slab = MIB, .donor = "h:1", .scope = "any" };
	char dir[] = "/tmp/ebb-test-room.XXXXXX", path[64];
	struct offload_room r = { 0 };
	struct server s = { .donor_losses = 3 };
	const uint64_t second = 1000000000;
	uint64_t now = 1000 * second;

	assert_non_null(mkdtemp(dir));
	setenv("EBB_RUN_DIR", dir, 1);
	snprintf(path, sizeof(path), "%s/devices", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(device_record_write(&d, NULL), 0);
	s.socket = control_listen(ebb_device_socket("t0"), NULL);
	assert_true(s.socket >= 0);
	assert_int_equal(pthread_create(&s.thread, NULL, serve, &s), 0);

	/* What was lost before ebbd came is no news. */
	offload_room_look(&r, now);
	assert_int_equal(r.why, OFFLOAD_NO_ROOM);
	s.donor_losses++;
	offload_room_look(&r, now + second / 2);
	assert_int_equal(r.why, OFFLOAD_NO_ROOM);
	offload_room_look(&r, now += 2 * second);
	assert_int_equal(r.why, OFFLOAD_DONOR_LOST);
	assert_int_equal(r.bytes, 0);
	offload_room_look(&r, now + 29 * second);
	assert_int_equal(r.why, OFFLOAD_DONOR_LOST);
	offload_room_look(&r, now += 31 * second);
	assert_int_equal(r.why, OFFLOAD_NO_ROOM);
	/* No donor took a page. */
	s.backup_only = 1;
	offload_room_look(&r, now + 2 * second);
	assert_int_equal(r.why, OFFLOAD_DONOR_LOST);

	__atomic_store_n(&s.stop, true, __ATOMIC_RELAXED);
	pthread_join(s.thread, NULL);
	close(s.socket);
	unlink(ebb_device_socket("t0"));
	device_record_remove("t0");
	rmdir(path);
	rmdir(dir);
	unsetenv("EBB_RUN_DIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_margin_stays_free), cmocka_unit_test(two_of_ours_share),
		cmocka_unit_test(listed_without_dev),
		cmocka_unit_test(pages_would_go_elsewhere),
		cmocka_unit_test(a_lost_donor_is_a_reason_to_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
