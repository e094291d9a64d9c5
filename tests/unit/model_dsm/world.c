// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"

enum step_kind { EFFECT, POSTED_EFFECT, S_NEW, S_CHANGE, S_DROP, S_RELEASE, S_MOVE, S_LEND, S_VIEW,
		 S_READ, S_TAKE, S_BACK, S_RECLAIM, S_SETTLE, S_CRASH, S_RECOVER, S_REJOIN,
		 S_CUT, S_FENCE, S_RENAME, STEP_KINDS };

static const char *const step_names[] = {
	"effect", "posted effect", "new", "change", "drop", "release", "move", "lend", "view",
	"read", "take", "back", "reclaim", "settle", "crash", "recover", "rejoin", "cut", "fence",
	"rename",
};

const char *dsm_world_name(const struct dsm_world_step *step)
{
	return step_names[step->kind];
}

static struct {
	struct dsm_world_step *out;
	int n;
} list;

static void add(enum step_kind kind, uint32_t m, uint32_t what)
{
	if (list.n < DSM_WORLD_STEPS)
		list.out[list.n++] = (struct dsm_world_step){ .kind = (uint8_t)kind,
							      .member = (uint8_t)m,
							      .what = (uint8_t)what };
}

/* Of what the member cannot reach. */
static void add_of_lost(uint32_t m, uint32_t i)
{
	const struct dsm_budget *b = &W.budget;
	bool is_new;

	switch (W.m[m].slot[i].state) {
	case OWNED:
		if (find_place(m, &is_new) >= 0)
			add(S_RENAME, m, i);
		if (b->drops)
			add(S_DROP, m, i);
		if (b->views)
			add(S_VIEW, m, i);
		break;
	case LENT:
	case OFFERED:
		if (b->reclaims)
			add(S_RECLAIM, m, i);
		break;
	default:
		break;
	}
}

static void add_of_slot(uint32_t m, uint32_t i)
{
	const struct dsm_budget *b = &W.budget;

	if (W.m[m].cut && is_near(i)) {
		add_of_lost(m, i);
		return;
	}
	switch (W.m[m].slot[i].state) {
	case UNUSED:
		if (b->releases)
			add(S_RELEASE, m, i);
		break;
	case OWNED:
		if (b->changes)
			add(S_CHANGE, m, i);
		if (b->drops)
			add(S_DROP, m, i);
		if (b->moves && !W.m[m].cut)
			add(S_MOVE, m, i);
		if (b->loans && !W.m[m].cut)
			add(S_LEND, m, i);
		if (b->views)
			add(S_VIEW, m, i);
		break;
	case LENT:
	case OFFERED:
		if (b->reclaims)
			add(S_RECLAIM, m, i);
		if (b->reclaims && W.m[m].slot[i].state == OFFERED)
			add(S_SETTLE, m, i);
		if (b->views)
			add(S_VIEW, m, i);
		break;
	case GUEST:
		if (!is_cut(m, W.m[m].slot[i].from))
			add(S_BACK, m, i);
		break;
	case GIVEN_BACK:
		if (b->reclaims && !W.m[m].posted.doing)
			add(S_SETTLE, m, i);
		break;
	default:
		break;
	}
}

static void add_of_member(uint32_t m)
{
	const struct dsm_budget *b = &W.budget;
	bool is_new;

	if (b->boxes && find_place(m, &is_new) >= 0)
		add(S_NEW, m, 0);
	for (uint32_t i = 0; i < W.places; i++)
		add_of_slot(m, i);
	for (uint32_t i = 0; i < MESSAGES; i++) {
		const struct message *s = &W.message[i];

		if (s->kind == VIEW && b->reads && member_of(s->at) != m)
			add(S_READ, m, i);
		if (W.m[m].cut)
			continue;
		if ((s->kind == PARCEL || s->kind == LOAN) && b->takes && member_of(s->at) != m &&
		    find_place(m, &is_new) >= 0 && W.m[m].claims != (1 << CLAIMS) - 1)
			add(S_TAKE, m, i);
	}
}

