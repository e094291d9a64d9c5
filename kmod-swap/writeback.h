/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Write-behind: a write to a donor and the backup ends when the donor has the pages and the pool
 * has a copy, which is written to the backup later.  The pool's size is fixed: while it is full,
 * writes wait for the backup.
 */
#ifndef EBB_WRITEBACK_H
#define EBB_WRITEBACK_H

#include "span.h"

/* A copy in the pool.  Its span is active until the backup has it: writes wait, reads do not. */
struct ebb_writeback {
	struct ebb_device *device;
	struct ebb_slab *slab;
	struct ebb_span span;     /* its node is in pool->free while unused */
	u64 live;                 /* one bit per page whose copy may be the newest content */
	bool stuck;
	struct delayed_work work;
	struct bio bio;
	struct bio_vec vecs[EBB_IO_PAGES];
	struct page *pages[EBB_IO_PAGES];
};

int ebb_writeback_init(struct ebb_device *device, u32 pages);
void ebb_writeback_drain(struct ebb_device *device); /* waits until the pool is empty */
void ebb_writeback_free(struct ebb_device *device);
void ebb_writeback_usage(const struct ebb_device *device, u64 *size, u64 *used); /* bytes */

/* Allocates a copy for the pages of @span; NULL = the pool is full. */
struct ebb_writeback *ebb_writeback_alloc(struct ebb_device *device, const struct ebb_span *span);
void ebb_writeback_put(struct ebb_writeback *writeback);
/* Called before the write is acknowledged; slab->lock.  ebb_writeback_queue() follows without. */
void ebb_writeback_begin(struct ebb_slab *slab, struct ebb_writeback *writeback);
void ebb_writeback_queue(struct ebb_writeback *writeback);
/* Drops the pages of @span from stuck copies: they were written again.  slab->lock is held. */
void ebb_writeback_supersede(struct ebb_slab *slab, const struct ebb_span *span);
/*
 * Returns the copy with @page, and shortens *@run to the pages from @page on that this copy has.
 * slab->lock is held.
 */
struct ebb_writeback *ebb_writeback_find(struct ebb_slab *slab, u64 page, u32 *run);

#endif
