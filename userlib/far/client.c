// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"

/*
 * A reply may take several time-outs while bytes move, but not for ever: a donor could send a byte
 * at a time.
 */
#define REPLY_TIMEOUTS 8
#define RECEIVE_BYTES (1u << 20) /* at a time */
/* Calls that wait go on more often, a time-out apart at most. */
#define ABSENT_MS 100

int client_errno(uint16_t status)
{
	switch (status) {
	case WIRE_OK:
		return 0;
	case WIRE_NO_SPACE:
	case WIRE_OVER_QUOTA:
		return -ENOSPC;
	case WIRE_NO_KEY:
	case WIRE_NOT_OWNER:
		return -EACCES;
	case WIRE_BAD_VERSION:
		return -EPROTONOSUPPORT;
	case WIRE_NO_FAR:
	case WIRE_NO_JOBS:
		return -EOPNOTSUPP;
	case WIRE_NO_POOL:
		return -ENOENT;
	case WIRE_POOL_EXISTS:
		return -EEXIST;
	case WIRE_POOL_IN_USE:
		return -EBUSY;
	case WIRE_OTHER_DOMAIN:
		return -EXDEV;
	case WIRE_NO_MEMBER:
		return -ESRCH;
	case WIRE_NO_SLAB:
	case WIRE_BAD_RANGE:
	case WIRE_MISALIGNED:
		return -EINVAL;
	default:
		return -EPROTO;
	}
}

/* Of the reply @f: statuses of jobs are those of no other request. */
static int errno_of(const struct wire_frame *f)
{
	switch (wire_is_job(f) ? f->status : WIRE_OK) {
	case WIRE_STALE:
	case WIRE_OLD_VERSION:
	case WIRE_OLD_CYCLE:
		return -ESTALE;
	case WIRE_NO_HEAP:
		return -ENXIO;
	case WIRE_CYCLE_RUNS:
		return -EBUSY;
	case WIRE_BAD_LAYOUT:
	case WIRE_BAD_REGION:
		return -EINVAL;
	default:
		return client_errno(f->status);
	}
}

/* --- replies ---------------------------------------------------------------------- */

static bool is_hello_reply(const struct client *c, const struct wire_frame *f)
{
	return f->op == WIRE_HELLO && f->tag == c->hello_tag && !c->replied &&
	       stream_tx_has_left(&c->tx, c->hello_entry) &&
	       (f->status || f->length == WIRE_DONOR_SIZE);
}

static int arrived(void *data, const struct wire_frame *f, void **payload)
{
	struct client *c = data;
	const struct client_request *q = &c->requests[c->first];

	*payload = c->small;
	if (f->op == WIRE_FAR_NOTIFIED)
		return 0;
	if (c->state == CLIENT_GREETING)
		return is_hello_reply(c, f) ? 0 : -EPROTO;
	if (!c->count || f->op != q->f.op || f->tag != q->f.tag ||
	    !stream_tx_has_left(&c->tx, q->entry))
		return -EPROTO;
	if (!f->status && (q->reply.any ? f->length > q->reply.length :
					  f->length != q->reply.length))
		return -EPROTO;
	*payload = q->reply.to ?: c->small;
	return 0;
}

static void keep_word(struct client *c, uint64_t number)
{
	struct wire_far_word *at = &c->words[(c->first_word + c->word_count) % CLIENT_WORDS];

	/* After a reconnection the donor repeats the last one. */
	if (number && number <= c->last_word)
		return;
	c->last_word = number;
	if (c->word_count == CLIENT_WORDS) {
		c->first_word = (c->first_word + 1) % CLIENT_WORDS;
		c->word_count--;
	}
	if (!wire_parse_far_word(c->small, WIRE_FAR_MEMBER_SIZE, at))
		c->word_count++;
}

/* Returns the oldest request, which is not one that waits any more. */
static struct client_request *pop(struct client *c)
{
	struct client_request *q = &c->requests[c->first];

	c->first = (c->first + 1) % CLIENT_REQUESTS;
	c->count--;
	return q;
}

