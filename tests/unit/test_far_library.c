// SPDX-License-Identifier: GPL-2.0-or-later
/* libebbfar and a donor in this process, at its unix socket (mapped) and its TCP port. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/rules/far_memory.h"
#include "lib/wire/address.h"
#include "lib/wire/wire_far.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

/* Sections of all arenas but those that have the tables. */
enum { FREE_SECTIONS = FAR_ARENAS * (FAR_SECTIONS - 1) };

/* Destroys the pool when the donor has recovered its members. */
static int end(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	int r = -EBUSY;

	for (int i = 0; i < 6000 && r == -EBUSY; i++) {
		r = ebbfar_destroy(&o);
		usleep(r == -EBUSY ? 10000 : 0);
	}
	if (r && r != -ENOENT)
		fail_msg("%s", o.error);
	return end_far_donor(state);
}

static void refusals(void **state)
{
	struct ebbfar_options o = options(at, 0);
	ebbfar_t *far = NULL;

	assert_int_equal(ebbfar_open(&o, &far), -ENOENT);
	assert_non_null(strstr(o.error, "no such pool"));
	o.flags = EBBFAR_SHARED;
	assert_int_equal(ebbfar_open(&o, &far), -EINVAL);
	o = options(at, 0);
	o.pool = "two words";
	assert_int_equal(ebbfar_open(&o, &far), -EINVAL);
	o.pool = "0123456789012345678901234567890123456789";
	assert_int_equal(ebbfar_open(&o, &far), -EINVAL);
	o = options("rdma:127.0.0.1:1", 0);
	assert_int_equal(ebbfar_open(&o, &far), -EOPNOTSUPP);
	o = options("127.0.0.1:1", 0);
	assert_int_equal(ebbfar_open(&o, &far), -ECONNREFUSED);
	o.size = 8;
	assert_int_equal(ebbfar_open(&o, &far), -EINVAL);
	assert_null(far);
	far = open_at(at, EBBFAR_CREATE);
	o = options(at, EBBFAR_CREATE | EBBFAR_SHARED);
	assert_int_equal(ebbfar_open(&o, &far), -EEXIST);
	o = options(at, 0);
	assert_int_equal(ebbfar_destroy(&o), -EBUSY);
	ebbfar_close(far);
	ebbfar_close(NULL);
}

/* A donor closes the connection after the first bytes: a program gets @error, and @text. */
static void closes_at_once(const char *key, int error, const char *text)
{
	struct address a;
	struct error e = { 0 };
	char address[32];
	int fd, r, status;

	assert_int_equal(address_parse("127.0.0.1:0", "test", &a, &e), 0);
	fd = address_listen(&a, ADDRESS_LOOPBACK, &e);
	assert_true(fd >= 0);
	snprintf(address, sizeof(address), "127.0.0.1:%u", 256 * ((uint8_t *)&a.sa)[2] +
		 ((uint8_t *)&a.sa)[3]);
	if (!fork()) {
		struct ebbfar_options o = options(address, 0);
		ebbfar_t *far;

		o.key = key;
		_exit(ebbfar_open(&o, &far) != error || !strstr(o.error, text));
	}
	for (r = -1; r < 0; r = accept(fd, NULL, NULL))
		usleep(1000);
	/* After the HELLO. */
	assert_int_equal(recv(r, address, 32, MSG_WAITALL), 32);
	close(r);
	close(fd);
	wait(&status);
	assert_int_equal(status, 0);
}

/* A donor that knows no far memory hangs up; one without --far says so. */
static void other_donors(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	ebbfar_t *far;
	int status;

	closes_at_once(NULL, -EPROTONOSUPPORT, "has too many (see its log), or no far memory");
	if (!fork()) {
		_exit(ebbfar_open(&o, &far) != -EOPNOTSUPP || !strstr(o.error, "--far"));
	}
	while (!waitpid(-1, &status, WNOHANG))
		loop_turn(world.l, 1000000);
	assert_int_equal(status, 0);
}

/* What an impostor replies to the request for a pool. */
enum lie { TRUE_REPLY, OTHER_TAG, OTHER_OP, TOO_LONG, NO_NUMBER, NO_SECTIONS, HUGE_ARENAS,
	   MANY_ARENAS, HALF_A_REPLY, TWO_REPLIES, LATE_REPLY, LIES,
	   /* To all else. */
	   STRANGE_STATUS };

struct impostor {
	int listens;
	enum lie lie;
};

static void reply(int fd, struct wire_frame f, const void *payload, size_t n)
{
	uint8_t bytes[WIRE_HEADER + 256];

	f.direction = WIRE_REPLY;
	wire_build(bytes, &f);
	memcpy(bytes + WIRE_HEADER, payload, n);
	(void)!send(fd, bytes, WIRE_HEADER + n, MSG_NOSIGNAL);
}

