/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Data of a device.  create.c creates devices, other files own their parts.
 *
 * Locks, outermost first: device->control, ebb_devices_lock (netlink.h), device->sessions_lock,
 * session->calls, session->sending, slab->lock (interrupts off), read_priority->lock or
 * session->lock.  batch->lock and slab->lock do not nest.  The copier must not take
 * device->control: its holders wait for the copier.
 */
#ifndef EBB_DEVICE_H
#define EBB_DEVICE_H

#include <ebb/swap.h>
#include <linux/blk-mq.h>
#include <linux/list.h>
#include <linux/percpu.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "hmac.h"

/*
 * A request is at most one RDMA work request: as many pages as the kernel merges and a work request
 * can gather.  Contiguous memory is one segment.  Network devices that gather fewer segments get
 * up to EBB_PARTS work requests.
 */
#define EBB_SEGMENTS 16
#define EBB_PARTS 4
#define EBB_IO_PAGES 64

#define EBB_NO_SESSION U32_MAX
#define EBB_NO_SLAB U32_MAX

#define EBB_CLASS_BITS 3
static_assert(1 << EBB_CLASS_BITS == EBB_SWAP_CLASSES);

/* Replicas of a slab: donors that its writes go to. */
#define EBB_COPIES 2

struct ebb_copier;
struct ebb_loan;
struct ebb_pool;
struct ebb_rules;
struct ebb_sealer;
struct ebb_session;

/* The place of a slab at a donor. */
struct ebb_place {
	struct ebb_session *session; /* NULL = nowhere */
	u64 address;              /* in the donor's memory */
	u32 rkey;
	struct ebb_loan *loan;    /* the donor's slab */
	/*
	 * Number of the mapping, unique within a slab across its classes: a write that was sent
	 * under another mapping does not count.
	 */
	u32 epoch;
	bool recalled;            /* by the donor */
	unsigned long evict_at;   /* jiffies: deadline for user space to find another donor */
};

/*
 * Places of each page's newest content: one bit per page and place, under the slab's lock.  A slab
 * has whole words of bits.  A place's bit implies WRITTEN.  WRITTEN without a place = lost: reads
 * fail.  Not WRITTEN = zeros.  Reads prefer places in this order.  The first AT_DONORS are places
 * of the ebb_hold of the page's class.
 */
enum ebb_at {
	AT_DONOR, AT_SECOND, AT_SOURCE, AT_DONORS, AT_POOL = AT_DONORS, AT_BACKUP, AT_PLACES,
	WRITTEN = AT_PLACES, EBB_BITS
};
static_assert(AT_SECOND < EBB_COPIES && AT_SOURCE == EBB_COPIES);

/* Donors of a slab's pages of one class; under the slab's lock. */
struct ebb_hold {
	/*
	 * Writes go to the donor and to the second, which exists only beside a donor.  The source
	 * is a place that the slab is leaving: it is only read, unless the donors are away and
	 * there is no backup, and released once the copier has copied its pages to the donors, or
	 * to the backup if there is no donor.  No two places are at one donor.
	 */
	struct ebb_place at[AT_DONORS];
	u32 copies;               /* configured; enum ebb_swap_copy */
};

/* A part of the device, the unit of placement at donors; no kernel slab allocator. */
struct ebb_slab {
	spinlock_t lock;
	struct list_head active;  /* ebb_span */
	struct list_head waiting; /* ebb_span; each overlaps an active one */
	struct list_head stuck;   /* spans of ebb_writeback whose write to the backup failed */
	struct ebb_hold hold;     /* of class 0 */
	u32 epoch;                /* of the newest mapping */
	u64 reads, writes;        /* pages */
};

struct ebb_counts {
	u64 n[EBB_SWAP_COUNTS];
};

