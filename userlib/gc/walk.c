// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Listing the objects of a heap without a collection. */
#include <errno.h>
#include "check.h"
#include "object.h"
#include "os.h"
#include "safepoint.h"
#include "sweep.h"
#include "world.h"

struct listing {
	struct mutator *m;
	void (*fn)(void *arg, ebbgc_ref_t object);
	void *arg;
};

/* World stopped, all regions swept. */
static void objects_list(const struct ebbgc_heap *h, const struct listing *l)
{
	for (size_t word = 0; word < (size_t)h->top * REGION_WORDS; word++) {
		uint64_t bits = h->allocated[word];

		/* The others are dead for good: none is found or finalized any more. */
		if (h->settled_last)
			bits &= h->marks[word];
		for (; bits; bits &= bits - 1) {
			size_t granule = 64 * word + (size_t)__builtin_ctzll(bits);
			uint64_t object = (uint64_t)(uintptr_t)h->base +
					  (granule << GRANULE_SHIFT) + HEADER;

			/* A slot of a thread's supply may hold no object yet. */
			if (type_id(object) != TYPE_NONE)
				l->fn(l->arg, (ebbgc_ref_t){ object | h->tag });
		}
	}
}

static void *list(void *arg)
{
	const struct listing *l = arg;
	struct ebbgc_heap *h = l->m->heap;
	uint64_t since;

	pthread_mutex_lock(&h->lock);
	mutator_block(l->m);
	mutator_lend(l->m);
	pthread_mutex_unlock(&h->lock);
	pause_begin(h);
	/* No cycle ends its marking now, so all regions stay swept. */
	sweep_all(h);
	since = os_now();
	world_stop(h);
	check_listed(h);
	objects_list(h, l);
	world_resume(h, since);
	/* No pause begins before the thread runs: the caller may keep what it was told of. */
	pthread_mutex_lock(&h->lock);
	mutator_unblock(l->m);
	pthread_mutex_unlock(&h->lock);
	pause_end(h);
	return NULL;
}

int ebbgc_heap_walk(ebbgc_mutator_t *mutator, void (*fn)(void *arg, ebbgc_ref_t object), void *arg)
{
	struct listing l = { mutator_of(mutator), fn, arg };
	int state;

	if (os_forked(l.m->heap->pid))
		return -ECHILD;
	/* Far objects have no address. */
	if (l.m->heap->far.on)
		return -ENOTSUP;
	/* A thread cancelled in a wait or in fn would keep the world stopped. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	with_stack(l.m, list, &l);
	pthread_setcancelstate(state, NULL);
	return 0;
}