static void lie_about_pool(int fd, struct wire_frame f, enum lie lie)
{
	struct wire_far_opened o = { .member = lie != NO_NUMBER, .sections = 4 };
	const struct wire_far_word w = { 7, 9 };
	uint8_t payload[128] = { 0 };

	for (int i = 0; i < 100 && lie == TRUE_REPLY; i++) {
		struct wire_frame word = { .op = WIRE_FAR_NOTIFIED,
					   .length = WIRE_FAR_MEMBER_SIZE };
		uint8_t bytes[WIRE_HEADER + WIRE_FAR_MEMBER_SIZE];

		wire_build(bytes, &word);
		wire_build_far_word(bytes + WIRE_HEADER, &w);
		(void)!send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL);
	}
	o.sections = lie == NO_SECTIONS ? 0 : lie == HUGE_ARENAS ? 513 : o.sections;
	o.arenas = lie == MANY_ARENAS ? 4097 : 0;
	wire_build_far_opened(payload, &o);
	f.length = lie == TOO_LONG ? WIRE_FAR_OPENED_SIZE + 8 : WIRE_FAR_OPENED_SIZE;
	f.tag += lie == OTHER_TAG;
	f.op = lie == OTHER_OP ? WIRE_FAR_LIST : f.op;
	if (lie == LATE_REPLY)
		return;
	reply(fd, f, payload, lie == HALF_A_REPLY ? 8 : f.length);
	if (lie == TWO_REPLIES)
		reply(fd, f, payload, f.length);
	if (lie == HALF_A_REPLY)
		shutdown(fd, SHUT_RDWR);
}

static void *impose(void *data)
{
	const struct impostor *im = data;
	int fd = poll(&(struct pollfd){ im->listens, POLLIN, 0 }, 1, 60000) == 1 ?
		 accept(im->listens, NULL, NULL) : -1;
	uint8_t header[WIRE_HEADER], payload[WIRE_SMALL];
	enum wire_side side = WIRE_AT_DONOR;
	struct wire_donor d = { .version = WIRE_VERSION };
	struct wire_frame f;

	while (recv(fd, header, sizeof(header), MSG_WAITALL) == sizeof(header) &&
	       wire_parse(header, sizeof(header), side, &f) == 1) {
		uint32_t n = wire_payload(&f);

		if (n && recv(fd, payload, n, MSG_WAITALL) != n)
			break;
		side = WIRE_AT_FAR_DONOR;
		if (f.op == WIRE_HELLO) {
			f.length = wire_build_donor(payload, &d);
			reply(fd, f, payload, f.length);
		} else if (f.op == WIRE_FAR_POOL) {
			lie_about_pool(fd, f, im->lie);
		} else {
			f.length = 0;
			f.status = im->lie == STRANGE_STATUS ? WIRE_STALE : WIRE_OK;
			reply(fd, f, payload, 0);
		}
	}
	close(fd);
	return NULL;
}

static void listen_as(struct impostor *im, char *text, size_t size)
{
	struct error e = { 0 };
	struct address a;

	assert_int_equal(address_parse("127.0.0.1:0", "test", &a, &e), 0);
	im->listens = address_listen(&a, ADDRESS_LOOPBACK, &e);
	assert_true(im->listens >= 0);
	snprintf(text, size, "127.0.0.1:%u", 256 * ((uint8_t *)&a.sa)[2] +
		 ((uint8_t *)&a.sa)[3]);
}

/* A status that a request cannot have: the handle fails for good. */
static void strange_status(void **state)
{
	struct impostor im = { .lie = STRANGE_STATUS };
	struct ebbfar_extent x = { EBBFAR_EXTENT_MOST, 4096, 0 };
	pthread_t thread;
	ebbfar_t *far;
	uint64_t word;
	char text[32];

	listen_as(&im, text, sizeof(text));
	pthread_create(&thread, NULL, impose, &im);
	far = open_with(options(text, 0));
	assert_int_equal(ebbfar_add(far, &x, 0, 1, &word), -EPROTO);
	if (!strstr(ebbfar_why(far), "broke the protocol"))
		fail_msg("why: \"%s\"", ebbfar_why(far));
	assert_int_equal(ebbfar_notify(far, 1, 1), -EPROTO);
	ebbfar_close(far);
	pthread_join(thread, NULL);
	close(im.listens);
}

