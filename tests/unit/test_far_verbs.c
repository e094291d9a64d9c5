// SPDX-License-Identifier: GPL-2.0-or-later
/* What `ebbctl far` does at a donor, by both transports, with members of libebbfar. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ebbctl/far/pools.h"

#include "far_library.h"

static struct far_donor opened(const char *address, const char *key)
{
	struct error e = { 0 };
	struct far_donor d;

	if (far_donor_open(&d, address, key, &e))
		fail_msg("%s", e.text);
	return d;
}

static int create(const char *name, uint32_t flags, struct error *e)
{
	struct far_donor d;
	int r = far_donor_open(&d, at, NULL, e);

	if (r)
		return r;
	r = far_pool_create(&d, name, flags, e);
	far_donor_close(&d);
	return r;
}

static int destroy(const char *name, enum far_force force, uint32_t *ended, struct error *e)
{
	return far_pool_destroy(at, NULL, name, force, ended, e);
}

static struct wire_far_listed find(const char *name)
{
	struct far_donor d = opened(at, NULL);
	struct wire_far_listed l;
	struct error e = { 0 };

	if (far_pool_find(&d, name, &l, &e))
		fail_msg("%s", e.text);
	far_donor_close(&d);
	return l;
}

static void says(const struct error *e, int status, const char *part)
{
	assert_int_equal(e->exit_status, status);
	if (!strstr(e->text, part))
		fail_msg("%s: not in: %s", part, e->text);
	/* THING: CAUSE; REMEDY */
	assert_non_null(strchr(e->text, ':'));
	assert_non_null(strchr(e->text, ';'));
}

#define REFUSES(call, status, part) \
	do { \
		struct error e = { 0 }; \
		assert_true((call) < 0); \
		says(&e, status, part); \
	} while (0)

static void pools_come_and_go(void **state)
{
	struct error none = { 0 };
	uint32_t ended = 0;

	assert_int_equal(create("a", 0, &none), 0);
	assert_int_equal(create("b%s\"\\$`'~", WIRE_FAR_SHARED, &none), 0);
	REFUSES(create("a", 0, &e), EXIT_REFUSED, "it exists");
	assert_int_equal(find("a").flags, 0);
	assert_int_equal(find("b%s\"\\$`'~").flags, WIRE_FAR_SHARED);
	REFUSES(destroy("c", FAR_UNUSED_ONLY, &ended, &e), EXIT_USAGE, "no such pool");
	assert_int_equal(destroy("b%s\"\\$`'~", FAR_UNUSED_ONLY, &ended, &none), 0);
	assert_int_equal(destroy("a", FAR_END_MEMBERS, &ended, &none), 0);
	assert_int_equal(ended, 0);
	for (uint32_t i = 0; i < WIRE_FAR_POOLS; i++) {
		char name[8] = { 'a' + (char)i };

		assert_int_equal(create(name, 0, &none), 0);
	}
	REFUSES(create("q", 0, &e), EXIT_REFUSED, "up to 16 pools");
}

static void names_that_cannot_be(void **state)
{
	static const char *const names[] = { "", " ", "a b", "a\n", "a\x7f", "\xc3\xa9", "\x1b[31m",
					     "12345678901234567890123456789012" };
	uint32_t ended = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		REFUSES(create(names[i], 0, &e), EXIT_USAGE, "not a name");
		REFUSES(destroy(names[i], FAR_END_MEMBERS, &ended, &e), EXIT_USAGE, "not a name");
	}
	assert_int_equal(create("1234567890123456789012345678901", 0, NULL), 0);
}

