// SPDX-License-Identifier: GPL-2.0-only
/*
 * While a chunk is copied, its pages are an active reading span: reads proceed, writes to these
 * pages wait.  So the whole copy is the newest content.  At the end, the copier checks under the
 * slab's lock whether the copy counts: not for an ended target or discarded pages.
 *
 * The copier copies one chunk at a time, and pauses after each while the device has requests.
 */
#include <linux/delay.h>
#include <linux/ktime.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "bad_page.h"
#include "copy.h"
#include "donor_io.h"
#include "event.h"
#include "loan.h"
#include "seal.h"
#include "slab.h"
#include "span.h"

#define SEGMENT_ORDER 2
#define CHUNK_PAGES (EBB_SEGMENTS << SEGMENT_ORDER)
/*
 * Pause after a chunk while there are requests: as many times as long as the chunk has taken.  A
 * chunk is read for half of its time and written for the other half, so a miss finds one on its way
 * one time in eight.
 */
#define PAUSE_TIMES 3
/* Longest pause, and pause before another round. */
#define PAUSE_MS 4
#define RETRY_MS 1000

struct ebb_copier {
	struct ebb_device *device;
	struct workqueue_struct *wq;
	struct delayed_work work;
	bool stopped;
	atomic_t kicked;
	u32 slab, class;        /* current position, */
	u64 page;               /* and next page there */
	bool all_done;          /* nothing left in this round, which began at slab 0 */
	bool later;             /* next round must wait: a copy failed, or a recall is pending */
	u64 requests;           /* the device's count when it last changed, */
	u64 requests_at;        /* at this time (ns) */
	struct page *segments[EBB_SEGMENTS];
	struct ebb_span span;
	struct ebb_transfer transfer;
	struct completion done;
	int error;
	struct bio bio;
	struct bio_vec vecs[EBB_SEGMENTS];
};

static void transfer_done(struct ebb_transfer *t, int error)
{
	struct ebb_copier *c = container_of(t, struct ebb_copier, transfer);

	c->error = error;
	complete(&c->done);
}

/* Copies the span from or to @place, whose reference (ebb_place_take()) it releases. */
static int copy_donor(struct ebb_copier *c, const struct ebb_place *place,
		      enum dma_data_direction direction)
{
	u64 offset = (c->span.first & (c->device->slab_pages - 1)) << PAGE_SHIFT;
	u32 left = c->span.count << PAGE_SHIFT;
	struct ebb_session *s = place->session;
	int r;

	c->transfer.session = s;
	c->transfer.direction = direction;
	c->transfer.done = transfer_done;
	c->transfer.entries = DIV_ROUND_UP(left, PAGE_SIZE << SEGMENT_ORDER);
	sg_init_table(c->transfer.sg, c->transfer.entries);
	for (int i = 0; i < c->transfer.entries; i++) {
		u32 take = min_t(u32, left, PAGE_SIZE << SEGMENT_ORDER);

		sg_set_page(&c->transfer.sg[i], c->segments[i], take, 0);
		left -= take;
	}
	reinit_completion(&c->done);
	/* The transfer drops its reference at its end, and @s is used after that. */
	percpu_ref_get(&s->ref);
	r = ebb_transfer_start(&c->transfer, 0, c->span.count << PAGE_SHIFT,
			       place->address + offset, place->rkey, 0, NULL);
	if (!r) {
		if (!wait_for_completion_timeout(&c->done,
						 msecs_to_jiffies(c->device->deadline))) {
			ebb_count(c->device, DEADLINES, 1);
			ebb_session_fail(s, EBB_SWAP_CAUSE_UNREACHABLE,
					 "a copy took longer than the deadline");
			wait_for_completion(&c->done);
		}
		r = c->error;
	}
	percpu_ref_put(&s->ref);
	return r;
}

static int copy_backup(struct ebb_copier *c, enum req_op op)
{
	u32 left = c->span.count << PAGE_SHIFT;
	int r;

	bio_init(&c->bio, c->device->backup.bdev, c->vecs, EBB_SEGMENTS, op);
	c->bio.bi_iter.bi_sector = c->span.first << (PAGE_SHIFT - SECTOR_SHIFT);
	for (int i = 0; left; i++) {
		u32 take = min_t(u32, left, PAGE_SIZE << SEGMENT_ORDER);

		__bio_add_page(&c->bio, c->segments[i], take, 0);
		left -= take;
	}
	r = submit_bio_wait(&c->bio);
	bio_uninit(&c->bio);
	if (r)
		ebb_count(c->device, BACKUP_ERRORS, 1);
	return r;
}

