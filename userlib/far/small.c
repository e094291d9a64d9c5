// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "small.h"

#define LEAST_SHIFT 4 /* log2 of the smallest slot */
#define STEP_SHIFT 2  /* log2 of the sizes from a power of two to the next */
#define LEAST_STEPPED 6 /* log2 of the size from which on */
#define FIRST_STEPPED 4u /* its class */
#define ARENA_SHIFT 32
/* A slot's word in .free[], and the words' bits in .words. */
#define WORD_SHIFT 6
#define WORDS 64u
#define LAST UINT16_MAX

struct small_block {
	struct ebbfar_extent x;
	struct small_block *next, *prev; /* those of the class with free slots */
	uint32_t class, epoch;
	uint32_t used, retired; /* slots with objects; slots that are not used again */
	uint64_t words;         /* which of .free[] are not 0 */
	uint64_t free[WORDS];
	uint16_t stamps[];
};

static_assert(SMALL_EXTENT >> LEAST_SHIFT == WORDS << WORD_SHIFT, "a bit for each slot");

uint32_t small_class(size_t size)
{
	uint32_t last = size ? (uint32_t)size - 1 : 0, shift;

	if (last < 1u << LEAST_STEPPED)
		return last >> LEAST_SHIFT;
	shift = 31 - (uint32_t)__builtin_clz(last);
	return FIRST_STEPPED + ((shift - LEAST_STEPPED) << STEP_SHIFT) +
	       (last >> (shift - STEP_SHIFT)) - (1u << STEP_SHIFT);
}

/* Returns the bytes of a slot of @class. */
static uint32_t size_of(uint32_t class)
{
	uint32_t steps = class - FIRST_STEPPED;

	if (class < FIRST_STEPPED)
		return (class + 1) << LEAST_SHIFT;
	return ((1u << STEP_SHIFT) + 1 + (steps & ((1u << STEP_SHIFT) - 1)))
	       << (LEAST_STEPPED - STEP_SHIFT + (steps >> STEP_SHIFT));
}

static uint32_t slots_of(uint32_t class)
{
	return SMALL_EXTENT / size_of(class);
}

/* --- blocks ----------------------------------------------------------------------- */

static void append(struct small *s, struct small_block *b)
{
	b->next = NULL;
	b->prev = s->free[b->class].last;
	if (b->prev)
		b->prev->next = b;
	else
		s->free[b->class].first = b;
	s->free[b->class].last = b;
}

static void take_out(struct small *s, struct small_block *b)
{
	if (b->prev)
		b->prev->next = b->next;
	else
		s->free[b->class].first = b->next;
	if (b->next)
		b->next->prev = b->prev;
	else
		s->free[b->class].last = b->prev;
}

static void set_free(struct small_block *b, uint32_t slot)
{
	b->free[slot >> WORD_SHIFT] |= 1ull << (slot & (WORDS - 1));
	b->words |= 1ull << (slot >> WORD_SHIFT);
}

/* Returns where the block of extent @x is noted, or NULL if it cannot be one. */
static struct small_block **place_of(const struct small *s, const struct ebbfar_extent *x)
{
	uint64_t arena = x->place >> ARENA_SHIFT;
	uint32_t n = (uint32_t)x->place / SMALL_EXTENT;

	return arena < SMALL_ARENAS && s->arenas[arena] && n < s->per_arena ?
		       &s->arenas[arena][n] : NULL;
}

static struct small_block *find(const struct small *s, const struct ebbfar_extent *x)
{
	struct small_block **at = place_of(s, x), *b = at ? *at : NULL;

	return b && b->x.place == x->place && b->x.size == x->size &&
	       b->x.generation == x->generation ? b : NULL;
}

bool small_has(const struct small *s, const struct ebbfar_extent *x)
{
	return find(s, x);
}

static struct small_block *make(uint32_t class, const struct ebbfar_extent *x, uint32_t epoch)
{
	uint32_t slots = slots_of(class);
	struct small_block *b = calloc(1, sizeof(*b) + slots * sizeof(b->stamps[0]));

