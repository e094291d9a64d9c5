// SPDX-License-Identifier: GPL-2.0-or-later
#include "far_access.h"
#include "lib/rules/far_memory.h"

/* Returns the end of the extent of @m that has the byte at @at, or 0 if that is not its own. */
static uint64_t extent_end(const uint8_t *base, uint32_t sections, uint32_t owner, uint64_t at)
{
	uint32_t section = (uint32_t)(at >> EBB_FAR_SECTION_SHIFT);
	uint32_t page = (uint32_t)(at >> EBB_PAGE_SHIFT) & (EBB_FAR_SLOTS - 1);
	uint64_t state = far_load(base, ebb_far_section_at(section)), start, word;
	uint32_t class = ebb_far_section_class(state);

	start = (uint64_t)section << EBB_FAR_SECTION_SHIFT;
	switch (ebb_far_section_state(state)) {
	case EBB_FAR_WHOLE:
		return ebb_far_section_owner(state) == owner ? start + EBB_FAR_SECTION : 0;
	case EBB_FAR_OPENING:
	case EBB_FAR_OPEN:
	case EBB_FAR_CLOSING:
		break;
	default:
		return 0;
	}
	if (class >= EBB_FAR_WHOLE_CLASS)
		return 0;
	page &= ~((1u << class) - 1);
	word = far_load(base, ebb_far_slot_at(sections, section, ebb_far_word_of(page)));
	if (ebb_far_slot_owner(word) != owner || ebb_far_slot_class(word) != class)
		return 0;
	return start + ((uint64_t)page << EBB_PAGE_SHIFT) + ebb_far_bytes(class);
}

static bool owns(const uint8_t *base, uint32_t sections, uint32_t owner, uint64_t at, uint64_t n)
{
	uint64_t end = at + n;

	while (at && at < end)
		at = extent_end(base, sections, owner, at);
	return at >= end;
}

/* Sets *@base to the arena's memory.  Returns WIRE_OK if @n bytes at @at are in it. */
static uint16_t find(const struct far_member *m, uint32_t arena, uint64_t at, uint64_t n,
		     uint8_t **base)
{
	uint64_t size = m->pool->far->pool->slab_size;

	if (arena >= m->pool->arenas)
		return WIRE_NO_SLAB;
	if (at > size || n > size - at)
		return WIRE_BAD_RANGE;
	*base = far_base(m->pool, arena);
	return WIRE_OK;
}

/* Returns whether @m may access @n bytes of data at @at. */
static bool may_access(const struct far_member *m, const uint8_t *base, uint64_t at, uint64_t n)
{
	uint32_t sections = m->pool->far->sections;

	if (at < ebb_far_table(sections))
		return false;
	return m->pool->flags & WIRE_FAR_SHARED || owns(base, sections, m->number, at, n);
}

uint16_t far_read(const struct far_member *m, uint32_t arena, uint64_t at, void *to, uint32_t n)
{
	uint8_t *base;
	uint16_t st = find(m, arena, at, n, &base);

	if (st != WIRE_OK)
		return st;
	if (at + n > ebb_far_table(m->pool->far->sections) && !may_access(m, base, at, n))
		return WIRE_NOT_OWNER;
	far_copy_out(to, base, at, n);
	return WIRE_OK;
}

/* Returns whether the bytes are those of one hint word. */
static bool is_hint(uint32_t sections, uint64_t at, uint32_t n)
{
	return at >= ebb_far_hint_at(sections, 0) && at / 8 == (at + n - 1) / 8 &&
	       at + n <= ebb_far_hint_at(sections, sections);
}

/* Returns whether the bytes are the word that @m publishes. */
static bool is_published(const struct far_member *m, uint32_t arena, uint64_t at, uint32_t n)
{
	return !arena && n == 8 && at == ebb_far_published_at(m->number);
}

uint16_t far_write(const struct far_member *m, uint32_t arena, uint64_t at, const void *from,
		   uint32_t n)
{
	uint8_t *base;
	uint16_t st = find(m, arena, at, n, &base);

	if (st != WIRE_OK)
		return st;
	if (!is_hint(m->pool->far->sections, at, n) && !is_published(m, arena, at, n) &&
	    !may_access(m, base, at, n))
		return WIRE_NOT_OWNER;
	far_copy_in(base, at, from, n);
	return WIRE_OK;
}

