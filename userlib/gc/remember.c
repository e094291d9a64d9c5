// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <string.h>
#include "object.h"
#include "os.h"
#include "remember.h"
#include "type.h"

static bool is_old(const struct ebbgc_heap *h, uint64_t object)
{
	return in_heap(h, object) && bit_test(h->nursery.old, granule_of(h, object));
}

/* Returns the entry for a slot of an object in the heap; reads neither. */
static uint64_t entry_of(const struct ebbgc_heap *h, uint64_t object, uint64_t slot)
{
	uint8_t kind = __atomic_load_n(&h->kinds[region_of(h, object)], __ATOMIC_RELAXED);

	if (!is_large(kind))
		return object;
	/* Unknown, or a callback's: those may lie elsewhere, also in another object. */
	if (!in_heap(h, slot) || region_first(h, region_of(h, slot)) != region_of(h, object))
		return object + GRANULE;
	return slot & ~(uint64_t)(PAGE_BYTES - 1);
}

static void enter(struct mutator *m, uint64_t entry)
{
	struct ebbgc_heap *h = m->heap;

	if (!bit_set(h->nursery.remembered, granule_of(h, entry)))
		return;
	if (m->remembered_count == SATB_ENTRIES)
		remembered_flush(m);
	m->remembered[m->remembered_count++] = entry;
}

void remember(struct mutator *m, ebbgc_ref_t object_ref, const ebbgc_ref_t *slot,
	      ebbgc_ref_t value_ref)
{
	struct ebbgc_heap *h = m->heap;
	uint64_t value = value_ref.bits & EBBGC_ADDRESS_MASK;
	uint64_t object = object_ref.bits & EBBGC_ADDRESS_MASK;

	if (in_heap(h, value) && is_old(h, object) && !is_old(h, value))
		enter(m, entry_of(h, object, (uint64_t)(uintptr_t)slot));
}

void remember_object(struct mutator *m, ebbgc_ref_t object_ref)
{
	uint64_t object = object_ref.bits & EBBGC_ADDRESS_MASK;

	if (!object)
		remember_nothing(m->heap);
	else if (is_old(m->heap, object))
		enter(m, entry_of(m->heap, object, 0));
}

void remember_slot(struct mutator *m, const void *slot, ebbgc_ref_t value_ref)
{
	uint64_t value = value_ref.bits & EBBGC_ADDRESS_MASK;
	uint64_t at = (uint64_t)(uintptr_t)slot, object;
	const struct ebbgc_heap *h = m->heap;
	const struct type *type;

	if (!in_heap(h, value) || is_old(h, value))
		return;
	object = object_containing(h, at);
	if (!object || !is_old(h, object))
		return;
	type = &h->types[type_id(object)];
	/* The references in a leaf, such as a fibre's stack, are another object's. */
	if (!(type->flags & EBBGC_LEAF))
		enter(m, entry_of(h, object, type->edges || type->trace ? 0 : at));
}

void remember_nothing(struct ebbgc_heap *h)
{
	__atomic_store_n(&h->nursery.blind, true, __ATOMIC_RELAXED);
}

void remembered_flush(struct mutator *m)
{
	struct nursery *n = &m->heap->nursery;
	size_t count = m->remembered_count;

	m->remembered_count = 0;
	/* After fork() there are no minor cycles, and the lock may be held for ever. */
	if (!count || os_forked(m->heap->pid))
		return;
	pthread_mutex_lock(&n->lock);
	for (size_t i = 0; i < count; i++) {
		if (!vector_push(&n->log, m->remembered[i])) {
			n->lost = true;
			remember_nothing(m->heap);
			break;
		}
	}
	pthread_mutex_unlock(&n->lock);
}

uint64_t remembered_each(struct ebbgc_heap *h, void (*fn)(void *arg, uint64_t entry), void *arg)
{
	struct nursery *n = &h->nursery;
	uint64_t count = n->log.count;

	for (size_t i = 0; i < count; i++) {
		size_t granule = granule_of(h, n->log.items[i]);

		__atomic_fetch_and(&n->remembered[granule >> 6],
				   ~(UINT64_C(1) << (granule & 63)), __ATOMIC_RELAXED);
		fn(arg, n->log.items[i]);
	}
	n->log.count = 0;
	/* As large as the heap is: only if it must be. */
	if (n->lost)
		memset(n->remembered, 0, (size_t)h->top * REGION_WORDS * sizeof(*n->remembered));
	n->lost = false;
	return count;
}
