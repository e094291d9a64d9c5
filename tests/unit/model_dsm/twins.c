// SPDX-License-Identifier: GPL-2.0-or-later
/* Twins at a second donor, and members that lose the first one. */
#include <errno.h>
#include <string.h>

#include "inside.h"

/* Returns whether the place is at the donor that members lose. */
bool is_near(uint32_t place)
{
	return place + W.second < W.places;
}

bool has_twin(uint32_t place)
{
	return W.second && is_near(place);
}

bool at_twin(const struct flight *f)
{
	return f->doing == COPY || f->doing == READ_SAVED || f->doing == RENAME;
}

/* Returns whether @m cannot reach place @at. */
bool is_cut(uint32_t m, uint64_t at)
{
	return W.m[m].cut && is_near((uint32_t)(place_at(at) - W.place));
}

static bool works_at(const struct member *me, uint32_t place)
{
	return (me->f.doing && me->f.place == place) ||
	       (me->posted.doing == COPY && me->posted.place == place && !mutant(DSM_TWIN_LATE));
}

/* A read of a value that is its live owner's has failed. */
void check_current(const struct message *s)
{
	const struct member *owner = &W.m[s->giver];
	uint32_t place = (uint32_t)(place_at(s->at) - W.place);
	const struct slot *slot = &owner->slot[place];

	if (owner->alive && owner->incarnation == s->incarnation && W.second &&
	    (slot->state == OWNED || slot->state == LENT) && slot->name == s->stamp &&
	    !works_at(owner, place))
		wrong("a value that a twin has was not read");
}

/* Returns whether the value that a view names is its owner's no more. */
bool is_over(const struct message *s)
{
	const struct member *owner = &W.m[s->giver];
	uint32_t place = (uint32_t)(place_at(s->at) - W.place);
	const struct slot *slot = &owner->slot[place];

	return owner->alive && owner->incarnation == s->incarnation &&
	       !works_at(owner, place) &&
	       (slot->name != s->stamp || (slot->state != OWNED && slot->state != LENT &&
					   slot->state != OFFERED));
}

/* Returns whether @m may read what is over: its owner could not say so where @m reads. */
bool may_be_over(uint32_t m, const struct message *s)
{
	return is_cut(s->giver, s->at) && !is_cut(m, s->at);
}

/* The member that has lent or given the place gets what it can. */
void reclaim_lost(uint32_t m, uint32_t place)
{
	struct slot *s = &W.m[m].slot[place];
	struct box *b = &W.box[s->box];
	int r = dsm_reclaim_lost(s->state == LENT ? DSM_HOLD_LENT : DSM_HOLD_OFFERED, -EIO);

	if (mutant(DSM_TWO_PRIMARIES) && s->state == OFFERED) {
		b->owner = (uint8_t)(m + 1);
		r = -EOWNERDEAD;
	}
	if (r == -EOWNERDEAD) {
		s->state = OWNED;
		b->borrower = b->told = 0;
		b->ended = 1;
	} else {
		free_place(m, place);
	}
}

void begin_rename(uint32_t m, uint32_t place)
{
	struct flight *f = &W.m[m].f;
	struct slot *s = &W.m[m].slot[place];

	f->other = (uint8_t)reserve(m, true);
	f->place = (uint8_t)place;
	f->box = s->box;
	dsm_read_twin(&f->op, at_of(m, place), s->name);
	f->doing = RENAME;
	go_on(m, f, 0);
}

/* The operation has not reached the donor, or its reply has not come. */
static void end_cut(uint32_t m, struct flight *f)
{
	struct member *me = &W.m[m];
	struct slot *s = &me->slot[f->place];
	uint32_t place = f->place;

	switch ((enum doing)f->doing) {
	case NEW:
	case CHANGE:
	case READ:
		f->op.result = -EIO;
		ended(m, f);
		return;
	case OFFER:
		s->state = OWNED;
		break;
	case TAKE:
		free_place(m, f->place);
		release_claim(m, f->claim);
		break;
	case BACK:
		release_claim(m, s->claim);
		free_place(m, f->place);
		break;
	case RECLAIM:
	case SETTLE:
	case TAKE_BACK:
	case RESTORE:
		if (f->doing != RESTORE && s->state == LENT) {
			free_place(m, f->other);
			release_claim(m, f->claim);
		}
		s->from = s->state == LENT ? 0 : s->from;
		memset(f, 0, sizeof(*f));
		if (s->state == LENT)
			reclaim_lost(m, place);
		return;
	case FINISH:
		release_claim(m, f->claim);
		break;
	default:
		return;
	}
	memset(f, 0, sizeof(*f));
}

/* @m loses the donor.  What is in flight may take effect until the fence. */
void cut(uint32_t m)
{
	struct member *me = &W.m[m];
	struct flight *f = &me->f;

	me->cut = 1;
	for (uint32_t i = 0; i < W.places; i++)
		if (me->slot[i].state == OFFERED && is_near(i) &&
		    W.box[me->slot[i].box].owner == m + 1)
			W.box[me->slot[i].box].owner = 0;
	if (!f->doing || at_twin(f) || !is_cut(m, f->op.at))
		return;
	if (in_flight(f) && !f->zeroing && !me->posted.doing && f->doing != READ) {
		me->posted = *f;
		me->posted.late = 1;
	}
	f->zeroing = 0;
	end_cut(m, f);
}

/* The donor frees what a member has that it has lost, and leaves its bytes as they are. */
void fence(uint32_t m)
{
	struct member *me = &W.m[m];

	me->fenced = 1;
	if (me->posted.late)
		memset(&me->posted, 0, sizeof(me->posted));
	for (uint32_t i = 0; i < W.places; i++)
		if (is_near(i) && W.place[i].owner == m + 1) {
			W.place[i].owner = 0;
			W.place[i].fenced = 1;
		}
	W.presence[m].owned = 0;
	W.presence[m].generation++;
}
