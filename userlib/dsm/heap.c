// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "heap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TABLE_LEAST 64u
/*
 * Numbers that are kept for objects that are there: changes, offers, and a move to another block.
 */
#define NUMBERS_KEPT 16u

static uint32_t bucket_of(const struct heap *h, uint64_t place)
{
	return (uint32_t)((place >> 12) * 0x9e3779b97f4a7c15ull >> 32) & (h->size - 1);
}

static int grow_table(struct heap *h)
{
	struct heap old = *h;

	if (h->blocks < h->size)
		return 0;
	h->size = h->size ? 2 * h->size : TABLE_LEAST;
	h->table = calloc(h->size, sizeof(*h->table));
	if (!h->table) {
		*h = old;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < old.size; i++)
		while (old.table[i]) {
			struct block *b = old.table[i], **at = &h->table[bucket_of(h, b->x.place)];

			old.table[i] = b->chain;
			b->chain = *at;
			*at = b;
		}
	free(old.table);
	return 0;
}

static struct block *find_block(const struct heap *h, uint64_t place)
{
	struct block *b = h->size ? h->table[bucket_of(h, place)] : NULL;

	while (b && b->x.place != place)
		b = b->chain;
	return b;
}

static void enlist(struct heap *h, struct block *b)
{
	struct block **first = &h->listed[b->kind];

	b->listed = true;
	b->prev = NULL;
	b->next = *first;
	if (b->next)
		b->next->prev = b;
	*first = b;
}

static void unlist(struct heap *h, struct block *b)
{
	if (!b->listed)
		return;
	b->listed = false;
	if (b->prev)
		b->prev->next = b->next;
	else
		h->listed[b->kind] = b->next;
	if (b->next)
		b->next->prev = b->prev;
}

static bool is_worn(const struct block *b)
{
	return b->numbers + NUMBERS_KEPT >= DSM_NUMBERS;
}

/* --- blocks ----------------------------------------------------------------------- */

static struct block *make_block(uint32_t kind)
{
	uint32_t slots = name_extent(kind) / name_place(kind);
	struct block *b = calloc(1, sizeof(*b) + slots * sizeof(*b->slot));

	if (!b)
		return NULL;
	b->kind = kind;
	b->slots = slots;
	b->free = 1;
	for (uint32_t i = 0; i < slots; i++)
		b->slot[i].size = i + 1 < slots ? i + 2 : 0;
	return b;
}