/* A donor that breaks the protocol, or is not one. */
static void impostors(void **state)
{
	struct impostor im = { 0 };
	char text[32];

	listen_as(&im, text, sizeof(text));
	for (im.lie = TRUE_REPLY; im.lie < LIES; im.lie++) {
		struct ebbfar_options o = options(text, 0);
		int wanted = im.lie == HALF_A_REPLY ? -ESHUTDOWN :
			     im.lie == LATE_REPLY ? -ETIMEDOUT : -EPROTO;
		struct ebbfar_extent x = { EBBFAR_EXTENT_MOST, 4096, 0 };
		pthread_t thread;
		uint32_t from, words = 0;
		ebbfar_t *far;
		uint64_t word;
		int r;

		o.timeout_ms = im.lie == LATE_REPLY ? 50 : 5000;
		pthread_create(&thread, NULL, impose, &im);
		r = ebbfar_open(&o, &far);
		/* The second reply may arrive later. */
		if (r || (im.lie != TRUE_REPLY && im.lie != TWO_REPLIES)) {
			assert_int_equal(r, wanted);
			assert_int_not_equal(im.lie, TRUE_REPLY);
		} else {
			/* It keeps some words, and notices a reply that it did not ask for. */
			while (!ebbfar_wait(far, 0, &from, &word))
				words++;
			assert_in_range(words, im.lie == TRUE_REPLY, 16);
			if (im.lie == TWO_REPLIES)
				assert_int_equal(ebbfar_wait(far, 5000, &from, &word), -EPROTO);
			/* There is no such arena. */
			assert_int_equal(ebbfar_add(far, &x, 0, 1, &word),
					 im.lie == TRUE_REPLY ? -EINVAL : -EPROTO);
			/* Its replies to all else are too short. */
			assert_int_equal(ebbfar_alloc(far, 1, &x), -EPROTO);
			ebbfar_close(far);
		}
		pthread_join(thread, NULL);
	}
	close(im.listens);
}

static void allocate_and_access(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	static uint8_t bytes[EBBFAR_EXTENT_MOST], back[EBBFAR_EXTENT_MOST];
	struct ebbfar_extent x, first;
	uint64_t old;
	void *memory;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	for (size_t size = 1; size <= EBBFAR_EXTENT_MOST; size *= 2) {
		assert_int_equal(ebbfar_alloc(far, size, &x), 0);
		assert_true(x.size >= size && x.size >= EBBFAR_EXTENT_LEAST);
		assert_int_equal(ebbfar_write(far, &x, 0, bytes, size), 0);
		assert_int_equal(ebbfar_read(far, &x, 0, back, size), 0);
		assert_memory_equal(back, bytes, size);
		assert_int_equal(ebbfar_write(far, &x, x.size - 1, bytes, 1), 0);
		assert_int_equal(ebbfar_write(far, &x, x.size, bytes, 1), -EINVAL);
		assert_int_equal(ebbfar_read(far, &x, 1, back, x.size), -EINVAL);
		assert_int_equal(ebbfar_write(far, &x, UINT64_MAX, bytes, 2), -EINVAL);
		first = x;
		assert_int_equal(ebbfar_free(far, &x), 0);
		assert_int_equal(ebbfar_free(far, &x), -ESTALE);
	}
	assert_int_equal(ebbfar_alloc(far, 0, &x), -EINVAL);
	assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST + 1, &x), -EINVAL);
	assert_memory_equal(&x, &first, sizeof(x));
	assert_int_equal(ebbfar_alloc(far, 8, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 8, "\5\0\0\0\0\0\0\0", 8), 0);
	assert_int_equal(ebbfar_cas(far, &x, 8, 5, 6, &old), 0);
	assert_int_equal(old, 5);
	assert_int_equal(ebbfar_cas(far, &x, 8, 5, 7, &old), 0);
	assert_int_equal(old, 6);
	assert_int_equal(ebbfar_add(far, &x, 8, 10, &old), 0);
	assert_int_equal(old, 6);
	assert_int_equal(ebbfar_read(far, &x, 8, &old, 8), 0);
	assert_int_equal(old, 16);
	assert_int_equal(ebbfar_cas(far, &x, 4, 0, 0, &old), -EINVAL);
	assert_int_equal(ebbfar_add(far, &x, x.size, 0, &old), -EINVAL);
	if (at == world.tcp) {
		assert_int_equal(ebbfar_map(far, &x, &memory), -EOPNOTSUPP);
	} else {
		assert_int_equal(ebbfar_map(far, &x, &memory), 0);
		assert_int_equal(((uint64_t *)memory)[1], 16);
	}
	ebbfar_close(far);
}

