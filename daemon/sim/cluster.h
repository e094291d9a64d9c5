/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Many machines that borrow and lend memory, second by second.  Where a slab
 * goes, when it is hot, what a donor allocates and gives back is decided by the
 * daemons' own code (daemon/lib/rules/placement.c and activity.c, daemon/lib/rules/headroom.c);
 * what is simulated is the machines' memory and the passing of time.
 */
#ifndef EBB_SIM_CLUSTER_H
#define EBB_SIM_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "demand.h"
#include "lib/base/error.h"
#include "lib/rules/placement.h"

enum cluster_placer {
	CLUSTER_CHOICES,    /* place.c, by a rule */
	CLUSTER_OMNISCIENT, /* always the machine with the lowest use of all */
	/*
	 * What Infiniswap's released code does: one machine at random, no M_new;
	 * thresholds of 8 and 16 of 64 GB, half the memory lent at most; evicts
	 * noise + 2 candidates at random and to the disk.
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
	bool still;          /* demand stays what it is at second 0 */
	enum cluster_placer placer;
	struct place_rule rule; /* of CLUSTER_CHOICES */
	uint64_t seed;       /* of demand and of decisions; the same demand for every placer */
};

#define CLUSTER_NODES 20000u
#define CLUSTER_SLABS (1u << 26) /* that machines could ask for, in all */

struct cluster_result {
	/* Of the machines alone, without remote memory: the same for every placer. */
	double alone_use;      /* mean part of memory in use */
	double alone_max_min;  /* median over time */
	double demand;         /* mean demand, machines: the use nobody can exceed */
	double severe;         /* part of the time with p99 / median >= CLUSTER_SEVERE */
	double stable[3];      /* P(use within 10 % of what it was) after 10, 20, 40 s */
	/* With it. */
	double use;            /* mean part of memory in use, by programs and mapped slabs */
	double max_min;        /* median over time, all machines */
	double donors_max_mean; /* median over time, machines that hold a slab */
	double donors_deviation; /* standard deviation / mean of theirs; median over time */
	double served;         /* part of what does not fit in a borrower that is in a donor */
	double pressed;        /* part of machine-seconds in which programs and slabs exceed memory */
	double evicted_rank;   /* activity of evicted slabs / of all that are mapped there */
	uint64_t maps, unmaps, evictions, migrations, to_disk;
	uint64_t ready;        /* of maps and migrations: found a slab allocated ahead */
	uint64_t messages;
};

#define CLUSTER_SEVERE 2.0

/* 0, -ENOMEM, or -EINVAL for more slabs than CLUSTER_SLABS. */
int cluster_run(const struct cluster_config *config, struct cluster_result *result,
		struct error *e);

#endif
