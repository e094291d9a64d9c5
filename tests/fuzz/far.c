// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "donord/far/far_access.h"
#include "donord/far/far_members.h"
#include "far.h"
#include "lib/base/bytes.h"
#include "lib/base/draw.h"
#include "lib/wire/stream.h"

enum { SECTIONS = 2, SLABS = 2, MEMBERS = 2 };
#define ARENA (SECTIONS * EBB_FAR_SECTION)

static struct pool pool;
static struct donor_log lines;

struct receiver {
	struct fuzz_protocol_result *r;
	uint8_t how;
	struct far *far;
	struct far_member *members[MEMBERS];
	uint8_t payload[WIRE_FAR_MOST], reply[WIRE_FAR_MOST];
};

static struct receiver receiver;

static void wrong(struct receiver *c, const char *what, const struct wire_frame *f)
{
	if (!*c->r->wrong)
		snprintf(c->r->wrong, sizeof(c->r->wrong),
			 "%s: op %u direction %u status %u offset %u length %u", what, f->op,
			 f->direction, f->status, f->offset, f->length);
}

static void end_member(void *connection, const char *why)
{
	struct far_member **m = connection;

	far_left(*m);
	*m = NULL;
}

static bool notify(void *connection, const struct wire_far_word *w)
{
	return true;
}

static const struct far_ops ops = { end_member, notify };

static void join(struct receiver *c, uint32_t i)
{
	struct far_pool *fp = far_find(c->far, "", "p");

	if (fp && !c->members[i])
		far_join(fp, &c->members[i], -1, &c->members[i]);
}

static void begin(struct receiver *c)
{
	const struct wire_far_pool p = { .verb = WIRE_FAR_CREATE, .name = "p" };

	while (pool_zero_some(&pool, LEND_RENEW))
		;
	/* All pools, with 256 members each. */
	if (far_pools_new(&c->far, &pool, &lines, &ops, SLABS * ARENA, 0))
		abort();
	far_create(c->far, "", &p);
	far_arena(far_find(c->far, "", "p"), 0);
	for (uint32_t i = 0; i < MEMBERS; i++)
		join(c, i);
}

/* Recovers the dead.  Each verb of a recovery goes on by at least one line. */
static void recover(struct receiver *c, const struct wire_frame *f)
{
	for (int turns = 0; far_turn(c->far); turns++)
		if (turns > 1000) {
			wrong(c, "a recovery without end", f);
			return;
		}
}

static void finish(struct receiver *c)
{
	const struct wire_frame last = { 0 };

	for (uint32_t i = 0; i < MEMBERS; i++)
		if (c->members[i])
			end_member(&c->members[i], "");
	recover(c, &last);
	for (uint32_t i = 0; i < FAR_POOLS; i++)
		if (c->far->pools[i].in[EBB_FAR_DEAD])
			wrong(c, "a dead member stays", &last);
	far_pools_free(&c->far);
	if (pool.in[LEND_LENT])
		wrong(c, "a slab stays lent", &last);
}

static void check_frame(struct receiver *c, const struct wire_frame *f, enum wire_side side)
{
	uint8_t bytes[WIRE_HEADER];
	struct wire_frame again;
	bool far = f->op >= WIRE_FAR_POOL;

	if ((f->op >= WIRE_FAR_OPS && !wire_is_job(f)) || (!far && f->op >= WIRE_OPS))
		wrong(c, "accepted", f);
	if (wire_payload(f) > (wire_far_moves(f) ? WIRE_FAR_MOST : wire_is_job(f) ? WIRE_JOB_MOST :
									    WIRE_SMALL))
		wrong(c, "payload unbounded", f);
	if (f->direction == WIRE_REQUEST && f->status)
		wrong(c, "a request with a status", f);
	wire_build(bytes, f);
	if (wire_parse(bytes, sizeof(bytes), side, &again) != 1)
		wrong(c, "built but not parsed", f);
	/* Borrowers of slabs, and their donors, never get it. */
	if (far && (wire_parse(bytes, sizeof(bytes), WIRE_AT_DONOR, &again) != -EPROTO ||
		    wire_parse(bytes, sizeof(bytes), WIRE_AT_BORROWER, &again) != -EPROTO))
		wrong(c, "accepted on a connection for slabs", f);
}