/* Names that no allocation has. */
static void invalid_names(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x, y;
	uint64_t seed = 4711;
	char byte;

	assert_int_equal(ebbfar_alloc(far, 8192, &x), 0);
	for (int i = 0; i < 20000; i++) {
		y = x;
		if (draw_below(&seed, 2))
			y.place = (uint64_t)draw32(&seed) << draw_below(&seed, 32);
		else
			y.place ^= 1ull << draw_below(&seed, 64);
		if (draw_below(&seed, 2))
			y.size = 1ull << draw_below(&seed, 64);
		if (draw_below(&seed, 4) == 0)
			y.generation = (uint64_t)draw32(&seed) << 32;
		if (y.place == x.place)
			continue;
		assert_int_not_equal(ebbfar_free(far, &y), 0);
		assert_int_not_equal(ebbfar_take(far, 2, &y), 0);
		assert_int_not_equal(ebbfar_withdraw(far, &y), 0);
		if (at == world.tcp)
			ebbfar_read(far, &y, 0, &byte, 1);
	}
	/* What is this member's is there. */
	assert_int_equal(ebbfar_free(far, &x), 0);
	ebbfar_close(far);
}

/* All memory, then all of it again as extents of another size. */
static void until_it_is_full(void **state)
{
	enum { MOST = 4096 };
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	static struct ebbfar_extent x[MOST];
	static const uint32_t sizes[] = { 65536, 16384, 1 << 20, 2 << 20, 32768 };
	uint64_t total;
	int n, r;

	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		total = 0;
		for (n = 0; n < MOST; n++) {
			r = ebbfar_alloc(far, sizes[s], &x[n]);
			if (r)
				break;
			total += x[n].size;
			for (int i = 0; i < n; i++)
				assert_int_not_equal(x[i].place, x[n].place);
		}
		assert_int_equal(r, -ENOSPC);
		assert_int_equal(total, FREE_SECTIONS * EBB_FAR_SECTION);
		while (n)
			assert_int_equal(ebbfar_free(far, &x[--n]), 0);
	}
	ebbfar_close(far);
}

static void members(void **state)
{
	ebbfar_t *a = open_at(at, EBBFAR_CREATE), *b = open_at(world.tcp, 0);
	struct ebbfar_extent x, y;
	uint32_t from;
	uint64_t word;

	assert_int_not_equal(ebbfar_member(a), ebbfar_member(b));
	assert_int_equal(ebbfar_alloc(a, 100, &x), 0);
	assert_int_equal(ebbfar_write(a, &x, 0, "hello", 6), 0);
	/* Not b's yet. */
	assert_int_equal(ebbfar_read(b, &x, 0, &word, 6), -EACCES);
	assert_int_equal(ebbfar_free(b, &x), -ESTALE);
	assert_int_equal(ebbfar_wait(b, 0, &from, &word), -EAGAIN);
	assert_int_equal(ebbfar_notify(a, ebbfar_member(b), 77), 0);
	assert_int_equal(ebbfar_wait(b, 5000, &from, &word), 0);
	assert_int_equal(word, 77);
	assert_int_equal(from, ebbfar_member(a));
	assert_int_equal(ebbfar_notify(a, 200, 77), -ESRCH);
	y = x;
	assert_int_equal(ebbfar_take(b, from, &y), 0);
	assert_int_equal(y.generation, x.generation + 1);
	assert_int_equal(ebbfar_read(b, &y, 0, &word, 6), 0);
	assert_string_equal((char *)&word, "hello");
	assert_int_equal(ebbfar_take(b, from, &x), -ESTALE);
	assert_int_equal(ebbfar_free(a, &x), -ESTALE);
	assert_int_equal(ebbfar_withdraw(a, &x), -ESTALE);
	/* A withdrawn offer cannot be taken. */
	x = y;
	assert_int_equal(ebbfar_withdraw(b, &y), 0);
	assert_int_equal(ebbfar_take(a, ebbfar_member(b), &x), -ESTALE);
	assert_int_equal(ebbfar_free(b, &y), 0);
	ebbfar_close(b);
	ebbfar_close(a);
}

/* Whether a name is that of an extent now, as its owner and as another member sees it. */
static void checked_names(void **state)
{
	static const uint32_t sizes[] = { 4096, 65536, 1 << 20, EBBFAR_EXTENT_MOST };
	ebbfar_t *a = open_at(at, EBBFAR_CREATE), *b = open_at(world.tcp, 0);
	ebbfar_t *both[] = { a, b };
	uint32_t owner = ebbfar_member(a), other = ebbfar_member(b);
	struct ebbfar_extent x, y;

	for (int s = 0; s < 4; s++) {
		assert_int_equal(ebbfar_alloc(a, sizes[s], &x), 0);
		y = x;
		assert_int_equal(ebbfar_withdraw(a, &y), 0);
		for (int i = 0; i < 2; i++) {
			assert_int_equal(ebbfar_check(both[i], owner, &x), -ESTALE);
			assert_int_equal(ebbfar_check(both[i], owner, &y), 0);
			assert_int_equal(ebbfar_check(both[i], other, &y), -ESTALE);
			assert_int_equal(ebbfar_check(both[i], 0, &y), -EINVAL);
			assert_int_equal(ebbfar_check(both[i], 257, &y), -EINVAL);
		}
		/* Also if it is kept for the next allocation. */
		assert_int_equal(ebbfar_free(a, &y), 0);
		for (int i = 0; i < 2; i++)
			assert_int_equal(ebbfar_check(both[i], owner, &y), -ESTALE);
		y.generation++;
		assert_int_equal(ebbfar_check(a, owner, &y), -ESTALE);
		y.place++;
		assert_int_equal(ebbfar_check(b, owner, &y), -EINVAL);
	}
	assert_int_equal(ebbfar_alloc(a, 4096, &x), 0);
	ebbfar_close(a);
	for (int i = 0; i < 60000 && !ebbfar_check(b, owner, &x); i++)
		usleep(1000);
	assert_int_equal(ebbfar_check(b, owner, &x), -ESTALE);
	ebbfar_close(b);
}

