// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Batches: requests that are submitted together and completed later.
 *
 * A request is sent when it is submitted, if there is room for its frames and none waits before it.
 * What is left is begun by ebbfar_complete(), which also executes allocations: they take several
 * verbs that depend on each other.  The donor executes frames in the order of sending.
 */
#include <errno.h>
#include <string.h>

#include "extent.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/rules/far_memory.h"

/* Other threads may have received what this one waits for. */
#define LOOK_MS 50

static void append(struct batch *b, struct ebbfar_request *q)
{
	q->next = NULL;
	if (b->last)
		b->last->next = q;
	else
		b->first = q;
	b->last = q;
}

static struct ebbfar_request *pop(struct batch *b)
{
	struct ebbfar_request *q = b->first;

	b->first = q->next;
	if (!b->first)
		b->last = NULL;
	return q;
}

static void complete(struct ebbfar_request *q, int result)
{
	q->result = result;
	append(&q->far->complete, q);
}

/* A frame of the request has its reply. */
static void replied(void *data, int error)
{
	struct ebbfar_request *q = data;

	q->result = q->result ?: error;
	if (!--q->parts)
		complete(q, q->result);
}

/* --- execution -------------------------------------------------------------------- */

static void execute(struct ebbfar_request *q, uint8_t *base, uint64_t at)
{
	if (q->op == EBBFAR_READ)
		far_copy_out(q->memory, base, at, q->size);
	else if (q->op == EBBFAR_WRITE)
		far_copy_in(base, at, q->memory, q->size);
	else if (q->op == EBBFAR_CAS)
		q->old = far_swap(base, at, q->expect, q->desired);
	else
		q->old = far_add(base, at, q->desired);
	complete(q, 0);
}

static void push(struct ebbfar_request *q, struct wire_frame f, const void *payload, void *to,
		 uint32_t length)
{
	struct client_reply reply = { .length = length, .to = to, .done = replied, .data = q,
				      .words = to == &q->old };
	int r = client_push(&q->far->client, f, payload, reply);

	if (r)
		replied(q, r);
}

static void send_word(struct ebbfar_request *q, struct wire_frame f)
{
	uint8_t payload[WIRE_FAR_SWAP_SIZE];

	q->parts = 1;
	if (q->op == EBBFAR_CAS) {
		f.op = WIRE_FAR_CAS;
		f.length = WIRE_FAR_SWAP_SIZE;
		wire_put_far_swap(payload, 0, &(struct wire_far_swap){ f.offset, q->expect,
								       q->desired });
		f.offset = 0;
	} else {
		f.op = WIRE_FAR_ADD;
		f.length = WIRE_FAR_WORD_SIZE;
		put64(payload, q->desired);
	}
	push(q, f, payload, &q->old, WIRE_FAR_WORD_SIZE);
}

static void send_bytes(struct ebbfar_request *q, struct wire_frame f)
{
	bool reads = q->op == EBBFAR_READ;
	uint32_t parts = q->parts;
	uint8_t *memory = q->memory;
	size_t left = q->size;

	f.op = reads ? WIRE_FAR_READ : WIRE_FAR_WRITE;
	/* The request may be complete, and the program's, after the last push. */
	for (uint32_t i = 0; i < parts; i++) {
		f.length = left < WIRE_FAR_MOST ? (uint32_t)left : WIRE_FAR_MOST;
		push(q, f, memory, reads ? memory : NULL, reads ? f.length : 0);
		memory += f.length;
		f.offset += f.length;
		left -= f.length;
	}
}

static bool is_word(const struct ebbfar_request *q)
{
	return q->op == EBBFAR_CAS || q->op == EBBFAR_ADD;
}

/* Returns how many frames it takes. */
static uint32_t frames_of(const struct ebbfar_request *q)
{
	return is_word(q) ? 1 : (uint32_t)((q->size + WIRE_FAR_MOST - 1) / WIRE_FAR_MOST);
}

/* Begins an access; returns false if there is no room for its frames now. */
static bool begin_access(ebbfar_t *far, struct ebbfar_request *q)
{
	size_t size = is_word(q) ? 8 : q->size;
	struct wire_frame f;
	uint8_t *base;
	int r = is_word(q) && q->offset % 8 ? -EINVAL : far->client.lost && !far->maps ?
		far->client.lost : extent_find(far, &q->extent, q->offset, size, &f, &base);

	if (r || !size) {
		complete(q, r);
		return true;
	}
	if (base) {
		execute(q, base, f.offset);
		return true;
	}
	q->parts = frames_of(q);
	if (CLIENT_REQUESTS - far->client.count < q->parts)
		return false;
	if (is_word(q))
		send_word(q, f);
	else
		send_bytes(q, f);
	return true;
}

static void begin_waiting(ebbfar_t *far)
{
	while (far->waiting.first) {
		struct ebbfar_request *q = pop(&far->waiting);
		bool allocates = q->op == EBBFAR_ALLOC;

		if (allocates || q->op == EBBFAR_FREE) {
			complete(q, far->client.lost ?: allocates ?
				 extent_allocate(far, q->size, &q->extent) :
				 extent_free(far, &q->extent));
			continue;
		}
		if (begin_access(far, q))
			continue;
		q->next = far->waiting.first;
		far->waiting.first = q;
		far->waiting.last = far->waiting.last ?: q;
		return;
	}
}

/* --- the interface ---------------------------------------------------------------- */

int ebbfar_submit(ebbfar_t *far, struct ebbfar_request *requests, size_t n)
{
	int r = member_check(far);

	for (size_t i = 0; i < n && !r; i++)
		if (requests[i].op < EBBFAR_READ || requests[i].op > EBBFAR_FREE)
			r = -EINVAL;
	if (r)
		return r;
	pthread_mutex_lock(&far->lock);
	for (size_t i = 0; i < n; i++) {
		struct ebbfar_request *q = &requests[i];
		uint32_t arena = (uint32_t)(q->extent.place >> 32);

		q->far = far;
		q->result = 0;
		far->submitted++;
		/* An arena that is not known takes a round trip. */
		if (far->waiting.first || q->op == EBBFAR_ALLOC || q->op == EBBFAR_FREE ||
		    arena >= far->arenas || (far->maps && !member_memory(far, arena)) ||
		    !begin_access(far, q))
			append(&far->waiting, q);
	}
	client_go_on(&far->client);
	pthread_mutex_unlock(&far->lock);
	return 0;
}

/* Returns 0, -EAGAIN, or -ENOENT. */
static int take(ebbfar_t *far, struct ebbfar_request **request)
{
	begin_waiting(far);
	while (!far->complete.first && client_go_on(&far->client))
		begin_waiting(far);
	if (!far->complete.first)
		return far->submitted ? -EAGAIN : -ENOENT;
	*request = pop(&far->complete);
	far->submitted--;
	return 0;
}

int ebbfar_complete(ebbfar_t *far, int timeout_ms, struct ebbfar_request **request)
{
	int64_t end = now_ms() + timeout_ms;

	for (;;) {
		struct pollfd p;
		int64_t left;
		int ms, r = member_check(far);

		if (r)
			return r;
		pthread_mutex_lock(&far->lock);
		r = take(far, request);
		ms = client_poll(&far->client, &p);
		pthread_mutex_unlock(&far->lock);
		left = timeout_ms < 0 ? LOOK_MS : end - now_ms();
		if (r != -EAGAIN || left <= 0)
			return r;
		ms = ms < LOOK_MS ? ms : LOOK_MS;
		poll(&p, 1, left < ms ? (int)left : ms);
	}
}
