/* SPDX-License-Identifier: GPL-2.0-only */
/* The memory of a request's pages, and its transfer from and to places. */
#ifndef EBB_PAGES_H
#define EBB_PAGES_H

#include "request.h"

/* A donor's address of the pages from io->cursor on. */
struct ebb_there {
	u64 address;
	u32 rkey;
};

typedef void ebb_piece(struct ebb_io *io, const struct bio_vec *v);

/* Calls @call for the memory of pages [@from, @from + @count), in pieces within a page. */
void ebb_each_piece(struct ebb_io *io, u32 from, u32 count, ebb_piece *call);
/* As above for the memory that leaves the machine: the request's, or its buffer if sealed. */
void ebb_each_outside(struct ebb_io *io, u32 from, u32 count, ebb_piece *call);
/* Copy a piece between the request's pages and io->writeback, or the buffer, at io->copy_at. */
void ebb_writeback_piece(struct ebb_io *io, const struct bio_vec *v);
void ebb_buffer_piece(struct ebb_io *io, const struct bio_vec *v);

/* Reads or writes pages at the backup, then calls @done.  May block: step BACKUP only. */
void ebb_backup_start(struct ebb_io *io, u32 from, u32 count, bio_end_io_t *done);

/*
 * Takes @place for the @i-th transfer, of the pages from io->cursor on.  Returns true if it took a
 * reference to the place's session.  slab->lock is held.
 */
bool ebb_donor_take(struct ebb_io *io, int i, const struct ebb_place *place,
		    struct ebb_there *to);
/* As ebb_transfer_start(); @batch may be NULL. */
int ebb_donor_start(struct ebb_io *io, int i, u32 count, const struct ebb_there *to,
		    struct ebb_batch *batch,
		    void (*done)(struct ebb_transfer *transfer, int error));

static inline struct ebb_io *ebb_io_of(struct ebb_transfer *transfer)
{
	return container_of(transfer - transfer->index, struct ebb_io, transfer[0]);
}

/* Ends the request: its pages belong to the kernel again. */
void ebb_io_finish(struct ebb_io *io, blk_status_t status);
/* Called by the block layer after ebb_io_finish(), on the processor that the request came from. */
void ebb_io_complete(struct request *rq);

#endif
