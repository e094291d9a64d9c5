// SPDX-License-Identifier: GPL-2.0-or-later
/* What members do, and what has to be true when they have. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"

static void start(uint32_t m, struct flight *f, enum doing doing, uint64_t at, uint64_t stamp)
{
	f->doing = (uint8_t)doing;
	f->generation = (uint16_t)dsm_generation(stamp);
	go_on(m, f, 0);
}

static bool lives(uint32_t number, uint32_t incarnation)
{
	return number && W.m[number - 1].alive && W.m[number - 1].incarnation == incarnation;
}

void begin_new(uint32_t m)
{
	struct flight *f = &W.m[m].f;
	int place = reserve(m, false);
	uint64_t at = at_of(m, (uint32_t)place), stamp = next_stamp(&W.place[place]);

	f->place = (uint8_t)place;
	f->box = W.boxes++;
	f->body[0] = new_value();
	if (!W.place[place].zeroed && mutant(DSM_NO_ZERO))
		W.place[place].zeroed = 1;
	f->zeroing = !W.place[place].zeroed;
	dsm_change(&f->op, at, stamp);
	start(m, f, NEW, at, stamp);
}

void begin_change(uint32_t m, uint32_t place)
{
	struct flight *f = &W.m[m].f;
	uint64_t at = at_of(m, place);
	uint64_t stamp = mutant(DSM_CACHE_SURVIVES) ? head_of(place)->stamp :
						       next_stamp(&W.place[place]);

	f->place = (uint8_t)place;
	f->box = W.m[m].slot[place].box;
	f->body[0] = new_value();
	dsm_change(&f->op, at, stamp);
	start(m, f, CHANGE, at, stamp);
}

void begin_offer(uint32_t m, uint32_t place, enum dsm_hold state)
{
	struct flight *f = &W.m[m].f;
	struct slot *s = &W.m[m].slot[place];

	s->ticket = next_stamp(&W.place[place]);
	f->place = (uint8_t)place;
	f->box = s->box;
	f->other = state;
	dsm_offer(&f->op, at_of(m, place), s->ticket, state);
	start(m, f, OFFER, 0, s->ticket);
}

static void begin_saved(uint32_t m, struct flight *f)
{
	const struct message *s = &W.message[f->message];

	dsm_read_twin(&f->op, s->at, s->stamp);
	start(m, f, READ_SAVED, s->at, s->stamp);
}

void begin_read(uint32_t m, uint32_t message)
{
	struct message *s = &W.message[message];
	struct flight *f = &W.m[m].f;

	for (int i = 0; i < CACHED; i++)
		if (W.m[m].cache[i].at == s->at && W.m[m].cache[i].stamp == s->stamp) {
			if (W.m[m].cache[i].value != value_of(s->at, s->stamp))
				wrong("a cached read returned an old value");
			return;
		}
	f->message = (uint8_t)message;
	f->over = W.second && is_over(s) && !may_be_over(m, s);
	if (is_cut(m, s->at) && !mutant(DSM_MAPPED_FIRST)) {
		begin_saved(m, f);
		return;
	}
	dsm_read(&f->op, s->at, s->stamp);
	start(m, f, READ, s->at, s->stamp);
}

void begin_take(uint32_t m, uint32_t message)
{
	struct message *s = &W.message[message];
	struct flight *f = &W.m[m].f;

	f->message = (uint8_t)message;
	f->box = s->box;
	f->place = (uint8_t)reserve(m, true);
	f->claim = (uint8_t)reserve_claim(m);
	dsm_take(&f->op, s->at, s->stamp,
		 s->kind == PARCEL ? DSM_HOLD_OFFERED : DSM_HOLD_LENT, claim_of(m, f->claim),
		 W.presence[m].generation);
	start(m, f, TAKE, s->at, s->stamp);
}

/* Returns whether the new value of @f, at its place, goes to its twin, too. */
static bool begin_copy(uint32_t m, struct flight *f)
{
	struct flight was = *f;

	if (!has_twin(f->place))
		return false;
	memset(f, 0, sizeof(*f));
	f->place = was.place;
	f->box = was.box;
	f->after = was.doing;
	memcpy(f->body, was.body, sizeof(f->body));
	dsm_copy(&f->op, was.op.at, was.op.stamp);
	start(m, f, COPY, was.op.at, was.op.stamp);
	return true;
}

