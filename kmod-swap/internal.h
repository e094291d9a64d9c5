/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of ebb_swap.ko share.
 *
 * Locks, outermost first: control_lock (control.c; all of create, destroy, connect,
 * map...), slab->lock (interrupts off), batch->lock beside it, never both.
 */
#ifndef EBB_SWAP_INTERNAL_H
#define EBB_SWAP_INTERNAL_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/completion.h>
#include <linux/list.h>
#include <linux/percpu-refcount.h>
#include <linux/percpu.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "compat.h"
#include "ebb_swap_abi.h"

/*
 * A request is one RDMA work request: as many pages as one may gather, where the
 * kernel merges them; memory that is contiguous counts once.
 */
#define EBB_SEGMENTS 16
#define EBB_IO_PAGES 64
#define EBB_NO_SESSION U32_MAX

struct ebb_session;

/* A part of the device; what is in flight on it and where its pages are. */
struct ebb_slab {
	spinlock_t lock;
	struct list_head active;  /* ebb_io; no two overlap if one of them writes */
	struct list_head waiting; /* ebb_io; each overlaps an active one */
	struct ebb_session *session; /* NULL = no donor */
	u64 address;              /* in the donor's memory */
	u32 rkey;
	u32 remote, generation;   /* the donor's names of it */
	u32 epoch;                /* of mappings: what was sent under an older one is void */
	u32 copies;               /* enum ebb_swap_copy */
	u64 reads, writes;        /* pages */
};

struct ebb_counts {
	u64 n[EBB_SWAP_COUNTS];
};

struct ebb_device {
	struct list_head node;    /* in devices; control_lock */
	u32 index;
	u64 pages;
	u32 slab_pages, slab_count, slab_shift; /* shift: page -> slab */
	u32 queues, depth;
	u32 deadline;             /* ms */
	bool going;               /* no one may open it any more; disk->open_mutex */
	struct ebb_slab *slabs;
	/*
	 * Where each page's newest content is, a bit a page, under its slab's lock; a
	 * slab has whole words of them.  at_donor and at_backup imply written.  Written
	 * and in neither = lost: reading fails.  Not written = zeros.
	 */
	unsigned long *written, *at_donor, *at_backup;
	struct compat_bdev backup;
	char backup_path[EBB_SWAP_PATH];
	struct workqueue_struct *wq;
	struct list_head sessions; /* control_lock */
	u32 next_session;
	struct blk_mq_tag_set set;
	struct gendisk *disk;
	struct ebb_counts __percpu *counts;
};

#define ebb_count(device, what, add) this_cpu_add((device)->counts->n[EBB_SWAP_C_##what], add)

/* What a hardware queue of the device has yet to post: one doorbell for all. */
struct ebb_batch {
	spinlock_t lock;
	struct ebb_queue *queue;
	struct ib_send_wr *first, *last;
};

enum ebb_step { EBB_STEP_START, EBB_STEP_READ, EBB_STEP_BACKUP };

/* A request; lives beside it in the tag set, so that the data path allocates nothing. */
struct ebb_io {
	struct ebb_device *device;
	struct ebb_slab *slab;
	struct list_head node;
	u64 since;                /* ns */
	u64 first;                /* page of the device */
	u32 count;                /* pages; all in @slab */
	u32 cursor, run;          /* READ: pages through; pages of the present leg */
	u32 epoch;                /* of the slab when @session was taken */
	bool write;
	bool on_donor, on_backup; /* WRITE: which copies succeeded */
	bool backup_tried;        /* WRITE */
	u8 sources;               /* READ: enum ebb_swap_copy of all runs, for the trace */
	bool leg_donor;           /* a work request names its pages */
	atomic_t legs;            /* WRITE: copies under way */
	enum ebb_step step;
	struct work_struct work;
	/* Donor leg. */
	struct ebb_session *session;
	int mapped;               /* entries of sg given to the device; 0 = none */
	struct ib_cqe cqe;
	struct ib_rdma_wr wr;
	struct ib_sge sge[EBB_SEGMENTS];
	struct scatterlist sg[EBB_SEGMENTS];
	/* Backup leg. */
	struct bio bio;
	struct bio_vec vecs[EBB_IO_PAGES];
};

struct ebb_queue {
	struct ebb_session *session;
	struct rdma_cm_id *id;
	struct ib_cq *cq;
	struct completion cm;
	int cm_status;
	bool connected;
};

#define EBB_FRAME 128 /* bytes of a message, more than any has */
#define EBB_RECEIVES 4

