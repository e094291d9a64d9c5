// SPDX-License-Identifier: GPL-2.0-or-later
#include "lib/base/draw.h"
#include "surplus.h"

#define NONE UINT32_MAX

void surplus_init(struct surplus *s, enum surplus_order order, struct surplus_page *page,
		  uint32_t *member, uint64_t reach)
{
	*s = (struct surplus){ .order = order, .page = page, .member = member, .reach = reach,
			       .seed = 1 };
	for (int i = 0; i < SURPLUS_LISTS; i++)
		s->list[i].oldest = s->list[i].newest = NONE;
}

static void append(struct surplus *s, uint32_t page, enum surplus_list list)
{
	struct surplus_page *p = &s->page[page];

	p->list = list;
	p->newer = NONE;
	p->older = s->list[list].newest;
	if (p->older == NONE)
		s->list[list].oldest = page;
	else
		s->page[p->older].newer = page;
	s->list[list].newest = page;
	s->list[list].n++;
}

static void drop(struct surplus *s, uint32_t page)
{
	struct surplus_page *p = &s->page[page];
	typeof(s->list[0]) *l = &s->list[p->list];

	if (p->older == NONE)
		l->oldest = p->newer;
	else
		s->page[p->older].newer = p->newer;
	if (p->newer == NONE)
		l->newest = p->older;
	else
		s->page[p->newer].older = p->older;
	l->n--;
	p->list = SURPLUS_OUT;
}

static void join(struct surplus *s, uint32_t page)
{
	s->page[page].at = s->members;
	s->member[s->members++] = page;
}

static void depart(struct surplus *s, uint32_t page)
{
	uint32_t at = s->page[page].at, last = s->member[--s->members];

	s->member[at] = last;
	s->page[last].at = at;
}

void surplus_add(struct surplus *s, uint32_t page)
{
	bool active = s->page[page].active && s->order == SURPLUS_LINUX;

	append(s, page, active ? SURPLUS_ACTIVE : SURPLUS_INACTIVE);
	join(s, page);
	s->page[page].active = false;
}

bool surplus_take(struct surplus *s, uint32_t page)
{
	struct surplus_page *p = &s->page[page];

	if (p->list == SURPLUS_OUT)
		return false;
	/* The page was touched again, for which it was kept. */
	p->active = true;
	drop(s, page);
	depart(s, page);
	return true;
}

void surplus_refault(struct surplus *s, uint32_t page)
{
	struct surplus_page *p = &s->page[page];

	p->active = p->evicted && s->evictions - p->evicted < s->reach;
}

uint32_t surplus_evict(struct surplus *s)
{
	uint32_t page;

	/* inactive_is_low(), with the ratio of memories below 1 GiB. */
	while (s->list[SURPLUS_INACTIVE].n < s->list[SURPLUS_ACTIVE].n) {
		page = s->list[SURPLUS_ACTIVE].oldest;
		drop(s, page);
		append(s, page, SURPLUS_INACTIVE);
	}
	page = s->list[SURPLUS_INACTIVE].oldest;
	if (page == NONE)
		return NONE;
	if (s->order == SURPLUS_RANDOM)
		page = s->member[draw_below(&s->seed, s->members)];
	drop(s, page);
	depart(s, page);
	s->page[page].evicted = ++s->evictions;
	return page;
}
