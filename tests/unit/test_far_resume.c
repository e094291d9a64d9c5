// SPDX-License-Identifier: GPL-2.0-or-later
/* Members of libebbfar whose links are cut, for a short time or for too long, or change bits. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>

#include "lib/base/clock.h"
#include "userlib/far/member.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_proxy.h"

static int by_proxy_with_keys(void **state)
{
	int r = with_far_keys(state);

	start_proxy();
	at = proxy.at;
	return r;
}

/* The donor's loop stops and goes on, so that the test may change its state. */
static void hold_donor(void)
{
	__atomic_store_n(&world.stop, true, __ATOMIC_RELEASE);
	eventfd_write(world.l->wake_fd, 1);
	pthread_join(world.thread, NULL);
}

static void *run_loop(void *data)
{
	while (!__atomic_load_n(&world.stop, __ATOMIC_ACQUIRE))
		loop_turn(world.l, 1000000000);
	return NULL;
}

/* A donor that stops for a second. */
static void *run_late(void *data)
{
	usleep(1000000);
	return run_loop(data);
}

static void let_donor_go_on(void)
{
	world.stop = false;
	pthread_create(&world.thread, NULL, run_loop, NULL);
}

static uint32_t in_state(enum ebb_far_member_state s)
{
	return __atomic_load_n(&far_find(world.l->far, "", "p")->in[s], __ATOMIC_RELAXED);
}

/* The grace period of members that are away ends. */
static void end_grace(void)
{
	for (int i = 0; i < 60000 && !in_state(EBB_FAR_AWAY); i++)
		usleep(1000);
	hold_donor();
	connections_tick(&world.l->sessions, now_ns() + 11 * SECOND);
	let_donor_go_on();
}

static ebbfar_t *open_resuming(const char *key, unsigned flags)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE | flags);

	o.key = key;
	return open_with(o);
}

/*
 * Each request is lost, or its reply is, @rounds times.  All of them take effect once.
 */
static void cut_in_each_request(const char *key, int rounds)
{
	static uint8_t bytes[300000], back[300000];
	static const enum link losses[] = { LINK_LOSES_REPLIES, LINK_LOSES_REQUESTS, LINK_CUT };
	ebbfar_t *far = open_resuming(key, EBBFAR_SHARED);
	uint32_t member = ebbfar_member(far), from;
	struct ebbfar_extent x, big, y;
	uint64_t old, zero = 0, added = 0, word;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_alloc(far, 300000, &big), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &zero, 8), 0);
	for (int i = 0; i < 3 * rounds; i++) {
		enum link loss = losses[i % 3];

		set_link(loss);
		assert_int_equal(ebbfar_add(far, &x, 0, 3, &old), 0);
		assert_int_equal(old, added);
		added += 3;
		set_link(loss);
		assert_int_equal(ebbfar_cas(far, &x, 0, added, added + 1, &old), 0);
		assert_int_equal(old, added);
		set_link(loss);
		assert_int_equal(ebbfar_cas(far, &x, 0, added, added + 7, &old), 0);
		assert_int_equal(old, ++added);
		set_link(loss);
		assert_int_equal(ebbfar_alloc(far, 4096u << i % 4, &y), 0);
		set_link(loss);
		memset(bytes, i + 1, sizeof(bytes));
		assert_int_equal(ebbfar_write(far, &big, 0, bytes, sizeof(bytes)), 0);
		set_link(loss);
		assert_int_equal(ebbfar_read(far, &big, 0, back, sizeof(back)), 0);
		assert_memory_equal(bytes, back, sizeof(bytes));
		set_link(loss);
		assert_int_equal(ebbfar_withdraw(far, &y), 0);
		set_link(loss);
		assert_int_equal(ebbfar_free(far, &y), 0);
		assert_int_equal(ebbfar_free(far, &y), -ESTALE);
		set_link(loss);
		assert_int_equal(ebbfar_notify(far, member, (uint64_t)i), 0);
		set_link(loss);
		assert_int_equal(ebbfar_wait(far, 5000, &from, &word), 0);
		assert_int_equal(word, i);
		set_link(LINK_GOOD);
		assert_int_equal(ebbfar_wait(far, 0, &from, &word), -EAGAIN);
	}
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
	assert_int_equal(word, added);
	assert_int_equal(ebbfar_member(far), member);
	assert_string_equal(ebbfar_why(far), "");
	assert_true(proxy.cuts >= (uint32_t)rounds * 20);
	ebbfar_close(far);
}

