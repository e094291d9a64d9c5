// SPDX-License-Identifier: GPL-2.0-only
/*
 * The copier: brings pages to where their slab belongs, in the background.
 *
 *  - repair: the slab has a new donor, and pages are on the backup, or at its other donor, alone;
 *  - migration: it has a new donor, and pages are at the one that it leaves;
 *  - retreat: it has no donor any more, and pages are at the one that it leaves alone.
 *
 * While a chunk is copied its pages are an active span, which only reads: readers
 * go on, writers of these very pages wait.  So what is copied is the newest content
 * from the first byte to the last, and only the copier's lock decides that the
 * copy counts: not if the place that was written to, or the page, is gone.
 *
 * It never has more than one chunk under way, and pauses after each while there are
 * requests.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "internal.h"

#define SEGMENT_ORDER 2
#define CHUNK_PAGES (EBB_SEGMENTS << SEGMENT_ORDER)
/* One chunk in it: with a tick of 4 ms at most 64 MB/s beside demand I/O. */
#define PAUSE_MS 4
#define RETRY_MS 1000

struct ebb_copier {
	struct ebb_device *device;
	struct workqueue_struct *wq;
	struct delayed_work work;
	bool stopped;
	atomic_t kicked;
	u32 slab, class;        /* those it is at, */
	u64 page;               /* and from where on */
	bool all_done;          /* of the present round, which began at slab 0 */
	bool later;             /* the next round is to wait for something */
	u64 requests;           /* of the device when it last looked */
	struct page *segments[EBB_SEGMENTS];
	struct ebb_span span;
	struct ebb_leg leg;
	struct completion done;
	int error;
	struct bio bio;
	struct bio_vec vecs[EBB_SEGMENTS];
};

static void leg_done(struct ebb_leg *leg, int error)
{
	struct ebb_copier *c = container_of(leg, struct ebb_copier, leg);

	c->error = error;
	complete(&c->done);
}

/* @place has been taken; its reference is used up. */
static int copy_donor(struct ebb_copier *c, const struct ebb_place *place,
		      enum dma_data_direction direction)
{
	u64 offset = (c->span.first & (c->device->slab_pages - 1)) << PAGE_SHIFT;
	u32 left = c->span.count << PAGE_SHIFT;
	struct ebb_session *s = place->session;
	int r;

