// SPDX-License-Identifier: GPL-2.0-or-later
#include "headroom.h"
#include "lib/base/draw.h"

#define GIB (1ull << 30)

static uint32_t min32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

uint64_t headroom_default(uint64_t memory)
{
	return memory / 10 > GIB ? memory / 10 : GIB;
}

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t headroom_reserve(uint64_t memory, uint64_t headroom)
{
	uint64_t reserve = min64(memory / HEADROOM_RESERVE_PART, HEADROOM_RESERVE_MOST);

	return headroom ? min64(reserve, headroom / 2) : reserve;
}

uint64_t headroom_emergency(const struct headroom_sample *s, uint64_t reserve)
{
	bool waits = s->pressure >= HEADROOM_PRESSURE;

	return s->available < (waits ? reserve : reserve / 2) ? reserve - s->available : 0;
}

struct headroom_rule headroom_rule_default(uint64_t memory, uint64_t slab_size)
{
	uint64_t evict = HEADROOM_EVICT_BYTES / slab_size;
	uint64_t ready = HEADROOM_FREE_BYTES / slab_size;

	if (evict < HEADROOM_EVICT)
		evict = HEADROOM_EVICT;
	if (evict > HEADROOM_EVICT_MOST)
		evict = HEADROOM_EVICT_MOST;
	return (struct headroom_rule){
		.headroom = headroom_default(memory),
		.slab_size = slab_size,
		.beta = HEADROOM_BETA,
		.free_slabs = ready > HEADROOM_FREE_SLABS ? (uint32_t)ready : HEADROOM_FREE_SLABS,
		.evict = (uint32_t)evict,
		.extra = (uint32_t)evict / 2,
	};
}

void headroom_sample(struct headroom *h, const struct headroom_rule *rule,
		     const struct headroom_sample *sample, uint32_t slabs)
{
	uint64_t ours = slabs * rule->slab_size;
	uint64_t used = sample->available < sample->memory ? sample->memory - sample->available : 0;
	double others = used > ours ? (double)(used - ours) : 0;
	bool urgent = sample->available < rule->headroom / 2 && others > h->others;

	h->others = h->seen && !urgent ? h->others + rule->beta * (others - h->others) : others;
	h->memory = sample->memory;
	h->available = sample->available;
	h->pressure = sample->pressure;
	h->limited = sample->limited;
	h->allowed = ours + sample->own > HEADROOM_SELF ? ours + sample->own - HEADROOM_SELF : 0;
	h->seen = true;
}

uint32_t headroom_slabs(const struct headroom *h, const struct headroom_rule *rule)
{
	double room = (double)h->memory - (double)rule->headroom - h->others;
	double slabs;

	if (!h->seen || room <= 0)
		return 0;
	if (h->limited && room > (double)h->allowed)
		room = (double)h->allowed;
	if (rule->most && room > (double)rule->most)
		room = (double)rule->most;
	slabs = room / (double)rule->slab_size;
	return slabs < UINT32_MAX ? (uint32_t)slabs : UINT32_MAX;
}

void headroom_plan(const struct headroom *h, const struct headroom_rule *rule,
		   uint32_t free_slabs, uint32_t mapped, struct headroom_plan *plan)
{
	uint32_t room = headroom_slabs(h, rule), have = free_slabs + mapped + h->pinned, over;
	uint64_t now = h->available > rule->headroom ? h->available - rule->headroom : 0;

	*plan = (struct headroom_plan){ 0 };
	if (!h->seen)
		return;
	if (have > room) {
		over = have - room;
		plan->release = min32(free_slabs, over);
		plan->evict = min32(min32(over - plan->release, mapped), rule->evict);
	} else if (free_slabs < rule->free_slabs && h->pressure < HEADROOM_PRESSURE) {
		plan->allocate = min32(rule->free_slabs - free_slabs, room - have);
		if (plan->allocate > now / rule->slab_size)
			plan->allocate = (uint32_t)(now / rule->slab_size);
	}
}

uint32_t headroom_candidates(const struct headroom_rule *rule, uint32_t evict, uint32_t mapped)
{
	return min32(evict + min32(rule->extra, evict), mapped);
}

void headroom_draw(uint32_t mapped, uint32_t n, uint64_t *seed, uint32_t *sample)
{
	uint32_t count = 0;

	/* Floyd: every set of n is equally likely, n draws (CACM 30(9), 1987). */
	for (uint32_t top = mapped - n; top < mapped; top++) {
		uint32_t pick = draw_below(seed, top + 1);

		for (uint32_t i = 0; i < count; i++)
			if (sample[i] == pick) {
				pick = top;
				break;
			}
		sample[count++] = pick;
	}
}

void headroom_least(struct headroom_candidate *candidates, uint32_t n, uint32_t evict)
{
	for (uint32_t i = 0; i < evict && i < n; i++) {
		struct headroom_candidate least;
		uint32_t at = i;

		for (uint32_t j = i + 1; j < n; j++)
			if (candidates[j].activity < candidates[at].activity)
				at = j;
		least = candidates[at];
		candidates[at] = candidates[i];
		candidates[i] = least;
	}
}
