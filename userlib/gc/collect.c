// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "check.h"
#include "collect.h"
#include "event.h"
#include "far_mark.h"
#include "far_room.h"
#include "fetch.h"
#include "fibre.h"
#include "finalize.h"
#include "hints.h"
#include "leave.h"
#include "location.h"
#include "mark.h"
#include "mark_phase.h"
#include "minor.h"
#include "move.h"
#include "named.h"
#include "object.h"
#include "os.h"
#include "region.h"
#include "roots.h"
#include "stats.h"
#include "supply.h"
#include "sweep.h"
#include "thread.h"
#include "trigger.h"
#include "weak.h"
#include "world.h"
#include "work_pool.h"

/* Returns when the pause was requested (ns): not before one of a minor cycle has ended. */
static uint64_t stop(struct ebbgc_heap *h)
{
	uint64_t since;

	pause_begin(h);
	since = os_now();
	world_stop(h);
	h->in_pause = true;
	return since;
}

static void resume(struct ebbgc_heap *h, uint64_t since)
{
	pthread_mutex_lock(&h->lock);
	stats_add(h);
	pthread_mutex_unlock(&h->lock);
	h->in_pause = false;
	world_resume(h, since);
	pause_end(h);
}

enum cycle_kind { CYCLE_CONCURRENT, CYCLE_FULL };

/* Marks what is named, or what regions that leave name if this is a far cycle. */
static void named_trace(struct ebbgc_heap *h)
{
	if (h->far.marking.on)
		far_mark_leaving(h);
	else
		named_mark(h, &h->marker.tracers[0]);
}

static void snapshot(struct ebbgc_heap *h, enum cycle_kind kind)
{
	if (kind == CYCLE_CONCURRENT)
		check_snapshot(h);
	marking_begin(h);
	h->far.snapshots++;
	h->has_last = false;
	__atomic_store_n(&h->logged_bytes, 0, __ATOMIC_RELAXED);
	h->allocated_at_snapshot = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED);
	for (struct mutator *m = h->mutators; m; m = m->next)
		supplies_blacken(h, m);
	fibres_snapshot(h);
	if (h->far.on)
		finalizers_moved(h);
	check_roots(h);
	roots_each(h, mark_slot, &h->marker.tracers[0]);
	stacks_each(h, mark_slot, &h->marker.tracers[0]);
	h->marking = true;
	if (kind == CYCLE_FULL)
		named_trace(h);
}

static void logs_flush(struct ebbgc_heap *h)
{
	for (struct mutator *m = h->mutators; m; m = m->next) {
		if (m->logged)
			work_add_log(h, m->log, m->logged);
		m->logged = 0;
	}
}

/* World stopped: marks all reachable objects; returns false if the deadline passes first. */
static bool close_over(struct ebbgc_heap *h, enum cycle_kind kind, uint64_t deadline)
{
	do {
		if (kind == CYCLE_FULL)
			mark_all(h);
		else if (!mark_until(h, deadline))
			return false;
		if (marking_abandoned(h))
			return false;
		/* A pause has no time for it. */
		if (kind != CYCLE_FULL && far_mark_waits(h) && !far_mark_hurries(h))
			return false;
	} while (ephemerons_step(h) || far_mark_some(h));
	return true;
}

/* World stopped, all that is reachable is marked. */
static void objects_each(struct ebbgc_heap *h)
{
	for (size_t word = 0; word < (size_t)h->top * REGION_WORDS; word++) {
		for (uint64_t bits = h->allocated[word] & h->marks[word]; bits; bits &= bits - 1) {
			size_t granule = 64 * word + (size_t)__builtin_ctzll(bits);
			ebbgc_ref_t object = { (uint64_t)(uintptr_t)h->base +
					       (granule << GRANULE_SHIFT) + HEADER };

			/* A slot of a thread's supply may hold no object yet. */
			if (ebbgc_type_of(object) != TYPE_NONE)
				h->each(h->each_arg, object);
		}
	}
	h->each = NULL;
}