/* Records that @to has the span's pages, except pages discarded since; returns their number. */
static u32 copied(struct ebb_device *d, const struct ebb_span *span, enum ebb_at to)
{
	u32 n = 0;

	for (u64 page = span->first; page < span->first + span->count; page++)
		if (test_bit(page, d->bits[WRITTEN])) {
			__set_bit(page, d->bits[to]);
			n++;
		}
	return n;
}

/* Checks sealed pages before they are passed on: another donor would be blamed for them. */
static int check_seals(struct ebb_copier *c, enum ebb_at from, u32 epoch)
{
	int r = 0;

	for (u32 i = 0; !r && i < c->span.count; i++) {
		struct page *page = nth_page(c->segments[i >> SEGMENT_ORDER],
					     i & ((1 << SEGMENT_ORDER) - 1));

		r = ebb_seal_check(c->device, c->span.first + i, page);
		if (r == -EBADMSG)
			ebb_bad_page(c->device, c->span.first + i, c->class, from, epoch);
	}
	return r;
}

enum outcome { COPY_DONE, COPY_SOME, COPY_BUSY, COPY_FAILED };

/* Copies the span.  A donor's @source has been taken; *@target may have ended since it was read. */
static int copy_span(struct ebb_copier *c, struct ebb_slab *slab, enum ebb_at from,
		     const struct ebb_place *source, enum ebb_at to, struct ebb_place *target)
{
	struct ebb_device *d = c->device;
	struct ebb_hold *hold = ebb_slab_hold(d, slab, c->class);
	bool taken = false;
	unsigned long flags;
	int r;

	r = from < AT_DONORS ? copy_donor(c, source, DMA_FROM_DEVICE) : copy_backup(c, REQ_OP_READ);
	if (!r && ebb_class_sealed(d, c->class))
		r = check_seals(c, from, source->epoch);
	if (r)
		return r;
	if (to < AT_DONORS) {
		spin_lock_irqsave(&slab->lock, flags);
		/* Its address and key change when its session is resumed. */
		to = ebb_hold_epoch(hold, target->epoch);
		if (to < AT_DONORS)
			*target = hold->at[to];
		taken = to < AT_DONORS && ebb_place_take(target);
		spin_unlock_irqrestore(&slab->lock, flags);
		if (!taken)
			return -ENOTCONN;
	}
	r = taken ? copy_donor(c, target, DMA_TO_DEVICE) : copy_backup(c, REQ_OP_WRITE);
	if (r)
		return r;
	spin_lock_irqsave(&slab->lock, flags);
	/* The target may have become another place of the slab. */
	if (taken)
		to = ebb_hold_epoch(hold, target->epoch);
	if (to == AT_DONORS)
		r = -ENOTCONN;
	else
		ebb_count(d, COPIED, copied(d, &c->span, to));
	spin_unlock_irqrestore(&slab->lock, flags);
	return r;
}

static enum outcome copy_chunk(struct ebb_copier *c, struct ebb_slab *slab)
{
	struct ebb_device *d = c->device;
	const struct ebb_hold *hold = ebb_slab_hold(d, slab, c->class);
	struct ebb_place source = {}, target = {};
	enum ebb_at from, to;
	enum outcome o;
	unsigned long flags;
	int r;

