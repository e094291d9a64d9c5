// SPDX-License-Identifier: GPL-2.0-only
#include "span.h"

bool ebb_span_conflicts(const struct ebb_slab *slab, const struct ebb_span *span)
{
	const struct ebb_span *other;

	list_for_each_entry(other, &slab->active, node)
		if ((span->write || other->write) && span->first < other->first + other->count &&
		    other->first < span->first + span->count)
			return true;
	return false;
}

void ebb_span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to)
{
	struct ebb_span *other, *next;
	unsigned long flags;
	LIST_HEAD(waiting);

	spin_lock_irqsave(&slab->lock, flags);
	if (to)
		list_move(&span->node, to);
	else
		list_del_init(&span->node);
	list_splice_init(&slab->waiting, &waiting);
	spin_unlock_irqrestore(&slab->lock, flags);
	/* Each span checks for conflicts again, and may wait again. */
	list_for_each_entry_safe(other, next, &waiting, node) {
		list_del_init(&other->node);
		other->retry(other);
	}
}
