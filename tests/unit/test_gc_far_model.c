// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of two threads, the thread that makes regions leave, and the collector, in a
 * model of the far generation that runs userlib/gc/far_step.h: four regions of two places, two
 * objects with a reference and a value each, a table of two slots that never leaves.  Cycles may be
 * far ones, which one or two donors trace or not, and be abandoned.  A step is what is atomic in
 * the library: an access to a state, an entry, a slot or an object, or a pause.
 * The model also keeps what each slot refers to, and each object's value, by the object's identity.
 * Each mutant, a rule that is left out, breaks an invariant.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "far_step.h"

#define REGIONS 4
#define REGION 2		/* places of a region */
#define PLACES (REGIONS * REGION)
#define OBJECTS 2
#define THREADS 2
#define TABLE 2			/* slots that do not leave */
#define NONE 0xf
#define BUSY 0xe		/* an entry */
#define SEEN (1u << 21)

enum mutant {
	MUTANT_NONE,
	NOT_PINNED,		/* a region leaves although a thread has an address in it */
	NOT_NAMED,		/* what leaves names nothing */
	NAMES_NO_ROOTS,		/* a cycle does not begin with what is named */
	NO_CLAIM,		/* threads copy without a claim */
	STATE_BEFORE_CLAIM,	/* the source is chosen by the state before the claim */
	NOT_SETTLED,		/* memory returns while a thread copies from it */
	FREED_UNSETTLED,	/* an extent is freed while a thread reads it */
	STATE_BEFORE_WRITE,	/* a region is AWAY before it is written */
	HEALED_BY_STORE,	/* a load heals a slot that has changed meanwhile */
	TRACER_STORES,		/* a tracer does */
	DROPPED_NEW,		/* forwards are dropped that this cycle may not have healed */
	DROPPED_NAMED,		/* forwards are dropped that something far needs */
	NOT_SHORTENED,		/* a kept forward leads to a dropped one */
	SHORTENED_LATE,		/* after the last pause: a thread is between two forwards */
	NOT_HANDED_OVER,	/* the collector frees a region whose memory is to be returned */
	FORGOTTEN_AT_ONCE,	/* a region is free in the cycle in which it becomes EMPTY */
	WITHDRAWN_EARLY,	/* names end, and what a cycle did not trace has them */
	DRAINED_LIVE,		/* a region is EMPTY though objects are in the store */
	ARRIVES_WHITE,		/* what comes back while a cycle marks is not marked */
	NO_TURN,		/* a region begins to leave while a cycle marks */
	FREED_WITH_FORWARDS,	/* a region is free while slots name it */
	FAR_IS_WHITE,		/* far objects do not count as marked */
	LOGGED_BY_NAME,		/* a store logs the old name */
	/* Of a far cycle. */
	BROUGHT_UNREAD,		/* what comes back is marked, and neither traced nor read */
	LOGGED_UNREAD,		/* what threads have logged is not read */
	LEAVING_UNREAD,		/* what regions refer to that are leaving is not marked */
	LEAVING_WRITTEN,	/* they are written before it is */
	NAMES_UNFOUND,		/* what is read in the store names nothing */
	NAMES_OF_BEFORE,	/* names of the dead stay */
	ENDED_UNREAD,		/* a cycle ends before all is read */
	ABANDONED_WHITE,	/* objects do not get their marks back */
	ABANDONED_UNNAMED,	/* what is named does not become a root */
	/* Of a donor that is lost. */
	LOST_COMES_BACK,	/* threads read what is lost */
	LOST_LATE,		/* the heap learns it while a cycle marks */
	/* Of one that donors trace. */
	LEFT_UNREAD,		/* what donors leave to the heap is not read */
	FELL_BACK_UNREAD,	/* what was passed to donors that fail is not read */
	GHOSTS_LATE,		/* what has come back is asked for at the first pass */
	NO_GHOSTS,		/* donors take what has come back for theirs */
	BACK_UNMARKED,		/* marks of what came back before the pause mark no copy */
	COMMITTED_EARLY,	/* marks are taken while a donor has more to trace */
	NO_COMMIT,		/* the cycle ends with what was passed, and no marks are taken */
	FOUND_UNNAMED,		/* what a donor finds elsewhere is not named */
	THERE_UNNAMED,		/* what it finds with itself is not named */
	FOUND_UNMARKED,		/* what it finds elsewhere is not marked */
	HOLDS_UNKNOWN,		/* regions hold nothing after the cycle */
	UNREAD_AFTER,		/* what is reached after the marks are taken is not read */
	/* Of compacting. */
	COMPACTED_UNSETTLED,	/* the old place is freed while a thread reads there */
	PLACE_BEFORE_CLAIM,	/* threads choose the place before their claim */
	FLIPPED_FIRST,		/* the new place is the region's before it has the objects */
	COMPACTED_IN_A_CYCLE,	/* while donors trace the old place */
	MUTANTS,
};

static const char *const mutant_names[] = {
	"none", "not pinned", "not named", "names are no roots", "no claim",
	"the state before the claim", "memory returns unsettled", "an extent is freed unsettled",
	"away before it is written", "healed by a store", "a tracer stores",
	"new forwards are dropped", "named forwards are dropped", "not shortened",
	"shortened after the pause", "not handed over", "forgotten at once",
	"names withdrawn early", "drained with objects",
	"arrives white", "leaves during marking", "freed with forwards", "far is white",
	"logged by name", "brought and not read", "logged and not read", "leaving and not read",
	"written before it is read", "names are not found", "names of the dead stay",
	"ended before all is read", "abandoned without marks", "abandoned without names",
	"the lost comes back", "lost while a cycle marks",
	"left and not read", "fell back and not read", "ghosts of later", "no ghosts",
	"back and not marked",
	"marks are taken early", "no marks are taken", "found and not named",
	"there and not named", "found and not marked", "regions hold nothing",
	"after the marks and not read", "compacted and unsettled", "the place before the claim",
	"flipped first", "compacted in a cycle",
};

enum thread_at { READY, ASK, CLAIM, SOURCE, COPY, PUBLISH, HEAL };
enum leaver_at { L_IDLE, L_CHOSEN, L_NAMING, L_PACKED, L_SETTLING, L_RETURNED };
enum phase { IDLE, MARKING, FORGETTING, PREPARED };
/* What traces in the store. */
enum by { READING, TO_TRACE, TRACES, TRACED };

struct object {
	uint8_t id, field, value;
};

struct thread {
	uint8_t at, local, has;		/* a place; an object */
	uint8_t slot, first, name;	/* of a load: which, what was in it, where it looks */
	uint8_t seen, to, expects;	/* state; the copy's place; the object that it is to find */
	uint8_t at_new;			/* it reads the region's second place in the store */
};

/* Sets of places are bit masks. */
struct state {
	uint8_t state[REGIONS];
	uint8_t used, memory, extent, mine;	/* regions; mine: the collector's */
	uint8_t allocated, marked, gray, log, tablet, odd;
	uint8_t holds[REGIONS];			/* names */
	struct object here[PLACES], far[PLACES];
	/* Of regions with a second place in the store: what it has; and whether that is the one. */
	struct object far_new[PLACES];
	uint8_t extent_new, tablet_new, now, told;
	uint8_t entry[PLACES];
	uint8_t table[TABLE], table_gray;
	struct thread thread[THREADS];
	uint8_t arrival;			/* a region */
	uint8_t leaver, leaving;		/* a region */
	uint8_t phase, snapshots, shortened, forgetting, kept, homing;
	uint8_t compacting, compacted;		/* a region; steps of that */
	uint8_t tracing, was;			/* a slot; its name */
	/* A far cycle: regions that are read, and whose memory is still to be. */
	uint8_t is_far, read, leaving_unread;
	uint8_t sent, next[REGIONS];		/* as holds, after the cycle */
	/* Of the donors: passed to them, marked and traced there, elsewhere, named by them. */
	uint8_t by, passed, lives, traced, ghosts, names;
	uint8_t two;				/* donors */
	uint8_t left;				/* the second one's are the heap's to read */
	uint8_t lost;				/* regions */
	/* By identity. */
	uint8_t means[TABLE], refers[OBJECTS], value[OBJECTS];
	/* That are left. */
	uint8_t steps, leaves, cycles, homes, fars, abandons, copies, donors, fails, losses;
	uint8_t compacts;
	uint8_t threads, all;
};

