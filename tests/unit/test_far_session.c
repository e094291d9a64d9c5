// SPDX-License-Identifier: GPL-2.0-or-later
/* Frames of far memory between a donor and members at its unix socket and its TCP port. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donord/status.h"
#include "far_world.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/rules/far_memory.h"
#include "lib/rules/far_words.h"
#include "lib/wire/address.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* A member. */
struct peer {
	int fd;
	int passed; /* descriptor that came with the last frame; -1 = none */
	uint64_t number, tag;
	struct wire_far_opened opened;
	uint8_t payload[WIRE_FAR_MOST]; /* of the last frame */
};

static struct peer a, b;

static void connect_to(struct peer *p, const char *address)
{
	struct error e = { 0 };
	struct address at;

	*p = (struct peer){ .passed = -1 };
	assert_int_equal(address_parse(address, "donor", &at, &e), 0);
	p->fd = address_connect(&at);
	assert_true(p->fd >= 0);
	assert_int_equal(poll(&(struct pollfd){ p->fd, POLLOUT, 0 }, 1, 60000), 1);
	far_world_turn();
}

static void disconnect(struct peer *p)
{
	close(p->fd);
	far_world_turn();
}

static void push(struct peer *p, struct wire_frame f, const void *payload)
{
	uint32_t n = wire_payload(&f), sent = 0;
	uint8_t *bytes = malloc(WIRE_HEADER + n);

	f.tag = ++p->tag;
	wire_build(bytes, &f);
	if (n)
		memcpy(bytes + WIRE_HEADER, payload, n);
	while (sent < WIRE_HEADER + n) {
		ssize_t some = send(p->fd, bytes + sent, WIRE_HEADER + n - sent, MSG_NOSIGNAL);

		if (some > 0)
			sent += (uint32_t)some;
		else
			assert_int_equal(errno, EAGAIN);
		far_world_turn();
	}
	free(bytes);
}

static void receive(struct peer *p, void *to, size_t n)
{
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	uint8_t *at = to;

	for (int i = 0; n && i < 1000; i++) {
		struct iovec iov = { at, n };
		struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control,
				    .msg_controllen = sizeof(control) };
		ssize_t some = recvmsg(p->fd, &m, MSG_DONTWAIT);
		struct cmsghdr *c = some > 0 ? CMSG_FIRSTHDR(&m) : NULL;

		if (c)
			memcpy(&p->passed, CMSG_DATA(c), sizeof(int));
		if (some > 0) {
			at += some;
			n -= (size_t)some;
		}
		far_world_turn();
	}
	assert_int_equal(n, 0);
}

/* Takes the next frame, which must be an @op. */
static struct wire_frame take(struct peer *p, uint8_t op)
{
	uint8_t header[WIRE_HEADER];
	struct wire_frame f;

	receive(p, header, sizeof(header));
	assert_int_equal(wire_parse(header, sizeof(header), WIRE_AT_FAR_MEMBER, &f), 1);
	assert_int_equal(f.op, op);
	receive(p, p->payload, wire_payload(&f));
	return f;
}

/* Returns the status of the reply. */
static uint16_t ask(struct peer *p, struct wire_frame f, const void *payload)
{
	struct wire_frame reply;

	push(p, f, payload);
	reply = take(p, f.op);
	assert_int_equal(reply.tag, p->tag);
	return reply.status;
}

static uint16_t greet(struct peer *p, uint64_t number, uint32_t flags)
{
	const struct wire_hello h = { .version = WIRE_VERSION, .borrower = number, .name = "member",
				      .flags = WIRE_FAR | flags };
	uint8_t payload[WIRE_HELLO_SIZE];

	wire_build_hello(payload, &h);
	return ask(p, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) }, payload);
}

static uint16_t pool_verb(struct peer *p, enum wire_far_verb verb, uint32_t flags)
{
	const struct wire_far_pool request = { .verb = verb, .flags = flags, .name = "p" };
	uint8_t payload[WIRE_FAR_POOL_SIZE];
	uint16_t st;

	wire_build_far_pool(payload, &request);
	st = ask(p, (struct wire_frame){ .op = WIRE_FAR_POOL, .length = sizeof(payload) }, payload);
	if (st == WIRE_OK)
		assert_int_equal(wire_parse_far_opened(p->payload, WIRE_FAR_OPENED_SIZE,
						       &p->opened), 0);
	return st;
}

static uint16_t arena(struct peer *p, uint32_t index)
{
	return ask(p, (struct wire_frame){ .op = WIRE_FAR_ARENA, .slab = index }, NULL);
}

/* Connects a member with @flags of HELLO; the pool exists. */
static void join(struct peer *p, const char *address, uint64_t number, uint32_t flags)
{
	connect_to(p, address);
	assert_int_equal(greet(p, number, flags), WIRE_OK);
	assert_int_equal(pool_verb(p, WIRE_FAR_OPEN, 0), WIRE_OK);
}

/* Two members by TCP of a pool with one arena. */
static void two_members(uint32_t pool_flags, uint32_t flags)
{
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, flags), WIRE_OK);
	assert_int_equal(pool_verb(&a, WIRE_FAR_CREATE, pool_flags), WIRE_OK);
	assert_int_equal(pool_verb(&a, WIRE_FAR_OPEN, 0), WIRE_OK);
	assert_int_equal(arena(&a, 0), WIRE_OK);
	join(&b, world.tcp, 2, flags);
}

static uint16_t write_at(struct peer *p, uint32_t at, const void *bytes, uint32_t n)
{
	return ask(p, (struct wire_frame){ .op = WIRE_FAR_WRITE, .offset = at, .length = n },
		   bytes);
}

static uint16_t read_at(struct peer *p, uint32_t at, uint32_t n)
{
	return ask(p, (struct wire_frame){ .op = WIRE_FAR_READ, .offset = at, .length = n }, NULL);
}

static uint16_t cas(struct peer *p, uint64_t at, uint64_t expect, uint64_t desired)
{
	const struct wire_far_swap s = { at, expect, desired };
	uint8_t payload[WIRE_FAR_SWAP_SIZE];

	wire_put_far_swap(payload, 0, &s);
	return ask(p, (struct wire_frame){ .op = WIRE_FAR_CAS, .length = sizeof(payload) },
		   payload);
}

