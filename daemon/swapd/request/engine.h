/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What becomes of a READ, a WRITE and a DISCARD, and of repair's RESYNC.
 *
 * A request proceeds run by run.  A run is a number of pages with the same sources or
 * targets; nearly all requests have one.  The page map says where a page is.  A run of a
 * READ is one transfer, from one donor.  A run of a WRITE has a transfer for each replica of its
 * slab, and ends when all have: acknowledged, or with their donor lost.
 *
 * A write is answered when every live replica has it and it is queued for the backup.  If no
 * replica took a page, it is answered when the backup file has it; without a backup it fails.
 * Overlapping requests of which one excludes others (all but READ and RESYNC) run one after
 * the other, in order of arrival.
 */
#ifndef EBB_ENGINE_H
#define EBB_ENGINE_H

#include <stdbool.h>

#include "backup.h"
#include "request.h"
#include "request_seal.h"
#include "swapd/donor/donor_table.h"
#include "swapd/page/counters.h"
#include "swapd/page/page_map.h"

/* Upcalls of the engine to repair and slab mapping; wiring.c fills them in. */
struct engine_events {
	/* A page of the slab needs a replica: true when one is being requested. */
	bool (*wanted)(void *owner, uint32_t slab);
	/* Repair's requests: RESYNC has ended; EXCLUSIVE has its slab; the backup reached it. */
	void (*resynced)(void *owner, struct slot *slot);
	void (*exclusive)(void *owner, struct slot *slot);
	void (*exclusive_backed)(void *owner, struct slot *slot);
};

struct engine {
	struct page_map *map;
	struct slab_table table;
	struct slots slots;
	struct sealing sealing;
	struct backup backup;
	uint32_t backlog;        /* writes answered before the backup has them */
	uint32_t backlog_most;   /* of them; more wait for their answer */
	uint32_t need_backup;    /* requests whose answer waits for the backup */
	struct donors *donors;
	struct counters *counters;
	struct notes *notes;
	/* struct frontend's */
	enum slot_after (*answer)(void *host, struct slot *slot, int error);
	void *host;
	const struct engine_events *events;
	void *owner;             /* of the events */
};

/* All functions are the loop thread's. */

/*
 * Takes requests off the ready list, where the functions below put those that can continue:
 * no request continues inside another.  Returns true when more are ready, so that the loop
 * does not sleep.
 */
bool engine_run(struct engine *e);
/* Whether engine_run() has something to do. */
bool engine_is_ready(const struct engine *e);

/* Starts @slot, whose kind, first, count and unique are set. */
void engine_start(struct engine *e, struct slot *slot);

/* Starts a request of repair: RESYNC or EXCLUSIVE. */
void engine_start_own(struct engine *e, struct slot *slot);

/* An EXCLUSIVE has ended: requests that it blocked are ready. */
void engine_end_exclusive(struct engine *e, struct slot *slot);

/*
 * Transfer @t has ended; with -ECONNRESET its donor is lost and its replicas are off the tables.
 * Records what came of it and makes the request ready.
 */
void engine_done(struct engine *e, struct transfer *t);

/* A replica of slab @index is no longer MAPPING, or a RESYNC has ended: what waited is ready. */
void engine_slab_settled(struct engine *e, uint32_t index);

/* The backup thread is through with @slot. */
void engine_backed(struct engine *e, struct slot *slot);

#endif
