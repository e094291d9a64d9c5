// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <sched.h>
#include "barrier.h"
#include "fibre.h"
#include "fibre_word.h"
#include "mark.h"
#include "object.h"
#include "os.h"
#include "remember.h"
#include "type.h"

void fibres_snapshot(struct ebbgc_heap *h)
{
	struct tracer *t = &h->marker.tracers[0];

	h->fibre_cycle++;
	for (struct mutator *m = h->mutators; m; m = m->next) {
		for (struct ebbgc_entered *e = m->public.fibres; e; e = e->up) {
			uint64_t object = e->fibre.bits & EBBGC_ADDRESS_MASK;

			if (!object || !in_heap(h, object))
				continue;
			trace_fibre(t, &h->types[type_id(object)], object);
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
		barrier_log(mutator_of(m), ref);
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

	if (!object || !in_heap(h, object))
		return;
	/* The thread may store references to young objects. */
	if (remembers(h))
		remember_object(mutator_of(mutator), fibre);
	/* Once all is marked, a fibre that is reachable was traced. */
	if (!h->marking || all_marked(h))
		return;
	type = &h->types[type_id(object)];
	word = fibre_word(type, object);
	if (fibre_begin(h, word)) {
		type->edges((void *)(uintptr_t)object, &logging.edges);
		fibre_end(h, word);
		return;
	}
	/* A tracer is at it.  After fork() there is none. */
	while (fibre_is_busy(h, word) && !os_forked(h->pid))
		sched_yield();
}
