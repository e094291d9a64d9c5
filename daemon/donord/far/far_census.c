// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "far_census.h"
#include "lib/rules/far_memory.h"

/* Sections in a turn of the loop, of up to 4 KiB of words each. */
#define CENSUS_SECTIONS 32

/* Begins with pool @number. */
static void begin_pool(struct far *far, uint32_t number)
{
	struct far_census *c = &far->census;

	c->pool = number;
	c->arena = c->section = 0;
	c->running = number < FAR_POOLS;
	c->done = !c->running;
	memset(c->members, 0, sizeof(c->members));
	if (c->running)
		c->identity = far->pools[number].identity;
}

bool far_counted(struct far *far)
{
	struct far_census *c = &far->census;

	if (!far->used)
		return true;
	if (!c->done && !c->running)
		begin_pool(far, 0);
	return c->done;
}

void far_count_end(struct far *far)
{
	far->census.done = false;
}

static void end_pool(struct far_pool *fp)
{
	const struct far_census *c = &fp->far->census;

	fp->extents = (struct far_count){ 0 };
	for (uint32_t i = 1; i <= EBB_FAR_MEMBERS; i++)
		far_count_add(&fp->extents, &c->members[i]);
}

static void count_section(struct far *far, const uint8_t *base, uint32_t section)
{
	uint64_t word = far_load(base, ebb_far_section_at(section)), slots[EBB_FAR_SLOTS];
	uint32_t n = far_count_slots(word);

	for (uint32_t i = 0; i < n; i++)
		slots[i] = far_load(base, ebb_far_slot_at(far->sections, section, i));
	far_count_section(far->census.members, word, slots);
}

bool far_census_turn(struct far *far)
{
	struct far_census *c = &far->census;

	for (uint32_t i = 0; i < CENSUS_SECTIONS && c->running;) {
		struct far_pool *fp = &far->pools[c->pool];

		/* Another pool has its place since the last piece. */
		if (fp->identity != c->identity)
			begin_pool(far, c->pool);
		if (c->arena >= fp->arenas) {
			end_pool(fp);
			begin_pool(far, c->pool + 1);
			continue;
		}
		count_section(far, far_base(fp, c->arena), c->section);
		i++;
		if (++c->section == far->sections) {
			c->section = 0;
			c->arena++;
		}
	}
	return c->done;
}
