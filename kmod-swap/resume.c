// SPDX-License-Identifier: GPL-2.0-only
#include "loan.h"
#include "resume.h"
#include "slab.h"

/* Places that are confirmed together. */
struct places {
	u32 count;
	struct ebb_slab *slab[EBB_REQUESTS];
	u32 epoch[EBB_REQUESTS];
	struct ebb_confirm confirm[EBB_REQUESTS];
};

/* Adds @slab's place at @s, if it has one. */
static void place_add(struct places *p, struct ebb_session *s, struct ebb_slab *slab)
{
	struct ebb_hold *hold = ebb_slab_hold(s->device, slab, s->class);
	unsigned long flags;
	enum ebb_at at;

	spin_lock_irqsave(&slab->lock, flags);
	at = ebb_hold_session(hold, s);
	if (at < AT_DONORS) {
		p->slab[p->count] = slab;
		p->epoch[p->count] = hold->at[at].epoch;
		p->confirm[p->count++].loan = hold->at[at].loan;
	}
	spin_unlock_irqrestore(&slab->lock, flags);
}

/* Sets a confirmed place's address and key, or removes the place. */
static void place_resume(struct ebb_session *s, struct ebb_slab *slab, u32 epoch,
			 const struct ebb_confirm *c)
{
	struct ebb_hold *hold = ebb_slab_hold(s->device, slab, s->class);
	unsigned long flags;
	enum ebb_at at;

	spin_lock_irqsave(&slab->lock, flags);
	/* A command may have ended the mapping, or migrated the slab. */
	at = ebb_hold_epoch(hold, epoch);
	if (at < AT_DONORS && c->result) {
		ebb_slab_detach(s->device, slab, s);
	} else if (at < AT_DONORS) {
		hold->at[at].address = c->address;
		hold->at[at].rkey = c->rkey;
	}
	spin_unlock_irqrestore(&slab->lock, flags);
}

static int places_resume(struct places *p, struct ebb_session *s)
{
	int r = ebb_session_confirm(s, p->confirm, p->count);

	for (u32 i = 0; !r && i < p->count; i++)
		place_resume(s, p->slab[i], p->epoch[i], &p->confirm[i]);
	p->count = 0;
	return r;
}

int ebb_resume_slabs(struct ebb_session *s)
{
	const struct ebb_device *d = s->device;
	struct places p = {};
	int r = 0;

	for (u32 i = 0; !r && i < d->slab_count; i++) {
		place_add(&p, s, &d->slabs[i]);
		if (p.count == EBB_REQUESTS)
			r = places_resume(&p, s);
	}
	return r || !p.count ? r : places_resume(&p, s);
}