#define FIELDS TABLE			/* the slot TABLE + place is an object's field */

static struct state s;
static enum mutant mutant;
static const char *wrong;
static uint64_t *seen;
static uint32_t states;

static bool has(unsigned int set, unsigned int i)
{
	return set >> i & 1;
}

static uint8_t bit(unsigned int i)
{
	return (uint8_t)(1u << i);
}

static void expect(bool right, const char *text)
{
	if (!right && !wrong)
		wrong = text;
}

static uint8_t region_of(uint8_t place)
{
	return place / REGION;
}

static enum far_state state_of(uint8_t place)
{
	return (enum far_state)s.state[region_of(place)];
}

static void event(uint8_t region, enum far_event e)
{
	enum far_state next = far_next((enum far_state)s.state[region], e);

	expect(next != (enum far_state)s.state[region], "an event cannot happen");
	s.state[region] = (uint8_t)next;
}

/* An entry and a name as the library has them. */
static uint64_t address(uint8_t place)
{
	return ((uint64_t)place + 1) << 4 | 8;
}

static uint64_t word(uint8_t place)
{
	if (s.entry[place] == NONE)
		return 0;
	return s.entry[place] == BUSY ? FAR_BUSY : far_entry(address(s.entry[place]),
							      has(s.odd, place));
}

static enum far_answer ask(uint8_t place)
{
	return far_ask(state_of(place), address(place), word(place));
}

static uint8_t forward(uint8_t place)
{
	while (place != NONE && ask(place) == FAR_FOLLOW)
		place = s.entry[place];
	return place;
}

static uint8_t *slot_at(uint8_t slot)
{
	return slot < TABLE ? &s.table[slot] : &s.here[slot - FIELDS].field;
}

/* Of a region's place in the store, the second one if @at_new. */
static bool has_extent(uint8_t region, bool at_new)
{
	return has(at_new ? s.extent_new : s.extent, region);
}

static bool has_there(uint8_t place, bool at_new)
{
	return has(at_new ? s.tablet_new : s.tablet, place);
}

static struct object *far_at(uint8_t place, bool at_new)
{
	return at_new ? &s.far_new[place] : &s.far[place];
}

/* Is the second one the region's? */
static bool is_new_now(uint8_t place)
{
	return has(s.now, region_of(place));
}

static bool is_stored(uint8_t place)
{
	return has_there(place, is_new_now(place));
}

static bool is_busy(uint8_t region)
{
	bool busy = false;

	for (uint8_t i = 0; i < REGION; i++)
		busy |= s.entry[region * REGION + i] == BUSY;
	return busy;
}

static uint8_t named(void)
{
	uint8_t names = 0;

	for (uint8_t r = 0; r < REGIONS; r++)
		names |= s.holds[r];
	return names;
}

static bool has_live(uint8_t region)
{
	return s.allocated >> region * REGION & ((1u << REGION) - 1);
}

/* Returns a place for an arrival, or NONE. */
static uint8_t arrival(void)
{
	if (s.arrival != NONE)
		for (uint8_t i = s.arrival * REGION; i < (s.arrival + 1) * REGION; i++)
			if (!has(s.allocated, i) && s.here[i].id == NONE)
				return i;
	for (uint8_t r = 0; r < REGIONS; r++) {
		if (has(s.used, r))
			continue;
		s.arrival = r;
		s.used |= bit(r);
		s.memory |= bit(r);
		expect(s.state[r] == FAR_LOCAL, "a region in use is taken");
		for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++) {
			expect(s.entry[i] == NONE, "a place with a forward is reused");
			s.here[i] = (struct object){ NONE, NONE, 0 };
		}
		return r * REGION;
	}
	return NONE;
}

static uint8_t donor_of(uint8_t place)
{
	return s.two ? region_of(place) & 1 : 0;
}

/* Is the region left to the heap to read? */
static bool is_left(uint8_t place)
{
	return s.left && donor_of(place) == 1;
}

/* Objects in the store that are to be read. */
static uint8_t unread(void)
{
	uint8_t places = 0;

	for (uint8_t i = 0; s.is_far && i < PLACES; i++)
		if (has(s.read, region_of(i)) && is_stored(i) && has(s.marked, i) &&
		    !has(s.sent, i) && !has(s.lost, region_of(i)))
			places |= bit(i);
	return places;
}

/* Of these, those that donors leave to the heap. */
static uint8_t left_unread(void)
{
	uint8_t places = 0;

	for (uint8_t i = 0; i < PLACES; i++)
		places |= has(unread(), i) && is_left(i) ? bit(i) : 0;
	return places;
}

/* No region is written from before the first pause of a far cycle until what leaves is read. */
static bool may_write(void)
{
	return mutant == LEAVING_WRITTEN || (s.phase != PREPARED && !s.leaving_unread);
}

/* --- threads -------------------------------------------------------------------------------- */

static void arrive(uint8_t name, uint8_t to)
{
	if (s.phase == MARKING && mutant != ARRIVES_WHITE)
		s.marked |= bit(to);
	if (s.phase == MARKING && mutant != BROUGHT_UNREAD)
		s.marked |= bit(name);
	s.allocated |= bit(to);
	s.allocated &= (uint8_t)~bit(name);
	s.entry[name] = to;
	s.odd = (uint8_t)((s.odd & ~bit(name)) | (s.snapshots & 1 ? bit(name) : 0));
}

static struct object source(enum far_source from, uint8_t name, bool at_new)
{
	if (from == FAR_FROM_MEMORY) {
		expect(has(s.memory, region_of(name)), "memory is read that was returned");
		return s.here[name];
	}
	expect(from == FAR_FROM_STORE, "an object is nowhere");
	expect(has_extent(region_of(name), at_new), "an extent is read that was freed");
	expect(has_there(name, at_new), "an object was not written");
	return *far_at(name, at_new);
}

static bool load_begin(struct thread *t, uint8_t slot, uint8_t means)
{
	uint8_t found = *slot_at(slot);

	if (found == NONE)
		return false;
	t->slot = slot;
	t->first = t->name = found;
	t->expects = means;
	t->at = ASK;
	return true;
}

static void load_is_over(struct thread *t)
{
	*t = (struct thread){ READY, t->local, t->has, NONE, NONE, NONE, NONE, NONE, NONE, NONE };
}

static void load_end(struct thread *t)
{
	if (*slot_at(t->slot) == t->first || mutant == HEALED_BY_STORE)
		*slot_at(t->slot) = t->name;
	t->local = t->name;
	t->has = t->expects;
	load_is_over(t);
}

/* Its claim ends. */
static void load_fails(struct thread *t)
{
	s.entry[t->name] = NONE;
	load_is_over(t);
}

/* Goes on with a load; returns false if it must wait. */
static bool load_step(struct thread *t)
{
	switch (t->at) {
	case ASK:
		t->seen = s.state[region_of(t->name)];
		t->at_new = is_new_now(t->name);
		switch (ask(t->name)) {
		case FAR_HERE:
			t->at = HEAL;
			return true;
		case FAR_FOLLOW:
			t->name = s.entry[t->name];
			return true;
		case FAR_WAIT:
			return false;
		case FAR_CLAIM:
			t->at = mutant == NO_CLAIM ? SOURCE : CLAIM;
			return true;
		}
		return false;
	case CLAIM:
		if (s.entry[t->name] == NONE) {
			s.entry[t->name] = BUSY;
			t->at = SOURCE;
		} else {
			t->at = ASK;
		}
		return true;
	case SOURCE:
		if (mutant != STATE_BEFORE_CLAIM)
			t->seen = s.state[region_of(t->name)];
		if (mutant != PLACE_BEFORE_CLAIM)
			t->at_new = is_new_now(t->name);
		if (t->seen == FAR_AWAY && has(s.lost, region_of(t->name)) &&
		    mutant != LOST_COMES_BACK)
			load_fails(t);
		else
			t->at = COPY;
		return true;
	case COPY:
		t->to = arrival();
		if (t->to == NONE)
			return false;
		s.here[t->to] = source(far_source((enum far_state)t->seen), t->name,
					 t->at_new);
		t->at = PUBLISH;
		return true;
	case PUBLISH:
		arrive(t->name, t->to);
		t->name = t->to;
		t->at = HEAL;
		return true;
	default:
		load_end(t);
		return true;
	}
}