/*
 * Returns whether a section word may become @desired: free, open, or @owner's.  The donor's own
 * words stay, no generation goes back, and of another member's words only an extent can be taken.
 */
static bool may_set_section(uint32_t owner, uint64_t expect, uint64_t desired)
{
	uint32_t has = ebb_far_section_owner(expect), state = ebb_far_section_state(desired);
	uint64_t was = ebb_far_section_generation(expect),
		 becomes = ebb_far_section_generation(desired);

	if (has != EBB_FAR_NONE && has != owner)
		return has != EBB_FAR_DONOR && ebb_far_section_state(expect) == EBB_FAR_WHOLE &&
		       state == EBB_FAR_WHOLE && ebb_far_section_owner(desired) == owner &&
		       becomes > was;
	if (becomes < was)
		return false;
	switch (state) {
	case EBB_FAR_FREE:
	case EBB_FAR_OPEN:
		return ebb_far_section_owner(desired) == EBB_FAR_NONE;
	case EBB_FAR_WHOLE:
	case EBB_FAR_OPENING:
	case EBB_FAR_CLOSING:
		return ebb_far_section_owner(desired) == owner;
	default:
		return false;
	}
}

static bool may_set_slot(uint32_t owner, uint64_t expect, uint64_t desired)
{
	uint32_t has = ebb_far_slot_owner(expect), next = ebb_far_slot_owner(desired);
	uint64_t was = ebb_far_slot_generation(expect), becomes = ebb_far_slot_generation(desired);

	if (has != EBB_FAR_NONE && has != EBB_FAR_CLOSED && has != owner)
		return has != EBB_FAR_DONOR && next == owner && becomes > was;
	return becomes >= was &&
	       (next == owner || next == EBB_FAR_NONE || next == EBB_FAR_CLOSED);
}

static uint16_t check_swap(const struct far_member *m, uint32_t arena,
			   const struct wire_far_swap *s, uint8_t **base)
{
	uint32_t sections = m->pool->far->sections;
	uint16_t st = find(m, arena, s->at, 8, base);
	bool may;

	if (st != WIRE_OK)
		return st;
	if (s->at % 8)
		return WIRE_MISALIGNED;
	if (s->at >= ebb_far_section_at(0) && s->at < ebb_far_section_at(sections))
		may = may_set_section(m->number, s->expect, s->desired);
	else if (s->at >= ebb_far_slot_at(sections, 0, 0) &&
		 s->at < ebb_far_slot_at(sections, sections, 0))
		may = may_set_slot(m->number, s->expect, s->desired);
	else
		may = may_access(m, *base, s->at, 8);
	return may ? WIRE_OK : WIRE_NOT_OWNER;
}

uint16_t far_cas(struct far_member *m, uint32_t arena, const struct wire_far_swap *swaps,
		 uint32_t n, uint64_t *old)
{
	uint8_t *base = NULL;

	for (uint32_t i = 0; i < n; i++) {
		uint16_t st = check_swap(m, arena, &swaps[i], &base);

		if (st != WIRE_OK)
			return st;
	}
	/* Nothing else gives it an extent, unless it maps the arena. */
	m->touched |= 1ull << arena % 64;
	for (uint32_t i = 0; i < n; i++)
		old[i] = far_swap(base, swaps[i].at, swaps[i].expect, swaps[i].desired);
	return WIRE_OK;
}

uint16_t far_add_word(const struct far_member *m, uint32_t arena, uint64_t at, uint64_t addend,
		      uint64_t *old)
{
	uint8_t *base;
	uint16_t st = find(m, arena, at, 8, &base);

	if (st != WIRE_OK)
		return st;
	if (at % 8)
		return WIRE_MISALIGNED;
	if (!may_access(m, base, at, 8))
		return WIRE_NOT_OWNER;
	*old = far_add(base, at, addend);
	return WIRE_OK;
}
