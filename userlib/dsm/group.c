// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Groups: objects within a box.  Head, then members one behind the other, each with a head of its
 * own; a member's number is the place of its head in units of 16 bytes.  Removed members stay as
 * room, and are joined when room is looked for.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ebbdsm.h"

#define UNIT 16u
#define MARK 0x67726f7570ull

struct group {
	uint64_t mark;
	uint32_t end;    /* units in use, this one included */
	uint32_t unused;
};

struct member {
	uint32_t check;  /* of its number */
	uint32_t units;  /* behind this one */
	uint32_t bytes;  /* of the program; 0 = room */
	uint32_t unused;
};

static uint32_t check_of(uint32_t number)
{
	return number * 0x9e3779b9u ^ 0x6d656d62u;
}

/* Returns the member with that number, or room, or NULL: no member has it. */
static struct member *find(const void *group, size_t size, uint32_t number)
{
	const struct group *g = group;
	struct member *m = (struct member *)group + number;

	if (size < 2 * UNIT || g->mark != MARK || g->end > size / UNIT || !number ||
	    number >= g->end || m->check != check_of(number) || m->units >= g->end - number ||
	    m->bytes > m->units * UNIT)
		return NULL;
	return m;
}

int ebbdsm_group_new(ebbdsm_t *dsm, size_t size, struct ebbdsm_box *box)
{
	struct group *g;
	int r = size < 2 * UNIT ? -EINVAL : ebbdsm_new(dsm, NULL, size, box);

	if (r)
		return r;
	g = ebbdsm_borrow_mut(dsm, box);
	if (!g) {
		r = -errno;
		return ebbdsm_drop(dsm, box) ?: r;
	}
	*g = (struct group){ .mark = MARK, .end = 1 };
	r = ebbdsm_return_mut(dsm, box, g);
	return r ? ebbdsm_drop(dsm, box) ?: r : 0;
}

/* Joins the room behind @m to its own. */
static void join_room(void *group, size_t size, struct member *m, uint32_t number)
{
	struct member *next;

	while ((next = find(group, size, number + 1 + m->units)) && !next->bytes) {
		next->check = 0;
		m->units += 1 + next->units;
	}
}

static uint32_t take(struct member *m, uint32_t number, uint32_t units, size_t bytes)
{
	uint32_t left = m->units - units;

	if (left) {
		struct member *rest = m + 1 + units;

		*rest = (struct member){ .check = check_of(number + 1 + units), .units = left - 1 };
		m->units = units;
	}
	m->bytes = (uint32_t)bytes;
	memset(m + 1, 0, (size_t)m->units * UNIT);
	return number;
}

uint32_t ebbdsm_group_add(void *group, size_t size, size_t bytes)
{
	struct group *g = group;
	uint32_t units = (uint32_t)((bytes + UNIT - 1) / UNIT), number = 1;
	struct member *m;

	if (!bytes || bytes > EBBDSM_SIZE_MOST || size < 2 * UNIT || g->mark != MARK ||
	    g->end > size / UNIT)
		return 0;
	for (; (m = find(group, size, number)); number += 1 + m->units) {
		if (m->bytes)
			continue;
		join_room(group, size, m, number);
		if (m->units >= units)
			return take(m, number, units, bytes);
	}
	/* Behind the last one. */
	if (number != g->end || size / UNIT - g->end < 1 + units)
		return 0;
	m = (struct member *)group + number;
	*m = (struct member){ .check = check_of(number), .units = units };
	g->end += 1 + units;
	return take(m, number, units, bytes);
}

int ebbdsm_group_remove(void *group, size_t size, uint32_t member)
{
	struct member *m = find(group, size, member);

	if (!m || !m->bytes)
		return -EINVAL;
	m->bytes = 0;
	return 0;
}

void *ebbdsm_member_mut(void *group, size_t size, uint32_t member, size_t *bytes)
{
	struct member *m = find(group, size, member);

	if (!m || !m->bytes)
		return NULL;
	if (bytes)
		*bytes = m->bytes;
	return m + 1;
}

const void *ebbdsm_member(const void *group, size_t size, uint32_t member, size_t *bytes)
{
	return ebbdsm_member_mut((void *)group, size, member, bytes);
}

uint32_t ebbdsm_next_member(const void *group, size_t size, uint32_t member)
{
	const struct member *m = member ? find(group, size, member) : NULL;
	uint32_t number = member ? member : 1;

	if (member && !m)
		return 0;
	if (m)
		number += 1 + m->units;
	while ((m = find(group, size, number)) && !m->bytes)
		number += 1 + m->units;
	return m ? number : 0;
}
