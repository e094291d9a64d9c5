// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "far_queue.h"
#include "heap.h"

void far_queue_add(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];
	uint32_t head;

	if (__atomic_load_n(&r->queued, __ATOMIC_SEQ_CST) ||
	    __atomic_exchange_n(&r->queued, true, __ATOMIC_SEQ_CST))
		return;
	head = __atomic_load_n(&h->far.queue, __ATOMIC_RELAXED);
	do
		r->queue_next = head;
	while (!__atomic_compare_exchange_n(&h->far.queue, &head, region, true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED));
}

uint32_t far_queue_take(struct ebbgc_heap *h)
{
	return __atomic_exchange_n(&h->far.queue, REGION_NONE, __ATOMIC_ACQUIRE);
}

uint32_t far_queue_next(struct ebbgc_heap *h, uint32_t region)
{
	struct far_region *r = &h->far.regions[region];
	uint32_t next = r->queue_next;

	h->far.marking.visits++;
	__atomic_store_n(&r->queued, false, __ATOMIC_SEQ_CST);
	return next;
}