static void log_old(uint8_t old)
{
	if (mutant != LOGGED_BY_NAME)
		old = forward(old);
	if (old != NONE && s.phase == MARKING && !has(s.marked, old))
		s.log |= bit(old);
}

static void put(uint8_t slot, uint8_t value)
{
	log_old(*slot_at(slot));
	*slot_at(slot) = value;
}

enum {
	LOAD, LOAD_FIELD = LOAD + TABLE, STORE, CLEAR = STORE + TABLE, CLEAR_FIELD = CLEAR + TABLE,
	STORE_FIELD, WRITE, COPY_SLOT, LEAVE_LOCAL, THREAD_STEPS,
};

#define FEW (1u << (LOAD + 1) | 1u << LEAVE_LOCAL)

static bool thread_begin(struct thread *t, int step)
{
	struct object *o = t->local == NONE ? NULL : &s.here[t->local];

	if (step < LOAD_FIELD)
		return load_begin(t, (uint8_t)(step - LOAD), s.means[step - LOAD]);
	if (step >= CLEAR && step < CLEAR_FIELD) {
		put((uint8_t)(step - CLEAR), NONE);
		s.means[step - CLEAR] = NONE;
		return true;
	}
	if (step == COPY_SLOT) {
		/* From slot to slot, with nothing brought. */
		if (!s.copies || s.table[0] == NONE)
			return false;
		s.copies--;
		put(1, forward(s.table[0]));
		s.means[1] = s.means[0];
		return true;
	}
	if (!o)
		return false;
	if (step == LOAD_FIELD)
		return load_begin(t, (uint8_t)(FIELDS + t->local), s.refers[t->has]);
	if (step < CLEAR) {
		put((uint8_t)(step - STORE), t->local);
		s.means[step - STORE] = t->has;
	} else if (step == CLEAR_FIELD) {
		put((uint8_t)(FIELDS + t->local), NONE);
		s.refers[t->has] = NONE;
	} else if (step == STORE_FIELD) {
		put((uint8_t)(FIELDS + t->local), t->local);
		s.refers[t->has] = t->has;
	} else if (step == WRITE) {
		/* Once. */
		o->value = s.value[t->has] = 1;
	} else {
		t->local = t->has = NONE;
	}
	return true;
}

static bool threads_are_ready(void)
{
	for (unsigned int i = 0; i < THREADS; i++)
		if (s.thread[i].at != READY)
			return false;
	return true;
}

/* --- leaving -------------------------------------------------------------------------------- */

static bool leave_begin(uint8_t region)
{
	if (s.leaver != L_IDLE || !s.leaves || !has(s.used, region) || !has_live(region) ||
	    s.state[region] != FAR_LOCAL || (s.phase != IDLE && mutant != NO_TURN))
		return false;
	s.leaves--;
	event(region, FAR_CHOSEN);
	if (s.arrival == region)
		s.arrival = NONE;
	s.leaver = L_CHOSEN;
	s.leaving = region;
	return true;
}

/* The pause. */
static bool leave_probe(void)
{
	bool pinned = false;

	if (!threads_are_ready())
		return false;
	for (unsigned int i = 0; i < THREADS; i++)
		pinned |= s.thread[i].local != NONE &&
			  region_of(s.thread[i].local) == s.leaving;
	if (pinned && mutant != NOT_PINNED) {
		event(s.leaving, FAR_PINNED);
		s.leaver = L_IDLE;
		s.leaving = NONE;
		return true;
	}
	event(s.leaving, FAR_UNPINNED);
	for (uint8_t i = s.leaving * REGION; i < (s.leaving + 1) * REGION; i++)
		if (has(s.allocated, i) && mutant != FAR_IS_WHITE)
			s.marked |= bit(i);
	s.leaver = L_NAMING;
	return true;
}

static bool leave_name(void)
{
	for (uint8_t i = s.leaving * REGION; i < (s.leaving + 1) * REGION; i++) {
		if (!has(s.allocated, i) || s.here[i].field == NONE)
			continue;
		s.here[i].field = forward(s.here[i].field);
		if (mutant != NOT_NAMED)
			s.holds[s.leaving] |= bit(s.here[i].field);
	}
	s.leaver = L_IDLE;
	s.leaving = NONE;
	return true;
}

static void pack(uint8_t region)
{
	for (uint8_t i = region * REGION; i < (region + 1) * REGION; i++) {
		if (!has(s.allocated, i))
			continue;
		s.extent |= bit(region);
		s.tablet |= bit(i);
		s.far[i] = s.here[i];
	}
}

static bool write_begin(uint8_t region)
{
	if (s.leaver != L_IDLE || s.state[region] != FAR_LEAVING || !may_write())
		return false;
	s.leaving = region;
	if (mutant == STATE_BEFORE_WRITE)
		event(region, FAR_WRITTEN);
	else
		pack(region);
	s.leaver = L_PACKED;
	return true;
}

static void memory_wipe(uint8_t region)
{
	for (uint8_t i = region * REGION; i < (region + 1) * REGION; i++)
		s.here[i] = (struct object){ NONE, NONE, 0 };
}

static bool write_step(void)
{
	switch (s.leaver) {
	case L_PACKED:
		if (mutant == STATE_BEFORE_WRITE)
			pack(s.leaving);
		else
			event(s.leaving, FAR_WRITTEN);
		if (mutant == NOT_HANDED_OVER)
			s.mine |= bit(s.leaving);
		s.leaver = L_SETTLING;
		return true;
	case L_SETTLING:
		if (!far_is_quiet(is_busy(s.leaving)) && mutant != NOT_SETTLED)
			return false;
		s.leaver = L_RETURNED;
		return true;
	default:
		s.memory &= (uint8_t)~bit(s.leaving);
		memory_wipe(s.leaving);
		/* From here on it is the collector's. */
		s.mine |= bit(s.leaving);
		s.leaver = L_IDLE;
		s.leaving = NONE;
		return true;
	}
}

/* --- cycles --------------------------------------------------------------------------------- */

static void reach(uint8_t place)
{
	if (place == NONE || has(s.marked, place))
		return;
	s.marked |= bit(place);
	/* What is in the store waits to be read. */
	if (!far_is_out(state_of(place)) || mutant == FAR_IS_WHITE)
		s.gray |= bit(place);
}

/* The heap learns that a region's place is lost. */
static bool lose(uint8_t r)
{
	if (!s.losses || s.state[r] != FAR_AWAY || !has(s.mine, r) || s.homing != NONE ||
	    (s.phase != IDLE && (s.phase != MARKING || mutant != LOST_LATE)))
		return false;
	s.losses--;
	s.lost |= bit(r);
	return true;
}

/* Before the first pause of a far cycle: clears marks; threads run. */
static bool far_begin(void)
{
	if (!s.cycles || !s.fars || s.phase != IDLE || s.leaver != L_IDLE)
		return false;
	s.fars--;
	s.phase = PREPARED;
	s.is_far = 1;
	s.sent = s.read = s.leaving_unread = 0;
	for (uint8_t r = 0; r < REGIONS; r++) {
		s.next[r] = 0;
		if (s.state[r] == FAR_LEAVING)
			s.sent |= s.allocated & (uint8_t)(((1u << REGION) - 1) << r * REGION);
		if (s.state[r] != FAR_AWAY)
			continue;
		expect(has(s.mine, r), "a region was written, and is not the collector's");
		s.read |= bit(r);
		for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++)
			if (has(s.allocated, i))
				s.marked &= (uint8_t)~bit(i);
			else
				s.sent |= bit(i);
	}
	s.told = s.now;
	s.by = s.donors ? TO_TRACE : READING;
	s.passed = s.lives = s.traced = s.names = 0;
	s.ghosts = mutant == NO_GHOSTS ? 0 : s.sent;
	return true;
}

static void names_mark(void)
{
	for (uint8_t i = 0; i < PLACES; i++)
		if (has(named(), i) && mutant != NAMES_NO_ROOTS)
			reach(forward(i));
}