static int map_block(struct heap *h, struct block *b)
{
	void *memory;
	int r;

	if (!h->home->maps)
		return link_zero(h->home, &b->x, 0, b->x.size);
	r = ebbfar_map(h->home->far, &b->x, &memory);
	if (r)
		return link_error(r);
	b->memory = memory;
	memset(memory, 0, b->x.size);
	/* Before any content. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return 0;
}

static int add_block(struct heap *h, uint32_t kind)
{
	struct block *b = make_block(kind), **at;
	int r = b ? grow_table(h) : -ENOMEM;

	if (!r)
		r = link_error(ebbfar_alloc(h->home->far, name_extent(kind), &b->x));
	if (r) {
		free(b);
		return r == -EAGAIN ? -ENOSPC : r;
	}
	r = map_block(h, b);
	if (r) {
		link_free(h->home, &b->x);
		free(b);
		return r;
	}
	b->first = name_make(h->home->number, h->home->member, &b->x, 0, kind, 1);
	b->place = name_place(kind);
	b->unit_shift = (uint32_t)__builtin_ctz(name_unit(kind));
	at = &h->table[bucket_of(h, b->x.place)];
	b->chain = *at;
	*at = b;
	h->blocks++;
	enlist(h, b);
	return 0;
}

static void remove_block(struct heap *h, struct block *b)
{
	struct block **at = &h->table[bucket_of(h, b->x.place)];

	while (*at != b)
		at = &(*at)->chain;
	*at = b->chain;
	h->blocks--;
	unlist(h, b);
	link_free(h->home, &b->x);
	free(b);
}

void heap_end(struct heap *h)
{
	for (uint32_t i = 0; i < h->size; i++)
		while (h->table[i]) {
			struct block *b = h->table[i];

			h->table[i] = b->chain;
			free(b);
		}
	free(h->table);
	h->table = NULL;
	h->size = 0;
}

/* --- places ----------------------------------------------------------------------- */

/* As name_make(), which each access of an object cannot afford. */
static uint64_t make_at(const struct block *b, uint32_t slot, size_t size)
{
	return b->first + ((uint64_t)(slot * b->place) << 11) +
	       ((DSM_HEAD + size - 1) >> b->unit_shift);
}

int heap_new(struct heap *h, size_t size, uint64_t *at, struct slot **slot)
{
	uint32_t kind = name_kind(DSM_HEAD + size), i;
	struct block *b;

	/* Mapped memory of a donor that has exited can still be accessed. */
	if (*ebbfar_why(h->home->far))
		return -EIO;
	while ((b = h->listed[kind]) && is_worn(b))
		unlist(h, b);
	if (!b) {
		int r = add_block(h, kind);

		if (r)
			return r;
		b = h->listed[kind];
	}
	i = b->free - 1;
	b->free = b->slot[i].size;
	b->used++;
	h->places++;
	if (!b->free)
		unlist(h, b);
	b->slot[i] = (struct slot){ .size = (uint32_t)size, .state = SLOT_WORKING };
	*at = make_at(b, i, size);
	*slot = &b->slot[i];
	return 0;
}

/* Sets *@i to the slot of place @at.  Returns its block, or NULL. */
static struct block *locate(struct heap *h, uint64_t at, uint32_t *i)
{
	uint64_t place = name_at_place(at), extent = name_extent(name_at_kind(at));
	struct block *b;

	if (h->last.block && h->last.at == at) {
		*i = h->last.slot;
		return h->last.block;
	}
	b = find_block(h, place & ~(extent - 1));
	if (!b)
		return NULL;
	*i = (uint32_t)(place & (extent - 1)) / b->place;
	/* Of a name with another kind, donor or member, a bit differs. */
	if (*i >= b->slots || b->slot[*i].state == SLOT_UNUSED ||
	    make_at(b, *i, b->slot[*i].size) != at)
		return NULL;
	h->last.at = at;
	h->last.block = b;
	h->last.slot = *i;
	return b;
}

struct slot *heap_find(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	return b ? &b->slot[i] : NULL;
}

struct content *heap_memory(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	return b && b->memory ? (struct content *)(b->memory + i * b->place) : NULL;
}

uint64_t heap_stamp(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	if (!b || b->numbers + 1 >= DSM_NUMBERS)
		return 0;
	return dsm_stamp(b->x.generation, ++b->numbers);
}

bool heap_is_worn(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	return !b || is_worn(b);
}

static void clear_head(struct heap *h, struct block *b, uint32_t i)
{
	struct dsm_head *head;

	if (!b->memory) {
		/* A failure is the link's: then nothing of it can be used. */
		link_zero(h->home, &b->x, i * name_place(b->kind), DSM_HEAD);
		return;
	}
	head = (struct dsm_head *)(b->memory + i * name_place(b->kind));
	__atomic_store_n(&head->stamp, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&head->check, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&head->hold, 0, __ATOMIC_RELAXED);
	/* Before the place's next content. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void heap_free(struct heap *h, uint64_t at)
{
	uint32_t i;
	struct block *b = locate(h, at, &i);

	h->last.block = NULL;
	clear_head(h, b, i);
	b->slot[i] = (struct slot){ .size = b->free };
	b->free = i + 1;
	b->used--;
	h->places--;
	if (is_worn(b))
		unlist(h, b);
	else if (!b->listed)
		enlist(h, b);
	/* One block of each kind is kept for the next object. */
	if (!b->used && (b->slots == 1 || is_worn(b) || h->listed[b->kind] != b || b->next))
		remove_block(h, b);
}
