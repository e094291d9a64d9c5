// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "forward.h"
#include "mark.h"
#include "named.h"
#include "type.h"

static void name_slot(void *arg, ebbgc_ref_t *slot)
{
	struct ebbgc_heap *h = arg;
	uint64_t object = slot_current(h, slot);
	uint8_t *any;

	if (!in_heap(h, object) || !bit_set(h->far.named, granule_of(h, object)))
		return;
	any = &h->far.named_any[region_of(h, object)];
	if (!__atomic_load_n(any, __ATOMIC_RELAXED))
		__atomic_store_n(any, 1, __ATOMIC_RELAXED);
}

void named_add_region(struct ebbgc_heap *h, uint32_t region)
{
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;

	if (kind_is_leaf(h->kinds[region]))
		return;
	for (size_t w = 0; w < REGION_WORDS; w++) {
		uint64_t bits = __atomic_load_n(&allocated[w], __ATOMIC_RELAXED);

		for (; bits; bits &= bits - 1) {
			size_t granule = 64 * w + (size_t)__builtin_ctzll(bits);
			uint64_t object = (uint64_t)(uintptr_t)region_start(h, region) +
					  (granule << GRANULE_SHIFT) + HEADER;

			type_visit(&h->types[type_id(object)], object, name_slot, h);
		}
	}
}

void named_mark(struct ebbgc_heap *h, struct tracer *t)
{
	uint32_t top = __atomic_load_n(&h->top, __ATOMIC_RELAXED);

	for (uint32_t r = 0; h->far.on && r < top; r++) {
		const uint64_t *named = h->far.named + (size_t)r * REGION_WORDS;

		if (!__atomic_load_n(&h->far.named_any[r], __ATOMIC_RELAXED))
			continue;
		for (size_t w = 0; w < REGION_WORDS; w++) {
			uint64_t bits = __atomic_load_n(&named[w], __ATOMIC_RELAXED);

			for (; bits; bits &= bits - 1) {
				size_t granule = 64 * w + (size_t)__builtin_ctzll(bits);
				uint64_t object = (uint64_t)(uintptr_t)region_start(h, r) +
						  (granule << GRANULE_SHIFT) + HEADER;

				mark_object(t, forward(h, object));
			}
		}
	}
}
