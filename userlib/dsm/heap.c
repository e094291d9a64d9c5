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

static uint32_t bucket_of(const struct heap_part *p, uint64_t place)
{
	return (uint32_t)((place >> 12) * 0x9e3779b97f4a7c15ull >> 32) & (p->size - 1);
}

static int grow_table(struct heap_part *p)
{
	struct heap_part old = *p;

	if (p->blocks < p->size)
		return 0;
	p->size = p->size ? 2 * p->size : TABLE_LEAST;
	p->table = calloc(p->size, sizeof(*p->table));
	if (!p->table) {
		p->size = old.size;
		p->table = old.table;
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < old.size; i++)
		while (old.table[i]) {
			struct block *b = old.table[i], **at = &p->table[bucket_of(p, b->x.place)];

			old.table[i] = b->chain;
			b->chain = *at;
			*at = b;
		}
	free(old.table);
	return 0;
}

static struct heap_part *part_of(struct heap *h, const struct block *b)
{
	return &h->part[b->link->number];
}

static struct block *find_block(const struct heap_part *p, uint64_t place)
{
	struct block *b = p->size ? p->table[bucket_of(p, place)] : NULL;

	while (b && b->x.place != place)
		b = b->chain;
	return b;
}

static void enlist(struct heap *h, struct block *b)
{
	struct block **first = &part_of(h, b)->listed[b->kind];

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
		part_of(h, b)->listed[b->kind] = b->next;
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

static int map_block(struct block *b)
{
	void *memory;
	int r;

	if (!b->link->maps)
		return link_zero(b->link, &b->x, 0, b->x.size);
	r = ebbfar_map(b->link->far, &b->x, &memory);
	if (r)
		return link_error(r);
	b->memory = memory;
	memset(memory, 0, b->x.size);
	/* Before any content. */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return 0;
}

static int add_block(struct heap *h, struct link *link, uint32_t kind)
{
	struct heap_part *p = &h->part[link->number];
	struct block *b = make_block(kind), **at;
	int r = b ? grow_table(p) : -ENOMEM;

	if (!r) {
		b->link = link;
		r = link_error(ebbfar_alloc(link->far, name_extent(kind), &b->x));
	}
	if (r) {
		free(b);
		return r == -EAGAIN ? -ENOSPC : r;
	}
	r = map_block(b);
	if (r) {
		link_free(link, &b->x);
		free(b);
		return r;
	}
	b->first = name_make(link->number, link->member, &b->x, 0, kind, 1);
	b->place = name_place(kind);
	b->unit_shift = (uint32_t)__builtin_ctz(name_unit(kind));
	at = &p->table[bucket_of(p, b->x.place)];
	b->chain = *at;
	*at = b;
	p->blocks++;
	p->bytes += b->x.size;
	enlist(h, b);
	return 0;
}

static void remove_block(struct heap *h, struct block *b)
{
	struct heap_part *p = part_of(h, b);
	struct block **at = &p->table[bucket_of(p, b->x.place)];

	while (*at != b)
		at = &(*at)->chain;
	*at = b->chain;
	p->blocks--;
	p->bytes -= b->x.size;
	unlist(h, b);
	link_free(b->link, &b->x);
	free(b);
}

static void end_part(struct heap_part *p)
{
	for (uint32_t i = 0; i < p->size; i++)
		while (p->table[i]) {
			struct block *b = p->table[i];

			p->table[i] = b->chain;
			free(b);
		}
	free(p->table);
	p->table = NULL;
	p->size = 0;
}

void heap_end(struct heap *h)
{
	for (uint32_t i = 0; i < NAME_DONORS; i++)
		end_part(&h->part[i]);
}

/* --- places ----------------------------------------------------------------------- */

/* As name_make(), which each access of an object cannot afford. */
static uint64_t make_at(const struct block *b, uint32_t slot, size_t size)
{
	return b->first + ((uint64_t)(slot * b->place) << 11) +
	       ((DSM_HEAD + size - 1) >> b->unit_shift);
}

bool heap_has_place(const struct heap *h, uint32_t donor, size_t size)
{
	const struct block *b = h->part[donor].listed[name_kind(DSM_HEAD + size)];

	return b && !is_worn(b);
}

int heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot)
{
	struct heap_part *p = &h->part[donor];
	struct link *link = &h->link[donor];
	uint32_t kind = name_kind(DSM_HEAD + size), i;
	struct block *b;

	/* Mapped memory of a donor that has exited can still be accessed. */
	if (*ebbfar_why(link->far))
		return -EIO;
	while ((b = p->listed[kind]) && is_worn(b))
		unlist(h, b);
	if (!b) {
		int r = add_block(h, link, kind);

		if (r)
			return r;
		b = p->listed[kind];
	}
	i = b->free - 1;
	b->free = b->slot[i].size;
	b->used++;
	h->places++;
	p->places++;
	if (!b->free)
		unlist(h, b);
	b->slot[i] = (struct slot){ .size = (uint32_t)size, .state = SLOT_WORKING };
	*at = make_at(b, i, size);
	*slot = &b->slot[i];
	return 0;
}

/* Sets *@i to the slot of place @at.  Returns its block, or NULL. */
static struct block *locate(const struct heap *h, uint64_t at, uint32_t *i)
{
	uint64_t place = name_at_place(at), extent = name_extent(name_at_kind(at));
	struct block *b;

	b = find_block(&h->part[at >> 61], place & ~(extent - 1));
	if (!b)
		return NULL;
	*i = (uint32_t)(place & (extent - 1)) / b->place;
	/* Of a name with another kind, donor or member, a bit differs. */
	if (*i >= b->slots || b->slot[*i].state == SLOT_UNUSED ||
	    make_at(b, *i, b->slot[*i].size) != at)
		return NULL;
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

static void clear_head(struct block *b, uint32_t i)
{
	struct dsm_head *head;

	if (!b->memory) {
		struct dsm_head none = { 0 };
		struct ebbfar_request q = {
			.op = EBBFAR_WRITE, .extent = b->x, .memory = &none, .size = DSM_HEAD,
			.offset = i * name_place(b->kind),
		};

		/* Without memory to post it, waits.  A failure then is the link's. */
		if (link_zero(b->link, &b->x, (uint32_t)q.offset, DSM_HEAD))
			link_submit(b->link, &q, 1);
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

	clear_head(b, i);
	b->slot[i] = (struct slot){ .size = b->free };
	b->free = i + 1;
	b->used--;
	h->places--;
	part_of(h, b)->places--;
	if (is_worn(b))
		unlist(h, b);
	else if (!b->listed)
		enlist(h, b);
	/* One block of each kind is kept for the next object. */
	if (!b->used &&
	    (b->slots == 1 || is_worn(b) || part_of(h, b)->listed[b->kind] != b || b->next))
		remove_block(h, b);
}
