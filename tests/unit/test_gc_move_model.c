// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of a thread, a tracer, moves and cycles, in a model of userlib/gc/move.h and
 * forward.h: two regions of two places for objects with one reference each, a frame slot, a
 * variable that is no root, and a weak slot.  A step is what is atomic there: an access to one bit
 * or slot, or a pause.  The model also keeps what each slot refers to by the object's identity.
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

#define PLACES 4
#define REGION 2		/* places of a region */
#define LOCALS 2		/* the frame slot, the variable */
#define NONE 0xf
#define SEEN (1u << 23)

enum mutant {
	MUTANT_NONE,
	NOT_PINNED,		/* what the frame slot refers to moves */
	VARIABLE_KEPT,		/* a variable that is no root is used after a pause */
	NOT_FORWARDED,		/* a load returns what it has found */
	EXCHANGED_BY_NAME,	/* compare-and-swap does not forward what it has found */
	MARKED_BY_NAME,		/* a tracer marks the old place */
	LOGGED_BY_NAME,		/* a store logs the old place */
	NOT_HEALED,		/* a tracer forwards what it has found, and leaves the slot */
	HEALED_BY_STORE,	/* a tracer heals a slot that has changed meanwhile */
	WEAK_NOT_HEALED,	/* the weak slot is cleared by name */
	DROPPED_EARLY,		/* tables are dropped when the next cycle begins */
	REUSED,			/* an old place is free at once */
	MOVES_AGAIN,		/* objects move while there are tables */
	MOVES_MARKING,		/* objects move while a cycle marks */
	MUTANTS,
};

static const char *const mutant_names[] = {
	"none", "not pinned", "a variable is kept", "not forwarded", "exchanged by name",
	"marked by name", "logged by name", "not healed", "healed by a store",
	"the weak slot is not healed", "tables are dropped early", "old places are reused",
	"objects move again", "objects move during marking",
};

enum { IDLE, MARKING };
enum { READY, READ };

/* Sets of places are bit masks. */
struct state {
	uint8_t allocated, marked, gray, log;
	uint8_t id[PLACES], field[PLACES], forward[PLACES];
	uint8_t local[LOCALS], weak;
	/* By identity: what the program has stored. */
	uint8_t refers[PLACES], has[LOCALS], watches;
	uint8_t phase, active;
	uint8_t thread, holder, to, found;
	uint8_t tracer, traced, seen;
	uint8_t steps, moves, cycles;		/* that are left */
};

static struct state s;
static enum mutant mutant;
static const char *wrong;
static uint64_t *seen;
static uint32_t states;

static bool has(uint8_t set, uint8_t place)
{
	return set >> place & 1;
}

static uint8_t bit(uint8_t place)
{
	return (uint8_t)(1u << place);
}

static void expect(bool right, const char *text)
{
	if (!right && !wrong)
		wrong = text;
}

static uint8_t forward(uint8_t place)
{
	if (place == NONE || !s.active || s.forward[place] == NONE)
		return place;
	return s.forward[place];
}

static uint8_t identity(uint8_t place)
{
	return place == NONE ? NONE : s.id[place];
}

/* --- the thread ----------------------------------------------------------------------------- */

static bool allocate(uint8_t to)
{
	uint8_t used = 0, id = 0;

	for (uint8_t i = 0; i < PLACES; i++)
		if (has(s.allocated, i))
			used |= bit(s.id[i]);
	while (has(used, id))
		id++;
	for (uint8_t i = 0; i < PLACES; i++) {
		if (has(s.allocated, i) || (s.forward[i] != NONE && mutant != REUSED))
			continue;
		s.allocated |= bit(i);
		if (s.phase == MARKING)
			s.marked |= bit(i);
		s.id[i] = id;
		s.field[i] = s.refers[id] = NONE;
		s.local[to] = i;
		s.has[to] = id;
		return true;
	}
	return false;
}

static bool load_begin(uint8_t from, uint8_t to)
{
	if (s.local[from] == NONE)
		return false;
	s.holder = s.local[from];
	s.to = to;
	s.found = s.field[s.holder];
	s.thread = READ;
	return true;
}

