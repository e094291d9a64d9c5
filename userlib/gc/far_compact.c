// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "far_compact.h"
#include "far_image.h"
#include "fetch.h"

static uint32_t size_of(const struct ebbgc_heap *h, uint32_t region)
{
	return (uint32_t)h->slot_size[h->kinds[region]];
}

static size_t tablet_size(const struct ebbgc_heap *h, uint32_t region)
{
	return tablet_words(tablet_slots(size_of(h, region))) *
	       (sizeof(uint64_t) + sizeof(uint16_t));
}

bool far_stored_make(struct ebbgc_heap *h, uint32_t region, struct far_stored *s)
{
	*s = (struct far_stored){ .tablet = calloc(1, tablet_size(h, region)) };
	if (!s->tablet)
		return false;
	__atomic_fetch_add(&h->far.tables, tablet_size(h, region), __ATOMIC_RELAXED);
	return true;
}

void far_stored_drop(struct ebbgc_heap *h, uint32_t region, struct far_stored *s)
{
	if (s->tablet)
		__atomic_fetch_sub(&h->far.tables, tablet_size(h, region), __ATOMIC_RELAXED);
	free(s->tablet);
	free(s->shadow);
	*s = (struct far_stored){ 0 };
}

bool far_compacts(const struct ebbgc_heap *h)
{
	const struct ebbgc_far_jobs *j = h->far.store.jobs;

	return j && j->struct_size > offsetof(struct ebbgc_far_jobs, compact) && j->compact;
}

/* Fills in the tablet, size and shadow of what is left.  Returns false without memory. */
static bool keep(struct ebbgc_heap *h, uint32_t region, const struct far_stored *from,
		 struct far_stored *to)
{
	uint32_t size = size_of(h, region), slots = tablet_slots(size);
	const uint64_t *allocated = h->allocated + (size_t)region * REGION_WORDS;

	if (!far_stored_make(h, region, to))
		return false;
	to->shadow = from->shadow ? malloc(from->bytes) : NULL;
	if (from->shadow && !to->shadow)
		return false;
	for (uint32_t i = tablet_next(from->tablet, slots, 0); i < slots;
	     i = tablet_next(from->tablet, slots, i + 1)) {
		size_t granule = (size_t)i * (size >> GRANULE_SHIFT);

		if (!bit_test(allocated, granule))
			continue;
		to->tablet[i / 64] |= UINT64_C(1) << i % 64;
		if (to->shadow)
			memcpy(to->shadow + to->bytes,
			       from->shadow + far_offset(h, from, i, h->kinds[region]), size);
		to->bytes += size;
	}
	tablet_index(to->tablet, slots, (uint16_t *)(to->tablet + tablet_words(slots)));
	return true;
}

int far_compact(struct ebbgc_heap *h, uint32_t region, unsigned int wait_ms)
{
	const struct ebbgc_far_store *s = &h->far.store;
	struct far_region *r = &h->far.regions[region];
	struct far_stored *old = &r->stored[r->now], *now = &r->stored[!r->now];
	uint64_t none[REGION_WORDS] = { 0 };
	const struct ebbgc_far_region from = {
		.region = region, .slot_bytes = size_of(h, region),
		.leaf = kind_is_leaf(h->kinds[region]), .place = old->place, .live = old->tablet,
		.gone = none };
	int e = keep(h, region, old, now) ? 0 : -ENOMEM;

	if (!e && !now->bytes)
		e = -ENOENT;
	if (!e)
		e = s->jobs->compact(s->arg, &from, now->tablet, wait_ms, &now->place);
	if (e) {
		far_stored_drop(h, region, now);
		return e;
	}
	__atomic_store_n(&r->now, (uint8_t)!r->now, __ATOMIC_SEQ_CST);
	r->compacted = true;
	far_settle(h, region);
	if (s->free(s->arg, &old->place))
		__atomic_fetch_add(&h->far.failures, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&h->lock);
	h->far.stored -= old->bytes - now->bytes;
	h->stats.far_compacted_regions++;
	h->stats.far_compacted_bytes += old->bytes - now->bytes;
	pthread_mutex_unlock(&h->lock);
	far_stored_drop(h, region, old);
	return 0;
}
