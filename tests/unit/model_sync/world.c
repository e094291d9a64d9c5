// SPDX-License-Identifier: GPL-2.0-or-later
#include "world.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "userlib/dsm/channel_step.h"
#include "userlib/dsm/sync_step.h"

enum { MEMBERS = 3, CONTENT = 6, WORDS = SYNC_CONTENT + CONTENT };

/* What a member does; a visit of a channel is a lock, a change and an unlock. */
enum doing { IDLE, JOIN, LOCK, UNLOCK, LEAVE, HOLD, UNHOLD, SWEEP, RINGS, SLEEP, DOINGS };

enum visit { NO_VISIT, SEND, RECEIVE, CLOSE };

struct member {
	uint8_t alive, fenced, incarnation, joined;
	uint8_t user, locked, damaged, holds;
	uint8_t doing, then, visit, last; /* then: after the join; last: does not wait any longer */
	uint8_t rung, rung_visit, asleep, changed;
	uint8_t part, word, started, tries;
	uint8_t result, unused[3];
	uint32_t rings;
	uint64_t state;
	uint64_t before[CONTENT], content[CONTENT];
	struct sync_op op;
	struct sync_verb verb;
};

struct world {
	struct sync_budget budget;
	uint8_t members, kind, words, gone; /* gone: the memory is another's */
	uint8_t crashed, lost, damage, freed;
	uint8_t sent, received, spoiled, unused;
	uint64_t holder; /* the entry word of the member that has the mutex in truth */
	uint64_t value;  /* of the content */
	uint64_t cell[WORDS];
	struct member m[MEMBERS];
};

static struct world W;
void *const sync_world = &W;
char sync_wrong[160];
const char *sync_only;
enum sync_mutant sync_mutant;
static uint64_t reached[DOINGS];

static bool mutant(enum sync_mutant which)
{
	return sync_mutant == which;
}

static void wrong(const char *what)
{
	if (!*sync_wrong && (!sync_only || !strcmp(sync_only, what)))
		snprintf(sync_wrong, sizeof(sync_wrong), "%s", what);
}

/* --- members ---------------------------------------------------------------------- */

static uint64_t entry_of(uint32_t m)
{
	return (uint64_t)W.m[m].incarnation << 8 | (m + 1);
}

/* Returns the member of an entry word. */
static uint32_t member_of(uint64_t entry)
{
	return (uint32_t)(entry & 0xff) - 1;
}

static bool is_fenced(uint64_t entry)
{
	uint32_t m = member_of(entry);

	/* A stranger lives. */
	if (entry && m >= MEMBERS)
		return false;
	return !entry || entry != entry_of(m) || W.m[m].fenced;
}

/* As the donor says. */
static bool counts_as_alive(uint64_t entry)
{
	uint32_t m = member_of(entry);

	if (mutant(SYNC_NO_FENCE) && entry && m < MEMBERS && !W.m[m].alive)
		return false;
	return !is_fenced(entry);
}

static void ring(uint64_t entry)
{
	if (!entry || member_of(entry) >= MEMBERS || !W.m[member_of(entry)].alive)
		return;
	W.m[member_of(entry)].rung = 1;
	W.m[member_of(entry)].rung_visit = 1;
}

/* --- words ------------------------------------------------------------------------ */

/* A swap of the state takes effect. */
static void state_changes(uint32_t m, uint64_t to)
{
	int was = sync_holder(W.cell[SYNC_STATE]), is = sync_holder(to);

	if (to & SYNC_LOST && !(W.cell[SYNC_STATE] & SYNC_LOST)) {
		W.lost = 1;
		for (uint32_t i = 0; W.kind == COUNTS && i < W.members; i++)
			if (W.m[i].alive && W.m[i].holds && i != m)
				wrong("an object with references is freed");
		if (W.kind == COUNTS && W.m[m].alive && W.m[m].doing == SWEEP && W.m[m].holds)
			wrong("an object with references is freed");
	}
	if (was == is)
		return;
	if (was >= 0 && W.holder == entry_of(m)) {
		W.value = W.m[m].content[0];
		W.damage = 0;
		W.spoiled |= W.m[m].damaged;
		W.m[m].locked = 0;
	} else if (was >= 0) {
		W.damage = 1;
		if (!is_fenced(W.holder))
			wrong("a mutex was taken from a member that is not fenced");
	}
	W.holder = is < 0 ? 0 : W.cell[SYNC_ENTRY + is];
}