/* The word of a section that no extent has used yet. */
static uint64_t new_section(const struct peer *p)
{
	return ebb_far_section(EBB_FAR_FREE, 0, 0, far_first_generation(p->opened.identity));
}

/* The same section, which @p has as a whole. */
static uint64_t whole_section(const struct peer *p)
{
	return ebb_far_section(EBB_FAR_WHOLE, EBB_FAR_WHOLE_CLASS, p->opened.member,
			       far_first_generation(p->opened.identity));
}

/* Takes section 2 as a whole; returns its place. */
static uint32_t take_section(struct peer *p)
{
	assert_int_equal(cas(p, ebb_far_section_at(2), new_section(p), whole_section(p)), WIRE_OK);
	assert_int_equal(get64(p->payload), new_section(p));
	return 2 * EBB_FAR_SECTION;
}

static void part(void)
{
	disconnect(&a);
	disconnect(&b);
}

/* --- handshake -------------------------------------------------------------------- */

static void no_far_memory(void **state)
{
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, 0), WIRE_NO_FAR);
	assert_non_null(strstr(wire_status_text(WIRE_NO_FAR), "--far"));
	close(a.fd);
}

/* A connection is for far memory or for slabs. */
static void one_kind_of_frames(void **state)
{
	const struct wire_hello h = { .version = WIRE_VERSION, .borrower = 9, .name = "swap" };
	uint8_t payload[WIRE_HELLO_SIZE];
	char byte;

	connect_to(&a, world.tcp);
	wire_build_hello(payload, &h);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
			     payload), WIRE_OK);
	push(&a, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL);
	assert_int_equal(recv(a.fd, &byte, 1, 0), 0);
	disconnect(&a);
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, 0), WIRE_OK);
	push(&a, (struct wire_frame){ .op = WIRE_RELEASE }, NULL);
	assert_int_equal(recv(a.fd, &byte, 1, 0), 0);
	disconnect(&a);
	/* The place may be used by a borrower of slabs after that. */
	connect_to(&a, world.tcp);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
			     payload), WIRE_OK);
	disconnect(&a);
}

static void pools_by_frames(void **state)
{
	struct wire_far_listed l;

	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, 0), WIRE_OK);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL), WIRE_OK);
	assert_int_equal(read_at(&a, 0, 8), WIRE_NO_POOL);
	assert_int_equal(pool_verb(&a, WIRE_FAR_OPEN, 0), WIRE_NO_POOL);
	assert_int_equal(pool_verb(&a, WIRE_FAR_CREATE, WIRE_FAR_SHARED), WIRE_OK);
	assert_int_equal(a.opened.member, 0);
	assert_int_equal(pool_verb(&a, WIRE_FAR_OPEN, 0), WIRE_OK);
	assert_int_equal(a.opened.member, 1);
	assert_int_equal(a.opened.sections, FAR_SECTIONS);
	assert_int_equal(a.opened.flags, WIRE_FAR_SHARED);
	assert_int_equal(pool_verb(&a, WIRE_FAR_OPEN, 0), WIRE_NOT_GREETED);
	assert_int_equal(arena(&a, 1), WIRE_NO_SLAB);
	assert_int_equal(arena(&a, 0), WIRE_OK);
	assert_int_equal(a.passed, -1);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL), WIRE_OK);
	assert_int_equal(wire_parse_far_listed(a.payload, WIRE_FAR_LISTED_SIZE, &l), 0);
	assert_string_equal(l.name, "p");
	assert_int_equal(l.live, 1);
	assert_int_equal(l.arenas, 1);
	assert_int_equal(pool_verb(&a, WIRE_FAR_DESTROY, 0), WIRE_POOL_IN_USE);
	disconnect(&a);
	connect_to(&a, world.local);
	assert_int_equal(greet(&a, 1, 0), WIRE_OK);
	assert_int_equal(pool_verb(&a, WIRE_FAR_DESTROY, 0), WIRE_OK);
	assert_int_equal(world.pool.in[LEND_LENT], 0);
	disconnect(&a);
}

/* Appends a CREATE of pool @name to @buf. */
static size_t put_create(uint8_t *buf, const char *name)
{
	const struct wire_frame f = { .op = WIRE_FAR_POOL, .length = WIRE_FAR_POOL_SIZE };
	struct wire_far_pool p = { .verb = WIRE_FAR_CREATE };

	strcpy(p.name, name);
	wire_build(buf, &f);
	wire_build_far_pool(buf + WIRE_HEADER, &p);
	return WIRE_HEADER + WIRE_FAR_POOL_SIZE;
}

/* One member's flood of POOL takes one turn each, of which another member gets every other one. */
static void one_pool_in_a_turn(void **state)
{
	static const char *const names[] = { "p", "q", "r", "s" };
	struct far *far = world.l->far;
	uint8_t bytes[512];
	size_t n = 0;

	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, 0), WIRE_OK);
	connect_to(&b, world.tcp);
	assert_int_equal(greet(&b, 2, 0), WIRE_OK);
	for (int i = 0; i < 4; i++)
		n += put_create(bytes + n, names[i]);
	assert_int_equal(send(b.fd, bytes, n, 0), (int)n);
	assert_int_equal(loop_turn(world.l, SECOND), 0);
	assert_non_null(far_find(far, "", "p"));
	assert_null(far_find(far, "", "q"));
	n = put_create(bytes, "t");
	assert_int_equal(send(a.fd, bytes, n, 0), (int)n);
	for (int i = 0; i < 2; i++)
		assert_int_equal(loop_turn(world.l, 0), 0);
	assert_int_equal(loop_turn(world.l, 0), 0);
	assert_non_null(far_find(far, "", "t"));
	assert_null(far_find(far, "", "s"));
	far_world_turn();
	assert_non_null(far_find(far, "", "s"));
	/* Borrowers of slabs take turns of their own. */
	assert_int_equal(world.l->sessions.last, 0);
	part();
}