int dsm_world_possible(struct dsm_world_step out[static DSM_WORLD_STEPS])
{
	list.out = out;
	list.n = 0;
	for (uint32_t m = 0; m < W.members; m++) {
		const struct member *me = &W.m[m];
		bool dead = !me->alive && !me->vacant;

		if (me->posted.doing && (me->alive || (dead && in_flight(&me->posted))))
			add(POSTED_EFFECT, m, 0);
		if (me->alive && me->f.doing)
			add(EFFECT, m, 0);
		else if (me->alive)
			add_of_member(m);
		else if (in_flight(&me->f) && (dead || mutant(DSM_NO_FENCE)))
			add(EFFECT, m, 0);
		if (me->alive && W.budget.crashes)
			add(S_CRASH, m, 0);
		if (me->alive && !me->cut && W.second && W.budget.cuts)
			add(S_CUT, m, 0);
		if (me->alive && me->cut && !me->fenced)
			add(S_FENCE, m, 0);
		if (dead)
			add(S_RECOVER, m, 0);
		if (!me->alive && me->vacant && W.budget.rejoins && !me->f.doing)
			add(S_REJOIN, m, 0);
	}
	return list.n;
}

static void crash(uint32_t m)
{
	W.m[m].alive = 0;
	for (int i = 0; i < BOXES; i++)
		if (W.box[i].owner == m + 1)
			W.box[i].owner = 0;
}

static void recover(uint32_t m)
{
	struct member *me = &W.m[m];
	struct flight f = me->f;

	memset(&me->slot, 0, sizeof(me->slot));
	memset(&me->cache, 0, sizeof(me->cache));
	memset(&me->f, 0, sizeof(me->f));
	memset(&me->posted, 0, sizeof(me->posted));
	if (mutant(DSM_NO_FENCE))
		me->f = f;
	me->claims = me->cached = me->cut = me->fenced = 0;
	me->vacant = 1;
	for (int i = 0; i < PLACES; i++)
		if (W.place[i].owner == m + 1) {
			W.place[i].owner = 0;
			W.place[i].generation++;
		}
	W.presence[m].owned = 0;
	W.presence[m].generation++;
}

static void rejoin(uint32_t m)
{
	W.m[m].alive = 1;
	W.m[m].vacant = 0;
	W.m[m].incarnation++;
	W.presence[m].owned = 1;
	memset(W.presence[m].record, 0, sizeof(W.presence[m].record));
}

static void view(uint32_t m, uint32_t place)
{
	send_message(VIEW, m, W.m[m].slot[place].box, at_of(m, place), W.m[m].slot[place].name);
}

static void drop(uint32_t m, uint32_t place)
{
	W.box[W.m[m].slot[place].box].owner = 0;
	free_place(m, place);
}

static void release(uint32_t m, uint32_t place)
{
	W.m[m].slot[place] = (struct slot){ .state = NOT_MINE };
	W.place[place].owner = 0;
	W.place[place].generation++;
	W.place[place].number = 0;
}