/* Of a shared pool, each member uses the extents of all, by either transport. */
static void shared_pool(void **state)
{
	ebbfar_t *a = open_at(at, EBBFAR_CREATE | EBBFAR_SHARED), *b = open_at(world.tcp, 0);
	ebbfar_t *c = open_at(world.local, 0);
	struct ebbfar_extent x;
	uint64_t old;

	/* In an arena that the others have not seen. */
	assert_int_equal(ebbfar_alloc(a, EBBFAR_EXTENT_MOST, &x), 0);
	assert_int_equal(ebbfar_write(a, &x, 0, "\0\0\0\0\0\0\0\0", 8), 0);
	for (uint32_t i = 0; i < 30; i++) {
		assert_int_equal(ebbfar_add(i % 3 ? i % 3 == 1 ? a : b : c, &x, 0, 1, &old), 0);
		assert_int_equal(old, i);
	}
	ebbfar_close(c);
	ebbfar_close(b);
	ebbfar_close(a);
}

static void *churn(void *data)
{
	ebbfar_t *far = data;
	struct ebbfar_extent x[8];
	uint64_t seed = (uint64_t)(uintptr_t)&seed, value;

	for (int round = 0; round < 300; round++) {
		for (int i = 0; i < 8; i++) {
			value = (uint64_t)(uintptr_t)&seed + (uint32_t)i;
			if (ebbfar_alloc(far, 4096u << draw_below(&seed, 3), &x[i]) ||
			    ebbfar_write(far, &x[i], x[i].size - 8, &value, 8))
				return "allocation";
		}
		for (int i = 0; i < 8; i++) {
			if (ebbfar_read(far, &x[i], x[i].size - 8, &value, 8) ||
			    value != (uint64_t)(uintptr_t)&seed + (uint32_t)i)
				return "contents";
			if (ebbfar_free(far, &x[i]))
				return "free";
		}
	}
	return NULL;
}

/* Threads of three members: two map the memory. */
static void threads(void **state)
{
	ebbfar_t *a = open_at(world.local, EBBFAR_CREATE), *b = open_at(world.tcp, 0);
	ebbfar_t *c = open_at(world.local, 0), *const all[] = { a, b, c };
	pthread_t thread[6];
	void *wrong;

	for (int i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, churn, all[i % 3]), 0);
	for (int i = 0; i < 6; i++) {
		pthread_join(thread[i], &wrong);
		if (wrong)
			fail_msg("%s", (char *)wrong);
	}
	ebbfar_close(c);
	ebbfar_close(b);
	ebbfar_close(a);
}

static void after_a_fork(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	int status;

	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	if (!fork()) {
		struct ebbfar_extent y;
		char byte;
		int r = ebbfar_alloc(far, 1, &y) != -ECHILD ||
			ebbfar_read(far, &x, 0, &byte, 1) != -ECHILD ||
			ebbfar_free(far, &x) != -ECHILD;

		ebbfar_close(far);
		_exit(r);
	}
	wait(&status);
	assert_int_equal(status, 0);
	assert_int_equal(ebbfar_free(far, &x), 0);
	ebbfar_close(far);
}

