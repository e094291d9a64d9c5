/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Clients that allocate and free from one memory node by the verbs of finemem.h.  In each round
 * every client's verb takes effect, in random order: all verbs take one round trip.
 */
#ifndef EBB_SIM_FINEMEM_CONTEND_H
#define EBB_SIM_FINEMEM_CONTEND_H

#include <stdint.h>

#include "finemem.h"

#define FINEMEM_CLIENTS ((1u << 14) - 2) /* ids are 14 bits; one is that of the first fill */

struct finemem_contend_config {
	struct finemem_rule rule;
	uint32_t clients;
	uint32_t rounds;
	double fill;        /* part of the chunks in use at first, none of them freed */
	uint32_t hold;      /* rounds between an allocation and its free, at most; 0 = none */
	uint32_t large;     /* percent of allocations that are of a span; others are of a chunk */
	uint64_t seed;      /* not 0 */
};

struct finemem_contend_result {
	uint64_t allocations, full; /* done; without memory */
	double swaps;     /* compare-and-swaps an allocation */
	double retries;   /* of these, failed ones an allocation */
	uint32_t most;    /* retries of one allocation */
	double verbs;     /* an allocation */
	uint64_t doubles; /* allocations of what another client has */
};

/* Returns 0 or -ENOMEM. */
int finemem_contend(const struct finemem_contend_config *config,
		    struct finemem_contend_result *result);

#endif
