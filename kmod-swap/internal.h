/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the files of ebb_swap.ko share.
 *
 * Locks, outermost first: control_lock (control_device.c; all of create, destroy, connect,
 * map...), session->calls, session->sending, slab->lock (interrupts off), ahead->lock; batch->lock beside
 * slab->lock, never both.  The copier takes no control_lock: it is waited for under it.
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

#include <ebb/swap.h>
#include "compat.h"
#include "wire_proof.h"

/*
 * A request is one RDMA work request: as many pages as one may gather, where the
 * kernel merges them; memory that is contiguous counts once.
 */
#define EBB_SEGMENTS 16
#define EBB_IO_PAGES 64
#define EBB_NO_SESSION U32_MAX

#define EBB_CLASS_BITS 3
static_assert(1 << EBB_CLASS_BITS == EBB_SWAP_CLASSES);

struct ebb_session;

/* proof.c: an HMAC-SHA256 with its key. */
struct wire_hmac {
	struct crypto_shash *tfm; /* NULL = none */
};

/* Donors that a slab's writes go to at once. */
#define EBB_COPIES 2

/* Where a slab is at a donor. */
struct ebb_place {
	struct ebb_session *session; /* NULL = nowhere */
	u64 address;              /* in the donor's memory */
	u32 rkey;
	u32 remote, generation;   /* the donor's names of it */
	/*
	 * Of mappings: what was sent under one that is gone is void.  No two places of a
	 * slab have the same, whatever their class.
	 */
	u32 epoch;
	bool asked;               /* its donor wants it back, */
	unsigned long evict_at;   /* and from then on (jiffies) it need not have another first */
};

/*
 * Where each page's newest content is, a bit a page and place, under its slab's
 * lock; a slab has whole words of them.  A place implies written.  Written and
 * in no place = lost: reading fails.  Not written = zeros.  In the order in
 * which reads prefer them.  The first AT_DONORS are an ebb_hold's places, of the page's class.
 */
enum ebb_at {
	AT_DONOR, AT_SECOND, AT_SOURCE, AT_DONORS, AT_POOL = AT_DONORS, AT_BACKUP, AT_PLACES,
	WRITTEN = AT_PLACES, EBB_BITS
};
static_assert(AT_SECOND < EBB_COPIES && AT_SOURCE == EBB_COPIES);

/* Pages that something is done with: no two of a slab overlap if one of them writes. */
struct ebb_span {
	struct list_head node;    /* of slab->active, or slab->waiting */
	u64 first;                /* page of the device */
	u32 count;
	u32 epoch[EBB_COPIES];    /* of the places that were asked for them last; 0 = none */
	u32 class;                /* of the pages; of a READ, of those of its present run */
	bool write;
	bool behind;              /* an ebb_behind's */
};

/* What a class has for its pages of a slab; the slab's lock. */
struct ebb_hold {
	/*
	 * Writes go to the donor and to the second, which there is only beside a donor.  The
	 * source is the place that one of them left: only read, and given up once the copier
	 * has brought to both what they have to have.  Without a donor that is the backup.
	 * No two are of one donor.
	 */
	struct ebb_place at[AT_DONORS];
	u32 copies;               /* enum ebb_swap_copy: what there is to be */
};

/* A part of the device; what is in flight on it and where its pages are. */
struct ebb_slab {
	spinlock_t lock;
	struct list_head active;  /* ebb_span */
	struct list_head waiting; /* spans of ebb_io; each overlaps an active one */
	struct list_head stuck;   /* spans of ebb_behind that the backup has refused */
	struct ebb_hold hold;     /* of class 0 */
	u32 epoch;                /* last one given */
	u64 reads, writes;        /* pages */
};

struct ebb_counts {
	u64 n[EBB_SWAP_COUNTS];
};

/* read_priority.c: reads that nobody waits for yet. */
struct ebb_ahead {
	spinlock_t lock;          /* interrupts off; within slab->lock */
	struct list_head held;    /* ebb_io, until their turn */
	u32 pages;                /* of those whose turn it is */
	unsigned long moved;      /* jiffies: one of those went on last, or the first was held */
	atomic_t demands;         /* others' reads that are at donors */
	unsigned long demand_at;  /* jiffies: one of those ended last; without the lock */
	struct delayed_work stalled;
};

