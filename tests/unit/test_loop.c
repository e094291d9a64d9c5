// SPDX-License-Identifier: GPL-2.0-or-later
/* A donor with borrowers at the other ends of socket pairs, turn by turn. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "donord/control.h"
#include "donord/donord.h"
#include "donord/loop.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/json.h"
#include "lib/base/paths.h"
#include "lib/control/control.h"
#include "lib/wire/tcp.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

enum { SLAB = 1 << 20, SLABS = 40 };

/* Somebody set the clock back, between its being read and its being waited for. */
static bool set_back;

int clock_gettime(clockid_t clock, struct timespec *t)
{
	long r = syscall(SYS_clock_gettime, clock, t);

	if (!r && set_back && clock == CLOCK_REALTIME)
		t->tv_sec = 0;
	return (int)r;
}

struct donor {
	struct pool pool;
	struct loop *l;
	struct donor_control *control;
	char run_dir[64], meminfo[80];
};

struct peer {
	struct connection *c;
	int fd;
	struct wire_loan loans[SLABS];
	uint32_t count;
	uint8_t payload[WIRE_SMALL]; /* of the last frame */
};

/* Slabs that are not locked: that would take root. */
static void make_slabs(struct pool *p)
{
	assert_int_equal(mprotect(p->memory, SLABS * SLAB, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < SLABS; i++)
		p->slabs[i].state = LEND_CLEAN;
	p->in[LEND_ABSENT] = 0;
	p->in[LEND_CLEAN] = SLABS;
}

static void make_machine(struct donor *d)
{
	*d = (struct donor){ .run_dir = "/tmp/ebb-loop-XXXXXX" };
	assert_non_null(mkdtemp(d->run_dir));
	setenv("EBB_RUN_DIR", d->run_dir, 1);
	snprintf(d->meminfo, sizeof(d->meminfo), "%s/meminfo", d->run_dir);
	assert_int_equal(file_replace(d->meminfo, "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n"), 0);
}

static struct donor the_donor;

static int start_donor(void **state, struct lending_options o)
{
	struct donor *d = &the_donor;
	struct error e = { 0 };

	*state = d;
	o.eviction.overdue = o.drain = 1000 * SECOND;
	/* A machine without room: it makes no slabs of its own. */
	o.headroom = SLAB;
	o.machine = d->run_dir;
	if (loop_new(&d->l, &d->pool, &o, &e) ||
	    pool_init(&d->pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e) || loop_start(d->l, &e) ||
	    donor_control_start(&d->control, d->l, NULL, &e))
		fail_msg("%s", e.text);
	make_slabs(&d->pool);
	/* The tests say when to look at the machine, and what it wants. */
	timerfd_settime(d->l->timer_fd, 0, &(struct itimerspec){ 0 }, NULL);
	d->l->follow.rule = headroom_rule_default(64ull << 30, SLAB);
	return 0;
}

static int make_donor(void **state, struct lending_options o)
{
	make_machine(&the_donor);
	return start_donor(state, o);
}

static int with_donor(void **state)
{
	return make_donor(state, (struct lending_options){ 0 });
}

static int with_rate(void **state)
{
	return make_donor(state, (struct lending_options){ .sessions.rate = RATE_LEAST });
}

static int with_quota(void **state)
{
	return make_donor(state, (struct lending_options){ .sessions.quota = 2 * SLAB + SLAB / 2 });
}

static int without_donor(void **state)
{
	struct donor *d = *state;

	donor_control_stop(&d->control);
	loop_free(&d->l);
	pool_free(&d->pool);
	unlink(d->meminfo);
	return rmdir(d->run_dir);
}

static void turn(struct loop *l)
{
	for (int i = 0; i < 4; i++)
		assert_int_equal(loop_turn(l, 0), 0);
}

/* Runs turns until the machine has been sampled, if that is due, and nothing is left to do. */
static void settle(struct donor *d)
{
	turn(d->l);
	while (d->l->follow.due)
		assert_int_equal(loop_turn(d->l, SECOND), 0);
	turn(d->l);
}

static void send_frame(struct donor *d, struct peer *p, struct wire_frame f, const void *payload)
{
	uint8_t bytes[WIRE_HEADER + WIRE_SMALL];

	wire_build(bytes, &f);
	if (payload)
		memcpy(bytes + WIRE_HEADER, payload, f.length);
	assert_int_equal(send(p->fd, bytes, WIRE_HEADER + (payload ? f.length : 0), 0),
			 WIRE_HEADER + (payload ? f.length : 0));
	turn(d->l);
}

/* The next frame that has arrived; false = none. */
static bool take_frame(struct peer *p, struct wire_frame *f)
{
	uint8_t bytes[WIRE_HEADER];
	uint32_t n;

	if (recv(p->fd, bytes, sizeof(bytes), MSG_DONTWAIT) != sizeof(bytes))
		return false;
	assert_int_equal(wire_parse(bytes, sizeof(bytes), WIRE_AT_BORROWER, f), 1);
	n = wire_payload(f);
	assert_true(n <= sizeof(p->payload));
	assert_int_equal(n ? recv(p->fd, p->payload, n, MSG_DONTWAIT) : 0, n);
	return true;
}

static bool hung_up(struct peer *p)
{
	char byte;

	return recv(p->fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static struct wire_frame take(struct peer *p, enum wire_op op)
{
	struct wire_frame f = { 0 };

	assert_true(take_frame(p, &f));
	assert_int_equal(f.op, op);
	return f;
}

static uint32_t loan_flags; /* of map() */

static enum wire_status map(struct donor *d, struct peer *p)
{
	const struct wire_loan_request r = { .class = WIRE_CLASS_SWAP, .flags = loan_flags };
	uint8_t payload[WIRE_MAP_SIZE];
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };

	wire_build_loan_request(payload, &r);
	send_frame(d, p, f, payload);
	f = take(p, WIRE_MAP);
	if (!f.status)
		p->loans[p->count++] = (struct wire_loan){ f.slab, f.generation };
	return f.status;
}

static uint32_t version = WIRE_VERSION; /* of greet_as() */

static enum wire_status greet_as(struct donor *d, struct peer *p, uint64_t number, uint32_t flags)
{
	struct sockaddr_storage nobody = { .ss_family = AF_UNSPEC };
	struct wire_hello h = { .version = version, .borrower = number, .slab_size = SLAB,
				.name = "peer", .flags = flags };
	uint8_t payload[WIRE_HELLO_SIZE];
	int fd[2];

	*p = (struct peer){ 0 };
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	p->fd = fd[0];
	p->c = connection_adopt(&d->l->sessions, fd[1], &nobody);
	assert_non_null(p->c);
	wire_build_hello(payload, &h);
	send_frame(d, p, (struct wire_frame){ .op = WIRE_HELLO, .length = WIRE_HELLO_SIZE },
		   payload);
	return take(p, WIRE_HELLO).status;
}

static void connect_peer(struct donor *d, struct peer *p, uint64_t number, int slabs)
{
	assert_int_equal(greet_as(d, p, number, 0), WIRE_OK);
	for (int i = 0; i < slabs; i++)
		assert_int_equal(map(d, p), WIRE_OK);
}

/* Answers an ACTIVITY: for the loan at index i of the peer's @rate[i]. */
static void tell_rates(struct donor *d, struct peer *p, struct wire_frame f, const uint64_t *rate)
{
	uint8_t payload[WIRE_SMALL];

	for (uint32_t i = 0; i < f.length / WIRE_LOAN_SIZE; i++) {
		struct wire_loan loan = wire_get_loan(p->payload, i);
		uint32_t at = 0;

		while (at < p->count && p->loans[at].slab != loan.slab)
			at++;
		assert_true(at < p->count && p->loans[at].generation == loan.generation);
		wire_put_rate(payload, i, rate[at]);
	}
	f.direction = WIRE_REPLY;
	send_frame(d, p, f, payload);
}

static void answer(struct donor *d, struct peer *p, struct wire_frame f, enum wire_status status)
{
	f.direction = WIRE_REPLY;
	f.status = status;
	send_frame(d, p, f, NULL);
}

/* The status of what @op says of @loan. */
static enum wire_status say(struct donor *d, struct peer *p, enum wire_op op, struct wire_loan loan)
{
	send_frame(d, p, (struct wire_frame){ .op = op, .slab = loan.slab,
					      .generation = loan.generation }, NULL);
	return take(p, op).status;
}

static void kept_for_a_successor(void **state)
{
	struct donor *d = *state;
	struct peer a, b, c;
	struct wire_frame f;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	for (int i = 0; i < 3; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	connect_peer(d, &b, 2, 1);
	/* It dies with a question unanswered. */
	loop_drain(d->l, LOOP_STAY);
	settle(d);
	assert_int_equal(take(&a, WIRE_EVICT).slab, a.loans[0].slab);
	assert_int_equal(take(&b, WIRE_EVICT).slab, b.loans[0].slab);
	loop_undrain(d->l);
	settle(d);
	close(a.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 4);
	assert_int_equal(say(d, &b, WIRE_REMAP, a.loans[0]), WIRE_NO_SLAB);

	/* Another borrower has nothing to resume. */
	assert_int_equal(greet_as(d, &c, 3, WIRE_KEEP | WIRE_RESUME), WIRE_NO_SESSION);
	close(c.fd);
	assert_int_equal(greet_as(d, &c, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	turn(d->l);
	for (int i = 0; i < 3; i++) {
		f = take(&c, WIRE_EVICT);
		assert_int_equal(f.slab, a.loans[i].slab);
		answer(d, &c, f, WIRE_NO_ROOM);
	}
	assert_int_equal(say(d, &c, WIRE_REMAP, a.loans[1]), WIRE_OK);
	a.loans[2].generation++;
	assert_int_equal(say(d, &c, WIRE_REMAP, a.loans[2]), WIRE_STALE);
	assert_int_equal(say(d, &c, WIRE_RELEASE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(d->pool.in[LEND_LENT], 2);
	assert_int_equal(map(d, &c), WIRE_OK);
	assert_int_equal(say(d, &c, WIRE_RELEASE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(d->pool.in[LEND_LENT], 3);

	/* No borrower reconnects. */
	close(c.fd);
	turn(d->l);
	connections_tick(&d->l->sessions, now_ns() + 29 * SECOND);
	assert_int_equal(d->pool.in[LEND_LENT], 3);
	connections_tick(&d->l->sessions, now_ns() + 31 * SECOND);
	assert_int_equal(d->pool.in[LEND_LENT], 1);

	/* After BYE no borrower may resume the session. */
	assert_int_equal(greet_as(d, &c, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(map(d, &c), WIRE_OK);
	assert_int_equal(say(d, &c, WIRE_BYE, (struct wire_loan){ 0 }), WIRE_OK);
	close(c.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 1);
	close(b.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
}

static void by_activity(void **state)
{
	static const uint64_t low[] = { 5, 1, 3, 2 }, high[] = { 50, 10, 30, 20 };
	struct donor *d = *state;
	struct peer a, b;
	struct wire_frame f;

	connect_peer(d, &a, 1, 4);
	connect_peer(d, &b, 2, 4);
	/* 5 + 3 of 8: all of them. */
	eviction_start(&d->l->eviction, &d->l->follow.rule, 5, now_ns());
	turn(d->l);
	f = take(&a, WIRE_ACTIVITY);
	assert_int_equal(f.length, 4 * WIRE_LOAN_SIZE);
	tell_rates(d, &a, f, low);
	/* Not before the others have told, or had their time. */
	assert_false(take_frame(&a, &f));
	tell_rates(d, &b, take(&b, WIRE_ACTIVITY), high);
	for (int i = 0; i < 4; i++)
		answer(d, &a, take(&a, WIRE_EVICT), WIRE_OK);
	f = take(&b, WIRE_EVICT);
	assert_int_equal(f.slab, b.loans[1].slab);
	assert_int_equal(f.generation, b.loans[1].generation);
	assert_false(take_frame(&b, &f));
	assert_int_equal(eviction_expected(&d->l->eviction), 5);
	assert_int_equal(d->l->eviction.counts.promised, 4);
	/* An asked owner is not sampled again. */
	eviction_start(&d->l->eviction, &d->l->follow.rule, 8, now_ns());
	turn(d->l);
	assert_false(take_frame(&a, &f));
	assert_int_equal(take(&b, WIRE_ACTIVITY).length, 3 * WIRE_LOAN_SIZE);
	close(a.fd);
	close(b.fd);
	turn(d->l);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	assert_int_equal(d->l->eviction.waiting, 0);
}

static void a_late_answer(void **state)
{
	static const uint64_t rates[] = { 9, 9, 9, 9 };
	struct donor *d = *state;
	struct peer a, b;
	struct wire_frame late, f;
	uint64_t now = now_ns();

	connect_peer(d, &a, 1, 4);
	connect_peer(d, &b, 2, 4);
	eviction_start(&d->l->eviction, &d->l->follow.rule, 4, now);
	turn(d->l);
	late = take(&a, WIRE_ACTIVITY);
	f = take(&b, WIRE_ACTIVITY);
	tell_rates(d, &b, f, rates);
	assert_int_equal(d->l->eviction.waiting, 1);
	eviction_turn(&d->l->eviction, now + EVICTION_ACTIVITY_NS - 1);
	assert_int_equal(d->l->eviction.want, 4);
	eviction_turn(&d->l->eviction, now + EVICTION_ACTIVITY_NS);
	assert_int_equal(d->l->eviction.want, 0);
	assert_int_equal(d->l->eviction.counts.silent, 1);
	/* It owes an answer, so it is not asked again: one ACTIVITY at a time. */
	eviction_start(&d->l->eviction, &d->l->follow.rule, 1, now);
	turn(d->l);
	while (take_frame(&a, &f))
		assert_int_equal(f.op, WIRE_EVICT);
	tell_rates(d, &a, late, rates);
	assert_int_equal(a.c->borrower.asked, 0);
	assert_false(hung_up(&a));
	/* The same answer twice is one to nothing. */
	tell_rates(d, &a, late, rates);
	assert_true(hung_up(&a));
	close(a.fd);
	close(b.fd);
}

/* At most WIRE_EVICTS without an answer, however many are wanted. */
static void evicts_are_bounded(void **state)
{
	static const uint64_t rates[SLABS];
	struct donor *d = *state;
	struct wire_frame f[WIRE_EVICTS], more;
	struct peer a;

	connect_peer(d, &a, 1, SLABS);
	eviction_start(&d->l->eviction, &d->l->follow.rule, SLABS, now_ns());
	turn(d->l);
	tell_rates(d, &a, take(&a, WIRE_ACTIVITY), rates);
	for (uint32_t i = 0; i < WIRE_EVICTS; i++)
		f[i] = take(&a, WIRE_EVICT);
	assert_false(take_frame(&a, &more));
	for (uint32_t i = 0; i < WIRE_EVICTS; i++) {
		answer(d, &a, f[i], i % 2 ? WIRE_NO_ROOM : WIRE_OK);
		take(&a, WIRE_EVICT);
		assert_false(take_frame(&a, &more));
	}
	assert_int_equal(d->l->eviction.counts.refused, WIRE_EVICTS / 2);
	assert_int_equal(eviction_expected(&d->l->eviction), SLABS - WIRE_EVICTS / 2);
	close(a.fd);
}

static void what_is_not_there_is_back(void **state)
{
	static const uint64_t rates[SLABS];
	struct donor *d = *state;
	struct wire_frame f[3];
	struct peer a;

	connect_peer(d, &a, 1, 3);
	eviction_start(&d->l->eviction, &d->l->follow.rule, 3, now_ns());
	turn(d->l);
	tell_rates(d, &a, take(&a, WIRE_ACTIVITY), rates);
	for (int i = 0; i < 3; i++)
		f[i] = take(&a, WIRE_EVICT);
	answer(d, &a, f[0], WIRE_NO_SLAB);
	assert_int_equal(d->pool.in[LEND_LENT], 2);
	/* UNMAP and EVICT have crossed. */
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_UNMAP, .slab = f[1].slab,
					       .generation = f[1].generation }, NULL);
	assert_int_equal(take(&a, WIRE_UNMAP).status, WIRE_OK);
	answer(d, &a, f[1], WIRE_NO_SLAB);
	assert_int_equal(d->pool.in[LEND_LENT], 1);
	assert_int_equal(d->l->eviction.counts.returned, 2);
	assert_false(hung_up(&a));
	/* Of another loan than asked for. */
	f[2].generation++;
	answer(d, &a, f[2], WIRE_OK);
	assert_true(hung_up(&a));
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	close(a.fd);
}

/* The loan may end while a page is on its way to it: the slab stays as it is. */
static void a_write_under_way(void **state)
{
	struct donor *d = *state;
	struct wire_frame f = { .op = WIRE_WRITE, .length = WIRE_PAGE };
	uint8_t page[WIRE_PAGE];
	struct peer a;
	uint8_t *at;

	memset(page, 0xab, sizeof(page));
	connect_peer(d, &a, 1, 1);
	f.slab = a.loans[0].slab;
	f.generation = a.loans[0].generation;
	at = d->pool.memory + f.slab * SLAB;
	send_frame(d, &a, f, NULL);
	assert_int_equal(send(a.fd, page, 1000, 0), 1000);
	turn(d->l);
	pool_revoke(&d->pool, f.slab, now_ns());
	turn(d->l);
	assert_int_equal(at[0], 0xab);
	assert_int_equal(d->pool.in[LEND_DIRTY], 1);
	assert_int_equal(send(a.fd, page + 1000, WIRE_PAGE - 1000, 0), WIRE_PAGE - 1000);
	for (int i = 0; i < 10; i++)
		turn(d->l);
	assert_int_equal(take(&a, WIRE_WRITE).status, WIRE_OK);
	assert_int_equal(d->pool.in[LEND_DIRTY], 0);
	for (int i = 0; i < SLAB; i++)
		assert_int_equal(at[i], 0);
	/* The next access is told. */
	f.op = WIRE_READ;
	send_frame(d, &a, f, NULL);
	assert_int_equal(take(&a, WIRE_READ).status, WIRE_STALE);
	close(a.fd);
}

/* However much one asks for and its socket takes, the others have their turn. */
static void a_greedy_one(void **state)
{
	enum { REQUESTS = 16 };
	struct donor *d = *state;
	uint8_t bytes[REQUESTS * WIRE_HEADER], ping[WIRE_HEADER];
	static uint8_t sink[SLAB];
	struct wire_frame f = { .op = WIRE_READ, .length = SLAB };
	struct peer a, b;
	int size = 2 * REQUESTS * SLAB, waiting, turns = 0;
	size_t got = 0;

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &b, 2, 0);
	/* Without the right to it the socket takes less, and all is easier. */
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
	f.slab = a.loans[0].slab;
	f.generation = a.loans[0].generation;
	for (int i = 0; i < REQUESTS; i++)
		wire_build(bytes + i * WIRE_HEADER, &f);
	wire_build(ping, &(struct wire_frame){ .op = WIRE_PING });
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	while (got < REQUESTS * (size_t)(WIRE_HEADER + SLAB)) {
		assert_int_equal(send(b.fd, ping, sizeof(ping), 0), sizeof(ping));
		assert_int_equal(loop_turn(d->l, 0), 0);
		take(&b, WIRE_PING);
		assert_int_equal(ioctl(a.fd, FIONREAD, &waiting), 0);
		/* A turn's worth, twice: to read and to flush are two events. */
		assert_true(waiting <= 3 * SLAB);
		for (ssize_t n; (n = recv(a.fd, sink, sizeof(sink), MSG_DONTWAIT)) > 0;)
			got += (size_t)n;
		assert_true(turns++ < 100000);
	}
	assert_true(turns >= REQUESTS / 3);
	close(a.fd);
	close(b.fd);
}

/* Asked for many slabs that have to be zeroed first, it does something else between any two. */
static void many_slabs_at_once(void **state)
{
	enum { MAPS = SLABS / 2 };
	struct donor *d = *state;
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	uint8_t bytes[MAPS * (WIRE_HEADER + WIRE_MAP_SIZE)] = { 0 };
	struct peer peers[2];
	int came[2] = { 0 };

	for (int i = 0; i < 2; i++)
		connect_peer(d, &peers[i], (uint64_t)i + 1, 0);
	for (int i = 0; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_DIRTY;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_DIRTY] = SLABS;
	for (uint32_t i = 0; i < MAPS; i++)
		wire_build(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE), &f);
	for (int i = 0; i < 2; i++)
		assert_int_equal(send(peers[i].fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	for (int turns = 0; came[0] < MAPS || came[1] < MAPS; turns++) {
		int before = came[0] + came[1];

		assert_int_equal(loop_turn(d->l, 0), 0);
		for (int i = 0; i < 2; i++)
			for (; take_frame(&peers[i], &f); came[i]++)
				assert_int_equal(f.status, WIRE_OK);
		/* One, and what it had zeroed by itself. */
		assert_true(came[0] + came[1] - before <= 2);
		/* Neither of them is the last to get any. */
		assert_true(abs(came[0] - came[1]) <= 2);
		assert_true(turns < 1000);
	}
	for (int i = 0; i < 2; i++)
		close(peers[i].fd);
}

/* What @p is told that it could have: slabs that are free, and of all that there may be. */
static void figures(struct donor *d, struct peer *p, uint32_t *free_slabs, uint32_t *room)
{
	struct wire_donor told;
	struct wire_frame f;

	send_frame(d, p, (struct wire_frame){ .op = WIRE_PING }, NULL);
	f = take(p, WIRE_PING);
	assert_int_equal(wire_parse_donor(p->payload, f.length, &told), 0);
	*free_slabs = (uint32_t)(told.free / SLAB);
	*room = (uint32_t)(told.total / SLAB) - f.slab;
}

/* Free is what is there; there may be more to come, but none of what others have. */
static void what_there_is_for_it(void **state)
{
	struct donor *d = *state;
	uint32_t free_slabs, room;
	struct peer a, b;

	connect_peer(d, &a, 1, 3);
	connect_peer(d, &b, 2, 5);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, SLABS - 8);
	assert_int_equal(room, SLABS - 8);
	/* A machine with room, on which the others have not been made yet. */
	for (int i = 8; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_ABSENT;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_ABSENT] = SLABS - 8;
	d->l->follow.room = (struct headroom){ .memory = 64ull << 30,
					       .available = 64ull << 30,
					       .seen = true };
	d->l->follow.rule.most = SLABS * SLAB;
	d->pool.allowed = headroom_slabs(&d->l->follow.room, &d->l->follow.rule);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, 0);
	assert_int_equal(room, SLABS - 8);
	close(a.fd);
	close(b.fd);
}

/* Returns how many slabs are promised to @p after it asked for @slabs. */
static uint32_t reserve(struct donor *d, struct peer *p, uint32_t slabs)
{
	uint8_t payload[WIRE_RESERVE_SIZE];
	struct wire_donor told;

	wire_build_reserve(payload, slabs);
	send_frame(d, p, (struct wire_frame){ .op = WIRE_RESERVE, .length = sizeof(payload) },
		   payload);
	assert_int_equal(take(p, WIRE_RESERVE).status, WIRE_OK);
	assert_int_equal(wire_parse_donor(p->payload, WIRE_DONOR_SIZE, &told), 0);
	return told.reserved;
}

/* What is promised to one is lent to no other, and of two that want all one gets it. */
static void promised_to_one(void **state)
{
	struct donor *d = *state;
	uint32_t free_slabs, room;
	struct peer a, b;

	connect_peer(d, &a, 1, 2);
	connect_peer(d, &b, 2, 3);
	assert_int_equal(reserve(d, &a, 30), 30);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, SLABS - 5);
	assert_int_equal(room, SLABS - 5);
	figures(d, &b, &free_slabs, &room);
	assert_int_equal(free_slabs, SLABS - 33);
	assert_int_equal(room, SLABS - 33);
	assert_int_equal(reserve(d, &b, 30), SLABS - 30);
	assert_int_equal(pool_lendable(&d->pool), 0);
	/* Its own loans count, so it gets what it was promised and no more. */
	for (int i = 3; i < SLABS - 30; i++)
		assert_int_equal(map(d, &b), WIRE_OK);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	for (int i = 2; i < 30; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_NO_SPACE);
	/* A returned slab is promised again. */
	assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[0]), WIRE_OK);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	assert_int_equal(map(d, &a), WIRE_OK);
	/* Less than it has: nothing is promised, and what it has stays. */
	assert_int_equal(reserve(d, &a, 0), 0);
	assert_int_equal(pool_promised(&d->pool), 0);
	assert_int_equal(d->pool.in[LEND_LENT], SLABS);
	close(a.fd);
	close(b.fd);
}

/* A promise outlives its connection as loans do, and is never counted twice. */
static void a_promise_is_kept_for_a_successor(void **state)
{
	struct donor *d = *state;
	struct peer a, b, c;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(reserve(d, &a, SLABS), SLABS);
	/* Nothing is lent yet. */
	close(a.fd);
	turn(d->l);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	/* The next connection has it, before the first one ended, too. */
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	for (int i = 0; i < 10; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(greet_as(d, &c, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(c.c->borrower.reserved, SLABS);
	assert_int_equal(pool_promised(&d->pool), SLABS - 10);
	assert_int_equal(say(d, &c, WIRE_RELEASE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	assert_int_equal(reserve(d, &c, SLABS), SLABS);
	close(a.fd);
	/* It ends with the grace period. */
	close(c.fd);
	turn(d->l);
	connections_tick(&d->l->sessions, now_ns() + 29 * SECOND);
	assert_int_equal(pool_promised(&d->pool), SLABS);
	connections_tick(&d->l->sessions, now_ns() + 31 * SECOND);
	assert_int_equal(pool_promised(&d->pool), 0);
	assert_int_equal(map(d, &b), WIRE_OK);
	/* It ends with BYE, at once. */
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(reserve(d, &a, UINT32_MAX), SLABS - 1);
	assert_int_equal(say(d, &a, WIRE_BYE, (struct wire_loan){ 0 }), WIRE_OK);
	assert_int_equal(pool_promised(&d->pool), 0);
	close(a.fd);
	close(b.fd);
}

/* Version 3 has no reservation: it takes no part of others', and asks for none. */
static void no_promise_for_version_3(void **state)
{
	struct donor *d = *state;
	struct peer a, b;
	uint8_t payload[WIRE_RESERVE_SIZE];

	connect_peer(d, &a, 1, 0);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(reserve(d, &a, SLABS - 1), SLABS - 1);
	b.c->version = 3;
	assert_int_equal(map(d, &b), WIRE_OK);
	assert_int_equal(map(d, &b), WIRE_NO_SPACE);
	wire_build_reserve(payload, 1);
	send_frame(d, &b, (struct wire_frame){ .op = WIRE_RESERVE, .length = sizeof(payload) },
		   payload);
	assert_true(hung_up(&b));
	close(a.fd);
	close(b.fd);
}

/* A draining donor promises no more, and withdraws no promise. */
static void promises_and_a_drain(void **state)
{
	struct donor *d = *state;
	struct peer a;

	connect_peer(d, &a, 1, 0);
	assert_int_equal(reserve(d, &a, 5), 5);
	loop_drain(d->l, LOOP_STAY);
	assert_int_equal(reserve(d, &a, 9), 5);
	assert_int_equal(map(d, &a), WIRE_NO_SPACE);
	assert_int_equal(reserve(d, &a, 2), 2);
	/* The machine has the memory that was released. */
	loop_undrain(d->l);
	settle(d);
	d->pool.allowed = SLABS;
	assert_int_equal(reserve(d, &a, 9), 9);
	close(a.fd);
}

static void a_quota_of_promises(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	connect_peer(d, &a, 1, 1);
	assert_int_equal(reserve(d, &a, SLABS), 2);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(reserve(d, &b, SLABS), 2);
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	/* Borrowers with one key share it. */
	strcpy(a.c->borrower.key, "spark");
	strcpy(b.c->borrower.key, "spark");
	for (int i = 0; i < SLABS; i++)
		if (d->pool.slabs[i].state == LEND_LENT)
			strcpy(d->pool.slabs[i].key, "spark");
	assert_int_equal(reserve(d, &b, 0), 0);
	assert_int_equal(reserve(d, &b, 1), 0);
	assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[0]), WIRE_OK);
	assert_int_equal(reserve(d, &b, 1), 0);
	assert_int_equal(reserve(d, &a, 1), 1);
	assert_int_equal(reserve(d, &b, 2), 1);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	assert_int_equal(map(d, &b), WIRE_OK);
	close(a.fd);
	close(b.fd);
}

static void quotas(void **state)
{
	struct donor *d = *state;
	uint32_t free_slabs, room;
	struct peer a, b;

	connect_peer(d, &a, 1, 1);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, 1);
	assert_int_equal(room, 1);
	assert_int_equal(map(d, &a), WIRE_OK);
	figures(d, &a, &free_slabs, &room);
	assert_int_equal(free_slabs, 0);
	assert_int_equal(room, 0);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	connect_peer(d, &b, 2, 2);
	assert_int_equal(map(d, &b), WIRE_OVER_QUOTA);
	/* A second connection of the first is the first's: it has nothing yet. */
	connect_peer(d, &b, 1, 2);
	assert_true(hung_up(&a));
	close(a.fd);
	close(b.fd);
}

/* A peer without a handshake keeps its place for five seconds. */
static void silent_peers_have_five_seconds(void **state)
{
	struct sockaddr_storage nobody = { .ss_family = AF_UNSPEC };
	struct donor *d = *state;
	struct peer a, silent = { 0 };
	uint64_t now;
	int fd[2];

	connect_peer(d, &a, 1, 1);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	silent.fd = fd[0];
	assert_non_null(connection_adopt(&d->l->sessions, fd[1], &nobody));
	turn(d->l);
	now = now_ns();
	connections_tick(&d->l->sessions, now + 4 * SECOND);
	assert_false(hung_up(&silent));
	connections_tick(&d->l->sessions, now + 6 * SECOND);
	assert_true(hung_up(&silent));
	/* A borrower may say nothing for as long as it likes. */
	assert_int_equal(map(d, &a), WIRE_OK);
	close(silent.fd);
	close(a.fd);
}

/* A borrower whose MAPs are refused takes no loan of the turn from others. */
static void refused_maps(void **state)
{
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	uint8_t bytes[2 * POOL_MAPS * (WIRE_HEADER + WIRE_MAP_SIZE)];
	struct donor *d = *state;
	struct peer a, b;

	for (uint32_t i = 0; i < 2 * POOL_MAPS; i++) {
		wire_build(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE), &f);
		wire_build_map(bytes + i * (WIRE_HEADER + WIRE_MAP_SIZE) + WIRE_HEADER,
			       WIRE_CLASS_SWAP);
	}
	connect_peer(d, &a, 1, 2);
	connect_peer(d, &b, 2, 0);
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(send(b.fd, bytes, WIRE_HEADER + WIRE_MAP_SIZE, 0),
			 WIRE_HEADER + WIRE_MAP_SIZE);
	assert_int_equal(loop_turn(d->l, 0), 0);
	assert_int_equal(take(&b, WIRE_MAP).status, WIRE_OK);
	for (int refused = 0; refused < 2 * POOL_MAPS;) {
		assert_int_equal(loop_turn(d->l, 0), 0);
		for (; take_frame(&a, &f); refused++)
			assert_int_equal(f.status, WIRE_OVER_QUOTA);
	}
	close(a.fd);
	close(b.fd);
}

/* A released slab that replies still pin is not lent to others, and counts. */
static void a_quota_of_what_is_used(void **state)
{
	struct wire_frame read = { .op = WIRE_READ, .length = SLAB }, unmap = { .op = WIRE_UNMAP };
	struct wire_frame map_one = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	static uint8_t sink[4 * SLAB];
	uint8_t payload[WIRE_MAP_SIZE];
	struct donor *d = *state;
	struct peer a;

	connect_peer(d, &a, 1, 2);
	for (uint32_t i = 0; i < 2; i++) {
		read.slab = unmap.slab = a.loans[i].slab;
		read.generation = unmap.generation = a.loans[i].generation;
		send_frame(d, &a, read, NULL);
		send_frame(d, &a, unmap, NULL);
	}
	wire_build_map(payload, WIRE_CLASS_SWAP);
	send_frame(d, &a, map_one, payload);
	assert_int_equal(d->pool.in[LEND_LENT], 0);
	for (int i = 0; i < 100; i++) {
		recv(a.fd, sink, sizeof(sink), MSG_DONTWAIT);
		turn(d->l);
	}
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OVER_QUOTA);
	close(a.fd);
}

static void drained(void **state)
{
	struct donor *d = *state;
	struct wire_donor told;
	struct wire_frame f;
	struct peer a;

	connect_peer(d, &a, 1, 2);
	loop_drain(d->l, LOOP_END);
	settle(d);
	for (int i = 0; i < 2; i++) {
		f = take(&a, WIRE_EVICT);
		answer(d, &a, f, WIRE_OK);
	}
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_PING }, NULL);
	take(&a, WIRE_PING);
	assert_int_equal(wire_parse_donor(a.payload, WIRE_DONOR_SIZE, &told), 0);
	assert_int_equal(told.flags, WIRE_DRAINING);
	assert_int_equal(told.free, 0);
	assert_int_equal(map(d, &a), WIRE_NO_SPACE);
	for (int i = 0; i < 2; i++) {
		uint8_t bytes[WIRE_HEADER];

		f = (struct wire_frame){ .op = WIRE_UNMAP, .slab = a.loans[i].slab,
					 .generation = a.loans[i].generation };
		wire_build(bytes, &f);
		assert_int_equal(loop_turn(d->l, 0), 0);
		assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	}
	for (int i = 0; i < 5; i++)
		if (loop_turn(d->l, 0) == 1)
			break;
	assert_int_equal(loop_turn(d->l, 0), 1);
	close(a.fd);
}

static void put(const struct donor *d, const char *file, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", d->run_dir, file);
	*strrchr(path, '/') = '\0';
	assert_int_equal(file_make_dirs(path, 0755), 0);
	snprintf(path, sizeof(path), "%s/%s", d->run_dir, file);
	assert_int_equal(file_replace(path, text), 0);
}

#define STATISTICS "cgroup/a/memory.stat"

static void revoke_slab(struct donor *d, uint32_t slab)
{
	pool_revoke(&d->pool, slab, now_ns());
	d->l->eviction.to_ask = true;
	turn(d->l);
}

/* A borrower whose loans are all revoked in the grace period still has its reservation. */
static void a_promise_survives_revocation(void **state)
{
	struct donor *d = *state;
	struct peer a, b;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(reserve(d, &a, 5), 5);
	assert_int_equal(map(d, &a), WIRE_OK);
	close(a.fd);
	turn(d->l);
	pool_hand_over(&d->pool, a.loans[0].slab);
	revoke_slab(d, a.loans[0].slab);
	/* It maps nothing any more, and REMAP will tell. */
	assert_false(d->pool.slabs[a.loans[0].slab].mapped);
	assert_false(d->pool.slabs[a.loans[0].slab].untold);
	assert_int_equal(greet_as(d, &b, 1, WIRE_KEEP | WIRE_RESUME), WIRE_OK);
	assert_int_equal(b.c->borrower.reserved, 5);
	assert_int_equal(say(d, &b, WIRE_REMAP, a.loans[0]), WIRE_STALE);
	/* Nothing is left to resume. */
	assert_int_equal(reserve(d, &b, 0), 0);
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP | WIRE_RESUME), WIRE_NO_SESSION);
	close(a.fd);
	close(b.fd);
}

/* A borrower hears at once of a revoked slab, if it understands that; its others stay. */
static void revocation_is_announced(void **state)
{
	struct donor *d = *state;
	struct wire_frame f;
	struct peer a;

	for (version = WIRE_VERSION_OLDEST; version <= WIRE_VERSION; version++) {
		connect_peer(d, &a, 1, 2);
		revoke_slab(d, a.loans[0].slab);
		if (version >= 4) {
			f = take(&a, WIRE_REVOKED);
			assert_int_equal(f.slab, a.loans[0].slab);
			assert_int_equal(f.generation, a.loans[0].generation);
		}
		assert_false(take_frame(&a, &f));
		assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[0]), WIRE_STALE);
		assert_int_equal(say(d, &a, WIRE_UNMAP, a.loans[1]), WIRE_OK);
		close(a.fd);
		turn(d->l);
	}
	version = WIRE_VERSION;
}