static void load_end(void)
{
	uint8_t now = mutant == NOT_FORWARDED ? s.found : forward(s.found);

	if (s.field[s.holder] == s.found)
		s.field[s.holder] = now;
	s.local[s.to] = now;
	s.has[s.to] = s.refers[s.id[s.holder]];
	s.thread = READY;
	s.holder = s.found = NONE;
	s.to = 0;
}

static void log_old(uint8_t old)
{
	if (mutant != LOGGED_BY_NAME)
		old = forward(old);
	if (old != NONE && s.phase == MARKING && !has(s.marked, old))
		s.log |= bit(old);
}

/* @value LOCALS: null. */
static bool store(uint8_t object, uint8_t value)
{
	uint8_t holder = s.local[object];

	if (holder == NONE)
		return false;
	log_old(s.field[holder]);
	s.field[holder] = value == LOCALS ? NONE : s.local[value];
	s.refers[s.id[holder]] = value == LOCALS ? NONE : s.has[value];
	return true;
}

/* Replaces the other local, if it is there, by null. */
static bool exchange(uint8_t object)
{
	uint8_t holder = s.local[object], expected = s.local[!object], was;
	bool is;

	if (holder == NONE || expected == NONE)
		return false;
	was = s.field[holder];
	is = (mutant == EXCHANGED_BY_NAME ? was : forward(was)) == expected;
	expect(is == (s.refers[s.id[holder]] == s.has[!object]), "an exchange is wrong");
	if (is) {
		log_old(was);
		s.field[holder] = s.refers[s.id[holder]] = NONE;
	}
	return true;
}

static bool weak_get(uint8_t to)
{
	uint8_t now = forward(s.weak);

	if (now == NONE)
		return false;
	log_old(now);
	s.local[to] = s.weak = now;
	s.has[to] = s.watches;
	return true;
}

/* --- pauses --------------------------------------------------------------------------------- */

/* A safepoint of the thread. */
static void stop(void)
{
	if (mutant != VARIABLE_KEPT)
		s.local[1] = s.has[1] = NONE;
}

static void reach(uint8_t place)
{
	if (place == NONE || has(s.marked, place))
		return;
	s.marked |= bit(place);
	s.gray |= bit(place);
}

static void forget(void)
{
	memset(s.forward, NONE, sizeof(s.forward));
	s.active = 0;
}

static void snapshot(void)
{
	stop();
	if (mutant == DROPPED_EARLY)
		forget();
	s.phase = MARKING;
	reach(s.local[0]);
}

static void finish(void)
{
	stop();
	for (uint8_t i = 0; i < PLACES; i++)
		if (has(s.log, i))
			reach(i);
	s.log = 0;
	if (s.gray)
		return;
	if (mutant != WEAK_NOT_HEALED)
		s.weak = forward(s.weak);
	if (s.weak != NONE && !has(s.marked, s.weak)) {
		expect(!has(s.marked, forward(s.weak)), "a live object's weak reference is null");
		s.weak = s.watches = NONE;
	}
	forget();
	s.allocated &= s.marked;
	s.marked = 0;
	s.phase = IDLE;
}

/* Moves what is in one region to the other. */
static bool move(uint8_t region)
{
	uint8_t from = (uint8_t)(region * REGION), to = (uint8_t)(!region * REGION);
	bool any = false;

	for (uint8_t i = from; i < from + REGION; i++)
		any |= has(s.allocated, i);
	if (!any)
		return false;
	stop();
	for (uint8_t i = from; i < from + REGION; i++) {
		uint8_t j = to;

		if (!has(s.allocated, i) || (s.local[0] == i && mutant != NOT_PINNED))
			continue;
		while (j < to + REGION && (has(s.allocated, j) || s.forward[j] != NONE))
			j++;
		if (j == to + REGION)
			break;
		s.id[j] = s.id[i];
		s.field[j] = s.field[i];
		s.forward[i] = j;
		s.allocated = (uint8_t)((s.allocated & ~bit(i)) | bit(j));
		s.active = 1;
	}
	return true;
}

/* --- the tracer ----------------------------------------------------------------------------- */