static int finished(void *data, const struct wire_frame *f)
{
	struct client *c = data;
	struct client_request *q;
	struct client_reply *r;

	if (f->op == WIRE_FAR_NOTIFIED) {
		keep_word(c, f->tag);
		return 0;
	}
	if (c->state == CLIENT_GREETING) {
		c->replied = true;
		c->status = f->status;
		return f->status ? 0 : wire_parse_donor(c->small, f->length, &c->told);
	}
	/* A status that the request cannot have. */
	if (errno_of(f) == -EPROTO)
		return -EPROTO;
	q = pop(c);
	r = &q->reply;
	c->reply_at = now_ms();
	c->stalled = false;
	if (!f->status && r->got)
		*r->got = f->length;
	if (!f->status && r->fd)
		*r->fd = stream_take_fd(&c->rx);
	for (uint32_t i = 0; !f->status && r->words && i < r->length / 8; i++)
		((uint64_t *)r->to)[i] = le64toh(((uint64_t *)r->to)[i]);
	if (r->done)
		r->done(r->data, errno_of(f));
	else
		c->refusal = c->refusal ?: f->status;
	return 0;
}

/*
 * READs of bytes: their memory may hold anything until they complete, also if they are refused.
 * That of words stays as it is then.
 */
static uint32_t expected(void *data, struct stream_expected *frames, uint32_t most)
{
	const struct client *c = data;
	uint32_t n = 0, arriving = c->rx.busy && c->rx.frame.op != WIRE_FAR_NOTIFIED;

	for (; arriving + n < c->count && n < most && c->state == CLIENT_UP; n++) {
		const struct client_request *q =
			&c->requests[(c->first + arriving + n) % CLIENT_REQUESTS];

		if (q->f.op != WIRE_FAR_READ || q->reply.words)
			break;
		frames[n] = (struct stream_expected){ q->reply.to, q->reply.length };
	}
	return n;
}

const struct stream_rx_ops client_rx_ops = {
	.arrived = arrived, .finished = finished, .expected = expected,
};

void client_end(struct client *c, int error, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(c->why, sizeof(c->why), fmt, args);
	va_end(args);
	__atomic_store_n(&c->lost, error, __ATOMIC_RELEASE);
	while (c->count) {
		struct client_request *q = pop(c);

		if (q->reply.done)
			q->reply.done(q->reply.data, error);
	}
}

/* --- requests --------------------------------------------------------------------- */