static void each_request(void **state)
{
	cut_in_each_request(NULL, 4);
}

static void each_request_by_tls(void **state)
{
	cut_in_each_request(world.keys[0], 1);
}

/* A member whose link is down for less than the grace period goes on. */
static void short_cut(void **state)
{
	ebbfar_t *far = open_resuming(NULL, 0), *other = open_at(world.local, 0);
	struct ebbfar_extent x;
	uint64_t word = 77, since;
	uint32_t from;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &word, 8), 0);
	set_link(LINK_DOWN);
	/* A wait is as long as it says, and no error. */
	since = now_ns();
	assert_int_equal(ebbfar_wait(far, 200, &from, &word), -EAGAIN);
	assert_in_range(now_ns() - since, 199 * SECOND / 1000, 3 * SECOND);
	for (int i = 0; i < 60000 && !in_state(EBB_FAR_AWAY); i++)
		usleep(1000);
	assert_int_equal(in_state(EBB_FAR_AWAY), 1);
	assert_int_equal(ebbfar_notify(other, ebbfar_member(far), 5), 0);
	set_link(LINK_GOOD);
	assert_int_equal(ebbfar_wait(far, 60000, &from, &word), 0);
	assert_int_equal(word, 5);
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
	assert_int_equal(word, 77);
	assert_int_equal(ebbfar_free(far, &x), 0);
	ebbfar_close(other);
	ebbfar_close(far);
	assert_int_equal(in_state(EBB_FAR_AWAY), 0);
}

/* A link that is cut in the TLS handshake, too, is no refusal. */
static void short_cut_by_tls(void **state)
{
	ebbfar_t *far = open_resuming(world.keys[0], 0);
	struct ebbfar_extent x;
	uint64_t word = 77;
	uint32_t from;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &word, 8), 0);
	set_link(LINK_DOWN);
	assert_int_equal(ebbfar_wait(far, 500, &from, &word), -EAGAIN);
	set_link(LINK_GOOD);
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
	assert_int_equal(word, 77);
	ebbfar_close(far);
}

/* One that is away for longer is fenced, and all its calls say so. */
static void long_cut(void **state)
{
	ebbfar_t *far = open_resuming(NULL, 0), *other = open_at(world.tcp, 0);
	struct ebbfar_extent x, y;
	uint64_t word;
	uint32_t from;

	assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x), 0);
	set_link(LINK_DOWN);
	end_grace();
	set_link(LINK_GOOD);
	assert_int_equal(ebbfar_write(far, &x, 0, "late", 4), -ESHUTDOWN);
	assert_non_null(strstr(ebbfar_why(far), "this member is fenced"));
	assert_non_null(strstr(ebbfar_why(far), "grace period of 10000 ms"));
	assert_int_equal(ebbfar_alloc(far, 1, &y), -ESHUTDOWN);
	assert_int_equal(ebbfar_add(far, &x, 0, 1, &word), -ESHUTDOWN);
	assert_int_equal(ebbfar_wait(far, 0, &from, &word), -ESHUTDOWN);
	/* The donor has freed its extents. */
	assert_int_equal(ebbfar_take(other, ebbfar_member(far), &x), -ESTALE);
	ebbfar_close(far);
	ebbfar_close(other);
}

/* A donor that does not reply for a while. */
static void silent_for_a_second(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t old, zero = 0;
	ebbfar_t *far;

	/* Enough for a donor that a busy machine holds up. */
	o.timeout_ms = 400;
	far = open_with(o);
	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &zero, 8), 0);
	for (uint64_t i = 0; i < 3; i++) {
		hold_donor();
		world.stop = false;
		pthread_create(&world.thread, NULL, run_late, NULL);
		assert_int_equal(ebbfar_add(far, &x, 0, 1, &old), 0);
		assert_int_equal(old, i);
	}
	ebbfar_close(far);
}