/* An object that region @r holds, in memory or the store. */
static void far_read(uint8_t r, const struct object *o)
{
	if (o->id == NONE || o->field == NONE)
		return;
	expect(has(named(), o->field), "the store has a name that is not named");
	if (mutant != NAMES_UNFOUND)
		s.next[r] |= bit(o->field);
	reach(forward(o->field));
}

static bool leaving_read(void)
{
	uint8_t r = 0;

	if (s.phase != MARKING || !s.leaving_unread)
		return false;
	while (!has(s.leaving_unread, r))
		r++;
	s.leaving_unread &= (uint8_t)~bit(r);
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++)
		if (has(s.sent, i) && mutant != LEAVING_UNREAD)
			far_read(r, has(s.memory, r) ? &s.here[i] : far_at(i, is_new_now(i)));
	return true;
}

/* Is nothing left for tracers? */
static bool is_idle(void)
{
	return s.phase == MARKING && !s.gray && !s.table_gray && s.tracing == NONE &&
	       !s.leaving_unread;
}

static bool donors_trace(void)
{
	return s.by == TO_TRACE || s.by == TRACES;
}

static bool store_read(void)
{
	uint8_t places = donors_trace() ? left_unread() : unread(), i = 0;

	if (!is_idle() || !places)
		return false;
	while (!has(places, i))
		i++;
	expect(has_extent(region_of(i), is_new_now(i)), "an extent is read that was freed");
	s.sent |= bit(i);
	far_read(region_of(i), far_at(i, is_new_now(i)));
	return true;
}

/* --- donors that trace ---------------------------------------------------------------------- */

/* Does the donor of @from have the object at this place? */
static bool is_there(uint8_t from, uint8_t place)
{
	return has(s.read, region_of(place)) && is_stored(place) && !has(s.ghosts, place) &&
	       !is_left(place) && !has(s.lost, region_of(place)) &&
	       donor_of(place) == donor_of(from);
}

/* Passes one object that waits; or the store has nothing to trace. */
static bool pass(void)
{
	uint8_t waits = unread() & (uint8_t)~(s.passed | left_unread()), i = 0;

	if (!is_idle() || !donors_trace())
		return false;
	if (!unread() && s.by == TO_TRACE) {
		s.by = READING;
		return true;
	}
	if (!waits && s.by == TRACES)
		return false;
	if (s.by == TO_TRACE && mutant == GHOSTS_LATE)
		for (uint8_t k = 0; k < PLACES; k++)
			if (is_stored(k) && !has(s.allocated, k))
				s.ghosts |= bit(k);
	s.by = TRACES;
	if (!waits)
		return true;
	while (!has(waits, i))
		i++;
	expect(is_there(i, i), "an object is passed that is elsewhere");
	s.passed |= bit(i);
	s.lives |= bit(i);
	return true;
}

/* A donor traces one object, while the program runs. */
static bool donor_step(void)
{
	uint8_t work = s.lives & (uint8_t)~s.traced, i = 0, to, now;

	if (s.phase != MARKING || s.by != TRACES || !work || s.tracing != NONE)
		return false;
	while (!has(work, i))
		i++;
	s.traced |= bit(i);
	expect(has_extent(region_of(i), has(s.told, region_of(i))), "a donor traces what was freed");
	to = far_at(i, has(s.told, region_of(i)))->field;
	expect(far_at(i, has(s.told, region_of(i)))->id != NONE, "a donor traces what is no object");
	if (to == NONE)
		return true;
	expect(has(named(), to), "a donor has a name that is not named");
	if (is_there(i, to)) {
		if (mutant != THERE_UNNAMED)
			s.names |= bit(to);
		s.lives |= bit(to);
		return true;
	}
	if (mutant != FOUND_UNNAMED)
		s.names |= bit(to);
	if (mutant == FOUND_UNMARKED)
		return true;
	now = forward(to);
	if (now != to || !has(s.read, region_of(to)) || is_left(to)) {
		reach(now);
	} else if (!has(s.marked, to)) {
		/* To its donor, at once. */
		s.marked |= bit(to);
		s.passed |= bit(to);
		s.lives |= bit(to);
	}
	return true;
}

static bool commit(void)
{
	if (!is_idle() || s.by != TRACES)
		return false;
	if (mutant == LEFT_UNREAD)
		s.sent |= left_unread();
	if (unread() & (uint8_t)~s.passed ||
	    (s.lives & (uint8_t)~s.traced && mutant != COMMITTED_EARLY))
		return false;
	s.by = TRACED;
	s.sent |= mutant == NO_COMMIT ? s.passed : s.lives;
	for (uint8_t i = 0; i < PLACES && mutant != NO_COMMIT; i++) {
		bool there = has(s.allocated, i);

		if (!has(s.lives, i) || has(s.marked, i))
			continue;
		s.marked |= bit(i);
		if (!there && mutant != BACK_UNMARKED) {
			expect(forward(i) != i, "a mark is of a dead object");
			reach(forward(i));
		}
	}
	return true;
}

/* A donor refuses, or is lost: what it was to trace is read. */
static bool fall_back(void)
{
	if (s.phase != MARKING || !donors_trace() || !s.fails || s.tracing != NONE ||
	    s.leaving_unread)
		return false;
	s.fails--;
	s.by = READING;
	if (mutant == FELL_BACK_UNREAD)
		s.sent |= s.passed;
	return true;
}

/* What a region holds that donors have traced: of what it held, what they have named. */
static uint8_t still_held(uint8_t region)
{
	uint8_t names = s.names;

	for (uint8_t r = 0; r < REGIONS; r++)
		names |= s.next[r];
	return s.by == TRACED && has(s.read, region) && !has(s.lost, region) &&
	       !is_left(region * REGION) && mutant != HOLDS_UNKNOWN ?
	       s.holds[region] & names : 0;
}

/* A read fails: the cycle goes on as another one. */
static bool abandon(void)
{
	if (s.phase != MARKING || !s.is_far || !s.abandons || s.gray || s.table_gray ||
	    s.tracing != NONE || s.leaving_unread || (donors_trace() && !s.left))
		return false;
	s.abandons--;
	for (uint8_t i = 0; i < PLACES; i++)
		if (has(s.read, region_of(i)) && has(s.allocated, i) && mutant != ABANDONED_WHITE)
			s.marked |= bit(i);
	s.is_far = s.read = s.sent = 0;
	s.by = READING;
	memset(s.next, 0, sizeof(s.next));
	if (mutant != ABANDONED_UNNAMED)
		names_mark();
	return true;
}

static bool snapshot(void)
{
	if (!s.cycles || (s.phase != IDLE && s.phase != PREPARED) || !threads_are_ready() ||
	    (s.leaver == L_CHOSEN || s.leaver == L_NAMING))
		return false;
	s.cycles--;
	s.snapshots ^= 1;
	s.phase = MARKING;
	s.shortened = 0;
	s.table_gray = (1u << TABLE) - 1;
	for (unsigned int i = 0; i < THREADS; i++)
		reach(s.thread[i].local);
	if (!s.is_far) {
		names_mark();
		return true;
	}
	for (uint8_t r = 0; r < REGIONS; r++)
		if (s.state[r] == FAR_LEAVING)
			s.leaving_unread |= bit(r);
	return true;
}

static bool trace(uint8_t slot)
{
	if (s.phase != MARKING || s.tracing != NONE || s.leaving_unread)
		return false;
	if (slot < TABLE) {
		if (!has(s.table_gray, slot))
			return false;
		s.table_gray &= (uint8_t)~bit(slot);
	} else {
		if (!has(s.gray, slot - FIELDS))
			return false;
		s.gray &= (uint8_t)~bit(slot - FIELDS);
		expect(!far_is_out(state_of(slot - FIELDS)), "the tracer reads what is out");
	}
	s.tracing = slot;
	s.was = *slot_at(slot);
	return true;
}

static bool trace_end(void)
{
	uint8_t now;

	if (s.tracing == NONE)
		return false;
	now = forward(s.was);
	if (s.was != NONE && (*slot_at(s.tracing) == s.was || mutant == TRACER_STORES))
		*slot_at(s.tracing) = now;
	reach(now);
	s.tracing = s.was = NONE;
	return true;
}

