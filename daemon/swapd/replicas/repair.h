/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Brings every slab to the copies it should have, behind the requests' backs.  One
 * rule makes migration, re-replication, the return from disk to memory and the
 * return of memory to donors:
 *
 *	too few copies       ask another donor for one
 *	a copy lacks pages   copy them there, from another copy or from the backup
 *	the backup lacks them, having failed: copy them there
 *	a replica is too many  release it, first the one that migrates
 *	no page is live      release all replicas
 *
 * A copy leaves when the slab's other complete copies are as many as are wanted.
 * When no donor has room and there is a backup, it leaves once its pages are there.
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

/* Why a slab is to be alone: what its slot does. */
enum repair_purpose { REPAIR_EMPTY, REPAIR_SURPLUS, REPAIR_TO_DISK };

/* All of the loop thread. */

/* Ten times a second: looks at slabs, and lets copying go on. */
void repair_tick(struct replicas *rs, uint64_t now);

/*
 * Starts copying what may be copied now.  True when more may at once, so that the
 * loop is not to sleep.
 */
bool repair_run(struct replicas *rs);

/* For the engine: a RESYNC has ended; an EXCLUSIVE has its slab; its turn at the backup. */
void repair_resynced(struct replicas *rs, struct slot *slot);
void repair_exclusive(struct replicas *rs, struct slot *slot);
void repair_exclusive_backed(struct replicas *rs, struct slot *slot);

/* Copies the slab at @index is to have: none without a live page, or while it is cold. */
int repair_wanted(const struct replicas *rs, uint32_t index);

/* Whether its pages have, or could have now, another place. */
bool repair_can_leave(struct replicas *rs, uint32_t index, int copy);

#endif
