// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include "arrivals.h"
#include "forward.h"
#include "hints.h"
#include "location.h"
#include "mark.h"
#include "notes.h"
#include "object.h"
#include "order_memliner.h"
#include "os.h"
#include "park.h"
#include "slice.h"
#include "work_pool.h"

#define LOOK_AHEAD 8		/* objects between the prefetch of one and its tracing */
#define RED_EVERY 8		/* objects between two reads of the notes */
#define CLOCK_EVERY 128		/* objects between two reads of the clock */
#define EXPLORE_MAX 8192u	/* most objects explored from a noted one */
/* Remarks in a cycle after which a pause waits for pages instead of postponing them again. */
#define REMARKS_MAX 4

#define NAP_MIN_NS 1000000u
#define NAP_MAX_NS 20000000u
#define NAP_ARRIVALS_NS 200000u	/* between two reads of the arrivals */

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

/* Refills the empty stack with the oldest postponed work; returns false if there is none. */
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

/* Does the object extend beyond the page on which it begins? */
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
		slice_trace_object(t, object);
	else
		trace_object(t, object);
	if (h->options.features & EBBGC_EXACT)
		residency_touched(&h->residency, page_of(h, object));
	return true;
}

/* Postpones work whose page is probably swapped out; returns false if it must be done now. */
static bool postpone(struct tracer *t, uint64_t work, uint64_t deadline)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t count = work & WORK_FORCED;

	if (count == WORK_FORCED || !location_is_far(h, work))
		return false;
	if (h->options.features & EBBGC_PARK) {
		/* A pause does not wait for the page: marking goes back to concurrent. */
		if (t->hurried)
			return false;
		park_object(t, work & WORK_ADDRESS);
	} else if (deadline || count >= location_max_delays(h) || !later_push(t, work + 1)) {
		return false;
	}
	t->counts.postponed++;
	return true;
}

/* EXPLORE of algorithm 7: called by trace_object() for every reference. */
static void memliner_add(struct tracer *t, uint64_t work)
{
	if (t->explore_left && t->hops < t->heap->options.depth) {
		/* With parking, exploring causes no reads, unlike in the paper. */
		if ((t->heap->options.features & EBBGC_PARK) && postpone(t, work & ~WORK_FORCED, 0))
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

/* Marks and explores an object that the program touched; returns false if it was marked. */
static bool red(struct tracer *t, uint64_t object)
{
	uint8_t kind = t->heap->kinds[region_of(t->heap, object)];
	bool fresh;

	heat_add(t->heap, object);
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

/* Treats an object that the program faulted on as a noted one. */
static void arrived(struct tracer *t, const struct arrival *a)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object;

	if (a->collectors || !(h->options.features & EBBGC_ARRIVALS))
		return;
	/* A new object was marked before its allocation bit was set. */
	object = old_object_containing(h, a->address);
	/* The object's first page may be swapped out: the fault may have been on another. */
	if (object && !((h->options.features & EBBGC_EXACT) && location_is_far(h, object)))
		t->counts.arrived += red(t, object);
}

void memliner_arrivals(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	struct hints hints = { .count = 0 };
	struct arrival a;

	while (arrivals_next(&h->arrivals, h->base, used_bytes(h), &a)) {
		page_is_in(t, a.address);
		/* Before tracing: the reads then overlap with it. */
		if (!a.collectors && (h->options.features & EBBGC_HINTS)) {
			hints_add(h, &hints, a.address);
			hints_send(h, &hints);
		}
		arrived(t, &a);
	}
}

/*
 * Traces objects that the program touched, which are in memory, and objects near them.  Requests
 * the next burst of notes at *noting_at.
 */
static void red_pass(struct tracer *t, uint64_t *noting_at)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object, now = os_now();

	if (now >= *noting_at) {
		*noting_at = now + NOTES_EVERY_NS;
		notes_request(h);
	}

	while ((object = notes_next(h))) {
		page_is_in(t, object);
		t->counts.red += red(t, object);
	}
	if (arrivals_pending(&h->arrivals))
		memliner_arrivals(t);
}

static void work_do(struct tracer *t, uint64_t work, uint64_t deadline)
{
	if (!(work & WORK_OBJECT))
		slice_trace(t, work & WORK_ADDRESS);
	else if (!object_marked(t->heap, work & WORK_ADDRESS) && !postpone(t, work, deadline))
		trace_now(t, work & WORK_ADDRESS);
}

/* Waits for parked pages; returns false as soon as an arrival brings work. */
static bool nap(struct tracer *t)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t ns = location_wait(h), slice;

	ns = ns < NAP_MIN_NS ? NAP_MIN_NS : ns > NAP_MAX_NS ? NAP_MAX_NS : ns;
	slice = h->arrivals.ring ? NAP_ARRIVALS_NS : ns;
	for (; ns; ns -= slice) {
		if (slice > ns)
			slice = ns;
		os_sleep(slice);
		if (arrivals_pending(&h->arrivals))
			memliner_arrivals(t);
		if (t->depth)
			return false;
	}
	return true;
}

/* Advances parked work on an idle tracer; returns false if nothing is parked. */
static bool parked_step(struct tracer *t)
{
	switch (park_step(t)) {
	case PARK_EMPTY:
		return false;
	case PARK_WAIT:
		if (!nap(t))
			park_woke(t->heap);
		break;
	case PARK_MOVED:
		break;
	}
	return true;
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

		/* Notes are hints: a pause has no time for them. */
		if (!deadline && turn % RED_EVERY == 0)
			red_pass(t, &noting_at);
		if (t->depth || work_take(t) || (idle >= LOOK_AHEAD && later_take(t))) {
			ahead[turn % LOOK_AHEAD] = t->stack[--t->depth];
			__builtin_prefetch(header_of(ahead[turn % LOOK_AHEAD] & WORK_ADDRESS));
			idle = 0;
		} else {
			ahead[turn % LOOK_AHEAD] = 0;
			if (++idle > LOOK_AHEAD && !work) {
				if (deadline || marking_abandoned(h) || !parked_step(t))
					return !park_has_work(h);
				idle = 0;
			}
		}
		turn++;
		if (work)
			work_do(t, work, deadline);
		if (deadline ? !work : turn % CLOCK_EVERY)
			continue;
		if (marking_abandoned(h))
			return false;
		if (deadline && os_now() > deadline) {
			for (size_t i = 0; i < LOOK_AHEAD; i++)
				if (ahead[i])
					work_push(t, ahead[i]);
			return false;
		}
		if (!deadline) {
			location_update(h);
			park_wake_scanned(t);
		}
		if (t->depth > 64 && __atomic_load_n(&mk->hungry, __ATOMIC_RELAXED))
			work_share(t);
	}
}

void memliner_begin(struct ebbgc_heap *h)
{
	notes_clear(h);
	arrivals_clear(&h->arrivals);
	park_begin(h);
	h->cycle_remarks = 0;
}

const struct order order_memliner = {
	.name = "memliner",
	.marks_late = true,
	.wants_notes = true,
	.add = memliner_add,
	.drain = memliner_drain,
};