static void begin_finish(uint32_t m, struct flight *f, uint64_t at, uint64_t ticket)
{
	uint8_t claim = f->claim;

	memset(f, 0, sizeof(*f));
	f->claim = claim;
	dsm_finish(&f->op, at, claim_of(m, claim));
	start(m, f, FINISH, at, ticket);
}

void begin_back(uint32_t m, uint32_t place)
{
	struct member *me = &W.m[m];
	struct slot *s = &me->slot[place];
	struct flight *f = mutant(DSM_ASYNC_OWNER) ? &me->posted : &me->f;
	struct box *b = &W.box[s->box];

	fill(m, place, s->value = new_value());
	s->ticket = next_stamp(&W.place[place]);
	head_of(place)->hold = s->ticket | DSM_HOLD_OFFERED;
	s->state = GIVEN_BACK;
	b->back = s->value;
	f->place = (uint8_t)place;
	f->box = s->box;
	if (mutant(DSM_ASYNC_OWNER))
		b->told = 1;
	dsm_give_back(&f->op, s->from, s->from_ticket, claim_of(m, s->claim),
		      W.presence[m].generation, at_of(m, place), s->ticket);
	start(m, f, BACK, s->from, s->from_ticket);
}

/* False: there is no memory for what may come back. */
bool begin_reclaim(uint32_t m, uint32_t place, enum doing doing)
{
	struct member *me = &W.m[m];
	struct slot *s = &me->slot[place];
	struct flight *f = &me->f;
	bool may_return = s->state == LENT;

	if (may_return) {
		int other = reserve(m, true), claim = reserve_claim(m);

		if (claim < 0 || other < 0) {
			if (other >= 0)
				free_place(m, (uint32_t)other);
			if (claim >= 0)
				release_claim(m, (uint32_t)claim);
			return false;
		}
		f->other = (uint8_t)other;
		f->claim = (uint8_t)claim;
	}
	f->place = (uint8_t)place;
	f->box = s->box;
	f->told = W.box[s->box].told;
	dsm_reclaim(&f->op, at_of(m, place), s->ticket,
		    s->state == LENT ? DSM_HOLD_LENT : DSM_HOLD_OFFERED, doing == RECLAIM);
	start(m, f, doing, 0, s->ticket);
	return true;
}

/* The object of @f is @m's, in the place that was reserved. */
static void own(uint32_t m, uint32_t place, uint32_t box)
{
	uint64_t name = fill(m, place, W.box[box].value);

	W.m[m].slot[place] = (struct slot){ .state = OWNED, .box = (uint8_t)box, .name = name };
}

static void check_body(const struct flight *f, uint64_t value, const char *what)
{
	for (int i = 0; i < WORDS; i++)
		if (f->body[i] != value)
			wrong(what);
}

static void take_ended(uint32_t m, struct flight *f)
{
	const struct message *s = &W.message[f->message];
	struct slot *slot = &W.m[m].slot[f->place];
	struct box *b = &W.box[f->box];

	if (f->op.result) {
		if (f->op.result == -EOWNERDEAD && lives(s->giver + 1u, s->incarnation) &&
		    !W.m[s->giver].cut)
			wrong("a live member counts as dead");
		if (!W.m[s->giver].cut && f->op.old == (f->op.stamp | f->op.state) &&
		    lives(s->giver + 1u, s->incarnation))
			wrong("a box is lost");
		free_place(m, f->place);
		release_claim(m, f->claim);
		memset(f, 0, sizeof(*f));
		return;
	}
	/* The object may be another by now. */
	if (!b->ended)
		check_body(f, b->value, "a box was taken with an old value");
	if (s->kind == PARCEL && b->owner && b->owner != m + 1 && W.m[b->owner - 1].alive)
		wrong("a box has two owners");
	if (s->kind == PARCEL) {
		b->owner = (uint8_t)(m + 1);
		own(m, f->place, f->box);
		begin_finish(m, f, s->at, s->stamp);
		return;
	}
	*slot = (struct slot){ .state = GUEST, .box = f->box, .claim = f->claim, .from = s->at,
			       .from_ticket = s->stamp };
	memset(f, 0, sizeof(*f));
}

