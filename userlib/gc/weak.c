// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "mark.h"
#include "object.h"
#include "type.h"
#include "weak.h"

bool ephemerons_step(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;
	bool found = false;

	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		struct vector *v = &mk->tracers[i].ephemerons;
		size_t kept = 0;

		for (size_t j = 0; j < v->count; j++) {
			ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)v->items[j];

			if (!object_marked(h, ref_load(&slots[0]))) {
				v->items[kept++] = v->items[j];
				continue;
			}
			found = true;
			mark_slot(&mk->tracers[0], &slots[1]);
		}
		v->count = kept;
	}
	return found;
}

static void clear_slot(void *arg, ebbgc_ref_t *slot)
{
	struct ebbgc_heap *h = arg;
	uint64_t object = ref_load(slot);

	if (object_marked(h, object))
		return;
	__atomic_store_n(&slot->bits, 0, __ATOMIC_RELEASE);
	h->counting.weak_cleared++;
}

void weak_clear(struct ebbgc_heap *h)
{
	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		struct vector *weak = &h->marker.tracers[i].weak;
		struct vector *ephemerons = &h->marker.tracers[i].ephemerons;

		for (size_t j = 0; j < weak->count; j++)
			type_visit(&h->types[type_id(weak->items[j])], weak->items[j], clear_slot,
				   h);
		for (size_t j = 0; j < ephemerons->count; j++) {
			ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)ephemerons->items[j];

			__atomic_store_n(&slots[0].bits, 0, __ATOMIC_RELEASE);
			__atomic_store_n(&slots[1].bits, 0, __ATOMIC_RELEASE);
			h->counting.ephemerons_cleared++;
		}
		weak->count = ephemerons->count = 0;
	}
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
	return ebbgc_load_weak(mutator, ephemeron, (ebbgc_ref_t *)ebbgc_ptr(ephemeron) + 1);
}
