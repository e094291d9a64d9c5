// SPDX-License-Identifier: GPL-2.0-or-later
/* Names, places, and what a part of a verb does to them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "inside.h"

struct world W;

void *const dsm_world = &W;
char dsm_wrong[160];
const char *dsm_only;
enum dsm_mutant dsm_mutant;
uint64_t dsm_reached[DOINGS];

bool mutant(enum dsm_mutant which)
{
	return dsm_mutant == which;
}

void wrong(const char *what)
{
	if (!*dsm_wrong && (!dsm_only || !strcmp(dsm_only, what)))
		snprintf(dsm_wrong, sizeof(dsm_wrong), "%s", what);
}

/* --- names ------------------------------------------------------------------------ */

/* Each owner of a place's memory divides it otherwise than the one before. */
uint64_t at_of(uint32_t member, uint32_t place)
{
	return (member + 1) << 8 | (W.place[place].generation & 1) << 7 | (place + 1);
}

struct place *place_at(uint64_t at)
{
	if (!(at & 0x7f) || (at & 0x7f) > PLACES) {
		wrong("an operation has no place");
		at = 1;
	}
	return &W.place[(at & 0x7f) - 1];
}

static struct dsm_head *head_at(uint64_t at)
{
	return &place_at(at)->head[at >> 7 & 1];
}

/* Returns the header of a place as its owner has it. */
struct dsm_head *head_of(uint32_t place)
{
	return &W.place[place].head[W.place[place].generation & 1];
}

uint32_t member_of(uint64_t at)
{
	return (uint32_t)(at >> 8) - 1;
}

uint64_t claim_of(uint32_t member, uint32_t claim)
{
	return ((member + 1) << 8 | (claim + 1)) << 4;
}

struct dsm_record *record_at(uint64_t claim)
{
	return &W.presence[member_of(claim >> 4)].record[(claim >> 4 & 0xff) - 1];
}

uint64_t next_stamp(struct place *p)
{
	return dsm_stamp(mutant(DSM_COLOUR_RESET) ? 1 : p->generation, ++p->number);
}

void publish(uint64_t at, uint64_t stamp, uint64_t value)
{
	int i = 0;

	while (i < NAMES && W.name[i].stamp && (W.name[i].at != at || W.name[i].stamp != stamp))
		i++;
	if (i == NAMES) {
		wrong("the world has too few names");
		return;
	}
	if (W.name[i].stamp && W.name[i].value != value)
		wrong("a name has two values");
	W.name[i].at = at;
	W.name[i].stamp = stamp;
	W.name[i].value = value;
}

uint64_t value_of(uint64_t at, uint64_t stamp)
{
	for (int i = 0; i < NAMES; i++)
		if (W.name[i].at == at && W.name[i].stamp == stamp)
			return W.name[i].value;
	return 0;
}

void send_message(enum message_kind kind, uint32_t m, uint32_t box, uint64_t at,
			 uint64_t stamp)
{
	for (int i = 0; i < MESSAGES; i++) {
		struct message *s = &W.message[i];

		if (s->kind == kind && s->at == at && s->stamp == stamp && s->box == box)
			return;
		if (s->kind)
			continue;
		*s = (struct message){ .kind = kind, .at = at, .stamp = stamp, .box = (uint8_t)box,
				       .giver = (uint8_t)m, .incarnation = W.m[m].incarnation };
		return;
	}
	wrong("the world has too few messages");
}

uint8_t new_value(void)
{
	return ++W.values;
}

/* --- places ----------------------------------------------------------------------- */

/* Returns a place that @m can use for an object, or -1; *@is_new: other memory than it had. */
int find_place(uint32_t m, bool *is_new)
{
	for (int i = 0; i < W.places; i++) {
		*is_new = false;
		if (W.m[m].slot[i].state == UNUSED && !(W.m[m].cut && is_near((uint32_t)i)))
			return i;
	}
	for (int i = 0; i < W.places; i++) {
		*is_new = true;
		if (!W.place[i].owner && !W.place[i].fenced &&
		    !(W.m[m].cut && is_near((uint32_t)i)))
			return i;
	}
	return -1;
}

static void zero(struct place *p)
{
	if (!mutant(DSM_NO_ZERO)) {
		memset(p->head, 0, sizeof(p->head));
		memset(p->body, 0, sizeof(p->body));
	}
	memset(&p->twin, 0, sizeof(p->twin));
	p->zeroed = 1;
}

