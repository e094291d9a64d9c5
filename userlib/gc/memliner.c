// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * The order that follows the program: MemLiner (Wang, Ma et al., OSDI 2022; Ma's dissertation,
 * section 4.3.2.3, algorithms 6 and 7).
 *
 * Fresh work is taken last in first out, postponed work first in first out once there is no fresh
 * work: the paper's one tracing queue with a stack's locality.  Objects are marked when they are
 * traced, so that a postponed one is still noted when the program touches it.
 */
#include <stdlib.h>
#include "heap.h"

#define LOOK_AHEAD 8		/* objects between the prefetch of one and its tracing */
#define RED_EVERY 8		/* objects between two looks at what was noted */
#define LOOK_EVERY 128		/* objects between two looks at the clock */
#define EXPLORE_MAX 8192u	/* objects explored from one that was noted, for wide ones */
/* Remarks in a cycle after which a pause waits for pages rather than put them off again. */
#define REMARKS_MAX 4

static bool marked(const struct ebbgc_heap *h, uint64_t object)
{
	return bit_test(h->marks, granule_of(h, object));
}

static bool later_push(struct tracer *t, uint64_t work)
{
	struct chunk *c = t->later_tail;

	if (!c || c->count == CHUNK_ENTRIES) {
		c = malloc(sizeof(*c));
		if (!c)
			return false;
		c->count = 0;
		c->next = NULL;
		if (t->later_tail)
			t->later_tail->next = c;
		else
			t->later = c;
		t->later_tail = c;
	}
	c->entries[c->count++] = work;
	return true;
}

/* The stack is empty: the oldest postponed work goes there. */
static bool later_take(struct tracer *t)
{
	struct chunk *c = t->later;

	if (!c)
		return false;
	t->later = c->next;
	if (!t->later)
		t->later_tail = NULL;
	/* The oldest on top. */
	for (size_t i = c->count; i-- > 0;)
		t->stack[t->depth++] = c->entries[i];
	free(c);
	return true;
}

/* Does it reach beyond the page on which it begins? */
static bool on_pages(const struct ebbgc_heap *h, uint64_t object, uint8_t kind)
{
	return kind >= SMALL_KINDS ||
	       (object & (PAGE_BYTES - 1)) - HEADER + h->slot_size[kind] > PAGE_BYTES;
}

static bool trace_now(struct tracer *t, uint64_t object)
{
	struct ebbgc_heap *h = t->heap;
	uint8_t kind = h->kinds[region_of(h, object)];

	if (!mark_now(t, object, kind))
		return false;
	if ((h->options.features & EBBGC_PARK) && on_pages(h, object, kind))
		slices_trace(t, object);
	else
		trace_object(t, object);
	if (h->options.features & EBBGC_EXACT)
		residency_touched(&h->residency, page_of(h, object));
	return true;
}

/* True if the work was put off. */
static bool put_off(struct tracer *t, uint64_t work, uint64_t deadline)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t count = work & WORK_FORCED;

	if (count == WORK_FORCED || !location_far(h, work))
		return false;
	if (h->options.features & EBBGC_PARK) {
		/* A pause does not wait for it: marking goes on beside the program. */
		if (t->hurried)
			return false;
		park_object(t, work & WORK_ADDRESS);
	} else if (deadline || count >= location_delays(h) || !later_push(t, work + 1)) {
		return false;
	}
	t->counts.postponed++;
	return true;
}

/* EXPLORE of algorithm 7: trace_object() comes back here for every reference it finds. */
static void memliner_add(struct tracer *t, uint64_t work)
{
	if (t->explore_left && t->hops < t->heap->options.depth) {
		/* With parking the program brings in what it needs; the paper's collector may, too. */
		if ((t->heap->options.features & EBBGC_PARK) && put_off(t, work & ~WORK_FORCED, 0))
			return;
		t->explore_left--;
		t->hops++;
		t->counts.explored += trace_now(t, work & WORK_ADDRESS);
		t->hops--;
		return;
	}
	__builtin_prefetch(header_of(work & WORK_ADDRESS));
	work_push(t, work & ~WORK_FORCED);
}

/* The program has just touched it: true if it was not marked. */
static bool red(struct tracer *t, uint64_t object)
{
	uint8_t kind = t->heap->kinds[region_of(t->heap, object)];
	bool fresh;

	if (kind_is_leaf(kind))
		return mark_now(t, object, kind);
	t->hops = 0;
	t->explore_left = EXPLORE_MAX;
	fresh = trace_now(t, object);
	t->explore_left = 0;
	return fresh;
}

static void page_is_in(struct tracer *t, uint64_t address)
{
	struct ebbgc_heap *h = t->heap;

	if (h->options.features & EBBGC_EXACT)
		residency_touched(&h->residency, page_of(h, address));
	if (h->options.features & EBBGC_PARK)
		park_wake(t, page_of(h, address));
}

