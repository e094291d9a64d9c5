/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Transfers pages from or to a donor by an RDMA READ or WRITE.  The network device accesses the
 * pages in place by the local DMA key: nothing is registered or copied.
 */
#ifndef EBB_DONOR_IO_H
#define EBB_DONOR_IO_H

#include <linux/scatterlist.h>

#include "session.h"

/* A hardware queue's work requests to post with one doorbell. */
struct ebb_batch {
	spinlock_t lock;
	struct ebb_queue *queue;
	struct ib_send_wr *first, *last;
};

/* One RDMA READ or WRITE of pages, in up to EBB_PARTS work requests. */
struct ebb_transfer {
	struct ebb_session *session; /* referenced while the transfer is in flight, */
	struct ebb_queue *queue;  /* on one of its queues */
	enum dma_data_direction direction; /* DMA_TO_DEVICE: a WRITE */
	bool in_flight;           /* work requests name the pages, */
	unsigned long posted_at;  /* since this time (jiffies) */
	int entries;              /* entries of sg, which the caller fills */
	u32 index;                /* for the caller's use */
	/* Called when the transfer has ended, with 0 or -errno; from any context. */
	void (*done)(struct ebb_transfer *transfer, int error);
	struct ib_cqe cqe;
	atomic_t left;            /* work requests that have not completed */
	int error;                /* of one that has failed, or 0 */
	struct ib_rdma_wr wr[EBB_PARTS];
	struct ib_sge sge[EBB_SEGMENTS];
	struct scatterlist sg[EBB_SEGMENTS];
};

void ebb_batch_init(struct ebb_batch *batch);

/*
 * Transfers @bytes bytes of transfer->sg, from byte @skip on, to or from @address.  The caller has
 * taken a reference to transfer->session and set direction, entries and done.  Returns 0, and
 * done() follows; or -errno, and only the reference has been released.  With a @batch, the next
 * flush posts the work requests.
 */
int ebb_transfer_start(struct ebb_transfer *transfer, u32 skip, u32 bytes, u64 address, u32 rkey,
		       u32 queue, struct ebb_batch *batch);

/* Posts the work requests of EBB_COPIES batches. */
void ebb_batches_flush(struct ebb_batch *batches);

#endif
