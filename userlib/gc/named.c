// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <stdlib.h>
#include <string.h>
#include "forward.h"
#include "mark.h"
#include "named.h"
#include "type.h"

struct naming {
	struct ebbgc_heap *h;
	uint32_t count;			/* of h->far.naming */
};

static void name_slot(void *arg, ebbgc_ref_t *slot)
{
	struct naming *n = arg;
	struct ebbgc_heap *h = n->h;
	uint64_t object = slot_current(h, slot);
	struct far_region *r;

	if (!in_heap(h, object))
		return;
	bit_set(h->far.named, granule_of(h, object));
	r = &h->far.regions[region_of(h, object)];
	if (r->seen == h->far.naming_serial)
		return;
	r->seen = h->far.naming_serial;
	h->far.naming[n->count++] = region_of(h, object);
	h->far.holders[region_of(h, object)]++;
}

/* Without memory the region holds its names for ever. */
static void holds_set(struct ebbgc_heap *h, uint32_t region, uint32_t count)
{
	struct far_region *r = &h->far.regions[region];

	r->holds = count ? malloc(count * sizeof(*r->holds)) : NULL;
	r->holds_for_ever = count && !r->holds;
	if (!r->holds)
		return;
	memcpy(r->holds, h->far.naming, count * sizeof(*r->holds));
	r->holds_count = count;
	__atomic_fetch_add(&h->far.tables, count * sizeof(*r->holds), __ATOMIC_RELAXED);
}

void named_add_region(struct ebbgc_heap *h, uint32_t region)
{
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;
	struct naming n = { .h = h };

	if (kind_is_leaf(h->kinds[region]))
		return;
	h->far.naming_serial++;
	for (size_t w = 0; w < REGION_WORDS; w++) {
		uint64_t bits = __atomic_load_n(&allocated[w], __ATOMIC_RELAXED);

		for (; bits; bits &= bits - 1) {
			size_t granule = 64 * w + (size_t)__builtin_ctzll(bits);
			uint64_t object = (uint64_t)(uintptr_t)region_start(h, region) +
					  (granule << GRANULE_SHIFT) + HEADER;

			type_visit(&h->types[type_id(object)], object, name_slot, &n);
		}
	}
	holds_set(h, region, n.count);
}

void named_withdraw(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];

	for (uint32_t i = 0; i < r->holds_count; i++) {
		uint32_t in = r->holds[i];

		if (!--h->far.holders[in])
			memset(h->far.named + (size_t)in * REGION_WORDS, 0,
			       REGION_WORDS * sizeof(*h->far.named));
	}
	__atomic_fetch_sub(&h->far.tables, r->holds_count * sizeof(*r->holds), __ATOMIC_RELAXED);
	free(r->holds);
	r->holds = NULL;
	r->holds_count = 0;
}

void named_mark(struct ebbgc_heap *h, struct tracer *t)
{
	uint32_t top = __atomic_load_n(&h->top, __ATOMIC_RELAXED);

	for (uint32_t r = 0; h->far.on && r < top; r++) {
		const uint64_t *named = h->far.named + (size_t)r * REGION_WORDS;

		if (!h->far.holders[r])
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