/* It waits for room in the queue of a borrower that does not read, which limits nothing else. */
static void announced_when_there_is_room(void **state)
{
	enum { PINGS = 2 * CONNECTION_REPLIES };
	struct donor *d = *state;
	uint8_t pings[PINGS * WIRE_HEADER];
	struct wire_frame f;
	int came = 0, little = 4096, much = SLAB;
	struct peer a, b;

	d->l->sessions.options.keep = 30 * SECOND;
	assert_int_equal(greet_as(d, &a, 1, WIRE_KEEP), WIRE_OK);
	assert_int_equal(map(d, &a), WIRE_OK);
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
	for (int i = 0; i < PINGS; i++)
		wire_build(pings + i * WIRE_HEADER, &(struct wire_frame){ .op = WIRE_PING });
	assert_int_equal(send(a.fd, pings, sizeof(pings), 0), sizeof(pings));
	turn(d->l);
	assert_false(connection_has_room(a.c));
	revoke_slab(d, a.loans[0].slab);
	assert_true(d->pool.slabs[a.loans[0].slab].untold);
	assert_true(stream_tx_room(&a.c->tx) >= WIRE_ASKED);
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof(much));
	turn(d->l);
	for (int i = 0; i < 1000 && came < PINGS + 1; i++) {
		while (take_frame(&a, &f))
			came++;
		turn(d->l);
	}
	setsockopt(a.c->fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little));
	assert_int_equal(came, PINGS + 1);
	assert_false(d->pool.slabs[a.loans[0].slab].untold);
	/* One that reconnects instead is told by the reply to REMAP. */
	assert_int_equal(map(d, &a), WIRE_OK);
	assert_int_equal(send(a.fd, pings, sizeof(pings), 0), sizeof(pings));
	turn(d->l);
	revoke_slab(d, a.loans[1].slab);
	assert_true(d->pool.slabs[a.loans[1].slab].untold);
	close(a.fd);
	turn(d->l);
	assert_false(d->pool.slabs[a.loans[1].slab].untold);
	assert_true(connection_is_free(a.c));
	assert_int_equal(greet_as(d, &b, 1, WIRE_KEEP), WIRE_OK);
	assert_false(take_frame(&b, &f));
	close(b.fd);
}