static void entry_changes(uint32_t m, uint32_t user, uint64_t to)
{
	uint64_t was = W.cell[SYNC_ENTRY + user], state = W.cell[SYNC_STATE];

	if (to)
		return;
	if (was != entry_of(m) && !is_fenced(was))
		wrong("the entry of a live member was freed");
	if (state >> user & 1 || sync_holder(state) == (int)user)
		wrong("an entry that the state names was freed");
}

static uint64_t swap(uint32_t m, uint32_t word, uint64_t expect, uint64_t desired)
{
	uint64_t old = W.cell[word];

	if (W.gone) {
		/* Other memory, of zeros. */
		if (mutant(SYNC_NO_MASK) && !expect && desired)
			wrong("a word of another member changed");
		return mutant(SYNC_NO_MASK) ? 0 : ~expect;
	}
	if (mutant(SYNC_NO_VERSION) && word == SYNC_STATE && W.m[m].doing == JOIN)
		return expect;
	if (old != expect && !(mutant(SYNC_PLAIN) && word == SYNC_STATE &&
			       (W.m[m].doing == LOCK || W.m[m].doing == HOLD)))
		return old;
	if (word == SYNC_STATE)
		state_changes(m, desired);
	else if (word < SYNC_CONTENT)
		entry_changes(m, word - SYNC_ENTRY, desired);
	W.cell[word] = desired;
	return expect;
}

/* --- verbs ------------------------------------------------------------------------ */

static void ended(uint32_t m);
static void visit_ended(uint32_t m);

/* Without what is between its members, which would tell equal states apart. */
static void keep_verb(struct member *me, const struct sync_verb *v)
{
	memset(&me->verb, 0, sizeof(me->verb));
	me->verb.kind = v->kind;
	me->verb.parts = v->parts;
	me->verb.entry = v->entry;
	for (uint32_t i = 0; i < v->parts; i++) {
		me->verb.part[i].kind = v->part[i].kind;
		me->verb.part[i].word = v->part[i].word;
		me->verb.part[i].count = v->part[i].count;
		me->verb.part[i].expect = v->part[i].expect;
		me->verb.part[i].desired = v->part[i].desired;
	}
}

static void exchange(struct member *me, uint32_t a, uint32_t b)
{
	struct sync_part part = me->verb.part[a];

	me->verb.part[a] = me->verb.part[b];
	me->verb.part[b] = part;
}

/* Changes what the protocol says to what a faulty one says. */
static void distort(struct member *me)
{
	struct sync_part *p = me->verb.part;

	if (me->verb.kind != SYNC_EXECUTE)
		return;
	if (mutant(SYNC_ENTRY_FIRST) && p[0].kind == SYNC_READ && me->verb.parts == 3 &&
	    p[1].kind == SYNC_READ)
		exchange(me, 0, 1);
	if (mutant(SYNC_STORE_LATE) && p[0].kind == SYNC_STORE)
		exchange(me, 0, 1);
	if (mutant(SYNC_NO_DAMAGE) && p[0].kind == SYNC_SWAP && p[0].word == SYNC_STATE &&
	    me->doing == LOCK) {
		p[0].desired &= ~SYNC_DAMAGED;
		me->op.swapped = p[0].desired;
	}
}

static void go_on(uint32_t m, int status)
{
	struct member *me = &W.m[m];
	struct sync_verb v = sync_next(&me->op, status);

	keep_verb(me, &v);
	distort(me);
	me->part = me->word = me->asleep = 0;
	/* The library looks at its bell before each verb. */
	if (v.kind == SYNC_EXECUTE && !mutant(SYNC_BELL_LATE))
		me->rung = 0;
	if (v.kind == SYNC_ENDED)
		ended(m);
}