static void check_time(struct client *c)
{
	uint64_t moved = c->rx.moved + c->tx.moved;
	int64_t now = now_ms();

	c->driven_at = now;
	if (moved != c->moved)
		c->heard_at = now;
	c->moved = moved;
	if (c->count && (now - c->heard_at > c->timeout ||
			 now - c->reply_at > REPLY_TIMEOUTS * (int64_t)c->timeout))
		c->connector->cut(c, -ETIMEDOUT);
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/*
 * The time since the last call of the program is not the donor's.  It counts as half a time-out, so
 * that a program that looks now and then learns that its donor is silent.
 */
static void discount_absence(struct client *c)
{
	int64_t now = now_ms(), idle = now - c->driven_at, shift = idle - c->timeout / 2;

	if (!c->count || idle <= 2 * (int64_t)c->timeout + ABSENT_MS)
		return;
	c->heard_at = least(now, c->heard_at + shift);
	c->reply_at = least(now, c->reply_at + shift);
	c->give_up_at += shift;
}

bool client_go_on(struct client *c)
{
	int r;

	if (!c->lost && c->state != CLIENT_UP)
		c->connector->resume(c);
	if (c->lost || c->state != CLIENT_UP)
		return false;
	discount_absence(c);
	r = stream_flush(&c->tx, c->fd, NULL, NULL);
	if (r >= 0)
		r = stream_receive(&c->rx, c->fd, RECEIVE_BYTES, &client_rx_ops, c);
	if (r < 0)
		c->connector->cut(c, r);
	else
		check_time(c);
	return !c->lost && (r == 1 || c->state != CLIENT_UP);
}

int client_poll(const struct client *c, struct pollfd *p)
{
	int64_t until = c->state == CLIENT_CUT ? c->retry_at :
			c->state != CLIENT_UP ? c->attempt_end :
			c->count ? c->heard_at + c->timeout : INT64_MAX;
	int64_t left = until - now_ms();

	*p = (struct pollfd){ .fd = c->fd, .events = POLLIN };
	if (c->state == CLIENT_CONNECTING || (c->state == CLIENT_SECURING && c->tls.wants_write))
		p->events = POLLOUT;
	else if (c->state != CLIENT_SECURING && c->tx.count)
		p->events |= POLLOUT;
	return left < 0 ? 0 : left < INT_MAX ? (int)left + 1 : INT_MAX;
}

void client_pause(const struct client *c, int most_ms)
{
	struct pollfd p;
	int ms = client_poll(c, &p);

	poll(&p, 1, ms < most_ms ? ms : most_ms);
}

int client_settle(struct client *c)
{
	while (c->count && !c->lost)
		if (!client_go_on(c) && c->count && !c->lost)
			client_pause(c, INT_MAX);
	c->status = c->lost ? 0 : c->refusal;
	c->refusal = 0;
	return c->lost ?: client_errno(c->status);
}

int client_push(struct client *c, struct wire_frame f, const void *payload,
		struct client_reply reply)
{
	uint32_t length = wire_payload(&f);
	struct client_request *q;

	while (c->count == CLIENT_REQUESTS && !c->lost)
		if (!client_go_on(c) && c->count == CLIENT_REQUESTS && !c->lost)
			client_pause(c, INT_MAX);
	if (c->lost)
		return c->lost;
	f.tag = ++c->tag;
	if (!c->count)
		c->heard_at = c->reply_at = now_ms();
	q = &c->requests[(c->first + c->count++) % CLIENT_REQUESTS];
	q->f = f;
	q->reply = reply;
	q->payload = length > STREAM_INLINE ? payload : NULL;
	if (length && length <= STREAM_INLINE)
		memcpy(q->bytes, payload, length);
	q->entry = stream_tx_next(&c->tx);
	/* The queue has a place for each.  A connection that is made again sends them all. */
	if (c->state == CLIENT_UP)
		stream_push(&c->tx, &f, payload, 0);
	return 0;
}

/* --- verbs ------------------------------------------------------------------------ */

static int push_swaps(struct client *c, uint32_t arena, const struct far_verb *verb)
{
	int r = 0;

	for (uint32_t i = 0; i < verb->swaps && !r; i += WIRE_FAR_SWAPS) {
		uint32_t n = verb->swaps - i < WIRE_FAR_SWAPS ? verb->swaps - i : WIRE_FAR_SWAPS;
		uint8_t *payload = c->swaps[i / WIRE_FAR_SWAPS];

		for (uint32_t k = 0; k < n; k++) {
			const struct far_swap *s = &verb->swap[i + k];

			wire_put_far_swap(payload, k, &(struct wire_far_swap){
				s->at, s->expect, s->desired });
		}
		r = client_push(c, (struct wire_frame){ .op = WIRE_FAR_CAS, .slab = arena,
							.length = n * WIRE_FAR_SWAP_SIZE },
				payload, (struct client_reply){ .length = n * WIRE_FAR_WORD_SIZE,
								.to = verb->old + i,
								.words = true });
	}
	return r;
}

/* Of the reply, nothing is needed: a hint that is wrong costs time. */
static int post(struct client *c, uint32_t arena, const struct far_verb *verb)
{
	uint8_t payload[8];

	put64(payload, verb->word);
	return client_push(c, (struct wire_frame){ .op = WIRE_FAR_WRITE, .slab = arena,
						   .offset = (uint32_t)verb->at,
						   .length = verb->bytes },
			   payload, (struct client_reply){ 0 });
}

int client_execute(struct client *c, uint32_t arena, const struct far_verb *verb)
{
	int r;

	if (verb->kind == FAR_POST)
		return post(c, arena, verb);
	r = push_swaps(c, arena, verb);
	for (uint32_t i = 0; i < verb->reads && !r; i++)
		r = client_push(c, (struct wire_frame){
					.op = WIRE_FAR_READ, .slab = arena,
					.offset = (uint32_t)verb->read[i].at,
					.length = 8 * verb->read[i].words },
				NULL, (struct client_reply){ .length = 8 * verb->read[i].words,
							     .to = verb->read[i].to,
							     .words = true });
	return r ?: client_settle(c);
}