/* What the program faults on it touches without a note, too. */
static void arrived(struct tracer *t, const struct arrival *a)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object;

	if (a->collectors || !(h->options.features & EBBGC_ARRIVALS))
		return;
	/* What is new was marked before its slot was seen to be taken. */
	object = object_containing(h, a->address);
	/* Its first page, which the fault need not have been on, may be out. */
	if (object && !((h->options.features & EBBGC_EXACT) && location_far(h, object)))
		t->counts.arrived += red(t, object);
}

void memliner_arrivals(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	struct hints hints = { .count = 0 };
	struct arrival a;

	while (arrivals_next(h, &a)) {
		page_is_in(t, a.address);
		/* Before tracing: reading takes its time. */
		if (!a.collectors && (h->options.features & EBBGC_HINTS)) {
			hints_add(h, &hints, a.address);
			hints_send(h, &hints);
		}
		arrived(t, &a);
	}
}

/*
 * What the program touches is in memory, so it and what lies around it is traced at once.  At
 * *noting_at more of it is asked for.
 */
static void red_pass(struct tracer *t, uint64_t *noting_at)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object, now = now_ns();

	if (now >= *noting_at) {
		*noting_at = now + NOTES_EVERY_NS;
		notes_want(h);
	}

	while ((object = notes_next(h))) {
		page_is_in(t, object);
		t->counts.red += red(t, object);
	}
	if (arrivals_waiting(&h->arrivals))
		memliner_arrivals(t);
}

static bool parked(const struct ebbgc_heap *h)
{
	return h->park.objects && __atomic_load_n(&h->park.count, __ATOMIC_RELAXED);
}

static void work_do(struct tracer *t, uint64_t work, uint64_t deadline)
{
	if (!(work & WORK_OBJECT))
		slice_trace(t, work & WORK_ADDRESS);
	else if (!marked(t->heap, work & WORK_ADDRESS) && !put_off(t, work, deadline))
		trace_now(t, work & WORK_ADDRESS);
}

static bool memliner_drain(struct tracer *t, uint64_t deadline)
{
	struct ebbgc_heap *h = t->heap;
	struct marker *mk = &h->marker;
	uint64_t ahead[LOOK_AHEAD] = { 0 };
	unsigned int turn = 0, idle = 0;
	uint64_t noting_at = 0;

	t->hurried = deadline && h->cycle_remarks >= REMARKS_MAX;
	for (;;) {
		uint64_t work = ahead[turn % LOOK_AHEAD];

		/* Notes are hints; a pause has no time for them. */
		if (!deadline && turn % RED_EVERY == 0)
			red_pass(t, &noting_at);
		if (t->depth || work_take(t) || (idle >= LOOK_AHEAD && later_take(t))) {
			ahead[turn % LOOK_AHEAD] = t->stack[--t->depth];
			__builtin_prefetch(header_of(ahead[turn % LOOK_AHEAD] & WORK_ADDRESS));
			idle = 0;
		} else {
			ahead[turn % LOOK_AHEAD] = 0;
			if (++idle > LOOK_AHEAD && !work) {
				if (deadline || marking_abandoned(h) || !park_step(t))
					return !parked(h);
				idle = 0;
			}
		}
		turn++;
		if (work)
			work_do(t, work, deadline);
		if (turn % (deadline ? PAUSE_EVERY : LOOK_EVERY))
			continue;
		if (marking_abandoned(h))
			return false;
		if (deadline && now_ns() > deadline) {
			for (size_t i = 0; i < LOOK_AHEAD; i++)
				if (ahead[i])
					work_push(t, ahead[i]);
			return false;
		}
		if (!deadline) {
			location_look(h);
			park_look(t);
		}
		if (t->depth > 64 && __atomic_load_n(&mk->hungry, __ATOMIC_RELAXED))
			work_share(t);
	}
}

void memliner_begin(struct ebbgc_heap *h)
{
	if (h->options.mode != EBBGC_MEMLINER)
		return;
	h->marker.order = location_scarce(h) ? &order_memliner : &order_depth_first;
	h->marker.late = h->marker.order->marks_late;
	notes_clear(h);
	arrivals_clear(&h->arrivals);
	h->park.idle = 0;
	h->park.idle_scan = __atomic_load_n(&h->residency.scans, __ATOMIC_RELAXED);
	h->park.cursor = 0;
	h->park.asked_count = h->park.traced_count = 0;
	h->cycle_remarks = 0;
	for (unsigned int i = 0; i < h->marker.tracer_count; i++)
		h->marker.tracers[i].counts = (struct order_counts){ 0 };
}

void memliner_count(struct ebbgc_heap *h)
{
	struct ebbgc_stats *s = &h->stats;

	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		const struct order_counts *c = &h->marker.tracers[i].counts;

		s->red_objects += c->red;
		s->explored_objects += c->explored;
		s->postponed += c->postponed;
		s->parked_objects += c->parked;
		s->woken_objects += c->woken;
		s->fetch_calls += c->fetch_calls;
		s->fetched_pages += c->fetched;
		s->cooled_pages += c->cooled;
		s->arrived_objects += c->arrived;
	}
}

const struct order order_memliner = {
	.name = "memliner",
	.marks_late = true,
	.add = memliner_add,
	.drain = memliner_drain,
};
