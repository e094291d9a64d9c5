// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "location.h"
#include "mark.h"
#include "mark_phase.h"
#include "object.h"
#include "order_memliner.h"
#include "os.h"
#include "thread.h"
#include "work_pool.h"

/* Lock held, released while waiting: returns true if there is work, false if the phase is over. */
static bool wait_for_work(struct marker *mk)
{
	__atomic_store_n(&mk->hungry, mk->hungry + 1, __ATOMIC_RELAXED);
	while (!mk->dry && (!mk->full || __atomic_load_n(&mk->abandoned, __ATOMIC_RELAXED))) {
		if (mk->hungry == mk->active || __atomic_load_n(&mk->abandoned, __ATOMIC_RELAXED)) {
			mk->dry = true;
			pthread_cond_broadcast(&mk->changed);
			break;
		}
		pthread_cond_wait(&mk->changed, &mk->lock);
	}
	if (mk->dry)
		return false;
	__atomic_store_n(&mk->hungry, mk->hungry - 1, __ATOMIC_RELAXED);
	return true;
}

static void phase_work(struct tracer *t)
{
	struct marker *mk = &t->heap->marker;
	bool more;

	do {
		do
			mk->order->drain(t, 0);
		while (values_mark(t));
		pthread_mutex_lock(&mk->lock);
		more = wait_for_work(mk);
		pthread_mutex_unlock(&mk->lock);
	} while (more);
}

static void *tracer_thread(void *arg)
{
	struct tracer *t = arg;
	struct marker *mk = &t->heap->marker;
	uint64_t seen = 0;
	char name[16];

	snprintf(name, sizeof(name), "ebb-gc-mark%u", t->index);
	thread_name(t->heap, name);
	pthread_mutex_lock(&mk->lock);
	for (;;) {
		while (!mk->quit && mk->phase == seen)
			pthread_cond_wait(&mk->changed, &mk->lock);
		if (mk->quit)
			break;
		seen = mk->phase;
		pthread_mutex_unlock(&mk->lock);
		phase_work(t);
		pthread_mutex_lock(&mk->lock);
		mk->active--;
		pthread_cond_broadcast(&mk->changed);
	}
	pthread_mutex_unlock(&mk->lock);
	return NULL;
}

/* Recovers from marker.overflow: traces all marked objects again, which adds the lost work. */
static void overflow_recover(struct ebbgc_heap *h, struct tracer *t)
{
	for (uint32_t r = 0; r < h->top; r++) {
		uint8_t kind = __atomic_load_n(&h->kinds[r], __ATOMIC_RELAXED);
		const uint64_t *marks = h->marks + (size_t)r * REGION_WORDS;

		if ((kind >= SMALL_KINDS && kind != KIND_LARGE) || kind_is_leaf(kind) ||
		    region_is_out(h, r))
			continue;
		for (size_t w = 0; w < REGION_WORDS; w++) {
			uint64_t bits = __atomic_load_n(&marks[w], __ATOMIC_RELAXED);

			bits = marks_old(h, (size_t)r * REGION_WORDS + w, bits);
			for (; bits; bits &= bits - 1) {
				size_t granule = 64 * w + (size_t)__builtin_ctzll(bits);
				uint64_t object = (uint64_t)(uintptr_t)region_start(h, r) +
						  (granule << GRANULE_SHIFT) + HEADER;

				if (type_id(object) != TYPE_NONE)
					trace_object(t, object);
			}
		}
		h->marker.order->drain(t, 0);
	}
}

void mark_all(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;

	for (;;) {
		pthread_mutex_lock(&mk->lock);
		mk->active = mk->tracer_count;
		__atomic_store_n(&mk->hungry, 0, __ATOMIC_RELAXED);
		mk->dry = false;
		mk->phase++;
		pthread_cond_broadcast(&mk->changed);
		pthread_mutex_unlock(&mk->lock);
		phase_work(&mk->tracers[0]);
		pthread_mutex_lock(&mk->lock);
		mk->active--;
		while (mk->active)
			pthread_cond_wait(&mk->changed, &mk->lock);
		pthread_mutex_unlock(&mk->lock);
		/* Roots, logs and the recovery itself may run out of memory, too. */
		if (marking_abandoned(h) ||
		    !__atomic_exchange_n(&mk->overflow, false, __ATOMIC_ACQ_REL))
			break;
		overflow_recover(h, &mk->tracers[0]);
	}
}

