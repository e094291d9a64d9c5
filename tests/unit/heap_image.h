/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The image of a heap with a random graph of objects, as a heap with far regions would make it, and
 * the marks that a trace in one process gives.
 */
#ifndef EBB_TEST_HEAP_IMAGE_H
#define EBB_TEST_HEAP_IMAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "lib/base/draw.h"
#include "lib/rules/layout.h"

#define IMAGE_BASE 0x200000000000ull
#define IMAGE_MASK ((1ull << 60) - 1)

/* Types: two references; an array of references behind a length of 8 bytes; no references. */
enum { IMAGE_PAIR = 3, IMAGE_ARRAY = 300, IMAGE_LEAF = 7 };

static const struct layout image_pair = { .size = 24, .bitmap = 3 };
static const struct layout image_array = {
	.size = 8, .element_size = 8, .length_width = 8, .runs = 1,
	.run = { { .offset = 8, .stride = 8, .count = LAYOUT_LENGTH } },
};
static const struct layout image_leaf = { .size = 8 };

struct image_region {
	uint32_t slot_bytes, slots, words, objects;
	uint32_t type;
	uint64_t live[TABLET_WORDS], marks[TABLET_WORDS], named[TABLET_WORDS];
	uint16_t before[TABLET_WORDS];
	uint8_t *bytes; /* packed, TABLET_REGION of room */
};

struct image {
	uint32_t count;
	struct image_region *regions;
};

static inline uint64_t image_address(const struct image_region *r, uint32_t region, uint32_t slot)
{
	return IMAGE_BASE + (uint64_t)region * TABLET_REGION + slot * r->slot_bytes + LAYOUT_HEADER;
}

static inline uint32_t image_granule(const struct image_region *r, uint32_t slot)
{
	return slot * r->slot_bytes / TABLET_GRANULE;
}

static inline uint8_t *image_object(const struct image_region *r, uint32_t slot)
{
	return r->bytes + tablet_place(r->live, r->before, slot, r->slot_bytes, 0);
}

/* Returns a reference to any object, or null. */
static inline uint64_t image_reference(const struct image *im, uint64_t *seed)
{
	uint32_t region = draw_below(seed, im->count), slot;
	const struct image_region *r = &im->regions[region];

	if (!r->objects || !draw_below(seed, 8))
		return 0;
	slot = tablet_next(r->live, r->slots, draw_below(seed, r->slots));
	if (slot == r->slots)
		slot = tablet_next(r->live, r->slots, 0);
	/* A stamp, which is no part of the address. */
	return image_address(r, region, slot) | (uint64_t)draw_below(seed, 16) << 60;
}

static inline void image_fill(const struct image *im, const struct image_region *r, uint32_t slot,
			      uint64_t *seed)
{
	uint8_t *object = image_object(r, slot) + LAYOUT_HEADER;
	uint32_t most = (r->slot_bytes - LAYOUT_HEADER - 8) / 8, n;

	put64(object - LAYOUT_HEADER, r->type | (uint64_t)draw32(seed) << 32);
	switch (r->type) {
	case IMAGE_PAIR:
		put64(object, image_reference(im, seed));
		put64(object + 8, image_reference(im, seed));
		put64(object + 16, draw32(seed));
		break;
	case IMAGE_ARRAY:
		n = draw_below(seed, most + 1);
		put64(object, n);
		for (uint32_t i = 0; i < n; i++)
			put64(object + 8 + 8 * i, image_reference(im, seed));
		break;
	default:
		put64(object, draw32(seed));
	}
}

/* Makes @count regions, whose slots are in use by one in @sparse. */
static inline void image_make(struct image *im, uint32_t count, uint64_t seed, uint32_t sparse)
{
	static const struct { uint32_t slot_bytes, type; } kinds[] = {
		{ 32, IMAGE_PAIR }, { 48, IMAGE_PAIR }, { 128, IMAGE_ARRAY }, { 16, IMAGE_LEAF },
		{ 8192, IMAGE_ARRAY }, { 64, IMAGE_ARRAY },
	};

	im->count = count;
	im->regions = calloc(count, sizeof(*im->regions));
	for (uint32_t i = 0; i < count; i++) {
		struct image_region *r = &im->regions[i];
		uint32_t k = draw_below(&seed, sizeof(kinds) / sizeof(*kinds));

		r->slot_bytes = kinds[k].slot_bytes;
		r->type = kinds[k].type;
		r->slots = tablet_slots(r->slot_bytes);
		r->words = tablet_words(r->slots);
		r->bytes = calloc(1, TABLET_REGION);
		for (uint32_t s = 0; s < r->slots; s++)
			if (!draw_below(&seed, sparse))
				r->live[s / 64] |= 1ull << s % 64;
		r->objects = tablet_index(r->live, r->slots, r->before);
	}
	for (uint32_t i = 0; i < count; i++) {
		const struct image_region *r = &im->regions[i];

		for (uint32_t s = tablet_next(r->live, r->slots, 0); s < r->slots;
		     s = tablet_next(r->live, r->slots, s + 1))
			image_fill(im, r, s, &seed);
	}
}

static inline void image_free(struct image *im)
{
	for (uint32_t i = 0; i < im->count; i++)
		free(im->regions[i].bytes);
	free(im->regions);
	*im = (struct image){ 0 };
}

static inline const struct layout *image_layout(uint32_t type)
{
	return type == IMAGE_PAIR ? &image_pair : type == IMAGE_ARRAY ? &image_array : &image_leaf;
}

/* A word that waits to be traced. */
struct image_work {
	uint64_t *word;
	uint64_t n, room;
};

static inline void image_mark(struct image *im, uint64_t reference, bool by_object,
			      struct image_work *work)
{
	uint64_t offset = (reference & IMAGE_MASK) - IMAGE_BASE;
	struct image_region *r;
	uint32_t slot;

	if (!(reference & IMAGE_MASK))
		return;
	r = &im->regions[offset / TABLET_REGION];
	slot = (uint32_t)(offset % TABLET_REGION) / r->slot_bytes;
	if (by_object)
		r->named[slot / 64] |= 1ull << slot % 64;
	if (tablet_has(r->marks, slot))
		return;
	r->marks[slot / 64] |= 1ull << slot % 64;
	if (work->n == work->room) {
		work->room = 2 * work->room + 1024;
		work->word = realloc(work->word, work->room * 8);
	}
	work->word[work->n++] = offset;
}

/* Marks what @roots reach, and what marked objects refer to as named.  Returns the number. */
static inline uint64_t image_trace(struct image *im, const uint64_t *roots, uint32_t n)
{
	static uint64_t references[LAYOUT_REFERENCES];
	struct image_work work = { 0 };
	uint64_t visited = 0;

	for (uint32_t i = 0; i < n; i++)
		image_mark(im, roots[i], false, &work);
	while (work.n) {
		uint64_t offset = work.word[--work.n];
		const struct image_region *r = &im->regions[offset / TABLET_REGION];
		uint32_t slot = (uint32_t)(offset % TABLET_REGION) / r->slot_bytes;
		int count = layout_references(image_layout(r->type),
					      image_object(r, slot) + LAYOUT_HEADER,
					      r->slot_bytes - LAYOUT_HEADER, references);

		visited++;
		for (int i = 0; i < count; i++)
			image_mark(im, references[i], true, &work);
	}
	free(work.word);
	return visited;
}

#endif
