// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Clients that send any frame of far memory in any order, cut frames short, do not read, repeat
 * tags, resume and take each other's numbers: the donor survives, and in the end nothing is left.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "far_world.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/base/draw.h"
#include "lib/rules/far_words.h"
#include "lib/wire/address.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { CLIENTS = 6, STEPS = 30000 };

static uint64_t seed;
static int clients[CLIENTS]; /* sockets; -1 = none */
static uint8_t bytes[WIRE_HEADER + WIRE_FAR_MOST];

static uint32_t any(uint32_t below)
{
	return draw_below(&seed, below);
}

static bool rarely(void)
{
	return !any(50);
}

static void turn(void)
{
	assert_int_equal(loop_turn(world.l, 0), 0);
}

static void connect_client(int *fd)
{
	struct error e = { 0 };
	struct address at;

	assert_int_equal(address_parse(any(3) ? world.tcp : world.local, "donor", &at, &e), 0);
	*fd = address_connect(&at);
	assert_true(*fd >= 0);
	assert_int_equal(poll(&(struct pollfd){ *fd, POLLOUT, 0 }, 1, 60000), 1);
}

/* Receives some of what waits.  Returns false at the end of the connection. */
static bool drain(int fd)
{
	static uint8_t discarded[1 << 16];

	for (uint32_t i = any(8); i; i--) {
		ssize_t n = recv(fd, discarded, sizeof(discarded), MSG_DONTWAIT);

		if (n < 0)
			return errno == EAGAIN;
		if (!n)
			return false;
	}
	return true;
}

/* --- frames ----------------------------------------------------------------------- */

static uint32_t any_place(void)
{
	switch (any(4)) {
	case 0:
		return (uint32_t)ebb_far_section_at(any(FAR_SECTIONS));
	case 1:
		return (uint32_t)ebb_far_slot_at(FAR_SECTIONS, any(FAR_SECTIONS),
						 any(EBB_FAR_SLOTS));
	case 2:
		return any((uint32_t)ebb_far_table(FAR_SECTIONS));
	default:
		return any(FAR_ARENA + 8);
	}
}

static uint64_t any_word(void)
{
	static const uint32_t owners[] = { EBB_FAR_NONE, 1, 2, 3, EBB_FAR_DONOR, EBB_FAR_CLOSED };
	uint32_t owner = owners[any(6)], class = any(11);

	return any(2) ? ebb_far_slot(owner, class, any(3)) :
			ebb_far_section(any(6), class, owner, any(3));
}

static void fill_hello(uint8_t *to)
{
	const struct wire_hello h = {
		.version = WIRE_VERSION, .borrower = 1 + any(CLIENTS), .name = "client",
		.flags = WIRE_KEEP * any(2) | WIRE_RESUME * any(2) | WIRE_FAR * !rarely(),
	};

	wire_build_hello(to, &h);
}

static void fill_pool(uint8_t *to)
{
	struct wire_far_pool p = { .verb = 1 + any(3), .name = { 'p', (char)('0' + any(2)) } };

	p.flags = p.verb == WIRE_FAR_CREATE && any(2) ? WIRE_FAR_SHARED : 0;
	if (p.verb == WIRE_FAR_DESTROY && any(16))
		p.verb = WIRE_FAR_OPEN;
	wire_build_far_pool(to, &p);
}

/* Returns the number of a member that is connected, or any other. */
static uint32_t any_member(void)
{
	const struct connection *c;

	for (int i = 0; i < 100; i++) {
		c = &world.l->sessions.connections[any(2 * CLIENTS)];
		if (c->fd >= 0 && c->member)
			return c->member->number;
	}
	return 1 + any(EBB_FAR_MEMBERS);
}

/* One that a member may make, of a slot or a section that no extent has used yet. */
static struct wire_far_swap allocation(void)
{
	const struct far_pool *pool = &world.l->far->pools[any(2)];
	uint64_t generation = far_first_generation(pool->identity);
	uint32_t owner = any_member();

