/* SPDX-License-Identifier: GPL-2.0-only */
/* Spans: pages of a slab with an operation in flight.  They serialize overlapping writes. */
#ifndef EBB_SPAN_H
#define EBB_SPAN_H

#include "device.h"

/* No two active spans of a slab overlap if one of them writes. */
struct ebb_span {
	struct list_head node;    /* of slab->active, waiting or stuck */
	u64 first;                /* page of the device */
	u32 count;
	u32 epoch[EBB_COPIES];    /* mappings last used for these pages; 0 = none */
	u32 class;                /* class of the pages; READ: of its current run */
	bool write;
	bool writeback;           /* part of an ebb_writeback */
	/* Called when a waiting span may begin; from any context. */
	void (*retry)(struct ebb_span *span);
};

/* Returns whether an active span conflicts with @span.  slab->lock is held. */
bool ebb_span_conflicts(const struct ebb_slab *slab, const struct ebb_span *span);

/*
 * Moves @span, which is active, to the head of @to, or to no list if @to is NULL, and retries all
 * waiting spans.
 */
void ebb_span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to);

#endif
