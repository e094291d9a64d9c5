// SPDX-License-Identifier: GPL-2.0-only
/*
 * A donor wants a slab back.  Promised is what can be kept: with a backup every
 * slab can leave, without one user space has to know another donor.
 */
#include "internal.h"
#include "wire.h"

/* How long user space has to find a donor that is better than the backup. */
#define GRACE HZ

/* What the donor lent as @asked; AT_DONORS: not of this slab.  slab->lock is held. */
static enum ebb_at asked_at(const struct ebb_hold *hold, const struct ebb_session *s,
			    const struct ebb_asked *asked)
{
	enum ebb_at at = hold_session(hold, s);

	return at < AT_DONORS && hold->at[at].remote == asked->remote &&
	       hold->at[at].generation == asked->generation ? at : AT_DONORS;
}

/* If it is lent still: index in the device, or none. */
static u32 find(struct ebb_session *s, const struct ebb_asked *asked, bool *leaves)
{
	struct ebb_device *d = s->device;

	for (u32 i = 0; i < d->slab_count; i++) {
		struct ebb_slab *slab = &d->slabs[i];
		unsigned long flags;
		enum ebb_at at;

		spin_lock_irqsave(&slab->lock, flags);
		at = asked_at(slab_hold(d, slab, s->class), s, asked);
		spin_unlock_irqrestore(&slab->lock, flags);
		*leaves = at == AT_SOURCE;
		if (at < AT_DONORS)
			return i;
	}
	return EBB_NO_SLAB;
}

static u16 evict(struct ebb_session *s, const struct ebb_asked *asked)
{
	struct ebb_device *d = s->device;
	struct ebb_hold *hold;
	struct ebb_slab *slab;
	unsigned long flags;
	enum ebb_at at;
	bool leaves, again = true, heard = event_heard();
	u32 index = find(s, asked, &leaves);

	if (index == EBB_NO_SLAB)
		return WIRE_NO_SLAB;
	if (leaves)
		return WIRE_OK;
	if (!d->backup.bdev && !heard)
		return WIRE_NO_ROOM;
	slab = &d->slabs[index];
	hold = slab_hold(d, slab, s->class);
	spin_lock_irqsave(&slab->lock, flags);
	/* A donor asks again and again; the time is from when it asked first. */
	at = asked_at(hold, s, asked);
	if (at < AT_DONORS && !hold->at[at].asked) {
		again = false;
		hold->at[at].asked = true;
		hold->at[at].evict_at = jiffies + (heard ? GRACE : 0);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	if (!again) {
		event_tell(d, EBB_SWAP_EVENT_EVICT, s->index, index, NULL);
		copier_kick(d);
	}
	return WIRE_OK;
}

void evict_answer(struct work_struct *work)
{
	struct ebb_session *s = container_of(work, struct ebb_session, answering);

	for (;;) {
		struct ebb_asked asked;
		unsigned long flags;
		u32 left;

		spin_lock_irqsave(&s->asked_lock, flags);
		left = s->asked_count;
		if (left) {
			asked = s->asked[0];
			memmove(s->asked, s->asked + 1, --s->asked_count * sizeof(asked));
		}
		spin_unlock_irqrestore(&s->asked_lock, flags);
		if (!left || !session_live(s))
			return;
		session_answer(s, &asked, evict(s, &asked));
	}
}

bool evict_overdue(struct ebb_device *d, struct ebb_slab *slab, u32 class)
{
	struct ebb_hold *hold = slab_hold(d, slab, class);
	unsigned long flags;
	bool later = false;

	spin_lock_irqsave(&slab->lock, flags);
	/* The second before the first, which it would be without that; one at a time. */
	for (int i = EBB_COPIES - 1; i >= 0 && d->backup.bdev; i--) {
		const struct ebb_place *place = &hold->at[i];

		if (!place->session || !place->asked)
			continue;
		if (hold->at[AT_SOURCE].session || time_before(jiffies, place->evict_at))
			later = true;
		else
			slab_move(d, slab, class, i, NULL);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	return later;
}
