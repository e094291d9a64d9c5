// SPDX-License-Identifier: GPL-2.0-only
/*
 * An acknowledged page is always in some place.  If a write to the backup fails, a copy that a
 * donor has too is dropped; any other is "stuck": kept and retried.  A stuck copy is not an active
 * span, so requests do not wait for a broken disk; a write to its pages supersedes it.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "copy.h"
#include "session.h"
#include "writeback.h"

/* Most concurrent writes to the backup; more would wait in its queue. */
#define AT_ONCE 16
#define PAGES_AN_ENTRY 8
#define RETRY HZ

struct ebb_pool {
	spinlock_t lock; /* interrupts off; innermost */
	struct list_head free;
	u32 size, free_pages;
	struct page **pages; /* [0, free_pages) are free */
	struct ebb_writeback *entries;
	struct workqueue_struct *wq;
	wait_queue_head_t empty;
	bool stopping;
};

static void writeback_work(struct work_struct *work);

int ebb_writeback_init(struct ebb_device *d, u32 pages)
{
	struct ebb_pool *p = kzalloc(sizeof(*p), GFP_KERNEL);
	u32 entries = DIV_ROUND_UP(pages, PAGES_AN_ENTRY);

	if (!p)
		return -ENOMEM;
	d->pool = p;
	spin_lock_init(&p->lock);
	INIT_LIST_HEAD(&p->free);
	init_waitqueue_head(&p->empty);
	p->pages = kvcalloc(pages, sizeof(*p->pages), GFP_KERNEL);
	p->entries = kvcalloc(entries, sizeof(*p->entries), GFP_KERNEL);
	p->wq = alloc_workqueue("ebb%u-writeback", WQ_MEM_RECLAIM | WQ_UNBOUND, AT_ONCE, d->index);
	if (!p->pages || !p->entries || !p->wq)
		return -ENOMEM;
	for (; p->size < pages; p->size++) {
		p->pages[p->size] = alloc_page(GFP_KERNEL);
		if (!p->pages[p->size])
			return -ENOMEM;
		p->free_pages++;
	}
	for (u32 i = 0; i < entries; i++) {
		p->entries[i].device = d;
		INIT_DELAYED_WORK(&p->entries[i].work, writeback_work);
		list_add_tail(&p->entries[i].span.node, &p->free);
	}
	return 0;
}

void ebb_writeback_drain(struct ebb_device *d)
{
	if (!d->pool)
		return;
	WRITE_ONCE(d->pool->stopping, true);
	wait_event(d->pool->empty, READ_ONCE(d->pool->free_pages) == d->pool->size);
}

void ebb_writeback_free(struct ebb_device *d)
{
	struct ebb_pool *p = d->pool;

	if (!p)
		return;
	if (p->wq)
		destroy_workqueue(p->wq);
	while (p->size)
		__free_page(p->pages[--p->size]);
	kvfree(p->entries);
	kvfree(p->pages);
	kfree(p);
	d->pool = NULL;
}

void ebb_writeback_usage(const struct ebb_device *d, u64 *size, u64 *used)
{
	const struct ebb_pool *p = d->pool;

	*size = p ? (u64)p->size << PAGE_SHIFT : 0;
	*used = p ? (u64)(p->size - READ_ONCE(p->free_pages)) << PAGE_SHIFT : 0;
}

struct ebb_writeback *ebb_writeback_alloc(struct ebb_device *d, const struct ebb_span *span)
{
	struct ebb_pool *p = d->pool;
	struct ebb_writeback *b = NULL;
	unsigned long flags;

	spin_lock_irqsave(&p->lock, flags);
	if (!list_empty(&p->free) && p->free_pages >= span->count) {
		b = list_first_entry(&p->free, struct ebb_writeback, span.node);
		list_del(&b->span.node);
		p->free_pages -= span->count;
		memcpy(b->pages, p->pages + p->free_pages, span->count * sizeof(*b->pages));
	}
	spin_unlock_irqrestore(&p->lock, flags);
	if (b)
		b->span = (struct ebb_span){
			.first = span->first, .count = span->count, .class = span->class,
			.writeback = true,
		};
	return b;
}

