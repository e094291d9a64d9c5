/* SPDX-License-Identifier: GPL-2.0-or-later */
/* State that the files of this directory share. */
#ifndef EBB_REPLICAS_H
#define EBB_REPLICAS_H

#include <stdbool.h>
#include <stdint.h>

#include "swapd/donor/session.h"
#include "swapd/request/engine.h"
#include "unmapping.h"

#define REPAIR_WORK 8 /* slabs in progress at a time */

struct repair {
	uint32_t scan;              /* next slab to look at */
	uint32_t emptied;           /* next emptied slab to look at */
	bool scan_first;            /* in this tick, before the emptied slabs */
	uint32_t work[REPAIR_WORK]; /* slabs with a copy that lacks pages */
	uint32_t work_count;
	uint32_t running;           /* slots in use */
	int64_t budget;             /* pages that may be copied before the next tick */
	bool busy;                  /* there were requests in the last tick: they go first */
	uint64_t received;          /* requests until the last tick */
	uint64_t reported_at, reported; /* ns and pages: when rate was taken */
	uint64_t rate;              /* bytes a second, of the last second */
};

struct replicas {
	struct engine *engine;
	struct donors *donors;
	int wanted;              /* replicas of each slab */
	int choices;             /* donors sampled for a slab */
	uint32_t spread;         /* donors that a device is to be on */
	uint64_t seed;           /* of the placement */
	bool told_backed;        /* a copy may be: struct copy */
	bool reserves;           /* asks donors to promise capacity for all replicas */
	uint64_t unreserved;     /* slabs of all replicas that no donor has promised */
	uint64_t unreserved_since; /* ns; 0 = none is, or it was logged */
	uint64_t room_until;     /* ns: until then donors may still re-create reclaimed slabs */
	uint64_t repair_rate;    /* bytes a second */
	uint64_t repair_delay;   /* ns: how long repair waits for donors that are away */
	uint32_t slots_reserved; /* free slots that repair leaves to requests */
	struct repair repair;
	struct unmappings unmappings;
};

static inline struct slab *slab_at(const struct replicas *rs, uint32_t index)
{
	return &rs->engine->table.slabs[index];
}

#endif
