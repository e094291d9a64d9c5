/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Simulates machines that borrow and lend memory, second by second.  The daemons' code
 * decides placement, activity and HeadRoom (daemon/lib/rules/placement.c, activity.c,
 * headroom.c); memory and time are simulated.
 */
#ifndef EBB_SIM_CLUSTER_H
#define EBB_SIM_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster_result.h"
#include "demand.h"
#include "lib/base/error.h"
#include "lib/rules/placement.h"

enum cluster_placer {
	CLUSTER_CHOICES,    /* lib/rules/placement.c, by a rule */
	CLUSTER_OMNISCIENT, /* always the machine with the lowest use */
	/*
	 * Infiniswap's released code: one machine at random, no M_new; thresholds of 8 and 16 of 64
	 * GB, half the memory lent at most; evicts noise + 2 candidates at random and to the disk.
	 */
	CLUSTER_RELEASED,
};

#define CLUSTER_WARMUP 60 /* seconds that are not counted: nothing is placed at 0 */

struct cluster_config {
	uint32_t nodes;      /* 2 to CLUSTER_NODES */
	uint32_t seconds;    /* more than CLUSTER_WARMUP */
	uint64_t memory;     /* bytes of a machine */
	uint64_t slab;       /* bytes; at most a quarter of memory */
	uint64_t headroom;   /* bytes; 0 = headroom_default() */
	double hot_slab;     /* HotSlab; 0 = map on first use */
	bool still;          /* demand stays as at second 0 */
	enum cluster_placer placer;
	struct place_rule rule; /* of CLUSTER_CHOICES */
	uint64_t seed;       /* of demand and of decisions; demand is equal for every placer */
};

#define CLUSTER_NODES 20000u
#define CLUSTER_SLABS (1u << 26) /* limit of the slabs that all machines could request */

/* Returns 0, -ENOMEM, or -EINVAL for more slabs than CLUSTER_SLABS. */
int cluster_run(const struct cluster_config *config, struct cluster_result *result,
		struct error *e);

#endif
