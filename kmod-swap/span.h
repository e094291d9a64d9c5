/* SPDX-License-Identifier: GPL-2.0-only */
/* Spans: pages of a slab with an operation in flight, so that no write overlaps another one. */
#ifndef EBB_SPAN_H
#define EBB_SPAN_H

#include "device.h"

/* No two active spans of a slab overlap if one of them writes. */
struct ebb_span {
	struct list_head node;    /* of slab->active, waiting or stuck */
	u64 first;                /* page of the device */
	u32 count;
	u32 epoch[EBB_COPIES];    /* of the mappings used last for these pages; 0 = none */
	u32 class;                /* of the pages; of a READ, of those of its present run */
	bool write;
	bool writeback;           /* an ebb_writeback's */
	/* A span that waited may be begun again; from any context. */
	void (*retry)(struct ebb_span *span);
};

/* An active span conflicts with @span.  slab->lock is held. */
bool ebb_span_conflicts(const struct ebb_slab *slab, const struct ebb_span *span);

/*
 * @span, which is active, moves to the head of @to, or to no list if @to is NULL.  All spans that
 * wait are begun again.
 */
void ebb_span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to);

#endif