/* Stores the next word that has changed; returns whether there is none. */
static bool store(uint32_t m)
{
	struct member *me = &W.m[m];
	int step = mutant(SYNC_COMMIT_FIRST) ? -1 : 1;

	for (int i = step > 0 ? 0 : W.words - 1; i >= 0 && i < W.words; i += step) {
		if (me->content[i] == me->before[i] || me->changed >> i & 1)
			continue;
		me->changed |= (uint8_t)(1 << i);
		if (!W.gone && W.kind != COUNTS && W.holder != entry_of(m))
			wrong("the content was changed without the mutex");
		swap(m, SYNC_CONTENT + (uint32_t)i, me->before[i], me->content[i]);
		return false;
	}
	return true;
}

/* Returns whether the part is complete. */
static bool part_effect(uint32_t m, const struct sync_part *p)
{
	struct member *me = &W.m[m];
	uint32_t word = p->word + me->word;

	switch (p->kind) {
	case SYNC_SWAP:
		me->op.old = swap(m, p->word, p->expect, p->desired);
		return true;
	case SYNC_READ:
		if (!(mutant(SYNC_NO_AGAIN) && me->doing == JOIN && p->count == 1))
			me->op.seen[word] = W.gone ? ~0ull : W.cell[word];
		/* The state by itself; entries do not depend on each other. */
		while (word != SYNC_STATE && ++me->word < p->count) {
			word = p->word + me->word;
			me->op.seen[word] = W.gone ? ~0ull : W.cell[word];
		}
		me->word += word == SYNC_STATE;
		return me->word == p->count;
	case SYNC_FETCH:
		/* At once: while others change it, it is not used. */
		for (int i = 0; i < W.words; i++)
			me->before[i] = W.gone ? ~0ull : W.cell[SYNC_CONTENT + i];
		return true;
	case SYNC_STORE:
		return store(m);
	}
	return true;
}

static bool in_flight(const struct member *me)
{
	return me->doing && me->doing != RINGS && me->doing != SLEEP &&
	       me->verb.kind == SYNC_EXECUTE && me->part < me->verb.parts;
}

static void effect(uint32_t m)
{
	struct member *me = &W.m[m];

	if (me->doing == RINGS) {
		uint32_t user = (uint32_t)__builtin_ctz(me->rings);

		me->rings &= me->rings - 1;
		if (!mutant(SYNC_NO_WAKE))
			ring(me->op.seen[SYNC_ENTRY + user]);
		if (!me->rings)
			visit_ended(m);
		return;
	}
	switch (me->verb.kind) {
	case SYNC_ALIVE:
		go_on(m, counts_as_alive(me->verb.entry));
		return;
	case SYNC_RING:
		ring(me->verb.entry);
		go_on(m, 0);
		return;
	case SYNC_SLEEP:
		me->asleep = 1;
		if (mutant(SYNC_BELL_LATE))
			me->rung = 0;
		return;
	default:
		break;
	}
	if (part_effect(m, &me->verb.part[me->part])) {
		me->part++;
		me->word = 0;
	}
	if (me->part == me->verb.parts && me->alive)
		go_on(m, W.gone ? -ENOTRECOVERABLE : 0);
}

/* --- operations ------------------------------------------------------------------- */

static void begin(uint32_t m, enum doing doing)
{
	struct member *me = &W.m[m];

	me->doing = (uint8_t)doing;
	if (doing == JOIN)
		sync_join(&me->op, entry_of(m));
	else if (doing == LOCK)
		sync_lock(&me->op, entry_of(m), me->user, me->state, me->tries);
	else if (doing == UNLOCK)
		sync_unlock(&me->op, entry_of(m), me->user, me->state, !me->damaged);
	else if (doing == LEAVE)
		sync_leave(&me->op, entry_of(m), me->user);
	else if (doing == HOLD)
		sync_hold(&me->op, entry_of(m), me->user, me->state);
	else if (doing == UNHOLD)
		sync_unhold(&me->op, entry_of(m), me->user, me->state);
	else
		sync_sweep(&me->op);
	go_on(m, 0);
}

/* ... after a join, if the member is no user. */
static void begin_as_user(uint32_t m, enum doing doing)
{
	W.m[m].then = (uint8_t)doing;
	begin(m, W.m[m].joined ? doing : JOIN);
}

static void begin_visit(uint32_t m)
{
	struct member *me = &W.m[m];

	me->rung_visit = 0;
	me->tries = 0;
	begin_as_user(m, LOCK);
}