/* Connections of one key, or here of one address, share the bytes of a turn. */
static void bytes_of_a_turn(void **state)
{
	struct connection *c = NULL;
	uint8_t header[WIRE_HEADER];
	uint32_t at;

	two_members(0, 0);
	at = take_section(&a);
	for (int i = 0; i < CONNECTIONS && !c; i++)
		if (world.l->sessions.connections[i].id == 1)
			c = &world.l->sessions.connections[i];
	assert_non_null(c);
	wire_build(header, &(struct wire_frame){ .op = WIRE_FAR_READ, .offset = at, .length = 8 });
	assert_int_equal(send(a.fd, header, sizeof(header), 0), sizeof(header));
	/* What @b would do. */
	c->payer->turn = world.pool.turn;
	c->payer->moved = CONNECTION_TURN;
	connection_event(c, EPOLLIN);
	assert_int_equal(recv(a.fd, header, 1, MSG_DONTWAIT), -1);
	/* A held request as well. */
	connection_hold(c, true, false);
	assert_true(connections_resume(&world.l->sessions));
	assert_int_equal(recv(a.fd, header, 1, MSG_DONTWAIT), -1);
	pool_turn(&world.pool, world.l->now);
	assert_false(connections_resume(&world.l->sessions));
	assert_int_equal(recv(a.fd, header, sizeof(header), MSG_DONTWAIT), sizeof(header));
	assert_int_equal(recv(a.fd, header, 8, MSG_DONTWAIT), 8);
	/* In the next turn it does not come before events again. */
	connection_hold(c, true, false);
	pool_turn(&world.pool, world.l->now);
	assert_true(connections_resume(&world.l->sessions));
	pool_turn(&world.pool, world.l->now);
	assert_false(connections_resume(&world.l->sessions));
	part();
}

/* --- access ----------------------------------------------------------------------- */

static void accesses(void **state)
{
	static uint8_t bytes[WIRE_FAR_MOST];
	uint8_t addend[8];
	uint32_t at;

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7 + i / 251);
	two_members(0, 0);
	at = take_section(&a);
	for (uint32_t n = 1; n <= sizeof(bytes); n = n * 3 + 1) {
		assert_int_equal(write_at(&a, at + n, bytes, n), WIRE_OK);
		assert_int_equal(read_at(&a, at + n, n), WIRE_OK);
		assert_memory_equal(a.payload, bytes, n);
	}
	assert_int_equal(write_at(&a, at, bytes, sizeof(bytes)), WIRE_OK);
	assert_int_equal(read_at(&a, at, sizeof(bytes)), WIRE_OK);
	assert_memory_equal(a.payload, bytes, sizeof(bytes));
	assert_int_equal(write_at(&b, at, bytes, 9), WIRE_NOT_OWNER);
	assert_int_equal(read_at(&b, at, 9), WIRE_NOT_OWNER);
	assert_int_equal(cas(&b, at, get64(bytes), 1), WIRE_NOT_OWNER);
	/* Of the table, a member writes the word that it publishes. */
	assert_int_equal(write_at(&b, (uint32_t)ebb_far_published_at(2), bytes, 8), WIRE_OK);
	assert_int_equal(write_at(&b, (uint32_t)ebb_far_published_at(2), bytes, 7), WIRE_NOT_OWNER);
	assert_int_equal(write_at(&b, (uint32_t)ebb_far_published_at(2) - 8, bytes, 8),
			 WIRE_NOT_OWNER);
	assert_int_equal(write_at(&b, (uint32_t)ebb_far_published_at(1), bytes, 8), WIRE_NOT_OWNER);
	assert_int_equal(cas(&a, at, 1, 2), WIRE_OK);
	assert_int_equal(get64(a.payload), get64(bytes));
	put64(addend, 5);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_ADD, .offset = at,
						      .length = 8 }, addend), WIRE_OK);
	assert_int_equal(get64(a.payload), get64(bytes));
	assert_int_equal(read_at(&a, at, 8), WIRE_OK);
	assert_int_equal(get64(a.payload), get64(bytes) + 5);
	part();
}

/* Replies are what was there when the request took effect, in order, however many are sent. */
static void pipelined(void **state)
{
	enum { ROUNDS = 40 };
	uint32_t at, n = WIRE_FAR_MOST;
	static uint8_t bytes[WIRE_FAR_MOST];
	struct wire_frame f;

	two_members(0, 0);
	at = take_section(&a);
	for (int i = 0; i < ROUNDS; i++) {
		memset(bytes, i, n);
		push(&a, (struct wire_frame){ .op = WIRE_FAR_WRITE, .offset = at, .length = n },
		     bytes);
		push(&a, (struct wire_frame){ .op = WIRE_FAR_READ, .offset = at, .length = n },
		     NULL);
		if (i % 4 != 3)
			continue;
		for (int k = i - 3; k <= i; k++) {
			assert_int_equal(take(&a, WIRE_FAR_WRITE).status, WIRE_OK);
			f = take(&a, WIRE_FAR_READ);
			assert_int_equal(f.status, WIRE_OK);
			memset(bytes, k, n);
			assert_memory_equal(a.payload, bytes, n);
		}
	}
	part();
}

/* A WRITE that was cut off has no effect. */
static void half_a_write(void **state)
{
	struct wire_frame f = { .op = WIRE_FAR_WRITE, .length = 64 };
	uint8_t bytes[WIRE_HEADER + 64];
	uint32_t at;

	two_members(0, WIRE_KEEP);
	at = take_section(&a);
	memset(bytes, 1, sizeof(bytes));
	f.offset = at;
	wire_build(bytes, &f);
	assert_int_equal(send(a.fd, bytes, WIRE_HEADER + 32, 0), WIRE_HEADER + 32);
	far_world_turn();
	disconnect(&a);
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(read_at(&a, at, 64), WIRE_OK);
	assert_int_equal(get64(a.payload), 0);
	part();
}

