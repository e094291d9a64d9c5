// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "object.h"

bool is_object(const struct ebbgc_heap *h, uint64_t object)
{
	uint64_t base = (uint64_t)(uintptr_t)h->base;
	uint32_t types = __atomic_load_n(&h->type_count, __ATOMIC_RELAXED);

	if (object < base || object >= base + used_bytes(h))
		return false;
	if (object % GRANULE != HEADER || !bit_test(h->allocated, granule_of(h, object)))
		return false;
	return region_is_out(h, region_of(h, object)) ||
	       (type_id(object) != TYPE_NONE && type_id(object) < types);
}

/* Returns the object that the word points into if one begins there, or 0. */
static uint64_t slot_containing(const struct ebbgc_heap *h, uint64_t word)
{
	uint64_t address = word & EBBGC_ADDRESS_MASK, base = (uint64_t)(uintptr_t)h->base, object;
	uint32_t region;
	uint8_t kind;

	if (address < base || address >= base + used_bytes(h))
		return 0;
	region = region_first(h, region_of(h, address));
	/* No thread has a pointer into it: the word is another. */
	if (region_is_out(h, region))
		return 0;
	kind = __atomic_load_n(&h->kinds[region], __ATOMIC_RELAXED);
	object = base + ((uint64_t)region << REGION_SHIFT) + HEADER;
	if (kind < SMALL_KINDS) {
		size_t offset = (address - base) & (REGION_SIZE - 1), size = h->slot_size[kind];

		object += offset / size * size;
		if (offset / size >= REGION_SIZE / size)
			return 0;
	} else if (!is_large(kind)) {
		return 0;
	}
	return bit_published(h->allocated, granule_of(h, object)) ? object : 0;
}

uint64_t object_containing(const struct ebbgc_heap *h, uint64_t word)
{
	uint64_t object = slot_containing(h, word);

	return object && type_id(object) != TYPE_NONE ? object : 0;
}

uint64_t old_object_containing(const struct ebbgc_heap *h, uint64_t word)
{
	uint64_t object = slot_containing(h, word);

	if (!object || (h->nursery.old && !bit_published(h->nursery.old, granule_of(h, object))))
		return 0;
	return type_id(object) != TYPE_NONE ? object : 0;
}