/* Returns a place that is reserved, or -1. */
int reserve(uint32_t m, bool at_once)
{
	bool is_new;
	int i = find_place(m, &is_new);

	if (i < 0)
		return -1;
	W.m[m].slot[i] = (struct slot){ .state = RESERVED };
	if (mutant(DSM_COLOUR_RESET))
		W.place[i].number = 0;
	if (!is_new)
		return i;
	W.place[i].owner = (uint8_t)(m + 1);
	W.place[i].number = 0;
	W.place[i].zeroed = 0;
	if (at_once)
		zero(&W.place[i]);
	return i;
}

int reserve_claim(uint32_t m)
{
	for (int i = 0; i < CLAIMS; i++)
		if (!(W.m[m].claims & 1 << i)) {
			W.m[m].claims |= (uint8_t)(1 << i);
			return i;
		}
	return -1;
}

void release_claim(uint32_t m, uint32_t claim)
{
	W.m[m].claims &= (uint8_t) ~(1 << claim);
}

/* The place holds no object any more. */
void free_place(uint32_t m, uint32_t place)
{
	W.m[m].slot[place] = (struct slot){ .state = UNUSED };
	if (!is_cut(m, at_of(m, place)))
		memset(head_of(place), 0, sizeof(struct dsm_head));
	if (!mutant(DSM_TWIN_STAYS))
		memset(&W.place[place].twin, 0, sizeof(struct dsm_head));
}

/* Puts @value into the place at once: no name of it is known yet. */
uint64_t fill(uint32_t m, uint32_t place, uint8_t value)
{
	struct place *p = &W.place[place];
	uint64_t at = at_of(m, place), stamp = next_stamp(p);

	memset(p->body, value, WORDS);
	*head_of(place) = (struct dsm_head){ .stamp = stamp, .check = dsm_check(at, stamp) };
	if (has_twin(place)) {
		memset(p->twin_body, value, WORDS);
		p->twin = *head_of(place);
	}
	publish(at, stamp, value);
	return stamp;
}

/* --- effects ---------------------------------------------------------------------- */

static void writes(uint32_t m, const struct place *p)
{
	if (p->owner && p->owner != m + 1)
		wrong("a byte of another member changed");
}

/* The swap takes the box from its owner; it is the taker's when it has copied it. */
static void taken(uint32_t m, const struct flight *f)
{
	struct box *b = &W.box[f->box];

	if (f->doing != TAKE)
		return;
	if (f->op.state == DSM_HOLD_OFFERED) {
		b->owner = 0;
	} else {
		b->borrower = (uint8_t)(m + 1);
		b->borrower_incarnation = W.m[m].incarnation;
		b->told = 0;
	}
}

static void swap(uint32_t m, struct flight *f, const struct dsm_part *part)
{
	struct place *p = place_at(part->at);
	struct dsm_head *head = head_at(part->at);

	f->op.old = head->hold;
	if (mutant(DSM_PLAIN_WRITE) && f->doing != RECLAIM && f->doing != SETTLE &&
	    f->doing != TAKE && f->doing != TAKE_BACK)
		f->op.old = part->expect;
	if (f->op.old != part->expect)
		return;
	if (p->owner && p->zeroed && p->generation != f->generation &&
	    part->expect != part->desired)
		wrong("a hold word of another member changed");
	head->hold = part->desired;
	taken(m, f);
}