/* ... and for ever: a call ends, and says what it could not do. */
static void silent_for_ever(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t since, word;
	uint32_t from;
	ebbfar_t *far;

	o.timeout_ms = 500;
	o.resume_ms = 1000;
	far = open_with(o);
	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	set_link(LINK_SILENT);
	since = now_ns();
	/* Without a request, too: the donor is asked for a sign of life. */
	assert_int_equal(ebbfar_wait(far, -1, &from, &word), -ETIMEDOUT);
	assert_in_range(now_ns() - since, 500 * SECOND / 1000, 20 * SECOND);
	assert_non_null(strstr(ebbfar_why(far), "cannot connect again for 1000 ms"));
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), -ETIMEDOUT);
	ebbfar_close(far);
	set_link(LINK_GOOD);
}

/* An attempt that lasts longer than a program may pause is an attempt all the same. */
static void attempts_that_are_silent(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t word, tag;
	ebbfar_t *far;

	o.timeout_ms = 2100;
	o.resume_ms = 2200;
	far = open_with(o);
	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	set_link(LINK_SILENT);
	tag = far->client.tag;
	assert_int_equal(ebbfar_add(far, &x, 0, 1, &word), -ETIMEDOUT);
	/* The request, and a HELLO for each attempt. */
	assert_in_range(far->client.tag - tag, 2, 3);
	ebbfar_close(far);
	set_link(LINK_GOOD);
}

/* Each connection ends, or is silent, after the handshake: a call ends all the same. */
static void cut_before_each_reply(enum link link, const char *why)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t since, word;
	ebbfar_t *far;

	/* Enough for several connections. */
	o.timeout_ms = 400;
	o.resume_ms = 2500;
	far = open_with(o);
	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	set_link(link);
	since = now_ns();
	assert_int_equal(ebbfar_add(far, &x, 0, 1, &word), -ETIMEDOUT);
	/* Other programs may use the processors. */
	assert_in_range(now_ns() - since, 2490 * SECOND / 1000, 60 * SECOND);
	if (!strstr(ebbfar_why(far), why) || !strstr(ebbfar_why(far), "open the pool again"))
		fail_msg("%s", ebbfar_why(far));
	set_link(LINK_GOOD);
	ebbfar_close(far);
}

static void connections_that_end(void **state)
{
	cut_before_each_reply(LINK_HELLO_ONLY, "no reply by several connections for 2500 ms");
}

static void connections_that_are_silent(void **state)
{
	cut_before_each_reply(LINK_HELLO_AND_SILENT, "no reply by several connections for 2500 ms");
}

/* The time in which a program makes no call is not the donor's. */
static void without_calls(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE | EBBFAR_NO_RESUME);
	struct ebbfar_request request, *done;
	struct ebbfar_extent x[4];
	ebbfar_t *far;

	o.timeout_ms = 400;
	far = open_with(o);
	/* A section, then its first free slot: that changes a hint. */
	for (int i = 0; i < 4; i++)
		assert_int_equal(ebbfar_alloc(far, 1 << 19, &x[i]), 0);
	assert_int_equal(ebbfar_free(far, &x[0]), 0);
	usleep(3500000);
	assert_int_equal(ebbfar_alloc(far, 1 << 19, &x[0]), 0);
	assert_string_equal(ebbfar_why(far), "");
	/* One that looks now and then learns that its donor is silent. */
	hold_donor();
	request = (struct ebbfar_request){ .op = EBBFAR_ADD, .extent = x[1] };
	assert_int_equal(ebbfar_submit(far, &request, 1), 0);
	for (int i = 0; i < 10 && !*ebbfar_why(far); i++) {
		usleep(1200000);
		ebbfar_complete(far, 0, &done);
	}
	assert_int_equal(request.result, -ETIMEDOUT);
	let_donor_go_on();
	ebbfar_close(far);
}

/* The donor ends connections; mapped memory is used meanwhile. */
static void cut_by_the_donor(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x, y;
	uint64_t word = 1;
	uint32_t from;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < CONNECTIONS; i++)
			if (world.l->sessions.connections[i].member)
				shutdown(world.l->sessions.connections[i].fd, SHUT_RDWR);
		assert_int_equal(ebbfar_alloc(far, 8192, &y), 0);
		assert_int_equal(ebbfar_write(far, &y, 0, &word, 8), 0);
		assert_int_equal(ebbfar_notify(far, ebbfar_member(far), (uint64_t)round), 0);
		assert_int_equal(ebbfar_wait(far, 5000, &from, &word), 0);
		assert_int_equal(word, round);
		assert_int_equal(ebbfar_free(far, &y), 0);
	}
	assert_int_equal(ebbfar_free(far, &x), 0);
	ebbfar_close(far);
}