/* World stopped. */
static void marking_end(struct ebbgc_heap *h, enum cycle_kind kind)
{
	uint64_t live = __atomic_load_n(&h->logged_bytes, __ATOMIC_RELAXED) +
			__atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED) -
			h->allocated_at_snapshot;

	far_mark_end(h);
	check_marks(h, kind == CYCLE_FULL);
	if (kind == CYCLE_FULL && h->each)
		objects_each(h);
	h->marking = h->settled = h->settled_last = false;
	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		live += h->marker.tracers[i].marked_bytes;
		h->counting.marked_objects += h->marker.tracers[i].marked_objects;
	}
	pthread_mutex_lock(&h->lock);
	for (struct mutator *m = h->mutators; m; m = m->next)
		supplies_drop_regions(h, m);
	if (h->far.on)
		arrivals_close(h);
	h->stats.live_bytes = live;
	marking_count(h);
	if (kind == CYCLE_FULL)
		h->supplied_before = h->supplied;
	/* Marking has healed all slots. */
	move_forget(h);
	sweep_begin(h, kind == CYCLE_CONCURRENT);
	trigger_set(h, live);
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_MARK_END, live, NULL);
}

/* Results of earlier attempts to end the marking. */
struct verdict {
	bool decided;		/* dead objects are known, and weak references to them null */
	size_t finalized;	/* dead objects that are kept for their finalizers */
};

/* Results of an attempt to end the marking in a pause. */
enum attempt {
	FINISHED,
	MUST_MARK,		/* the pause would be too long, or marking was abandoned */
	MUST_CLEAR,		/* all is marked; clearing weak references would take too long */
};

/* World stopped, all is marked: clears weak references, or lets mutators see them as cleared. */
static bool try_clear(struct ebbgc_heap *h, enum ebbgc_clear when, enum cycle_kind kind,
		      uint64_t deadline)
{
	bool cleared = weak_clear(h, when, kind == CYCLE_FULL ? 0 : deadline);

	h->settled = !cleared;
	h->settled_last = !cleared && when == EBBGC_CLEAR_LAST;
	return cleared;
}

static bool lives(const struct ebbgc_heap *h, uint64_t object)
{
	return object_marked(h, object);
}

static void revive(void *tracer, uint64_t object)
{
	mark_object(tracer, object);
}

static enum attempt try_finish(struct ebbgc_heap *h, enum cycle_kind kind, struct verdict *v)
{
	uint64_t now = os_now(), budget = h->options.pause_budget_ns;
	uint64_t deadline = budget < UINT64_MAX - now ? now + budget : UINT64_MAX;

	h->settled = h->settled_last = false;
	__atomic_store_n(&h->found, false, __ATOMIC_RELAXED);
	if (h->far.on)
		finalizers_moved(h);
	logs_flush(h);
	if (!close_over(h, kind, deadline))
		return MUST_MARK;
	if (!try_clear(h, EBBGC_CLEAR_FIRST, kind, deadline))
		return MUST_CLEAR;
	if (!v->decided) {
		v->decided = true;
		/* Now finalizers may keep their objects alive. */
		v->finalized = finalizers_collect(h, 0, lives, revive, &h->marker.tracers[0]);
		h->counting.finalizers_ready += v->finalized;
		if (v->finalized && !close_over(h, kind, deadline))
			return MUST_MARK;
		if (v->finalized && !try_clear(h, EBBGC_CLEAR_FIRST, kind, deadline))
			return MUST_CLEAR;
	}
	return try_clear(h, EBBGC_CLEAR_LAST, kind, deadline) ? FINISHED : MUST_CLEAR;
}

static void ready_send(struct ebbgc_heap *h, uint64_t finalizers)
{
	if (finalizers)
		event_send(h, EBBGC_EVENT_FINALIZERS_READY, finalizers, NULL);
}

/* Moves objects, if that pays, in a pause of its own. */
static void move(struct ebbgc_heap *h, enum cycle_kind kind)
{
	uint64_t since, ready;

	if (!move_choose(h, kind == CYCLE_FULL, location_is_scarce(h)))
		return;
	since = stop(h);
	ready = minor_collect(h);
	move_objects(h);
	resume(h, since);
	ready_send(h, ready);
	move_done(h);
}