/* A member that maps the arena writes anywhere in it. */
static void write_mapped(struct receiver *c, const struct far_member *m, const struct wire_frame *f)
{
	uint32_t n = f->length < 64 ? f->length : 64;

	if (c->how & FUZZ_FAR_MAPPED && f->slab < m->pool->arenas && f->offset <= ARENA - n)
		memcpy(far_base(m->pool, f->slab) + f->offset, c->payload, n);
}

static void serve_member(struct receiver *c, struct far_member *m, const struct wire_frame *f)
{
	struct wire_far_swap swaps[WIRE_FAR_SWAPS];
	uint64_t old[WIRE_FAR_SWAPS];
	struct wire_far_word w;
	uint16_t st = WIRE_OK;

	switch (f->op) {
	case WIRE_FAR_ARENA:
		st = far_arena(m->pool, f->slab);
		c->r->loans += st == WIRE_OK;
		break;
	case WIRE_FAR_READ:
		st = far_read(m, f->slab, f->offset, c->reply, f->length);
		break;
	case WIRE_FAR_WRITE:
		st = far_write(m, f->slab, f->offset, c->payload, f->length);
		if (st == WIRE_NOT_OWNER)
			write_mapped(c, m, f);
		break;
	case WIRE_FAR_CAS:
		for (uint32_t i = 0; i < f->length / WIRE_FAR_SWAP_SIZE; i++)
			swaps[i] = wire_get_far_swap(c->payload, i);
		st = far_cas(m, f->slab, swaps, f->length / WIRE_FAR_SWAP_SIZE, old);
		break;
	case WIRE_FAR_ADD:
		st = far_add_word(m, f->slab, f->offset, get64(c->payload), old);
		break;
	case WIRE_FAR_NOTIFY:
	case WIRE_FAR_DEAD:
		if (wire_parse_far_word(c->payload, WIRE_FAR_MEMBER_SIZE, &w))
			break;
		st = f->op == WIRE_FAR_NOTIFY ? far_notify(m, &w) : far_kill(m, w.member);
		break;
	default:
		break;
	}
	c->r->accesses += st == WIRE_OK && f->op >= WIRE_FAR_READ && f->op <= WIRE_FAR_ADD;
	c->r->sum = c->r->sum * 31 + st;
}

static void serve(struct receiver *c, const struct wire_frame *f)
{
	uint32_t who = f->tag % MEMBERS;
	struct wire_far_pool p;

	if (f->op == WIRE_FAR_POOL) {
		if (wire_parse_far_pool(c->payload, WIRE_FAR_POOL_SIZE, &p))
			return;
		if (p.verb == WIRE_FAR_CREATE)
			far_create(c->far, "", &p);
		else if (p.verb == WIRE_FAR_DESTROY)
			far_destroy(c->far, "", &p);
		else
			join(c, who);
	} else if (f->op == WIRE_BYE && c->members[who]) {
		end_member(&c->members[who], "");
	} else if (c->members[who]) {
		serve_member(c, c->members[who], f);
	}
	if (f->tag % 8 == 7)
		recover(c, f);
}

static enum wire_side side_of(uint8_t how)
{
	return (how & FUZZ_FAR_SIDE) == FUZZ_FAR_DONOR ? WIRE_AT_FAR_DONOR : WIRE_AT_FAR_MEMBER;
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct receiver *c = data;

	check_frame(c, f, side_of(c->how));
	*payload = c->payload;
	return 0;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct wire_far_listed listed;
	struct wire_far_opened opened;
	struct receiver *c = data;

	c->r->frames++;
	if (side_of(c->how) == WIRE_AT_FAR_DONOR)
		serve(c, f);
	else if (f->op == WIRE_FAR_POOL && !f->status)
		c->r->accesses += !wire_parse_far_opened(c->payload, f->length, &opened);
	else if (f->op == WIRE_FAR_LIST)
		for (uint32_t i = 0; i < f->length / WIRE_FAR_LISTED_SIZE; i++)
			if (!wire_parse_far_listed(c->payload + i * WIRE_FAR_LISTED_SIZE,
						   WIRE_FAR_LISTED_SIZE, &listed) &&
			    !wire_far_is_name(listed.name))
				wrong(c, "a name that is none", f);
	return 0;
}

static const struct stream_rx_ops rx_ops = { .arrived = arrived, .finished = finished };

