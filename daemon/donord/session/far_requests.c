// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "donord/far/far_access.h"
#include "far_requests.h"
#include "lib/base/bytes.h"

static void end_connection(void *connection, const char *why)
{
	connection_drop(connection, why);
}

static bool notify(void *connection, const struct wire_far_word *w)
{
	struct connection *c = connection;
	const struct wire_frame f = { .op = WIRE_FAR_NOTIFIED, .tag = c->member->words,
				      .length = WIRE_FAR_MEMBER_SIZE };
	uint8_t payload[WIRE_FAR_MEMBER_SIZE];

	/* One waits: the next is the last one at the time when that has left. */
	if (c->fd < 0 || c->far_words || !connection_has_room(c))
		return false;
	wire_build_far_word(payload, w);
	connection_push(c, &f, payload, FAR_WORD);
	c->far_words = 1;
	connection_unsent(c);
	return true;
}

const struct far_ops far_requests_ops = { end_connection, notify };

uint16_t far_greet(struct connection *c)
{
	struct sessions *s = c->sessions;

	if (!s->far)
		return WIRE_NO_FAR;
	if (!c->far_results && s->far_results_unused) {
		c->far_results = s->far_results_unused;
		s->far_results_unused = c->far_results->next;
	} else if (!c->far_results) {
		c->far_results = malloc(sizeof(*c->far_results));
	}
	if (!c->far_results)
		return WIRE_NO_SPACE;
	memset(c->far_results, 0, sizeof(*c->far_results));
	return WIRE_OK;
}

bool far_begin(struct connection *c, const struct wire_frame *f, void **payload)
{
	struct sessions *s = c->sessions;

	if (!c->far_buffer && s->far_unused) {
		c->far_buffer = s->far_unused;
		s->far_unused = c->far_buffer->next;
	} else if (!c->far_buffer) {
		c->far_buffer = malloc(sizeof(*c->far_buffer));
	}
	if (!c->far_buffer)
		return false;
	/* No request is served before this payload is complete: nothing else uses the place. */
	c->far_arriving = c->far_buffer->bytes + c->far_used;
	if (wire_is_job(f))
		c->far_arriving += WIRE_JOB_MOST;
	if (f->op == WIRE_FAR_WRITE || wire_is_job(f))
		*payload = c->far_arriving;
	return true;
}

bool far_succeed(struct connection *c, struct connection *old)
{
	struct far_results *results = old->far_results;
	struct far_member *m = old->member;
	int fd = c->local ? c->fd : -1;

	/* What the old connection has sent must not take effect after this one's requests. */
	connection_hang_up(old);
	if (!m || !far_return(m, c, fd))
		return false;
	old->member = NULL;
	c->member = m;
	c->job_heap = old->job_heap;
	old->job_heap = NULL;
	old->far_results = c->far_results;
	c->far_results = results;
	return true;
}

void far_reply_copy(struct connection *c, const struct wire_frame *f, uint16_t st, uint32_t n)
{
	const uint8_t *payload = c->far_buffer->bytes + c->far_used;

	if (st != WIRE_OK) {
		connection_reply(c, f, st, NULL, 0, NO_SLAB);
		return;
	}
	c->far_used += n;
	c->far_waiting++;
	connection_reply(c, f, st, payload, n, FAR_REPLY);
}

static uint16_t open_pool(struct connection *c, const struct wire_far_pool *p,
			  struct wire_far_opened *o)
{
	struct far *far = c->sessions->far;
	struct far_pool *fp = far_find(far, c->borrower.key, p->name);
	uint16_t st;

	if (p->domain != WIRE_FAR_CPU)
		return WIRE_OTHER_DOMAIN;
	if (!fp)
		return WIRE_NO_POOL;
	/* A connection is one member. */
	if (c->member)
		return WIRE_NOT_GREETED;
	st = far_join(fp, c, c->local ? c->fd : -1, &c->member);
	if (st != WIRE_OK)
		return st;
	*o = (struct wire_far_opened){
		.identity = fp->identity, .member = c->member->number,
		.incarnation = c->member->incarnation, .flags = fp->flags, .arenas = fp->arenas,
		.sections = far->sections,
	};
	return WIRE_OK;
}

static int serve_pool(struct connection *c, const struct wire_frame *f)
{
	struct far *far = c->sessions->far;
	struct wire_far_opened o = { 0 };
	uint8_t payload[WIRE_FAR_OPENED_SIZE];
	struct wire_far_pool p;
	uint16_t st;

	if (wire_parse_far_pool(c->small, f->length, &p))
		return -EPROTO;
	far_changes(far);
	/* Others go first in the next turn, here and when it adds an arena. */
	c->sessions->last_far = c->number;
	if (p.verb == WIRE_FAR_CREATE)
		st = far_create(far, c->borrower.key, &p);
	else if (p.verb == WIRE_FAR_DESTROY)
		st = far_destroy(far, c->borrower.key, &p);
	else
		st = open_pool(c, &p, &o);
	wire_build_far_opened(payload, &o);
	connection_reply(c, f, st, payload, st == WIRE_OK ? sizeof(payload) : 0, NO_SLAB);
	return 0;
}