static void say_available(const struct donor *d, uint64_t kib)
{
	char text[80];

	snprintf(text, sizeof(text), "MemTotal: 1048576 kB\nMemAvailable: %llu kB\n",
		 (unsigned long long)kib);
	assert_int_equal(file_replace(d->meminfo, text), 0);
}

/* Samples the machine and does what that requires. */
static void sample(struct donor *d)
{
	loop_tick(d->l, now_ns());
	settle(d);
	for (int i = 0; i < 60000 && d->pool.in[LEND_GOING]; i++) {
		turn(d->l);
		usleep(1000);
	}
}

/* The status of an UNMAP behind frames that the donor sent by itself. */
static enum wire_status say_unmapped(struct donor *d, struct peer *p, struct wire_loan loan)
{
	struct wire_frame f = { .op = WIRE_UNMAP, .slab = loan.slab,
				.generation = loan.generation };

	send_frame(d, p, f, NULL);
	do
		assert_true(take_frame(p, &f));
	while (f.op != WIRE_UNMAP);
	return f.status;
}

static uint32_t lent_backed(const struct donor *d)
{
	uint32_t n = 0;

	for (int i = 0; i < SLABS; i++)
		n += d->pool.slabs[i].state == LEND_LENT && d->pool.slabs[i].backed;
	return n;
}