void ebb_writeback_put(struct ebb_writeback *b)
{
	struct ebb_pool *p = b->device->pool;
	unsigned long flags;

	spin_lock_irqsave(&p->lock, flags);
	memcpy(p->pages + p->free_pages, b->pages, b->span.count * sizeof(*b->pages));
	p->free_pages += b->span.count;
	list_add(&b->span.node, &p->free);
	/* Wake up under the lock: the waiter frees the pool. */
	if (p->free_pages == p->size)
		wake_up_all(&p->empty);
	spin_unlock_irqrestore(&p->lock, flags);
}

static u64 mask(u32 from, u32 count)
{
	return (~0ull >> (64 - count)) << from;
}

void ebb_writeback_begin(struct ebb_slab *slab, struct ebb_writeback *b)
{
	b->slab = slab;
	b->live = mask(0, b->span.count);
	b->stuck = false;
	list_add_tail(&b->span.node, &slab->active);
}

void ebb_writeback_queue(struct ebb_writeback *b)
{
	ebb_count(b->device, BEHIND, b->span.count);
	queue_delayed_work(b->device->pool->wq, &b->work, 0);
}

void ebb_writeback_supersede(struct ebb_slab *slab, const struct ebb_span *span)
{
	struct ebb_span *other;

	list_for_each_entry(other, &slab->stuck, node) {
		struct ebb_writeback *b = container_of(other, struct ebb_writeback, span);
		u64 from = max(other->first, span->first);
		u64 end = min(other->first + other->count, span->first + span->count);

		if (from < end)
			b->live &= ~mask(from - other->first, end - from);
	}
}

static struct ebb_writeback *find_in(struct list_head *list, u64 page)
{
	struct ebb_span *span;

	list_for_each_entry(span, list, node) {
		struct ebb_writeback *b = container_of(span, struct ebb_writeback, span);

		if (span->writeback && page >= span->first && page < span->first + span->count &&
		    b->live & mask(page - span->first, 1))
			return b;
	}
	return NULL;
}

struct ebb_writeback *ebb_writeback_find(struct ebb_slab *slab, u64 page, u32 *run)
{
	struct ebb_writeback *b = find_in(&slab->active, page) ?: find_in(&slab->stuck, page);
	u32 n = 0;

	if (!b)
		return NULL;
	for (u64 at = page - b->span.first; n < *run && at < b->span.count; at++, n++)
		if (!(b->live & mask(at, 1)))
			break;
	*run = n;
	return b;
}

/* Advances *@from to the next page of @b to be written; returns how many follow in a row. */
static u32 next_run(const struct ebb_writeback *b, u32 *from)
{
	const unsigned long *pool = b->device->bits[AT_POOL];
	u32 n = 0;

	for (; *from < b->span.count; (*from)++)
		if (b->live & mask(*from, 1) && test_bit(b->span.first + *from, pool))
			break;
	while (*from + n < b->span.count && b->live & mask(*from + n, 1) &&
	       test_bit(b->span.first + *from + n, pool))
		n++;
	return n;
}

static int write_run(struct ebb_writeback *b, u32 from, u32 count)
{
	int r;

	/* Swap-out waits for a free pool: as direct I/O, not subject to writeback throttling. */
	bio_init(&b->bio, b->device->backup.bdev, b->vecs, EBB_IO_PAGES,
		 REQ_OP_WRITE | REQ_SYNC | REQ_IDLE | REQ_SWAP);
	b->bio.bi_iter.bi_sector = (b->span.first + from) << (PAGE_SHIFT - SECTOR_SHIFT);
	for (u32 i = 0; i < count; i++)
		__bio_add_page(&b->bio, b->pages[from + i], PAGE_SIZE, 0);
	r = submit_bio_wait(&b->bio);
	bio_uninit(&b->bio);
	if (r)
		ebb_count(b->device, BACKUP_ERRORS, 1);
	return r;
}

