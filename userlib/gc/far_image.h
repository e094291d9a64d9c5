/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Objects as they are in the store of a far generation: where, and whether the bytes can be. */
#ifndef EBBGC_FAR_IMAGE_H
#define EBBGC_FAR_IMAGE_H

#include <stdbool.h>
#include "lib/rules/tablet.h"
#include "object.h"
#include "type.h"

/* Returns the offset in its place of an object that the tablet has. */
static inline size_t far_offset(const struct ebbgc_heap *h, const struct far_stored *s,
				size_t slot, uint8_t kind)
{
	size_t words = tablet_words(tablet_slots((uint32_t)h->slot_size[kind]));
	const uint16_t *before = (const uint16_t *)(s->tablet + words);

	return tablet_place(s->tablet, before, (uint32_t)slot, (uint32_t)h->slot_size[kind], 0);
}

/* Can these be the bytes of an object of this kind, header included? */
static inline bool far_is_sound(const struct ebbgc_heap *h, const char *slot, uint8_t kind)
{
	uint32_t id = type_id((uint64_t)(uintptr_t)slot + HEADER);
	const struct type *t = &h->types[id];
	uint64_t length;

	if (id < TYPE_FIRST_USER || id >= __atomic_load_n(&h->type_count, __ATOMIC_RELAXED) ||
	    !(t->flags & EBBGC_MOVABLE) || kind_is_leaf(kind) != !!(t->flags & EBBGC_LEAF))
		return false;
	length = type_length(t, slot + HEADER);
	return t->size + HEADER <= h->slot_size[kind] &&
	       (!length ||
		length <= (h->slot_size[kind] - HEADER - t->size) / t->element_size);
}

#endif
