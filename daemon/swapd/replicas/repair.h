/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Brings every slab to the copies it should have, concurrently with requests.  One
 * rule covers migration, re-replication, the return from disk to memory and the
 * release of memory to donors:
 *
 *	too few copies       ask another donor for one
 *	a copy lacks pages   copy them there, from another copy or from the backup
 *	the backup failed to store pages: copy them there
 *	a replica is too many  release it, first the one that migrates
 *	no page is live      release all replicas
 *
 * A copy leaves when enough other copies of the slab are complete.  When no donor has
 * free capacity and there is a backup, it leaves once its pages are there.
 *
 * Pages are copied by requests of kind RESYNC, under the rules all requests are under,
 * at a bounded rate.  A request that has the slab to itself releases a replica.
 */
#ifndef EBB_REPAIR_H
#define EBB_REPAIR_H

#include <stdbool.h>
#include <stdint.h>

struct slot;
struct replicas;

/* Purpose for which a slot has a slab to itself. */
enum repair_purpose { REPAIR_EMPTY, REPAIR_SURPLUS, REPAIR_TO_DISK };

/* Loop thread only. */

/* Ten times a second: checks slabs, and renews the budget for copying. */
void repair_tick(struct replicas *rs, uint64_t now);

/*
 * Starts copying within the budget.  Returns true when more is possible at once, so that the loop
 * does not sleep.
 */
bool repair_run(struct replicas *rs);

/*
 * For the engine: a RESYNC has ended; an EXCLUSIVE is ended before it began; it has its slab; the
 * backup has reached it.
 */
void repair_resynced(struct replicas *rs, struct slot *slot);
void repair_withdrawn(struct replicas *rs, struct slot *slot);
void repair_exclusive(struct replicas *rs, struct slot *slot);
void repair_exclusive_backed(struct replicas *rs, struct slot *slot);

/*
 * For a successor, after it has resumed donors: continues the predecessor's RESYNC @slot if that
 * has the last content of a page; else frees the slot.
 */
void repair_take_over(struct replicas *rs, struct slot *slot);

/* Counts copies that the slab should have: none without a live page. */
int repair_wanted(const struct replicas *rs, uint32_t index);

/* Returns whether its pages have, or could have now, another place. */
bool repair_can_leave(struct replicas *rs, uint32_t index, int copy);

#endif
