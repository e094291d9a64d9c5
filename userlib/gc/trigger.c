// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include "far_room.h"
#include "os.h"
#include "safepoint.h"
#include "trigger.h"

/* The share of the room above live bytes that is used before concurrent marking starts. */
#define CONCURRENT_SHARE 0.5
#define TRIGGER_MIN ((uint64_t)1 << 20)
/* With a nursery and finalizers: the multiple that may be allocated before the next cycle. */
#define LATEST 16
/* The multiple of that room that may be used before allocation waits for the collector. */
#define STALL_SHARE 1.5

static uint64_t external_bytes(const struct ebbgc_heap *h)
{
	int64_t bytes = __atomic_load_n(&h->external, __ATOMIC_RELAXED);

	return bytes > 0 ? (uint64_t)bytes : 0;
}

void trigger_set(struct ebbgc_heap *h, uint64_t live)
{
	const struct ebbgc_options *o = &h->options;
	uint64_t aim = o->max_bytes, full, room, stall, young, now;

	if (o->sizing == EBBGC_GROWABLE) {
		/* Bytes outside of the heap take part of what it may grow by. */
		double wanted = (double)(live + external_bytes(h)) * o->growth +
				(double)o->nursery_bytes;

		if (wanted < (double)o->min_bytes)
			wanted = (double)o->min_bytes;
		if (wanted < (double)o->max_bytes)
			aim = (uint64_t)wanted;
	}
	h->target = aim;
	room = aim > live ? aim - live : 0;
	/* Garbage is in local memory. */
	if (h->far.on && room > h->far.window << REGION_SHIFT)
		room = h->far.window << REGION_SHIFT;
	if (room < TRIGGER_MIN)
		room = TRIGGER_MIN;
	stall = room;
	if (o->mode != EBBGC_STOP_WORLD) {
		stall = (uint64_t)((double)room * STALL_SHARE);
		young = o->nursery_bytes < room ? o->nursery_bytes : room;
		room = young + (uint64_t)((double)(room - young) * CONCURRENT_SHARE);
	}
	now = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&h->trigger, now + room, __ATOMIC_RELAXED);
	h->nursery.latest = now + LATEST * room;
	/* Allocation in a fixed heap waits when the heap is full. */
	__atomic_store_n(&h->stall_at, o->sizing == EBBGC_FIXED ? UINT64_MAX : now + stall,
			 __ATOMIC_RELAXED);
	if (h->suspended) {
		__atomic_store_n(&h->trigger, UINT64_MAX, __ATOMIC_RELAXED);
		h->nursery.latest = UINT64_MAX;
		__atomic_store_n(&h->stall_at, UINT64_MAX, __ATOMIC_RELAXED);
	}
	/* The room until allocation waits for the collector, within max_bytes. */
	full = o->max_bytes > live ? o->max_bytes - live : 0;
	if (o->sizing == EBBGC_FIXED || stall > full)
		stall = full;
	__atomic_store_n(&h->room, stall, __ATOMIC_RELAXED);
	__atomic_store_n(&h->room_end, now + stall, __ATOMIC_RELAXED);
}

/* Subtracts bytes, but leaves at least @least. */
static void subtract(uint64_t *value, uint64_t bytes, uint64_t least)
{
	uint64_t was = __atomic_load_n(value, __ATOMIC_RELAXED);
	uint64_t most = was > least ? was - least : 0;

	__atomic_store_n(value, was - (bytes < most ? bytes : most), __ATOMIC_RELAXED);
}

void trigger_lower(struct ebbgc_heap *h, uint64_t bytes)
{
	const struct ebbgc_options *o = &h->options;
	uint64_t over = h->target + bytes > o->max_bytes ? h->target + bytes - o->max_bytes : 0;
	uint64_t now = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	double share = o->mode == EBBGC_STOP_WORLD ? 1 : CONCURRENT_SHARE;

	if (h->suspended)
		return;
	if (over > bytes)
		over = bytes;
	subtract(&h->trigger, (uint64_t)((double)over * share), now);
	subtract(&h->room_end, over, now);
	subtract(&h->room, over, 1);
}

void cycle_request(struct ebbgc_heap *h)
{
	h->requested++;
	pthread_cond_signal(&h->wanted);
}

void minor_request(struct ebbgc_heap *h)
{
	h->nursery.requested = true;
	pthread_cond_signal(&h->nursery.wanted);
}