/* With keys, by TLS: a pool belongs to the name of a key. */
static void keys(void **state)
{
	static uint8_t bytes[EBBFAR_EXTENT_MOST], back[EBBFAR_EXTENT_MOST];
	struct ebbfar_options o = options(world.tcp, EBBFAR_CREATE);
	struct ebbfar_extent x;
	ebbfar_t *one, *two;

	assert_int_equal(ebbfar_open(&o, &one), -EACCES);
	assert_non_null(strstr(o.error, "key"));
	o.key = world.keys[0];
	if (ebbfar_open(&o, &one))
		fail_msg("%s", o.error);
	o = options(world.tcp, 0);
	o.key = world.keys[1];
	assert_int_equal(ebbfar_open(&o, &two), -ENOENT);
	assert_int_equal(ebbfar_destroy(&o), -ENOENT);
	o.flags = EBBFAR_CREATE;
	if (ebbfar_open(&o, &two))
		fail_msg("%s", o.error);
	/* Both are the first member of their pool. */
	assert_int_equal(ebbfar_member(one), ebbfar_member(two));
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	assert_int_equal(ebbfar_alloc(one, sizeof(bytes), &x), 0);
	assert_int_equal(ebbfar_write(one, &x, 0, bytes, sizeof(bytes)), 0);
	assert_int_equal(ebbfar_read(one, &x, 0, back, sizeof(back)), 0);
	assert_memory_equal(back, bytes, sizeof(back));
	assert_int_equal(ebbfar_read(two, &x, 0, back, 1), -EINVAL);
	ebbfar_close(one);
	ebbfar_close(two);
	/* A unix socket has no key, and pools of its own. */
	o = options(world.local, 0);
	assert_int_equal(ebbfar_open(&o, &one), -ENOENT);
	o = options(world.tcp, 0);
	o.key = "/nonexistent";
	assert_int_equal(ebbfar_open(&o, &one), -ENOENT);
	closes_at_once(world.keys[0], -EACCES, "has no keys, or too many connections");
}

/* The donor ends the connection: nothing works any more. */
static void fenced(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE | EBBFAR_NO_RESUME);
	struct ebbfar_extent x;
	uint32_t from;
	uint64_t word;

	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	for (int i = 0; i < CONNECTIONS; i++)
		if (world.l->sessions.connections[i].member)
			shutdown(world.l->sessions.connections[i].fd, SHUT_RDWR);
	assert_int_equal(ebbfar_wait(far, 5000, &from, &word), -ESHUTDOWN);
	assert_int_equal(ebbfar_notify(far, 2, 1), -ESHUTDOWN);
	if (at == world.tcp) {
		assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), -ESHUTDOWN);
		assert_int_equal(ebbfar_free(far, &x), -ESHUTDOWN);
		ebbfar_close(far);
		return;
	}
	/* Mapped memory stays, but this process cannot be fenced: the pool stays. */
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
	ebbfar_close(far);
}

/* --- kill -9 ---------------------------------------------------------------------- */

/*
 * A child that makes @verbs verbs of an allocation or of a free in mapped memory, and then waits to
 * be killed: what far_step.h says at each verb is what ebbfar_alloc() does.
 */
static void child(int verbs, uint8_t *base, uint32_t member, int ready)
{
	static struct far_view view;
	static struct far_op op;
	struct ebb_far_name n;
	struct far_verb v;

	far_view_init(&view, FAR_SECTIONS, 4711);
	/* An extent of a class that no section has yet; then a section as a whole; then frees. */
	far_allocate(&op, &view, member, 1, &n, 1);
	for (int step = 0; step < 4; step++) {
		for (v = extent_next(&op, FAR_OK); v.kind != FAR_DONE;
		     v = extent_next(&op, FAR_OK)) {
			if (!verbs--)
				goto killed;
			far_execute(base, &v);
		}
		if (op.result)
			_exit(1);
		if (step == 1)
			far_allocate(&op, &view, member, EBB_FAR_WHOLE_CLASS, &n, 1);
		else
			far_free(&op, NULL, FAR_SECTIONS, member, &n, 1);
	}
	_exit(2);
killed:
	(void)!write(ready, "", 1);
	pause();
	_exit(3);
}

/* The first arena, as the donor has it. */
static const uint8_t *arena(void)
{
	return far_base(far_find(world.l->far, "", "p"), 0);
}

static uint32_t words_of(uint32_t member)
{
	uint32_t n = 0;

	for (uint32_t s = 0; s < FAR_SECTIONS; s++) {
		n += ebb_far_section_owner(far_load(arena(), ebb_far_section_at(s))) == member;
		for (uint32_t i = 0; i < EBB_FAR_SLOTS; i++)
			n += ebb_far_slot_owner(far_load(arena(), ebb_far_slot_at(FAR_SECTIONS, s,
										  i))) == member;
	}
	return n;
}

static bool is_vacant(uint32_t member)
{
	uint64_t at_record = EBB_FAR_MEMBERS_AT + (member - 1) * sizeof(struct ebb_far_member);

	return (uint32_t)far_load(arena(), at_record) == EBB_FAR_VACANT;
}

/* Returns ns until the donor has recovered @member. */
static uint64_t recovered(uint32_t member)
{
	uint64_t since = now_ns();

	while (!is_vacant(member)) {
		assert_true(now_ns() - since < 60 * SECOND);
		usleep(100);
	}
	return now_ns() - since;
}

