// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "location.h"
#include "mark.h"
#include "object.h"
#include "os.h"
#include "work_pool.h"

#define LOOK_AHEAD 8		/* objects between the prefetch of one and its tracing */
#define CLOCK_EVERY 256		/* objects between two reads of the clock */

static void depth_first_add(struct tracer *t, uint64_t work)
{
	uint64_t object = work & WORK_ADDRESS;

	__builtin_prefetch(header_of(object));
	work_push(t, object);
}

static bool depth_first_drain(struct tracer *t, uint64_t deadline)
{
	struct marker *mk = &t->heap->marker;
	uint64_t ahead[LOOK_AHEAD] = { 0 };
	unsigned int turn = 0, idle = 0;

	for (;;) {
		uint64_t object = ahead[turn % LOOK_AHEAD];

		/* A short queue between stack and tracing gives the prefetch time to complete. */
		if (t->depth || work_take(t)) {
			ahead[turn % LOOK_AHEAD] = t->stack[--t->depth] & WORK_ADDRESS;
			__builtin_prefetch(header_of(ahead[turn % LOOK_AHEAD]));
			idle = 0;
		} else {
			ahead[turn % LOOK_AHEAD] = 0;
			if (++idle > LOOK_AHEAD && !object)
				return true;
		}
		turn++;
		if (object)
			trace_object(t, object);
		if (deadline ? !object : turn % CLOCK_EVERY)
			continue;
		if (marking_abandoned(t->heap))
			return false;
		if (deadline && os_now() > deadline) {
			for (size_t i = 0; i < LOOK_AHEAD; i++)
				if (ahead[i])
					depth_first_add(t, ahead[i]);
			return false;
		}
		/* Epochs also pass in these cycles. */
		if (!deadline)
			location_update(t->heap);
		if (t->depth > 64 && __atomic_load_n(&mk->hungry, __ATOMIC_RELAXED))
			work_share(t);
	}
}

const struct order order_depth = {
	.name = "depth first",
	.add = depth_first_add,
	.drain = depth_first_drain,
};
