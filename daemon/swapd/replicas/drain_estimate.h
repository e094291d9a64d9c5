/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Drain estimate: where the slabs of a drained donor will go, by the rules of repair.h and the free
 * capacity that the other donors reported last.  Loss estimate: what the loss of a donor costs.
 *
 * Any thread: state that changes meanwhile makes an estimate a moment old.
 */
#ifndef EBB_DRAIN_ESTIMATE_H
#define EBB_DRAIN_ESTIMATE_H

#include <stdint.h>

struct donor;
struct replicas;

struct drain_estimate {
	uint32_t slabs;  /* slabs with a replica there: the sum of the next three */
	uint32_t move;   /* fit at another donor, or need no donor */
	uint32_t disk;   /* will be on the backup disk only */
	uint32_t stuck;  /* stay until there is free capacity */
	const char *why; /* why slabs are stuck: "CAUSE; REMEDY", or NULL */
};

void drain_estimate(const struct replicas *rs, const struct donor *d, struct drain_estimate *o);

/* Returns the number of pages of which no other donor, up or away, nor the backup has a copy. */
uint64_t loss_estimate(const struct replicas *rs, const struct donor *d);

/* Returns a number that differs after any event that may have raised loss_estimate(). */
uint64_t loss_epoch(const struct replicas *rs);

#endif
