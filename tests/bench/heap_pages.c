// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>

#include "heap_pages.h"

enum { NOWHERE, INACTIVE, ACTIVE, LISTS };

struct page {
	uint32_t next, before;	/* on its list; rings through the lists' heads */
	uint64_t left;		/* evictions and activations until it was evicted */
	uint8_t list;
	bool swapped, dirty;	/* swapped out; to be written if it leaves */
	bool young, referenced;	/* touched since the last look; found young once */
};

struct heap_pages {
	enum heap_lru lru;
	uint32_t pages;
	uint64_t room, age, length[LISTS];
	struct heap_page_counts counts;
	struct page page[];	/* the last LISTS are the heads */
};

static uint32_t head_of(const struct heap_pages *p, unsigned int list)
{
	return p->pages + list;
}

struct heap_pages *heap_pages_new(uint64_t pages, uint64_t room, enum heap_lru lru)
{
	struct heap_pages *p;

	if (pages > UINT32_MAX - LISTS || room < 2)
		return NULL;
	p = calloc(1, sizeof(*p) + (pages + LISTS) * sizeof(p->page[0]));
	if (!p)
		return NULL;
	p->lru = lru;
	p->pages = (uint32_t)pages;
	p->room = room;
	for (unsigned int list = 0; list < LISTS; list++)
		p->page[head_of(p, list)].next = p->page[head_of(p, list)].before =
			head_of(p, list);
	return p;
}

void heap_pages_free(struct heap_pages *p)
{
	free(p);
}

static void take(struct heap_pages *p, uint32_t page)
{
	struct page *g = &p->page[page];

	p->page[g->before].next = g->next;
	p->page[g->next].before = g->before;
	p->length[g->list]--;
	g->list = NOWHERE;
}

static void put(struct heap_pages *p, uint32_t page, uint8_t list)
{
	struct page *g = &p->page[page], *head = &p->page[head_of(p, list)];

	g->list = list;
	g->before = head_of(p, list);
	g->next = head->next;
	p->page[head->next].before = page;
	head->next = page;
	p->length[list]++;
}

static uint32_t last(const struct heap_pages *p, unsigned int list)
{
	return p->page[head_of(p, list)].before;
}

static void evict(struct heap_pages *p, uint32_t page)
{
	struct page *g = &p->page[page];

	take(p, page);
	p->counts.swapped_out += g->dirty;
	g->dirty = g->young = g->referenced = false;
	g->swapped = true;
	g->left = p->age++;
}

/* Moves the oldest active page to the inactive list, whether it was touched or not. */
static void deactivate(struct heap_pages *p)
{
	uint32_t page = last(p, ACTIVE);

	take(p, page);
	p->page[page].young = false;
	put(p, page, INACTIVE);
}

/* Looks at the oldest inactive page: evicts it, or gives it another turn. */
static void shrink(struct heap_pages *p)
{
	uint32_t page = last(p, INACTIVE);
	struct page *g = &p->page[page];

	if (!g->young || p->lru == HEAP_LRU_EXACT) {
		evict(p, page);
		return;
	}
	g->young = false;
	take(p, page);
	p->age += g->referenced;
	put(p, page, g->referenced ? ACTIVE : INACTIVE);
	/* It stays so: a page that was active once needs one more touch to become active again. */
	g->referenced = true;
}

static void make_room(struct heap_pages *p)
{
	while (p->length[INACTIVE] + p->length[ACTIVE] >= p->room) {
		if (p->length[INACTIVE] < p->length[ACTIVE] || !p->length[INACTIVE])
			deactivate(p);
		else
			shrink(p);
	}
}

static void enter(struct heap_pages *p, uint32_t page, bool born)
{
	struct page *g = &p->page[page];
	bool soon;

	make_room(p);
	soon = g->swapped && p->lru == HEAP_LRU_KERNEL && p->age - g->left <= p->length[ACTIVE];
	if (g->swapped) {
		p->counts.swapped_in++;
		p->counts.born_in += born;
	} else {
		p->counts.zeroed++;
		g->dirty = true;
	}
	g->swapped = false;
	p->age += soon;
	put(p, page, soon ? ACTIVE : INACTIVE);
}

void heap_pages_touch(struct heap_pages *p, uint64_t page, bool write, bool born)
{
	struct page *g = &p->page[page];

	if (g->list == NOWHERE) {
		enter(p, (uint32_t)page, born);
	} else if (p->lru == HEAP_LRU_EXACT) {
		take(p, (uint32_t)page);
		put(p, (uint32_t)page, INACTIVE);
	}
	g->young = true;
	g->dirty |= write;
}

void heap_pages_drop(struct heap_pages *p, uint64_t page)
{
	struct page *g = &p->page[page];

	if (g->list != NOWHERE)
		take(p, (uint32_t)page);
	g->swapped = g->dirty = g->young = g->referenced = false;
}

uint64_t heap_pages_resident(const struct heap_pages *p)
{
	return p->length[INACTIVE] + p->length[ACTIVE];
}

struct heap_page_counts heap_pages_counts(const struct heap_pages *p)
{
	return p->counts;
}
