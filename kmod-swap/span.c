// SPDX-License-Identifier: GPL-2.0-only
#include "span.h"

static bool conflict(const struct ebb_span *a, const struct ebb_span *b)
{
	return (a->write || b->write) && a->first < b->first + b->count &&
	       b->first < a->first + a->count;
}

/* Returns whether @span conflicts with one of @list before @end, a node of it or its head. */
static bool conflicts(const struct list_head *list, const struct list_head *end,
		      const struct ebb_span *span)
{
	const struct list_head *node;

	for (node = list->next; node != end; node = node->next)
		if (conflict(list_entry(node, struct ebb_span, node), span))
			return true;
	return false;
}

bool ebb_span_try(struct ebb_slab *slab, struct ebb_span *span)
{
	if (conflicts(&slab->active, &slab->active, span) ||
	    conflicts(&slab->waiting, &slab->waiting, span))
		return false;
	list_move_tail(&span->node, &slab->active);
	return true;
}

bool ebb_span_start(struct ebb_slab *slab, struct ebb_span *span)
{
	if (ebb_span_try(slab, span))
		return true;
	list_move_tail(&span->node, &slab->waiting);
	return false;
}

bool ebb_span_uses(const struct ebb_slab *slab, u32 epoch)
{
	const struct ebb_span *span;

	list_for_each_entry(span, &slab->active, node)
		for (int i = 0; i < EBB_COPIES; i++)
			if (span->epoch[i] == epoch)
				return true;
	return false;
}

void ebb_span_end(struct ebb_slab *slab, struct ebb_span *span, struct list_head *to)
{
	struct ebb_span *other, *next;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	if (to)
		list_move(&span->node, to);
	else
		list_del_init(&span->node);
	/* In order of arrival, so that no span overtakes one that it conflicts with. */
	list_for_each_entry_safe(other, next, &slab->waiting, node) {
		if (conflicts(&slab->active, &slab->active, other) ||
		    conflicts(&slab->waiting, &other->node, other))
			continue;
		list_move_tail(&other->node, &slab->active);
		other->begin(other);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
}
