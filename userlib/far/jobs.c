// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "extent.h"
#include "jobs.h"
#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "lib/rules/far_cycle.h"

/* A place is the arena's number and the offset in it, as in extent.c. */
#define ARENA_SHIFT 32

/* While another thread uses a handle, that one may take the reply. */
#define SHARED_MS 1

/* For the caller, unless it has left the call to the client. */
static void replied(void *data, int error)
{
	struct jobs_call *call = data;

	call->result = error;
	call->done_at = now_ns();
	if (__atomic_exchange_n(&call->state, JOBS_DONE, __ATOMIC_ACQ_REL) == JOBS_LEFT)
		free(call);
}

static void ignored(void *data, int error)
{
	(void)data;
	(void)error;
}

/* Returns the length that the reply must have, or the most; sets whether it may have less. */
static uint32_t reply_length(enum wire_job_op op, bool *any)
{
	*any = op == WIRE_JOB_TRACE || op == WIRE_JOB_END;
	switch (op) {
	case WIRE_JOB_HEAP:
		return WIRE_JOB_LIMITS_SIZE;
	case WIRE_JOB_EVACUATE:
		return WIRE_JOB_EVACUATED_SIZE;
	case WIRE_JOB_TRACE:
	case WIRE_JOB_END:
		return WIRE_JOB_MOST;
	default:
		return 0;
	}
}

void jobs_start(ebbfar_t *far, enum wire_job_op op, struct jobs_call *call)
{
	int r = member_check(far);

	call->far = far;
	call->op = op;
	call->got = 0;
	call->state = JOBS_UNSENT;
	if (r)
		replied(call, r);
}

/* Lock held. */
static void push(struct jobs_call *call)
{
	struct client_reply reply = { .to = call->reply, .got = &call->got, .done = replied,
				      .data = call };
	int r;

	reply.length = reply_length(call->op, &reply.any);
	call->state = JOBS_SENT;
	r = client_push(&call->far->client,
			(struct wire_frame){ .op = call->op, .length = call->length },
			call->payload, reply);
	if (r)
		replied(call, r);
}

/*
 * Goes on with the call without waiting.  Returns for how many ms to wait for *@p before the next
 * time.
 */
static int go_on(struct jobs_call *call, struct pollfd *p)
{
	struct client *c = &call->far->client;
	int ms = 0;

	p->fd = -1;
	if (pthread_mutex_trylock(&call->far->lock))
		return SHARED_MS;
	if (call->state == JOBS_UNSENT && c->count < CLIENT_REQUESTS)
		push(call);
	if (!jobs_is_done(call) && !client_go_on(c) && !jobs_is_done(call))
		ms = client_poll(c, p);
	pthread_mutex_unlock(&call->far->lock);
	return ms < SHARED_MS ? ms : SHARED_MS;
}

bool jobs_is_late(const struct jobs_wait *w)
{
	return now_ns() >= w->until || (w->late && w->late(w->data));
}

void jobs_settle(struct jobs_call *const *calls, uint32_t n, const struct jobs_wait *w)
{
	struct pollfd p[FAR_CYCLE_DONORS];
	uint32_t waits;

	for (;;) {
		int ms = SHARED_MS;

		waits = 0;
		for (uint32_t i = 0; i < n; i++) {
			int next = jobs_is_done(calls[i]) ? ms : go_on(calls[i], &p[waits]);

			ms = next < ms ? next : ms;
			waits += !jobs_is_done(calls[i]);
		}
		if (!waits || jobs_is_late(w))
			return;
		poll(p, waits, ms);
	}
}

void jobs_leave(struct jobs_call *call)
{
	if (__atomic_load_n(&call->state, __ATOMIC_RELAXED) == JOBS_UNSENT ||
	    __atomic_exchange_n(&call->state, JOBS_LEFT, __ATOMIC_ACQ_REL) == JOBS_DONE)
		free(call);
}

