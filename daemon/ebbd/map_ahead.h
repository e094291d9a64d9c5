/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Map-ahead: maps what was fetched in the process it was fetched for, before that
 * gets there, by a remote read of a byte a page (process_vm_readv()), which finds
 * the page in the swap cache.  The program's access then takes no fault; the
 * fault's work is done on another processor.
 *
 * An access without a fault is seen by nobody, and what is mapped is young to
 * the kernel whether it was accessed or not.  So about one page in four is left
 * unmapped, irregularly, for a regular one would be a stride of its own to a
 * policy.  The fault on such a sentinel shows the policy how far the program is, and
 * says that the mapped pages since the sentinel before it were used: an estimate,
 * wrong where a program skips them or reclaim was faster.  Mapped pages whose
 * sentinel nobody touched within config.expire_ns are wasted.
 *
 * Belongs to one worker.
 */
#ifndef EBB_MAP_AHEAD_H
#define EBB_MAP_AHEAD_H

#include "ebbd/attach.h"
#include "ebbd/target.h"

#define MAP_AHEAD_PAGES 64      /* of a batch */
#define MAP_AHEAD_BATCHES 256   /* not settled; while there are so many nothing is mapped */
#define MAP_AHEAD_GROUP 7       /* pages mapped between two sentinels, at most */

struct map_ahead;

struct map_ahead_stats {
	uint64_t mapped;        /* pages */
	uint64_t map_ns;        /* time in process_vm_readv() */
};

/* NULL without memory. */
struct map_ahead *map_ahead_new(struct attachments *a, uint64_t expire_ns);
void map_ahead_free(struct map_ahead **m);

/* @n pages, in the order of the walk, are on their way for @t. */
void map_ahead_add(struct map_ahead *m, const struct target *t, uint64_t owner, const uint64_t *vpn,
		   uint32_t n, uint64_t now);

/*
 * Without the attachments' lock.  Maps for @t what was added before the time @before, and
 * counts what was used since.  Waits for pages that are on their way still.
 */
void map_ahead_turn(struct map_ahead *m, const struct target *t, uint64_t before);
/* Now and then: counts all there is, by what @target_of() finds (NULL: it is gone). */
typedef const struct target *(*map_ahead_target)(void *data, uint32_t tgid, uint32_t exec,
						 uint64_t owner);
void map_ahead_settle(struct map_ahead *m, map_ahead_target target_of, void *data, uint64_t now);

void map_ahead_add_stats(const struct map_ahead *m, struct map_ahead_stats *sum);

/* Which of the @n pages, at most MAP_AHEAD_PAGES, are to be mapped: bit i is @vpn[i]. */
uint64_t map_ahead_choose(const uint64_t *vpn, uint32_t n);
/*
 * Which of the pages @mapped were passed, when @seen of the others were touched: those
 * whose next page that is not in @chosen is.
 */
uint64_t map_ahead_passed(uint64_t chosen, uint64_t mapped, uint64_t seen, uint32_t n);

#endif