/*
 * Before the kernel kills programs, the donor reclaims what is elsewhere, too: free slabs first,
 * and never an only copy.
 */
static void an_emergency(void **state)
{
	enum { BACKED = 4, OTHERS = 3 };
	struct donor *d = *state;
	const uint32_t *in = d->pool.in;
	struct wire_frame f;
	struct peer a;
	uint32_t told = 0;
	uint64_t began;

	connect_peer(d, &a, 1, OTHERS);
	loan_flags = WIRE_BACKED;
	for (int i = 0; i < BACKED; i++)
		assert_int_equal(map(d, &a), WIRE_OK);
	loan_flags = 0;
	assert_int_equal(lent_backed(d), BACKED);
	/* The reserve is half of HeadRoom: 512 KiB.  Borrowers have a second to release slabs. */
	say_available(d, 200);
	began = now_ns();
	sample(d);
	assert_true(d->l->follow.emergency_since);
	assert_true(in[LEND_LENT] == BACKED + OTHERS || now_ns() - began > SECOND);
	say_available(d, 0);
	for (int i = 0; i < 2 * SLABS; i++) {
		uint32_t free_slabs = pool_free_slabs(&d->pool);

		sample(d);
		assert_true(!free_slabs || in[LEND_LENT] == BACKED + OTHERS);
	}
	assert_int_equal(in[LEND_LENT], OTHERS);
	assert_int_equal(lent_backed(d), 0);
	assert_int_equal(d->l->eviction.counts.revoked, BACKED);
	assert_int_equal(d->l->eviction.counts.revoked_backed, BACKED);
	while (take_frame(&a, &f))
		told += f.op == WIRE_REVOKED;
	assert_int_equal(told, BACKED);
	close(a.fd);
}

