// SPDX-License-Identifier: GPL-2.0-only
#include <linux/bitmap.h>
#include <linux/mm.h>

#include "internal.h"

int slabs_init(struct ebb_device *d)
{
	size_t bytes = BITS_TO_LONGS(d->pages) * sizeof(long);

	d->slabs = kvcalloc(d->slab_count, sizeof(*d->slabs), GFP_KERNEL);
	d->written = kvzalloc(bytes, GFP_KERNEL);
	d->at_donor = kvzalloc(bytes, GFP_KERNEL);
	d->at_backup = kvzalloc(bytes, GFP_KERNEL);
	if (!d->slabs || !d->written || !d->at_donor || !d->at_backup) {
		slabs_free(d);
		return -ENOMEM;
	}
	for (u32 i = 0; i < d->slab_count; i++) {
		spin_lock_init(&d->slabs[i].lock);
		INIT_LIST_HEAD(&d->slabs[i].active);
		INIT_LIST_HEAD(&d->slabs[i].waiting);
	}
	return 0;
}

void slabs_free(struct ebb_device *d)
{
	kvfree(d->at_backup);
	kvfree(d->at_donor);
	kvfree(d->written);
	kvfree(d->slabs);
	d->at_backup = d->at_donor = d->written = NULL;
	d->slabs = NULL;
}

enum slab_source slab_source(const struct ebb_device *d, u64 page, u32 *run)
{
	u64 end = page + *run;

	if (test_bit(page, d->at_donor)) {
		*run = find_next_zero_bit(d->at_donor, end, page) - page;
		return SLAB_DONOR;
	}
	end = find_next_bit(d->at_donor, end, page);
	if (test_bit(page, d->at_backup)) {
		*run = find_next_zero_bit(d->at_backup, end, page) - page;
		return SLAB_BACKUP;
	}
	*run = find_next_bit(d->written, end, page) - page;
	return test_bit(page, d->written) ? SLAB_LOST : SLAB_ZERO;
}

static void assign(unsigned long *map, u64 page, u32 count, u32 copies, u32 copy)
{
	if (copies & copy)
		bitmap_set(map, page, count);
	else
		bitmap_clear(map, page, count);
}

void slab_written(struct ebb_device *d, u64 page, u32 count, u32 copies)
{
	bitmap_set(d->written, page, count);
	assign(d->at_donor, page, count, copies, EBB_SWAP_DONOR);
	assign(d->at_backup, page, count, copies, EBB_SWAP_BACKUP);
}

void slab_discard(struct ebb_device *d, u64 page, u64 count)
{
	while (count) {
		struct ebb_slab *slab = slab_of(d, page);
		u32 run = min_t(u64, count, d->slab_pages - (page & (d->slab_pages - 1)));
		unsigned long flags;

		spin_lock_irqsave(&slab->lock, flags);
		bitmap_clear(d->written, page, run);
		bitmap_clear(d->at_donor, page, run);
		bitmap_clear(d->at_backup, page, run);
		spin_unlock_irqrestore(&slab->lock, flags);
		page += run;
		count -= run;
	}
}

/* A slab has whole words: at least 256 pages, a power of two. */
static size_t first_word(const struct ebb_device *d, u32 slab)
{
	return BIT_WORD((u64)slab << d->slab_shift);
}

u32 slab_count_written(const struct ebb_device *d, u32 slab)
{
	return bitmap_weight(d->written + first_word(d, slab), d->slab_pages);
}

u32 slab_count_donor_only(const struct ebb_device *d, u32 slab)
{
	const unsigned long *donor = d->at_donor + first_word(d, slab);
	const unsigned long *backup = d->at_backup + first_word(d, slab);
	u32 n = 0;

	for (u32 i = 0; i < BITS_TO_LONGS(d->slab_pages); i++)
		n += hweight_long(donor[i] & ~backup[i]);
	return n;
}

void slab_detach(struct ebb_device *d, struct ebb_slab *slab)
{
	u64 page = (u64)(slab - d->slabs) << d->slab_shift;

	slab->session = NULL;
	slab->epoch++;
	bitmap_clear(d->at_donor, page, d->slab_pages);
}
