// SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
#include "far_count.h"

uint32_t far_count_slots(uint64_t section)
{
	uint32_t state = ebb_far_section_state(section), class = ebb_far_section_class(section);

	if (state != EBB_FAR_OPENING && state != EBB_FAR_OPEN && state != EBB_FAR_CLOSING)
		return 0;
	return class < EBB_FAR_WHOLE_CLASS ? ebb_far_slots(class) : 0;
}

static void count(struct far_count members[static EBB_FAR_MEMBERS + 1], uint32_t owner,
		  uint32_t class)
{
	if (owner && owner <= EBB_FAR_MEMBERS)
		members[owner].extents[class]++;
}

void far_count_section(struct far_count members[static EBB_FAR_MEMBERS + 1], uint64_t section,
		       const uint64_t *slots)
{
	uint32_t n = far_count_slots(section), class = ebb_far_section_class(section);

	if (ebb_far_section_state(section) == EBB_FAR_WHOLE)
		count(members, ebb_far_section_owner(section), EBB_FAR_WHOLE_CLASS);
	for (uint32_t i = 0; i < n; i++)
		if (ebb_far_slot_class(slots[i]) == class)
			count(members, ebb_far_slot_owner(slots[i]), class);
}

void far_count_add(struct far_count *sum, const struct far_count *c)
{
	for (uint32_t i = 0; i <= EBB_FAR_WHOLE_CLASS; i++)
		sum->extents[i] += c->extents[i];
}

uint64_t far_count_extents(const struct far_count *c)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i <= EBB_FAR_WHOLE_CLASS; i++)
		n += c->extents[i];
	return n;
}

uint64_t far_count_bytes(const struct far_count *c)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i <= EBB_FAR_WHOLE_CLASS; i++)
		n += c->extents[i] * ebb_far_bytes(i);
	return n;
}