/* Requests that a member repeats after a cut take effect once, and have their first result. */
static void repeated(void **state)
{
	struct wire_frame f = { .op = WIRE_FAR_ADD, .length = WIRE_FAR_WORD_SIZE };
	uint8_t one[WIRE_FAR_WORD_SIZE];
	uint32_t at;

	two_members(WIRE_FAR_SHARED, WIRE_KEEP);
	at = take_section(&a);
	put64(one, 1);
	f.offset = at;
	for (uint64_t i = 0; i < 2 * WIRE_FAR_WINDOW; i++) {
		uint64_t tag = a.tag + 1;

		assert_int_equal(ask(&a, f, one), WIRE_OK);
		assert_int_equal(get64(a.payload), 10 * i);
		disconnect(&a);
		connect_to(&a, world.tcp);
		assert_int_equal(greet(&a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
		a.tag = tag - 1;
		f.generation = WIRE_FAR_REPEATED;
		assert_int_equal(ask(&a, f, one), WIRE_OK);
		assert_int_equal(get64(a.payload), 10 * i);
		/* One that has not arrived. */
		assert_int_equal(ask(&a, f, one), WIRE_OK);
		assert_int_equal(get64(a.payload), 10 * i + 1);
		f.generation = 0;
		put64(one, 8);
		assert_int_equal(ask(&a, f, one), WIRE_OK);
		put64(one, 1);
	}
	/* What another member has written meanwhile stays. */
	assert_int_equal(write_at(&a, at, one, 8), WIRE_OK);
	assert_int_equal(write_at(&b, at, "later...", 8), WIRE_OK);
	a.tag--;
	f = (struct wire_frame){ .op = WIRE_FAR_WRITE, .offset = at, .length = 8,
				 .generation = WIRE_FAR_REPEATED };
	assert_int_equal(ask(&a, f, one), WIRE_OK);
	assert_int_equal(read_at(&b, at, 8), WIRE_OK);
	assert_memory_equal(b.payload, "later...", 8);
	/* A READ is not recorded: it says nothing of the first time. */
	f.op = WIRE_FAR_READ;
	push(&a, f, NULL);
	assert_int_equal(recv(a.fd, one, 1, 0), 0);
	part();
}

/* Sends the first @n bytes of request @f and disconnects. */
static void cut(const char *address, struct wire_frame f, uint32_t n)
{
	uint8_t bytes[WIRE_HEADER + 64] = { 0 };

	join(&b, address, 2, 0);
	wire_build(bytes, &f);
	/* To one that exists; one swap of a word that is not a member's. */
	put32(bytes + WIRE_HEADER, f.op == WIRE_FAR_POOL ? WIRE_FAR_OPEN : 1);
	assert_int_equal(send(b.fd, bytes, n, 0), n);
	far_world_turn();
	disconnect(&b);
	if (b.passed >= 0)
		close(b.passed);
}

/* The end of a connection in the middle of any request leaves nothing behind. */
static void ends_in_each_request(void **state)
{
	static const struct wire_frame requests[] = {
		{ .op = WIRE_PING },
		{ .op = WIRE_BYE },
		{ .op = WIRE_FAR_POOL, .length = WIRE_FAR_POOL_SIZE },
		{ .op = WIRE_FAR_LIST },
		{ .op = WIRE_FAR_ARENA },
		{ .op = WIRE_FAR_READ, .length = WIRE_FAR_MOST },
		{ .op = WIRE_FAR_WRITE, .length = 48 },
		{ .op = WIRE_FAR_CAS, .length = 2 * WIRE_FAR_SWAP_SIZE },
		{ .op = WIRE_FAR_ADD, .length = 8 },
		{ .op = WIRE_FAR_NOTIFY, .length = WIRE_FAR_MEMBER_SIZE },
		{ .op = WIRE_FAR_DEAD, .length = WIRE_FAR_MEMBER_SIZE },
	};
	struct far_pool *fp;

	two_members(0, 0);
	disconnect(&b);
	fp = far_find(world.l->far, "", "p");
	for (size_t i = 0; i < sizeof(requests) / sizeof(*requests); i++) {
		uint32_t whole = WIRE_HEADER + wire_payload(&requests[i]);

		for (uint32_t n = 1; n < whole; n += 5)
			cut(n % 2 ? world.tcp : world.local, requests[i], n);
		/* Also before the reply is read.  DEAD of member 1 would succeed. */
		if (requests[i].op != WIRE_FAR_DEAD)
			cut(world.tcp, requests[i], whole);
		assert_int_equal(fp->in[EBB_FAR_LIVE], 1);
		assert_int_equal(fp->in[EBB_FAR_AWAY] + fp->in[EBB_FAR_DEAD], 0);
	}
	disconnect(&a);
}

static void words_for_members(void **state)
{
	uint8_t payload[WIRE_FAR_MEMBER_SIZE];
	struct wire_far_word w = { 2, 77 };

	two_members(0, 0);
	wire_build_far_word(payload, &w);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_NOTIFY,
						      .length = sizeof(payload) }, payload),
			 WIRE_OK);
	take(&b, WIRE_FAR_NOTIFIED);
	assert_int_equal(wire_parse_far_word(b.payload, WIRE_FAR_MEMBER_SIZE, &w), 0);
	assert_int_equal(w.member, 1);
	assert_int_equal(w.word, 77);
	/* No member has number 9; a word with DEAD breaks the protocol. */
	w = (struct wire_far_word){ 9, 0 };
	wire_build_far_word(payload, &w);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_DEAD,
						      .length = sizeof(payload) }, payload),
			 WIRE_NO_MEMBER);
	w.member = 2;
	wire_build_far_word(payload, &w);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_DEAD,
						      .length = sizeof(payload) }, payload),
			 WIRE_OK);
	assert_int_equal(recv(b.fd, payload, 1, 0), 0);
	w.word = 1;
	wire_build_far_word(payload, &w);
	push(&a, (struct wire_frame){ .op = WIRE_FAR_DEAD, .length = sizeof(payload) }, payload);
	assert_int_equal(recv(a.fd, payload, 1, 0), 0);
	part();
}

/*
 * A member that allocates in mapped memory has no reason to read: words for it wait, the last one
 * alone, and do not end it.
 */
