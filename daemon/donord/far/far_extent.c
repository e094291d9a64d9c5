// SPDX-License-Identifier: GPL-2.0-or-later
#include "far_extent.h"
#include "lib/rules/far_memory.h"

/* Return whether the word of the extent names @owner and this generation. */
static uint16_t check_slot(const uint8_t *base, uint32_t sections, uint32_t owner,
			   const struct far_extent *e)
{
	uint32_t section = (uint32_t)(e->at >> EBB_FAR_SECTION_SHIFT);
	uint32_t page = (uint32_t)(e->at >> EBB_PAGE_SHIFT) & (EBB_FAR_SLOTS - 1);
	uint64_t word = far_load(base, ebb_far_slot_at(sections, section, ebb_far_word_of(page)));

	if (ebb_far_slot_owner(word) != owner || ebb_far_slot_class(word) != e->class)
		return WIRE_NOT_OWNER;
	return ebb_far_slot_generation(word) == e->generation ? WIRE_OK : WIRE_STALE;
}

static uint16_t check_section(const uint8_t *base, uint32_t owner, const struct far_extent *e)
{
	uint32_t section = (uint32_t)(e->at >> EBB_FAR_SECTION_SHIFT);
	uint64_t word = far_load(base, ebb_far_section_at(section));

	if (ebb_far_section_state(word) != EBB_FAR_WHOLE || ebb_far_section_owner(word) != owner)
		return WIRE_NOT_OWNER;
	return ebb_far_section_generation(word) == e->generation ? WIRE_OK : WIRE_STALE;
}

uint16_t far_extent_memory(const struct far_member *m, const struct far_extent *e,
			   uint8_t **memory)
{
	const struct far *far = m->pool->far;
	uint64_t size = far->pool->slab_size, bytes;
	uint8_t *base;
	uint16_t st;

	if (e->arena >= m->pool->arenas || e->class > EBB_FAR_WHOLE_CLASS)
		return WIRE_BAD_RANGE;
	bytes = ebb_far_bytes(e->class);
	if (e->at % bytes || e->at >= size || bytes > size - e->at ||
	    e->at < ebb_far_table(far->sections))
		return WIRE_BAD_RANGE;
	base = far_base(m->pool, e->arena);
	st = e->class == EBB_FAR_WHOLE_CLASS ? check_section(base, m->number, e) :
					       check_slot(base, far->sections, m->number, e);
	if (st == WIRE_OK)
		*memory = base + e->at;
	return st;
}
