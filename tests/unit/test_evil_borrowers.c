// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A donor, and borrowers that send arbitrary frames and answers, leave frames unfinished, do not
 * read, disconnect and reconnect as another, while it drains, evicts and revokes.  By random
 * numbers, over sockets: afterwards no borrower has a slab, no request pins one, and all
 * memory is zeroes again.
 */
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
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "donord/donord.h"
#include "donord/loop.h"
#include "lib/base/draw.h"
#include "lib/base/files.h"
#include "lib/base/log.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 5, PEERS = 4 };
#define SECONDS 2
#define LEAST 32

static struct pool pool;
static struct loop *loop;
static char run_dir[64], meminfo[80];
static struct peer {
	int fd;
	struct connection *c;
} peers[PEERS];
static uint64_t seed, number;

static uint32_t draw(uint32_t n)
{
	return draw_below(&seed, n);
}

static void wrong(const char *what)
{
	fail_msg("%s (number %llu)", what, (unsigned long long)number);
}

static void read_all(struct peer *p)
{
	static uint8_t sink[SLAB];

	while (recv(p->fd, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
}

/* A frame that @p may say, or one that is answered. */
static struct wire_frame some_frame(const struct peer *p)
{
	struct wire_frame f = { .op = (uint8_t)(1 + draw(WIRE_OPS - 1)), .tag = draw(3),
				.slab = draw(SLABS + 1) };

	if (!draw(3))
		f.op = draw(2) ? WIRE_MAP : WIRE_READ;
	/* Seldom, as it ends the connection. */
	if (f.op == WIRE_REVOKED && draw(4))
		f.op = WIRE_WRITE;
	f.generation = f.slab < SLABS ? pool.slabs[f.slab].generation : 0;
	f.generation += draw(8) ? 0 : 1;
	switch (f.op) {
	case WIRE_READ:
	case WIRE_WRITE:
		f.length = WIRE_PAGE * (1 + draw(draw(8) ? 3 : 256));
		f.offset = WIRE_PAGE * draw(256);
		break;
	case WIRE_HELLO:
		f.length = WIRE_HELLO_SIZE;
		break;
	case WIRE_MAP:
		f.length = WIRE_MAP_SIZE;
		break;
	case WIRE_REMAP:
		f.length = draw(2) ? WIRE_MAP_SIZE : 0;
		break;
	case WIRE_JOIN:
		f.length = WIRE_JOIN_SIZE;
		break;
	case WIRE_RESERVE:
		f.length = WIRE_RESERVE_SIZE;
		break;
	case WIRE_REVOKED:
		/* Not for donors; most borrowers are to stay connected. */
		f.op = draw(8) ? WIRE_PING : f.op;
		break;
	case WIRE_EVICT:
		f.direction = WIRE_REPLY;
		f.tag = (uint64_t)f.generation << 32 | f.slab;
		f.status = draw(2) ? 0 : (uint16_t)draw(WIRE_STATUSES);
		break;
	case WIRE_ACTIVITY:
		f.direction = WIRE_REPLY;
		f.tag = loop->eviction.round;
		f.length = WIRE_LOAN_SIZE *
			   (p->c->borrower.asked && draw(4) ? p->c->borrower.asked : 1 + draw(5));
		break;
	}
	return f;
}

/* @f, or what is left of it. */
static void say(const struct peer *p, struct wire_frame f)
{
	static uint8_t bytes[WIRE_HEADER + WIRE_MAX_PAYLOAD];
	size_t length = WIRE_HEADER + wire_payload(&f);
	struct wire_hello h = { .version = draw(12) ? WIRE_VERSION : 9, .borrower = draw(3),
				.slab_size = draw(9) ? SLAB : 2 * SLAB, .name = "unit",
				.flags = draw(4) };

	wire_build(bytes, &f);
	memset(bytes + WIRE_HEADER, f.op == WIRE_WRITE, length - WIRE_HEADER);
	if (f.op == WIRE_HELLO)
		wire_build_hello(bytes + WIRE_HEADER, &h);
	if (f.op == WIRE_RESERVE)
		wire_build_reserve(bytes + WIRE_HEADER, draw(8) ? draw(SLABS + 2) : UINT32_MAX);
	if (f.length == WIRE_MAP_SIZE && (f.op == WIRE_MAP || f.op == WIRE_REMAP))
		bytes[WIRE_HEADER + 4] = (uint8_t)draw(2);
	if (!draw(400))
		bytes[draw(WIRE_HEADER)] ^= (uint8_t)(1u << draw(8));
	if (!draw(60))
		length = draw((uint32_t)length);
	send(p->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void reconnect(struct peer *p)
{
	struct sockaddr_storage nobody = { .ss_family = AF_UNSPEC };
	int pair[2];

	if (p->fd >= 0)
		close(p->fd);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	p->fd = pair[0];
	p->c = connection_adopt(&loop->sessions, pair[1], &nobody);
	assert_non_null(p->c);
	/* Most borrowers start with a handshake. */
	if (draw(8))
		say(p, (struct wire_frame){ .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE });
}

static void take_away(uint32_t slab)
{
	if (pool.slabs[slab].state == LEND_LENT)
		pool_revoke(&pool, slab, loop->now);
	loop->eviction.to_ask = true;
}

static void check(void)
{
	uint32_t in[LEND_STATES] = { 0 }, held = 0, lent = 0;

	for (int i = 0; i < SLABS; i++)
		in[pool.slabs[i].state]++;
	for (const struct borrower *b = pool.borrowers; b; b = b->next) {
		uint64_t most = b->quota ? b->quota / SLAB : SLABS;

		lent += b->lent;
		if (b->reserved > most)
			wrong("more is promised than the donor has, or a quota allows");
	}
	if (lent != in[LEND_LENT])
		wrong("loans miscounted");
	if (memcmp(in, pool.in, sizeof(in)))
		wrong("slabs miscounted");
	for (int i = 0; i < CONNECTIONS; i++)
		held += loop->sessions.connections[i].held;
	if (held != loop->sessions.held)
		wrong("held requests miscounted");
}

static void step(void)
{
	struct peer *p = &peers[draw(PEERS)];

	if (p->c->fd < 0)
		reconnect(p);
	switch (draw(24)) {
	case 0:
		reconnect(p);
		break;
	case 1:
		shutdown(p->fd, draw(2) ? SHUT_RDWR : SHUT_WR);
		break;
	case 2:
		eviction_start(&loop->eviction, &loop->follow.rule, 1 + draw(3), loop->now);
		break;
	case 3:
		loop_drain(loop, LOOP_STAY);
		break;
	case 4:
		loop_undrain(loop);
		break;
	case 5:
		eviction_second(&loop->eviction, loop->now, 0, 0);
		break;
	case 6:
		connections_tick(&loop->sessions, loop->now + (draw(5) ? 0 : 20 * SECOND));
		break;
	case 7:
		if (draw(2))
			take_away(draw(SLABS));
		else
			eviction_emergency(&loop->eviction, 1 + draw(3), loop->now);
		break;
	case 8 ... 9:
		read_all(p);
		break;
	default:
		say(p, some_frame(p));
	}
	/* What was given to the machine comes back. */
	pool_grow(&pool, SLABS);
	if (draw(3))
		return;
	assert_int_equal(loop_turn(loop, 0), 0);
	check();
}

static void end(void)
{
	for (int i = 0; i < PEERS; i++) {
		close(peers[i].fd);
		peers[i].fd = -1;
	}
	loop_undrain(loop);
	for (int i = 0; i < 50; i++)
		assert_int_equal(loop_turn(loop, 0), 0);
	/* Those that are kept for a successor. */
	for (int i = 0; i < CONNECTIONS; i++)
		if (!connection_is_free(&loop->sessions.connections[i]))
			connection_drop(&loop->sessions.connections[i], "the end");
	for (int turns = 0; pool.in[LEND_CLEAN] < SLABS; turns++) {
		pool_grow(&pool, SLABS);
		assert_int_equal(loop_turn(loop, SECOND / 1000), 0);
		if (turns > 60000)
			wrong("free slabs are not reclaimed");
	}
	check();
	for (int i = 0; i < SLABS; i++) {
		const uint64_t *words = (void *)(pool.memory + i * (size_t)SLAB);

		if (pool.slabs[i].pins)
			wrong("a slab is held for ever");
		if (pool.slabs[i].untold)
			wrong("a revocation is told for ever");
		for (size_t w = 0; w < SLAB / sizeof(*words); w++)
			if (words[w])
				wrong("a slab is not zeroed");
	}
	if (loop->sessions.held)
		wrong("a request is held for ever");
	if (pool_promised(&pool) || pool_lendable(&pool) != SLABS)
		wrong("a promise outlives its borrower");
	for (int i = 0; i < CONNECTIONS; i++)
		if (loop->sessions.payers[i].users || loop->sessions.payers[i].waits_since)
			wrong("a payer is miscounted");
}

static void they_do_as_they_like(void **state)
{
	time_t over = time(NULL) + SECONDS;
	uint32_t loans = pool.generation;

	/* So many that the share of those with a loan is near the mean, also on a busy machine. */
	for (number = 1; number <= LEAST || time(NULL) < over ||
			 (number < 1000 && (!loop->eviction.counts.asked ||
					    !loop->eviction.counts.revoked_backed)); number++) {
		seed = number * 0x9e3779b97f4a7c15ull | 1;
		for (int i = 0; i < PEERS; i++)
			reconnect(&peers[i]);
		for (uint32_t n = 20 + draw(200); n; n--)
			step();
		end();
	}
	/* Or all this shows nothing. */
	assert_true(pool.generation - loans > number / 2);
	assert_true(loop->eviction.counts.asked > 0);
	assert_true(loop->eviction.counts.revoked_backed > 0);
}

static int make_donor(uint64_t quota, uint64_t rate)
{
	struct lending_options o = { .headroom = SLAB, .machine = run_dir, .drain = 1000 * SECOND,
				    .sessions = { .keep = SECOND / 1000, .quota = quota,
						  .rate = rate },
				    .eviction.overdue = 1000 * SECOND };
	struct error e = { 0 };

	strcpy(run_dir, "/tmp/ebb-evil-XXXXXX");
	assert_non_null(mkdtemp(run_dir));
	setenv("EBB_RUN_DIR", run_dir, 1);
	snprintf(meminfo, sizeof(meminfo), "%s/meminfo", run_dir);
	assert_int_equal(file_replace(meminfo, "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n"), 0);
	if (loop_new(&loop, &pool, &o, &e) ||
	    pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e) || loop_start(loop, &e))
		fail_msg("%s", e.text);
	/* The tests say when a second is over. */
	timerfd_settime(loop->timer_fd, 0, &(struct itimerspec){ 0 }, NULL);
	loop->follow.rule = headroom_rule_default(64ull << 30, SLAB);
	for (int i = 0; i < PEERS; i++)
		peers[i].fd = -1;
	return 0;
}

static int with_donor(void **state)
{
	return make_donor(0, 0);
}

static int with_quota(void **state)
{
	return make_donor(3 * SLAB, 0);
}

/* So low that much is held. */
static int with_rate(void **state)
{
	return make_donor(0, 1 << 20);
}

static int without_donor(void **state)
{
	loop_free(&loop);
	pool_free(&pool);
	unlink(meminfo);
	return rmdir(run_dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(they_do_as_they_like, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(they_do_as_they_like, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(they_do_as_they_like, with_rate, without_donor),
	};

	log_setup("loop", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("evil borrowers", tests, NULL, NULL);
}
