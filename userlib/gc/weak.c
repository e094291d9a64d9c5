// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include "mark.h"
#include "object.h"
#include "os.h"
#include "weak.h"

#define PAIR 2
#define QUAD 4
#define VALUE_SLOT 1	/* in a quad */
#define KEY 2
#define VALUE 3
#define COPIES 512u	/* words between two reads of the clock */
#define FEW 16u		/* ephemerons: searching them all costs less than a table */

/* Counts pending ephemerons whose key is marked, or not. */
static size_t pending(const struct ebbgc_heap *h, bool marked)
{
	size_t n = 0;

	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		const struct vector *v = &h->marker.tracers[i].ephemerons;

		for (size_t j = 0; j < v->count; j += QUAD)
			n += object_marked(h, v->items[j + KEY]) == marked;
	}
	return n;
}

/* Lets tracers find the values of pending ephemerons as they mark the keys. */
static void keys_build(struct ebbgc_heap *h)
{
	size_t count = pending(h, false);
	struct marker *mk = &h->marker;

	if (count <= FEW || !keys_reset(&mk->keys, count))
		return;
	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		const struct vector *v = &mk->tracers[i].ephemerons;

		for (size_t j = 0; j < v->count; j += QUAD)
			if (v->items[j + VALUE] && !object_marked(h, v->items[j + KEY]))
				keys_add(&mk->keys, v->items[j + KEY], v->items[j + VALUE]);
	}
}

bool ephemerons_step(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;
	bool found;

	keys_free(&mk->keys);
	found = pending(h, true);
	/* First, as values may be keys. */
	if (found)
		keys_build(h);
	for (unsigned int i = 0; found && i < mk->tracer_count; i++) {
		struct vector *v = &mk->tracers[i].ephemerons;
		size_t kept = 0;

		for (size_t j = 0; j < v->count; j += QUAD) {
			ebbgc_ref_t value = { v->items[j + VALUE] };

			if (object_marked(h, v->items[j + KEY])) {
				mark_slot(&mk->tracers[0], &value);
				continue;
			}
			for (size_t k = 0; k < QUAD; k++)
				v->items[kept++] = v->items[j + k];
		}
		v->count = kept;
	}
	return found;
}

/*
 * Clears a slot, unless the program has stored another reference in it, and counts it.  Returns
 * false, and does nothing, if the program has found an object meanwhile that seemed dead: then it
 * may have stored this reference again.
 */
static bool slot_clear(struct ebbgc_heap *h, uint64_t slot, uint64_t target, uint64_t *cleared)
{
	const bool may_be_found = h->settled && !h->settled_last;
	uint64_t *bits = (uint64_t *)(uintptr_t)slot;
	/* Before the lock: the page may be swapped out. */
	uint64_t was = __atomic_load_n(bits, __ATOMIC_RELAXED);

	if (may_be_found) {
		pthread_mutex_lock(&h->clearing);
		if (__atomic_load_n(&h->found, __ATOMIC_RELAXED)) {
			pthread_mutex_unlock(&h->clearing);
			return false;
		}
	}
	/* The program may change the stamp meanwhile. */
	while ((was & EBBGC_ADDRESS_MASK) == target)
		if (__atomic_compare_exchange_n(bits, &was, 0, false, __ATOMIC_RELEASE,
						__ATOMIC_RELAXED)) {
			++*cleared;
			break;
		}
	if (may_be_found)
		pthread_mutex_unlock(&h->clearing);
	return true;
}

static bool out_of_time(const struct ebbgc_heap *h, uint64_t deadline)
{
	return marking_abandoned(h) || (deadline && os_now() >= deadline);
}

static bool pairs_clear(struct ebbgc_heap *h, struct vector *v, uint64_t deadline)
{
	for (; v->count; v->count -= PAIR) {
		const uint64_t *pair = &v->items[v->count - PAIR];

		/* The copies may be swapped out, too: about once a page. */
		if (v->count % COPIES == 0 && out_of_time(h, deadline))
			return false;
		if (object_marked(h, pair[1]))
			continue;
		if (out_of_time(h, deadline) ||
		    !slot_clear(h, pair[0], pair[1], &h->counting.weak_cleared))
			return false;
	}
	return true;
}

/*
 * Clears an ephemeron whose key is dead; returns true if that is all.  The program may have given
 * the entry a new key and the old value: then the value is alive.  Only a value that no program can
 * find any more is certainly the old entry's; until then the quad becomes one whose key it is.
 */
