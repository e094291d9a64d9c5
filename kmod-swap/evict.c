// SPDX-License-Identifier: GPL-2.0-only
#include "copy.h"
#include "event.h"
#include "evict.h"
#include "wire.h"

/* Jiffies that user space has to find another donor before the slab moves to the backup. */
#define GRACE HZ

/* Returns the slab's place that @recall names; AT_DONORS = none.  slab->lock is held. */
static enum ebb_at recalled_at(const struct ebb_hold *hold, const struct ebb_session *s,
			    const struct ebb_recall *recall)
{
	enum ebb_at at = ebb_hold_session(hold, s);

	return at < AT_DONORS && hold->at[at].loan->remote == recall->remote &&
	       hold->at[at].loan->generation == recall->generation ? at : AT_DONORS;
}

/* Returns the slab that @recall names, or EBB_NO_SLAB; *@leaves = it is migrating already. */
static u32 find(struct ebb_session *s, const struct ebb_recall *recall, bool *leaves)
{
	struct ebb_device *d = s->device;

	for (u32 i = 0; i < d->slab_count; i++) {
		struct ebb_slab *slab = &d->slabs[i];
		unsigned long flags;
		enum ebb_at at;

		spin_lock_irqsave(&slab->lock, flags);
		at = recalled_at(ebb_slab_hold(d, slab, s->class), s, recall);
		spin_unlock_irqrestore(&slab->lock, flags);
		*leaves = at == AT_SOURCE;
		if (at < AT_DONORS)
			return i;
	}
	return EBB_NO_SLAB;
}

/* Returns whether the donor recalls slabs faster than the protocol allows: find() takes long. */
static bool too_often(struct ebb_session *s)
{
	if (time_after(jiffies, s->looked_since + HZ)) {
		s->looked_since = jiffies;
		s->looked = 0;
	}
	return s->looked++ >= EBB_RECALLS_A_SECOND;
}

u16 ebb_evict_recalled(struct ebb_session *s, const struct ebb_recall *recall)
{
	struct ebb_device *d = s->device;
	struct ebb_hold *hold;
	struct ebb_slab *slab;
	unsigned long flags;
	enum ebb_at at;
	bool leaves, again = true, heard = ebb_event_has_listeners();
	u32 index;

	if (too_often(s))
		return WIRE_NO_ROOM;
	index = find(s, recall, &leaves);
	if (index == EBB_NO_SLAB)
		return WIRE_NO_SLAB;
	if (leaves)
		return WIRE_OK;
	if (!d->backup.bdev && !heard)
		return WIRE_NO_ROOM;
	slab = &d->slabs[index];
	hold = ebb_slab_hold(d, slab, s->class);
	spin_lock_irqsave(&slab->lock, flags);
	/* A donor repeats its recalls; the grace period begins at the first. */
	at = recalled_at(hold, s, recall);
	if (at < AT_DONORS && !hold->at[at].recalled) {
		again = false;
		hold->at[at].recalled = true;
		hold->at[at].evict_at = jiffies + (heard ? GRACE : 0);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!again) {
		ebb_event_send(d, EBB_SWAP_EVENT_EVICT, s->index, index, 0, NULL);
		ebb_copier_kick(d);
	}
	return WIRE_OK;
}
