// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <sched.h>
#include "barrier.h"
#include "fibre.h"
#include "mark.h"
#include "object.h"
#include "os.h"
#include "type.h"

static uint64_t *word_of(const struct type *type, uint64_t object)
{
	return (uint64_t *)(uintptr_t)(object + type->fibre_offset);
}

/* Returns true if the caller is to trace the fibre and then call end(). */
static bool begin(struct ebbgc_heap *h, uint64_t *word)
{
	uint64_t was = __atomic_load_n(word, __ATOMIC_ACQUIRE);

	return was < 2 * h->fibre_cycle &&
	       __atomic_compare_exchange_n(word, &was, 2 * h->fibre_cycle, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

static void end(struct ebbgc_heap *h, uint64_t *word)
{
	__atomic_store_n(word, 2 * h->fibre_cycle + 1, __ATOMIC_RELEASE);
}

void fibre_trace(struct tracer *t, const struct type *type, uint64_t object)
{
	uint64_t *word = word_of(type, object);

	if (!begin(t->heap, word))
		return;
	trace_edges(t, type, object);
	end(t->heap, word);
}

void fibres_snapshot(struct ebbgc_heap *h)
{
	struct tracer *t = &h->marker.tracers[0];

	h->fibre_cycle++;
	for (struct mutator *m = h->mutators; m; m = m->next) {
		for (struct ebbgc_entered *e = m->public.fibres; e; e = e->up) {
			uint64_t object = e->fibre.bits & EBBGC_ADDRESS_MASK;

			if (!object || !in_heap(h, object))
				continue;
			fibre_trace(t, &h->types[type_id(object)], object);
		}
	}
}

struct logging {
	struct ebbgc_edges edges;	/* first */
	ebbgc_mutator_t *m;
};

static void log_target(struct ebbgc_edges *edges, ebbgc_ref_t ref)
{
	ebbgc_mutator_t *m = ((struct logging *)edges)->m;

	if (object_at(mutator_of(m)->heap, ref.bits & EBBGC_ADDRESS_MASK))
		ebbgc_log_old(m, ref);
}

/* In a fibre that a thread touches, weak references and ephemerons are strong in this cycle. */
static void log_strong(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	(void)slot;
	log_target(edges, value);
}

static void log_weak(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		     enum ebbgc_clear when)
{
	(void)slot;
	(void)when;
	log_target(edges, value);
}

static void log_ephemeron(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			  ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	(void)key_slot;
	(void)value_slot;
	(void)when;
	log_target(edges, key);
	log_target(edges, value);
}

void ebbgc_fibre_touch_slow(ebbgc_mutator_t *mutator, ebbgc_ref_t fibre)
{
	struct logging logging = { { log_strong, log_weak, log_ephemeron }, mutator };
	struct ebbgc_heap *h = mutator_of(mutator)->heap;
	uint64_t object = fibre.bits & EBBGC_ADDRESS_MASK, *word;
	const struct type *type;

	/* Once all is marked, a fibre that is reachable was traced. */
	if (!object || !in_heap(h, object) || !h->marking || h->settled)
		return;
	type = &h->types[type_id(object)];
	word = word_of(type, object);
	if (begin(h, word)) {
		type->edges((void *)(uintptr_t)object, &logging.edges);
		end(h, word);
		return;
	}
	/* A tracer is at it.  After fork() there is none. */
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 2 * h->fibre_cycle &&
	       !os_forked(h->pid))
		sched_yield();
}
