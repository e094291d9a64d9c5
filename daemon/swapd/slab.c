// SPDX-License-Identifier: GPL-2.0-or-later
#include <assert.h>

#include "slab.h"

void slab_init(struct slab_table *t, struct slab *slabs, uint32_t count, uint32_t pages)
{
	for (uint32_t i = 0; i < count; i++)
		slabs[i] = (struct slab){ .waiting_head = -1, .waiting_tail = -1 };
	*t = (struct slab_table){ slabs, count, pages };
}

uint32_t slab_run(const struct slab_table *t, uint32_t page, uint32_t count)
{
	uint32_t left = t->pages - page % t->pages;

	return count < left ? count : left;
}

bool slab_may_map(const struct slab *s, uint64_t now)
{
	return (s->state == SLAB_UNMAPPED || s->state == SLAB_LOST) && now >= s->since;
}

void slab_ask(struct slab *s, uint16_t donor, uint64_t now)
{
	assert(s->state == SLAB_UNMAPPED || s->state == SLAB_LOST);
	s->state = SLAB_MAPPING;
	s->donor = donor;
	s->since = now;
}

void slab_grant(struct slab *s, uint32_t remote, uint32_t generation)
{
	assert(s->state == SLAB_MAPPING);
	s->state = SLAB_MAPPED;
	s->remote = remote;
	s->generation = generation;
	s->since = 0;
}

void slab_refuse(struct slab *s, uint64_t not_before)
{
	assert(s->state == SLAB_MAPPING);
	s->state = SLAB_UNMAPPED;
	s->since = not_before;
}

void slab_lose(struct slab *s)
{
	assert(s->state == SLAB_MAPPING || s->state == SLAB_MAPPED);
	s->state = SLAB_LOST;
	s->since = 0;
}

uint32_t slab_count(const struct slab_table *t, enum slab_state state, int donor)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->count; i++)
		if (t->slabs[i].state == state && (donor < 0 || t->slabs[i].donor == donor))
			n++;
	return n;
}