static void words_for_one_that_does_not_read(void **state)
{
	enum { WORDS = 2000 };
	struct far_pool *fp;
	struct wire_far_word w = { 0 };
	uint8_t payload[WIRE_FAR_MEMBER_SIZE];
	uint32_t came = 0;

	two_members(0, 0);
	fp = far_find(world.l->far, "", "p");
	disconnect(&b);
	join(&b, world.local, 2, 0);
	for (uint32_t i = 1; i <= WORDS; i++) {
		wire_build_far_word(payload, &(struct wire_far_word){ 2, i });
		assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_FAR_NOTIFY,
							      .length = sizeof(payload) }, payload),
				 WIRE_OK);
	}
	connections_tick(&world.l->sessions, now_ns() + 100 * SECOND);
	far_world_turn();
	assert_int_equal(fp->in[EBB_FAR_LIVE], 2);
	/* A reply behind them has its own time. */
	push(&b, (struct wire_frame){ .op = WIRE_FAR_LIST }, NULL);
	connections_tick(&world.l->sessions, now_ns() + 9 * SECOND);
	assert_int_equal(fp->in[EBB_FAR_LIVE], 2);
	while (w.word != WORDS) {
		uint8_t header[WIRE_HEADER];
		struct wire_frame f;

		receive(&b, header, sizeof(header));
		assert_int_equal(wire_parse(header, sizeof(header), WIRE_AT_FAR_MEMBER, &f), 1);
		receive(&b, b.payload, wire_payload(&f));
		if (f.op != WIRE_FAR_NOTIFIED)
			continue;
		assert_int_equal(wire_parse_far_word(b.payload, f.length, &w), 0);
		came++;
	}
	assert_in_range(came, 1, WORDS - 1);
	part();
}

/* A word of a pool that is made again names no extent of the former one. */
static void a_pool_made_again(void **state)
{
	uint64_t former;

	for (int round = 0; round < 8; round++) {
		two_members(0, 0);
		former = whole_section(&a);
		take_section(&a);
		part();
		connect_to(&a, world.tcp);
		assert_int_equal(greet(&a, 1, 0), WIRE_OK);
		assert_int_equal(pool_verb(&a, WIRE_FAR_DESTROY, 0), WIRE_OK);
		disconnect(&a);
		two_members(0, 0);
		take_section(&a);
		assert_true(far_load(far_base(far_find(world.l->far, "", "p"), 0),
				     ebb_far_section_at(2)) != former);
		part();
		connect_to(&a, world.tcp);
		assert_int_equal(greet(&a, 1, 0), WIRE_OK);
		assert_int_equal(pool_verb(&a, WIRE_FAR_DESTROY, 0), WIRE_OK);
		disconnect(&a);
	}
}

/* --- ends ------------------------------------------------------------------------- */

static uint32_t owner_of_section(void)
{
	struct far_pool *fp = far_find(world.l->far, "", "p");

	return ebb_far_section_owner(far_load(far_base(fp, 0), ebb_far_section_at(2)));
}

static void ends_without_keep(void **state)
{
	two_members(0, 0);
	take_section(&a);
	assert_int_equal(owner_of_section(), 1);
	disconnect(&a);
	assert_int_equal(owner_of_section(), EBB_FAR_NONE);
	disconnect(&b);
}