static void region_free(uint8_t region)
{
	memory_wipe(region);
	for (uint8_t i = region * REGION; i < (region + 1) * REGION; i++) {
		s.marked &= (uint8_t)~bit(i);
		s.allocated &= (uint8_t)~bit(i);
		if (mutant == FREED_WITH_FORWARDS)
			s.entry[i] = NONE;
	}
	s.used &= (uint8_t)~bit(region);
	s.memory &= (uint8_t)~bit(region);
	s.mine &= (uint8_t)~bit(region);
}

static void shorten(uint8_t place)
{
	if (s.entry[place] < PLACES && far_is_out(state_of(place)))
		s.entry[place] = forward(s.entry[place]);
}

static bool must_read(void)
{
	return unread() && mutant != ENDED_UNREAD && (mutant != UNREAD_AFTER || s.by != TRACED);
}

/* Before the last pause, when all that is known is marked. */
static bool shorten_step(void)
{
	if (!is_idle() || donors_trace() || must_read() || mutant == NOT_SHORTENED ||
	    mutant == SHORTENED_LATE)
		return false;
	/* What has no effect is no step. */
	while (s.shortened < PLACES && s.entry[s.shortened] == NONE)
		s.shortened++;
	if (s.shortened == PLACES)
		return false;
	shorten(s.shortened++);
	return true;
}

static bool is_shortened(void)
{
	uint8_t i = s.shortened;

	while (i < PLACES && s.entry[i] == NONE)
		i++;
	return i == PLACES || mutant == NOT_SHORTENED || mutant == SHORTENED_LATE;
}

static bool finish(void)
{
	uint8_t held[REGIONS];

	if (!is_idle() || donors_trace() || must_read() || !threads_are_ready() || !is_shortened())
		return false;
	for (uint8_t i = 0; i < PLACES; i++) {
		if (has(s.log, i))
			reach(i);
		if (has(s.log, i) && mutant == LOGGED_UNREAD)
			s.sent |= bit(i);
	}
	s.log = 0;
	if (s.gray || must_read())
		return true;
	s.arrival = NONE;
	for (uint8_t r = 0; r < REGIONS; r++)
		held[r] = s.next[r] | still_held(r);
	if (s.is_far && mutant != NAMES_OF_BEFORE)
		memcpy(s.holds, held, sizeof(held));
	for (uint8_t r = 0; r < REGIONS; r++) {
		if (!has(s.used, r) || far_is_out((enum far_state)s.state[r]))
			continue;
		for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++) {
			if (has(s.allocated, i) && !has(s.marked, i)) {
				expect(!has(named(), i) || mutant == NAMES_NO_ROOTS,
				       "a named object is freed");
				s.allocated &= (uint8_t)~bit(i);
				s.here[i] = (struct object){ NONE, NONE, 0 };
			}
			s.marked &= (uint8_t)~bit(i);
		}
		if (!has_live(r) && s.state[r] == FAR_LOCAL)
			region_free(r);
	}
	s.phase = FORGETTING;
	s.forgetting = s.kept = 0;
	return true;
}

/* Names of regions that were EMPTY before the cycle end. */
static void withdraw(uint8_t r)
{
	if (has(s.mine, r) &&
	    (far_may_withdraw((enum far_state)s.state[r]) ||
	     (mutant == WITHDRAWN_EARLY && s.state[r] == FAR_AWAY && !has_live(r))))
		s.holds[r] = 0;
}

static void drop(uint8_t place)
{
	bool is_named = has(named(), place) && mutant != DROPPED_NAMED;
	uint64_t snapshots = s.snapshots;

	if (s.entry[place] == NONE || !has(s.mine, region_of(place)))
		return;
	if (mutant == DROPPED_NEW)
		snapshots = !has(s.odd, place);
	if (far_may_drop(word(place), is_named, snapshots))
		s.entry[place] = NONE;
	else
		s.kept |= bit(region_of(place));
}

static void drain(uint8_t r)
{
	event(r, FAR_DRAINED);
	s.extent &= (uint8_t)~bit(r);
	s.extent_new &= (uint8_t)~bit(r);
	s.now &= (uint8_t)~bit(r);
	s.lost &= (uint8_t)~bit(r);
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++) {
		s.tablet &= (uint8_t)~bit(i);
		s.tablet_new &= (uint8_t)~bit(i);
	}
}

static void forget(uint8_t r)
{
	event(r, FAR_FORGOTTEN);
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++) {
		expect(!has(named(), i), "a region with a name is freed");
		s.entry[i] = NONE;
	}
	region_free(r);
}

/* What is left of a region, after drop() of its entries. */
static void region_end(uint8_t r)
{
	bool kept = has(s.kept, r) && mutant != FREED_WITH_FORWARDS;

	if (!has(s.mine, r))
		return;
	if (far_may_forget((enum far_state)s.state[r], kept)) {
		forget(r);
		return;
	}
	if (s.state[r] == FAR_AWAY && (!has_live(r) || mutant == DRAINED_LIVE)) {
		/* Its last object was brought: nothing has a claim there. */
		expect(!is_busy(r) || mutant == DRAINED_LIVE, "a claim outlives the last object");
		drain(r);
		if (mutant == FORGOTTEN_AT_ONCE && !kept)
			forget(r);
	}
}

/* What the far cycle has not found in the store is dead. */
static void sweep(uint8_t r)
{
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++)
		if (!has(s.marked, i))
			s.allocated &= (uint8_t)~bit(i);
	s.read &= (uint8_t)~bit(r);
}

/* Steps of what follows a cycle: of regions, of entries, and so on. */
enum { F_SWEEP, F_SHORTEN = F_SWEEP + REGIONS, F_WITHDRAW = F_SHORTEN + PLACES,
       F_DROP = F_WITHDRAW + REGIONS,
       F_END = F_DROP + PLACES, F_STEPS = F_END + REGIONS };

/* Has the step an effect? */
static bool forget_has(uint8_t n)
{
	if (n < F_SHORTEN)
		return has(s.read, n);
	if (n < F_WITHDRAW)
		return mutant == SHORTENED_LATE && s.entry[n - F_SHORTEN] < PLACES;
	if (n < F_DROP)
		return s.holds[n - F_WITHDRAW];
	if (n < F_END)
		return s.entry[n - F_DROP] != NONE && has(s.mine, region_of(n - F_DROP));
	return n < F_STEPS && has(s.mine, n - F_END);
}

/* One step of what follows a cycle: withdraws names, drops a forward, or ends a region. */
static bool forget_step(void)
{
	uint8_t n;

	if (s.phase != FORGETTING)
		return false;
	while (s.forgetting < F_STEPS && !forget_has(s.forgetting))
		s.forgetting++;
	n = s.forgetting++;
	if (n >= F_SHORTEN)
		s.is_far = s.sent = s.by = s.passed = s.lives = s.traced = s.ghosts = s.names = 0;
	if (n < F_SHORTEN)
		sweep(n);
	else if (n < F_WITHDRAW)
		shorten(n - F_SHORTEN);
	else if (n < F_DROP)
		withdraw(n - F_WITHDRAW);
	else if (n < F_END)
		drop(n - F_DROP);
	else if (n < F_STEPS)
		region_end(n - F_END);
	if (n < F_STEPS)
		return true;
	s.phase = IDLE;
	s.forgetting = s.kept = 0;
	return true;
}

/* --- coming home: the collector claims all that is left, between cycles --------------------- */

static bool come_home(uint8_t r)
{
	uint8_t to;

	/* Each object is a step; the image was read before. */
	if (s.phase != IDLE || s.state[r] != FAR_AWAY || !has(s.mine, r))
		return false;
	if (s.homing == NONE) {
		if (!s.homes || !has_live(r) || has(s.lost, r) || s.leaver == L_CHOSEN ||
		    s.leaver == L_NAMING)
			return false;
		s.homes--;
		s.homing = r;
		return true;
	}
	if (s.homing != r)
		return false;
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++) {
		if (!has(s.allocated, i) || s.entry[i] != NONE)
			continue;
		to = arrival();
		if (to == NONE) {
			s.homing = NONE;
			return true;
		}
		s.here[to] = source(FAR_FROM_STORE, i, is_new_now(i));
		arrive(i, to);
		return true;
	}
	if (!far_is_quiet(is_busy(r)) && mutant != FREED_UNSETTLED)
		return false;
	drain(r);
	s.homing = NONE;
	return true;
}

/* --- compacting: the store copies what is left of a region, between cycles ------------------ */

