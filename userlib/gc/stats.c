// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Statistics. */
#include <math.h>
#include <string.h>
#include "far_room.h"
#include "heap.h"
#include "notes.h"
#include "os.h"
#include "region.h"
#include "stats.h"

/* Bucket i holds pauses below 2^((i + 1) / 4) ns. */
static unsigned int bucket_of(uint64_t ns)
{
	double i = ns > 1 ? floor(4 * log2((double)ns)) : 0;

	return i < PAUSE_BUCKETS - 1 ? (unsigned int)i : PAUSE_BUCKETS - 1;
}

void stats_count_pause(struct ebbgc_heap *h, uint64_t ns)
{
	h->stats.pauses++;
	h->stats.pause_total_ns += ns;
	if (ns > h->stats.pause_max_ns)
		h->stats.pause_max_ns = ns;
	h->pause_histogram[bucket_of(ns)]++;
}

void stats_add(struct ebbgc_heap *h)
{
	h->stats.marked_objects += h->counting.marked_objects;
	h->stats.weak_cleared += h->counting.weak_cleared;
	h->stats.ephemerons_cleared += h->counting.ephemerons_cleared;
	h->stats.finalizers_ready += h->counting.finalizers_ready;
	h->stats.remarks += h->counting.remarks;
	h->stats.moved_objects += h->counting.moved_objects;
	h->stats.moved_bytes += h->counting.moved_bytes;
	h->stats.pinned_objects += h->counting.pinned_objects;
	h->stats.checks += h->counting.checks;
	h->stats.check_failures += h->counting.check_failures;
	h->counting = (struct ebbgc_stats){ 0 };
}

void stats_add_thread(struct ebbgc_heap *h, const struct mutator *m)
{
	h->far.fetched += m->far.fetched;
	h->far.fetched_bytes += m->far.fetched_bytes;
	h->far.rescued += m->far.rescued;
	h->far.healed += m->far.healed;
}

/* Lock held. */
static void far_count(const struct ebbgc_heap *h, struct ebbgc_stats *s)
{
	const struct far *f = &h->far;

	s->far_regions = f->out;
	s->far_bytes = f->stored;
	s->far_lost_bytes = f->lost;
	s->far_local_bytes = f->on ? (far_local(h) << REGION_SHIFT) + f->marking.tables : 0;
	s->left_regions = f->left;
	s->left_bytes = f->left_bytes;
	s->homed_objects = __atomic_load_n(&f->homed, __ATOMIC_RELAXED);
	s->far_failures = __atomic_load_n(&f->failures, __ATOMIC_RELAXED);
	s->fetched_objects = f->fetched;
	s->fetched_bytes = f->fetched_bytes;
	s->rescued_objects = f->rescued;
	s->healed_slots = f->healed;
	for (const struct mutator *m = h->mutators; m; m = m->next) {
		s->fetched_objects += __atomic_load_n(&m->far.fetched, __ATOMIC_RELAXED);
		s->fetched_bytes += __atomic_load_n(&m->far.fetched_bytes, __ATOMIC_RELAXED);
		s->rescued_objects += __atomic_load_n(&m->far.rescued, __ATOMIC_RELAXED);
		s->healed_slots += __atomic_load_n(&m->far.healed, __ATOMIC_RELAXED);
	}
}

/* Skips the lock after fork(): it may be held for ever, and no thread writes. */
static void figures_lock(struct ebbgc_heap *h)
{
	if (!os_forked(h->pid))
		pthread_mutex_lock(&h->lock);
}

static void figures_unlock(struct ebbgc_heap *h)
{
	if (!os_forked(h->pid))
		pthread_mutex_unlock(&h->lock);
}

uint64_t ebbgc_pause_quantile(ebbgc_heap_t *h, double q)
{
	uint64_t wanted, seen = 0, ns = 0;

	q = fmin(fmax(q, 0), 1);
	figures_lock(h);
	wanted = (uint64_t)ceil(q * (double)h->stats.pauses);
	for (unsigned int i = 0; i < PAUSE_BUCKETS && h->stats.pauses; i++) {
		seen += h->pause_histogram[i];
		if (seen >= wanted && seen) {
			ns = (uint64_t)exp2((i + 1) / 4.0);
			break;
		}
	}
	if (ns > h->stats.pause_max_ns)
		ns = h->stats.pause_max_ns;
	figures_unlock(h);
	return ns;
}

void ebbgc_stats_get(ebbgc_heap_t *h, struct ebbgc_stats *stats, size_t size)
{
	const uint64_t per_region = regions_side_bytes(h);
	struct ebbgc_stats now;

	figures_lock(h);
	now = h->stats;
	now.allocated_bytes = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	now.logged_references = __atomic_load_n(&h->logged_references, __ATOMIC_RELAXED);
	now.heap_bytes = (uint64_t)h->used << REGION_SHIFT;
	now.side_bytes = h->top * per_region;
	now.epoch_source = h->epoch.source;
	now.residency = h->residency.kind;
	now.epoch = epoch_now(&h->epoch);
	now.scans = __atomic_load_n(&h->residency.scans, __ATOMIC_RELAXED);
	now.scan_total_ns = __atomic_load_n(&h->residency.scan_ns, __ATOMIC_RELAXED);
	notes_count(h, &now.noted, &now.noted_lost);
	now.arrivals_shared = h->arrivals.ring != NULL;
	now.arrivals = __atomic_load_n(&h->arrivals.taken, __ATOMIC_RELAXED);
	now.arrivals_lost = __atomic_load_n(&h->arrivals.lost, __ATOMIC_RELAXED);
	now.hint_calls = __atomic_load_n(&h->hint_calls, __ATOMIC_RELAXED);
	now.hinted_pages = __atomic_load_n(&h->hinted_pages, __ATOMIC_RELAXED);
	now.allocation_faults = __atomic_load_n(&h->allocation_faults, __ATOMIC_RELAXED);
	now.side_locked = h->side_locked * per_region;
	far_count(h, &now);
	figures_unlock(h);
	memset(stats, 0, size);
	memcpy(stats, &now, size < sizeof(now) ? size : sizeof(now));
}
