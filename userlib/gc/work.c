// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* The pool of work, the marking threads, and how they know that nothing is left. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "heap.h"

bool vector_push(struct vector *v, uint64_t item)
{
	if (v->count == v->capacity) {
		size_t capacity = v->capacity ? 2 * v->capacity : 64;
		uint64_t *items = realloc(v->items, capacity * sizeof(*items));

		if (!items)
			return false;
		v->items = items;
		v->capacity = capacity;
	}
	v->items[v->count++] = item;
	return true;
}

void vector_free(const struct ebbgc_heap *h, struct vector *v)
{
	if (!forked(h))
		free(v->items);
}

/* Lock held. */
static struct chunk *chunk_get(struct marker *mk)
{
	struct chunk *c = mk->spare;

	if (c)
		mk->spare = c->next;
	else
		c = malloc(sizeof(*c));
	return c;
}

/* Lock held. */
static bool pool_add(struct marker *mk, const uint64_t *objects, size_t count)
{
	while (count) {
		struct chunk *c = chunk_get(mk);
		size_t part = count < CHUNK_ENTRIES ? count : CHUNK_ENTRIES;

		if (!c)
			return false;
		memcpy(c->entries, objects + count - part, part * sizeof(*objects));
		c->count = part;
		c->next = mk->full;
		__atomic_store_n(&mk->full, c, __ATOMIC_RELAXED);
		count -= part;
	}
	pthread_cond_broadcast(&mk->changed);
	return true;
}

void work_push(struct tracer *t, uint64_t work)
{
	struct ebbgc_heap *h = t->heap;
	uint64_t object = work & WORK_ADDRESS;

	if (EBBGC_UNLIKELY(t->depth == STACK_ENTRIES) && !work_share(t)) {
		/* On no list: found again by its mark bit, which the object of a slice has. */
		if (h->marker.late && (object & WORK_OBJECT))
			mark_now(t, object, h->kinds[region_of(h, object)]);
		__atomic_store_n(&h->marker.overflow, true, __ATOMIC_RELAXED);
		return;
	}
	t->stack[t->depth++] = work;
}

bool work_share(struct tracer *t)
{
	struct marker *mk = &t->heap->marker;
	size_t half = t->depth / 2;
	bool added;

	/* The older half: nearer to the roots, so likely the larger part of the graph. */
	pthread_mutex_lock(&mk->lock);
	added = pool_add(mk, t->stack, half);
	pthread_mutex_unlock(&mk->lock);
	if (added) {
		t->depth -= half;
		memmove(t->stack, t->stack + half, t->depth * sizeof(*t->stack));
	}
	return added;
}

bool work_take(struct tracer *t)
{
	struct marker *mk = &t->heap->marker;
	struct chunk *c;

	if (!__atomic_load_n(&mk->full, __ATOMIC_RELAXED))
		return false;
	pthread_mutex_lock(&mk->lock);
	c = mk->full;
	if (c) {
		__atomic_store_n(&mk->full, c->next, __ATOMIC_RELAXED);
		memcpy(t->stack + t->depth, c->entries, c->count * sizeof(*c->entries));
		t->depth += c->count;
		c->next = mk->spare;
		mk->spare = c;
	}
	pthread_mutex_unlock(&mk->lock);
	return c;
}

/* Of what mutators log: sets and counts a mark bit; the kind says how much that is. */
static void mark_logged(struct ebbgc_heap *h, uint64_t object, uint8_t kind)
{
	if (!bit_set(h->marks, granule_of(h, object)))
		return;
	__atomic_fetch_add(&h->logged_bytes, taken_bytes(h, object, kind), __ATOMIC_RELAXED);
}

/* Mutators' logs: only first mentions become work. */
void work_give(struct ebbgc_heap *h, const uint64_t *refs, size_t count)
{
	struct marker *mk = &h->marker;
	uint64_t fresh[SATB_ENTRIES];
	size_t n = 0, first = 0;

	for (size_t i = 0; i < count; i++) {
		uint64_t object = refs[i] & EBBGC_ADDRESS_MASK;
		uint8_t kind;

		if (bit_test(h->marks, granule_of(h, object)))
			continue;
		first++;
		kind = h->kinds[region_of(h, object)];
		if (!mk->late || kind_is_leaf(kind))
			mark_logged(h, object, kind);
		if (!kind_is_leaf(kind))
			fresh[n++] = refs[i];
	}
	__atomic_fetch_add(&h->logged_references, first, __ATOMIC_RELAXED);
	pthread_mutex_lock(&mk->lock);
	if (!pool_add(mk, fresh, n)) {
		for (size_t i = 0; mk->late && i < n; i++) {
			uint64_t object = fresh[i] & EBBGC_ADDRESS_MASK;

			mark_logged(h, object, h->kinds[region_of(h, object)]);
		}
		__atomic_store_n(&mk->overflow, true, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&mk->lock);
}

/* Lock held; true if there is work again, false if the phase is over. */
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
		mk->order->drain(t, 0);
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

/* A chunk could not be had: what is marked is traced once more, which adds what it missed. */
static void overflow_recover(struct ebbgc_heap *h, struct tracer *t)
{
	for (uint32_t r = 0; r < h->top; r++) {
		uint8_t kind = __atomic_load_n(&h->kinds[r], __ATOMIC_RELAXED);
		const uint64_t *marks = h->marks + (size_t)r * REGION_WORDS;

		if ((kind >= SMALL_KINDS && kind != KIND_LARGE) || kind_is_leaf(kind))
			continue;
		for (size_t w = 0; w < REGION_WORDS; w++) {
			uint64_t bits = __atomic_load_n(&marks[w], __ATOMIC_RELAXED);

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
		/* Not forgotten before: roots, logs and the recovery itself may run out of memory. */
		if (marking_abandoned(h) ||
		    !__atomic_exchange_n(&mk->overflow, false, __ATOMIC_ACQ_REL))
			break;
		overflow_recover(h, &mk->tracers[0]);
	}
}

bool mark_until(struct ebbgc_heap *h, uint64_t deadline)
{
	struct marker *mk = &h->marker;

	return mk->order->drain(&mk->tracers[0], deadline) &&
	       !__atomic_load_n(&mk->overflow, __ATOMIC_RELAXED);
}

int marker_create(struct ebbgc_heap *h)
{
	struct marker *mk = &h->marker;

	mk->order = h->options.mode == EBBGC_MEMLINER ? &order_memliner : &order_depth_first;
	mk->late = mk->order->marks_late;
	mk->tracer_count = h->options.markers;
	mk->tracers = map_pages(mk->tracer_count * sizeof(*mk->tracers));
	if (!mk->tracers)
		return -ENOMEM;
	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		mk->tracers[i].heap = h;
		mk->tracers[i].index = i;
	}
	/* The first is the coordinator itself. */
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
	if (!forked(h)) {
		pthread_mutex_lock(&mk->lock);
		mk->quit = true;
		pthread_cond_broadcast(&mk->changed);
		pthread_mutex_unlock(&mk->lock);
		for (unsigned int i = 1; i < mk->started; i++)
			pthread_join(mk->tracers[i].thread, NULL);
	}
	for (unsigned int i = 0; i < mk->tracer_count; i++) {
		vector_free(h, &mk->tracers[i].weak);
		vector_free(h, &mk->tracers[i].ephemerons);
		for (struct chunk *c = mk->tracers[i].later; c; c = mk->tracers[i].later) {
			mk->tracers[i].later = c->next;
			free(c);
		}
	}
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
