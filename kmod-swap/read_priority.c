// SPDX-License-Identifier: GPL-2.0-only
#include <linux/ioprio.h>
#include <linux/moduleparam.h>

#include "read_priority.h"

static unsigned int ahead_pages = 128;
module_param(ahead_pages, uint, 0644);
MODULE_PARM_DESC(ahead_pages,
		 "pages of prefetch reads in flight at donors, 0 = no limit [128]");
/*
 * A smaller window shortens misses, but one window per round trip is too few pages for a prefetched
 * program that misses now and then.  Misses that are still slow lower ebbd's own limit.
 */
static unsigned int beside_pages = 16;
module_param(beside_pages, uint, 0644);
MODULE_PARM_DESC(beside_pages,
		 "pages of prefetch reads in flight, and of one message, while others read, 0 = no limit [16]");

/* Jiffies after a demand read during which another is likely. */
#define BESIDE DIV_ROUND_UP(HZ, 50)
/*
 * Jiffies without progress of an admitted read after which all are admitted: a donor that is
 * unresponsive, but not yet known to be, must not delay reads from other donors.
 */
#define STALLED (HZ / 4)

static bool is_prefetch(struct ebb_io *io)
{
	u16 priority = req_get_ioprio(blk_mq_rq_from_pdu(io));
	u16 class = IOPRIO_PRIO_CLASS(priority), level = priority & IOPRIO_LEVEL_MASK;

	return class == IOPRIO_CLASS_IDLE ||
	       (class == IOPRIO_CLASS_BE && level == IOPRIO_BE_NR - 1);
}

static u32 window(const struct ebb_read_priority *a)
{
	bool beside = atomic_read(&a->demands) ||
		      time_before_eq(jiffies, READ_ONCE(a->demand_at) + BESIDE);

	return (beside ? READ_ONCE(beside_pages) : READ_ONCE(ahead_pages)) ?: U32_MAX;
}

/* admit(), hold() and release() need read_priority->lock. */
static void admit(struct ebb_read_priority *a, struct ebb_io *io)
{
	a->pages += io->span.count;
	WRITE_ONCE(io->turn, TURN_PREFETCH);
}

static void hold(struct ebb_read_priority *a, struct ebb_io *io)
{
	if (list_empty(&a->held)) {
		WRITE_ONCE(a->moved, jiffies);
		queue_delayed_work(io->device->wq, &a->stalled, STALLED);
	}
	list_add_tail(&io->held_node, &a->held);
}

static void release(struct ebb_read_priority *a, u32 most)
{
	while (!list_empty(&a->held) && a->pages < most) {
		struct ebb_io *io = list_first_entry(&a->held, struct ebb_io, held_node);

		list_del_init(&io->held_node);
		admit(a, io);
		ebb_io_later(io, EBB_STEP_READ);
	}
}

static void stalled_work(struct work_struct *work)
{
	struct ebb_read_priority *a = container_of(work, struct ebb_read_priority, stalled.work);
	struct ebb_device *d = container_of(a, struct ebb_device, read_priority);
	unsigned long flags;
	long left;

	spin_lock_irqsave(&a->lock, flags);
	left = READ_ONCE(a->moved) + STALLED - jiffies;
	if (left <= 0)
		release(a, U32_MAX);
	else if (!list_empty(&a->held))
		queue_delayed_work(d->wq, &a->stalled, left);
	spin_unlock_irqrestore(&a->lock, flags);
}

void ebb_read_priority_init(struct ebb_device *d)
{
	struct ebb_read_priority *a = &d->read_priority;

	spin_lock_init(&a->lock);
	INIT_LIST_HEAD(&a->held);
	a->demand_at = jiffies - BESIDE - 1;
	INIT_DELAYED_WORK(&a->stalled, stalled_work);
}

void ebb_read_priority_stop(struct ebb_device *d)
{
	cancel_delayed_work_sync(&d->read_priority.stalled);
}

u32 ebb_read_priority_take(struct ebb_io *io)
{
	struct ebb_device *d = io->device;
	struct ebb_read_priority *a = &d->read_priority;
	u32 most;

	if (!is_prefetch(io)) {
		/* Once per read: it comes back for each run, and for a buffer. */
		if (io->turn == TURN_NONE) {
			atomic_inc(&a->demands);
			if (!list_empty_careful(&a->held))
				ebb_count(d, OVERTAKES, 1);
		}
		WRITE_ONCE(io->turn, TURN_DEMAND);
		return U32_MAX;
	}
	most = window(a);
	if (io->turn == TURN_PREFETCH) {
		WRITE_ONCE(a->moved, jiffies);
		return most;
	}
	/* Never hold a read with a buffer: admitted reads may wait for buffers. */
	if (io->buffer)
		return U32_MAX;
	ebb_count(d, AHEAD, 1);
	spin_lock(&a->lock);
	if (list_empty(&a->held) && a->pages < most) {
		admit(a, io);
	} else {
		hold(a, io);
		most = 0;
		ebb_count(d, AHEAD_HELD, 1);
	}
	spin_unlock(&a->lock);
	return most;
}

void ebb_read_priority_end(struct ebb_io *io)
{
	struct ebb_read_priority *a = &io->device->read_priority;
	unsigned long flags;

	if (io->turn == TURN_NONE)
		return;
	if (io->turn == TURN_DEMAND) {
		WRITE_ONCE(io->turn, TURN_NONE);
		WRITE_ONCE(a->demand_at, jiffies);
		atomic_dec(&a->demands);
		return;
	}
	spin_lock_irqsave(&a->lock, flags);
	WRITE_ONCE(io->turn, TURN_NONE);
	a->pages -= io->span.count;
	WRITE_ONCE(a->moved, jiffies);
	release(a, window(a));
	spin_unlock_irqrestore(&a->lock, flags);
}