struct ebb_device {
	struct list_head node;    /* in control_devices; control_lock */
	u32 index;
	u64 pages;
	u32 slab_pages, slab_count, slab_shift; /* shift: page -> slab */
	u32 queues, depth;
	u32 deadline;             /* ms */
	struct ebb_pool *pool;    /* NULL = without */
	bool going;               /* no one may open it any more; disk->open_mutex */
	struct ebb_slab *slabs;
	unsigned long *bits[EBB_BITS]; /* enum ebb_at */
	/*
	 * Both NULL until a class is made; then they stay as long as the device.  The
	 * class of each page, as of its last write: EBB_CLASS_BITS maps, one after the
	 * other, like bits above.
	 */
	unsigned long *class_bits;
	struct ebb_hold *holds[EBB_SWAP_CLASSES]; /* of each slab; 0 is in the slabs */
	u32 class_copies[EBB_SWAP_CLASSES]; /* as told last, 0's by CREATE; control_lock */
	u32 sealed;               /* BIT(class) of those that are; set before they are told */
	struct ebb_sealer *sealer; /* NULL until one is */
	struct ebb_rules __rcu *rules; /* NULL = all is of class 0; control_lock */
	struct ebb_ahead ahead;
	struct wire_hmac key;     /* that donors prove to have */
	u8 key_number[WIRE_KEY_NUMBER];
	struct compat_bdev backup;
	char backup_path[EBB_SWAP_PATH];
	struct workqueue_struct *wq;
	struct list_head sessions; /* control_lock */
	u32 next_session;
	struct ebb_copier *copier;
	struct blk_mq_tag_set set;
	struct gendisk *disk;
	struct ebb_counts __percpu *counts;
};

#define ebb_count(device, what, add) this_cpu_add((device)->counts->n[EBB_SWAP_C_##what], add)

/* What a hardware queue of the device has yet to post, of each leg: one doorbell for all. */
struct ebb_batch {
	spinlock_t lock;
	struct ebb_queue *queue;
	struct ib_send_wr *first, *last;
};

/* Pages on their way to or from a donor: one RDMA READ or WRITE. */
struct ebb_leg {
	struct ebb_session *session; /* referenced while it is under way */
	enum dma_data_direction direction; /* DMA_TO_DEVICE: a WRITE */
	bool under_way;           /* a work request names its pages, */
	unsigned long since;      /* from then on (jiffies) */
	int entries;              /* of sg, which the caller fills */
	u32 index;                /* the caller's */
	/* From any context: it is over, with 0 or -errno. */
	void (*done)(struct ebb_leg *leg, int error);
	struct ib_cqe cqe;
	struct ib_rdma_wr wr;
	struct ib_sge sge[EBB_SEGMENTS];
	struct scatterlist sg[EBB_SEGMENTS];
};

enum ebb_step {
	EBB_STEP_START, EBB_STEP_READ, EBB_STEP_WRITE, EBB_STEP_BACKUP, EBB_STEP_SEAL, EBB_STEP_OPEN,
};

/* A request; lives beside it in the tag set, so that the data path allocates nothing. */
struct ebb_io {
	struct ebb_device *device;
	struct ebb_slab *slab;
	struct ebb_span span;
	u64 since;                /* ns */
	u32 cursor, run;          /* READ: pages through; pages of the present leg */
	bool on[EBB_COPIES], on_backup; /* WRITE: which copies succeeded */
	bool backup_tried;        /* WRITE */
	bool again;               /* WRITE: to other donors, as the first ones failed */
	u8 sources;               /* READ: enum ebb_swap_copy of all runs, for the trace */
	u8 unopened;              /* READ: times that opening a seal failed here, not at a donor */
	atomic_t legs;            /* WRITE: copies under way */
	enum ebb_step step;
	struct delayed_work work;
	struct ebb_leg leg[EBB_COPIES]; /* READ: the first */
	struct ebb_behind *behind; /* WRITE: the copy for the backup; READ: what is read from */
	u32 behind_at;            /* bytes into it */
	struct ebb_buffer *buffer; /* of a sealed class: what its pages are outside */
	struct list_head buffer_node; /* while it waits for one */
	enum ebb_at from;         /* READ: whence the present run comes */
	/* READ: whether it may go to donors. */
	enum { TURN_NONE, TURN_DEMAND, TURN_AHEAD } turn;
	struct list_head held_node; /* until then */
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
	const char *refused;      /* by the donor, for that; else NULL */
	bool connected;
	/* What both sides sent when it was made, and the number of the donor's queue pair. */
	u8 request[WIRE_PROOF_REQUEST_SIZE], reply[WIRE_PROOF_REPLY_SIZE];
	u32 peer;
};

