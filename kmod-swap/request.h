/* SPDX-License-Identifier: GPL-2.0-only */
/* State of a request, preallocated in the tag set: the data path allocates nothing. */
#ifndef EBB_REQUEST_H
#define EBB_REQUEST_H

#include <linux/bitmap.h>

#include "donor_io.h"
#include "span.h"

/* Jiffies before another try to map pages for a network device that had no memory for that. */
#define EBB_UNMAPPED_PAUSE DIV_ROUND_UP(HZ, 100)

struct ebb_buffer;
struct ebb_writeback;

enum ebb_step {
	EBB_STEP_START,
	EBB_STEP_READ,
	EBB_STEP_WRITE,
	EBB_STEP_BACKUP,
	EBB_STEP_SEAL,
	EBB_STEP_OPEN,
};

struct ebb_io {
	struct ebb_device *device;
	struct ebb_slab *slab;
	struct ebb_span span;
	u64 since;                /* ns */
	u32 cursor, run;          /* READ: pages done; pages of the current transfer */
	bool on[EBB_COPIES], on_backup; /* WRITE: which copies succeeded */
	bool backup_tried;        /* WRITE; READ: it has failed a run, and is not asked again */
	bool again;               /* WRITE: repeated to other donors, since the first failed */
	bool unmapped;            /* WRITE: a donor got nothing, for want of memory to map pages */
	bool unsealed;            /* WRITE: its pages could not be sealed; nothing was written */
	bool waits;               /* for a donor that is away, or to be sealed, */
	unsigned long waits_since; /* since this time (jiffies) */
	u8 sources;               /* enum ebb_swap_copy of all runs, for the trace */
	u8 unopened;              /* READ: local decryption failures, not a donor's fault */
	atomic_t copies;          /* WRITE: copies in flight */
	DECLARE_BITMAP(failed, EBB_IO_PAGES); /* READ: pages that cannot be read, */
	blk_status_t status;      /* and why; result of the ended request */
	enum ebb_step step;
	struct delayed_work work; /* continues at step */
	struct ebb_transfer transfer[EBB_COPIES]; /* READ: the first */
	struct ebb_writeback *writeback; /* WRITE: the copy for the backup; READ: the copy read */
	u32 copy_at;              /* offset into writeback or buffer, bytes */
	struct ebb_buffer *buffer; /* sealed class: ciphertext */
	bool slow;                /* WRITE, or READ from the backup: may have the buffer for long */
	struct list_head buffer_node; /* in the queue for a buffer */
	enum ebb_at from;         /* READ: place of the current run */
	/* READ: kind of admission to donors, if any. */
	enum { TURN_NONE, TURN_DEMAND, TURN_PREFETCH } turn;
	struct list_head held_node; /* before admission */
	/* I/O to the backup. */
	struct bio bio;
	struct bio_vec vecs[EBB_IO_PAGES];
};

/* Returns the donors of the pages that the request writes, or of the run that it reads. */
static inline struct ebb_hold *ebb_io_hold(const struct ebb_io *io)
{
	return ebb_slab_hold(io->device, io->slab, io->span.class);
}

/* Returns whether these pages are sealed. */
static inline bool ebb_io_sealed(const struct ebb_io *io)
{
	return ebb_class_sealed(io->device, io->span.class);
}

/*
 * Continues at @step in a work queue of the device, after @delay jiffies.  A hung backup must not
 * delay other steps.
 */
static inline void ebb_io_delay(struct ebb_io *io, enum ebb_step step, unsigned long delay)
{
	const struct ebb_device *d = io->device;

	io->step = step;
	queue_delayed_work(step == EBB_STEP_BACKUP ? d->backup_wq : d->wq, &io->work, delay);
}

static inline void ebb_io_later(struct ebb_io *io, enum ebb_step step)
{
	ebb_io_delay(io, step, 0);
}

#endif
