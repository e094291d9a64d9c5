// SPDX-License-Identifier: GPL-2.0-only
/*
 * A donor wants a slab back.  Promised is what can be kept: with a backup every
 * slab can leave, without one user space has to know another donor.
 */
#include "internal.h"
#include "wire.h"

/* How long user space has to find a donor that is better than the backup. */
#define GRACE HZ

/* What the donor lent as @asked, if it is lent still: index in the device, or none. */
static u32 find(struct ebb_session *s, const struct ebb_asked *asked, bool *leaves)
{
	struct ebb_device *d = s->device;

	for (u32 i = 0; i < d->slab_count; i++) {
		struct ebb_slab *slab = &d->slabs[i];
		const struct ebb_hold *hold = slab_hold(d, slab, s->class);
		const struct ebb_place *place = NULL;
		unsigned long flags;

		spin_lock_irqsave(&slab->lock, flags);
		if (hold->donor.session == s && hold->donor.remote == asked->remote)
			place = &hold->donor;
		else if (hold->source.session == s && hold->source.remote == asked->remote)
			place = &hold->source;
		*leaves = place == &hold->source;
		if (place && place->generation == asked->generation) {
			spin_unlock_irqrestore(&slab->lock, flags);
			return i;
		}
		spin_unlock_irqrestore(&slab->lock, flags);
	}
	return EBB_NO_SLAB;
}

static u16 evict(struct ebb_session *s, const struct ebb_asked *asked)
{
	struct ebb_device *d = s->device;
	struct ebb_hold *hold;
	struct ebb_slab *slab;
	unsigned long flags;
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
	if (hold->donor.session == s && hold->evict_epoch != hold->donor.epoch) {
		again = false;
		hold->evict_epoch = hold->donor.epoch;
		hold->evict_at = jiffies + (heard ? GRACE : 0);
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

enum evict_state evict_overdue(struct ebb_device *d, struct ebb_slab *slab, u32 class)
{
	struct ebb_hold *hold = slab_hold(d, slab, class);
	static const struct ebb_place none;
	enum evict_state state = EVICT_NONE;
	unsigned long flags;

	spin_lock_irqsave(&slab->lock, flags);
	/* A slab that has moved since has another epoch. */
	if (hold->evict_epoch && hold->donor.session && hold->donor.epoch == hold->evict_epoch &&
	    !hold->source.session && d->backup.bdev) {
		state = time_before(jiffies, hold->evict_at) ? EVICT_LATER : EVICT_NOW;
		if (state == EVICT_NOW)
			slab_move(d, slab, class, &none);
	}
	spin_unlock_irqrestore(&slab->lock, flags);
	return state;
}
