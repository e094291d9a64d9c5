// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include <endian.h>

#include "layout.h"

#define OBJECT_MOST (TABLET_SLOT_MOST - LAYOUT_HEADER)

static bool run_is_valid(const struct layout *l, const struct layout_run *r)
{
	if (r->offset % 8 || r->stride % 8 || !r->stride || r->offset > OBJECT_MOST - 8 ||
	    r->stride > OBJECT_MOST)
		return false;
	if (r->count == LAYOUT_LENGTH)
		return l->length_width;
	return r->count && r->count <= LAYOUT_REFERENCES &&
	       r->offset + (uint64_t)(r->count - 1) * r->stride + 8 <= l->size;
}

static bool length_is_valid(const struct layout *l)
{
	if (!l->length_width)
		return !l->element_size && !l->length_offset;
	return (l->length_width == 4 || l->length_width == 8) && l->element_size &&
	       l->length_offset % l->length_width == 0 &&
	       (uint64_t)l->length_offset + l->length_width <= l->size;
}

bool layout_is_valid(const struct layout *l)
{
	if (!l->size || l->size > OBJECT_MOST || !length_is_valid(l) || l->runs > LAYOUT_RUNS)
		return false;
	if (l->bitmap && 8 * (64 - (uint64_t)__builtin_clzll(l->bitmap)) > l->size)
		return false;
	for (uint32_t i = 0; i < l->runs; i++)
		if (!run_is_valid(l, &l->run[i]))
			return false;
	return true;
}

static uint64_t word_at(const uint8_t *object, uint64_t offset)
{
	return le64toh(__atomic_load_n((const uint64_t *)(object + offset), __ATOMIC_RELAXED));
}

static uint64_t length_of(const struct layout *l, const uint8_t *object)
{
	if (l->length_width == 4)
		return le32toh(__atomic_load_n((const uint32_t *)(object + l->length_offset),
					       __ATOMIC_RELAXED));
	return l->length_width ? word_at(object, l->length_offset) : 0;
}

/*
 * Stores the number of references of each run in @counts.  Returns whether an object with @length
 * elements has all of them, and with the @n of the bitmap at most LAYOUT_REFERENCES: runs that
 * overlap could name a word many times.
 */
static bool count_runs(const struct layout *l, uint64_t length, uint32_t n,
		       uint32_t counts[static LAYOUT_RUNS])
{
	uint64_t end = l->size + length * l->element_size;

	for (uint32_t i = 0; i < l->runs; i++) {
		const struct layout_run *r = &l->run[i];
		uint64_t count = r->count == LAYOUT_LENGTH ? length : r->count;

		if (count > LAYOUT_REFERENCES - n ||
		    (count && r->offset + (count - 1) * r->stride + 8 > end))
			return false;
		counts[i] = (uint32_t)count;
		n += counts[i];
	}
	return true;
}

int layout_references(const struct layout *l, const uint8_t *object, uint32_t bytes,
		      uint64_t to[static LAYOUT_REFERENCES])
{
	uint32_t n = 0, counts[LAYOUT_RUNS];
	uint64_t length;

	if (l->size > bytes)
		return -1;
	length = length_of(l, object);
	if (l->element_size && length > (bytes - l->size) / l->element_size)
		return -1;
	/* Before any word is read: an invalid object costs a donor no more than an empty one. */
	if (!count_runs(l, length, (uint32_t)__builtin_popcountll(l->bitmap), counts))
		return -1;
	for (uint64_t bits = l->bitmap; bits; bits &= bits - 1)
		to[n++] = word_at(object, 8 * (uint64_t)__builtin_ctzll(bits));
	for (uint32_t i = 0; i < l->runs; i++) {
		const struct layout_run *r = &l->run[i];

		for (uint64_t k = 0; k < counts[i]; k++)
			to[n++] = word_at(object, r->offset + k * r->stride);
	}
	return (int)n;
}
