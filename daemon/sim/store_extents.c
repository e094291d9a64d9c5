// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Extents.  A section of 2 MiB is free, or has slots of one class; a section whose last extent is
 * freed is free again at once.  The slots of all machines are in the same sections.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/base/draw.h"
#include "store.h"

#define CLASSES 10    /* 1 to 512 pages */
#define CLASS_FREE CLASSES
#define ARENA 32      /* sections in 64 MiB; the tables take one of them */
#define NOWHERE UINT32_MAX

struct section {
	uint16_t free;    /* slots */
	uint8_t order;    /* a slot has 2^order pages */
	uint32_t listed;  /* index in its class's list; NOWHERE = no free slot */
};

/* Sections with a free slot; of CLASS_FREE: free sections. */
struct list {
	uint32_t *v, n;
};

struct extents {
	struct store store;
	enum store_extents kind;
	uint64_t seed;
	struct section *sections;
	struct list lists[CLASSES + 1];
};

static void list_add(struct extents *x, uint32_t order, uint32_t section)
{
	struct list *l = &x->lists[order];

	x->sections[section].listed = l->n;
	l->v[l->n++] = section;
}

static void list_remove(struct extents *x, uint32_t order, uint32_t section)
{
	struct list *l = &x->lists[order];
	uint32_t at = x->sections[section].listed, last = l->v[--l->n];

	l->v[at] = last;
	x->sections[last].listed = at;
	x->sections[section].listed = NOWHERE;
}

static uint32_t slots(uint32_t order)
{
	return STORE_RUN >> order;
}

/* Returns a section with a free slot of @order, opening one if there is none; NOWHERE. */
static uint32_t find(struct extents *x, uint32_t order)
{
	struct list *open = &x->lists[order], *free = &x->lists[CLASS_FREE];
	uint32_t section;

	if (open->n)
		return open->v[draw_below(&x->seed, open->n)];
	if (!free->n)
		return NOWHERE;
	section = free->v[draw_below(&x->seed, free->n)];
	list_remove(x, CLASS_FREE, section);
	x->sections[section].order = (uint8_t)order;
	x->sections[section].free = (uint16_t)slots(order);
	list_add(x, order, section);
	x->store.lent += STORE_RUN;
	x->store.maps++;
	return section;
}

/* Takes up to @n slots of one section. */
static uint32_t take_slots(struct extents *x, uint32_t order, uint32_t n, uint32_t *at)
{
	uint32_t section = find(x, order);
	struct section *s = &x->sections[section];

	if (section == NOWHERE)
		return 0;
	if (n > s->free)
		n = s->free;
	s->free -= n;
	if (!s->free)
		list_remove(x, order, section);
	*at = section;
	return n;
}

/* Returns the least order of @pages, and the greatest that is not larger. */
static uint32_t order_up(uint32_t pages)
{
	return pages > 1 ? 32 - (uint32_t)__builtin_clz(pages - 1) : 0;
}

static uint32_t order_down(uint32_t pages)
{
	return 31 - (uint32_t)__builtin_clz(pages);
}

static uint32_t take_extent(struct extents *x, uint32_t pages, uint32_t *at)
{
	switch (x->kind) {
	case STORE_ROUNDED:
		return take_slots(x, order_up(pages), 1, at) ? pages : 0;
	case STORE_SPLIT:
		for (uint32_t order = order_down(pages) + 1; order-- > 0;)
			if (take_slots(x, order, 1, at))
				return 1u << order;
		return 0;
	default:
		return take_slots(x, 0, pages, at);
	}
}

static uint32_t take(struct store *store, uint32_t node, uint32_t cpu, uint32_t pages, uint32_t *at)
{
	uint32_t n = take_extent((struct extents *)store, pages, at);

	store->live += n;
	store->refused += !n;
	return n;
}

static void put(struct store *store, uint32_t node, uint32_t at, uint32_t pages)
{
	struct extents *x = (struct extents *)store;
	struct section *s = &x->sections[at];
	uint32_t order = s->order;

	store->live -= pages;
	if (s->listed == NOWHERE)
		list_add(x, order, at);
	s->free += x->kind == STORE_SINGLE ? pages : 1;
	if (s->free < slots(order))
		return;
	list_remove(x, order, at);
	list_add(x, CLASS_FREE, at);
	x->store.lent -= STORE_RUN;
	x->store.unmaps++;
}

static void tear_down(struct store *store)
{
	struct extents *x = (struct extents *)store;

	for (int i = 0; i <= CLASSES; i++)
		free(x->lists[i].v);
	free(x->sections);
	free(x);
}

int store_extents_new(struct store **out, enum store_extents kind, uint64_t seed)
{
	static const struct store_ops ops = { take, put, NULL, tear_down };
	struct extents *x = calloc(1, sizeof(*x));
	uint32_t count = STORE_PAGES / STORE_RUN;

	if (!x)
		return -ENOMEM;
	x->store.ops = &ops;
	x->kind = kind;
	x->seed = seed;
	x->sections = calloc(count, sizeof(*x->sections));
	for (int i = 0; i <= CLASSES; i++)
		x->lists[i].v = calloc(count, sizeof(*x->lists[i].v));
	for (int i = 0; i <= CLASSES; i++)
		if (!x->lists[i].v || !x->sections) {
			tear_down(&x->store);
			return -ENOMEM;
		}
	for (uint32_t i = 0; i < count; i++)
		if (i % ARENA)
			list_add(x, CLASS_FREE, i);
	*out = &x->store;
	return 0;
}