static void trace(uint8_t place)
{
	s.gray &= (uint8_t)~bit(place);
	expect(has(s.allocated, place), "the tracer reads where no object is");
	s.traced = place;
	s.seen = s.field[place];
	s.tracer = READ;
}

static void trace_end(void)
{
	uint8_t now = mutant == MARKED_BY_NAME ? s.seen : forward(s.seen);

	if (mutant != NOT_HEALED && (s.field[s.traced] == s.seen || mutant == HEALED_BY_STORE))
		s.field[s.traced] = now;
	reach(now);
	s.tracer = READY;
	s.traced = s.seen = NONE;
}

/* --- steps ---------------------------------------------------------------------------------- */

enum {
	ALLOCATE, LOAD = ALLOCATE + LOCALS, STORE = LOAD + LOCALS * LOCALS,
	EXCHANGE = STORE + LOCALS * (LOCALS + 1), COPY = EXCHANGE + LOCALS, DROP = COPY + LOCALS,
	WEAK_SET = DROP + LOCALS, WEAK_GET = WEAK_SET + LOCALS, LOAD_END = WEAK_GET + LOCALS,
	SNAPSHOT, FINISH, MOVE, TRACE = MOVE + PLACES / REGION, TRACE_END = TRACE + PLACES, STEPS,
};

/* Takes one of the thread's steps; returns false if it is not possible. */
static bool thread_step(int step)
{
	uint8_t i;

	if (step < LOAD)
		return allocate((uint8_t)step);
	if (step < STORE)
		return load_begin((uint8_t)((step - LOAD) / LOCALS),
				  (uint8_t)((step - LOAD) % LOCALS));
	if (step < EXCHANGE)
		return store((uint8_t)((step - STORE) % LOCALS),
			     (uint8_t)((step - STORE) / LOCALS));
	if (step < COPY)
		return exchange((uint8_t)(step - EXCHANGE));
	if (step < DROP) {
		i = (uint8_t)(step - COPY);
		s.local[i] = s.local[!i];
		s.has[i] = s.has[!i];
		return true;
	}
	if (step < WEAK_SET) {
		s.local[step - DROP] = s.has[step - DROP] = NONE;
		return true;
	}
	if (step < WEAK_GET) {
		s.weak = s.local[step - WEAK_SET];
		s.watches = s.has[step - WEAK_SET];
		return true;
	}
	return weak_get((uint8_t)(step - WEAK_GET));
}

static bool take(int step)
{
	if (step < LOAD_END) {
		if (s.thread != READY || !s.steps)
			return false;
		s.steps--;
		return thread_step(step);
	}
	if (step == LOAD_END) {
		if (s.thread != READ)
			return false;
		load_end();
		return true;
	}
	if (step < TRACE) {
		/* A load is no safepoint. */
		if (s.thread != READY)
			return false;
		if (step == SNAPSHOT) {
			if (!s.cycles || s.phase != IDLE)
				return false;
			s.cycles--;
			snapshot();
			return true;
		}
		if (step == FINISH) {
			if (s.phase != MARKING || s.tracer != READY || s.gray)
				return false;
			finish();
			return true;
		}
		if (!s.moves || (s.active && mutant != MOVES_AGAIN) ||
		    (s.phase == MARKING && mutant != MOVES_MARKING))
			return false;
		s.moves--;
		return move((uint8_t)(step - MOVE));
	}
	if (step < TRACE_END) {
		if (s.tracer != READY || !has(s.gray, (uint8_t)(step - TRACE)))
			return false;
		trace((uint8_t)(step - TRACE));
		return true;
	}
	if (s.tracer != READ)
		return false;
	trace_end();
	return true;
}