#define EBB_FRAME 128 /* bytes of a message, more than any has */
/* What a donor may have asked unanswered, and a reply. */
#define EBB_ASKED 16
#define EBB_RECEIVES (EBB_ASKED + 2)

/* An EVICT of the donor's. */
struct ebb_asked {
	u64 tag;
	u32 remote, generation;
};

struct ebb_message {
	struct ib_cqe cqe;
	u64 dma;
	u8 *data;                 /* EBB_FRAME */
};

/*
 * A connection to a donor: a queue pair for each queue of the device, the first
 * of which carries frames (daemon/lib/wire/wire.h) too.  CONNECTING -> LIVE -> FAILED
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
	struct wire_hmac secret;  /* of this session alone */
	struct mutex sending;     /* frames leave in the order of their marks; within calls */
	u64 sent, received;       /* frames; received: of queue 0's completions alone */
	u32 class;                /* whose slabs may go there */
	u64 donor_free, donor_slab; /* bytes */
	struct ebb_message send, answer, receive[EBB_RECEIVES];
	spinlock_t asked_lock;    /* interrupts off */
	struct ebb_asked asked[EBB_ASKED];
	u32 asked_count;
	struct work_struct answering;
	struct completion answered;
	bool draining;            /* control_lock: nothing more is placed there */
	struct mutex calls;       /* one call at a time: */
	struct completion replied;
	u64 tag;
	u8 reply[EBB_FRAME];
	u32 reply_length;
	struct ebb_queue queue[];
};

/* io.c */
int io_init_request(struct blk_mq_tag_set *set, struct request *rq, unsigned int hctx,
		    unsigned int node);
blk_status_t io_queue_request(struct blk_mq_hw_ctx *hctx, const struct blk_mq_queue_data *bd);
enum blk_eh_timer_return io_timeout(struct request *rq);
/* It goes on at @step, in the device's work queue. */
void io_later(struct ebb_io *io, enum ebb_step step);
/*
 * @span, which is active, is not any more; who waits for its pages looks again.  It
 * becomes the first of @to, unless that is NULL.
 */
void span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to);
/* An active span that @span has to wait for.  slab->lock is held. */
bool span_conflicts(const struct ebb_slab *slab, const struct ebb_span *span);

/* read_priority.c */
void ahead_init(struct ebb_device *device);
void ahead_stop(struct ebb_device *device); /* no request is there any more */
/*
 * How many pages of the READ may go to a donor now.  0: it goes on at EBB_STEP_READ, from any
 * context, when its turn has come; who is told so must not look at it any more.  slab->lock
 * is held.
 */
u32 ahead_may(struct ebb_io *io);
/* The request is over. */
void ahead_end(struct ebb_io *io);

/* donor_io.c: pages to and from a donor. */
void batch_init(struct ebb_batch *batch);
/*
 * Sends @bytes bytes from byte @skip of leg->sg on to or from @address.  The caller
 * has taken a reference to leg->session and set direction, entries and done.  On 0
 * done() follows, from any context; else nothing has happened, and the reference
 * is given back.  With a @batch it leaves at the next flush.
 */
int leg_start(struct ebb_leg *leg, u32 skip, u32 bytes, u64 address, u32 rkey, u32 queue,
	      struct ebb_batch *batch);
/* Of EBB_COPIES batches, all that there is in them. */
void batches_flush(struct ebb_batch *batches);

