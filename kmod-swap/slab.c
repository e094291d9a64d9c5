// SPDX-License-Identifier: GPL-2.0-only
#include <linux/bitmap.h>
#include <linux/mm.h>

#include "class.h"
#include "session.h"
#include "slab.h"

int ebb_slabs_init(struct ebb_device *d)
{
	d->slabs = kvcalloc(d->slab_count, sizeof(*d->slabs), GFP_KERNEL);
	if (!d->slabs)
		return -ENOMEM;
	for (int i = 0; i < EBB_BITS; i++) {
		d->bits[i] = kvcalloc(BITS_TO_LONGS(d->pages), sizeof(long), GFP_KERNEL);
		if (!d->bits[i]) {
			ebb_slabs_free(d);
			return -ENOMEM;
		}
	}
	for (u32 i = 0; i < d->slab_count; i++) {
		spin_lock_init(&d->slabs[i].lock);
		INIT_LIST_HEAD(&d->slabs[i].active);
		INIT_LIST_HEAD(&d->slabs[i].waiting);
		INIT_LIST_HEAD(&d->slabs[i].stuck);
	}
	return 0;
}

void ebb_slabs_free(struct ebb_device *d)
{
	for (int i = 0; i < EBB_BITS; i++) {
		kvfree(d->bits[i]);
		d->bits[i] = NULL;
	}
	kvfree(d->slabs);
	d->slabs = NULL;
}

enum ebb_at ebb_slab_source(const struct ebb_device *d, u64 page, u32 *run, u32 away)
{
	u64 end = page + *run;

	for (int at = 0; at < EBB_BITS; at++) {
		if (away & BIT(at))
			continue;
		if (test_bit(page, d->bits[at])) {
			*run = find_next_zero_bit(d->bits[at], end, page) - page;
			return at;
		}
		/* The run ends at the first page that a preferred place has. */
		end = find_next_bit(d->bits[at], end, page);
	}
	*run = end - page;
	return EBB_BITS;
}

bool ebb_slab_is_at(const struct ebb_device *d, u64 page, u32 places)
{
	for (int at = 0; at < AT_PLACES; at++)
		if (places & BIT(at) && test_bit(page, d->bits[at]))
			return true;
	return false;
}

void ebb_slab_written(struct ebb_device *d, u64 page, u32 count, u32 class, u32 places)
{
	ebb_class_set(d, page, count, class);
	bitmap_set(d->bits[WRITTEN], page, count);
	for (int at = 0; at < AT_PLACES; at++) {
		if (places & BIT(at))
			bitmap_set(d->bits[at], page, count);
		else
			bitmap_clear(d->bits[at], page, count);
	}
}

void ebb_slab_discard(struct ebb_device *d, u64 page, u64 count)
{
	while (count) {
		struct ebb_slab *slab = ebb_slab_of(d, page);
		u32 run = min_t(u64, count, d->slab_pages - (page & (d->slab_pages - 1)));
		unsigned long flags;

		spin_lock_irqsave(&slab->lock, flags);
		for (int i = 0; i < EBB_BITS; i++)
			bitmap_clear(d->bits[i], page, run);
		spin_unlock_irqrestore(&slab->lock, flags);
		page += run;
		count -= run;
	}
}

/* Slabs have whole words: at least 256 pages, a power of two. */
static size_t first_word(const struct ebb_device *d, u32 slab)
{
	return BIT_WORD((u64)slab << d->slab_shift);
}

u32 ebb_slab_count_only(const struct ebb_device *d, u32 slab, u32 class, enum ebb_at place,
			u32 others)
{
	size_t word = first_word(d, slab), end = word + BITS_TO_LONGS(d->slab_pages);
	u32 n = 0;

	for (; word < end; word++) {
		unsigned long only = d->bits[place][word] & ebb_class_word(d, word, class);

		for (int at = 0; at < AT_PLACES; at++)
			if (others & BIT(at))
				only &= ~d->bits[at][word];
		n += hweight_long(only);
	}
	return n;
}

u32 ebb_slab_count_unique(const struct ebb_device *d, struct ebb_slab *slab, u32 class,
			  enum ebb_at at)
{
	u32 others = BIT(AT_POOL) | BIT(AT_BACKUP) | ebb_hold_live(ebb_slab_hold(d, slab, class));

	return at == AT_DONORS ? 0 :
	       ebb_slab_count_only(d, slab - d->slabs, class, at, others & ~BIT(at));
}

/* Places that the copier copies to. */
static const enum ebb_at targets[] = { AT_DONOR, AT_SECOND, AT_BACKUP };

/*
 * Returns the pages of a word that @to lacks.  A donor lacks pages that another place has, but gets
 * none while it is away.  Without a donor, the backup lacks pages that only the source has; the
 * pool's will reach it anyway.
 */
static unsigned long lacking_word(const struct ebb_device *d, u32 slab, u32 class, size_t word,
				  enum ebb_at to)
{
	const struct ebb_hold *hold = ebb_slab_hold(d, &d->slabs[slab], class);
	unsigned long lacking = 0;

	if (to != AT_BACKUP && hold->at[to].session && !ebb_place_away(&hold->at[to])) {
		lacking = d->bits[AT_BACKUP][word];
		for (int at = 0; at < AT_DONORS; at++)
			lacking |= d->bits[at][word];
		lacking &= ~d->bits[to][word];
	} else if (to == AT_BACKUP && !hold->at[AT_DONOR].session && hold->at[AT_SOURCE].session) {
		lacking = d->bits[AT_SOURCE][word] &
			  ~(d->bits[AT_BACKUP][word] | d->bits[AT_POOL][word]);
	}
	return lacking ? lacking & ebb_class_word(d, word, class) : 0;
}

