// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "mark.h"
#include "object.h"
#include "type.h"

bool mark_now(struct tracer *t, uint64_t object, uint8_t kind)
{
	struct ebbgc_heap *h = t->heap;

	if (!bit_set(h->marks, granule_of(h, object)))
		return false;
	t->marked_objects++;
	t->marked_bytes += taken_bytes(h, object, kind);
	return true;
}

void mark_object(struct tracer *t, uint64_t ref)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object = ref & EBBGC_ADDRESS_MASK;
	uint8_t kind;

	if (object_marked(h, object))
		return;
	kind = h->kinds[region_of(h, object)];
	/* Never touch a leaf's page. */
	if (kind_is_leaf(kind))
		mark_now(t, object, kind);
	else if (h->marker.late || mark_now(t, object, kind))
		h->marker.order->add(t, ref);
}

void mark_slot(void *arg, ebbgc_ref_t *slot)
{
	struct tracer *t = arg;
	uint64_t ref = work_load(slot);

	if (!(ref & EBBGC_ADDRESS_MASK))
		return;
	/* The checking mode reports the slot later: do not crash before. */
	if (EBBGC_UNLIKELY(t->heap->check) && !is_object(t->heap, ref & EBBGC_ADDRESS_MASK))
		return;
	mark_object(t, ref);
}

/* Traces the value if the key is marked; otherwise ephemerons_step() will, once the key is. */
static void trace_ephemeron(struct tracer *t, uint64_t object)
{
	ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)object;
	uint64_t key = ref_load(&slots[0]);

	if (!key)
		return;
	if (object_marked(t->heap, key))
		mark_slot(t, &slots[1]);
	else if (!vector_push(&t->ephemerons, object)) {
		/* Out of memory: the ephemeron is strong in this cycle. */
		mark_slot(t, &slots[0]);
		mark_slot(t, &slots[1]);
	}
}

void trace_object(struct tracer *t, uint64_t object)
{
	uint32_t id = type_id(object);
	const struct type *type = &t->heap->types[id];

	if (id == TYPE_EPHEMERON)
		return trace_ephemeron(t, object);
	if ((type->flags & EBBGC_WEAK) && vector_push(&t->weak, object))
		return;
	type_visit(type, object, mark_slot, t);
}
