// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "arrivals.h"

void arrivals_open(struct arrivals *a, const struct ebb_arrivals *ring)
{
	*a = (struct arrivals){ .ring = ring };
	arrivals_clear(a);
}

void arrivals_clear(struct arrivals *a)
{
	if (a->ring)
		__atomic_store_n(&a->tail, __atomic_load_n(&a->ring->head, __ATOMIC_ACQUIRE),
				 __ATOMIC_RELAXED);
}

/* Takes the oldest entry; returns false if there is none.  A lost entry is 0. */
static bool take(struct arrivals *a, uint64_t *entry)
{
	uint64_t tail = __atomic_load_n(&a->tail, __ATOMIC_RELAXED), head, from;

	do {
		head = __atomic_load_n(&a->ring->head, __ATOMIC_ACQUIRE);
		if (head == tail)
			return false;
		from = head - tail > EBB_ARRIVALS ? head - EBB_ARRIVALS : tail;
		*entry = __atomic_load_n(&a->ring->entry[from % EBB_ARRIVALS], __ATOMIC_ACQUIRE);
	} while (!__atomic_compare_exchange_n(&a->tail, &tail, from + 1, false, __ATOMIC_ACQ_REL,
					      __ATOMIC_RELAXED));
	if (from != tail)
		__atomic_fetch_add(&a->lost, from - tail, __ATOMIC_RELAXED);
	/* Not yet written, or overwritten since. */
	if (!ebb_arrival_is(*entry, from)) {
		__atomic_fetch_add(&a->lost, 1, __ATOMIC_RELAXED);
		*entry = 0;
	}
	return true;
}

bool arrivals_next(struct arrivals *a, const void *base, size_t bytes, struct arrival *arrival)
{
	uint64_t from = (uint64_t)(uintptr_t)base, entry;

	while (a->ring && take(a, &entry)) {
		arrival->address = ebb_arrival_address(entry);
		arrival->collectors = ebb_arrival_role(entry);
		if (arrival->address < from || arrival->address - from >= bytes)
			continue;
		__atomic_fetch_add(&a->taken, 1, __ATOMIC_RELAXED);
		return true;
	}
	return false;
}
