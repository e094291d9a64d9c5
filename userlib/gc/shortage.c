// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include "event.h"
#include "os.h"
#include "safepoint.h"
#include "shortage.h"
#include "trigger.h"

static void *wait_turn(void *arg)
{
	struct mutator *m = arg;
	struct ebbgc_heap *h = m->heap;

	mutator_block(m);
	mutator_lend(m);
	while (h->first)
		mutator_wait(h, &h->turn);
	mutator_unblock(m);
	return NULL;
}

void shortage_turn_wait(struct ebbgc_heap *h, struct mutator *m)
{
	uint64_t since = os_now();

	if (!h->first || h->first == m)
		return;
	while (h->first)
		with_stack(m, wait_turn, m);
	h->stats.stalls++;
	h->stats.stall_total_ns += os_now() - since;
}

void shortage_turn_end(struct ebbgc_heap *h, struct mutator *m)
{
	if (h->first != m)
		return;
	h->first = NULL;
	pthread_cond_broadcast(&h->turn);
}

/*
 * Lock held, released meanwhile: waits for events that may free memory.  Returns false if nothing
 * is left to try.  See shortage_wait() for `tries`.
 */
static bool wait_for_memory(struct ebbgc_heap *h, struct mutator *m, unsigned int *tries)
{
	if (h->releasing) {
		/* Free regions are being returned to the kernel: a shorter wait than a cycle. */
		mutator_wait(h, &h->released);
	} else if (*tries == 0 && h->requested != h->ended) {
		/* A cycle in flight may suffice, and has shorter pauses than a full one. */
		*tries = 1;
		cycle_wait(h, m);
	} else if (*tries < 2) {
		*tries = 2;
		cycle_wait_full(h, m);
	} else if (*tries == 2 && h->supplied != h->supplied_before) {
		/* Other threads took what the full collection freed: go first next time. */
		*tries = SHORTAGE_TURN;
		while (h->first)
			with_stack(m, wait_turn, m);
		h->first = m;
		cycle_wait_full(h, m);
	} else {
		return false;
	}
	return true;
}

int shortage_wait(struct ebbgc_heap *h, struct mutator *m, size_t bytes, unsigned int *tries)
{
	const unsigned int unbacked = h->unbacked, large = bytes > SMALL_MAX;
	uint64_t since = os_now();
	enum ebbgc_oom verdict;
	bool waited;

	h->unbacked_waiting += unbacked;
	h->large_waiting += large;
	waited = wait_for_memory(h, m, tries);
	h->unbacked_waiting -= unbacked;
	h->large_waiting -= large;
	if (waited) {
		h->stats.stalls++;
		h->stats.stall_total_ns += os_now() - since;
		return 0;
	}
	*tries = 0;
	shortage_turn_end(h, m);
	pthread_mutex_unlock(&h->lock);
	event_send(h, EBBGC_EVENT_OUT_OF_MEMORY, bytes, NULL);
	verdict = h->options.oom ? h->options.oom(h->options.oom_arg, h, bytes) : EBBGC_OOM_FAIL;
	/* In a child that the handler has made, the lock may be held for ever. */
	if (os_forked(h->pid))
		return -ECHILD;
	pthread_mutex_lock(&h->lock);
	return verdict == EBBGC_OOM_RETRY ? 0 : -ENOMEM;
}