/* @asked: a thread waits for a full collection. */
static void cycle(struct ebbgc_heap *h, enum cycle_kind kind, bool asked)
{
	uint64_t since, begin, ready;
	struct verdict verdict = { .decided = false };

	sweep_all(h);
	sweep_decide(h);
	__atomic_store_n(&h->update_at, 0, __ATOMIC_RELAXED);
	location_update(h);
	event_send(h, EBBGC_EVENT_CYCLE_BEGIN, regions_bytes(h), NULL);
	far_mark_begin(h, asked);
	begin = since = stop(h);
	ready = minor_collect(h);
	snapshot(h, kind);
	if (kind == CYCLE_CONCURRENT) {
		resume(h, since);
		ready_send(h, ready);
		ready = 0;
		event_send(h, EBBGC_EVENT_MARK_BEGIN, 0, NULL);
		/* No name becomes named, nor is what is named freed, while a cycle marks. */
		named_trace(h);
		for (;;) {
			enum attempt attempt;
			bool waits;

			do {
				mark_all(h);
				if (marking_abandoned(h))
					return;
			} while (ephemerons_step(h) || far_mark_some(h));
			leave_shorten(h);
			since = stop(h);
			attempt = try_finish(h, kind, &verdict);
			if (attempt == FINISHED)
				break;
			if (attempt == MUST_MARK) {
				h->counting.remarks++;
				h->cycle_remarks++;
			}
			waits = far_mark_waits(h);
			resume(h, since);
			if (waits)
				far_mark_remark(h);
			if (attempt == MUST_CLEAR)
				weak_clear(h, h->settled_last ? EBBGC_CLEAR_LAST :
						EBBGC_CLEAR_FIRST, 0);
		}
	} else {
		event_send(h, EBBGC_EVENT_MARK_BEGIN, 0, NULL);
		leave_shorten(h);
		if (try_finish(h, kind, &verdict) != FINISHED) {
			resume(h, since);
			return;
		}
	}
	ready += verdict.finalized + minor_collect(h);
	marking_end(h, kind);
	resume(h, since);
	pthread_mutex_lock(&h->lock);
	h->stats.mark_total_ns += os_now() - begin;
	h->stats.cycles++;
	h->stats.full_cycles += kind == CYCLE_FULL;
	pthread_mutex_unlock(&h->lock);
	ready_send(h, ready);
	sweep_all(h);
	move(h, kind);
	far_mark_free(h);
	leave_forget(h);
	regions_release(h);
	event_send(h, EBBGC_EVENT_CYCLE_END, regions_bytes(h), NULL);
}

/* Lock held, released meanwhile: waits for a request.  Epochs and hints go on between cycles. */
static void wait_wanted(struct ebbgc_heap *h)
{
	uint64_t ns = location_wait(h), hints_ns = hints_wait(h);

	if (hints_ns && hints_ns < ns)
		ns = hints_ns;
	if (!ns) {
		pthread_cond_wait(&h->wanted, &h->lock);
		return;
	}
	if (os_wait(&h->wanted, &h->lock, ns))
		return;
	pthread_mutex_unlock(&h->lock);
	location_update(h);
	hints_between_cycles(h);
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

		while (!h->quit && h->requested == h->ended)
			wait_wanted(h);
		if (h->quit)
			break;
		/* No region begins to leave during a cycle. */
		far_turn_take(h);
		ticket = h->begun = h->requested;
		full = h->requested_full;
		kind = full != h->ended_full || h->options.mode == EBBGC_STOP_WORLD ?
		       CYCLE_FULL : CYCLE_CONCURRENT;
		pthread_mutex_unlock(&h->lock);
		cycle(h, kind, full != h->ended_full);
		pthread_mutex_lock(&h->lock);
		far_turn_end(h);
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
	if (!h->collector_started || os_forked(h->pid))
		return;
	pthread_mutex_lock(&h->lock);
	h->quit = true;
	/* The collector may be waiting for pages that the program no longer swaps in. */
	__atomic_store_n(&h->marker.abandoned, true, __ATOMIC_RELAXED);
	pthread_cond_signal(&h->wanted);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->collector, NULL);
}
