// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * The collector's own thread and its cycle:
 *
 *	sweep what is left - pause: snapshot of the roots, barriers on - mark - pause: logs,
 *	remaining marking within its budget or back beside the program; weak references,
 *	finalizers; barriers off - sweep
 *
 * A full cycle does all but the sweeping in one pause.
 */
#include <errno.h>
#include <time.h>
#include "heap.h"

/* Of the room above the live bytes, what is used before marking starts beside the program. */
#define CONCURRENT_SHARE 0.5
#define TRIGGER_MIN ((uint64_t)1 << 20)
/* Of that room, what may be used before allocation waits for a collector that lags behind. */
#define STALL_SHARE 1.5

enum cycle_kind { CYCLE_CONCURRENT, CYCLE_FULL };

static void snapshot(struct ebbgc_heap *h, enum cycle_kind kind)
{
	if (kind == CYCLE_CONCURRENT)
		check_snapshot(h);
	memliner_begin(h);
	for (unsigned int i = 0; i < h->marker.tracer_count; i++)
		h->marker.tracers[i].marked_bytes = h->marker.tracers[i].marked_objects = 0;
	__atomic_store_n(&h->logged_bytes, 0, __ATOMIC_RELAXED);
	h->allocated_at_snapshot = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	for (struct mutator *m = h->mutators; m; m = m->next)
		supplies_blacken(h, m);
	roots_each(h, mark_slot, &h->marker.tracers[0]);
	stacks_each(h, mark_slot, &h->marker.tracers[0]);
	h->marking = true;
}

static void logs_flush(struct ebbgc_heap *h)
{
	for (struct mutator *m = h->mutators; m; m = m->next) {
		if (m->logged)
			work_give(h, m->log, m->logged);
		m->logged = 0;
	}
}

/* World stopped: everything that follows from what is marked; false if time is up before. */
static bool close_over(struct ebbgc_heap *h, enum cycle_kind kind, uint64_t deadline)
{
	do {
		if (kind == CYCLE_FULL)
			mark_all(h);
		else if (!mark_until(h, deadline))
			return false;
		if (marking_abandoned(h))
			return false;
	} while (ephemerons_step(h));
	return true;
}

static void trigger_set(struct ebbgc_heap *h, uint64_t live)
{
	const struct ebbgc_options *o = &h->options;
	uint64_t aim = o->max_bytes, full, room, stall, now;

	if (o->sizing == EBBGC_GROWABLE) {
		double wanted = (double)live * o->growth;

		if (wanted < (double)o->min_bytes)
			wanted = (double)o->min_bytes;
		if (wanted < (double)o->max_bytes)
			aim = (uint64_t)wanted;
	}
	room = aim > live ? aim - live : 0;
	if (room < TRIGGER_MIN)
		room = TRIGGER_MIN;
	stall = room;
	if (o->mode != EBBGC_STOP_WORLD) {
		stall = (uint64_t)((double)room * STALL_SHARE);
		room = (uint64_t)((double)room * CONCURRENT_SHARE);
	}
	now = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&h->trigger, now + room, __ATOMIC_RELAXED);
	/* A fixed heap stalls when it is full. */
	__atomic_store_n(&h->stall_at, o->sizing == EBBGC_FIXED ? UINT64_MAX : now + stall,
			 __ATOMIC_RELAXED);
	/* Until allocation waits for the collector: what is beyond the limit is no room. */
	full = o->max_bytes > live ? o->max_bytes - live : 0;
	if (o->sizing == EBBGC_FIXED || stall > full)
		stall = full;
	__atomic_store_n(&h->room, stall, __ATOMIC_RELAXED);
	__atomic_store_n(&h->room_end, now + stall, __ATOMIC_RELAXED);
}

/* World stopped. */
static void marking_end(struct ebbgc_heap *h, enum cycle_kind kind)
{
	uint64_t live = __atomic_load_n(&h->logged_bytes, __ATOMIC_RELAXED) +
			__atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED) - h->allocated_at_snapshot;

	check_marks(h, kind == CYCLE_FULL);
	h->marking = false;
	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		live += h->marker.tracers[i].marked_bytes;
		h->counting.marked_objects += h->marker.tracers[i].marked_objects;
	}
	for (struct mutator *m = h->mutators; m; m = m->next)
		supplies_drop_regions(h, m);
	pthread_mutex_lock(&h->lock);
	h->stats.live_bytes = live;
	memliner_count(h);
	if (kind == CYCLE_FULL)
		h->supplied_before = h->supplied;
	sweep_begin(h);
	trigger_set(h, live);
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_MARK_END, live, NULL);
}

/* What has been settled by attempts that had to be broken off. */
struct verdict {
	bool decided;		/* the dead are known, their weak references are null */
	size_t finalized;	/* of them, those that came back to be finalized */
};

/*
 * One attempt to end the marking in a pause.  False if the pause would have got too long, or if
 * marking is abandoned.
 */
static bool try_finish(struct ebbgc_heap *h, enum cycle_kind kind, struct verdict *v)
{
	uint64_t now = now_ns(), budget = h->options.pause_budget_ns;
	uint64_t deadline = budget < UINT64_MAX - now ? now + budget : UINT64_MAX;

	logs_flush(h);
	if (!close_over(h, kind, deadline))
		return false;
	if (!v->decided) {
		v->decided = true;
		/* Before finalizers bring back what they name. */
		weak_clear(h);
		v->finalized = finalizers_collect(h);
		if (v->finalized && !close_over(h, kind, deadline))
			return false;
	}
	weak_clear(h);
	return true;
}