bool mark_until(struct ebbgc_heap *h, uint64_t deadline)
{
	struct marker *mk = &h->marker;

	do {
		if (!mk->order->drain(&mk->tracers[0], deadline))
			return false;
	} while (values_mark(&mk->tracers[0]));
	return !__atomic_load_n(&mk->overflow, __ATOMIC_RELAXED);
}

static void order_set(struct marker *mk, const struct order *order)
{
	mk->order = order;
	mk->late = order->marks_late;
}

void marking_begin(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;

	if (h->options.mode == EBBGC_MEMLINER) {
		order_set(mk, location_is_scarce(h) ? &order_memliner : &order_depth);
		memliner_begin(h);
	}
	mk->finger = 0;
	mk->finger_end = h->top;
	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		struct tracer *t = &mk->tracers[i];

		t->region = REGION_NONE;
		t->marked_bytes = t->marked_objects = 0;
		t->weak[0].count = t->weak[1].count = t->ephemerons.count = 0;
		t->values.count = 0;
		t->counts = (struct order_counts){ 0 };
	}
}

void marking_count(struct ebbgc_heap *h)
{
	struct ebbgc_stats *s = &h->stats;

	for (unsigned int i = 0; i < h->marker.tracer_count; i++) {
		const struct order_counts *c = &h->marker.tracers[i].counts;

		s->red_objects += c->red;
		s->explored_objects += c->explored;
		s->postponed += c->postponed;
		s->parked_objects += c->parked;
		s->woken_objects += c->woken;
		s->fetch_calls += c->fetch_calls;
		s->fetched_pages += c->fetched;
		s->cooled_pages += c->cooled;
		s->arrived_objects += c->arrived;
	}
}

int marker_create(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;

	order_set(mk, h->options.mode == EBBGC_MEMLINER	       ? &order_memliner :
		      h->options.features & EBBGC_ADDRESS_ORDER ? &order_address :
								  &order_depth);
	mk->tracer_count = h->options.markers;
	mk->tracers = os_map(mk->tracer_count * sizeof(*mk->tracers));
	if (!mk->tracers)
		return -ENOMEM;
	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		mk->tracers[i].heap = h;
		mk->tracers[i].index = i;
		mk->tracers[i].region = REGION_NONE;
	}
	/* The collector's own thread is the first tracer. */
	for (mk->started = 1; mk->started < mk->tracer_count; mk->started++) {
		struct tracer *t = &mk->tracers[mk->started];
		int r = thread_start(&t->thread, tracer_thread, t);

		if (r)
			return r;
	}
	return 0;
}

void marker_destroy(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;

	if (!mk->tracers)
		return;
	if (!os_forked(h->pid)) {
		pthread_mutex_lock(&mk->lock);
		mk->quit = true;
		pthread_cond_broadcast(&mk->changed);
		pthread_mutex_unlock(&mk->lock);
		for (unsigned int i = 1; i < mk->started; i++)
			pthread_join(mk->tracers[i].thread, NULL);
	}
	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		if (!os_forked(h->pid)) {
			vector_free(&mk->tracers[i].weak[0]);
			vector_free(&mk->tracers[i].weak[1]);
			vector_free(&mk->tracers[i].ephemerons);
			vector_free(&mk->tracers[i].values);
		}
		for (struct chunk *c = mk->tracers[i].later; c; c = mk->tracers[i].later) {
			mk->tracers[i].later = c->next;
			free(c);
		}
	}
	if (!os_forked(h->pid))
		keys_free(&mk->keys);
	for (struct chunk *c = mk->full; c; c = mk->full) {
		mk->full = c->next;
		free(c);
	}
	for (struct chunk *c = mk->spare; c; c = mk->spare) {
		mk->spare = c->next;
		free(c);
	}
	munmap(mk->tracers, mk->tracer_count * sizeof(*mk->tracers));
	mk->tracers = NULL;
}
