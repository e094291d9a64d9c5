/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Write-behind: a write to a donor and the backup ends when the donor has it and the pool has a
 * copy, which is written to the backup later.  The pool has a fixed size: a write that finds it
 * full waits for the backup.
 */
#ifndef EBB_WRITEBACK_H
#define EBB_WRITEBACK_H

#include "span.h"

/* A copy in the pool.  Its span is active until the backup has it: writers wait, readers do not. */
struct ebb_writeback {
	struct ebb_device *device;
	struct ebb_slab *slab;
	struct ebb_span span;     /* or its node in the list of free ones */
	u64 live;                 /* one bit a page: it may be the newest content */
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

/* Memory for the pages of @span; NULL = the pool is full. */
struct ebb_writeback *ebb_writeback_alloc(struct ebb_device *device, const struct ebb_span *span);
void ebb_writeback_put(struct ebb_writeback *writeback);
/* Its write is acknowledged.  slab->lock is held; ebb_writeback_queue() follows without it. */
void ebb_writeback_begin(struct ebb_slab *slab, struct ebb_writeback *writeback);
void ebb_writeback_queue(struct ebb_writeback *writeback);
/* Pages of @span are written again: stuck copies of them are void.  slab->lock is held. */
void ebb_writeback_supersede(struct ebb_slab *slab, const struct ebb_span *span);
/*
 * The copy of @page; of *@run pages from there on, *@run becomes how many it has.  slab->lock is
 * held.
 */
struct ebb_writeback *ebb_writeback_find(struct ebb_slab *slab, u64 page, u32 *run);

#endif