static void idle(struct member *me)
{
	me->doing = IDLE;
	memset(&me->op, 0, sizeof(me->op));
	memset(&me->verb, 0, sizeof(me->verb));
	memset(me->before, 0, sizeof(me->before));
	if (!me->locked)
		memset(me->content, 0, sizeof(me->content));
	me->then = me->changed = me->tries = 0;
}

/* What a member has locked of a channel, it changes at once. */
static void change_channel(uint32_t m)
{
	struct member *me = &W.m[m];
	struct channel_call c = { .content = me->content, .words = W.words, .user = me->user,
				  .side = me->visit == SEND ? CHANNEL_SENDS : CHANNEL_RECEIVES,
				  .waits = !me->last };
	uint64_t value = W.sent + 1u;
	size_t size = 0;
	int r = 0;

	if (!channel_is_valid(me->content, W.words))
		wrong("a channel is torn");
	if (!me->started)
		channel_enter(&c);
	me->started = 1;
	if (me->visit == CLOSE)
		channel_close(&c);
	else if (me->visit == SEND)
		r = channel_send(&c, &value, sizeof(value));
	else
		r = channel_receive(&c, &value, sizeof(value), &size);
	if (me->visit == RECEIVE && !r && value != W.received + 1u)
		wrong("a message is lost, torn or received twice");
	if (r && me->last)
		channel_withdraw(&c);
	me->rings = c.rings;
	me->result = (uint8_t)-r;
}

static void locked(uint32_t m)
{
	struct member *me = &W.m[m];
	int r = me->op.result;
	uint64_t value;

	for (uint32_t i = 0; i < W.members; i++)
		if (i != m && W.m[i].alive && W.m[i].locked)
			wrong("two members have the mutex");
	if (W.holder != entry_of(m))
		wrong("a member has a mutex that another one has");
	if (r != (W.damage ? -EOWNERDEAD : 0))
		wrong("a dead holder is not told");
	if (W.spoiled)
		wrong("what was not repaired is used");
	me->locked = 1;
	me->damaged = 0;
	memcpy(me->content, me->before, sizeof(me->content));
	if (W.kind == CHANNEL) {
		change_channel(m);
		begin(m, UNLOCK);
		return;
	}
	for (int i = 0; i < W.words; i++)
		if (me->before[i] != W.value && !(r && me->before[i] == W.value + 1))
			wrong("a content is old or torn");
	if (r && W.budget.spoils) {
		W.budget.spoils--;
		me->damaged = 1;
	}
	value = me->before[0] > me->before[1] ? me->before[0] : me->before[1];
	for (int i = 0; i < W.words; i++)
		me->content[i] = value + !r;
	/* The content that is in the cell is needed until the unlock. */
	me->doing = IDLE;
	memset(&me->op, 0, sizeof(me->op));
	memset(&me->verb, 0, sizeof(me->verb));
}

/* The rings of a visit are done. */
static void visit_ended(uint32_t m)
{
	struct member *me = &W.m[m];

	if (me->result == EAGAIN && !me->last) {
		idle(me);
		me->doing = SLEEP;
		return;
	}
	idle(me);
	me->visit = me->last = 0;
}

static void unlocked(uint32_t m)
{
	struct member *me = &W.m[m];

	me->locked = 0;
	me->changed = 0;
	if (W.kind != CHANNEL) {
		idle(me);
		return;
	}
	if (me->op.result)
		me->result = EIO;
	if (me->rings && !me->op.result)
		me->doing = RINGS;
	else
		visit_ended(m);
}

static void ended(uint32_t m)
{
	struct member *me = &W.m[m];
	int r = me->op.result;

	reached[me->doing] |= 1ull << ((r > 0 ? r : -r) & 63);
	if (r == -EINVAL || r == -EPERM)
		wrong("an operation fails");
	me->state = me->op.word;
	switch ((enum doing)me->doing) {
	case JOIN:
		if (r) {
			me->visit = 0;
			idle(me);
			return;
		}
		me->joined = 1;
		me->user = me->op.user;
		begin(m, (enum doing)me->then);
		return;
	case LOCK:
		if (r && r != -EOWNERDEAD) {
			if (r == -ENOTRECOVERABLE && !W.lost && !W.gone)
				wrong("a mutex is lost");
			me->visit = 0;
			idle(me);
			return;
		}
		locked(m);
		return;
	case UNLOCK:
		unlocked(m);
		return;
	case LEAVE:
		me->joined = me->started = 0;
		break;
	case HOLD:
		if (!r && W.lost && !W.gone)
			wrong("a reference to what was freed");
		me->holds = !r;
		break;
	case SWEEP:
		W.freed |= r == 1;
		break;
	default:
		break;
	}
	idle(me);
}