static void grace_period(void **state)
{
	struct far_pool *fp;
	uint32_t at;
	char byte;

	two_members(0, WIRE_KEEP);
	fp = far_find(world.l->far, "", "p");
	at = take_section(&a);
	disconnect(&a);
	assert_int_equal(fp->in[EBB_FAR_AWAY], 1);
	connections_tick(&world.l->sessions, now_ns() + 9 * SECOND);
	far_world_turn();
	assert_int_equal(owner_of_section(), 1);
	/* It returns, and is the same member. */
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(fp->in[EBB_FAR_LIVE], 2);
	assert_int_equal(write_at(&a, at, &at, 4), WIRE_OK);
	/* It returns while the donor has not noticed its absence. */
	disconnect(&b);
	connect_to(&b, world.tcp);
	assert_int_equal(greet(&b, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(recv(a.fd, &byte, 1, 0), 0);
	assert_int_equal(read_at(&b, at, 4), WIRE_OK);
	disconnect(&b);
	assert_int_equal(owner_of_section(), 1);
	/* Too late. */
	connections_tick(&world.l->sessions, now_ns() + 11 * SECOND);
	far_world_turn();
	assert_int_equal(owner_of_section(), EBB_FAR_NONE);
	disconnect(&a);
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_NO_SESSION);
	disconnect(&a);
}

static uint32_t unused_buffers(void)
{
	uint32_t n = 0;

	for (struct far_buffer *b = world.l->sessions.far_unused; b; b = b->next)
		n++;
	return n;
}

/*
 * A connection has a buffer while it has requests in flight: many connections take the memory of
 * few, and the loop does not wait for memory again.
 */
static void buffers_in_use(void **state)
{
	static struct peer many[20];
	struct wire_frame f = { .op = WIRE_FAR_WRITE, .length = WIRE_FAR_MOST };
	static uint8_t bytes[WIRE_HEADER + 100];

	two_members(0, WIRE_KEEP);
	f.offset = take_section(&a);
	for (uint32_t i = 0; i < 20; i++) {
		join(&many[i], world.tcp, 100 + i, WIRE_KEEP);
		assert_int_equal(read_at(&many[i], 0, 4096), WIRE_OK);
	}
	assert_int_equal(unused_buffers(), 1);
	/* A payload that is arriving. */
	wire_build(bytes, &f);
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	far_world_turn();
	assert_int_equal(unused_buffers(), 0);
	assert_int_equal(read_at(&b, 0, 100), WIRE_OK);
	assert_int_equal(unused_buffers(), 1);
	disconnect(&a);
	assert_int_equal(unused_buffers(), 2);
	for (uint32_t i = 0; i < 20; i++)
		disconnect(&many[i]);
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(read_at(&a, f.offset, 100), WIRE_OK);
	assert_int_equal(unused_buffers(), 2);
	part();
}

/* --- any order of frames ------------------------------------------------------------ */

enum { OUTSTANDING = 12 };

struct model {
	uint32_t at;                 /* of a section that the member has */
	uint8_t bytes[EBB_FAR_SECTION];
	struct wire_frame sent[OUTSTANDING];
	uint8_t wanted[OUTSTANDING]; /* of a READ: all its bytes */
	uint32_t first, count;
};

static struct model model;

/* Takes the oldest reply.  READs are of ranges that hold one byte over and over. */
static void take_oldest(void)
{
	const struct wire_frame *f = &model.sent[model.first];
	struct wire_frame reply = take(&a, f->op);

	assert_int_equal(reply.tag, f->tag);
	assert_int_equal(reply.status, f->slab ? WIRE_NO_SLAB : WIRE_OK);
	for (uint32_t i = 0; f->op == WIRE_FAR_READ && i < reply.length; i++)
		if (a.payload[i] != model.wanted[model.first])
			fail_msg("byte %u of a READ of %u", i, f->length);
	model.first = (model.first + 1) % OUTSTANDING;
	model.count--;
}

/* Sends a frame of a random kind: refused ones too, and those that have replies of their own. */
static void send_any(uint64_t *seed)
{
	static uint8_t bytes[WIRE_FAR_MOST];
	static const uint8_t ops[] = { WIRE_FAR_READ, WIRE_FAR_WRITE, WIRE_FAR_READ, WIRE_FAR_WRITE,
				       WIRE_FAR_LIST, WIRE_PING, WIRE_FAR_ADD, WIRE_FAR_CAS };
	uint32_t range = draw_below(seed, 8), last = (model.first + model.count) % OUTSTANDING;
	struct wire_frame f = { .op = ops[draw_below(seed, 8)] };
	const struct wire_far_swap swap = { model.at + EBB_FAR_SECTION - 8, 0, 0 };
	uint8_t *stored = model.bytes + range * WIRE_FAR_MOST / 2;

	if (wire_far_moves(&f)) {
		f.length = 1 + draw_below(seed, draw_below(seed, 2) ? 100 : WIRE_FAR_MOST / 2);
		f.offset = model.at + range * WIRE_FAR_MOST / 2;
		f.slab = draw_below(seed, 8) == 0;
	}
	if (f.op == WIRE_FAR_WRITE && !f.slab) {
		f.length = WIRE_FAR_MOST / 2;
		memset(stored, (int)draw32(seed), f.length);
	}
	memcpy(bytes, stored, WIRE_FAR_MOST / 2);
	if (f.op == WIRE_FAR_ADD || f.op == WIRE_FAR_CAS) {
		f.length = f.op == WIRE_FAR_ADD ? 8 : 42 * WIRE_FAR_SWAP_SIZE;
		f.offset = f.op == WIRE_FAR_ADD ? (uint32_t)swap.at : 0;
		memset(bytes, 0, 8);
		for (uint32_t i = 0; i < 42 && f.op == WIRE_FAR_CAS; i++)
			wire_put_far_swap(bytes, i, &swap);
	}
	model.wanted[last] = *stored;
	push(&a, f, bytes);
	f.tag = a.tag;
	model.sent[last] = f;
	model.count++;
}

/* Frames of all lengths, pipelined and read late: each has its reply, in order. */
static void any_order(void **state)
{
	uint64_t seed = 77;

	two_members(0, WIRE_KEEP);
	model = (struct model){ .at = take_section(&a) };
	for (int i = 0; i < 4000; i++) {
		if (model.count == OUTSTANDING || (model.count && draw_below(&seed, 2)))
			take_oldest();
		else
			send_any(&seed);
	}
	while (model.count)
		take_oldest();
	assert_int_equal(unused_buffers(), 1);
	part();
}

static void bye(void **state)
{
	two_members(0, WIRE_KEEP);
	take_section(&a);
	assert_int_equal(ask(&a, (struct wire_frame){ .op = WIRE_BYE }, NULL), WIRE_OK);
	disconnect(&a);
	assert_int_equal(owner_of_section(), EBB_FAR_NONE);
	disconnect(&b);
}

/* --- mapped memory ---------------------------------------------------------------- */

static void mapped_arenas(void **state)
{
	uint64_t word;
	uint8_t *memory;

	two_members(0, 0);
	take_section(&a);
	disconnect(&b);
	join(&b, world.local, 2, 0);
	assert_int_equal(arena(&b, 0), WIRE_OK);
	assert_true(b.passed >= 0);
	memory = mmap(NULL, FAR_ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, b.passed, 0);
	assert_true(memory != MAP_FAILED);
	assert_int_equal(ftruncate(b.passed, 0), -1);
	/* One domain: both see the other's atomics. */
	assert_int_equal(far_swap(memory, 2 * EBB_FAR_SECTION, 0, 5), 0);
	assert_int_equal(cas(&a, 2 * EBB_FAR_SECTION, 5, 6), WIRE_OK);
	assert_int_equal(get64(a.payload), 5);
	assert_int_equal(far_load(memory, 2 * EBB_FAR_SECTION), 6);
	/* This process lives, so the member cannot be fenced. */
	word = whole_section(&b);
	assert_int_equal(far_swap(memory, ebb_far_section_at(3), new_section(&b), word),
			 new_section(&b));
	disconnect(&b);
	assert_int_equal(far_find(world.l->far, "", "p")->in[EBB_FAR_DEAD], 1);
	assert_int_equal(far_load(memory, ebb_far_section_at(3)), word);
	munmap(memory, FAR_ARENA);
	close(b.passed);
	disconnect(&a);
}

/* A process that maps an arena may return; when it says that it has unmapped all, it is fenced. */
static void mapped_and_back(void **state)
{
	struct far_pool *fp;

	two_members(0, 0);
	fp = far_find(world.l->far, "", "p");
	disconnect(&b);
	join(&b, world.local, 2, WIRE_KEEP);
	assert_int_equal(arena(&b, 0), WIRE_OK);
	close(b.passed);
	disconnect(&b);
	assert_int_equal(fp->in[EBB_FAR_AWAY], 1);
	connect_to(&b, world.local);
	assert_int_equal(greet(&b, 2, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(fp->in[EBB_FAR_LIVE], 2);
	b.opened = (struct wire_far_opened){ .identity = fp->identity, .member = 2 };
	take_section(&b);
	assert_int_equal(ask(&b, (struct wire_frame){ .op = WIRE_BYE }, NULL), WIRE_OK);
	/* It does not map again. */
	assert_int_equal(arena(&b, 0), WIRE_NO_MEMBER);
	disconnect(&b);
	assert_int_equal(owner_of_section(), EBB_FAR_NONE);
	assert_int_equal(fp->in[EBB_FAR_DEAD], 0);
	disconnect(&a);
}

/* A device and a member of one number are not each other's successor. */
static void one_number_twice(void **state)
{
	const struct wire_hello h = { .version = WIRE_VERSION, .borrower = 1, .name = "swap" };
	uint8_t payload[WIRE_HELLO_SIZE];
	uint32_t at;

	two_members(0, WIRE_KEEP);
	at = take_section(&a);
	disconnect(&b);
	connect_to(&b, world.tcp);
	wire_build_hello(payload, &h);
	assert_int_equal(ask(&b, (struct wire_frame){ .op = WIRE_HELLO, .length = sizeof(payload) },
			     payload), WIRE_OK);
	assert_int_equal(read_at(&a, at, 8), WIRE_OK);
	part();
}

static void told_by_the_status(void **state)
{
	static struct donor_status s;

	two_members(WIRE_FAR_SHARED, WIRE_KEEP);
	disconnect(&b);
	loop_status(world.l, &s);
	assert_int_equal(s.far, FAR_ARENAS * FAR_ARENA);
	assert_int_equal(s.far_used, FAR_ARENA);
	assert_int_equal(s.far_pool_count, 1);
	assert_string_equal(s.far_pools[0].pool.name, "p");
	assert_int_equal(s.far_pools[0].pool.live, 1);
	assert_int_equal(s.far_pools[0].pool.away, 1);
	/* Members are no borrowers of slabs. */
	assert_int_equal(s.borrower_count, 0);
	disconnect(&a);
}

/* A donor that ends does not wait for arenas, which nothing releases. */
/* --- jobs ------------------------------------------------------------------------- */

enum { JOB_BASE = 1 << 30 };

/* Describes a heap, and places its region 0: one object, which refers to one of region 1. */
static void place_object(struct peer *p, uint32_t at)
{
	const struct wire_job_layout pair = { .type = 1, .size = 16, .bitmap = 3 };
	uint8_t payload[WIRE_JOB_PLACE_SIZE + 8 * 32] = { 0 }, object[32] = { 0 };
	struct wire_job_place place = { .version = 1, .slot_bytes = 32, .at = at,
					.class = EBB_FAR_WHOLE_CLASS, .words = 32,
					.generation = far_first_generation(p->opened.identity) };

	put64(object, 1);
	put64(object + 8, JOB_BASE + (1 << 16) + 8);
	assert_int_equal(write_at(p, at, object, sizeof(object)), WIRE_OK);
	wire_build_job_heap(payload, &(struct wire_job_heap){ JOB_BASE, UINT64_MAX, 4, 1 });
	assert_int_equal(ask(p, (struct wire_frame){
		.op = WIRE_JOB_HEAP,
		.length = WIRE_JOB_HEAP_SIZE +
			  wire_put_job_layout(payload + WIRE_JOB_HEAP_SIZE, &pair, NULL) },
		payload), WIRE_OK);
	memset(payload, 0, sizeof(payload));
	wire_put_job_place(payload, &place);
	put64(payload + WIRE_JOB_PLACE_SIZE, 1);
	assert_int_equal(ask(p, (struct wire_frame){ .op = WIRE_JOB_PLACE,
						     .length = sizeof(payload) }, payload),
			 WIRE_OK);
}

static void push_trace(struct peer *p, uint32_t batch)
{
	uint8_t payload[WIRE_JOB_TRACE_SIZE + WIRE_JOB_SET_SIZE + 8];

	wire_build_job_trace(payload, &(struct wire_job_trace){ 1, batch, 0 });
	wire_put_job_set(payload + WIRE_JOB_TRACE_SIZE, &(struct wire_job_set){ .words = 1 });
	put64(payload + WIRE_JOB_TRACE_SIZE + WIRE_JOB_SET_SIZE, 1);
	push(p, (struct wire_frame){ .op = WIRE_JOB_TRACE, .length = sizeof(payload) }, payload);
}

/* Returns the status; p->payload is the reply. */
static uint16_t trace_object(struct peer *p, uint32_t batch)
{
	push_trace(p, batch);
	return take(p, WIRE_JOB_TRACE).status;
}

static void begin_cycle(struct peer *p)
{
	uint8_t payload[WIRE_JOB_BEGIN_SIZE];

	wire_build_job_begin(payload, &(struct wire_job_begin){ 1 });
	assert_int_equal(ask(p, (struct wire_frame){ .op = WIRE_JOB_BEGIN,
						     .length = sizeof(payload) }, payload),
			 WIRE_OK);
}

/* A member that lost its connection goes on with its cycle, and repeats what had no reply. */
static void jobs_after_a_cut(void **state)
{
	const struct jobs *jobs = world.l->jobs;
	uint8_t first[256];
	uint32_t size = WIRE_JOB_TRACED_SIZE + WIRE_JOB_SET_SIZE + 8;

	two_members(0, WIRE_KEEP | WIRE_JOBS);
	assert_int_equal(trace_object(&a, 1), WIRE_NO_HEAP);
	place_object(&a, take_section(&a));
	begin_cycle(&a);
	assert_int_equal(trace_object(&a, 1), WIRE_OK);
	memcpy(first, a.payload, size);
	/* The object of region 1 is elsewhere. */
	assert_int_equal(get32(first + WIRE_JOB_TRACED_SIZE), 1);
	disconnect(&a);
	far_world_turn();
	assert_int_equal(jobs->heaps, 1);
	connect_to(&a, world.tcp);
	assert_int_equal(greet(&a, 1, WIRE_KEEP | WIRE_RESUME | WIRE_JOBS), WIRE_OK);
	assert_int_equal(trace_object(&a, 1), WIRE_OK);
	assert_memory_equal(a.payload, first, size);
	assert_int_equal(trace_object(&a, 2), WIRE_OK);
	assert_int_equal(trace_object(&a, 4), WIRE_OLD_CYCLE);
	/* Another member has none, and cannot use it. */
	assert_int_equal(trace_object(&b, 1), WIRE_NO_HEAP);
	disconnect(&a);
	far_world_turn();
	connections_tick(&world.l->sessions, now_ns() + 11 * SECOND);
	far_world_turn();
	far_world_turn();
	assert_int_equal(jobs->heaps, 0);
	assert_int_equal(jobs->memory.used, 0);
	disconnect(&b);
}

/* Jobs are for those that have asked for them in their handshake. */
static void jobs_need_the_flag(void **state)
{
	uint8_t payload[WIRE_JOB_BEGIN_SIZE];
	char byte;

	two_members(0, 0);
	wire_build_job_begin(payload, &(struct wire_job_begin){ 1 });
	push(&a, (struct wire_frame){ .op = WIRE_JOB_BEGIN, .length = sizeof(payload) }, payload);
	far_world_turn();
	assert_int_equal(recv(a.fd, &byte, 1, MSG_DONTWAIT), 0);
	part();
}

/* However many are sent, a turn of the loop serves one. */
static void one_job_in_a_turn(void **state)
{
	enum { JOBS = 20 };
	uint8_t bytes[JOBS * (WIRE_HEADER + WIRE_JOB_BEGIN_SIZE)];
	const struct job_counts *n = &world.l->jobs->counts;
	uint64_t before;

	two_members(0, WIRE_JOBS);
	place_object(&a, take_section(&a));
	for (uint32_t i = 0; i < JOBS; i++) {
		const struct wire_frame f = { .op = WIRE_JOB_BEGIN, .tag = 1000 + i,
					      .length = WIRE_JOB_BEGIN_SIZE };
		uint8_t *to = bytes + i * (WIRE_HEADER + WIRE_JOB_BEGIN_SIZE);

		wire_build(to, &f);
		wire_build_job_begin(to + WIRE_HEADER, &(struct wire_job_begin){ i + 1 });
	}
	before = n->requests[WIRE_JOB_BEGIN - WIRE_JOB_HEAP];
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	for (uint32_t served = 0; served < JOBS;) {
		uint32_t now;

		assert_int_equal(loop_turn(world.l, 0), 0);
		now = (uint32_t)(n->requests[WIRE_JOB_BEGIN - WIRE_JOB_HEAP] - before);
		assert_true(now <= served + 1);
		served = now;
	}
	part();
}

static struct job_heap *heap_of(const struct peer *p)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		const struct connection *c = &world.l->sessions.connections[i];

		if (c->member && c->member->number == p->opened.member)
			return c->job_heap;
	}
	return NULL;
}

/* The heap owes much, and the second after its last request does not pass. */
static void owe(struct job_heap *h)
{
	h->next_at = h->served_at = now_ns() + UINT64_C(3600000000000);
}

static uint64_t jobs_served(enum wire_job_op op)
{
	for (int i = 0; i < 20; i++)
		assert_int_equal(loop_turn(world.l, 0), 0);
	return world.l->jobs->counts.requests[op - WIRE_JOB_HEAP];
}

/* A member that does not heed its share of the processor waits; others do not. */
static void jobs_beyond_the_share(void **state)
{
	uint8_t begin[WIRE_JOB_BEGIN_SIZE], heap[WIRE_JOB_HEAP_SIZE];
	struct wire_job_traced traced;
	struct job_heap *h;
	uint64_t before;

	two_members(0, WIRE_JOBS);
	place_object(&a, take_section(&a));
	wire_build_job_heap(heap, &(struct wire_job_heap){ JOB_BASE, UINT64_MAX, 4, 0 });
	assert_int_equal(ask(&b, (struct wire_frame){ .op = WIRE_JOB_HEAP,
						      .length = sizeof(heap) }, heap), WIRE_OK);
	h = heap_of(&a);
	assert_non_null(h);
	before = jobs_served(WIRE_JOB_BEGIN);
	owe(h);
	wire_build_job_begin(begin, &(struct wire_job_begin){ 1 });
	push(&a, (struct wire_frame){ .op = WIRE_JOB_BEGIN, .length = sizeof(begin) }, begin);
	assert_int_equal(jobs_served(WIRE_JOB_BEGIN), before);
	/* The loop sleeps. */
	assert_in_range(connections_throttled(&world.l->sessions), 1, UINT64_MAX - 1);
	begin_cycle(&b);
	assert_int_equal(jobs_served(WIRE_JOB_BEGIN), before + 1);
	/* It waits for a second at most. */
	h->served_at = now_ns() - JOB_WINDOW;
	assert_int_equal(jobs_served(WIRE_JOB_BEGIN), before + 2);
	assert_int_equal(take(&a, WIRE_JOB_BEGIN).status, WIRE_OK);

	/* A request to trace is put off by its reply, and waits only if it comes too early. */
	owe(h);
	assert_int_equal(trace_object(&a, 1), WIRE_OK);
	assert_int_equal(wire_parse_job_traced(a.payload, WIRE_JOB_TRACED_SIZE, &traced), 0);
	assert_true(traced.pause > 0);
	owe(h);
	h->told_at = h->next_at;
	before = jobs_served(WIRE_JOB_TRACE);
	push_trace(&a, 2);
	assert_int_equal(jobs_served(WIRE_JOB_TRACE), before);
	h->told_at = now_ns();
	assert_int_equal(jobs_served(WIRE_JOB_TRACE), before + 1);
	part();
}

static void ends_with_arenas(void **state)
{
	int turns = 0;

	two_members(0, 0);
	loop_drain(world.l, LOOP_END);
	while (!loop_turn(world.l, 0))
		assert_true(turns++ < 10);
	close(a.fd);
	close(b.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(no_far_memory, without_far_memory, end_far_donor),
		cmocka_unit_test_setup_teardown(one_kind_of_frames, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(pools_by_frames, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(one_pool_in_a_turn, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(bytes_of_a_turn, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(accesses, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(pipelined, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(half_a_write, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(repeated, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(ends_in_each_request, with_far_donor,
						end_far_donor),
		cmocka_unit_test_setup_teardown(words_for_members, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(words_for_one_that_does_not_read, with_far_donor,
						end_far_donor),
		cmocka_unit_test_setup_teardown(a_pool_made_again, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(ends_without_keep, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(grace_period, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(buffers_in_use, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(any_order, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(bye, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(mapped_arenas, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(mapped_and_back, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(one_number_twice, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(told_by_the_status, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(jobs_beyond_the_share, with_far_donor,
						end_far_donor),
		cmocka_unit_test_setup_teardown(jobs_after_a_cut, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(jobs_need_the_flag, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(one_job_in_a_turn, with_far_donor, end_far_donor),
		cmocka_unit_test_setup_teardown(ends_with_arenas, with_far_donor, end_far_donor),
	};

	return cmocka_run_group_tests_name("far sessions", tests, NULL, NULL);
}
