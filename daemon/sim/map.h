/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Numbers things 0, 1, 2, ... in the order in which they are first asked for. */
#ifndef EBB_SIM_MAP_H
#define EBB_SIM_MAP_H

#include <stdint.h>

#define SIM_NONE UINT32_MAX

/* From two numbers to a small one; open addressing. */
struct sim_map {
	struct { uint64_t a, b; uint32_t id; } *slot;
	uint32_t slots, n;      /* slots is a power of two */
};

/* SIM_NONE when it has no number yet. */
uint32_t sim_map_find(const struct sim_map *m, uint64_t a, uint64_t b);
/* Its number in *@id: 1 when it is a new one, 0, or -ENOMEM. */
int sim_map_get(struct sim_map *m, uint64_t a, uint64_t b, uint32_t *id);
void sim_map_free(struct sim_map *m);

#endif
