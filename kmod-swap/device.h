/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a device consists of.  Data alone: create.c creates a device, other files own its parts.
 *
 * Locks, outermost first: ebb_control_lock (netlink.h), session->calls, session->sending,
 * slab->lock (interrupts off), read_priority->lock.  batch->lock is beside slab->lock: neither is
 * taken under the other.  The copier does not take ebb_control_lock, under which others wait for
 * it.
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
 * A request is one RDMA work request: as many pages as one can gather, if the kernel merges
 * them; contiguous memory is one segment.
 */
#define EBB_SEGMENTS 16
#define EBB_IO_PAGES 64

#define EBB_NO_SESSION U32_MAX
#define EBB_NO_SLAB U32_MAX

#define EBB_CLASS_BITS 3
static_assert(1 << EBB_CLASS_BITS == EBB_SWAP_CLASSES);

/* Replicas of a slab: donors that its writes go to. */
#define EBB_COPIES 2

struct ebb_copier;
struct ebb_pool;
struct ebb_rules;
struct ebb_sealer;
struct ebb_session;

/* Where a slab is at a donor. */
struct ebb_place {
	struct ebb_session *session; /* NULL = nowhere */
	u64 address;              /* in the donor's memory */
	u32 rkey;
	u32 remote, generation;   /* the donor's names of it */
	/*
	 * Number of the mapping: a write that was sent under another one does not count.  Unique
	 * within a slab, across its classes.
	 */
	u32 epoch;
	bool recalled;            /* the donor has asked for it */
	unsigned long evict_at;   /* jiffies: until then user space may find another donor */
};

/*
 * Where each page's newest content is: one bit a page and place, under the slab's lock.  A slab
 * has whole words of them.  A bit of a place implies WRITTEN.  WRITTEN and in no place = lost,
 * reads fail.  Not WRITTEN = zeros.  Reads prefer the places in this order.  The first AT_DONORS
 * are places of an ebb_hold, that of the page's class.
 */
enum ebb_at {
	AT_DONOR, AT_SECOND, AT_SOURCE, AT_DONORS, AT_POOL = AT_DONORS, AT_BACKUP, AT_PLACES,
	WRITTEN = AT_PLACES, EBB_BITS
};
static_assert(AT_SECOND < EBB_COPIES && AT_SOURCE == EBB_COPIES);

/* The donors of one class's pages of a slab; under the slab's lock. */
struct ebb_hold {
	/*
	 * Writes go to the donor and to the second, which exists only beside a donor.  The source
	 * is the place that one of them has left: it is only read, and released once the copier
	 * has copied all that they lack, or the backup if there is no donor.  No two places are
	 * at one donor.
	 */
	struct ebb_place at[AT_DONORS];
	u32 copies;               /* enum ebb_swap_copy: the configured ones */
};

/* A part of the device: what is in flight on it, and where its pages are. */
struct ebb_slab {
	spinlock_t lock;
	struct list_head active;  /* ebb_span */
	struct list_head waiting; /* ebb_span; each overlaps an active one */
	struct list_head stuck;   /* spans of ebb_writeback that the backup has refused */
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
	struct list_head held;    /* ebb_io: prefetch reads until they are admitted */
	u32 pages;                /* of admitted prefetch reads */
	unsigned long moved; /* jiffies: last progress of an admitted read, or the first held */
	atomic_t demands;         /* demand reads at donors */
	unsigned long demand_at;  /* jiffies: end of the last demand read; without the lock */
	struct delayed_work stalled;
};

struct ebb_device {
	struct list_head node;    /* in ebb_devices; ebb_control_lock */
	u32 index;
	u64 pages;
	u32 slab_pages, slab_count, slab_shift; /* shift: page -> slab */
	u32 queues, depth;
	u32 deadline;             /* ms */
	struct ebb_pool *pool;    /* NULL = none */
	bool removing;            /* cannot be opened any more; disk->open_mutex */
	struct ebb_slab *slabs;
	unsigned long *bits[EBB_BITS]; /* enum ebb_at */
	/*
	 * Both NULL until the first class is created; then they exist as long as the device.  The
	 * class of each page, as of its last write: EBB_CLASS_BITS maps, one after the other.
	 */
	unsigned long *class_bits;
	struct ebb_hold
		*holds[EBB_SWAP_CLASSES];   /* of each slab; those of class 0 are in the slabs */
	u32 class_copies[EBB_SWAP_CLASSES]; /* as configured last; ebb_control_lock */
	u32 sealed;               /* BIT(class); set before the class can be used */
	struct ebb_sealer *sealer; /* NULL until a class is sealed */
	struct ebb_rules __rcu *rules; /* NULL = all pages are of class 0; ebb_control_lock */
	struct ebb_read_priority read_priority;
	struct wire_hmac key;     /* that donors prove to have */
	u8 key_number[EBB_SWAP_KEY_NUMBER];
	struct compat_bdev backup;
	char backup_path[EBB_SWAP_PATH];
	struct workqueue_struct *wq;
	struct list_head sessions; /* ebb_control_lock */
	u32 next_session;
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

/* The slab's donors for pages of @class; NULL = the device has no such class. */
static inline struct ebb_hold *ebb_slab_hold(const struct ebb_device *device,
					     struct ebb_slab *slab, u32 class)
{
	struct ebb_hold *holds;

	if (likely(!class))
		return &slab->hold;
	holds = READ_ONCE(device->holds[class]);
	return holds ? &holds[slab - device->slabs] : NULL;
}

/* The place whose mapping has @epoch; AT_DONORS = that mapping has ended. */
static inline enum ebb_at ebb_hold_epoch(const struct ebb_hold *hold, u32 epoch)
{
	int at;

	for (at = 0; at < AT_DONORS; at++)
		if (hold->at[at].session && hold->at[at].epoch == epoch)
			break;
	return at;
}

/* The place at the donor of @s; AT_DONORS = none. */
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