static void take_step(const struct dsm_world_step *s)
{
	uint32_t m = s->member;
	struct dsm_budget *b = &W.budget;

	switch ((enum step_kind)s->kind) {
	case EFFECT:
		effect(m, &W.m[m].f);
		break;
	case POSTED_EFFECT:
		effect(m, &W.m[m].posted);
		break;
	case S_NEW:
		b->boxes--;
		begin_new(m);
		break;
	case S_CHANGE:
		b->changes--;
		begin_change(m, s->what);
		break;
	case S_DROP:
		b->drops--;
		drop(m, s->what);
		break;
	case S_RELEASE:
		b->releases--;
		release(m, s->what);
		break;
	case S_MOVE:
		b->moves--;
		begin_offer(m, s->what, DSM_HOLD_OFFERED);
		break;
	case S_LEND:
		b->loans--;
		begin_offer(m, s->what, DSM_HOLD_LENT);
		break;
	case S_VIEW:
		b->views--;
		view(m, s->what);
		break;
	case S_READ:
		b->reads--;
		begin_read(m, s->what);
		break;
	case S_TAKE:
		b->takes--;
		begin_take(m, s->what);
		break;
	case S_BACK:
		begin_back(m, s->what);
		break;
	case S_RECLAIM:
		b->reclaims--;
		if (W.m[m].cut && is_near(s->what))
			reclaim_lost(m, s->what);
		else
			begin_reclaim(m, s->what, RECLAIM);
		break;
	case S_SETTLE:
		b->reclaims--;
		begin_reclaim(m, s->what, SETTLE);
		break;
	case S_CRASH:
		b->crashes--;
		crash(m);
		break;
	case S_RECOVER:
		recover(m);
		break;
	case S_REJOIN:
		b->rejoins--;
		rejoin(m);
		break;
	case S_CUT:
		b->cuts--;
		cut(m);
		break;
	case S_FENCE:
		fence(m);
		break;
	case S_RENAME:
		begin_rename(m, s->what);
		break;
	case STEP_KINDS:
		break;
	}
}

uint32_t dsm_world_take(const struct dsm_world_step *step, uint32_t choice)
{
	take_step(step);
	return 1;
}

void dsm_world_begin(const struct dsm_model *model)
{
	memset(&W, 0, sizeof(W));
	*dsm_wrong = '\0';
	W.budget = model->budget;
	W.members = model->members;
	W.places = model->places;
	W.second = model->second;
	for (uint32_t m = 0; m < MEMBERS; m++) {
		W.m[m].alive = 1;
		W.presence[m].owned = 1;
		W.presence[m].generation = 1;
	}
	for (int i = 0; i < PLACES; i++)
		W.place[i].generation = 1;
}

size_t dsm_world_size(void)
{
	return sizeof(W);
}

/* --- the end ---------------------------------------------------------------------- */

static void finish_all(uint32_t m)
{
	for (int i = 0; i < 200 && W.m[m].f.doing; i++)
		effect(m, &W.m[m].f);
	for (int i = 0; i < 200 && W.m[m].posted.doing; i++)
		effect(m, &W.m[m].posted);
	if (W.m[m].f.doing || W.m[m].posted.doing)
		wrong("an operation does not end");
}

static void settle(uint32_t m, uint32_t place)
{
	uint8_t state = W.m[m].slot[place].state;
	bool is_lost = W.m[m].cut && is_near(place);

	if (is_lost && (state == LENT || state == OFFERED))
		reclaim_lost(m, place);
	else if (is_lost && (state == GIVEN_BACK || state == GUEST))
		free_place(m, place);
	else if (state == LENT || state == OFFERED)
		begin_reclaim(m, place, RECLAIM);
	else if (state == GIVEN_BACK)
		begin_reclaim(m, place, SETTLE);
	finish_all(m);
}

/* Returns whether a live member has what was lent under @ticket. */
static bool has_guest(uint64_t ticket)
{
	for (uint32_t m = 0; m < W.members; m++)
		for (uint32_t i = 0; i < W.places; i++)
			if (W.m[m].alive && W.m[m].slot[i].state == GUEST &&
			    W.m[m].slot[i].from_ticket == ticket)
				return true;
	return false;
}

static void check_box(const struct box *b, uint32_t number)
{
	const struct member *me = &W.m[b->owner - 1];
	int n = 0;

	for (uint32_t i = 0; i < W.places; i++) {
		const struct slot *s = &me->slot[i];

		if (s->box != number || (s->state != OWNED && s->state != LENT))
			continue;
		n++;
		for (int k = 0; k < WORDS; k++)
			if ((me->cut && is_near(i) ? W.place[i].twin_body :
						     W.place[i].body)[k] != b->value)
				wrong("a box has another value");
	}
	if (n != 1)
		wrong(n ? "a box has two places" : "a box is lost");
}