/* slab.c; all but init and free want slab->lock held. */
int slabs_init(struct ebb_device *device);
void slabs_free(struct ebb_device *device);
/*
 * Where the pages from @page on are to be read; *@run, @count at first, becomes how
 * many there.  WRITTEN = they are lost; EBB_BITS = they are zeros.
 */
enum ebb_at slab_source(const struct ebb_device *device, u64 page, u32 *run);
/* A write of @class is over, with @places, BIT(enum ebb_at), that have it. */
void slab_written(struct ebb_device *device, u64 page, u32 count, u32 class, u32 places);
void slab_discard(struct ebb_device *device, u64 page, u64 count); /* takes the locks itself */
/* The slab's pages of @class; each of the following is about those alone. */
u32 slab_count(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at what);
/* Pages that @place has and no place of @others, BIT(enum ebb_at). */
u32 slab_count_only(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at place,
		    u32 others);
/* Pages that the copier has yet to copy. */
u32 slab_count_wanted(const struct ebb_device *device, u32 slab, u32 class);
/* Of them, those that its place @to lacks. */
u32 slab_count_lacking(const struct ebb_device *device, u32 slab, u32 class, enum ebb_at to);
/*
 * The first pages from *@page on that the copier has to copy, at most *@count, all to *@to
 * and all in one place, which is returned; EBB_BITS = none.
 */
enum ebb_at slab_wanted(const struct ebb_device *device, u32 slab, u32 class, u64 *page,
			u32 *count, enum ebb_at *to);
/*
 * The slab has @place as its @at (AT_DONOR, AT_SECOND), and nothing is there yet.  What it had as
 * that becomes its source; a slab with both does not move.  NULL: it has none as that.
 */
void slab_move(struct ebb_device *device, struct ebb_slab *slab, u32 class, enum ebb_at at,
	       const struct ebb_place *place);
/* What @s has of the slab is void from now on; a source that is left takes its place again. */
void slab_detach(struct ebb_device *device, struct ebb_slab *slab, const struct ebb_session *s);
/* Nothing of the slab is at its source any more. */
void slab_leave(struct ebb_device *device, struct ebb_slab *slab, u32 class);

static inline struct ebb_slab *slab_of(const struct ebb_device *device, u64 page)
{
	return &device->slabs[page >> device->slab_shift];
}

/* What @class has of the slab; NULL = the device has no such class. */
static inline struct ebb_hold *slab_hold(const struct ebb_device *device, struct ebb_slab *slab,
					 u32 class)
{
	struct ebb_hold *holds;

	if (likely(!class))
		return &slab->hold;
	holds = READ_ONCE(device->holds[class]);
	return holds ? &holds[slab - device->slabs] : NULL;
}

/* The place a leg went to under @epoch: AT_DONORS when that is void. */
static inline enum ebb_at hold_epoch(const struct ebb_hold *hold, u32 epoch)
{
	int at;

	for (at = 0; at < AT_DONORS; at++)
		if (hold->at[at].session && hold->at[at].epoch == epoch)
			break;
	return at;
}

/* The place that is @s's, or AT_DONORS: none is. */
static inline enum ebb_at hold_session(const struct ebb_hold *hold, const struct ebb_session *s)
{
	int at;

	for (at = 0; at < AT_DONORS; at++)
		if (READ_ONCE(hold->at[at].session) == s)
			break;
	return at;
}

/*
 * class.c: which pages have donors of their own.  A page's class is that of the
 * cgroup whose page it was when it was written, and stays until it is written anew.
 */
void class_free(struct ebb_device *device);
/* From now on there is @class, its writes going to @copies; control_lock. */
enum ebb_class_kind { CLASS_OPEN, CLASS_SEALED };
/* -EEXIST: it is there, and of the other kind. */
int class_make(struct ebb_device *device, u32 class, u32 copies, enum ebb_class_kind kind,
	       const char **why);
/* Pages of @cgroup are of @class, EBB_NO_CLASS = of its parent's; control_lock. */
#define EBB_NO_CLASS U32_MAX
int class_assign(struct ebb_device *device, u64 cgroup, u32 class);
/* The @i-th assignment; false when there is none.  control_lock. */
bool class_assigned(const struct ebb_device *device, u32 i, u64 *cgroup, u32 *class);
/* What @rq, a write, is of: the kernel merges no bios of different cgroups. */
u32 class_of_request(const struct ebb_device *device, const struct request *rq);
/*
 * The class of @page; *@run becomes the pages from there on, of *@run, that are of
 * it.  slab->lock is held, as for the next two.
 */
