// SPDX-License-Identifier: GPL-2.0-only
/*
 * Write-behind.  A write whose copies are a donor's and the backup's is acknowledged
 * when the donor has it and a copy of it is here; the copy goes to the backup on its
 * own.  The pool never grows: a write that finds it full waits for the backup.
 *
 * Acknowledged pages are always in some place.  If the backup refuses a copy while
 * the donor has the page, the copy goes; if no donor has it any more, the copy stays
 * and is tried again ("stuck").  A stuck copy is no active span: nobody waits for
 * a broken disk, and who writes its pages makes that part of it void.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "internal.h"

/* Requests at once to the backup; more would only wait in its queue. */
#define AT_ONCE 16
#define PAGES_AN_ENTRY 8
#define RETRY HZ

struct ebb_pool {
	spinlock_t lock; /* interrupts off; innermost */
	struct list_head free;
	u32 size, free_pages;
	struct page **pages; /* [0, free_pages) are free */
	struct ebb_behind *entries;
	struct workqueue_struct *wq;
	wait_queue_head_t empty;
	bool stopping;
};

static void behind_work(struct work_struct *work);

int pool_init(struct ebb_device *d, u32 pages)
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
	p->wq = alloc_workqueue("ebb%u-behind", WQ_MEM_RECLAIM | WQ_UNBOUND, AT_ONCE, d->index);
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
		INIT_DELAYED_WORK(&p->entries[i].work, behind_work);
		list_add_tail(&p->entries[i].span.node, &p->free);
	}
	return 0;
}

void pool_stop(struct ebb_device *d)
{
	if (!d->pool)
		return;
	WRITE_ONCE(d->pool->stopping, true);
	wait_event(d->pool->empty, READ_ONCE(d->pool->free_pages) == d->pool->size);
}

void pool_free(struct ebb_device *d)
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

void pool_told(const struct ebb_device *d, u64 *size, u64 *used)
{
	const struct ebb_pool *p = d->pool;

	*size = p ? (u64)p->size << PAGE_SHIFT : 0;
	*used = p ? (u64)(p->size - READ_ONCE(p->free_pages)) << PAGE_SHIFT : 0;
}

struct ebb_behind *behind_take(struct ebb_device *d, const struct ebb_span *span)
{
	struct ebb_pool *p = d->pool;
	struct ebb_behind *b = NULL;
	unsigned long flags;

	spin_lock_irqsave(&p->lock, flags);
	if (!list_empty(&p->free) && p->free_pages >= span->count) {
		b = list_first_entry(&p->free, struct ebb_behind, span.node);
		list_del(&b->span.node);
		p->free_pages -= span->count;
		memcpy(b->pages, p->pages + p->free_pages, span->count * sizeof(*b->pages));
	}
	spin_unlock_irqrestore(&p->lock, flags);
	if (b)
		b->span = (struct ebb_span){
			.first = span->first, .count = span->count, .class = span->class,
			.behind = true,
		};
	return b;
}

void behind_put(struct ebb_behind *b)
{
	struct ebb_pool *p = b->device->pool;
	unsigned long flags;

	spin_lock_irqsave(&p->lock, flags);
	memcpy(p->pages + p->free_pages, b->pages, b->span.count * sizeof(*b->pages));
	p->free_pages += b->span.count;
	list_add(&b->span.node, &p->free);
	/* Under the lock: who waits frees it. */
	if (p->free_pages == p->size)
		wake_up_all(&p->empty);
	spin_unlock_irqrestore(&p->lock, flags);
}

static u64 mask(u32 from, u32 count)
{
	return (~0ull >> (64 - count)) << from;
}

void behind_begin(struct ebb_slab *slab, struct ebb_behind *b)
{
	b->slab = slab;
	b->live = mask(0, b->span.count);
	b->stuck = false;
	list_add_tail(&b->span.node, &slab->active);
}

void behind_go(struct ebb_behind *b)
{
	ebb_count(b->device, BEHIND, b->span.count);
	queue_delayed_work(b->device->pool->wq, &b->work, 0);
}

void behind_supersede(struct ebb_slab *slab, const struct ebb_span *span)
{
	struct ebb_span *other;

	list_for_each_entry(other, &slab->stuck, node) {
		struct ebb_behind *b = container_of(other, struct ebb_behind, span);
		u64 from = max(other->first, span->first);
		u64 end = min(other->first + other->count, span->first + span->count);

		if (from < end)
			b->live &= ~mask(from - other->first, end - from);
	}
}

static struct ebb_behind *find_in(struct list_head *list, u64 page)
{
	struct ebb_span *span;

	list_for_each_entry(span, list, node) {
		struct ebb_behind *b = container_of(span, struct ebb_behind, span);

		if (span->behind && page >= span->first && page < span->first + span->count &&
		    b->live & mask(page - span->first, 1))
			return b;
	}
	return NULL;
}

struct ebb_behind *behind_find(struct ebb_slab *slab, u64 page, u32 *run)
{
	struct ebb_behind *b = find_in(&slab->active, page) ?: find_in(&slab->stuck, page);
	u32 n = 0;

	if (!b)
		return NULL;
	for (u64 at = page - b->span.first; n < *run && at < b->span.count; at++, n++)
		if (!(b->live & mask(at, 1)))
			break;
	*run = n;
	return b;
}

/* The pages of @b from *@from on that are to be written; how many. */
static u32 next_run(const struct ebb_behind *b, u32 *from)
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

static int write_run(struct ebb_behind *b, u32 from, u32 count)
{
	int r;

	bio_init(&b->bio, b->device->backup.bdev, b->vecs, EBB_IO_PAGES, REQ_OP_WRITE);
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

/* The run was written, or not.  slab->lock is held. */
static void settle_run(struct ebb_behind *b, u32 from, u32 count, int error)
{
	unsigned long **bits = b->device->bits;
	/* The bits of one that is over are about to go. */
	u32 live = hold_live(slab_hold(b->device, b->slab, b->span.class));

	for (u64 page = b->span.first + from; count--; page++, from++) {
		/* Discarded meanwhile. */
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

/* True: the span is active again, and what it wrote stands. */
static bool unstick(struct ebb_behind *b)
{
	struct ebb_slab *slab = b->slab;
	unsigned long flags;
	bool may;

	spin_lock_irqsave(&slab->lock, flags);
	may = !span_conflicts(slab, &b->span);
	if (may) {
		list_move_tail(&b->span.node, &slab->active);
		b->stuck = false;
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	return may;
}

/* It is kept, and in nobody's way. */
static void stick(struct ebb_behind *b)
{
	b->stuck = true;
	span_end(b->slab, &b->span, &b->slab->stuck);
	queue_delayed_work(b->device->pool->wq, &b->work, RETRY);
}

static void behind_work(struct work_struct *work)
{
	struct ebb_behind *b = container_of(work, struct ebb_behind, work.work);
	struct ebb_device *d = b->device;
	struct ebb_slab *slab = b->slab;
	struct ebb_hold *hold = slab_hold(d, slab, b->span.class);
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
	span_end(slab, &b->span, NULL);
	/* A donor that the slab has now lacks it. */
	if (elsewhere)
		copier_kick(d);
	/* Last: who waits for the empty pool frees the device. */
	behind_put(b);
}