	if (any(2))
		return (struct wire_far_swap){
			ebb_far_slot_at(FAR_SECTIONS, 0, any(EBB_FAR_SLOTS)),
			ebb_far_slot(EBB_FAR_NONE, 0, generation),
			ebb_far_slot(owner, 0, generation) };
	return (struct wire_far_swap){
		ebb_far_section_at(1 + any(FAR_SECTIONS - 1)),
		ebb_far_section(EBB_FAR_FREE, 0, 0, generation),
		ebb_far_section(any(2) ? EBB_FAR_WHOLE : EBB_FAR_OPENING, 9 * any(2), owner,
				generation) };
}

static void fill_swaps(uint8_t *to, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct wire_far_swap s = { any_place(), any_word(), any_word() };

		if (any(8))
			s.at &= ~7ull;
		if (any(2))
			s = allocation();
		wire_put_far_swap(to, i, &s);
	}
}

static uint32_t any_length(uint8_t op)
{
	switch (op) {
	case WIRE_HELLO:
		return WIRE_HELLO_SIZE;
	case WIRE_FAR_POOL:
		return WIRE_FAR_POOL_SIZE;
	case WIRE_FAR_READ:
	case WIRE_FAR_WRITE:
		return 1 + any(any(4) ? 200 : WIRE_FAR_MOST);
	case WIRE_FAR_CAS:
		return WIRE_FAR_SWAP_SIZE * (1 + any(any(4) ? 2 : WIRE_FAR_SWAPS));
	case WIRE_FAR_ADD:
		return 8;
	case WIRE_FAR_NOTIFY:
	case WIRE_FAR_DEAD:
		return WIRE_FAR_MEMBER_SIZE;
	default:
		return 0;
	}
}

/* Builds a frame in bytes[]; returns its size. */
static uint32_t build_any(void)
{
	static const uint8_t ops[] = {
		WIRE_PING, WIRE_BYE, WIRE_HELLO, WIRE_FAR_POOL, WIRE_FAR_POOL, WIRE_FAR_LIST,
		WIRE_FAR_ARENA, WIRE_FAR_ARENA, WIRE_FAR_READ, WIRE_FAR_READ, WIRE_FAR_WRITE,
		WIRE_FAR_WRITE, WIRE_FAR_CAS, WIRE_FAR_CAS, WIRE_FAR_ADD, WIRE_FAR_NOTIFY,
		WIRE_FAR_NOTIFY,
	};
	struct wire_frame f = { .op = rarely() ? WIRE_FAR_DEAD : ops[any(sizeof(ops))],
				.tag = any(16), .slab = any(FAR_ARENAS + 1) };
	uint8_t *payload = bytes + WIRE_HEADER;

	f.length = any_length(f.op);
	f.generation = wire_far_once(&f) && !any(4) ? WIRE_FAR_REPEATED : 0;
	if (wire_far_moves(&f) || f.op == WIRE_FAR_ADD)
		f.offset = any_place();
	wire_build(bytes, &f);
	if (f.op == WIRE_HELLO)
		fill_hello(payload);
	else if (f.op == WIRE_FAR_POOL)
		fill_pool(payload);
	else if (f.op == WIRE_FAR_CAS)
		fill_swaps(payload, f.length / WIRE_FAR_SWAP_SIZE);
	else if (f.op == WIRE_FAR_NOTIFY || f.op == WIRE_FAR_DEAD)
		wire_build_far_word(payload, &(struct wire_far_word){
						     any(2) ? any_member() : any(8), 0 });
	else if (f.op == WIRE_FAR_ADD)
		put64(payload, any_word());
	/* Other versions, reserved fields, lengths without end. */
	if (!any(1000))
		bytes[any(WIRE_HEADER + 16)] ^= (uint8_t)(1u << any(8));
	return WIRE_HEADER + wire_payload(&f);
}