/* Has the machine sampled some times; returns how many slabs were revoked until then. */
static uint64_t revoked_after(struct donor *d, int samples)
{
	for (int i = 0; i < samples; i++)
		sample(d);
	return d->l->eviction.counts.revoked;
}

/*
 * The memory of a revoked slab is free only when nothing uses it: neither its borrower's mapping,
 * nor a reply on its way.  Until then, for a second at most, the donor revokes no other for it.
 */
static void an_emergency_awaits_what_is_leaving(void **state)
{
	enum { BACKED = 8 };
	struct donor *d = *state;
	struct lend_slab *slabs = d->pool.slabs;
	uint32_t first = SLABS, second;
	struct wire_frame f;
	struct peer a;
	uint64_t began;

	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, BACKED);
	loan_flags = 0;
	say_available(d, 100);
	/* Free slabs first. */
	for (int i = 0; i < 2 * SLABS && pool_free_slabs(&d->pool); i++) {
		say_available(d, 400);
		sample(d);
	}
	assert_int_equal(d->pool.in[LEND_LENT], BACKED);
	for (int i = 0; i < BACKED; i++)
		pool_hand_over(&d->pool, a.loans[i].slab);
	/* One slab of 1 MiB is enough. */
	say_available(d, 100);
	began = now_ns();
	assert_true(revoked_after(d, 5) == 1 || now_ns() - began > SECOND);
	for (uint32_t i = 0; i < BACKED; i++)
		first = slabs[a.loans[i].slab].state == LEND_LENT ? first : i;
	/* That was not enough: others use it. */
	assert_int_equal(say_unmapped(d, &a, a.loans[first]), WIRE_STALE);
	began = now_ns();
	assert_true(revoked_after(d, 5) == 2 || now_ns() - began > SECOND);
	/* A borrower that does not unmap it is not waited for any longer. */
	for (uint32_t i = 0; i < SLABS; i++)
		slabs[i].revoked_at -= slabs[i].revoked_at ? SECOND : 0;
	began = now_ns();
	assert_true(revoked_after(d, 5) == 3 || now_ns() - began > SECOND);
	/* A reply uses the next one. */
	for (uint32_t i = 0; i < SLABS; i++) {
		slabs[i].revoked_at -= slabs[i].revoked_at ? SECOND : 0;
		slabs[i].pins += slabs[i].state == LEND_LENT;
		slabs[i].handed = false;
	}
	began = now_ns();
	assert_true(revoked_after(d, 5) == 4 || now_ns() - began > SECOND);
	for (second = 0; slabs[second].state != LEND_DIRTY;)
		second++;
	pool_unpin(&d->pool, second);
	began = now_ns();
	assert_true(revoked_after(d, 5) == 5 || now_ns() - began > SECOND);
	for (uint32_t i = 0; i < SLABS; i++)
		slabs[i].pins = 0;
	while (take_frame(&a, &f))
		;
	close(a.fd);
}