static void cycle(struct ebbgc_heap *h, enum cycle_kind kind)
{
	uint64_t since, begin;
	struct verdict verdict = { .decided = false };

	sweep_all(h);
	sweep_decide(h);
	__atomic_store_n(&h->look_at, 0, __ATOMIC_RELAXED);
	location_look(h);
	event_send(h, EBBGC_EVENT_CYCLE_BEGIN, heap_bytes(h), NULL);
	begin = since = now_ns();
	world_stop(h);
	snapshot(h, kind);
	if (kind == CYCLE_CONCURRENT) {
		world_resume(h, since);
		event_send(h, EBBGC_EVENT_MARK_BEGIN, 0, NULL);
		for (;;) {
			do {
				mark_all(h);
				if (marking_abandoned(h))
					return;
			} while (ephemerons_step(h));
			since = now_ns();
			world_stop(h);
			if (try_finish(h, kind, &verdict))
				break;
			h->counting.remarks++;
			h->cycle_remarks++;
			world_resume(h, since);
		}
	} else {
		event_send(h, EBBGC_EVENT_MARK_BEGIN, 0, NULL);
		if (!try_finish(h, kind, &verdict)) {
			world_resume(h, since);
			return;
		}
	}
	marking_end(h, kind);
	world_resume(h, since);
	pthread_mutex_lock(&h->lock);
	h->stats.mark_total_ns += now_ns() - begin;
	h->stats.cycles++;
	h->stats.full_cycles += kind == CYCLE_FULL;
	pthread_mutex_unlock(&h->lock);
	if (verdict.finalized)
		event_send(h, EBBGC_EVENT_FINALIZERS_READY, verdict.finalized, NULL);
	sweep_all(h);
	regions_release(h);
	event_send(h, EBBGC_EVENT_CYCLE_END, heap_bytes(h), NULL);
}

/* Lock held.  Epochs go on between cycles, and so do hints. */
static void wait_wanted(struct ebbgc_heap *h)
{
	uint64_t ns = location_wait(h), hints_ns = hints_wait(h);
	struct timespec until;

	if (hints_ns && hints_ns < ns)
		ns = hints_ns;
	if (!ns) {
		pthread_cond_wait(&h->wanted, &h->lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(ns / 1000000000u);
	until.tv_nsec = (long)(ns % 1000000000u);
	/* As the condition's clock: nobody sets it. */
	if (pthread_cond_timedwait(&h->wanted, &h->lock, &until) != ETIMEDOUT)
		return;
	pthread_mutex_unlock(&h->lock);
	location_look(h);
	hints_between(h);
	pthread_mutex_lock(&h->lock);
}

static void *collector_thread(void *arg)
{
	struct ebbgc_heap *h = arg;

	thread_name(h, "ebb-gc");
	pthread_mutex_lock(&h->lock);
	for (;;) {
		uint64_t ticket, full;
		enum cycle_kind kind;

		while (!h->quit && h->asked == h->ended)
			wait_wanted(h);
		if (h->quit)
			break;
		ticket = h->begun = h->asked;
		full = h->asked_full;
		kind = full != h->ended_full || h->options.mode == EBBGC_STOP_WORLD ?
		       CYCLE_FULL : CYCLE_CONCURRENT;
		pthread_mutex_unlock(&h->lock);
		cycle(h, kind);
		pthread_mutex_lock(&h->lock);
		h->ended = ticket;
		h->ended_full = full;
		pthread_cond_broadcast(&h->done);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

int collector_start(struct ebbgc_heap *h)
{
	int r;

	trigger_set(h, 0);
	r = thread_start(&h->collector, collector_thread, h);
	h->collector_started = !r;
	return r;
}

void collector_stop(struct ebbgc_heap *h)
{
	if (!h->collector_started || forked(h))
		return;
	pthread_mutex_lock(&h->lock);
	h->quit = true;
	/* It may wait for pages that no program brings in any more. */
	__atomic_store_n(&h->marker.abandoned, true, __ATOMIC_RELAXED);
	pthread_cond_signal(&h->wanted);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->collector, NULL);
}

void collector_ask(struct ebbgc_heap *h)
{
	h->asked++;
	pthread_cond_signal(&h->wanted);
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
		lock_wait(h, &h->done);
	__atomic_fetch_sub(&h->waiting, 1, __ATOMIC_RELAXED);
	mutator_unblock(w->m);
	return NULL;
}

void collector_wait(struct ebbgc_heap *h, struct mutator *m)
{
	struct wait w = { m, &h->ended, h->asked };

	with_stack(m, wait_served, &w);
}

void collector_wait_full(struct ebbgc_heap *h, struct mutator *m)
{
	struct wait w = { m, &h->ended_full, ++h->asked_full };

	collector_ask(h);
	with_stack(m, wait_served, &w);
}

int ebbgc_collect(ebbgc_mutator_t *mutator)
{
	struct mutator *m = mutator_of(mutator);

	if (forked(m->heap))
		return -ECHILD;
	pthread_mutex_lock(&m->heap->lock);
	collector_wait_full(m->heap, m);
	pthread_mutex_unlock(&m->heap->lock);
	return 0;
}

void ebbgc_collect_start(ebbgc_mutator_t *mutator)
{
	struct ebbgc_heap *h = mutator_of(mutator)->heap;

	if (forked(h))
		return;
	pthread_mutex_lock(&h->lock);
	/* A cycle under way may have taken its snapshot already. */
	if (h->asked == h->begun)
		collector_ask(h);
	pthread_mutex_unlock(&h->lock);
}