/* --- steps ------------------------------------------------------------------------ */

enum step_kind { EFFECT, WAKE, LOOK, TIMEOUT, S_LOCK, S_TRY, S_UNLOCK, S_LEAVE, S_HOLD, S_UNHOLD,
		 S_SWEEP, S_SEND, S_RECEIVE, S_CLOSE, S_CRASH, S_FENCE, S_REJOIN, S_END };

static const char *const step_names[] = {
	"effect", "wake", "look", "timeout", "lock", "try", "unlock", "leave", "hold", "unhold",
	"sweep", "send", "receive", "close", "crash", "fence", "rejoin", "end",
};

const char *sync_world_name(const struct sync_world_step *step)
{
	return step_names[step->kind];
}

static struct {
	struct sync_world_step *out;
	int n;
} list;

static void add(enum step_kind kind, uint32_t m)
{
	if (list.n < SYNC_WORLD_STEPS)
		list.out[list.n++] = (struct sync_world_step){ .kind = (uint8_t)kind,
							       .member = (uint8_t)m };
}

static void add_of_idle(uint32_t m)
{
	const struct sync_budget *b = &W.budget;
	const struct member *me = &W.m[m];

	if (me->locked) {
		add(S_UNLOCK, m);
		return;
	}
	if (b->locks)
		add(S_LOCK, m);
	if (b->tries)
		add(S_TRY, m);
	if (b->leaves && me->joined && !me->holds)
		add(S_LEAVE, m);
	if (b->holds && !me->holds)
		add(S_HOLD, m);
	if (me->holds)
		add(S_UNHOLD, m);
	if (b->sweeps && !m)
		add(S_SWEEP, m);
	if (b->sends)
		add(S_SEND, m);
	if (b->receives)
		add(S_RECEIVE, m);
	if (b->closes)
		add(S_CLOSE, m);
}

int sync_world_possible(struct sync_world_step out[static SYNC_WORLD_STEPS])
{
	const struct sync_budget *b = &W.budget;

	list.out = out;
	list.n = 0;
	for (uint32_t m = 0; m < W.members; m++) {
		const struct member *me = &W.m[m];
		bool asleep = me->alive && (me->asleep || me->doing == SLEEP);

		if (asleep && (me->doing == SLEEP ? me->rung_visit : me->rung))
			add(WAKE, m);
		if (asleep && b->looks)
			add(LOOK, m);
		if (asleep && b->timeouts)
			add(TIMEOUT, m);
		if (me->alive && me->doing && !asleep)
			add(EFFECT, m);
		else if (me->alive && !me->doing)
			add_of_idle(m);
		else if (!me->alive && in_flight(me) && (!me->fenced || mutant(SYNC_NO_FENCE)))
			add(EFFECT, m);
		if (me->alive && b->crashes)
			add(S_CRASH, m);
		if (!me->alive && !me->fenced)
			add(S_FENCE, m);
		if (me->fenced && b->rejoins)
			add(S_REJOIN, m);
	}
	if (b->ends)
		add(S_END, 0);
	return list.n;
}

static void fence(uint32_t m)
{
	uint8_t incarnation = W.m[m].incarnation;

	memset(&W.m[m], 0, sizeof(W.m[m]));
	W.m[m].incarnation = incarnation;
	W.m[m].fenced = 1;
}

static void rejoin(uint32_t m)
{
	W.m[m].fenced = 0;
	W.m[m].alive = 1;
	W.m[m].incarnation++;
}

/* A sleeper goes on. */
static void wake(uint32_t m, enum sync_wake why)
{
	struct member *me = &W.m[m];

	if (me->doing != SLEEP) {
		me->rung = 0;
		go_on(m, why);
		return;
	}
	me->last = why == SYNC_TIMEOUT;
	begin_visit(m);
}