/*
 * --revoke-after costs pages: it ends only as many loans as the machine lacks slabs, beside those
 * that their borrowers are moving, and those revoked whose memory is not free yet.
 */
static void revokes_no_more_than_is_lacking(void **state)
{
	enum { LENT = 16 };
	struct donor *d = *state;
	struct lend_slab *slabs = d->pool.slabs;
	uint64_t now = now_ns(), began;
	struct wire_frame f;
	struct peer a;

	d->l->follow.no_emergency = true;
	d->l->follow.rule.headroom = d->l->follow.headroom = 12 << 20;
	d->l->eviction.options.revoke = 10 * SECOND;
	connect_peer(d, &a, 1, LENT);
	for (int i = 0; i < 2 * SLABS && pool_free_slabs(&d->pool); i++)
		sample(d);
	for (int i = 0; i < LENT; i++) {
		pool_hand_over(&d->pool, a.loans[i].slab);
		pool_asked(&d->pool, a.loans[i].slab, LEND_REFUSED, now);
		slabs[a.loans[i].slab].asked_at = now - 20 * SECOND;
		slabs[a.loans[i].slab].answered_at = now;
	}
	/* Its borrower has promised this one lately. */
	pool_asked(&d->pool, a.loans[0].slab, LEND_PROMISED, now);
	slabs[a.loans[0].slab].asked_at = now;
	/* Half of HeadRoom is 6 MiB: 4 slabs are lacking. */
	say_available(d, 2 << 10);
	d->l->follow.short_since = now - 11 * SECOND;
	began = now_ns();
	sample(d);
	assert_int_equal(d->l->eviction.counts.revoked, 3);
	assert_false(slabs[a.loans[0].slab].revoked);
	/* Their borrower still maps them. */
	assert_true(revoked_after(d, 3) == 3 || now_ns() - began > SECOND);
	while (take_frame(&a, &f))
		;
	close(a.fd);
}

/* Borrowers tolerate a limited number of REVOKED a second, however small the slabs are. */
static void an_emergency_goes_step_by_step(void **state)
{
	enum { STEP = HEADROOM_EVICT_MOST / 4 };
	struct donor *d = *state;
	uint64_t before = 0;
	struct peer a;

	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, SLABS);
	loan_flags = 0;
	/* The machine lacks 32 MiB. */
	d->l->options.headroom = d->l->follow.headroom = 256 << 20;
	for (int i = 0; i < 60000 && lent_backed(d); i++) {
		uint64_t revoked;

		machine_watch_ask(&d->l->follow.watch);
		usleep(1000);
		headroom_follow_woken(&d->l->follow, now_ns());
		revoked = d->l->eviction.counts.revoked;
		assert_in_range(revoked, before, before + STEP);
		before = revoked;
		pool_thread_wake(&d->l->pool_thread);
		pool_settle(&d->pool);
	}
	assert_int_equal(lent_backed(d), 0);
	close(a.fd);
}

static void an_emergency_is_met_in_no_other_way(void **state)
{
	struct donor *d = *state;
	struct peer a;

	d->l->follow.no_emergency = true;
	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, 4);
	loan_flags = 0;
	for (int i = 0; i < 2 * SLABS; i++)
		sample(d);
	assert_int_equal(d->pool.in[LEND_LENT], 4);
	close(a.fd);
}

/* A fixed amount: its free slabs go, others are recalled; both come back with the memory. */
static void an_emergency_of_a_fixed_amount(void **state)
{
	struct donor *d = *state;
	struct wire_frame f;
	struct peer a;

	d->l->options.headroom = d->l->follow.headroom = 0;
	connect_peer(d, &a, 1, SLABS / 2);
	/* 32 MiB are the reserve: half of that is no emergency, unless tasks wait. */
	say_available(d, 16 << 10);
	sample(d);
	assert_int_equal(d->pool.in[LEND_CLEAN], SLABS / 2);
	say_available(d, 15 << 10);
	sample(d);
	assert_in_range(d->pool.in[LEND_CLEAN], 0, SLABS / 2 - 17);
	sample(d);
	assert_int_equal(d->pool.in[LEND_CLEAN], 0);
	/* Its slabs are only copies. */
	assert_int_equal(take(&a, WIRE_ACTIVITY).op, WIRE_ACTIVITY);
	for (int i = 0; i < 3; i++)
		sample(d);
	assert_int_equal(d->pool.in[LEND_LENT], SLABS / 2);
	while (take_frame(&a, &f))
		;
	say_available(d, 64 << 10);
	sample(d);
	assert_int_equal(d->pool.in[LEND_COMING], 0);
	say_available(d, (64 + 5) << 10);
	sample(d);
	for (int i = 0; i < 60000 && d->pool.in[LEND_COMING]; i++) {
		turn(d->l);
		usleep(1000);
	}
	assert_int_equal(d->pool.in[LEND_CLEAN], 5);
	close(a.fd);
}

