/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pages to and from a donor, as one RDMA READ or WRITE: the network device reads and writes them
 * in place by the local DMA key, so nothing is registered or copied.
 */
#ifndef EBB_DONOR_IO_H
#define EBB_DONOR_IO_H

#include <linux/scatterlist.h>

#include "session.h"

/* Work requests of a hardware queue that are not posted yet: one doorbell for all. */
struct ebb_batch {
	spinlock_t lock;
	struct ebb_queue *queue;
	struct ib_send_wr *first, *last;
};

/* One RDMA READ or WRITE of pages. */
struct ebb_transfer {
	struct ebb_session *session; /* referenced while it is in flight */
	enum dma_data_direction direction; /* DMA_TO_DEVICE: a WRITE */
	bool in_flight;           /* a work request names its pages, */
	unsigned long posted_at;  /* since then (jiffies) */
	int entries;              /* of sg, which the caller fills */
	u32 index;                /* the caller's */
	/* It has ended, with 0 or -errno; from any context. */
	void (*done)(struct ebb_transfer *transfer, int error);
	struct ib_cqe cqe;
	struct ib_rdma_wr wr;
	struct ib_sge sge[EBB_SEGMENTS];
	struct scatterlist sg[EBB_SEGMENTS];
};

void ebb_batch_init(struct ebb_batch *batch);

/*
 * Transfers @bytes bytes of transfer->sg, from its byte @skip on, to or from @address.  The caller
 * has taken a reference to transfer->session and set direction, entries and done.  Returns 0, and
 * done() follows; or -errno, and only the reference has been released.  With a @batch it is posted
 * by the next flush.
 */
int ebb_transfer_start(struct ebb_transfer *transfer, u32 skip, u32 bytes, u64 address, u32 rkey,
		       u32 queue, struct ebb_batch *batch);

/* Posts what EBB_COPIES batches hold. */
void ebb_batches_flush(struct ebb_batch *batches);

#endif