static void take_step(const struct sync_world_step *s)
{
	uint32_t m = s->member;
	struct sync_budget *b = &W.budget;
	struct member *me = &W.m[m];

	switch ((enum step_kind)s->kind) {
	case EFFECT:
		effect(m);
		break;
	case WAKE:
		wake(m, SYNC_RANG);
		break;
	case LOOK:
		b->looks--;
		wake(m, SYNC_LOOK);
		break;
	case TIMEOUT:
		b->timeouts--;
		wake(m, SYNC_TIMEOUT);
		break;
	case S_LOCK:
		b->locks--;
		begin_as_user(m, LOCK);
		break;
	case S_TRY:
		b->tries--;
		me->tries = 1;
		begin_as_user(m, LOCK);
		break;
	case S_UNLOCK:
		begin(m, UNLOCK);
		break;
	case S_LEAVE:
		b->leaves--;
		begin(m, LEAVE);
		break;
	case S_HOLD:
		b->holds--;
		begin_as_user(m, HOLD);
		break;
	case S_UNHOLD:
		me->holds = 0;
		begin(m, UNHOLD);
		break;
	case S_SWEEP:
		b->sweeps--;
		begin(m, SWEEP);
		break;
	case S_SEND:
		b->sends--;
		me->visit = SEND;
		begin_visit(m);
		break;
	case S_RECEIVE:
		b->receives--;
		me->visit = RECEIVE;
		begin_visit(m);
		break;
	case S_CLOSE:
		b->closes--;
		me->visit = CLOSE;
		begin_visit(m);
		break;
	case S_CRASH:
		b->crashes--;
		W.crashed = 1;
		me->alive = 0;
		break;
	case S_FENCE:
		fence(m);
		break;
	case S_REJOIN:
		b->rejoins--;
		rejoin(m);
		break;
	case S_END:
		b->ends--;
		W.gone = 1;
		break;
	}
}

/* Messages in truth: the commit word says how many were sent and received. */
static void count_messages(uint64_t was, uint64_t is)
{
	uint32_t before = was >> 16 & 0xffff, now = is >> 16 & 0xffff;

	if (W.kind != CHANNEL)
		return;
	if (now > before)
		W.sent++;
	else if (now < before)
		W.received++;
}

uint32_t sync_world_take(const struct sync_world_step *step, uint32_t choice)
{
	uint64_t was = W.cell[SYNC_CONTENT + CONTENT - 1];

	take_step(step);
	count_messages(was, W.cell[SYNC_CONTENT + CONTENT - 1]);
	return 1;
}

void sync_world_begin(const struct sync_model *model)
{
	memset(&W, 0, sizeof(W));
	*sync_wrong = '\0';
	W.budget = model->budget;
	W.members = model->members;
	W.kind = (uint8_t)model->kind;
	W.words = model->kind == COUNTS ? 0 : model->kind == CHANNEL ? CONTENT : 2;
	if (model->kind == CHANNEL)
		channel_make(&W.cell[SYNC_CONTENT], 1, 8);
	for (uint32_t m = 0; m < W.members; m++) {
		W.m[m].alive = 1;
		W.m[m].incarnation = 1;
		if (m >= model->joined)
			continue;
		W.m[m].joined = 1;
		W.m[m].user = (uint8_t)m;
		W.cell[SYNC_ENTRY + m] = entry_of(m);
	}
	for (uint32_t i = 0; i < model->strangers; i++)
		W.cell[SYNC_CONTENT - 1 - i] = 0x1ff - i;
	if (model->kind == COUNTS) {
		W.m[0].holds = 1;
		W.cell[SYNC_STATE] = 1;
	}
}

size_t sync_world_size(void)
{
	return sizeof(W);
}

/* --- the end ---------------------------------------------------------------------- */

static void effect_counted(uint32_t m)
{
	const struct sync_world_step s = { .kind = EFFECT, .member = (uint8_t)m };

	sync_world_take(&s, 0);
}

static void run(uint32_t m)
{
	struct member *me = &W.m[m];
	int i = 0;

	for (; i < 400 && me->doing && me->doing != SLEEP && !me->asleep; i++)
		effect_counted(m);
	if (i == 400)
		wrong("an operation does not end");
}

