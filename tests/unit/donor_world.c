// SPDX-License-Identifier: GPL-2.0-or-later
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "donor_world.h"
#include "donord/control.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

struct donor the_donor;
uint32_t version = WIRE_VERSION;
uint32_t loan_flags;

/* Slabs that are not locked: that would take root. */
static void make_slabs(struct pool *p)
{
	assert_int_equal(mprotect(p->memory, SLABS * SLAB, PROT_READ | PROT_WRITE), 0);
	for (int i = 0; i < SLABS; i++)
		p->slabs[i].state = LEND_CLEAN;
	p->in[LEND_ABSENT] = 0;
	p->in[LEND_CLEAN] = SLABS;
}

void make_machine(struct donor *d)
{
	*d = (struct donor){ .run_dir = "/tmp/ebb-loop-XXXXXX" };
	assert_non_null(mkdtemp(d->run_dir));
	setenv("EBB_RUN_DIR", d->run_dir, 1);
	snprintf(d->meminfo, sizeof(d->meminfo), "%s/meminfo", d->run_dir);
	assert_int_equal(file_replace(d->meminfo, "MemTotal: 1048576 kB\nMemAvailable: 0 kB\n"), 0);
}

int start_donor(void **state, struct lending_options o)
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

int with_donor(void **state)
{
	return make_donor(state, (struct lending_options){ 0 });
}

int with_rate(void **state)
{
	return make_donor(state, (struct lending_options){ .sessions.rate = RATE_LEAST });
}

int with_quota(void **state)
{
	return make_donor(state, (struct lending_options){ .sessions.quota = 2 * SLAB + SLAB / 2 });
}

int without_donor(void **state)
{
	struct donor *d = *state;

	donor_control_stop(&d->control);
	loop_free(&d->l);
	pool_free(&d->pool);
	unlink(d->meminfo);
	return rmdir(d->run_dir);
}

void turn(struct loop *l)
{
	for (int i = 0; i < 4; i++)
		assert_int_equal(loop_turn(l, 0), 0);
}

void settle(struct donor *d)
{
	turn(d->l);
	while (d->l->follow.due)
		assert_int_equal(loop_turn(d->l, SECOND), 0);
	turn(d->l);
}

void send_frame(struct donor *d, struct peer *p, struct wire_frame f, const void *payload)
{
	uint8_t bytes[WIRE_HEADER + WIRE_SMALL];

	wire_build(bytes, &f);
	if (payload)
		memcpy(bytes + WIRE_HEADER, payload, f.length);
	assert_int_equal(send(p->fd, bytes, WIRE_HEADER + (payload ? f.length : 0), 0),
			 WIRE_HEADER + (payload ? f.length : 0));
	turn(d->l);
}

bool take_frame(struct peer *p, struct wire_frame *f)
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

bool hung_up(struct peer *p)
{
	char byte;

	return recv(p->fd, &byte, 1, MSG_DONTWAIT) == 0;
}

struct wire_frame take(struct peer *p, enum wire_op op)
{
	struct wire_frame f = { 0 };

	assert_true(take_frame(p, &f));
	assert_int_equal(f.op, op);
	return f;
}

enum wire_status map(struct donor *d, struct peer *p)
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

enum wire_status greet_as(struct donor *d, struct peer *p, uint64_t number, uint32_t flags)
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

void connect_peer(struct donor *d, struct peer *p, uint64_t number, int slabs)
{
	assert_int_equal(greet_as(d, p, number, 0), WIRE_OK);
	for (int i = 0; i < slabs; i++)
		assert_int_equal(map(d, p), WIRE_OK);
}

void answer(struct donor *d, struct peer *p, struct wire_frame f, enum wire_status status)
{
	f.direction = WIRE_REPLY;
	f.status = status;
	send_frame(d, p, f, NULL);
}

enum wire_status say(struct donor *d, struct peer *p, enum wire_op op, struct wire_loan loan)
{
	send_frame(d, p, (struct wire_frame){ .op = op, .slab = loan.slab,
					      .generation = loan.generation }, NULL);
	return take(p, op).status;
}

uint32_t reserve(struct donor *d, struct peer *p, uint32_t slabs)
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

void revoke_slab(struct donor *d, uint32_t slab)
{
	pool_revoke(&d->pool, slab, now_ns());
	d->l->eviction.to_ask = true;
	turn(d->l);
}