/* Only borrowers of version 4 have flags, and REMAP changes them. */
static void what_is_backed(void **state)
{
	const struct wire_loan_request without = { .class = WIRE_CLASS_SWAP };
	struct donor *d = *state;
	uint8_t payload[WIRE_MAP_SIZE];
	struct wire_frame f = { .op = WIRE_REMAP, .length = WIRE_MAP_SIZE };
	struct wire_loan loan;
	struct peer a;

	loan_flags = WIRE_BACKED;
	connect_peer(d, &a, 1, 1);
	assert_int_equal(lent_backed(d), 1);
	assert_int_equal(say(d, &a, WIRE_REMAP, a.loans[0]), WIRE_OK);
	assert_int_equal(lent_backed(d), 1);
	f.slab = a.loans[0].slab;
	f.generation = a.loans[0].generation;
	wire_build_loan_request(payload, &without);
	send_frame(d, &a, f, payload);
	assert_int_equal(take(&a, WIRE_REMAP).status, WIRE_OK);
	assert_int_equal(lent_backed(d), 0);
	close(a.fd);
	/* A borrower withdraws it for its own loans. */
	connect_peer(d, &a, 1, 1);
	loan = a.loans[0];
	loan.generation++;
	assert_int_equal(say(d, &a, WIRE_UNBACKED, loan), WIRE_STALE);
	loan = (struct wire_loan){ SLABS, 0 };
	assert_int_equal(say(d, &a, WIRE_UNBACKED, loan), WIRE_NO_SLAB);
	assert_int_equal(lent_backed(d), 1);
	assert_int_equal(say(d, &a, WIRE_UNBACKED, a.loans[0]), WIRE_OK);
	assert_int_equal(lent_backed(d), 0);
	close(a.fd);
	version = WIRE_VERSION_OLDEST;
	loan_flags = 0;
	connect_peer(d, &a, 1, 1);
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_UNBACKED, .slab = a.loans[0].slab,
					       .generation = a.loans[0].generation }, NULL);
	assert_true(hung_up(&a));
	close(a.fd);
	connect_peer(d, &a, 1, 0);
	wire_build_loan_request(payload, &(struct wire_loan_request){ .flags = WIRE_BACKED });
	send_frame(d, &a, (struct wire_frame){ .op = WIRE_MAP, .length = WIRE_MAP_SIZE }, payload);
	assert_true(hung_up(&a));
	version = WIRE_VERSION;
	loan_flags = 0;
	close(a.fd);
}

enum { PIECE = 256 << 10, PIECES = 64 };

/* Asks for PIECES of the first loan of @p. */
static void ask_for_pieces(struct peer *p)
{
	uint8_t bytes[PIECES * WIRE_HEADER];
	struct wire_frame f = { .op = WIRE_READ, .length = PIECE, .slab = p->loans[0].slab,
				.generation = p->loans[0].generation };

	for (int i = 0; i < PIECES; i++)
		wire_build(bytes + i * WIRE_HEADER, &f);
	assert_int_equal(send(p->fd, bytes, sizeof(bytes), 0), sizeof(bytes));
}

static size_t take_bytes(struct peer *p)
{
	static uint8_t sink[SLAB];
	size_t got = 0;

	for (ssize_t n; (n = recv(p->fd, sink, sizeof(sink), MSG_DONTWAIT)) > 0;)
		got += (size_t)n;
	return got;
}

/* Beyond its rate a borrower waits and loses nothing.  Others do not wait; the loop sleeps. */
static void a_rate(void **state)
{
	struct donor *d = *state;
	uint64_t began, rate = RATE_LEAST;
	size_t got = 0;
	struct peer a, b;
	int turns = 0;

	connect_peer(d, &a, 1, 1);
	connect_peer(d, &b, 2, 1);
	began = now_ns();
	d->l->now = d->l->sessions.now = began;
	ask_for_pieces(&a);
	while (got < PIECES * (size_t)(WIRE_HEADER + PIECE)) {
		uint64_t passed;

		assert_int_equal(say(d, &b, WIRE_PING, b.loans[0]), WIRE_OK);
		assert_int_equal(loop_turn(d->l, SECOND), 0);
		got += take_bytes(&a);
		passed = now_ns() - began;
		assert_true(got <= (passed + RATE_BURST_NS) * (double)rate / SECOND +
				   2 * (PIECE + WIRE_HEADER) + 4096);
		assert_true(turns++ < 100000);
	}
	assert_true(turns < 20 * PIECES);
	assert_true(payer_waited(a.c->payer, now_ns()) > 0);
	assert_int_equal(payer_waited(b.c->payer, now_ns()), 0);
	/* One that has gone waits for nothing. */
	ask_for_pieces(&a);
	turn(d->l);
	assert_true(a.c->throttled);
	close(a.fd);
	turn(d->l);
	assert_true(connection_is_free(a.c));
	close(b.fd);
}

/* Only requests that move pages wait for the rate: a MAP waits for its turn, and no longer. */
static void a_rate_of_pages_alone(void **state)
{
	const struct wire_loan_request r = { .class = WIRE_CLASS_SWAP };
	struct wire_frame f = { .op = WIRE_MAP, .length = WIRE_MAP_SIZE };
	enum { FRAME = WIRE_HEADER + WIRE_MAP_SIZE };
	struct donor *d = *state;
	uint8_t bytes[2 * FRAME];
	struct peer a;

	connect_peer(d, &a, 1, 0);
	for (int i = 0; i < SLABS; i++)
		d->pool.slabs[i].state = LEND_DIRTY;
	d->pool.in[LEND_CLEAN] = 0;
	d->pool.in[LEND_DIRTY] = SLABS;
	/* What its data connections owe. */
	a.c->payer->busy_until = now_ns() + 1000 * SECOND;
	for (int i = 0; i < 2; i++) {
		wire_build(bytes + i * FRAME, &f);
		wire_build_loan_request(bytes + i * FRAME + WIRE_HEADER, &r);
	}
	assert_int_equal(send(a.fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	assert_int_equal(loop_turn(d->l, 0), 0);
	assert_true(a.c->held);
	assert_false(a.c->throttled);
	turn(d->l);
	assert_false(a.c->held);
	assert_int_equal(pool_owned(&d->pool, &a.c->borrower), 2);
	assert_int_equal(payer_waited(a.c->payer, now_ns()), 0);
	close(a.fd);
}

/* All data connections of a key have the share of one in a turn, however many there are. */
static void many_connections_of_one_key(void **state)
{
	enum { MANY = 48 };
	struct donor *d = *state;
	int size = 2 * PIECES * PIECE;
	struct peer a, data[MANY];
	size_t most = 0;

	connect_peer(d, &a, 1, 1);
	for (int i = 0; i < MANY; i++) {
		connect_peer(d, &data[i], 10 + (uint64_t)i, 0);
		data[i].loans[0] = a.loans[0];
		setsockopt(data[i].c->fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size));
		/* As JOIN does. */
		payer_leave(data[i].c->payer, 0);
		data[i].c->home = a.c->number;
		data[i].c->payer = a.c->payer;
		a.c->payer->users++;
		ask_for_pieces(&data[i]);
	}
	for (int i = 0; i < 200; i++) {
		size_t got = 0;

		assert_int_equal(say(d, &a, WIRE_PING, a.loans[0]), WIRE_OK);
		for (int j = 0; j < MANY; j++)
			take_bytes(&data[j]);
		assert_int_equal(loop_turn(d->l, 0), 0);
		for (int j = 0; j < MANY; j++)
			got += take_bytes(&data[j]);
		most = got > most ? got : most;
	}
	/* A share, and what the last one exceeds it by, each way. */
	assert_in_range(most, CONNECTION_TURN / 2, 2 * CONNECTION_TURN);
	for (int j = 0; j < MANY; j++)
		close(data[j].fd);
	close(a.fd);
}

static int in_a_limited_cgroup(void **state)
{
	make_machine(&the_donor);
	put(&the_donor, "self/cgroup", "0::/a\n");
	put(&the_donor, "cgroup/cgroup.controllers", "memory\n");
	put(&the_donor, "cgroup/a/memory.max", "1000000\n");
	put(&the_donor, "cgroup/a/memory.current", "700000\n");
	put(&the_donor, STATISTICS, "anon 1\nactive_file 0\ninactive_file 0\n");
	return start_donor(state, (struct lending_options){ 0 });
}

static int out_of_a_limited_cgroup(void **state)
{
	static const char *const files[] = {
		STATISTICS, "cgroup/a/memory.max", "cgroup/a/memory.current", "cgroup/a",
		"cgroup/cgroup.controllers", "cgroup", "self/cgroup", "self",
	};
	char path[128];

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "%s/%s", the_donor.run_dir, files[i]);
		assert_int_equal(remove(path), 0);
	}
	return without_donor(state);
}