	c->span = (struct ebb_span){
		.first = c->page, .count = CHUNK_PAGES, .class = c->class,
		.node = LIST_HEAD_INIT(c->span.node),
	};
	spin_lock_irqsave(&slab->lock, flags);
	from = ebb_slab_wanted(d, slab - d->slabs, c->class, &c->span.first, &c->span.count, &to);
	if (from == EBB_BITS) {
		spin_unlock_irqrestore(&slab->lock, flags);
		return COPY_DONE;
	}
	c->page = c->span.first + c->span.count;
	if (from < AT_DONORS)
		source = hold->at[from];
	if (to < AT_DONORS)
		target = hold->at[to];
	/* A slab that is detached meanwhile is not released before the copy has ended. */
	c->span.epoch[0] = source.epoch;
	c->span.epoch[1] = target.epoch;
	/* An ended donor is about to be detached; one that is away may be back after a second. */
	if (from < AT_DONORS && !ebb_place_take(&source)) {
		/* Under the lock, which the session's end takes before it is freed. */
		o = ebb_session_ended(source.session) ? COPY_BUSY : COPY_FAILED;
		spin_unlock_irqrestore(&slab->lock, flags);
		return o;
	}
	/* A write in flight would make the copy stale or needless: try again later. */
	if (!ebb_span_try(slab, &c->span)) {
		spin_unlock_irqrestore(&slab->lock, flags);
		if (from < AT_DONORS)
			percpu_ref_put(&source.session->ref);
		return COPY_BUSY;
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	r = copy_span(c, slab, from, &source, to, &target);
	ebb_span_end(slab, &c->span, NULL);
	if (r)
		ebb_count(d, COPY_ERRORS, 1);
	/* The other pages, and the bad one from another place, are copied in the next round. */
	if (r == -EBADMSG)
		return COPY_BUSY;
	return r ? COPY_FAILED : COPY_SOME;
}

/* Returns whether a donor is away, or has ended and is still attached. */
static bool has_absent_donor(const struct ebb_hold *hold)
{
	for (int i = 0; i < EBB_COPIES; i++)
		if (hold->at[i].session && !ebb_place_live(&hold->at[i]))
			return true;
	return false;
}

/*
 * Called at the end of @slab.  Releases the class's source if its donors have all pages; otherwise
 * requests another round.
 */
static void slab_end(struct ebb_copier *c, struct ebb_slab *slab)
{
	struct ebb_device *d = c->device;
	struct ebb_hold *hold = ebb_slab_hold(d, slab, c->class);
	struct ebb_place source;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	source = hold->at[AT_SOURCE];
	if (source.session && has_absent_donor(hold)) {
		c->all_done = false;
		c->later |= ebb_hold_away(hold) != 0;
	} else if (ebb_slab_count_lacking(d, slab - d->slabs, c->class, AT_PLACES) ||
		   (source.session && ebb_span_uses(slab, source.epoch))) {
		c->all_done = false;
	} else if (source.session) {
		ebb_slab_leave(d, slab, c->class);
	}
	if (hold->at[AT_SOURCE].session == source.session) {
		source.session = NULL;
	} else if (!ebb_place_take(&source)) {
		/* Under the lock, which the session's end takes before it is freed. */
		ebb_session_release(source.session, source.loan);
		source.session = NULL;
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!source.session)
		return;
	ebb_event_send(d, EBB_SWAP_EVENT_LEFT, source.session->index, slab - d->slabs, 0,
		       NULL);
	ebb_session_release(source.session, source.loan);
	percpu_ref_put(&source.session->ref);
}

/* Returns whether the device has had no request for as long as the longest pause. */
static bool quiet(struct ebb_copier *c)
{
	u64 sum = 0, now = ktime_get_ns();
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu_ptr(c->device->counts, cpu)->n[EBB_SWAP_C_REQUESTS];
	if (sum != c->requests)
		c->requests_at = now;
	c->requests = sum;
	return now - c->requests_at > PAUSE_MS * NSEC_PER_MSEC;
}

/* Pauses after a chunk that was begun at @began (ns). */
static void chunk_pause(struct ebb_copier *c, enum outcome o, u64 began)
{
	u64 ns = PAUSE_MS * NSEC_PER_MSEC;
	unsigned long us;

	if (quiet(c))
		return;
	if (o == COPY_SOME)
		ns = min(ns, PAUSE_TIMES * (ktime_get_ns() - began));
	us = div_u64(ns, NSEC_PER_USEC);
	/* Less than a tick, which a delayed work item cannot wait. */
	usleep_range(us, us + us / 4);
}

static void again(struct ebb_copier *c, unsigned int ms)
{
	if (!READ_ONCE(c->stopped))
		queue_delayed_work(c->wq, &c->work, msecs_to_jiffies(ms));
}

static void step(struct ebb_copier *c)
{
	struct ebb_device *d = c->device;

	do {
		c->class++;
	} while (c->class < EBB_SWAP_CLASSES && !READ_ONCE(d->holds[c->class]));
	if (c->class == EBB_SWAP_CLASSES) {
		c->class = 0;
		c->slab++;
	}
	c->page = (u64)c->slab << d->slab_shift;
}

/*
 * Moves a recalled slab that user space has not migrated in time to the backup or its other donor.
 * Returns true if a recall must wait.
 */
static bool recall_overdue(struct ebb_device *d, struct ebb_slab *slab, u32 class)
{
	struct ebb_hold *hold = ebb_slab_hold(d, slab, class);
	unsigned long flags;
	bool later = false;

	spin_lock_irqsave(&slab->lock, flags);
	/* One at a time, the second first: if the first left, the second would become the first. */
	for (int i = EBB_COPIES - 1; i >= 0 && d->backup.bdev; i--) {
		const struct ebb_place *place = &hold->at[i];

		if (!place->session || !place->recalled)
			continue;
		if (hold->at[AT_SOURCE].session || time_before(jiffies, place->evict_at))
			later = true;
		else
			ebb_slab_move(d, slab, class, i, NULL);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	return later;
}

/* Copies one chunk, or ends a round. */
static void copy_work(struct work_struct *work)
{
	struct ebb_copier *c = container_of(work, struct ebb_copier, work.work);
	struct ebb_device *d = c->device;
	/* Allocations must not swap out to this device. */
	unsigned int noio = memalloc_noio_save();

	if (!c->slab && !c->class && !c->page) {
		atomic_set(&c->kicked, 0);
		c->all_done = true;
	}
	while (c->slab < d->slab_count) {
		struct ebb_slab *slab = &d->slabs[c->slab];
		u64 began = ktime_get_ns();
		enum outcome o;

		if (recall_overdue(d, slab, c->class)) {
			c->all_done = false;
			c->later = true;
		}
		o = copy_chunk(c, slab);
		if (o != COPY_DONE) {
			if (o == COPY_FAILED)
				c->later = true;
			chunk_pause(c, o, began);
			again(c, 0);
			goto out;
		}
		slab_end(c, slab);
		step(c);
		cond_resched();
	}
	c->slab = 0;
	c->page = 0;
	if (!c->all_done)
		again(c, c->later ? RETRY_MS : PAUSE_MS);
	else if (atomic_read(&c->kicked))
		again(c, 0);
	c->later = false;
out:
	memalloc_noio_restore(noio);
}

void ebb_copier_kick(struct ebb_device *d)
{
	atomic_set(&d->copier->kicked, 1);
	/* Without effect during a pause, which a stream of kicks must not end. */
	again(d->copier, 0);
}

int ebb_copier_init(struct ebb_device *d)
{
	struct ebb_copier *c = kzalloc(sizeof(*c), GFP_KERNEL);

	if (!c)
		return -ENOMEM;
	d->copier = c;
	c->device = d;
	init_completion(&c->done);
	INIT_DELAYED_WORK(&c->work, copy_work);
	INIT_LIST_HEAD(&c->span.node);
	for (int i = 0; i < EBB_SEGMENTS; i++) {
		c->segments[i] = alloc_pages(GFP_KERNEL, SEGMENT_ORDER);
		if (!c->segments[i])
			return -ENOMEM;
	}
	/* Reclaim may depend on the copier: a page may have to leave its donor. */
	c->wq = alloc_ordered_workqueue("ebb%u-copy", WQ_MEM_RECLAIM, d->index);
	return c->wq ? 0 : -ENOMEM;
}

void ebb_copier_stop(struct ebb_device *d)
{
	WRITE_ONCE(d->copier->stopped, true);
	cancel_delayed_work_sync(&d->copier->work);
}

void ebb_copier_free(struct ebb_device *d)
{
	struct ebb_copier *c = d->copier;

	if (!c)
		return;
	if (c->wq)
		destroy_workqueue(c->wq);
	for (int i = 0; i < EBB_SEGMENTS; i++)
		if (c->segments[i])
			__free_pages(c->segments[i], SEGMENT_ORDER);
	kfree(c);
	d->copier = NULL;
}
