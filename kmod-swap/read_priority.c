// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads that nobody waits for yet.  They say so by their I/O priority, the lowest that
 * best effort has, or idle.  A connection is first in, first out: who misses waits
 * behind all that is on it.  So no more than a window of them is at donors, a small one
 * while others read; the rest is held here, and everybody else's go past it.
 *
 * What is held goes in its order, whenever one of those at donors ends.  Those are never
 * none while something is held, and no others can take their room: nothing starves.  A
 * read has its turn before a buffer (seal.c), and keeps it to its end: who has one never
 * waits for who has not.
 */
#include <linux/ioprio.h>
#include <linux/moduleparam.h>

#include "internal.h"

static unsigned int ahead_pages = 128;
module_param(ahead_pages, uint, 0644);
MODULE_PARM_DESC(ahead_pages,
		 "pages read ahead of need that donors are asked for at a time, 0 = no limit [128]");
/*
 * As ebbd's [prefetch] beside.  Fewer would be shorter for who misses, and too few where one
 * that is prefetched for misses now and then: its pages come a window a round trip.
 */
static unsigned int beside_pages = 16;
module_param(beside_pages, uint, 0644);
MODULE_PARM_DESC(beside_pages,
		 "the same, and pages of one message, while others read, 0 = no limit [16]");

/* So long after a program's read there will be another. */
#define BESIDE DIV_ROUND_UP(HZ, 50)
/*
 * When none of those at donors has gone on for so long, all goes: that a donor is silent
 * is found out later, and pages of others are not to wait for that.
 */
#define STALLED (HZ / 4)

static bool is_ahead(struct ebb_io *io)
{
	u16 priority = req_get_ioprio(blk_mq_rq_from_pdu(io));
	u16 class = IOPRIO_PRIO_CLASS(priority), level = priority & IOPRIO_LEVEL_MASK;

	return class == IOPRIO_CLASS_IDLE || (class == IOPRIO_CLASS_BE && level == IOPRIO_BE_NR - 1);
}

static u32 window(const struct ebb_ahead *a)
{
	bool beside = atomic_read(&a->demands) ||
		      time_before_eq(jiffies, READ_ONCE(a->demand_at) + BESIDE);

	return (beside ? READ_ONCE(beside_pages) : READ_ONCE(ahead_pages)) ?: U32_MAX;
}

/* The next three with ahead->lock held. */
static void turn_take(struct ebb_ahead *a, struct ebb_io *io)
{
	a->pages += io->span.count;
	WRITE_ONCE(io->turn, TURN_AHEAD);
}

static void hold(struct ebb_ahead *a, struct ebb_io *io)
{
	if (list_empty(&a->held)) {
		WRITE_ONCE(a->moved, jiffies);
		queue_delayed_work(io->device->wq, &a->stalled, STALLED);
	}
	list_add_tail(&io->held_node, &a->held);
}

static void release(struct ebb_ahead *a, u32 most)
{
	while (!list_empty(&a->held) && a->pages < most) {
		struct ebb_io *io = list_first_entry(&a->held, struct ebb_io, held_node);

		list_del_init(&io->held_node);
		turn_take(a, io);
		io_later(io, EBB_STEP_READ);
	}
}

static void stalled_work(struct work_struct *work)
{
	struct ebb_ahead *a = container_of(work, struct ebb_ahead, stalled.work);
	struct ebb_device *d = container_of(a, struct ebb_device, ahead);
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

void ahead_init(struct ebb_device *d)
{
	struct ebb_ahead *a = &d->ahead;

	spin_lock_init(&a->lock);
	INIT_LIST_HEAD(&a->held);
	a->demand_at = jiffies - BESIDE - 1;
	INIT_DELAYED_WORK(&a->stalled, stalled_work);
}

void ahead_stop(struct ebb_device *d)
{
	cancel_delayed_work_sync(&d->ahead.stalled);
}

u32 ahead_may(struct ebb_io *io)
{
	struct ebb_device *d = io->device;
	struct ebb_ahead *a = &d->ahead;
	u32 most;

	if (!is_ahead(io)) {
		if (io->turn == TURN_NONE)
			atomic_inc(&a->demands);
		WRITE_ONCE(io->turn, TURN_DEMAND);
		if (!list_empty_careful(&a->held))
			ebb_count(d, OVERTAKES, 1);
		return U32_MAX;
	}
	most = window(a);
	if (io->turn == TURN_AHEAD) {
		WRITE_ONCE(a->moved, jiffies);
		return most;
	}
	/* Those that have their turn may be waiting for a buffer like its own. */
	if (io->buffer)
		return U32_MAX;
	ebb_count(d, AHEAD, 1);
	spin_lock(&a->lock);
	if (list_empty(&a->held) && a->pages < most) {
		turn_take(a, io);
	} else {
		hold(a, io);
		most = 0;
		ebb_count(d, AHEAD_HELD, 1);
	}
	spin_unlock(&a->lock);
	return most;
}

void ahead_end(struct ebb_io *io)
{
	struct ebb_ahead *a = &io->device->ahead;
	unsigned long flags;

	if (io->turn == TURN_NONE)
		return;
	if (io->turn == TURN_DEMAND) {
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