static void members_and_extents(void **state)
{
	ebbfar_t *one = open_at(at, EBBFAR_CREATE), *two = open_at(at, 0);
	struct far_donor d = opened(at, NULL);
	struct far_contents c;
	struct ebbfar_extent x;
	struct wire_far_listed l;

	assert_int_equal(far_pool_find(&d, "p", &l, NULL), 0);
	assert_int_equal(l.live, 2);
	assert_int_equal(l.arenas, 0);
	assert_int_equal(d.arena, FAR_ARENA);
	/* No arena holds a record of a member. */
	assert_int_equal(far_pool_read(&d, "p", &c, NULL), 0);
	assert_int_equal(c.state[ebbfar_member(one)], EBB_FAR_VACANT);
	far_donor_close(&d);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ebbfar_alloc(one, 4096, &x), 0);
	assert_int_equal(ebbfar_alloc(two, 2 << 20, &x), 0);
	d = opened(at, NULL);
	assert_int_equal(far_pool_read(&d, "p", &c, NULL), 0);
	far_donor_close(&d);
	assert_int_equal(c.state[ebbfar_member(one)], EBB_FAR_LIVE);
	assert_int_equal(c.state[ebbfar_member(two)], EBB_FAR_LIVE);
	assert_int_equal(c.state[c.self], EBB_FAR_LIVE);
	assert_int_equal(c.members[ebbfar_member(one)].extents[0], 3);
	assert_int_equal(far_count_bytes(&c.members[ebbfar_member(two)]), 2 << 20);
	assert_int_equal(far_count_extents(&c.members[c.self]), 0);
	ebbfar_close(one);
	ebbfar_close(two);
}

static void members_keep_their_pool(void **state)
{
	ebbfar_t *one = open_at(at, EBBFAR_CREATE), *two = open_at(at, 0);
	struct ebbfar_extent x;
	uint32_t ended = 0;

	assert_int_equal(ebbfar_alloc(two, 4096, &x), 0);
	REFUSES(destroy("p", FAR_UNUSED_ONLY, &ended, &e), EXIT_REFUSED, "it has 2 members");
	ebbfar_close(one);
	REFUSES(destroy("p", FAR_UNUSED_ONLY, &ended, &e), EXIT_REFUSED, "it has 1 members");
	ebbfar_close(two);
	/* The donor may still be freeing what they had. */
	assert_int_equal(destroy("p", FAR_UNUSED_ONLY, &ended, NULL), 0);
	assert_int_equal(ended, 0);
}

/* By TCP, since a process that maps memory, such as this one, ends with its exit alone. */
static void members_can_be_ended(void **state)
{
	ebbfar_t *one = open_at(at, EBBFAR_CREATE), *two = open_at(at, 0);
	struct ebbfar_extent x;
	uint32_t ended = 0;

	assert_int_equal(ebbfar_alloc(one, 4096, &x), 0);
	assert_int_equal(destroy("p", FAR_END_MEMBERS, &ended, NULL), 0);
	assert_int_equal(ended, 2);
	assert_int_equal(ebbfar_alloc(one, 4096, &x), -ESHUTDOWN);
	assert_int_equal(ebbfar_alloc(two, 4096, &x), -ESHUTDOWN);
	ebbfar_close(one);
	ebbfar_close(two);
}

static void mapped_memory_stays(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint32_t ended = 0;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	REFUSES(destroy("p", FAR_END_MEMBERS, &ended, &e), EXIT_REFUSED, "still map its memory");
	assert_int_equal(ended, 1);
	assert_int_equal(find("p").dead, 1);
	ebbfar_close(far);
}

static void keys_of_pools(void **state)
{
	struct far_donor d = opened(world.tcp, world.keys[0]);
	struct wire_far_listed list[WIRE_FAR_POOLS];
	uint32_t n = 9, ended = 0;

	assert_int_equal(far_pool_create(&d, "p", 0, NULL), 0);
	far_donor_close(&d);
	d = opened(world.tcp, world.keys[1]);
	assert_int_equal(far_pool_list(&d, list, &n, NULL), 0);
	assert_int_equal(n, 0);
	far_donor_close(&d);
	REFUSES(far_pool_destroy(world.tcp, world.keys[1], "p", FAR_END_MEMBERS, &ended, &e),
		EXIT_USAGE, "no such pool of this key");
	REFUSES(far_donor_open(&d, world.tcp, NULL, &e), EXIT_FAILED, "give --key FILE");
	REFUSES(far_donor_open(&d, world.tcp, "/nosuch", &e), EXIT_FAILED, "/nosuch");
	assert_int_equal(far_pool_destroy(world.tcp, world.keys[0], "p", FAR_UNUSED_ONLY, &ended,
					  NULL), 0);
}

