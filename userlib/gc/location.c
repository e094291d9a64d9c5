// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "barrier.h"
#include "hints.h"
#include "location.h"
#include "mark.h"
#include "object.h"
#include "os.h"

#define UPDATE_NS 5000000u	/* between updates during marking */
#define UPDATE_IDLE_NS 100000000u	/* between updates at other times */

static bool stamping(const struct ebbgc_heap *h)
{
	return h->options.mode == EBBGC_MEMLINER && !(h->options.features & EBBGC_EXACT);
}

/* Does the heap know where pages are: for marking, or for allocation only? */
static bool exact(const struct ebbgc_heap *h)
{
	return h->options.features & EBBGC_EXACT;
}

int location_create(struct ebbgc_heap *h)
{
	pthread_mutex_init(&h->update_lock, NULL);
	if (h->options.mode != EBBGC_MEMLINER)
		return exact(h) ? residency_open(&h->residency, h->options.residency, h->base,
						 h->bytes) : 0;
	if (stamping(h) || (h->options.features & (EBBGC_ARRIVALS | EBBGC_HINTS)))
		share_open(&h->share);
	if (stamping(h))
		epoch_open(&h->epoch, h->share.epoch);
	if (h->options.features & (EBBGC_ARRIVALS | EBBGC_HINTS))
		arrivals_open(&h->arrivals, h->share.arrivals);
	hints_open(h);
	if (h->options.features & (EBBGC_PARK | EBBGC_HINTS))
		advice_open(&h->advice);
	if (h->epoch.source == EBBGC_EPOCH_EBBD)
		return 0;
	return residency_open(&h->residency, h->options.residency, h->base, h->bytes);
}

void location_destroy(struct ebbgc_heap *h)
{
	advice_close(&h->advice);
	share_close(&h->share);
	residency_close(&h->residency);
}

bool location_is_scarce(const struct ebbgc_heap *h)
{
	return h->options.check || (stamping(h) ? h->stamped : residency_is_scarce(&h->residency));
}

uint64_t location_wait(const struct ebbgc_heap *h)
{
	uint64_t now = os_now(), at = __atomic_load_n(&h->update_at, __ATOMIC_RELAXED);

	/* Between cycles only hints need residency. */
	if (!stamping(h) && (!exact(h) || (!h->marking && !hints_wait(h))))
		return 0;
	return at > now ? at - now : 1;
}

void location_update(struct ebbgc_heap *h)
{
	uint64_t now, cost, wait, used, tag;

	if (!stamping(h) && !exact(h))
		return;
	now = os_now();
	if (exact(h))
		residency_tick(&h->residency, now);
	if (now < __atomic_load_n(&h->update_at, __ATOMIC_RELAXED) ||
	    pthread_mutex_trylock(&h->update_lock))
		return;
	used = used_bytes(h);
	if (h->residency.provider && used) {
		int64_t changed = residency_scan(&h->residency, used);

		if (changed > 0 && h->epoch.source == EBBGC_EPOCH_OWN)
			epoch_churn(&h->epoch, (uint64_t)changed, used >> PAGE_SHIFT,
				    h->options.epoch_percent);
	}
	tag = stamping(h) ? epoch_now(&h->epoch) << EBBGC_STAMP_SHIFT : 0;
	if (tag != __atomic_load_n(&h->tag, __ATOMIC_RELAXED)) {
		pthread_mutex_lock(&h->lock);
		__atomic_store_n(&h->tag, tag, __ATOMIC_RELAXED);
		h->stamped = true;
		barrier_set_all(h);
		pthread_mutex_unlock(&h->lock);
	}
	cost = os_now() - now;
	wait = h->marking ? UPDATE_NS : UPDATE_IDLE_NS;
	if (wait < cost * 100 / h->options.scan_percent)
		wait = cost * 100 / h->options.scan_percent;
	__atomic_store_n(&h->update_at, now + cost + wait, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&h->update_lock);
}

bool location_is_far(struct ebbgc_heap *h, uint64_t work)
{
	unsigned int age;

	if (h->options.features & EBBGC_EXACT)
		return residency_is_out(&h->residency, page_of(h, work & WORK_ADDRESS));
	age = (__atomic_load_n(&h->tag, __ATOMIC_RELAXED) - (work & ~EBBGC_ADDRESS_MASK)) >>
	      EBBGC_STAMP_SHIFT;
	/* Epochs are modulo 16; the program's may be newer than this tracer's. */
	return (age < 8 ? age : 16 - age) > h->options.delta;
}

unsigned int location_max_delays(const struct ebbgc_heap *h)
{
	uint64_t used = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	uint64_t end = __atomic_load_n(&h->room_end, __ATOMIC_RELAXED);
	uint64_t room = __atomic_load_n(&h->room, __ATOMIC_RELAXED), left;

	if (h->in_pause || __atomic_load_n(&h->waiting, __ATOMIC_RELAXED))
		return 0;
	left = end > used ? end - used : 0;
	/* If room is 0, nothing is left. */
	return h->options.delays[left * 100 > room * 50		 ? 0 :
				 left && left * 100 >= room * 15 ? 1 :
								   2];
}