/* Returns whether the part is complete. */
static bool part_effect(uint32_t m, struct flight *f, const struct dsm_part *part)
{
	bool is_place = part->kind != DSM_CLAIM && part->kind != DSM_RECORD;
	struct place *p = is_place ? place_at(part->at) : NULL;
	struct dsm_head *head = is_place ? head_at(part->at) : NULL;
	uint8_t *body = is_place ? p->body : NULL;

	if (is_place && at_twin(f)) {
		head = &p->twin;
		body = p->twin_body;
	}
	switch (part->kind) {
	case DSM_READ:
		if (!f->word)
			f->op.head = *head;
		else
			f->body[f->word - 1] = body[f->word - 1];
		if (mutant(DSM_HEAD_AFTER) && f->doing != TAKE && f->doing != TAKE_BACK)
			f->op.head.stamp = f->op.stamp;
		return f->word++ == WORDS;
	case DSM_HEADER:
		f->op.after = mutant(DSM_ONE_CHECK) ? f->op.head : *head;
		if (mutant(DSM_ONE_CHECK))
			f->op.after.hold = head->hold;
		if (mutant(DSM_NO_REREAD) && (f->doing == RECLAIM || f->doing == SETTLE))
			f->op.after.hold = f->op.old;
		if (mutant(DSM_TWIN_STALE) && at_twin(f) && head->stamp) {
			f->op.after.stamp = f->op.stamp;
			f->op.after.check = dsm_check(part->at, f->op.stamp);
		}
		return true;
	case DSM_SWAP:
		swap(m, f, part);
		return true;
	case DSM_CLAIM:
		*record_at(part->at) = f->op.mine;
		return true;
	case DSM_RECORD:
		f->op.other = *record_at(part->at);
		return true;
	case DSM_STAMP:
		if (!at_twin(f))
			writes(m, p);
		if (part->desired || !mutant(DSM_NO_MARK)) {
			head->stamp = part->desired;
			head->check = dsm_check(part->at, part->desired);
		}
		return true;
	case DSM_FILL:
	case DSM_WHOLE:
		if (!at_twin(f))
			writes(m, p);
		body[f->word] = f->body[0];
		return ++f->word == WORDS;
	}
	return true;
}

bool in_flight(const struct flight *f)
{
	return f->doing && f->verb.kind == DSM_EXECUTE && f->part < f->verb.parts;
}

static uint64_t is_alive(const struct dsm_verb *v)
{
	uint32_t m = member_of(v->kind == DSM_ALIVE_CLAIM ? v->at >> 4 : v->at);

	if (v->kind == DSM_ALIVE_CLAIM)
		return W.presence[m].owned && W.presence[m].generation == v->generation;
	/* A live member may have freed the extent. */
	return (place_at(v->at)->owner == m + 1 && place_at(v->at)->generation == v->generation) ||
	       (!W.m[m].vacant &&
		!(W.m[m].fenced && is_near((uint32_t)(place_at(v->at) - W.place))));
}

void go_on(uint32_t m, struct flight *f, int status)
{
	struct dsm_verb v = dsm_next(&f->op, status);

	/* Without what is between its members, which would tell equal states apart. */
	memset(&f->verb, 0, sizeof(f->verb));
	f->verb.kind = v.kind;
	f->verb.parts = v.parts;
	f->verb.at = v.at;
	f->verb.generation = v.generation;
	for (uint32_t i = 0; i < v.parts; i++) {
		f->verb.part[i].kind = v.part[i].kind;
		f->verb.part[i].at = v.part[i].at;
		f->verb.part[i].expect = v.part[i].expect;
		f->verb.part[i].desired = v.part[i].desired;
	}
	f->part = f->word = 0;
	if (mutant(DSM_LATE_CLAIM) && (f->doing == TAKE || f->doing == TAKE_BACK) &&
	    f->verb.parts == 4) {
		struct dsm_part claim = f->verb.part[0];

		f->verb.part[0] = f->verb.part[1];
		f->verb.part[1] = claim;
	}
	if (f->verb.kind == DSM_ENDED)
		ended(m, f);
}

/* Takes the next effect of @f. */
void effect(uint32_t m, struct flight *f)
{
	struct place *p = &W.place[f->place];

	if (f->zeroing) {
		writes(m, p);
		if (f->zeroing == 1) {
			memset(p->head, 0, sizeof(p->head));
			memset(&p->twin, 0, sizeof(p->twin));
		} else {
			p->body[f->zeroing - 2] = 0;
		}
		p->zeroed = f->zeroing++ > WORDS;
		f->zeroing = p->zeroed ? 0 : f->zeroing;
		return;
	}
	if (f->verb.kind != DSM_EXECUTE) {
		go_on(m, f, (int)is_alive(&f->verb));
		return;
	}
	if (part_effect(m, f, &f->verb.part[f->part])) {
		f->part++;
		f->word = 0;
	}
	if (f->part == f->verb.parts && f->late)
		memset(f, 0, sizeof(*f));
	else if (f->part == f->verb.parts && W.m[m].alive)
		go_on(m, f, 0);
}
