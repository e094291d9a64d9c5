/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Generations of the kernel's multi-gen LRU: /sys/kernel/debug/lru_gen. */
#ifndef EBB_IDLE_GENERATIONS_H
#define EBB_IDLE_GENERATIONS_H

#include <stdint.h>
#include <stdio.h>

#include "source.h"

/* The kernel's MAX_NR_GENS. */
#define GENERATIONS 4

/* Pages of one cgroup on one node, by generation; higher numbers are younger. */
struct lru {
	uint32_t cgroup, node;
	uint64_t youngest;
	uint64_t number[GENERATIONS], pages[GENERATIONS]; /* anonymous and shared memory */
	uint32_t n;
	/* Pages in generations below [i] had no access since reading i; 0: the LRU is newer. */
	uint64_t border[IDLE_READINGS_MAX];
};

struct lrus {
	struct lru *v;
	uint32_t n;
};

/* Appends what @f lists for the cgroup @rel and those below it; -ENOMEM. */
int lrus_read(FILE *f, const char *rel, struct lrus *all);

/* Returns bytes without an access since reading @i; IDLE_UNKNOWN once generations were merged. */
uint64_t lrus_since(const struct lrus *all, uint32_t i);

extern const struct idle_source idle_generations;

#endif
