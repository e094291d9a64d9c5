/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Executes READ, WRITE and DISCARD, and repair's RESYNC.
 *
 * A request proceeds run by run.  A run is a number of pages with common sources or targets; nearly
 * all requests have one.  The page map says where a page is.  A run of a READ is one transfer, from
 * one donor.  A run of a WRITE has a transfer for each replica of its slab, and ends when all have:
 * acknowledged, or with their donor lost.
 *
 * A write is answered when every live replica has it and it is queued for the backup.  If no
 * replica took a page, it is answered when the backup file has it; without a backup it fails, after
 * two seconds if a donor is away.  A read of a page that is only at donors that are away waits for
 * these, at most away_timeout.
 * A read does not tell whether a program waits for it, but misses are small (8 pages at most), and
 * prefetches of a sequence are large.  Donors and connections serve in order.  So while small reads
 * come, large ones queue here, and each donor has a limited number of their pages in flight: a
 * small read waits for these at most.  Small reads neither queue nor count in that limit, so both
 * kinds proceed.
 * Overlapping requests of which one excludes others (all but READ and RESYNC) run one after the
 * other, in order of arrival.
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
	/* Requests a replica for a page of the slab; returns true if one is coming. */
	bool (*wanted)(void *owner, uint32_t slab);
	/* Returns whether slabs may become free soon: a donor is away, just back, or behind. */
	bool (*room_awaited)(void *owner);
	/*
	 * For repair: RESYNC has ended; EXCLUSIVE, which has not begun, is ended; has its slab; the
	 * backup reached it.
	 */
	void (*resynced)(void *owner, struct slot *slot);
	void (*withdrawn)(void *owner, struct slot *slot);
	void (*exclusive)(void *owner, struct slot *slot);
	void (*exclusive_backed)(void *owner, struct slot *slot);
};

/* ns until pages that the backup failed to store are written there again. */
#define BACKUP_RETRY 5000000000ull

struct engine {
	struct page_map *map;
	struct slab_table table;
	struct slots slots;
	struct sealing sealing;
	struct backup backup;
	uint32_t backlog;        /* writes answered before the backup has them */
	uint32_t backlog_most;   /* limit of backlog; further writes wait for their answer */
	uint32_t need_backup;    /* requests whose answer waits for the backup */
	uint32_t held;           /* slots that wait for a donor, free capacity or BACKUP_RETRY */
	uint32_t resyncs_held;   /* RESYNCs among them */
	bool told_read, told_write; /* logged: that a read or a write of the backup failed */
	uint32_t small_expected; /* large reads that end until no small one is expected; 0 = none */
	uint64_t now;            /* ns: of the last engine_tick() */
	uint64_t away_timeout;   /* ns */
	struct donors *donors;
	struct counters *counters;
	struct notes *notes;
	/* as in struct frontend */
	enum slot_after (*answer)(void *host, struct slot *slot, int error);
	void *host;
	const struct engine_events *events;
	void *owner;             /* of the events */
};

/* Loop thread only. */

/*
 * Continues requests of the ready list, where the functions below put them: no request continues
 * inside another.  Returns true when more are ready, so that the loop does not sleep.
 */
bool engine_run(struct engine *e);
/*
 * Begins large reads whose turn it is; returns true when more may begin after the small ones that
 * have arrived meanwhile.
 */
bool engine_begin_large(struct engine *e);
/* Returns whether one of the two has work. */
bool engine_is_ready(const struct engine *e);

/* Starts @slot, whose kind, first, count and unique are set. */
void engine_start(struct engine *e, struct slot *slot);

/* Starts a request of repair: RESYNC or EXCLUSIVE. */
void engine_start_own(struct engine *e, struct slot *slot);

/*
 * Returns whether the fetched run of the RESYNC @slot has a page that cannot be read elsewhere.
 * When such a RESYNC loses its target, it looks for another one: for up to away_timeout, or for two
 * seconds if a donor that is away has the page.
 */
bool engine_has_last(const struct engine *e, const struct slot *slot);

/* Ends an EXCLUSIVE: requests that it blocked become ready. */
void engine_end_exclusive(struct engine *e, struct slot *slot);

/*
 * Ends transfer @t; with -ECONNRESET its donor is lost and its replicas are off the tables, with
 * -ESTALE its own replica is.
 * Records the result and makes the request ready.
 */
void engine_done(struct engine *e, struct transfer *t);

/*
 * Makes requests ready that waited for slab @index: a replica is no longer MAPPING, or a RESYNC has
 * ended.
 */
void engine_slab_settled(struct engine *e, uint32_t index);

/* Ten times a second: requests that have waited for donors for too long give up. */
void engine_tick(struct engine *e, uint64_t now);

/* Handles @slot after the backup thread has finished it. */
void engine_backed(struct engine *e, struct slot *slot);

#endif