static void run_stream(struct receiver *c, const uint8_t *data, size_t size)
{
	struct stream_rx rx;
	int fd[2], end = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) < 0 ||
	    stream_rx_init(&rx, side_of(c->how)))
		abort();
	for (size_t sent = 0; sent < size && end >= 0;) {
		ssize_t n = send(fd[0], data + sent, size - sent, MSG_NOSIGNAL);

		sent += n > 0 ? (size_t)n : 0;
		end = stream_receive(&rx, fd[1], 1 << 20, &rx_ops, c);
	}
	close(fd[0]);
	while (end >= 0)
		end = stream_receive(&rx, fd[1], 1 << 20, &rx_ops, c);
	c->r->end = end;
	stream_rx_free(&rx);
	close(fd[1]);
}

/* What a parser accepts is what the builder makes. */
static void run_decoders(const uint8_t *data, size_t size, struct fuzz_protocol_result *r)
{
	uint8_t bytes[WIRE_FAR_LISTED_SIZE];
	struct wire_far_listed l;
	struct wire_far_opened o;
	struct wire_far_pool p;
	struct wire_far_word w;

	for (size_t n = 0; n <= size && n <= WIRE_FAR_LISTED_SIZE + 1; n++) {
		uint8_t *exact = malloc(n ? n : 1); /* so that a byte beyond is seen */
		bool good = true;

		if (!exact)
			return;
		memcpy(exact, data, n);
		if (!wire_parse_far_pool(exact, n, &p)) {
			wire_build_far_pool(bytes, &p);
			good = n == WIRE_FAR_POOL_SIZE && !memcmp(bytes, exact, n);
		}
		if (good && !wire_parse_far_opened(exact, n, &o)) {
			wire_build_far_opened(bytes, &o);
			good = n == WIRE_FAR_OPENED_SIZE && !memcmp(bytes, exact, n);
		}
		if (good && !wire_parse_far_listed(exact, n, &l)) {
			wire_build_far_listed(bytes, &l);
			good = n == WIRE_FAR_LISTED_SIZE && !memcmp(bytes, exact, n);
		}
		if (good && !wire_parse_far_word(exact, n, &w)) {
			wire_build_far_word(bytes, &w);
			good = n == WIRE_FAR_MEMBER_SIZE && !memcmp(bytes, exact, n);
		}
		if (!good)
			snprintf(r->wrong, sizeof(r->wrong), "a payload of %zu bytes", n);
		free(exact);
	}
}

void fuzz_far(const uint8_t *data, size_t size, struct fuzz_protocol_result *result)
{
	struct receiver *c = &receiver;

	*result = (struct fuzz_protocol_result){ 0 };
	if (!size)
		return;
	*c = (struct receiver){ .r = result, .how = data[0] };
	begin(c);
	run_stream(c, data + 1, size - 1);
	finish(c);
	run_decoders(data + 1, size - 1, result);
}

int fuzz_far_set_up(struct error *e)
{
	int r = pool_init(&pool, SLABS * ARENA, ARENA, LEND_PRIVATE, e);

	if (r || mprotect(pool.memory, SLABS * ARENA, PROT_READ | PROT_WRITE) < 0)
		return r ?: fail(e, errno, "mprotect: %m");
	donor_log_init(&lines);
	for (int i = 0; i < SLABS; i++)
		pool.slabs[i].state = LEND_CLEAN;
	pool.in[LEND_ABSENT] = 0;
	pool.in[LEND_CLEAN] = SLABS;
	return 0;
}

void fuzz_far_tear_down(void)
{
	pool_free(&pool);
}

/* --- bytes ------------------------------------------------------------------------ */

/* A place in the table mostly, else anywhere. */
static uint32_t random_place(uint64_t *seed)
{
	uint32_t table = (uint32_t)ebb_far_table(SECTIONS);

	switch (draw_below(seed, 4)) {
	case 0:
		return (uint32_t)ebb_far_section_at(draw_below(seed, SECTIONS));
	case 1:
		return (uint32_t)ebb_far_slot_at(SECTIONS, draw_below(seed, SECTIONS),
						 draw_below(seed, EBB_FAR_SLOTS));
	case 2:
		return 8 * draw_below(seed, table / 8);
	default:
		return draw_below(seed, ARENA + 8);
	}
}

