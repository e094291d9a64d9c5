// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>

#include "map.h"

static uint32_t hash(uint64_t a, uint64_t b)
{
	return (uint32_t)((a * 0x9e3779b97f4a7c15ULL ^ b) * 0xff51afd7ed558ccdULL >> 32);
}

uint32_t sim_map_find(const struct sim_map *m, uint64_t a, uint64_t b)
{
	for (uint32_t i = hash(a, b); m->slots; i++) {
		const typeof(*m->slot) *s = &m->slot[i & (m->slots - 1)];

		if (s->id == SIM_NONE)
			break;
		if (s->a == a && s->b == b)
			return s->id;
	}
	return SIM_NONE;
}

static void put(struct sim_map *m, uint64_t a, uint64_t b, uint32_t id)
{
	uint32_t i = hash(a, b);

	while (m->slot[i & (m->slots - 1)].id != SIM_NONE)
		i++;
	i &= m->slots - 1;
	m->slot[i].a = a;
	m->slot[i].b = b;
	m->slot[i].id = id;
}

static int grow(struct sim_map *m)
{
	struct sim_map bigger = { .slots = m->slots ? 2 * m->slots : 64, .n = m->n };

	bigger.slot = malloc(bigger.slots * sizeof(*bigger.slot));
	if (!bigger.slot)
		return -ENOMEM;
	for (uint32_t i = 0; i < bigger.slots; i++)
		bigger.slot[i].id = SIM_NONE;
	for (uint32_t i = 0; i < m->slots; i++)
		if (m->slot[i].id != SIM_NONE)
			put(&bigger, m->slot[i].a, m->slot[i].b, m->slot[i].id);
	free(m->slot);
	*m = bigger;
	return 0;
}

int sim_map_get(struct sim_map *m, uint64_t a, uint64_t b, uint32_t *id)
{
	*id = sim_map_find(m, a, b);
	if (*id != SIM_NONE)
		return 0;
	if (2 * m->n >= m->slots && grow(m))
		return -ENOMEM;
	*id = m->n++;
	put(m, a, b, *id);
	return 1;
}

void sim_map_free(struct sim_map *m)
{
	free(m->slot);
	*m = (struct sim_map){ 0 };
}