static uint64_t published(ebbfar_t *far, uint32_t member)
{
	uint64_t words[EBBFAR_MEMBERS];

	assert_int_equal(ebbfar_published(far, words), 0);
	for (uint32_t i = 3; i < EBBFAR_MEMBERS; i++)
		assert_int_equal(words[i], 0);
	return words[member - 1];
}

/* Members find each other by words, which end with them. */
static void published_words(void **state)
{
	ebbfar_t *a = open_at(at, EBBFAR_CREATE), *b = open_at(world.tcp, 0);
	struct ebbfar_memory room = { .size = sizeof(room) };
	struct ebbfar_extent x;
	uint32_t third;

	/* Without memory there are no records. */
	assert_int_equal(published(b, 1), 0);
	assert_int_equal(ebbfar_room(b, &room), 0);
	assert_true(room.total == FAR_ARENAS * FAR_ARENA && room.free == room.total && !room.pool);
	assert_int_equal(ebbfar_publish(a, 5), 0);
	assert_int_equal(ebbfar_publish(b, UINT64_MAX), 0);
	assert_true(published(a, 1) == 5 && published(b, 1) == 5);
	assert_true(published(a, 2) == UINT64_MAX && published(b, 2) == UINT64_MAX);
	assert_int_equal(ebbfar_publish(b, 6), 0);
	assert_int_equal(published(a, 2), 6);
	for (int i = 0; i < 5; i++)
		assert_int_equal(ebbfar_alloc(a, EBBFAR_EXTENT_MOST, &x), 0);
	assert_int_equal(ebbfar_room(a, &room), 0);
	assert_true(room.pool == 2 * FAR_ARENA && room.free == room.total - room.pool);
	ebbfar_close(b);
	recovered(2);
	assert_int_equal(published(a, 2), 0);
	/* The next member of that number shows nothing. */
	b = open_at(world.tcp, 0);
	third = ebbfar_member(b);
	assert_int_equal(third, 2);
	assert_int_equal(published(a, 2), 0);
	ebbfar_close(b);
	ebbfar_close(a);
}

/* ebbfar_room() reports as free what the pool can have, within a quota of its own, too. */
static void room_within_the_quota(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_memory room = { .size = sizeof(room) };
	struct ebbfar_extent x;

	far_find(world.l->far, "", "p")->borrower.quota = 2 * FAR_ARENA;
	assert_int_equal(ebbfar_room(far, &room), 0);
	assert_int_equal(room.free, 2 * FAR_ARENA);
	for (int i = 0; i < 2 * (FAR_SECTIONS - 1); i++)
		assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x), 0);
	assert_int_equal(ebbfar_room(far, &room), 0);
	assert_int_equal(room.free, 0);
	assert_int_equal(ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &x), -ENOSPC);
	ebbfar_close(far);
}

/* Returns how many sections can be allocated; all empty ones are free after that. */
static int free_sections(ebbfar_t *far)
{
	struct ebbfar_extent all[64];
	int n = 0;

	while (n < 64 && !ebbfar_alloc(far, EBBFAR_EXTENT_MOST, &all[n]))
		n++;
	for (int i = 0; i < n; i++)
		assert_int_equal(ebbfar_free(far, &all[i]), 0);
	return n;
}

static void killed_at_each_verb(void **state)
{
	ebbfar_t *far = open_at(world.local, EBBFAR_CREATE);
	static uint8_t mine[4096], now[4096];
	struct ebbfar_extent x;
	uint64_t most = 0;
	bool ended = false;

	memset(mine, 0x5a, sizeof(mine));
	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, mine, sizeof(mine)), 0);
	for (int verbs = 0; !ended; verbs++) {
		int ready[2], status;
		uint64_t took;
		char byte;
		pid_t pid;

		assert_true(verbs < 100);
		/* Nothing has leaked. */
		assert_int_equal(free_sections(far), FREE_SECTIONS);
		assert_int_equal(pipe(ready), 0);
		pid = fork();
		if (!pid) {
			ebbfar_t *own = open_at(world.local, 0);
			struct ebbfar_extent y;
			void *memory;

			/* A page of the first arena, whose mapping has the table. */
			if (ebbfar_alloc(own, 4096, &y) || ebbfar_map(own, &y, &memory) ||
			    ebbfar_free(own, &y) || ebbfar_member(own) != 2)
				_exit(4);
			close(ready[0]);
			child(verbs, (uint8_t *)memory - (uint32_t)y.place, 2, ready[1]);
		}
		close(ready[1]);
		ended = read(ready[0], &byte, 1) == 0;
		if (!ended)
			kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		/* All verbs were made, or it was killed before one. */
		assert_true(ended ? WEXITSTATUS(status) == 2 : WIFSIGNALED(status));
		took = recovered(2);
		most = took > most ? took : most;
		assert_int_equal(words_of(2), 0);
		assert_int_equal(ebbfar_read(far, &x, 0, now, sizeof(now)), 0);
		assert_memory_equal(now, mine, sizeof(now));
		assert_true(verbs >= 10 || !ended);
		close(ready[0]);
	}
	print_message("killed at each of the verbs, recovered at most %llu us after the exit\n",
		      (unsigned long long)most / 1000);
	ebbfar_close(far);
}