static bool at_one_of(const struct ebb_device *d, u64 page, u32 places)
{
	for (int at = 0; at < AT_PLACES; at++)
		if (places & BIT(at) && test_bit(page, d->bits[at]))
			return true;
	return false;
}

/* Records that the run was written, or failed with @error.  slab->lock is held. */
static void settle_run(struct ebb_writeback *b, u32 from, u32 count, int error)
{
	unsigned long **bits = b->device->bits;
	/* The bits of a session that has ended are about to be cleared. */
	u32 live = ebb_hold_live(ebb_slab_hold(b->device, b->slab, b->span.class));

	for (u64 page = b->span.first + from; count--; page++, from++) {
		/* Discarded since. */
		if (!test_bit(page, bits[AT_POOL]))
			continue;
		if (!error)
			__set_bit(page, bits[AT_BACKUP]);
		else if (!at_one_of(b->device, page, live))
			continue;
		__clear_bit(page, bits[AT_POOL]);
		b->live &= ~mask(from, 1);
	}
}

/* Makes the span active again; false = another span conflicts. */
static bool unstick(struct ebb_writeback *b)
{
	struct ebb_slab *slab = b->slab;
	unsigned long flags;
	bool may;

	spin_lock_irqsave(&slab->lock, flags);
	may = ebb_span_try(slab, &b->span);
	if (may)
		b->stuck = false;
	spin_unlock_irqrestore(&slab->lock, flags);
	return may;
}

/* Keeps @b for a retry; until then it conflicts with no request. */
static void stick(struct ebb_writeback *b)
{
	b->stuck = true;
	ebb_span_end(b->slab, &b->span, &b->slab->stuck);
	queue_delayed_work(b->device->pool->wq, &b->work, RETRY);
}

static void write_back(struct ebb_writeback *b)
{
	struct ebb_device *d = b->device;
	struct ebb_slab *slab = b->slab;
	struct ebb_hold *hold = ebb_slab_hold(d, slab, b->span.class);
	bool stopping = READ_ONCE(d->pool->stopping), left, elsewhere;
	u64 end = b->span.first + b->span.count;
	unsigned long flags;
	u32 from = 0, count;

	if (b->stuck && !unstick(b)) {
		queue_delayed_work(d->pool->wq, &b->work, RETRY);
		return;
	}
	for (;; from += count) {
		int r;

		spin_lock_irqsave(&slab->lock, flags);
		count = next_run(b, &from);
		spin_unlock_irqrestore(&slab->lock, flags);
		if (!count)
			break;
		r = write_run(b, from, count);
		spin_lock_irqsave(&slab->lock, flags);
		settle_run(b, from, count, r);
		spin_unlock_irqrestore(&slab->lock, flags);
		if (!r)
			ebb_count(d, WRITE_BACKUP, count);
	}
	spin_lock_irqsave(&slab->lock, flags);
	from = 0;
	left = next_run(b, &from);
	elsewhere = false;
	for (int i = 0; i < EBB_COPIES; i++)
		elsewhere |= hold->at[i].session &&
			     find_next_zero_bit(d->bits[i], end, b->span.first) < end;
	spin_unlock_irqrestore(&slab->lock, flags);
	if (left && !stopping) {
		stick(b);
		return;
	}
	ebb_span_end(slab, &b->span, NULL);
	/* A donor that was mapped since lacks these pages. */
	if (elsewhere)
		ebb_copier_kick(d);
	/* Last: a waiter for the empty pool frees the device. */
	ebb_writeback_put(b);
}

static void writeback_work(struct work_struct *work)
{
	/* Swap-out waits for a free pool: use the reserves for it. */
	unsigned int flags = memalloc_noreclaim_save();

	write_back(container_of(work, struct ebb_writeback, work.work));
	memalloc_noreclaim_restore(flags);
}