static bool quad_clear(struct ebbgc_heap *h, uint64_t *quad, enum ebbgc_clear when)
{
	const uint64_t value = quad[VALUE] & EBBGC_ADDRESS_MASK;
	uint64_t keys = 0, values = 0;

	if (!slot_clear(h, quad[0] & ~EPHEMERON_FLAGS, quad[KEY], &keys))
		return false;
	if (quad[VALUE_SLOT])
		h->counting.ephemerons_cleared += keys;
	if (quad[0] & EPHEMERON_OWN) {
		__atomic_store_n((uint64_t *)(uintptr_t)quad[VALUE_SLOT], 0, __ATOMIC_RELEASE);
		return true;
	}
	if (!value || object_marked(h, value))
		return true;
	if ((when == EBBGC_CLEAR_LAST || !__atomic_load_n(&h->has_last, __ATOMIC_RELAXED)) &&
	    slot_clear(h, quad[VALUE_SLOT], value, &values))
		return true;
	quad[0] = quad[VALUE_SLOT] | EPHEMERON_LAST;
	quad[KEY] = value;
	quad[VALUE_SLOT] = quad[VALUE] = 0;
	return false;
}

static bool quads_clear(struct ebbgc_heap *h, struct vector *v, uint64_t deadline,
			enum ebbgc_clear when)
{
	size_t kept = 0, j;
	bool done;

	for (j = 0; j < v->count; j += QUAD) {
		uint64_t *quad = &v->items[j];
		bool last = quad[0] & EPHEMERON_LAST;

		if (!object_marked(h, quad[KEY]) && (!last || when == EBBGC_CLEAR_LAST)) {
			if (out_of_time(h, deadline))
				break;
			if (quad_clear(h, quad, when))
				continue;
		}
		/* If the key has come back to life, the next ephemerons_step() marks the value. */
		for (size_t k = 0; k < QUAD; k++)
			v->items[kept++] = quad[k];
	}
	done = j == v->count;
	for (; j < v->count; j++)
		v->items[kept++] = v->items[j];
	v->count = kept;
	return done;
}

static int by_address(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void sort(struct vector *v, size_t words)
{
	if (v->count)
		qsort(v->items, v->count / words, words * sizeof(*v->items), by_address);
}

bool weak_clear(struct ebbgc_heap *h, enum ebbgc_clear when, uint64_t deadline)
{
	bool all = true;

	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		struct vector *weak = &h->marker.tracers[i].weak[when];
		struct vector *ephemerons = &h->marker.tracers[i].ephemerons;

		/* Each page once. */
		if (!deadline) {
			sort(weak, PAIR);
			sort(ephemerons, QUAD);
		}
		all &= pairs_clear(h, weak, deadline);
		all &= quads_clear(h, ephemerons, deadline, when);
	}
	return all;
}

static ebbgc_ref_t new_with(ebbgc_mutator_t *mutator, ebbgc_type_t type, ebbgc_ref_t *slots,
			    size_t count)
{
	struct ebbgc_frame frame;
	ebbgc_ref_t object;

	ebbgc_frame_push(mutator, &frame, slots, count);
	object = ebbgc_alloc(mutator, type);
	ebbgc_frame_pop(mutator, &frame);
	for (size_t i = 0; !ebbgc_is_null(object) && i < count; i++)
		ebbgc_init((ebbgc_ref_t *)ebbgc_ptr(object) + i, slots[i]);
	return object;
}

ebbgc_ref_t ebbgc_weak_new(ebbgc_mutator_t *mutator, ebbgc_ref_t target)
{
	return new_with(mutator, TYPE_WEAK_REF, &target, 1);
}

ebbgc_ref_t ebbgc_weak_get(ebbgc_mutator_t *mutator, ebbgc_ref_t weak)
{
	return ebbgc_load_weak(mutator, weak, ebbgc_ptr(weak));
}

ebbgc_ref_t ebbgc_ephemeron_new(ebbgc_mutator_t *mutator, ebbgc_ref_t key, ebbgc_ref_t value)
{
	ebbgc_ref_t slots[2] = { key, ebbgc_is_null(key) ? EBBGC_NULL : value };

	return new_with(mutator, TYPE_EPHEMERON, slots, 2);
}

ebbgc_ref_t ebbgc_ephemeron_key(ebbgc_mutator_t *mutator, ebbgc_ref_t ephemeron)
{
	return ebbgc_load_weak(mutator, ephemeron, ebbgc_ptr(ephemeron));
}

ebbgc_ref_t ebbgc_ephemeron_value(ebbgc_mutator_t *mutator, ebbgc_ref_t ephemeron)
{
	const struct ebbgc_heap *h = mutator_of(mutator)->heap;
	uint64_t key = ref_load(ebbgc_ptr(ephemeron));

	/* The collector may have cleared the key only, or neither yet. */
	if (!key || (weak_are_null(h) && !object_marked(h, key)))
		return EBBGC_NULL;
	return ebbgc_load_weak(mutator, ephemeron, (ebbgc_ref_t *)ebbgc_ptr(ephemeron) + 1);
}