/* read_priority.c */
struct ebb_read_priority {
	spinlock_t lock;          /* interrupts off; within slab->lock */
	struct list_head held;    /* ebb_io: prefetch reads that wait for admission */
	u32 pages;                /* pages of admitted prefetch reads */
	unsigned long moved; /* jiffies: last progress of an admitted read, or the first held */
	atomic_t demands;         /* demand reads in flight at donors */
	unsigned long demand_at;  /* jiffies: end of the last demand read; not under the lock */
	struct delayed_work stalled;
};

struct ebb_device {
	struct list_head node;    /* in ebb_devices; ebb_devices_lock */
	u32 users;                /* ebb_devices and commands; ebb_devices_lock */
	struct mutex control;     /* one command at a time */
	u32 index;
	u64 pages;
	u32 slab_pages, slab_count, slab_shift; /* shift: page -> slab */
	u32 queues, depth;
	u32 deadline;             /* ms */
	struct ebb_pool *pool;    /* NULL = none */
	bool removing;            /* open() and commands fail; disk->open_mutex and control */
	struct ebb_slab *slabs;
	unsigned long *bits[EBB_BITS]; /* enum ebb_at */
	/*
	 * class_bits and holds are NULL until the first class is created, then live as long as the
	 * device.  class_bits: class of each page at its last write, in EBB_CLASS_BITS bitmaps.
	 */
	unsigned long *class_bits;
	struct ebb_hold
		*holds[EBB_SWAP_CLASSES];   /* of each slab; those of class 0 are in the slabs */
	u32 class_copies[EBB_SWAP_CLASSES]; /* last configured; control */
	u32 sealed;               /* BIT(class); set before the class can be used */
	struct ebb_sealer *sealer; /* NULL until a class is sealed */
	struct ebb_rules __rcu *rules; /* NULL = all pages are of class 0; control */
	struct ebb_read_priority read_priority;
	struct ebb_key key;       /* of donors whose sessions have no own */
	struct compat_bdev backup;
	char backup_path[EBB_SWAP_PATH];
	struct workqueue_struct *wq;
	struct workqueue_struct *backup_wq; /* submits bios to the backup, which may block */
	struct list_head sessions; /* changes under control and */
	struct mutex sessions_lock;
	u32 next_session;
	atomic_t live;            /* sessions that are LIVE */
	struct ebb_copier *copier;
	struct blk_mq_tag_set set;
	struct gendisk *disk;
	struct ebb_counts __percpu *counts;
};

#define ebb_count(device, what, add) this_cpu_add((device)->counts->n[EBB_SWAP_C_##what], add)

static inline struct ebb_slab *ebb_slab_of(const struct ebb_device *device, u64 page)
{
	return &device->slabs[page >> device->slab_shift];
}

/* Returns the slab's donors for pages of @class; NULL = the device lacks this class. */
static inline struct ebb_hold *ebb_slab_hold(const struct ebb_device *device,
					     struct ebb_slab *slab, u32 class)
{
	struct ebb_hold *holds;

	if (likely(!class))
		return &slab->hold;
	holds = READ_ONCE(device->holds[class]);
	return holds ? &holds[slab - device->slabs] : NULL;
}

static inline bool ebb_class_sealed(const struct ebb_device *device, u32 class)
{
	return READ_ONCE(device->sealed) & BIT(class);
}

/* Returns the place whose mapping has @epoch; AT_DONORS = the mapping has ended. */
static inline enum ebb_at ebb_hold_epoch(const struct ebb_hold *hold, u32 epoch)
{
	int at;

	for (at = 0; at < AT_DONORS; at++)
		if (hold->at[at].session && hold->at[at].epoch == epoch)
			break;
	return at;
}

/* Returns the place at session @s; AT_DONORS = none. */
static inline enum ebb_at ebb_hold_session(const struct ebb_hold *hold,
					   const struct ebb_session *s)
{
	int at;

	for (at = 0; at < AT_DONORS; at++)
		if (READ_ONCE(hold->at[at].session) == s)
			break;
	return at;
}

#endif