/* What the program can reach is there, and is what it has stored. */
static void check(void)
{
	for (unsigned int i = 0; i < LOCALS; i++) {
		uint8_t at = s.local[i], id = s.has[i], visited = 0;

		expect(at == NONE || !s.active || s.forward[at] == NONE,
		       "the thread holds an old name");
		while (at != NONE && !has(visited, at) && !wrong) {
			visited |= bit(at);
			expect(has(s.allocated, at), "a reachable object was freed");
			expect(identity(at) == id, "a reference leads to another object");
			if (wrong)
				return;
			id = s.refers[id];
			at = forward(s.field[at]);
			expect((at == NONE) == (id == NONE), "a store was lost");
		}
	}
	if (s.weak != NONE) {
		expect(has(s.allocated, forward(s.weak)), "the weak slot refers to a free place");
		expect(identity(forward(s.weak)) == s.watches, "the weak slot has changed");
	}
}

/* --- the search ----------------------------------------------------------------------------- */

static uint64_t fingerprint(void)
{
	const unsigned char *p = (const unsigned char *)&s;
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t i = 0; i < sizeof(s); i++)
		hash = (hash ^ p[i]) * 0x100000001b3u;
	hash ^= hash >> 29;
	hash *= 0xbf58476d1ce4e5b9u;
	return hash ^ hash >> 32 ? hash ^ hash >> 32 : 1;
}

static bool is_new(void)
{
	uint64_t print = fingerprint();
	uint32_t at = (uint32_t)print % SEEN;

	while (seen[at] && seen[at] != print)
		at = (at + 1) % SEEN;
	if (seen[at])
		return false;
	seen[at] = print;
	assert_true(++states < SEEN / 4 * 3);
	return true;
}

/* States that differ in free places only are one. */
static void forget_free(void)
{
	uint8_t used = 0;

	for (uint8_t i = 0; i < PLACES; i++) {
		if (has(s.allocated, i)) {
			used |= bit(s.id[i]);
			continue;
		}
		s.field[i] = s.id[i] = NONE;
	}
	for (uint8_t id = 0; id < PLACES; id++)
		if (!has(used, id))
			s.refers[id] = NONE;
}

static void explore(void)
{
	const struct state here = s;

	for (int step = 0; step < STEPS && !wrong; step++) {
		s = here;
		if (!take(step))
			continue;
		if (!wrong)
			check();
		forget_free();
		if (!wrong && is_new())
			explore();
	}
	s = here;
}

struct budget {
	uint8_t steps;		/* of the thread */
	uint8_t moves, cycles;
	uint32_t states;	/* at least */
};

static const struct budget budgets[] = {
	{ 3, 2, 2, 1000 }, { 4, 2, 2, 10000 }, { 5, 2, 2, 50000 }, { 6, 1, 2, 200000 },
};

#define BUDGETS (sizeof(budgets) / sizeof(*budgets))

static void explore_all(enum mutant which, const struct budget *b)
{
	memset(seen, 0, SEEN * sizeof(*seen));
	memset(&s, 0, sizeof(s));
	memset(s.id, NONE, sizeof(s.id));
	memset(s.field, NONE, sizeof(s.field));
	memset(s.forward, NONE, sizeof(s.forward));
	memset(s.local, NONE, sizeof(s.local));
	memset(s.refers, NONE, sizeof(s.refers));
	memset(s.has, NONE, sizeof(s.has));
	s.weak = s.watches = s.holder = s.found = s.traced = s.seen = NONE;
	s.steps = b->steps;
	s.moves = b->moves;
	s.cycles = b->cycles;
	states = 0;
	wrong = NULL;
	mutant = which;
	explore();
}

static void every_interleaving(void **state)
{
	for (size_t i = 0; i < BUDGETS; i++) {
		explore_all(MUTANT_NONE, &budgets[i]);
		printf("%u steps: %u states\n", budgets[i].steps, states);
		if (wrong)
			fail_msg("%s", wrong);
		assert_true(states > budgets[i].states);
	}
}

static void every_mutant_is_found(void **state)
{
	for (enum mutant m = 1; m < MUTANTS; m++) {
		/* The shortest program first. */
		for (size_t i = 0; i < BUDGETS; i++) {
			explore_all(m, &budgets[i]);
			if (!wrong)
				continue;
			printf("%s, %u steps: %s\n", mutant_names[m], budgets[i].steps, wrong);
			break;
		}
		if (!wrong)
			fail_msg("%s: not found", mutant_names[m]);
	}
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
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(every_mutant_is_found),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