static void check_slot(uint32_t m, uint32_t i)
{
	const struct slot *s = &W.m[m].slot[i];

	if (W.m[m].cut && is_near(i)) {
		if (s->state != NOT_MINE && s->state != UNUSED && s->state != OWNED)
			wrong("a place is leaked");
		return;
	}
	if (W.place[i].owner != m + 1 && s->state)
		wrong("a live member's memory was freed");
	if (s->state == OWNED && head_of(i)->hold)
		wrong("a hold word is left");
	if (s->state == RESERVED || s->state == OFFERED || s->state == GIVEN_BACK ||
	    (s->state == LENT && !has_guest(s->ticket)))
		wrong("a place is leaked");
}

void dsm_world_end(void)
{
	for (uint32_t m = 0; m < W.members; m++)
		if (W.m[m].alive)
			finish_all(m);
		else if (!W.m[m].vacant)
			recover(m);
	for (uint32_t m = 0; m < W.members; m++)
		if (W.m[m].alive && W.m[m].cut && !W.m[m].fenced)
			fence(m);
	/* A chain is settled from its end on. */
	for (int turn = 0; turn < 3; turn++)
		for (uint32_t m = 0; m < W.members; m++)
			for (uint32_t i = 0; i < W.places && W.m[m].alive; i++)
				settle(m, i);
	for (uint32_t m = 0; m < W.members; m++)
		for (uint32_t i = 0; i < W.places && W.m[m].alive; i++)
			check_slot(m, i);
	for (uint32_t i = 0; i < W.boxes; i++)
		if (W.box[i].owner)
			check_box(&W.box[i], i);
}

uint64_t dsm_world_fingerprint(void)
{
	const uint64_t *word = (const uint64_t *)&W;
	uint64_t x = 0xcbf29ce484222325ull;

	_Static_assert(sizeof(W) % sizeof(*word) == 0, "whole words");
	for (size_t i = 0; i < sizeof(W) / sizeof(*word); i++) {
		x = (x ^ word[i]) * 0x9e3779b97f4a7c15ull;
		x ^= x >> 29;
	}
	return x | 1;
}

uint64_t dsm_world_end_fingerprint(void)
{
	return dsm_world_fingerprint();
}

/* --- coverage --------------------------------------------------------------------- */

const char *dsm_unreached(void)
{
	static const struct {
		uint8_t doing;
		int result;
		const char *text;
	} all[] = {
		{ READ, 0, "a read" },
		{ READ, -ESTALE, "a read of an old name" },
		{ READ, -EOWNERDEAD, "a read of a dead owner's" },
		{ TAKE, 0, "a take" },
		{ TAKE, -ESTALE, "a take of what is taken or withdrawn" },
		{ TAKE, -EOWNERDEAD, "a take from a dead owner" },
		{ BACK, 0, "a return" },
		{ BACK, -EOWNERDEAD, "a return to a dead owner" },
		{ RECLAIM, 0, "a withdrawal" },
		{ RECLAIM, -EBUSY, "a reclaim of what is borrowed" },
		{ RECLAIM, -ESTALE, "a reclaim of what has moved" },
		{ RECLAIM, -EOWNERDEAD, "a reclaim from a dead borrower" },
		{ SETTLE, -EAGAIN, "a look at an offer" },
		{ SETTLE, -ESTALE, "a look at what has moved" },
		{ TAKE_BACK, 0, "a take of what was returned" },
		{ TAKE_BACK, -EOWNERDEAD, "a return whose borrower is dead" },
		{ RESTORE, -EOWNERDEAD, "a restored box" },
		{ COPY, 0, "a twin that is written" },
		{ READ_SAVED, 0, "a read at a twin" },
		{ READ_SAVED, -ESTALE, "a read at a twin of an old name" },
		{ RENAME, 0, "a box that gets another name" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!(dsm_reached[all[i].doing] & 1ull << (-all[i].result & 63)))
			return all[i].text;
	return NULL;
}