	c->leg.session = s;
	c->leg.direction = direction;
	c->leg.done = leg_done;
	c->leg.entries = DIV_ROUND_UP(left, PAGE_SIZE << SEGMENT_ORDER);
	sg_init_table(c->leg.sg, c->leg.entries);
	for (int i = 0; i < c->leg.entries; i++) {
		u32 take = min_t(u32, left, PAGE_SIZE << SEGMENT_ORDER);

		sg_set_page(&c->leg.sg[i], c->segments[i], take, 0);
		left -= take;
	}
	reinit_completion(&c->done);
	/* One of our own: the session is looked at after the leg has given back its. */
	percpu_ref_get(&s->ref);
	r = leg_start(&c->leg, 0, c->span.count << PAGE_SHIFT, place->address + offset,
		      place->rkey, 0, NULL);
	if (!r) {
		if (!wait_for_completion_timeout(&c->done,
						 msecs_to_jiffies(c->device->deadline))) {
			ebb_count(c->device, DEADLINES, 1);
			session_fail(s, "a copy took longer than the deadline");
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

/* The pages of the span are @to, too.  Some may have been discarded, none written. */
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

enum outcome { COPY_DONE, COPY_SOME, COPY_BUSY, COPY_FAILED };

/* @source has been taken, if the pages come from a donor; @target was the slab's then. */
static int copy_span(struct ebb_copier *c, struct ebb_slab *slab, enum ebb_at from,
		     const struct ebb_place *source, enum ebb_at to, const struct ebb_place *target)
{
	struct ebb_device *d = c->device;
	struct ebb_hold *hold = slab_hold(d, slab, c->class);
	bool taken = false;
	unsigned long flags;
	int r;

	r = from < AT_DONORS ? copy_donor(c, source, DMA_FROM_DEVICE) : copy_backup(c, REQ_OP_READ);
	if (r)
		return r;
	if (to < AT_DONORS) {
		spin_lock_irqsave(&slab->lock, flags);
		taken = hold_epoch(hold, target->epoch) < AT_DONORS && place_take(target);
		spin_unlock_irqrestore(&slab->lock, flags);
		if (!taken)
			return -ENOTCONN;
	}
	r = taken ? copy_donor(c, target, DMA_TO_DEVICE) : copy_backup(c, REQ_OP_WRITE);
	if (r)
		return r;
	spin_lock_irqsave(&slab->lock, flags);
	/* It may be the slab's second, or its only one, by now: the copy is as good. */
	if (taken)
		to = hold_epoch(hold, target->epoch);
	if (to == AT_DONORS)
		r = -ENOTCONN;
	else
		ebb_count(d, COPIED, copied(d, &c->span, to));
	spin_unlock_irqrestore(&slab->lock, flags);
	return r;
}

/* The next chunk of @slab and c->class from c->page on. */
static enum outcome copy_chunk(struct ebb_copier *c, struct ebb_slab *slab)
{
	struct ebb_device *d = c->device;
	const struct ebb_hold *hold = slab_hold(d, slab, c->class);
	struct ebb_place source = { }, target = { };
	enum ebb_at from, to;
	unsigned long flags;
	int r;

	c->span = (struct ebb_span){
		.first = c->page, .count = CHUNK_PAGES, .class = c->class,
	};
	spin_lock_irqsave(&slab->lock, flags);
	from = slab_wanted(d, slab - d->slabs, c->class, &c->span.first, &c->span.count, &to);
	if (from == EBB_BITS) {
		spin_unlock_irqrestore(&slab->lock, flags);
		return COPY_DONE;
	}
	c->page = c->span.first + c->span.count;
	if (from < AT_DONORS)
		source = hold->at[from];
	if (to < AT_DONORS)
		target = hold->at[to];
	/* Who writes them now will most likely have spared us the work. */
	if (span_conflicts(slab, &c->span) || (from < AT_DONORS && !place_take(&source))) {
		spin_unlock_irqrestore(&slab->lock, flags);
		return COPY_BUSY;
	}
	list_add_tail(&c->span.node, &slab->active);
	spin_unlock_irqrestore(&slab->lock, flags);
	r = copy_span(c, slab, from, &source, to, &target);
	span_end(slab, &c->span, NULL);
	if (r)
		ebb_count(d, COPY_ERRORS, 1);
	return r ? COPY_FAILED : COPY_SOME;
}

static bool named(const struct ebb_slab *slab, const struct ebb_place *source)
{
	const struct ebb_span *span;

	list_for_each_entry(span, &slab->active, node)
		for (int i = 0; i < EBB_COPIES; i++)
			if (span->epoch[i] == source->epoch)
				return true;
	return false;
}

/* A donor that is over, and about to be detached, has nothing, and its place may be another's. */
static bool one_is_over(const struct ebb_hold *hold)
{
	for (int i = 0; i < EBB_COPIES; i++)
		if (hold->at[i].session && !place_live(&hold->at[i]))
			return true;
	return false;
}

/*
 * The end of @slab is reached.  Gives the class's source back if it has all; else
 * another round.
 */
static void slab_end(struct ebb_copier *c, struct ebb_slab *slab)
{
	struct ebb_device *d = c->device;
	struct ebb_hold *hold = slab_hold(d, slab, c->class);
	struct ebb_place source;
	const char *why;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	source = hold->at[AT_SOURCE];
	if (slab_count_wanted(d, slab - d->slabs, c->class) ||
	    (source.session && (named(slab, &source) || one_is_over(hold))))
		c->all_done = false;
	else if (source.session)
		slab_leave(d, slab, c->class);
	if (hold->at[AT_SOURCE].session == source.session || !place_take(&source))
		source.session = NULL;
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!source.session)
		return;
	event_tell(d, EBB_SWAP_EVENT_LEFT, source.session->index, slab - d->slabs, NULL);
	/* What fails ends the session, and its donor has everything back. */
	session_unmap(source.session, source.remote, source.generation, &why);
	percpu_ref_put(&source.session->ref);
}

static bool quiet(struct ebb_copier *c)
{
	u64 sum = 0;
	bool same;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu_ptr(c->device->counts, cpu)->n[EBB_SWAP_C_REQUESTS];
	same = sum == c->requests;
	c->requests = sum;
	return same;
}

static void again(struct ebb_copier *c, unsigned int ms)
{
	if (!READ_ONCE(c->stopped))
		queue_delayed_work(c->wq, &c->work, msecs_to_jiffies(ms));
}

/* To the next class of the slab that there is, or to the next slab. */
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

/* One chunk, or a round over what has none. */
static void copy_work(struct work_struct *work)
{
	struct ebb_copier *c = container_of(work, struct ebb_copier, work.work);
	struct ebb_device *d = c->device;
	/* Memory that it needs is not to come from the device it serves. */
	unsigned int noio = memalloc_noio_save();

	if (!c->slab && !c->class && !c->page) {
		atomic_set(&c->kicked, 0);
		c->all_done = true;
	}
	while (c->slab < d->slab_count) {
		struct ebb_slab *slab = &d->slabs[c->slab];
		enum outcome o;

		if (evict_overdue(d, slab, c->class)) {
			c->all_done = false;
			c->later = true;
		}
		o = copy_chunk(c, slab);
		if (o != COPY_DONE) {
			if (o == COPY_FAILED)
				c->later = true;
			again(c, quiet(c) ? 0 : PAUSE_MS);
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

void copier_kick(struct ebb_device *d)
{
	atomic_set(&d->copier->kicked, 1);
	if (!READ_ONCE(d->copier->stopped))
		mod_delayed_work(d->copier->wq, &d->copier->work, 0);
}

int copier_init(struct ebb_device *d)
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
	/* On it a page's way out of memory may depend: that of the donor it leaves. */
	c->wq = alloc_ordered_workqueue("ebb%u-copy", WQ_MEM_RECLAIM, d->index);
	return c->wq ? 0 : -ENOMEM;
}

void copier_stop(struct ebb_device *d)
{
	WRITE_ONCE(d->copier->stopped, true);
	cancel_delayed_work_sync(&d->copier->work);
}

void copier_free(struct ebb_device *d)
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