bool jobs_abort(ebbfar_t *far, uint32_t cycle, uint64_t began)
{
	uint64_t until = began + far->client.timeout * UINT64_C(1000000);
	const struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
	uint8_t payload[WIRE_JOB_END_SIZE];
	bool sent;

	if (member_check(far) || pthread_mutex_clocklock(&far->lock, CLOCK_MONOTONIC, &t))
		return false;
	wire_build_job_end(payload, &(struct wire_job_end){ cycle, WIRE_JOB_ABORT, 0 });
	sent = far->client.count < CLIENT_REQUESTS &&
	       !client_push(&far->client,
			    (struct wire_frame){ .op = WIRE_JOB_END, .length = sizeof(payload) },
			    payload, (struct client_reply){ .length = WIRE_JOB_ENDED_SIZE,
							    .done = ignored });
	if (sent)
		client_go_on(&far->client);
	pthread_mutex_unlock(&far->lock);
	return sent;
}

int jobs_do(ebbfar_t *far, enum wire_job_op op, struct jobs_call *call)
{
	jobs_start(far, op, call);
	if (jobs_is_done(call))
		return call->result;
	pthread_mutex_lock(&far->lock);
	push(call);
	client_settle(&far->client);
	pthread_mutex_unlock(&far->lock);
	return call->result;
}

int jobs_put_heap(struct jobs_call *call, uint64_t base, uint64_t mask, uint32_t regions,
		  const struct jobs_type *types, uint32_t n, uint32_t *next)
{
	struct wire_job_heap h = { base, mask, regions, 0 };
	uint32_t at = WIRE_JOB_HEAP_SIZE;

	for (; *next < n; ++*next, h.layouts++) {
		const struct layout *l = &types[*next].layout;
		struct wire_job_layout w = {
			types[*next].type, l->size, l->element_size, l->length_offset,
			(uint8_t)l->length_width, (uint8_t)l->runs, l->bitmap };
		struct wire_job_run runs[WIRE_JOB_RUNS] = { 0 };

		if (!layout_is_valid(l))
			return -EINVAL;
		if (at + WIRE_JOB_LAYOUT_SIZE + sizeof(runs) > WIRE_JOB_MOST)
			break;
		for (uint32_t i = 0; i < l->runs; i++)
			runs[i] = (struct wire_job_run){ l->run[i].offset, l->run[i].stride,
							 l->run[i].count };
		at += wire_put_job_layout(call->payload + at, &w, runs);
	}
	wire_build_job_heap(call->payload, &h);
	call->length = at;
	return 0;
}

int jobs_heap(ebbfar_t *far, uint64_t base, uint64_t mask, uint32_t regions,
	      const struct jobs_type *types, uint32_t n, struct wire_job_limits *limits)
{
	struct jobs_call *call = malloc(sizeof(*call));
	uint32_t next = 0;
	int r = call ? 0 : -ENOMEM;

	do {
		r = r ?: jobs_put_heap(call, base, mask, regions, types, n, &next) ?:
		    jobs_do(far, WIRE_JOB_HEAP, call);
	} while (!r && next < n);
	if (!r)
		r = wire_parse_job_limits(call->reply, call->got, limits);
	free(call);
	return r;
}

static uint32_t class_of(const struct ebbfar_extent *x)
{
	return x->size ? ebb_far_class(x->size) : 0;
}

static uint32_t put_place(uint8_t *to, const struct jobs_place *p)
{
	struct wire_job_place w = { .region = p->region, .version = p->version };
	uint32_t at = 0;

	if (p->slot_bytes)
		w = (struct wire_job_place){
			.region = p->region, .version = p->version, .slot_bytes = p->slot_bytes,
			.flags = p->leaf ? WIRE_JOB_LEAF : 0,
			.arena = (uint32_t)(p->extent.place >> ARENA_SHIFT),
			.class = class_of(&p->extent), .at = (uint32_t)p->extent.place,
			.generation = p->extent.generation, .base = p->base,
			.words = tablet_words(tablet_slots(p->slot_bytes)),
		};
	at = wire_put_job_place(to, &w);
	for (uint32_t i = 0; i < w.words; i++, at += 8)
		put64(to + at, p->live[i]);
	return at;
}