static int serve_list(struct connection *c, const struct wire_frame *f)
{
	struct wire_far_listed list[WIRE_FAR_POOLS];
	uint32_t n = far_list(c->sessions->far, c->borrower.key, list);
	uint8_t *to = c->far_buffer->bytes + c->far_used;

	for (uint32_t i = 0; i < n; i++)
		wire_build_far_listed(to + i * WIRE_FAR_LISTED_SIZE, &list[i]);
	far_reply_copy(c, f, WIRE_OK, n * WIRE_FAR_LISTED_SIZE);
	return 0;
}

/* At a unix socket the reply carries the arena's descriptor. */
static void serve_arena(struct connection *c, const struct wire_frame *f)
{
	struct far_pool *fp = c->member->pool;
	struct pool *p = c->sessions->pool;
	struct wire_frame reply = *f;
	uint16_t st;

	c->sessions->last_far = c->number;
	st = far_arena(fp, f->slab);
	if (st == WIRE_OK && c->local)
		st = far_will_map(c->member);
	if (st != WIRE_OK || !c->local) {
		connection_reply(c, f, st, NULL, 0, NO_SLAB);
		return;
	}
	reply.direction = WIRE_REPLY;
	connection_waits(c);
	stream_push_fd(&c->tx, &reply, pool_hand_over(p, fp->slabs[f->slab]), NO_SLAB);
}

/* Replies with the old words of a request that changes something. */
static void reply_result(struct connection *c, const struct wire_frame *f, uint16_t st,
			 const uint64_t *old, uint32_t n)
{
	if (st != WIRE_OK || !n) {
		connection_reply(c, f, st, NULL, 0, NO_SLAB);
		return;
	}
	for (uint32_t i = 0; i < n; i++)
		put64(c->far_buffer->bytes + c->far_used + i * WIRE_FAR_WORD_SIZE, old[i]);
	far_reply_copy(c, f, st, n * WIRE_FAR_WORD_SIZE);
}

/* ... and keeps the result for a member that repeats the request. */
static void conclude(struct connection *c, const struct wire_frame *f, uint16_t st,
		     const uint64_t *old, uint32_t n)
{
	if (c->keeps)
		far_results_add(c->far_results, f, st, old, n);
	reply_result(c, f, st, old, n);
}

static void serve_cas(struct connection *c, const struct wire_frame *f)
{
	uint32_t n = f->length / WIRE_FAR_SWAP_SIZE;
	struct wire_far_swap swaps[WIRE_FAR_SWAPS] = { 0 };
	uint64_t old[WIRE_FAR_SWAPS] = { 0 };
	uint16_t st;

	for (uint32_t i = 0; i < n; i++)
		swaps[i] = wire_get_far_swap(c->small, i);
	st = far_cas(c->member, f->slab, swaps, n, old);
	conclude(c, f, st, old, n);
}

static void serve_add(struct connection *c, const struct wire_frame *f)
{
	uint64_t old = 0;
	uint16_t st = far_add_word(c->member, f->slab, f->offset, get64(c->small), &old);

	conclude(c, f, st, &old, 1);
}

static int serve_word(struct connection *c, const struct wire_frame *f)
{
	struct wire_far_word w;
	uint16_t st;

	if (wire_parse_far_word(c->small, f->length, &w) || (f->op == WIRE_FAR_DEAD && w.word))
		return -EPROTO;
	st = f->op == WIRE_FAR_NOTIFY ? far_notify(c->member, &w) : far_kill(c->member, w.member);
	conclude(c, f, st, NULL, 0);
	return 0;
}

static int serve(struct connection *c, const struct wire_frame *f)
{
	uint16_t st;

	c->sessions->far->counts.requests[f->op - WIRE_FAR_POOL]++;
	if (f->op == WIRE_FAR_POOL)
		return serve_pool(c, f);
	if (f->op == WIRE_FAR_LIST)
		return serve_list(c, f);
	if (!c->member) {
		connection_reply(c, f, WIRE_NO_POOL, NULL, 0, NO_SLAB);
		return 0;
	}
	switch (f->op) {
	case WIRE_FAR_ARENA:
		serve_arena(c, f);
		return 0;
	case WIRE_FAR_READ:
		st = far_read(c->member, f->slab, f->offset, c->far_buffer->bytes + c->far_used,
			      f->length);
		far_reply_copy(c, f, st, f->length);
		return 0;
	case WIRE_FAR_WRITE:
		st = far_write(c->member, f->slab, f->offset, c->far_arriving, f->length);
		conclude(c, f, st, NULL, 0);
		return 0;
	case WIRE_FAR_CAS:
		serve_cas(c, f);
		return 0;
	case WIRE_FAR_ADD:
		serve_add(c, f);
		return 0;
	case WIRE_FAR_NOTIFY:
	case WIRE_FAR_DEAD:
		return serve_word(c, f);
	default:
		return -EPROTO;
	}
}

int far_request(struct connection *c, const struct wire_frame *f)
{
	const struct far_result *r = NULL;
	struct wire_frame once = *f;

	once.generation = 0;
	if (f->generation == WIRE_FAR_REPEATED)
		r = far_results_find(c->far_results, f);
	if (!r)
		return serve(c, &once);
	reply_result(c, &once, r->status, r->old, r->words);
	return 0;
}