/* --- bits that change ------------------------------------------------------------- */

enum { HANDLES = 300, CALLS = 60 };

static uint64_t seed = 1;

static uint32_t any(uint32_t below)
{
	return draw_below(&seed, below);
}

static int any_call(ebbfar_t *far, struct ebbfar_extent *x)
{
	static uint8_t bytes[EBBFAR_EXTENT_MOST];
	static struct ebbfar_request requests[8];
	struct ebbfar_request *done;
	uint64_t word, size = any(4) ? any(200) : any(1 << 19);
	uint32_t from;
	int r;

	switch (any(9)) {
	case 0:
		return ebbfar_alloc(far, 1 + any(1 << 19), x);
	case 1:
		return ebbfar_free(far, x);
	case 2:
		return ebbfar_read(far, x, 0, bytes, size);
	case 3:
		return ebbfar_write(far, x, 0, bytes, size);
	case 4:
		return ebbfar_cas(far, x, 0, 0, 1, &word);
	case 5:
		return ebbfar_add(far, x, 8, 1, &word);
	case 6:
		return ebbfar_notify(far, 1 + any(3), 7);
	case 7:
		return ebbfar_wait(far, 0, &from, &word);
	default:
		break;
	}
	memset(requests, 0, sizeof(requests));
	for (int i = 0; i < 8; i++) {
		requests[i].op = EBBFAR_READ + any(6);
		requests[i].extent = *x;
		requests[i].memory = bytes;
		requests[i].size = 1 + any(4096);
	}
	r = ebbfar_submit(far, requests, 8);
	while (!r)
		r = ebbfar_complete(far, -1, &done);
	return r;
}

/*
 * A link that changes bits of what donor and members say, without TLS: all of it may be wrong, but
 * each call returns, and one that fails for good says why.
 */
static void flipped_bits(void **state)
{
	uint32_t opened = 0, failed = 0;

	for (int i = 0; i < HANDLES; i++) {
		struct ebbfar_options o = options(at, EBBFAR_CREATE |
						      (any(2) ? EBBFAR_NO_RESUME : 0));
		struct ebbfar_extent x = { 1 << 21, 4096, 0 };
		uint64_t since = now_ns();
		ebbfar_t *far;
		bool lost = false;

		o.timeout_ms = o.resume_ms = 100;
		set_link(any(2) ? LINK_FLIPS : LINK_GOOD);
		if (ebbfar_open(&o, &far)) {
			assert_non_null(strchr(o.error, ':'));
			assert_non_null(strchr(o.error, ';'));
			continue;
		}
		opened++;
		set_link(LINK_FLIPS);
		for (int k = 0; k < CALLS && !lost; k++) {
			any_call(far, &x);
			lost = *ebbfar_why(far);
		}
		if (lost) {
			assert_non_null(strchr(ebbfar_why(far), ';'));
			failed++;
		}
		ebbfar_close(far);
		/* Other programs may use the processors. */
		assert_in_range(now_ns() - since, 0, 60 * SECOND);
	}
	assert_in_range(opened, HANDLES / 10, HANDLES);
	assert_in_range(failed, HANDLES / 20, HANDLES);
	set_link(LINK_GOOD);
}

int main(void)
{
#define LINKED(f) cmocka_unit_test_setup_teardown(f, by_proxy, end_by_proxy)
	const struct CMUnitTest tests[] = {
		LINKED(each_request),
		cmocka_unit_test_setup_teardown(each_request_by_tls,
						by_proxy_with_keys, end_by_proxy),
		LINKED(short_cut),
		cmocka_unit_test_setup_teardown(short_cut_by_tls,
						by_proxy_with_keys, end_by_proxy),
		LINKED(long_cut),
		LINKED(silent_for_a_second),
		LINKED(silent_for_ever),
		LINKED(attempts_that_are_silent),
		LINKED(flipped_bits),
		LINKED(connections_that_end),
		LINKED(connections_that_are_silent),
		cmocka_unit_test_setup_teardown(without_calls, by_tcp, end_far_donor),
		cmocka_unit_test_setup_teardown(cut_by_the_donor, by_tcp, end_far_donor),
		cmocka_unit_test_setup_teardown(cut_by_the_donor, by_mapping, end_far_donor),
	};

	return cmocka_run_group_tests_name("far resume", tests, NULL, NULL);
}