static void add(uint64_t *value, uint64_t bytes)
{
	uint64_t was = __atomic_load_n(value, __ATOMIC_RELAXED);

	__atomic_store_n(value, was < UINT64_MAX - bytes ? was + bytes : UINT64_MAX,
			 __ATOMIC_RELAXED);
}

/* Lock held: sets the next minor cycle's trigger. */
static void nursery_set(struct ebbgc_heap *h)
{
	uint64_t now = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	bool none = !h->nursery.old || h->suspended;

	__atomic_store_n(&h->nursery.at, none ? UINT64_MAX : now + h->options.nursery_bytes,
			 __ATOMIC_RELAXED);
}

void minor_ended(struct ebbgc_heap *h, uint64_t bytes)
{
	uint64_t trigger = __atomic_load_n(&h->trigger, __ATOMIC_RELAXED);

	/* The next cycle begins so much later, but finalizers of old objects wait for it. */
	if (h->finalizers.count && trigger < h->nursery.latest &&
	    bytes > h->nursery.latest - trigger)
		__atomic_store_n(&h->trigger, h->nursery.latest, __ATOMIC_RELAXED);
	else if (!h->finalizers.count || trigger < h->nursery.latest)
		add(&h->trigger, bytes);
	add(&h->stall_at, bytes);
	add(&h->room_end, bytes);
	if (h->marking)
		h->allocated_at_snapshot += bytes;
	h->nursery.requested = false;
	h->finalizers.old = h->finalizers.count;
	h->nursery.since = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	pthread_cond_broadcast(&h->done);
	nursery_set(h);
}

void allocated_add(struct ebbgc_heap *h, size_t bytes)
{
	uint64_t now = __atomic_add_fetch(&h->allocated_bytes, bytes, __ATOMIC_RELAXED);

	if (now >= h->trigger && h->requested == h->ended)
		cycle_request(h);
	if (now >= h->nursery.at && !h->nursery.requested)
		minor_request(h);
}