static unsigned long wanted_word(const struct ebb_device *d, u32 slab, u32 class, size_t word)
{
	unsigned long wanted = 0;

	for (int i = 0; i < ARRAY_SIZE(targets); i++)
		wanted |= lacking_word(d, slab, class, word, targets[i]);
	return wanted;
}

u32 ebb_slab_count_lacking(const struct ebb_device *d, u32 slab, u32 class, enum ebb_at to)
{
	size_t word = first_word(d, slab), end = word + BITS_TO_LONGS(d->slab_pages);
	u32 n = 0;

	for (; word < end; word++)
		n += hweight_long(to == AT_PLACES ? wanted_word(d, slab, class, word) :
						    lacking_word(d, slab, class, word, to));
	return n;
}

static bool lacks(const struct ebb_device *d, u32 slab, u32 class, u64 page, enum ebb_at to)
{
	return lacking_word(d, slab, class, BIT_WORD(page), to) & BIT_MASK(page);
}

/*
 * Returns the place from which the copier reads a page that @to lacks: a donor, but the backup
 * rather than a donor that returned a wrong page, and that rather than one that is away.
 */
static enum ebb_at copy_of(const struct ebb_device *d, const struct ebb_hold *hold, u64 page,
			   enum ebb_at to)
{
	enum ebb_at last = AT_BACKUP;

	for (int at = 0; at < AT_DONORS; at++) {
		bool away = ebb_place_away(&hold->at[at]);

		if (at == to || !test_bit(page, d->bits[at]))
			continue;
		if (!away && !ebb_session_suspect(hold->at[at].session))
			return at;
		if (!away || last == AT_BACKUP)
			last = at;
	}
	return test_bit(page, d->bits[AT_BACKUP]) ? AT_BACKUP : last;
}

enum ebb_at ebb_slab_wanted(const struct ebb_device *d, u32 slab, u32 class, u64 *page, u32 *count,
			enum ebb_at *to)
{
	const struct ebb_hold *hold = ebb_slab_hold(d, &d->slabs[slab], class);
	u64 end = ((u64)slab + 1) << d->slab_shift, first = *page;
	unsigned long word = 0;
	enum ebb_at from;
	u32 n = 0;

	for (; first < end; first = round_down(first, BITS_PER_LONG) + BITS_PER_LONG) {
		word = wanted_word(d, slab, class, BIT_WORD(first)) & BITMAP_FIRST_WORD_MASK(first);
		if (word)
			break;
	}
	if (first >= end)
		return EBB_BITS;
	first = round_down(first, BITS_PER_LONG) + __ffs(word);
	for (int i = 0; i < ARRAY_SIZE(targets); i++) {
		*to = targets[i];
		if (lacks(d, slab, class, first, *to))
			break;
	}
	from = copy_of(d, hold, first, *to);
	for (u64 p = first; n < *count && p < end; p++, n++)
		if (!lacks(d, slab, class, p, *to) || copy_of(d, hold, p, *to) != from)
			break;
	*page = first;
	*count = n;
	return from;
}

/* Sets the class's bits of place @to to those of @from; EBB_BITS = clears them. */
static void bits_become(struct ebb_device *d, const struct ebb_slab *slab, u32 class,
			enum ebb_at to, enum ebb_at from)
{
	size_t word = first_word(d, slab - d->slabs), end = word + BITS_TO_LONGS(d->slab_pages);

	for (; word < end; word++) {
		unsigned long its = ebb_class_word(d, word, class);
		unsigned long new = from == EBB_BITS ? 0 : d->bits[from][word];

		d->bits[to][word] = (d->bits[to][word] & ~its) | (new &its);
	}
}

static void place_clear(struct ebb_device *d, struct ebb_slab *slab, u32 class, enum ebb_at at)
{
	ebb_slab_hold(d, slab, class)->at[at].session = NULL;
	bits_become(d, slab, class, at, EBB_BITS);
}

/* Turns place @from into @to, if @from is in use and @to is not. */
static void place_become(struct ebb_device *d, struct ebb_slab *slab, u32 class, enum ebb_at to,
			 enum ebb_at from)
{
	struct ebb_hold *hold = ebb_slab_hold(d, slab, class);

	if (hold->at[to].session || !hold->at[from].session)
		return;
	hold->at[to] = hold->at[from];
	bits_become(d, slab, class, to, from);
	place_clear(d, slab, class, from);
}

void ebb_slab_move(struct ebb_device *d, struct ebb_slab *slab, u32 class, enum ebb_at at,
	       const struct ebb_place *place)
{
	struct ebb_hold *hold = ebb_slab_hold(d, slab, class);

	/* During fallback to the backup a slab has only a source. */
	if (hold->at[at].session)
		place_become(d, slab, class, AT_SOURCE, at);
	if (place) {
		hold->at[at] = *place;
		hold->at[at].epoch = ++slab->epoch;
	}
	place_become(d, slab, class, AT_DONOR, AT_SECOND);
}

void ebb_slab_leave(struct ebb_device *d, struct ebb_slab *slab, u32 class)
{
	place_clear(d, slab, class, AT_SOURCE);
}

void ebb_slab_detach(struct ebb_device *d, struct ebb_slab *slab, const struct ebb_session *s)
{
	struct ebb_hold *hold = ebb_slab_hold(d, slab, s->class);
	enum ebb_at at = ebb_hold_session(hold, s);

	if (at == AT_DONORS)
		return;
	place_clear(d, slab, s->class, at);
	if (at != AT_SOURCE)
		place_become(d, slab, s->class, at, AT_SOURCE);
	place_become(d, slab, s->class, AT_DONOR, AT_SECOND);
}