static void back_ended(uint32_t m, struct flight *f)
{
	struct slot *s = &W.m[m].slot[f->place];
	struct box *b = &W.box[f->box];

	if (f->op.result) {
		if (W.m[member_of(s->from)].alive && place_at(s->from)->generation ==
		    dsm_generation(s->from_ticket) && !mutant(DSM_ASYNC_OWNER) &&
		    !W.m[member_of(s->from)].cut)
			wrong("a live member counts as dead");
		release_claim(m, s->claim);
		free_place(m, f->place);
	} else if (b->borrower == m + 1) {
		b->told = 1;
	}
	if (mutant(DSM_EARLY_CLAIM) && !f->op.result) {
		memset(record_at(claim_of(m, s->claim)), 0, sizeof(struct dsm_record));
		release_claim(m, s->claim);
	}
	memset(f, 0, sizeof(*f));
}

/* The object at place @f->place, which had been lent, is the owner's as it was. */
static void check_restored(uint32_t m, const struct flight *f)
{
	const struct box *b = &W.box[f->box];

	if (f->op.result == -EOWNERDEAD && lives(b->borrower, b->borrower_incarnation) &&
	    !W.m[b->borrower - 1].cut)
		wrong("a box was reclaimed from a live borrower");
	for (uint32_t i = 0; i < W.members; i++)
		for (uint32_t k = 0; k < W.places && !f->op.result; k++)
			if (W.m[i].alive && W.m[i].slot[k].state == GUEST &&
			    W.m[i].slot[k].from_ticket == W.m[m].slot[f->place].ticket)
				wrong("a box was reclaimed from a live borrower");
}

/* Returns whether @m has the box at another place than @but. */
static bool has_box(uint32_t m, uint32_t box, uint32_t but)
{
	for (uint32_t i = 0; i < W.places; i++)
		if (i != but && W.m[m].slot[i].state && W.m[m].slot[i].box == box)
			return true;
	return false;
}

static void reclaim_unused(uint32_t m, const struct flight *f)
{
	if (W.m[m].slot[f->place].state != LENT)
		return;
	free_place(m, f->other);
	release_claim(m, f->claim);
}

static void reclaim_ended(uint32_t m, struct flight *f)
{
	struct slot *s = &W.m[m].slot[f->place];
	struct box *b = &W.box[f->box];
	struct flight was = *f;

	if (f->op.result == DSM_RETURNED) {
		memset(&f->op, 0, sizeof(f->op));
		dsm_take(&f->op, was.op.other.at, was.op.other.back, DSM_HOLD_OFFERED,
			 claim_of(m, f->claim), W.presence[m].generation);
		/* What a failure restores. */
		s->from = was.op.old;
		start(m, f, TAKE_BACK, was.op.other.at, was.op.other.back);
		return;
	}
	reclaim_unused(m, f);
	if (s->state == GIVEN_BACK) {
		/* The owner takes it, or is dead. */
		bool owner_dead = place_at(s->from)->owner != member_of(s->from) + 1 ||
				  place_at(s->from)->generation != dsm_generation(s->from_ticket);

		if ((f->op.result == -EAGAIN && !owner_dead) || f->op.result == -EBUSY) {
			if (mutant(DSM_EARLY_FREE) && f->op.result == -EBUSY)
				goto free;
			memset(f, 0, sizeof(*f));
			return;
		}
		if (f->op.result == -EAGAIN) {
			memset(f, 0, sizeof(*f));
			begin_reclaim(m, was.place, RECLAIM);
			return;
		}
free:
		if (!mutant(DSM_EARLY_CLAIM))
			memset(record_at(claim_of(m, s->claim)), 0, sizeof(struct dsm_record));
		release_claim(m, s->claim);
		free_place(m, f->place);
		memset(f, 0, sizeof(*f));
		return;
	}
	switch (f->op.result) {
	case -EOWNERDEAD:
	case 0:
		if (s->state == LENT)
			check_restored(m, f);
		s->state = OWNED;
		b->borrower = b->told = 0;
		break;
	case -EBUSY:
		if (s->state == LENT && f->told && lives(b->borrower, b->borrower_incarnation))
			wrong("a box is still borrowed after its return");
		if (mutant(DSM_EARLY_FREE) && s->state == OFFERED)
			free_place(m, f->place);
		break;
	case -ESTALE:
		if (b->owner == m + 1 && !has_box(m, f->box, f->place))
			wrong("a box is lost");
		free_place(m, f->place);
		break;
	default:
		break;
	}
	memset(f, 0, sizeof(*f));
}