static void copy_to_new(uint8_t r)
{
	s.extent_new |= bit(r);
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++) {
		if (!has(s.allocated, i) || !has(s.tablet, i))
			continue;
		s.tablet_new |= bit(i);
		s.far_new[i] = s.far[i];
	}
}

static void old_free(uint8_t r)
{
	s.extent &= (uint8_t)~bit(r);
	for (uint8_t i = r * REGION; i < (r + 1) * REGION; i++)
		s.tablet &= (uint8_t)~bit(i);
}

static bool compact(uint8_t r)
{
	if (s.compacting == NONE) {
		if (!s.compacts || s.homing != NONE || s.state[r] != FAR_AWAY || !has(s.mine, r) ||
		    !has_live(r) || has(s.lost, r) || has(s.now, r) ||
		    (s.phase != IDLE && (s.phase != MARKING || mutant != COMPACTED_IN_A_CYCLE)))
			return false;
		s.compacts--;
		s.compacting = r;
		s.compacted = 0;
		if (mutant == FLIPPED_FIRST)
			s.now |= bit(r);
		else
			copy_to_new(r);
		return true;
	}
	if (s.compacting != r)
		return false;
	if (!s.compacted) {
		s.compacted = 1;
		if (mutant == FLIPPED_FIRST)
			copy_to_new(r);
		else
			s.now |= bit(r);
		return true;
	}
	if (!far_is_quiet(is_busy(r)) && mutant != COMPACTED_UNSETTLED)
		return false;
	old_free(r);
	s.compacting = NONE;
	s.compacted = 0;
	return true;
}

/* --- steps ---------------------------------------------------------------------------------- */

enum {
	THREAD, CONTINUE = THREAD + THREADS * THREAD_STEPS, LEAVE = CONTINUE + THREADS,
	WRITE_OUT = LEAVE + REGIONS, LEAVER = WRITE_OUT + REGIONS, SNAPSHOT, TRACE,
	TRACE_END = TRACE + TABLE + PLACES, SHORTEN, FAR_BEGIN, LEAVING_READ, STORE_READ, ABANDON,
	PASS, DONOR, COMMIT, FALL_BACK, FINISH, FORGET, HOME, LOSE = HOME + REGIONS,
	COMPACT = LOSE + REGIONS, STEPS = COMPACT + REGIONS,
};

/*
 * Inlined into the loop over all steps, gcc 12.2 -O2 reads outside of the table: it makes of
 * (uint8_t)(step - TRACE) an induction variable of 8 bits, and loses where that wraps.
 */
static __attribute__((noinline)) bool take(int step)
{
	if (step < CONTINUE) {
		struct thread *t = &s.thread[step / THREAD_STEPS];

		if (step / THREAD_STEPS >= s.threads || t->at != READY || !s.steps ||
		    !has(s.all ? ~0u : FEW, (unsigned int)step % THREAD_STEPS) ||
		    !thread_begin(t, step % THREAD_STEPS))
			return false;
		s.steps--;
		return true;
	}
	if (step < LEAVE)
		return s.thread[step - CONTINUE].at != READY &&
		       load_step(&s.thread[step - CONTINUE]);
	if (step < WRITE_OUT)
		return s.homing == NONE && s.compacting == NONE &&
		       leave_begin((uint8_t)(step - LEAVE));
	if (step < LEAVER)
		return write_begin((uint8_t)(step - WRITE_OUT));
	if (step == LEAVER) {
		if (s.leaver == L_CHOSEN)
			return leave_probe();
		if (s.leaver == L_NAMING)
			return leave_name();
		return s.leaver != L_IDLE && may_write() && write_step();
	}
	if (step == SNAPSHOT)
		return s.homing == NONE && s.compacting == NONE && snapshot();
	if (step < TRACE_END)
		return trace((uint8_t)(step - TRACE));
	if (step == TRACE_END)
		return trace_end();
	if (step == SHORTEN)
		return shorten_step();
	if (step == FAR_BEGIN)
		return s.homing == NONE && s.compacting == NONE && far_begin();
	if (step == LEAVING_READ)
		return leaving_read();
	if (step == STORE_READ)
		return store_read();
	if (step == ABANDON)
		return abandon();
	if (step == PASS)
		return pass();
	if (step == DONOR)
		return donor_step();
	if (step == COMMIT)
		return commit();
	if (step == FALL_BACK)
		return fall_back();
	if (step == FINISH)
		return finish();
	if (step == FORGET)
		return forget_step();
	if (step < LOSE)
		return s.compacting == NONE && come_home((uint8_t)(step - HOME));
	if (step < COMPACT)
		return s.compacting == NONE && lose((uint8_t)(step - LOSE));
	return compact((uint8_t)(step - COMPACT));
}

/* What a name leads to is there, is the object, and so on from its field. */
static void follow(uint8_t name, uint8_t id)
{
	uint8_t visited = 0;

	while (name != NONE && !wrong) {
		const struct object *o;

		name = forward(name);
		if (has(visited, name))
			return;
		visited |= bit(name);
		expect(id != NONE, "a store was lost");
		expect(has(s.allocated, name), "a reachable object was freed");
		switch (state_of(name)) {
		case FAR_AWAY:
			if (has(s.lost, region_of(name)))
				return;
			o = far_at(name, is_new_now(name));
			expect(is_stored(name) || mutant == STATE_BEFORE_WRITE,
			       "an object is not in the store");
			if (!is_stored(name))
				return;
			break;
		case FAR_EMPTY:
			expect(false, "a name leads to nothing");
			return;
		default:
			o = &s.here[name];
		}
		expect(o->id == id, "a reference leads to another object");
		expect(o->value == s.value[id], "a write was lost");
		if (wrong)
			return;
		id = s.refers[id];
		name = o->field;
		expect((name == NONE) == (id == NONE), "a store was lost");
	}
}

static void check(void)
{
	for (uint8_t i = 0; !s.is_far && i < PLACES; i++)
		expect(!has(s.allocated, i) || !far_is_out(state_of(i)) || has(s.marked, i),
		       "what is far is white");
	for (unsigned int i = 0; i < TABLE; i++) {
		expect((s.table[i] == NONE) == (s.means[i] == NONE), "a store was lost");
		follow(s.table[i], s.means[i]);
	}
	for (unsigned int i = 0; i < THREADS; i++) {
		const struct thread *t = &s.thread[i];

		if (t->local == NONE)
			continue;
		expect(!far_is_out(state_of(t->local)), "a thread has an address in what is out");
		follow(t->local, t->has);
	}
	/* What another one is about to bring. */
	for (uint8_t i = 0; i < PLACES; i++)
		expect(s.entry[i] != BUSY || has(s.allocated, i) || !is_stored(i),
		       "what is being brought was freed");
}

/* --- the search ----------------------------------------------------------------------------- */

static bool is_new(void)
{
	const unsigned char *p = (const unsigned char *)&s;
	uint64_t hash = 0xcbf29ce484222325u, word;
	uint32_t at;

	for (size_t i = 0; i < sizeof(s); i += sizeof(word)) {
		size_t left = sizeof(s) - i;

		word = 0;
		memcpy(&word, p + i, left < sizeof(word) ? left : sizeof(word));
		hash = (hash ^ word) * 0xbf58476d1ce4e5b9u;
		hash ^= hash >> 32;
	}
	hash += !hash;
	at = (uint32_t)hash % SEEN;
	while (seen[at] && seen[at] != hash)
		at = (at + 1) % SEEN;
	if (seen[at])
		return false;
	seen[at] = hash;
	assert_true(++states < SEEN / 4 * 3);
	return true;
}

/* States that differ in what is never read again are one. */
static void forget_unused(void)
{
	for (uint8_t i = 0; i < PLACES; i++) {
		if (!has(s.tablet, i))
			s.far[i] = (struct object){ NONE, NONE, 0 };
		if (!has(s.tablet_new, i))
			s.far_new[i] = (struct object){ NONE, NONE, 0 };
		if (s.entry[i] >= PLACES)
			s.odd &= (uint8_t)~bit(i);
	}
}

static void explore(void)
{
	const struct state here = s;

	for (int step = 0; step < STEPS && !wrong; step++) {
		s = here;
		if (!take(step))
			continue;
		forget_unused();
		if (!wrong)
			check();
		if (!wrong && is_new())
			explore();
	}
	s = here;
}