u32 class_of_pages(const struct ebb_device *device, u64 page, u32 *run);
void class_set(struct ebb_device *device, u64 page, u32 count, u32 class);
/* Which pages of a word of bits are of @class. */
unsigned long class_word(const struct ebb_device *device, size_t word, u32 class);

/*
 * writeback.c: a bounded pool of pages that the donor has and the backup is to get.
 * Theirs is an active span until they are there: writers wait, readers do not.
 */
struct ebb_behind {
	struct ebb_device *device;
	struct ebb_slab *slab;
	struct ebb_span span;     /* or its place in the list of free ones */
	u64 live;                 /* a bit a page: it is the newest content, as far as we know */
	bool stuck;
	struct delayed_work work;
	struct bio bio;
	struct bio_vec vecs[EBB_IO_PAGES];
	struct page *pages[EBB_IO_PAGES];
};
int pool_init(struct ebb_device *device, u32 pages);
void pool_stop(struct ebb_device *device); /* waits until it is empty */
void pool_free(struct ebb_device *device);
void pool_told(const struct ebb_device *device, u64 *size, u64 *used); /* bytes */
/* Room for the pages of @span, or NULL: the pool is full. */
struct ebb_behind *behind_take(struct ebb_device *device, const struct ebb_span *span);
void behind_put(struct ebb_behind *behind);
/* What is in it is acknowledged.  slab->lock is held; behind_go() follows without it. */
void behind_begin(struct ebb_slab *slab, struct ebb_behind *behind);
void behind_go(struct ebb_behind *behind);
/* Pages of @span are written anew: what of them is stuck is void.  slab->lock is held. */
void behind_supersede(struct ebb_slab *slab, const struct ebb_span *span);
/* Where @page is in the pool, and of *@run pages from there on; slab->lock is held. */
struct ebb_behind *behind_find(struct ebb_slab *slab, u64 page, u32 *run);

/*
 * seal.c: what pages of a sealed class are outside: at donors, in the pool, on the
 * backup, and to the copier, which knows nothing of it.
 */
int seals_make(struct ebb_device *device, const char **why); /* control_lock */
void seals_free(struct ebb_device *device);
/* True: it has io->buffer.  Else it goes on at @step, with one, as soon as there is one. */
bool seal_take(struct ebb_io *io, enum ebb_step step);
void seal_put(struct ebb_io *io); /* if it has one */
/* The buffer's pages [@from, @from + @count), one by one. */
void seal_each(struct ebb_io *io, u32 from, u32 count,
	       void (*call)(struct ebb_io *, const struct bio_vec *));
/* Copies between @v and byte @at on: into the buffer of a WRITE, out of a READ's; the end. */
u32 seal_copy(struct ebb_io *io, u32 at, const struct bio_vec *v);
/* All of its pages as a list of at most EBB_SEGMENTS; how many. */
int seal_map(const struct ebb_io *io, struct scatterlist *sg);
/*
 * Seals, or opens, pages of the buffer in place; may sleep.  -EBADMSG: these are not the bytes
 * that were sealed.  Any other error is this machine's, and the buffer's content is undefined.
 */
int seal_close(struct ebb_io *io);
int seal_open(struct ebb_io *io, u32 from, u32 count);
/* The seals of a WRITE are those of its pages from now on.  slab->lock is held. */
void seal_keep(const struct ebb_io *io);

/* copy.c: pages brought to where they belong, in the background. */
int copier_init(struct ebb_device *device);
void copier_stop(struct ebb_device *device); /* waits for it; it does not go on */
void copier_free(struct ebb_device *device);
/* From any context: there may be something to copy. */
void copier_kick(struct ebb_device *device);

/* session.c.  *@why gets a static text on failure. */
int session_open(struct ebb_device *device, const struct sockaddr_storage *to, u32 class,
		 struct ebb_session **out, const char **why);
