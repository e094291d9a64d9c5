// SPDX-License-Identifier: GPL-2.0-or-later
#include <assert.h>

#include "shared.h"
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

static uint8_t mask(const struct slab *s, enum copy_state state)
{
	uint8_t copies = 0;

	for (int c = 0; c < SLAB_COPIES; c++)
		copies |= (uint8_t)((s->copy[c].state == state) << c);
	return copies;
}

uint8_t slab_mapped(const struct slab *s)
{
	return mask(s, COPY_MAPPED);
}

uint8_t slab_away(const struct slab *s)
{
	return mask(s, COPY_AWAY);
}

int slab_copies(const struct slab *s, enum copy_state state)
{
	int n = 0;

	for (int c = 0; c < SLAB_COPIES; c++)
		n += s->copy[c].state == state;
	return n;
}

int slab_copy_at(const struct slab *s, uint16_t donor)
{
	for (int c = 0; c < SLAB_COPIES; c++)
		if (s->copy[c].state != COPY_NONE && s->copy[c].donor == donor)
			return c;
	return -1;
}

enum slab_state slab_state(const struct slab *s)
{
	if (slab_copies(s, COPY_MAPPED))
		return SLAB_MAPPED;
	if (slab_copies(s, COPY_MAPPING))
		return SLAB_MAPPING;
	if (slab_copies(s, COPY_AWAY))
		return SLAB_AWAY;
	return s->lost ? SLAB_LOST : SLAB_UNMAPPED;
}

const char *slab_state_text(enum slab_state state)
{
	static const char *const texts[SLAB_STATES] = {
		[SLAB_UNMAPPED] = "unmapped",
		[SLAB_MAPPING] = "mapping",
		[SLAB_MAPPED] = "mapped",
		[SLAB_AWAY] = "away",
		[SLAB_LOST] = "lost",
	};

	return texts[state];
}

int slab_ask(struct slab *s, uint16_t donor, uint64_t now)
{
	assert(slab_copy_at(s, donor) < 0);
	for (int c = 0; c < SLAB_COPIES; c++) {
		struct copy *copy = &s->copy[c];

		if (copy->state != COPY_NONE)
			continue;
		*copy = (struct copy){ .state = COPY_MAPPING, .donor = donor, .since = now,
				       .serial = copy->serial + 1 };
		return c;
	}
	return -1;
}

static void settle(struct slab *s)
{
	if (!slab_copies(s, COPY_MAPPING))
		s->opening = false;
}

void slab_grant(struct slab *s, int copy, uint32_t remote, uint32_t generation, bool partial)
{
	struct copy *c = &s->copy[copy];

	assert(c->state == COPY_MAPPING);
	c->mapping.remote = remote;
	c->mapping.generation = generation;
	c->partial = partial;
	shared_order();
	c->state = COPY_MAPPED;
	s->lost = false;
	settle(s);
}

static void release(struct slab *s, int copy)
{
	s->copy[copy].state = COPY_NONE;
	shared_order();
	s->copy[copy] = (struct copy){ .serial = s->copy[copy].serial };
	settle(s);
}

void slab_refuse(struct slab *s, int copy)
{
	assert(s->copy[copy].state == COPY_MAPPING);
	release(s, copy);
}

void slab_drop(struct slab *s, int copy)
{
	assert(s->copy[copy].state == COPY_MAPPED);
	release(s, copy);
}

void slab_lose(struct slab *s, int copy)
{
	assert(s->copy[copy].state != COPY_NONE);
	release(s, copy);
	s->not_before = 0;
	s->lost = slab_copies(s, COPY_NONE) == SLAB_COPIES;
}

static void part(struct copy *c)
{
	c->mapping.memory = NULL;
	c->since = 0;
	c->told_backed = false;
	c->state = COPY_AWAY;
}

void slab_part(struct slab *s, int copy)
{
	assert(s->copy[copy].state == COPY_MAPPED);
	part(&s->copy[copy]);
}

void slab_orphan(struct slab *s)
{
	s->opening = false;
	s->jobs = 0;
	s->not_before = s->rewrite_at = s->idle_since = 0;
	s->waiting_head = s->waiting_tail = -1;
	for (int i = 0; i < SLAB_COPIES; i++) {
		struct copy *c = &s->copy[i];

		if (c->state == COPY_NONE || c->state == COPY_MAPPING) {
			release(s, i);
			continue;
		}
		part(c);
	}
}

void slab_back(struct slab *s, int copy)
{
	assert(s->copy[copy].state == COPY_AWAY);
	s->copy[copy].state = COPY_MAPPED;
	s->lost = false;
	for (int i = 0; i < SLAB_COPIES; i++) {
		s->copy[i].partial = true;
		s->copy[i].repaired = 0;
	}
}

uint32_t slab_count(const struct slab_table *t, enum slab_state state)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->count; i++)
		n += slab_state(&t->slabs[i]) == state;
	return n;
}