/* Where the two objects are at first: the first refers to the second. */
struct begin {
	const char *name;
	uint8_t second;			/* its place */
	bool in_table;			/* the table refers to it, too */
	uint8_t threads;
	bool all;			/* steps of threads, or only FEW */
	uint8_t steps, leaves, cycles, homes, fars, abandons;
	uint32_t states;		/* at least */
	void (*later)(void);		/* makes the state a later one */
	uint8_t donors, fails;		/* that trace; how often they fail */
};

/* A region whose objects have been brought. */
static void make_empty(uint8_t region)
{
	s.state[region] = FAR_EMPTY;
	s.used |= bit(region);
	s.memory &= (uint8_t)~bit(region);
	s.mine |= bit(region);
	memory_wipe(region);
}

/*
 * The first object is far, and holds the name 2 of the second, which has come to 4, and has left
 * from there, too, and come to 6.  No slot names 4, but the forward of 2 leads there.
 */
static void after_two_returns(void)
{
	make_empty(0);
	s.state[0] = FAR_AWAY;
	s.extent = s.tablet = bit(0);
	s.far[0] = (struct object){ 0, 2, 0 };
	s.holds[0] = bit(2);
	make_empty(1);
	make_empty(2);
	s.entry[2] = 4;
	s.entry[4] = 6;
	s.used |= bit(3);
	s.memory |= bit(3);
	s.here[6] = (struct object){ 1, NONE, 0 };
	s.arrival = 3;
	s.allocated = s.marked = bit(0);
	s.allocated |= bit(6);
	if (s.means[1] != NONE)
		s.table[1] = 6;
}

/* The region of the first object is LEAVING. */
static void while_leaving(void)
{
	s.state[0] = FAR_LEAVING;
	s.marked = bit(0);
	s.holds[0] = bit(2);
}

/* The regions of both are. */
static void while_both_leave(void)
{
	while_leaving();
	s.state[1] = FAR_LEAVING;
	s.marked |= bit(2);
}

/* The region of the first object is in the store; the second one is here, and named. */
static void with_first_far(void)
{
	make_empty(0);
	s.state[0] = FAR_AWAY;
	s.extent = s.tablet = s.marked = bit(0);
	s.far[0] = (struct object){ 0, 2, 0 };
	s.holds[0] = bit(2);
}

/* That of the second one is, too. */
static void with_both_far(void)
{
	with_first_far();
	make_empty(1);
	s.state[1] = FAR_AWAY;
	s.extent |= bit(1);
	s.tablet |= bit(2);
	s.marked |= bit(2);
	s.far[2] = (struct object){ 1, NONE, 0 };
}

/* The second donor leaves what it has to the heap. */
static void left_both_far(void)
{
	with_both_far();
	s.left = 1;
}

/* A region is lost at some time. */
static void lost_first_far(void)
{
	with_first_far();
	s.losses = 1;
}

static void lost_both_far(void)
{
	with_both_far();
	s.losses = 1;
}

/* So, but the first object is the second donor's: it is at 2, and refers to one at 0. */
static void left_far_from_1(void)
{
	left_both_far();
	s.far[2] = (struct object){ 0, 0, 0 };
	s.far[0] = (struct object){ 1, NONE, 0 };
	s.holds[0] = 0;
	s.holds[1] = bit(0);
	s.table[0] = 2;
}

/* That of the first one is LEAVING. */
static void with_second_far(void)
{
	with_both_far();
	s.extent = bit(1);
	s.tablet = bit(2);
	s.far[0] = (struct object){ NONE, NONE, 0 };
	s.here[0] = (struct object){ 0, 2, 0 };
	s.state[0] = FAR_LEAVING;
	s.memory |= bit(0);
	s.mine = bit(1);
}

/*
 * Both objects are far, and of one region; the first refers to the second, which only it does.  Of
 * two donors, another one has the region that it may come to.
 */
static void with_both_in_one(void)
{
	with_both_far();
	s.tablet = s.marked = s.allocated = bit(0) | bit(1);
	s.extent = bit(0);
	s.far[2] = (struct object){ NONE, NONE, 0 };
	s.far[0].field = 1;
	s.far[1] = (struct object){ 1, NONE, 0 };
	s.holds[0] = bit(1);
	s.used = s.mine = bit(0);
	s.state[1] = FAR_LOCAL;
}

static void lost_in_one(void)
{
	with_both_in_one();
	s.losses = 1;
}

/* As with_both_in_one(); the second has come back to 4, and was changed to refer to itself. */
static void with_second_back(void)
{
	with_both_in_one();
	s.entry[1] = 4;
	s.allocated = bit(0) | bit(4);
	s.used |= bit(2);
	s.memory |= bit(2);
	s.here[4] = (struct object){ 1, 4, 0 };
	s.refers[1] = 1;
	s.arrival = 2;
}

/* The store compacts a region at some time. */
static void compact_both_far(void)
{
	with_both_far();
	s.compacts = 1;
}

static void compact_in_one(void)
{
	with_both_in_one();
	s.compacts = 1;
}

static void compact_second_back(void)
{
	with_second_back();
	s.compacts = 1;
}

static const struct begin begins[] = {
	{ "a chain, a cycle", 2, false, 2, true, 2, 0, 1, 0, 0, 0, 1000, after_two_returns, 0, 0 },
	{ "a region of two objects", 1, false, 2, true, 2, 1, 0, 1, 0, 0, 3000, NULL, 0, 0 },
	{ "leaving, two cycles", 2, false, 1, true, 3, 0, 2, 0, 0, 0, 1000, while_leaving, 0, 0 },
	{ "a reference between regions", 2, false, 2, true, 2, 1, 1, 0, 0, 0, 50000, NULL, 0, 0 },
	{ "a chain, two cycles", 2, true, 1, true, 4, 0, 2, 0, 0, 0, 50000, after_two_returns,
	  0, 0 },
	{ "both leaving, two cycles", 2, true, 1, true, 2, 0, 2, 0, 0, 0, 10000, while_both_leave,
	  0, 0 },
	{ "leaving, three cycles", 2, false, 1, true, 2, 0, 3, 0, 0, 0, 10000, while_leaving,
	  0, 0 },
	{ "two references between regions", 2, true, 2, true, 3, 2, 0, 0, 0, 0, 100000, NULL,
	  0, 0 },
	{ "two cycles", 2, false, 2, true, 2, 1, 2, 0, 0, 0, 50000, NULL, 0, 0 },
	{ "home", 1, true, 2, true, 2, 1, 1, 1, 0, 0, 50000, NULL, 0, 0 },
	{ "gone again", 2, true, 1, false, 3, 3, 1, 0, 0, 0, 50000, NULL, 0, 0 },
	{ "two regions, a cycle", 2, false, 2, true, 2, 2, 1, 0, 0, 0, 50000, NULL, 0, 0 },
	{ "a far cycle", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_first_far, 0, 0 },
	{ "both far, a far cycle", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_both_far, 0, 0 },
	{ "leaving, a far cycle", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_second_far,
	  0, 0 },
	{ "leaving, local, a far cycle", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, while_leaving,
	  0, 0 },
	{ "far and in the table", 2, true, 1, true, 2, 0, 2, 0, 1, 1, 1000, with_both_far, 0, 0 },
	{ "three cycles, two of them far", 2, false, 1, true, 2, 0, 3, 0, 2, 1, 1000, with_both_far,
	  0, 0 },
	{ "gone, and a far cycle", 2, false, 1, true, 2, 1, 2, 0, 1, 0, 1000, with_first_far,
	  0, 0 },
	{ "a chain, a far cycle", 2, true, 1, true, 2, 0, 2, 0, 1, 1, 1000, after_two_returns,
	  0, 0 },
	{ "traced, first far", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_first_far, 1, 1 },
	{ "traced, both far", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_both_far, 1, 1 },
	{ "traced by two", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_both_far, 2, 1 },
	{ "traced, in one region", 1, false, 2, true, 2, 0, 2, 0, 1, 0, 1000, with_both_in_one,
	  1, 1 },
	{ "traced, leaving", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, with_second_far, 1, 1 },
	{ "traced, back", 1, false, 1, true, 3, 0, 2, 0, 1, 0, 1000, with_second_back, 1, 1 },
	{ "traced, back before", 1, true, 1, true, 3, 0, 1, 0, 1, 0, 1000, with_both_in_one, 1, 1 },
	{ "traced twice", 2, false, 1, true, 2, 0, 2, 0, 2, 0, 1000, with_both_far, 1, 1 },
	{ "traced twice by two", 2, false, 1, true, 2, 0, 3, 0, 2, 0, 1000, with_both_far, 2, 1 },
	{ "traced twice, in the table", 2, true, 1, true, 3, 0, 2, 0, 2, 0, 1000, with_both_far,
	  1, 0 },
	{ "traced, in the table", 2, true, 1, true, 2, 0, 2, 0, 1, 1, 1000, with_both_far, 2, 1 },
	{ "traced, a chain", 2, true, 1, true, 2, 0, 2, 0, 1, 1, 1000, after_two_returns, 1, 1 },
	{ "traced, then gone", 2, false, 1, true, 2, 1, 2, 0, 1, 0, 1000, with_both_far, 1, 1 },
	{ "lost", 2, false, 2, true, 3, 0, 1, 0, 1, 0, 1000, lost_first_far, 0, 0 },
	{ "lost, both far", 2, false, 1, true, 3, 0, 2, 0, 2, 1, 1000, lost_both_far, 0, 0 },
	{ "lost, traced", 2, false, 1, true, 3, 0, 2, 0, 1, 0, 1000, lost_both_far, 2, 1 },
	{ "traced by one of two", 2, false, 2, true, 2, 0, 1, 0, 1, 1, 1000, left_both_far, 2, 1 },
	{ "traced by one of two, in the table", 2, true, 1, true, 2, 0, 2, 0, 1, 1, 1000,
	  left_both_far, 2, 1 },
	{ "traced twice by one of two", 2, false, 1, true, 2, 0, 2, 0, 2, 1, 1000, left_far_from_1,
	  2, 1 },
	{ "compacted, both far", 2, true, 2, false, 2, 0, 1, 0, 0, 0, 1000, compact_both_far, 0, 0 },
	{ "compacted, in one region", 1, true, 2, true, 2, 0, 0, 0, 0, 0, 1000, compact_in_one,
	  0, 0 },
	{ "compacted, a far cycle", 1, false, 1, true, 2, 0, 2, 0, 1, 0, 1000, compact_in_one,
	  0, 0 },
	{ "compacted, traced", 1, false, 1, true, 2, 0, 2, 0, 1, 0, 1000, compact_in_one, 1, 1 },
	{ "compacted, back", 1, true, 2, false, 2, 0, 1, 0, 1, 0, 1000, compact_second_back, 1, 0 },
	{ "compacted, home", 1, true, 1, true, 2, 1, 1, 1, 0, 0, 1000, compact_in_one, 0, 0 },
	{ "lost, in one region", 1, false, 2, true, 2, 0, 1, 0, 1, 0, 1000, lost_in_one,
	  0, 0 },
};