void allocated_count(struct mutator *m, size_t bytes)
{
	struct ebbgc_heap *h = m->heap;
	uint64_t now;

	/* Runs are short in a fragmented heap: do not write a shared cache line for each. */
	m->uncounted += bytes;
	if (m->uncounted < RUN_BYTES)
		return;
	now = __atomic_add_fetch(&h->allocated_bytes, m->uncounted, __ATOMIC_RELAXED);
	m->uncounted = 0;
	if ((now < __atomic_load_n(&h->trigger, __ATOMIC_RELAXED) &&
	     now < __atomic_load_n(&h->nursery.at, __ATOMIC_RELAXED)) || os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	allocated_add(h, 0);
	pthread_mutex_unlock(&h->lock);
}

struct wait {
	struct mutator *m;
	const uint64_t *served;
	uint64_t ticket;
};

static void *wait_served(void *arg)
{
	struct wait *w = arg;
	struct ebbgc_heap *h = w->m->heap;

	mutator_block(w->m);
	__atomic_fetch_add(&h->waiting, 1, __ATOMIC_RELAXED);
	mutator_lend(w->m);
	while (*w->served < w->ticket)
		mutator_wait(h, &h->done);
	__atomic_fetch_sub(&h->waiting, 1, __ATOMIC_RELAXED);
	mutator_unblock(w->m);
	return NULL;
}

void cycle_wait(struct ebbgc_heap *h, struct mutator *m)
{
	struct wait w = { m, &h->ended, h->requested };

	with_stack(m, wait_served, &w);
}

void cycle_wait_full(struct ebbgc_heap *h, struct mutator *m)
{
	struct wait w = { m, &h->ended_full, ++h->requested_full };

	cycle_request(h);
	with_stack(m, wait_served, &w);
}

static void *wait_minor(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;

	mutator_block(m);
	mutator_lend(m);
	while (h->nursery.requested)
		mutator_wait(h, &h->done);
	mutator_unblock(m);
	return NULL;
}

/* Is the young part twice as large as it should become? */
static bool is_overgrown(const struct ebbgc_heap *h, uint64_t allocated)
{
	uint64_t at = __atomic_load_n(&h->nursery.at, __ATOMIC_RELAXED);

	return allocated > at && allocated - at > h->options.nursery_bytes;
}

static void *wait_room(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;
	uint64_t round = h->far.rounds;

	mutator_block(m);
	mutator_lend(m);
	h->far.births++;
	while (h->far.rounds == round && !h->far.stuck &&
	       __atomic_load_n(&h->far.short_of, __ATOMIC_RELAXED))
		mutator_wait(h, &h->far.made_room);
	h->far.births--;
	mutator_unblock(m);
	return NULL;
}

/* New objects wait until regions have left, if any can. */
static void far_pace(struct mutator *m)
{
	struct ebbgc_heap *h = m->heap;
	uint64_t since;

	if (os_forked(h->pid))
		return;
	since = os_now();
	pthread_mutex_lock(&h->lock);
	if (!h->far.stuck && far_local(h) > far_limit(h)) {
		pthread_cond_broadcast(&h->far.wanted);
		with_stack(m, wait_room, m);
		h->stats.stalls++;
		h->stats.stall_total_ns += os_now() - since;
	}
	pthread_mutex_unlock(&h->lock);
}

void allocation_pace(struct mutator *m)
{
	struct ebbgc_heap *h = m->heap;
	uint64_t since, allocated;
	bool overgrown, full;

	ebbgc_poll(&m->public);
	if (EBBGC_UNLIKELY(__atomic_load_n(&h->far.short_of, __ATOMIC_RELAXED)))
		far_pace(m);
	allocated = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	overgrown = is_overgrown(h, allocated);
	full = allocated >= __atomic_load_n(&h->stall_at, __ATOMIC_RELAXED);
	if (!(overgrown || full) || os_forked(h->pid))
		return;
	since = os_now();
	pthread_mutex_lock(&h->lock);
	if (overgrown) {
		with_stack(m, wait_minor, m);
	} else {
		if (h->requested == h->ended)
			cycle_request(h);
		cycle_wait(h, m);
	}
	h->stats.stalls++;
	h->stats.stall_total_ns += os_now() - since;
	pthread_mutex_unlock(&h->lock);
}

int ebbgc_collect(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (os_forked(m->heap->pid))
		return -ECHILD;
	pthread_mutex_lock(&m->heap->lock);
	cycle_wait_full(m->heap, m);
	pthread_mutex_unlock(&m->heap->lock);
	return 0;
}

void ebbgc_collect_start(ebbgc_mutator_t *mutator)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;

	if (os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	/* The current cycle may have taken its snapshot already. */
	if (h->requested == h->begun)
		cycle_request(h);
	pthread_mutex_unlock(&h->lock);
}

void ebbgc_cycles_suspend(ebbgc_mutator_t *mutator)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;

	if (os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	h->suspended++;
	/* First, as other threads run while this one waits: they must request none. */
	trigger_set(h, h->stats.live_bytes);
	nursery_set(h);
	/* Also those that were requested before. */
	if (h->requested != h->ended)
		cycle_wait(h, mutator_of(mutator));
	if (h->nursery.requested)
		with_stack(mutator_of(mutator), wait_minor, mutator_of(mutator));
	pthread_mutex_unlock(&h->lock);
}

void ebbgc_cycles_resume(ebbgc_mutator_t *mutator)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;

	if (os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	if (h->suspended)
		h->suspended--;
	trigger_set(h, h->stats.live_bytes);
	nursery_set(h);
	pthread_mutex_unlock(&h->lock);
}

void ebbgc_external_bytes(ebbgc_mutator_t *mutator, int64_t bytes)
{
	struct mutator *m = mutator_of(mutator);

	__atomic_fetch_add(&m->heap->external, bytes, __ATOMIC_RELAXED);
	if (bytes > 0)
		allocated_count(m, (size_t)bytes);
}

int ebbgc_heap_each(ebbgc_mutator_t *mutator, void (*fn)(void *arg, ebbgc_ref_t object), void *arg)
{
	struct mutator *m = mutator_of(mutator);
	struct ebbgc_heap *h = m->heap;
	int r = 0;

	if (os_forked(h->pid))
		return -ECHILD;
	/* Far objects have no address. */
	if (h->far.on)
		return -ENOTSUP;
	pthread_mutex_lock(&h->lock);
	if (h->each) {
		r = -EBUSY;
	} else {
		/* The next full cycle that ends calls fn, once. */
		h->each = fn;
		h->each_arg = arg;
		cycle_wait_full(h, m);
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}
