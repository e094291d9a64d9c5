// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include <string.h>
#include "mark.h"
#include "object.h"
#include "work_pool.h"

/* Lock held; NULL: no memory. */
static struct chunk *chunk_get(struct marker *mk)
{
	struct chunk *c = mk->spare;

	if (c)
		mk->spare = c->next;
	else
		c = malloc(sizeof(*c));
	return c;
}

/* Lock held; false: no memory. */
static bool pool_add(struct marker *mk, const uint64_t *objects, size_t count)
{
	while (count) {
		struct chunk *c = chunk_get(mk);
		size_t part = count < CHUNK_ENTRIES ? count : CHUNK_ENTRIES;

		if (!c)
			return false;
		memcpy(c->entries, objects + count - part, part * sizeof(*objects));
		c->count = part;
		c->next = mk->full;
		__atomic_store_n(&mk->full, c, __ATOMIC_RELAXED);
		count -= part;
	}
	pthread_cond_broadcast(&mk->changed);
	return true;
}

void work_push(struct tracer *t, uint64_t work)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object = work & WORK_ADDRESS;

	if (EBBGC_UNLIKELY(t->depth == STACK_ENTRIES) && !work_share(t)) {
		/* Recovered later by its mark bit, which a slice's object has already. */
		if (h->marker.late && (object & WORK_OBJECT))
			mark_now(t, object, h->kinds[region_of(h, object)]);
		__atomic_store_n(&h->marker.overflow, true, __ATOMIC_RELAXED);
		return;
	}
	t->stack[t->depth++] = work;
}

bool work_share(struct tracer *t)
{
	struct marker *mk = &t->heap->marker;
	size_t half = t->depth / 2;
	bool added;

	/* Share the older half: nearer to the roots, it probably leads to more work. */
	pthread_mutex_lock(&mk->lock);
	added = pool_add(mk, t->stack, half);
	pthread_mutex_unlock(&mk->lock);
	if (added) {
		t->depth -= half;
		memmove(t->stack, t->stack + half, t->depth * sizeof(*t->stack));
	}
	return added;
}

bool work_take(struct tracer *t)
{
	struct marker *mk = &t->heap->marker;
	struct chunk *c;

	if (!__atomic_load_n(&mk->full, __ATOMIC_RELAXED))
		return false;
	pthread_mutex_lock(&mk->lock);
	c = mk->full;
	if (c) {
		__atomic_store_n(&mk->full, c->next, __ATOMIC_RELAXED);
		memcpy(t->stack + t->depth, c->entries, c->count * sizeof(*c->entries));
		t->depth += c->count;
		c->next = mk->spare;
		mk->spare = c;
	}
	pthread_mutex_unlock(&mk->lock);
	return c;
}

/* Sets the mark bit of a logged object of that kind, and counts its bytes. */
static void mark_logged(struct ebbgc_heap *h, uint64_t object, uint8_t kind)
{
	if (!bit_set(h->marks, granule_of(h, object)))
		return;
	__atomic_fetch_add(&h->logged_bytes, taken_bytes(h, object, kind), __ATOMIC_RELAXED);
}

void work_add_log(struct ebbgc_heap *h, const uint64_t *refs, size_t count)
{
	struct marker *mk = &h->marker;
	uint64_t fresh[SATB_ENTRIES];
	size_t n = 0, first = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t object = refs[i] & EBBGC_ADDRESS_MASK;
		uint8_t kind;

		if (object_marked(h, object))
			continue;
		first++;
		if (region_is_out(h, region_of(h, object))) {
			far_reach(h, object);
			continue;
		}
		kind = h->kinds[region_of(h, object)];
		if (!mk->late || kind_is_leaf(kind))
			mark_logged(h, object, kind);
		if (!kind_is_leaf(kind))
			fresh[n++] = refs[i];
	}
	__atomic_fetch_add(&h->logged_references, first, __ATOMIC_RELAXED);
	pthread_mutex_lock(&mk->lock);
	if (!pool_add(mk, fresh, n)) {
		for (size_t i = 0; mk->late && i < n; i++) {
			uint64_t object = fresh[i] & EBBGC_ADDRESS_MASK;

			mark_logged(h, object, h->kinds[region_of(h, object)]);
		}
		__atomic_store_n(&mk->overflow, true, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&mk->lock);
}