/* The kernel takes long to sum up a cgroup's statistics: borrowers do not wait for it. */
static void slow_statistics(void **state)
{
	static const char text[] = "anon 1\nactive_file 100000\ninactive_file 0\n";
	struct donor *d = *state;
	char path[128];
	struct peer a;
	int fd;

	/* It samples once a second only. */
	d->l->follow.no_emergency = true;
	connect_peer(d, &a, 1, 0);
	assert_int_equal(d->l->follow.sample.own, 300000);
	snprintf(path, sizeof(path), "%s/" STATISTICS, d->run_dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	alarm(60); /* instead of for ever */
	for (int i = 0; i < 3; i++) {
		loop_tick(d->l, now_ns());
		send_frame(d, &a, (struct wire_frame){ .op = WIRE_PING }, NULL);
		take(&a, WIRE_PING);
	}
	assert_int_equal(d->l->follow.sample.own, 300000);
	/* Then they count. */
	fd = open(path, O_WRONLY);
	assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
	close(fd);
	settle(d);
	assert_int_equal(d->l->follow.sample.own, 400000);
#ifndef __SANITIZE_ADDRESS__ /* it reports the stack of a cancelled thread */
	/* The donor's end does not wait for a sample, either. */
	loop_tick(d->l, now_ns());
#endif
	alarm(0);
	close(a.fd);
}

/* Another one is made in its place before the next second, unless the machine is to have it. */
static void what_was_handed_over(void **state)
{
	struct donor *d = *state;
	const uint32_t *in = d->pool.in;

	for (int drains = 0; drains < 2; drains++) {
		struct wire_frame f = { .op = WIRE_UNMAP };
		struct peer a;

		connect_peer(d, &a, 1, 1);
		f.slab = a.loans[0].slab;
		f.generation = a.loans[0].generation;
		pool_hand_over(&d->pool, f.slab);
		if (drains)
			loop_drain(d->l, LOOP_STAY);
		settle(d);
		send_frame(d, &a, f, NULL);
		for (int i = 0; i < 60000 && in[LEND_DIRTY] + in[LEND_COMING] + in[LEND_GOING];
		     i++) {
			turn(d->l);
			usleep(1000);
		}
		assert_int_equal(in[LEND_CLEAN], drains ? 0 : SLABS);
		assert_int_equal(in[LEND_ABSENT], drains ? SLABS : 0);
		close(a.fd);
		turn(d->l);
	}
}

/* SIGTERM before all memory is there does not wait for it. */
static void told_to_end_at_once(void **state)
{
	struct lending_options o = { 0 };
	struct timespec at_once = { 0 };
	struct pool pool = { 0 };
	struct loop *l = NULL;
	struct error e = { 0 };
	sigset_t set;

	assert_int_equal(loop_new(&l, &pool, &o, &e), 0);
	assert_int_equal(pool_init(&pool, SLABS * SLAB, SLAB, LEND_PRIVATE, &e), 0);
	raise(SIGTERM);
	assert_int_equal(loop_start(l, &e), -EINTR);
	assert_int_equal(e.code, 0);
	assert_int_equal(pool.in[LEND_CLEAN], 0);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	assert_int_equal(sigtimedwait(&set, NULL, &at_once), SIGTERM);
	loop_free(&l);
	pool_free(&pool);
}

/*
 * Borrowers that reconnect all at once wait for no retransmitted SYN (1 s) while the loop is busy.
 */
static void a_reconnect_herd(void **state)
{
	enum { HERD = 300, DEADLINE_MS = 5000 };
	struct donor *d = *state;
	struct pollfd p[HERD];
	struct error e = { 0 };
	struct address a;
	int turns = 0;

	if (address_parse("127.0.0.1:0", "listen", &a, &e) || loop_listen(d->l, &a, &e))
		fail_msg("%s", e.text);
	for (int i = 0; i < HERD; i++)
		p[i] = (struct pollfd){ .fd = tcp_connect(&d->l->places.a[0]), .events = POLLOUT };
	for (int i = 0; i < HERD; i++) {
		assert_int_equal(poll(&p[i], 1, DEADLINE_MS), 1);
		assert_int_equal(p[i].revents, POLLOUT);
	}
	/* Connections beyond the limit replace older ones without a handshake. */
	for (int i = 0; i < HERD; i++)
		p[i].events = POLLIN;
	do {
		assert_int_equal(loop_turn(d->l, 0), 0);
		turns++;
	} while (poll(p, HERD, 0) < HERD - CONNECTIONS);
	assert_in_range(turns, HERD / CONNECTION_ACCEPTS, HERD / CONNECTION_ACCEPTS + 2);
	for (int i = 0; i < HERD; i++)
		close(p[i].fd);
}

static void *ask(void *answer)
{
	control_call(ebb_donor_socket(), control_request("status"), 10000, answer, NULL);
	return NULL;
}

/* It is not told that the loop does not answer, nor kept for hours. */
static void who_asks_while_the_clock_is_set(void **state)
{
	struct json_object *answer = NULL;
	struct donor *d = *state;
	pthread_t thread;

	set_back = true;
	assert_int_equal(pthread_create(&thread, NULL, ask, &answer), 0);
	usleep(100000);
	for (int i = 0; i < 5000 && pthread_tryjoin_np(thread, NULL); i++) {
		turn(d->l);
		usleep(1000);
	}
	set_back = false;
	assert_non_null(answer);
	assert_int_equal(json_int(answer, "total", -1), SLABS * SLAB);
	json_object_put(answer);
}

/* The status counts slabs that are not lent again. */
static void withdrawn_in_the_status(void **state)
{
	struct json_object *answer = NULL;
	struct donor *d = *state;
	pthread_t thread;
	struct peer a;

	connect_peer(d, &a, 1, 1);
	assert_int_equal(pool_return(&d->pool, &a.c->borrower, a.loans[0]), WIRE_OK);
	pool_withdraw(&d->pool, a.loans[0].slab);
	assert_int_equal(pthread_create(&thread, NULL, ask, &answer), 0);
	while (pthread_tryjoin_np(thread, NULL)) {
		turn(d->l);
		usleep(1000);
	}
	assert_int_equal(json_int(json_member(answer, "slabs"), "withdrawn", -1), 1);
	assert_int_equal(json_int(json_member(answer, "slabs"), "clean", -1), SLABS - 1);
	json_object_put(answer);
	close(a.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(kept_for_a_successor, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(by_activity, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_late_answer, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(evicts_are_bounded, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(what_is_not_there_is_back, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_write_under_way, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(what_was_handed_over, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_greedy_one, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(many_slabs_at_once, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(what_there_is_for_it, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(promised_to_one, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_promise_is_kept_for_a_successor, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(no_promise_for_version_3, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(promises_and_a_drain, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_quota_of_promises, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(quotas, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(drained, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(who_asks_while_the_clock_is_set, with_donor,
						without_donor),
		cmocka_unit_test(told_to_end_at_once),
		cmocka_unit_test_setup_teardown(a_reconnect_herd, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(slow_statistics, in_a_limited_cgroup,
						out_of_a_limited_cgroup),
		cmocka_unit_test_setup_teardown(a_quota_of_what_is_used, with_quota, without_donor),
		cmocka_unit_test_setup_teardown(withdrawn_in_the_status, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(silent_peers_have_five_seconds, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(revocation_is_announced, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(announced_when_there_is_room, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(a_promise_survives_revocation, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_goes_step_by_step, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(revokes_no_more_than_is_lacking, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_awaits_what_is_leaving, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_is_met_in_no_other_way, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(an_emergency_of_a_fixed_amount, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(what_is_backed, with_donor, without_donor),
		cmocka_unit_test_setup_teardown(a_rate, with_rate, without_donor),
		cmocka_unit_test_setup_teardown(a_rate_of_pages_alone, with_rate, without_donor),
		cmocka_unit_test_setup_teardown(many_connections_of_one_key, with_donor,
						without_donor),
		cmocka_unit_test_setup_teardown(refused_maps, with_quota, without_donor),
	};

	log_setup("loop", LOG_LVL_ERR);
	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