/* A word as the protocol has it, of this member or another. */
static uint64_t random_word(uint64_t *seed, bool slot)
{
	static const uint32_t owners[] = { EBB_FAR_NONE, 1, 2, EBB_FAR_DONOR, EBB_FAR_CLOSED };
	uint32_t owner = owners[draw_below(seed, 5)], class = draw_below(seed, 11);

	return slot ? ebb_far_slot(owner, class, draw_below(seed, 3)) :
		      ebb_far_section(draw_below(seed, 6), class, owner, draw_below(seed, 3));
}

static uint32_t fill(uint64_t *seed, const struct wire_frame *f, uint8_t *to)
{
	struct wire_far_pool p = { .verb = draw_below(seed, 5), .name = "p" };
	struct wire_far_word w = { draw_below(seed, 4), 0 };
	uint32_t n = wire_payload(f);

	for (uint32_t i = 0; i < n; i++)
		to[i] = (uint8_t)draw32(seed);
	if (f->op == WIRE_FAR_POOL && n == WIRE_FAR_POOL_SIZE)
		wire_build_far_pool(to, &p);
	for (uint32_t i = 0; f->op == WIRE_FAR_CAS && i < n / WIRE_FAR_SWAP_SIZE; i++) {
		bool slot = draw_below(seed, 2);
		struct wire_far_swap s = { random_place(seed), random_word(seed, slot),
					   random_word(seed, slot) };

		wire_put_far_swap(to, i, &s);
	}
	if (f->op == WIRE_FAR_NOTIFY || f->op == WIRE_FAR_DEAD)
		wire_build_far_word(to, &w);
	return n;
}

static uint32_t random_length(uint64_t *seed, const struct wire_frame *f)
{
	bool request = f->direction == WIRE_REQUEST;

	switch (f->op) {
	case WIRE_FAR_POOL:
		return request ? WIRE_FAR_POOL_SIZE : WIRE_FAR_OPENED_SIZE;
	case WIRE_FAR_LIST:
		return request ? 0 : WIRE_FAR_LISTED_SIZE * draw_below(seed, 3);
	case WIRE_FAR_READ:
		return 1 + draw_below(seed, 100);
	case WIRE_FAR_WRITE:
		return request ? 1 + draw_below(seed, 100) : 0;
	case WIRE_FAR_CAS:
		return (request ? WIRE_FAR_SWAP_SIZE : 8) * (1 + draw_below(seed, 3));
	case WIRE_FAR_ADD:
		return 8;
	case WIRE_FAR_NOTIFY:
	case WIRE_FAR_DEAD:
		return request ? WIRE_FAR_MEMBER_SIZE : 0;
	case WIRE_FAR_NOTIFIED:
		return WIRE_FAR_MEMBER_SIZE;
	default:
		return 0;
	}
}

void fuzz_far_bytes(uint64_t seed, uint8_t *data, size_t size)
{
	size_t at = 1;

	data[0] = (uint8_t)draw32(&seed);
	while (at < size) {
		struct wire_frame f = {
			.op = (uint8_t)(WIRE_FAR_POOL +
					draw_below(&seed, WIRE_FAR_OPS - WIRE_FAR_POOL)),
			.tag = draw_below(&seed, 64), .slab = draw_below(&seed, 5) / 4,
		};
		bool at_donor = side_of(data[0]) == WIRE_AT_FAR_DONOR;
		uint8_t bytes[WIRE_HEADER + 128];
		uint32_t n;

		if (draw_below(&seed, 40) == 0)
			f.op = WIRE_BYE;
		/* Passed on to members alone. */
		if (at_donor && f.op == WIRE_FAR_NOTIFIED)
			f.op = WIRE_FAR_CAS;
		f.direction = at_donor || f.op == WIRE_FAR_NOTIFIED ? WIRE_REQUEST : WIRE_REPLY;
		f.length = random_length(&seed, &f);
		if (wire_far_moves(&f) || f.op == WIRE_FAR_ADD)
			f.offset = random_place(&seed);
		wire_build(bytes, &f);
		n = WIRE_HEADER + fill(&seed, &f, bytes + WIRE_HEADER);
		if (draw_below(&seed, 100) == 0)
			bytes[draw_below(&seed, WIRE_HEADER)] ^= (uint8_t)(1u
									   << draw_below(&seed, 8));
		for (uint32_t i = 0; i < n && at < size; i++)
			data[at++] = bytes[i];
	}
}
