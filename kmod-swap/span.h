/* SPDX-License-Identifier: GPL-2.0-only */
/* Spans: pages of a slab with an operation in flight.  They serialize overlapping writes. */
#ifndef EBB_SPAN_H
#define EBB_SPAN_H

#include "device.h"

/* Two spans of a slab conflict if they overlap and one of them writes: one at a time is active. */
struct ebb_span {
	struct list_head node;    /* of slab->active, waiting or stuck */
	u64 first;                /* page of the device */
	u32 count;
	u32 epoch[EBB_COPIES];    /* mappings last used for these pages; 0 = none */
	u32 class;                /* class of the pages; READ: of its current run */
	bool write;
	bool writeback;           /* part of an ebb_writeback */
	/* Called when a waiting span has become active; from any context. */
	void (*begin)(struct ebb_span *span);
};

/*
 * Makes @span active, unless it conflicts with an active span or with one that waits: a stream of
 * reads must not keep a write waiting.  slab->lock is held.
 */
bool ebb_span_try(struct ebb_slab *slab, struct ebb_span *span);
/* As above; false = @span waits, and begin() may have been called on return. */
bool ebb_span_start(struct ebb_slab *slab, struct ebb_span *span);

/* Returns whether an active span uses the mapping of @epoch.  slab->lock is held. */
bool ebb_span_uses(const struct ebb_slab *slab, u32 epoch);

/*
 * Moves @span, which is active, to the head of @to, or to no list if @to is NULL, and begins the
 * spans that waited for it.
 */
void ebb_span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to);

#endif