void jobs_put_places(struct jobs_call *call, const struct jobs_place *places, uint32_t n,
		     uint32_t *next)
{
	uint32_t at = 0;

	while (*next < n && at + WIRE_JOB_PLACE_SIZE + 8 * TABLET_WORDS <= WIRE_JOB_MOST)
		at += put_place(call->payload + at, &places[(*next)++]);
	call->length = at;
}

int jobs_place(ebbfar_t *far, const struct jobs_place *places, uint32_t n)
{
	struct jobs_call *call = malloc(sizeof(*call));
	int r = call ? 0 : -ENOMEM;

	for (uint32_t next = 0; !r && next < n;) {
		jobs_put_places(call, places, n, &next);
		r = jobs_do(far, WIRE_JOB_PLACE, call);
	}
	free(call);
	return r;
}

static void pause_us(uint32_t us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000l };

	nanosleep(&t, NULL);
}

/* Returns whether a reply to EVACUATE of @n regions at @base of @target can be one. */
static bool is_possible(const struct wire_job_evacuated *done, uint32_t job, uint32_t n,
			const struct ebbfar_extent *target, uint64_t base)
{
	return done->job == job && done->regions <= n && !done->regions == !!done->pause &&
	       done->bytes <= done->regions * TABLET_REGION && base + done->bytes <= target->size;
}

static void add_part(struct jobs_copy *copy, const struct wire_job_evacuated *next)
{
	copy->crc = next->crc;
	copy->bytes += next->bytes;
	copy->requests++;
}

int jobs_evacuate(ebbfar_t *far, uint32_t job, const struct ebbfar_extent *target, uint32_t base,
		  const struct jobs_keep *keep, uint32_t n, uint32_t wait_ms,
		  struct jobs_copy *copy)
{
	uint64_t until = now_ns() + wait_ms * UINT64_C(1000000);
	struct jobs_call *call = malloc(sizeof(*call));
	uint32_t pauses = 0;
	int r = call ? 0 : -ENOMEM;

	*copy = (struct jobs_copy){ 0 };
	for (uint32_t first = 0; !r && first < n;) {
		struct wire_job_evacuate e = {
			.job = job, .arena = (uint32_t)(target->place >> ARENA_SHIFT),
			.class = class_of(target), .base = base + copy->bytes,
			.at = (uint32_t)target->place, .generation = target->generation,
			.crc = copy->crc,
		};
		struct wire_job_evacuated done = { 0 };
		uint32_t at = WIRE_JOB_EVACUATE_SIZE, next = first;

		wire_build_job_evacuate(call->payload, &e);
		for (; next < n && at + WIRE_JOB_BITS_SIZE + 8 * keep[next].words <= WIRE_JOB_MOST;
		     next++) {
			at += wire_put_job_bits(call->payload + at, &(struct wire_job_bits){
				keep[next].region, keep[next].version, keep[next].words, NULL });
			for (uint32_t i = 0; i < keep[next].words; i++, at += 8)
				put64(call->payload + at, keep[next].keep[i]);
		}
		call->length = at;
		r = jobs_do(far, WIRE_JOB_EVACUATE, call) ?:
		    wire_parse_job_evacuated(call->reply, call->got, &done);
		pauses = done.pause ? pauses + 1 : 0;
		if (!r && (pauses > JOBS_PAUSES ||
			   !is_possible(&done, job, next - first, target,
					(uint64_t)base + copy->bytes)))
			r = -EPROTO;
		if (!r && !done.regions && wait_ms != JOBS_WAITS &&
		    now_ns() + done.pause * UINT64_C(1000) > until)
			r = -EAGAIN;
		if (!r && done.regions)
			add_part(copy, &done);
		else if (!r)
			pause_us(done.pause);
		first += r ? 0 : done.regions;
	}
	free(call);
	return r;
}