	if (!b)
		return NULL;
	b->x = *x;
	b->class = class;
	b->epoch = epoch;
	for (uint32_t i = 0; i < slots; i++)
		set_free(b, i);
	return b;
}

int small_add(struct small *s, uint32_t per_arena, uint32_t class, const struct ebbfar_extent *x)
{
	struct small_block ***table = &s->arenas[x->place >> ARENA_SHIFT];
	struct small_block *b = make(class, x, 0);

	s->per_arena = per_arena;
	if (b && !*table)
		*table = calloc(per_arena, sizeof(**table));
	if (!b || !*table) {
		free(b);
		return -ENOMEM;
	}
	*place_of(s, x) = b;
	append(s, b);
	return 0;
}

/* Forgets @b, which has free slots. */
static void discard(struct small *s, struct small_block *b)
{
	take_out(s, b);
	if (s->spare == b)
		s->spare = NULL;
	free(b);
}

int small_reuse(struct small *s, uint32_t class)
{
	struct small_block *old = s->spare, *b;

	if (!old)
		return -ENOENT;
	b = make(class, &old->x, old->epoch + 1);
	if (!b)
		return -ENOMEM;
	*place_of(s, &b->x) = b;
	discard(s, old);
	append(s, b);
	return 0;
}

bool small_evict(struct small *s, struct ebbfar_extent *x)
{
	if (!s->spare)
		return false;
	*x = s->spare->x;
	*place_of(s, x) = NULL;
	discard(s, s->spare);
	return true;
}

void small_end(struct small *s)
{
	for (uint32_t i = 0; i < SMALL_ARENAS; i++) {
		for (uint32_t n = 0; s->arenas[i] && n < s->per_arena; n++)
			free(s->arenas[i][n]);
		free(s->arenas[i]);
	}
	memset(s, 0, sizeof(*s));
}

/* --- objects ---------------------------------------------------------------------- */

bool small_take(struct small *s, uint32_t class, struct ebbfar_object *o)
{
	struct small_block *b = s->free[class].first;
	uint32_t word, slot;

	if (!b)
		return false;
	word = (uint32_t)__builtin_ctzll(b->words);
	slot = word << WORD_SHIFT | (uint32_t)__builtin_ctzll(b->free[word]);
	b->free[word] &= b->free[word] - 1;
	if (!b->free[word])
		b->words &= b->words - 1;
	if (!b->words)
		take_out(s, b);
	b->used++;
	if (s->spare == b)
		s->spare = NULL;
	*o = (struct ebbfar_object){
		.extent = b->x,
		.offset = slot * size_of(class),
		.stamp = b->epoch << 16 | ++b->stamps[slot],
	};
	return true;
}

/* Makes slot @slot free, or retires it. */
static void leave_slot(struct small *s, struct small_block *b, uint32_t slot)
{
	bool full = !b->words;

	b->used--;
	if (b->stamps[slot] == LAST) {
		/* Even: no object is there. */
		b->stamps[slot] = 0;
		b->retired++;
		return;
	}
	b->stamps[slot]++;
	set_free(b, slot);
	if (full)
		append(s, b);
}

int small_give(struct small *s, const struct ebbfar_object *o, struct ebbfar_extent *x)
{
	struct small_block *b = find(s, &o->extent);
	uint32_t slot;

	if (!b || o->stamp >> 16 != b->epoch)
		return -ESTALE;
	slot = o->offset / size_of(b->class);
	if (o->offset % size_of(b->class) || slot >= slots_of(b->class))
		return -EINVAL;
	if ((uint16_t)o->stamp != b->stamps[slot] || !(b->stamps[slot] & 1))
		return -ESTALE;
	leave_slot(s, b, slot);
	if (b->used)
		return 0;
	if (!s->spare && !b->retired && b->epoch < LAST) {
		s->spare = b;
		/* Others are filled first. */
		take_out(s, b);
		append(s, b);
		return 0;
	}
	*x = b->x;
	*place_of(s, x) = NULL;
	if (!b->words)
		append(s, b);
	discard(s, b);
	return 1;
}
