/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Numbers pairs 0, 1, 2, ... in the order of their first lookup. */
#ifndef EBB_SIM_MAP_H
#define EBB_SIM_MAP_H

#include <stdint.h>

#define SIM_NONE UINT32_MAX

/* Maps two numbers to a small one; open addressing. */
struct sim_map {
	struct { uint64_t a, b; uint32_t id; } * slot;
	uint32_t slots, n;      /* slots is a power of two */
};

/* Returns the number of the pair, or SIM_NONE. */
uint32_t sim_map_find(const struct sim_map *m, uint64_t a, uint64_t b);
/* Sets *@id to its number.  Returns 1 for a new pair, 0, or -ENOMEM. */
int sim_map_get(struct sim_map *m, uint64_t a, uint64_t b, uint32_t *id);
void sim_map_free(struct sim_map *m);

#endif