static int disabled(void **state)
{
	int r = without_far_memory(state);

	at = world.tcp;
	return r;
}

static void *turns(void *stop)
{
	while (!__atomic_load_n((bool *)stop, __ATOMIC_ACQUIRE))
		loop_turn(world.l, SECOND / 100);
	return NULL;
}

static void donors_without_far_memory(void **state)
{
	bool stop = false;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, turns, &stop), 0);
	REFUSES(create("p", 0, &e), EXIT_UNSUPPORTED, "start ebb-donord with --far SIZE");
	__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
}

/* --- other donors ------------------------------------------------------------------ */

/* Answers the first connection with @reply, and closes it unless @stays. */
struct fake {
	int fd;
	char address[32];
	const void *reply;
	size_t length;
	bool stays;
	pthread_t thread;
};

static void *answer(void *data)
{
	struct fake *f = data;
	char request[256];
	int fd = accept(f->fd, NULL, NULL);

	if (read(fd, request, sizeof(request)) > 0 && f->length)
		assert_int_equal(write(fd, f->reply, f->length), f->length);
	/* Until the other side gives up. */
	while (f->stays && read(fd, request, sizeof(request)) > 0)
		;
	close(fd);
	return NULL;
}

static void begin(struct fake *f)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);

	f->fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(f->fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(f->fd, 1), 0);
	getsockname(f->fd, (struct sockaddr *)&a, &len);
	snprintf(f->address, sizeof(f->address), "127.0.0.1:%u", ntohs(a.sin_port));
	assert_int_equal(pthread_create(&f->thread, NULL, answer, f), 0);
}

static void end(struct fake *f)
{
	pthread_join(f->thread, NULL);
	close(f->fd);
}

static void old_silent_and_other_donors(void **state)
{
	static const char other[] = "220 mail.example.org ESMTP: this is not a donor at all\r\n";
	struct fake old = { .reply = NULL }, silent = { .stays = true },
		    mail = { .reply = other, .length = sizeof(other), .stays = true };
	struct far_donor d;

	/* A donor that does not know the flag of far memory closes the connection. */
	begin(&old);
	REFUSES(far_donor_open(&d, old.address, NULL, &e), EXIT_UNSUPPORTED, "update it");
	end(&old);
	begin(&mail);
	REFUSES(far_donor_open(&d, mail.address, NULL, &e), EXIT_FAILED, "not of ebb's protocol");
	end(&mail);
	begin(&silent);
	REFUSES(far_donor_open(&d, silent.address, NULL, &e), EXIT_FAILED, "no reply in 5 s");
	end(&silent);
	/* Its socket is closed. */
	REFUSES(far_donor_open(&d, old.address, NULL, &e), EXIT_FAILED, "cannot connect");
	REFUSES(far_donor_open(&d, "rdma:127.0.0.1:1", NULL, &e), EXIT_UNSUPPORTED, "HOST:PORT");
	REFUSES(far_donor_open(&d, "", NULL, &e), EXIT_USAGE, "donor");
}

#define BOTH(test) \
	{ #test " by TCP", test, by_tcp, end_far_donor, NULL }, \
	{ #test " by mapping", test, by_mapping, end_far_donor, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(pools_come_and_go),
		BOTH(names_that_cannot_be),
		BOTH(members_and_extents),
		BOTH(members_keep_their_pool),
		cmocka_unit_test_setup_teardown(members_can_be_ended, by_tcp, end_far_donor),
		cmocka_unit_test_setup_teardown(mapped_memory_stays, by_mapping, end_far_donor),
		cmocka_unit_test_setup_teardown(keys_of_pools, with_far_keys, end_far_donor),
		cmocka_unit_test_setup_teardown(donors_without_far_memory, disabled, end_far_donor),
		cmocka_unit_test(old_silent_and_other_donors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