/* A child that uses the library until it is killed at a random time, by either transport. */
static void killed_at_random(void **state)
{
	ebbfar_t *far = open_at(world.local, EBBFAR_CREATE);
	uint64_t seed = 77, word = 0x123456789;
	struct ebbfar_extent x;

	assert_int_equal(ebbfar_alloc(far, 8192, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &word, 8), 0);
	for (int round = 0; round < 40; round++) {
		const char *where = round % 2 ? world.tcp : world.local;
		pid_t pid = fork();

		if (!pid) {
			ebbfar_t *own = open_at(where, EBBFAR_NO_RESUME);
			struct ebbfar_extent y[16];

			for (int i = 0;; i++) {
				if (i >= 16)
					ebbfar_free(own, &y[i % 16]);
				ebbfar_alloc(own, 4096u << draw_below(&seed, 10), &y[i % 16]);
			}
		}
		usleep(2000 + draw_below(&seed, 20000));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		recovered(2);
		assert_int_equal(words_of(2), 0);
		assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
		assert_int_equal(word, 0x123456789);
	}
	assert_int_equal(ebbfar_free(far, &x), 0);
	/* Nothing has leaked: all memory can be allocated. */
	assert_int_equal(free_sections(far), FREE_SECTIONS);
	ebbfar_close(far);
}

/* A stopped process that maps memory keeps its extents until it exits. */
static void stopped_process(void **state)
{
	ebbfar_t *far = open_at(world.local, EBBFAR_CREATE);
	const uint32_t *dead = &far_find(world.l->far, "", "p")->in[EBB_FAR_DEAD];
	struct ebbfar_extent x;
	int ready[2];
	char byte;
	pid_t pid;

	assert_int_equal(ebbfar_alloc(far, 1, &x), 0);
	assert_int_equal(pipe(ready), 0);
	pid = fork();
	if (!pid) {
		ebbfar_t *own = open_at(world.local, EBBFAR_NO_RESUME);

		if (ebbfar_alloc(own, EBBFAR_EXTENT_MOST, &x))
			_exit(1);
		(void)!write(ready[1], "", 1);
		pause();
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	kill(pid, SIGSTOP);
	assert_int_equal(ebbfar_notify(far, 2, 1), 0);
	/* Its connection ends: it is dead, but may write when it goes on. */
	for (int i = 0; i < CONNECTIONS; i++)
		if (world.l->sessions.connections[i].member &&
		    world.l->sessions.connections[i].member->number == 2)
			shutdown(world.l->sessions.connections[i].fd, SHUT_RDWR);
	for (int i = 0; i < 60000 && !__atomic_load_n(dead, __ATOMIC_RELAXED); i++)
		usleep(1000);
	assert_int_equal(__atomic_load_n(dead, __ATOMIC_RELAXED), 1);
	assert_int_equal(words_of(2), 1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	recovered(2);
	assert_int_equal(words_of(2), 0);
	close(ready[0]);
	close(ready[1]);
	ebbfar_close(far);
}

int main(void)
{
#define BOTH(f) \
	{ #f " by tcp", f, by_tcp, end, NULL }, { #f " by mapping", f, by_mapping, end, NULL }
#define MAPPED(f) cmocka_unit_test_setup_teardown(f, by_mapping, end)
	const struct CMUnitTest tests[] = {
		BOTH(refusals),
		cmocka_unit_test_setup_teardown(other_donors, without_far_memory, end_far_donor),
		cmocka_unit_test(impostors),
		cmocka_unit_test(strange_status),
		BOTH(allocate_and_access),
		BOTH(invalid_names),
		BOTH(until_it_is_full),
		BOTH(members),
		BOTH(checked_names),
		BOTH(shared_pool),
		MAPPED(threads),
		BOTH(published_words),
		BOTH(room_within_the_quota),
		BOTH(after_a_fork),
		cmocka_unit_test_setup_teardown(fenced, by_tcp, end),
		cmocka_unit_test_setup_teardown(fenced, by_mapping, end_far_donor),
		cmocka_unit_test_setup_teardown(keys, with_far_keys, end_far_donor),
		MAPPED(killed_at_each_verb),
		MAPPED(killed_at_random),
		MAPPED(stopped_process),
	};

	return cmocka_run_group_tests_name("far library", tests, NULL, NULL);
}