struct ebb_message {
	struct ib_cqe cqe;
	u64 dma;
	u8 *data;                 /* EBB_FRAME */
};

/*
 * A connection to a donor: a queue pair for each queue of the device, the first
 * of which carries frames (daemon/wire/wire.h) too.  CONNECTING -> LIVE -> FAILED
 * -> CLOSED; one that is over never comes back: user space connects anew.
 */
struct ebb_session {
	struct list_head node;
	struct ebb_device *device;
	u32 index;
	atomic_t state;           /* enum ebb_swap_session_state */
	const char *reason;       /* static text */
	struct sockaddr_storage to;
	struct percpu_ref ref;    /* of I/O under way */
	struct completion idle, closed;
	struct work_struct close;
	struct ib_device *ib;
	struct ib_pd *pd;
	u64 number;               /* random; the donor knows the session by it */
	u64 donor_free, donor_slab; /* bytes */
	struct ebb_message send, receive[EBB_RECEIVES];
	/* One call at a time: control_lock. */
	struct completion replied;
	u64 tag;
	u8 reply[EBB_FRAME];
	u32 reply_length;
	struct ebb_queue queue[];
};

/* What a donor lends: the reply to MAP. */
struct ebb_grant {
	u64 address;
	u32 rkey;
	u32 remote, generation;
};

/* io.c */
int io_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx,
		    unsigned int node);
blk_status_t io_queue_request(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd);
enum blk_eh_timer_return io_timeout(struct request *rq);
/* From any context: the donor leg is over, with 0 or -errno. */
void io_donor_done(struct ebb_io *io, int error);

/* donor_io.c: pages to and from a donor. */
void batch_init(struct ebb_batch *batch);
/*
 * Sends pages [@from, @from + @count) of the request, which the caller has
 * taken a reference to io->session for, to or from @address.  On 0
 * io_donor_done() follows, from any context; else nothing has happened, and
 * the reference is given back.  With a @batch it leaves at the next flush.
 */
int donor_io_start(struct ebb_io *io, u32 from, u32 count, u64 address, u32 rkey,
		   u32 queue, struct ebb_batch *batch);
void batch_flush(struct ebb_batch *batch);

/* slab.c; all but init and free want slab->lock held. */
int slabs_init(struct ebb_device *device);
void slabs_free(struct ebb_device *device);
enum slab_source { SLAB_ZERO, SLAB_DONOR, SLAB_BACKUP, SLAB_LOST };
/* Where the pages from @page on are; *@run, @count at first, becomes how many there. */
enum slab_source slab_source(const struct ebb_device *device, u64 page, u32 *run);
/* A write of the pages is over, with the copies that have it. */
void slab_written(struct ebb_device *device, u64 page, u32 count, u32 copies);
void slab_discard(struct ebb_device *device, u64 page, u64 count); /* takes the locks itself */
u32 slab_count_written(const struct ebb_device *device, u32 slab);
u32 slab_count_donor_only(const struct ebb_device *device, u32 slab);
/* The donor's copies are void from now on. */
void slab_detach(struct ebb_device *device, struct ebb_slab *slab);

static inline struct ebb_slab *slab_of(const struct ebb_device *device, u64 page)
{
	return &device->slabs[page >> device->slab_shift];
}

/* session.c.  *@why gets a static text on failure. */
int session_open(struct ebb_device *device, const struct sockaddr_storage *to,
		 struct ebb_session **out, const char **why);
/* From any context: it is over, for @reason (static).  Later calls do nothing. */
void session_fail(struct ebb_session *s, const char *reason);
/* Ends it, waits until nothing of it is in flight, frees it. */
void session_free(struct ebb_session *s, const char *reason);
int session_map(struct ebb_session *s, struct ebb_grant *grant, const char **why);
int session_unmap(struct ebb_session *s, u32 remote, u32 generation, const char **why);

static inline bool session_live(const struct ebb_session *s)
{
	return atomic_read(&s->state) == EBB_SWAP_LIVE;
}

/* device.c */
struct ebb_settings {
	u32 index;
	u64 size, slab_size;      /* bytes */
	u32 queues, depth, deadline;
	const char *backup;       /* path, or NULL */
};
int device_new(const struct ebb_settings *settings, struct ebb_device **out, const char **why);
/* -EBUSY while it is open; else it is gone, sessions and all. */
int device_free(struct ebb_device *device);
int device_major_register(void);
void device_major_unregister(void);

/* control.c */
int control_init(void);
void control_exit(void);

/* main.c: of the sessions that close. */
extern struct workqueue_struct *ebb_closing;

#endif