/* From any context: it is over, for @reason (static).  Later calls do nothing. */
void session_fail(struct ebb_session *s, const char *reason);
/* Ends it, waits until nothing of it is in flight, frees it. */
void session_free(struct ebb_session *s, const char *reason);
/* A slab of the donor's; the epoch is the caller's to set. */
int session_map(struct ebb_session *s, struct ebb_place *place, const char **why);
int session_unmap(struct ebb_session *s, u32 remote, u32 generation, const char **why);
/* Answers one EVICT, with a wire_status; returns when that has left or the session is over. */
void session_answer(struct ebb_session *s, const struct ebb_asked *asked, u16 status);

/*
 * proof.c: that both have the device's key.  key_set() as the device is made, before any
 * session is.
 */
int key_set(struct ebb_device *device, const u8 *key, const u8 *number, const char **why);
void key_free(struct ebb_device *device);
/* Fills q->request in, for connection @index; its queue pair is there. */
int proof_request(struct ebb_session *s, struct ebb_queue *q, u32 index);
/* Whether q->reply, of q->peer, is of who has the key, and of this session. */
int proof_check(struct ebb_session *s, const struct ebb_queue *q, u32 index, const char **why);
/* Marks a frame, which *@length includes from then on.  s->sending is held until it has left. */
int proof_mark(struct ebb_session *s, u8 *frame, u32 *length);
/* Whether what came is the donor's next frame; its mark is taken off.  From any context. */
bool proof_genuine(struct ebb_session *s, const u8 *frame, u32 *length);
void proof_free(struct ebb_session *s);

static inline bool session_live(const struct ebb_session *s)
{
	return atomic_read(&s->state) == EBB_SWAP_LIVE;
}

/* The slab's lock is held. */
static inline bool place_live(const struct ebb_place *place)
{
	return place->session && session_live(place->session);
}

/* BIT(enum ebb_at) of those whose session is not over; the slab's lock is held. */
static inline u32 hold_live(const struct ebb_hold *hold)
{
	u32 live = 0;

	for (int at = 0; at < AT_DONORS; at++)
		live |= place_live(&hold->at[at]) ? BIT(at) : 0;
	return live;
}

/* True: a reference to the place's session has been taken.  The slab's lock is held. */
static inline bool place_take(const struct ebb_place *place)
{
	return place_live(place) && percpu_ref_tryget_live(&place->session->ref);
}

/* evict.c: answers what the session's donor asked back. */
void evict_answer(struct work_struct *work);
/*
 * A slab goes to the backup, or to its other donor alone, if a donor wants it back and nobody
 * else took it.  True: one does, and has to wait.
 */
bool evict_overdue(struct ebb_device *device, struct ebb_slab *slab, u32 class);

/* device.c */
struct ebb_settings {
	u32 index;
	u64 size, slab_size;      /* bytes */
	u32 queues, depth, deadline;
	u64 pool;                 /* bytes */
	u32 copies;               /* enum ebb_swap_copy */
	const char *backup;       /* path, or NULL */
	const u8 *key, *key_number;
	bool seal;                /* class 0 */
};
int device_new(const struct ebb_settings *settings, struct ebb_device **out, const char **why);
/* -EBUSY while it is open; else it is gone, sessions and all. */
int device_free(struct ebb_device *device);
int device_major_register(void);
void device_major_unregister(void);

/* control_device.c */
extern struct mutex control_lock;
extern struct list_head control_devices; /* control_lock */
extern struct genl_family control_family;
struct ebb_device *control_find(u32 index); /* NULL = none; control_lock */
int control_init(void);
void control_exit(void);

/* status.c */
#define EBB_NO_SLAB U32_MAX
/* Tells who listens; may sleep.  @reason may be NULL. */
void event_tell(const struct ebb_device *device, u32 event, u32 session, u32 slab,
		const char *reason);
bool event_heard(void);
struct netlink_callback;
int tell_status(struct sk_buff *skb, struct netlink_callback *cb);
int tell_slabs(struct sk_buff *skb, struct netlink_callback *cb);

/* main.c: of the sessions that close. */
extern struct workqueue_struct *ebb_closing;

#endif