static void take_back_ended(uint32_t m, struct flight *f)
{
	struct box *b = &W.box[f->box];
	struct slot *s = &W.m[m].slot[f->place];
	uint64_t at = f->op.at, ticket = f->op.stamp, hold = s->from;

	s->from = 0;
	if (f->op.result) {
		free_place(m, f->other);
		release_claim(m, f->claim);
		dsm_restore(&f->op, at_of(m, f->place), hold);
		start(m, f, RESTORE, 0, s->ticket);
		return;
	}
	check_body(f, b->back, "a change of a borrower is lost");
	b->value = b->back;
	b->borrower = b->told = 0;
	own(m, f->other, f->box);
	free_place(m, f->place);
	begin_finish(m, f, at, ticket);
}

/* As in box.c. */
static bool may_be_saved(const struct flight *f)
{
	if (!has_twin((uint32_t)(place_at(f->op.at) - W.place)))
		return false;
	if (f->op.result == -EIO)
		return true;
	if (mutant(DSM_OLD_PRIMARY))
		return false;
	return f->op.result == -EOWNERDEAD ||
	       (f->op.result == -ESTALE && dsm_was_left(&f->op));
}

static void read_ended(uint32_t m, struct flight *f)
{
	struct member *me = &W.m[m];
	const struct message *s = &W.message[f->message];

	if (!f->op.result) {
		check_body(f, value_of(f->op.at, f->op.stamp),
			   "a read returned a torn or old value");
		if (f->over)
			wrong("a value that is over was read");
		me->cache[me->cached].at = f->op.at;
		me->cache[me->cached].stamp = f->op.stamp;
		me->cache[me->cached].value = f->body[0];
		me->cached = (me->cached + 1) % CACHED;
		return;
	}
	if (f->op.result == -EOWNERDEAD && lives(s->giver + 1u, s->incarnation) &&
	    !mutant(DSM_OLD_PRIMARY))
		wrong("a live member counts as dead");
	check_current(s);
}

/* The value of @f is its place's. */
static void stored(uint32_t m, struct flight *f, uint32_t doing)
{
	struct slot *s = &W.m[m].slot[f->place];
	struct box *b = &W.box[f->box];

	if (doing == NEW) {
		*s = (struct slot){ .state = OWNED, .box = f->box };
		*b = (struct box){ .owner = (uint8_t)(m + 1), .value = f->body[0], .exists = 1 };
	}
	b->value = f->body[0];
	s->name = f->op.stamp;
	publish(f->op.at, f->op.stamp, f->body[0]);
}

void ended(uint32_t m, struct flight *f)
{
	struct member *me = &W.m[m];
	struct slot *s = &me->slot[f->place];
	struct box *b = &W.box[f->box];

	dsm_reached[f->doing] |= 1ull << (f->op.result == DSM_RETURNED ? 1 : -f->op.result & 63);
	switch ((enum doing)f->doing) {
	case NEW:
	case CHANGE:
		if (mutant(DSM_TWIN_LATE)) {
			stored(m, f, f->doing);
			me->posted = *f;
			if (!begin_copy(m, &me->posted))
				memset(&me->posted, 0, sizeof(me->posted));
			break;
		}
		if (begin_copy(m, f))
			return;
		stored(m, f, f->doing);
		break;
	case COPY:
		if (f == &me->f)
			stored(m, f, f->after);
		break;
	case RENAME:
		if (f->op.result)
			wrong("a box with a twin is lost");
		check_body(f, b->value, "a box has another value");
		own(m, f->other, f->box);
		free_place(m, f->place);
		break;
	case READ_SAVED:
		read_ended(m, f);
		break;
	case OFFER:
		s->state = f->other == DSM_HOLD_LENT ? LENT : OFFERED;
		send_message(f->other == DSM_HOLD_LENT ? LOAN : PARCEL, m, f->box,
			     at_of(m, f->place), s->ticket);
		break;
	case READ:
		if (may_be_saved(f)) {
			uint8_t message = f->message, over = f->over;

			memset(f, 0, sizeof(*f));
			f->message = message;
			f->over = over;
			begin_saved(m, f);
			return;
		}
		read_ended(m, f);
		break;
	case TAKE:
		take_ended(m, f);
		return;
	case FINISH:
		release_claim(m, f->claim);
		break;
	case BACK:
		back_ended(m, f);
		return;
	case RECLAIM:
	case SETTLE:
		reclaim_ended(m, f);
		return;
	case TAKE_BACK:
		take_back_ended(m, f);
		return;
	case RESTORE:
		check_restored(m, f);
		s->state = OWNED;
		b->borrower = b->told = 0;
		break;
	case IDLE:
	case DOINGS:
		break;
	}
	memset(f, 0, sizeof(*f));
}