/* One more turn of each member; returns whether all are idle. */
static bool turn(void)
{
	bool all = true;

	for (uint32_t m = 0; m < W.members; m++) {
		struct member *me = &W.m[m];
		bool rung = me->doing == SLEEP ? me->rung_visit : me->rung;

		if (!me->alive)
			continue;
		if (me->asleep || me->doing == SLEEP) {
			if (rung || W.crashed || W.gone)
				wake(m, rung ? SYNC_RANG : W.gone ? SYNC_TIMEOUT : SYNC_LOOK);
		}
		run(m);
		if (me->locked && !me->doing)
			begin(m, UNLOCK);
		run(m);
		all = all && !me->doing;
	}
	return all;
}

static void end_mutex(uint32_t m)
{
	begin_as_user(m, LOCK);
	run(m);
	/* A dead one may have it, since none has looked. */
	if (W.m[m].asleep && W.crashed)
		wake(m, SYNC_LOOK);
	run(m);
	if (!W.m[m].locked && !W.lost && !W.gone)
		wrong("a mutex is stuck");
}

static void end_counts(uint32_t m)
{
	/* The maker has died: so has the object. */
	if (!W.m[0].alive || W.gone)
		return;
	if (W.m[m].holds) {
		W.m[m].holds = 0;
		begin(m, UNHOLD);
		run(m);
	}
	if (m + 1 < W.members)
		return;
	begin(0, SWEEP);
	run(0);
	if (!W.freed)
		wrong("an object without references is left");
}

/* Closes a channel, whose receivers may all wait for a message that none sends. */
static void close_channel(void)
{
	uint32_t closer = MEMBERS;

	for (uint32_t m = 0; m < W.members; m++)
		if (W.m[m].alive && (closer == MEMBERS || !W.m[m].doing))
			closer = m;
	if (W.kind != CHANNEL || W.gone || closer == MEMBERS)
		return;
	if (W.m[closer].doing == SLEEP)
		wake(closer, SYNC_TIMEOUT);
	run(closer);
	if (W.m[closer].doing)
		return;
	W.m[closer].visit = CLOSE;
	begin_visit(closer);
}

/* No time-out ends what waits: rings do and, after a crash, looks. */
void sync_world_end(void)
{
	bool all = false;

	for (uint32_t m = 0; m < W.members; m++)
		if (!W.m[m].alive && !W.m[m].fenced)
			fence(m);
	for (int i = 0; i < 20 && !all; i++)
		all = turn();
	close_channel();
	for (int i = 0; i < 20 && W.kind == CHANNEL; i++)
		all = turn();
	if (!all)
		wrong("a sleeper is not woken");
	for (uint32_t m = 0; m < W.members && !*sync_wrong; m++) {
		if (W.m[m].alive && W.m[m].joined && !W.m[m].doing && W.kind == MUTEX) {
			end_mutex(m);
			for (int i = 0; i < 20 && W.m[m].locked; i++)
				turn();
		}
		if (W.kind == COUNTS && (W.m[m].alive || m + 1 == W.members))
			end_counts(m);
	}
}

uint64_t sync_world_fingerprint(void)
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

uint64_t sync_world_end_fingerprint(void)
{
	return sync_world_fingerprint();
}

const char *sync_unreached(void)
{
	static const struct {
		uint8_t doing;
		int result;
		const char *text;
	} all[] = {
		{ JOIN, 0, "a join" },
		{ JOIN, EUSERS, "a join without room" },
		{ LOCK, 0, "a lock" },
		{ LOCK, EAGAIN, "a try of what is locked" },
		{ LOCK, ETIMEDOUT, "a lock that takes too long" },
		{ LOCK, EOWNERDEAD, "a lock after a death" },
		{ LOCK, ENOTRECOVERABLE, "a lock of what was not repaired" },
		{ UNLOCK, 0, "an unlock" },
		{ LEAVE, 0, "a leave" },
		{ HOLD, 0, "a reference" },
		{ HOLD, ESTALE, "a reference to what was freed" },
		{ UNHOLD, 0, "an end of a reference" },
		{ UNHOLD, 1, "an end of the last reference" },
		{ SWEEP, 0, "a sweep" },
		{ SWEEP, 1, "a sweep that finds none" },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!(reached[all[i].doing] & 1ull << (all[i].result & 63)))
			return all[i].text;
	return NULL;
}