#define BEGINS (sizeof(begins) / sizeof(*begins))

static void explore_all(enum mutant which, const struct begin *b)
{
	memset(seen, 0, SEEN * sizeof(*seen));
	memset(&s, 0, sizeof(s));
	memset(s.here, NONE, sizeof(s.here));
	memset(s.far, NONE, sizeof(s.far));
	memset(s.far_new, NONE, sizeof(s.far_new));
	for (uint8_t i = 0; i < PLACES; i++)
		s.here[i].value = s.far[i].value = s.far_new[i].value = 0;
	memset(s.entry, NONE, sizeof(s.entry));
	memset(s.thread, NONE, sizeof(s.thread));
	for (unsigned int i = 0; i < THREADS; i++)
		s.thread[i].at = READY;
	memset(s.table, NONE, sizeof(s.table));
	memset(s.means, NONE, sizeof(s.means));
	memset(s.refers, NONE, sizeof(s.refers));
	s.arrival = s.leaving = s.tracing = s.was = s.homing = s.compacting = NONE;
	s.here[0] = (struct object){ 0, b->second, 0 };
	s.here[b->second] = (struct object){ 1, NONE, 0 };
	s.allocated = bit(0) | bit(b->second);
	s.used = s.memory = bit(0) | bit(region_of(b->second));
	s.table[0] = 0;
	s.means[0] = 0;
	s.refers[0] = 1;
	if (b->in_table) {
		s.table[1] = b->second;
		s.means[1] = 1;
	}
	s.threads = b->threads;
	s.all = b->all;
	s.steps = b->steps;
	s.leaves = b->leaves;
	s.cycles = b->cycles;
	s.homes = b->homes;
	s.fars = b->fars;
	s.abandons = b->abandons;
	s.donors = b->donors;
	s.two = b->donors > 1;
	s.fails = b->fails;
	s.copies = b->fars > 0;
	if (b->later)
		b->later();
	states = 0;
	wrong = NULL;
	mutant = which;
	explore();
}

static void every_interleaving(void **state)
{
	for (size_t i = 0; i < BEGINS; i++) {
		explore_all(MUTANT_NONE, &begins[i]);
		printf("%s: %u states\n", begins[i].name, states);
		fflush(stdout);
		if (wrong)
			fail_msg("%s", wrong);
		assert_true(states > begins[i].states);
	}
}

static void every_mutant_is_found(void **state)
{
	unsigned int missed = 0;

	for (enum mutant m = 1; m < MUTANTS; m++) {
		for (size_t i = 0; i < BEGINS; i++) {
			/* Rules of far cycles, and of donors, need one. */
			if ((m >= BROUGHT_UNREAD && m < COMPACTED_UNSETTLED) != !!begins[i].fars &&
			    m < COMPACTED_UNSETTLED)
				continue;
			if ((m >= COMPACTED_UNSETTLED) != !strncmp(begins[i].name, "compact", 7) ||
			    (m >= LOST_COMES_BACK && m <= LOST_LATE) !=
				!strncmp(begins[i].name, "lost", 4) ||
			    (m >= LEFT_UNREAD && m < COMPACTED_UNSETTLED && !begins[i].donors))
				continue;
			explore_all(m, &begins[i]);
			if (!wrong)
				continue;
			printf("%s, %s: %s\n", mutant_names[m], begins[i].name, wrong);
			fflush(stdout);
			break;
		}
		if (!wrong)
			printf("%s: NOT FOUND\n", mutant_names[m]);
		missed += !wrong;
	}
	assert_int_equal(missed, 0);
}

/* All that a region goes through, and nothing else. */
static void states_of_regions(void **state)
{
	static const enum far_event whole[] = {
		FAR_CHOSEN, FAR_UNPINNED, FAR_WRITTEN, FAR_DRAINED, FAR_FORGOTTEN,
	};
	enum far_state now = FAR_LOCAL;

	for (size_t i = 0; i < sizeof(whole) / sizeof(*whole); i++) {
		enum far_state next = far_next(now, whole[i]);

		assert_int_not_equal(next, now);
		now = next;
	}
	assert_int_equal(now, FAR_LOCAL);
	for (unsigned int e = 0; e < FAR_EVENTS; e++) {
		assert_int_equal(far_next(FAR_MOVED, (enum far_event)e), FAR_MOVED);
		/* What is read-only never becomes local memory that threads write. */
		assert_int_not_equal(far_next(FAR_LEAVING, (enum far_event)e), FAR_LOCAL);
		assert_int_not_equal(far_next(FAR_AWAY, (enum far_event)e), FAR_LOCAL);
	}
	assert_int_equal(far_target(far_entry(0x1238, 1)), 0x1238);
	assert_int_equal(far_target(FAR_BUSY | FAR_AWAITED), 0);
	assert_false(far_may_drop(FAR_BUSY, false, 0));
	assert_false(far_may_drop(0, false, 0));
	assert_true(far_may_drop(far_entry(0x1238, 1), false, 2));
	assert_false(far_may_drop(far_entry(0x1238, 2), false, 2));
	assert_false(far_may_drop(far_entry(0x1238, 1), true, 2));
}

static int set_up(void **state)
{
	seen = malloc(SEEN * sizeof(*seen));
	return !seen;
}

static int tear_down(void **state)
{
	free(seen);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(states_of_regions),
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(every_mutant_is_found),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