static uint32_t build_greeting(void)
{
	struct wire_frame f = { .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE };

	wire_build(bytes, &f);
	fill_hello(bytes + WIRE_HEADER);
	return WIRE_HEADER + WIRE_HELLO_SIZE;
}

/* Returns false if the client must disconnect: a frame is incomplete. */
static bool send_frame(int fd, uint32_t n)
{
	uint32_t wanted = !any(300) ? any(n) : n;
	ssize_t sent = send(fd, bytes, wanted, MSG_NOSIGNAL | MSG_DONTWAIT);

	return (sent < 0 && errno == EAGAIN) || sent == n;
}

/* --- steps ------------------------------------------------------------------------ */

static void disconnect(int *fd)
{
	const struct linger none = { .l_onoff = 1 };

	if (any(2))
		setsockopt(*fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(*fd);
	*fd = -1;
}

static void step(void)
{
	int *fd = &clients[any(CLIENTS)];
	bool goes_on = true;

	if (*fd < 0) {
		connect_client(fd);
		goes_on = send_frame(*fd, build_greeting());
	} else {
		for (uint32_t i = any(6); i && goes_on; i--)
			goes_on = send_frame(*fd, build_any());
		goes_on = goes_on && drain(*fd);
	}
	/* Its part of a frame arrives. */
	if (!goes_on && any(2))
		turn();
	if (!goes_on || !any(200))
		disconnect(fd);
	if (any(4))
		turn();
	if (!any(500))
		connections_tick(&world.l->sessions, now_ns() + 11 * SECOND);
}

static uint32_t members(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < FAR_POOLS; i++)
		for (uint32_t k = EBB_FAR_LIVE; k <= EBB_FAR_DEAD; k++)
			n += world.l->far->pools[i].in[k];
	return n;
}

static void any_frames(void **state)
{
	const struct far *far = world.l->far;
	uint32_t mapped = 0;
	uint64_t served = 0;

	for (int i = 0; i < CLIENTS; i++)
		clients[i] = -1;
	seed = 1;
	for (int i = 0; i < STEPS; i++)
		step();
	for (int i = 0; i < CLIENTS; i++)
		if (clients[i] >= 0)
			disconnect(&clients[i]);
	for (int i = 0; i < 100; i++) {
		turn();
		connections_tick(&world.l->sessions, now_ns() + 11 * SECOND);
	}
	/* This process has mapped memory as some members did, and lives. */
	for (uint32_t i = 0; i < FAR_POOLS; i++)
		for (uint32_t k = 0; k < EBB_FAR_MEMBERS; k++)
			mapped += far->pools[i].members[k].state == EBB_FAR_DEAD &&
				    far->pools[i].members[k].maps;
	assert_int_equal(members(), mapped);
	for (int i = 0; i < CONNECTIONS; i++) {
		assert_true(connection_is_free(&world.l->sessions.connections[i]));
		assert_null(world.l->sessions.connections[i].far_buffer);
		assert_null(world.l->sessions.connections[i].far_results);
	}
	assert_int_equal(far->fenced, 0);
	assert_int_equal(far->notices, 0);
	assert_int_equal(world.l->sessions.held, 0);
	for (uint32_t i = 0; i < WIRE_FAR_OPS - WIRE_FAR_POOL; i++)
		served += far->counts.requests[i];
	print_message("%llu requests, %llu members, %llu words freed\n",
		      (unsigned long long)served, (unsigned long long)far->counts.recovered,
		      (unsigned long long)far->counts.freed);
	assert_in_range(served, STEPS / 10, UINT64_MAX);
	assert_in_range(far->counts.recovered, 10, UINT64_MAX);
	assert_in_range(far->counts.freed, 10, UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(any_frames, with_far_donor, end_far_donor),
	};

	return cmocka_run_group_tests_name("far hostile clients", tests, NULL, NULL);
}
