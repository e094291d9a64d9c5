// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of a thread, a tracer, minor cycles and one cycle after another, in a model of
 * userlib/gc/nursery.h: three slots for objects with one reference each, two local variables and a
 * weak slot.  A step is what is atomic there: an access to one bit or slot, or a pause.  Each
 * mutant, a rule that is left out, breaks an invariant in at least one order of marking.
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

#define SLOTS 3
#define LOCALS 2
#define NONE 0xf
#define SEEN (1u << 22)

enum order { DEPTH_FIRST, MARKS_LATE, ADDRESS, ORDERS };

enum mutant {
	MUTANT_NONE,
	NO_MINOR_AT_SNAPSHOT,	/* what the tracer reads may be young */
	MARKS_ARE_FREED,	/* a minor cycle clears the mark bits of what it frees */
	FINGER_READS_YOUNG,	/* a search by mark bits does not ask for old bits */
	NOT_REMEMBERED,		/* stores in old objects are not remembered */
	NEVER_FORGOTTEN_BITS,	/* an object stays marked as remembered, and leaves the set */
	SHALLOW,		/* a minor cycle promotes what roots refer to, and no more */
	YOUNG_WHITE,		/* objects are allocated unmarked during marking */
	OLD_BITS_STAY,		/* the sweep leaves old bits of what it frees */
	WEAK_STAYS,		/* a minor cycle does not clear the weak slot */
	NO_LOG,			/* overwritten references are not logged */
	WEAK_NOT_LOGGED,	/* nor those that weak loads find */
	SAFEPOINT_IN_STORE,	/* a pause between a store and remembering it */
	UNSWEPT,		/* threads take slots that are not swept */
	MUTANTS,
};

static const char *const mutant_names[] = {
	"none", "no minor cycle at the snapshot", "marks of freed slots are cleared",
	"the finger reads young objects", "stores are not remembered",
	"bits of the remembered set stay", "promotion of roots' targets only",
	"young objects are white", "old bits of freed slots stay", "the weak slot is not cleared",
	"no log", "weak loads are not logged", "a safepoint in a store", "unswept slots are taken",
};

enum phase { IDLE, MARKING, SWEEPING };
enum tracer { FETCH, LOADED };
enum thread { RUNS, STORED };

/* Sets of slots are bit masks. */
struct state {
	uint8_t allocated, marked, old, remembered, entered;
	uint8_t gray, scanned, unswept, log;
	uint8_t field[SLOTS], local[LOCALS], weak;
	uint8_t phase, tracer, found, thread, holder, was;
	uint8_t steps, minors, cycles;		/* that are left */
};

static struct state s;
static enum mutant mutant;
static enum order order;
static const char *wrong;
static uint64_t *seen;
static uint32_t states;

static bool has(uint8_t set, uint8_t slot)
{
	return set >> slot & 1;
}

static void expect(bool right, const char *text)
{
	if (!right && !wrong)
		wrong = text;
}

/* --- the thread ----------------------------------------------------------------------------- */

static void log_old(uint8_t slot)
{
	if (slot != NONE && s.phase == MARKING && !has(s.marked, slot))
		s.log |= (uint8_t)(1u << slot);
}

static bool allocate(uint8_t to)
{
	for (uint8_t i = 0; i < SLOTS; i++) {
		if (has(s.allocated, i) || (has(s.unswept, i) && mutant != UNSWEPT))
			continue;
		expect(!has(s.old, i), "a new object is old");
		expect(!has(s.remembered, i), "a new object is remembered");
		s.allocated |= (uint8_t)(1u << i);
		s.field[i] = NONE;
		if (s.phase == MARKING && mutant != YOUNG_WHITE)
			s.marked |= (uint8_t)(1u << i);
		s.local[to] = i;
		return true;
	}
	return false;
}

/* The exchange; what follows in store_end() is not atomic with it. */
static bool store_begin(uint8_t object, uint8_t value)
{
	uint8_t holder = s.local[object];

	if (holder == NONE)
		return false;
	s.holder = holder;
	s.was = s.field[holder];
	s.field[holder] = value == LOCALS ? NONE : s.local[value];
	s.thread = STORED;
	return true;
}

static void store_end(void)
{
	uint8_t value = s.field[s.holder];

	s.thread = RUNS;
	if (mutant != NO_LOG)
		log_old(s.was);
	if (value != NONE && mutant != NOT_REMEMBERED && has(s.old, s.holder) &&
	    !has(s.old, value) && !has(s.remembered, s.holder)) {
		s.remembered |= (uint8_t)(1u << s.holder);
		s.entered |= (uint8_t)(1u << s.holder);
	}
	s.holder = s.was = NONE;
}

/* --- pauses --------------------------------------------------------------------------------- */

/* Makes the object old if it is young; follows it then. */
static void promote(uint8_t slot)
{
	for (; slot != NONE && !has(s.old, slot); slot = mutant == SHALLOW ? NONE : s.field[slot])
		s.old |= (uint8_t)(1u << slot);
}

static void minor(void)
{
	uint8_t freed;

	for (unsigned int i = 0; i < LOCALS; i++)
		promote(s.local[i]);
	for (uint8_t i = 0; i < SLOTS; i++)
		if (has(s.entered, i))
			promote(s.field[i]);
	s.entered = 0;
	if (mutant != NEVER_FORGOTTEN_BITS)
		s.remembered = 0;
	if (s.weak != NONE && !has(s.old, s.weak) && mutant != WEAK_STAYS)
		s.weak = NONE;
	freed = s.allocated & (uint8_t)~s.old;
	s.allocated &= s.old;
	if (mutant == MARKS_ARE_FREED)
		s.marked &= (uint8_t)~freed;
}

/* Marks a target, or adds it as work to be marked later. */
static void reach(uint8_t slot)
{
	if (slot == NONE || has(s.marked, slot))
		return;
	if (order != MARKS_LATE)
		s.marked |= (uint8_t)(1u << slot);
	s.gray |= (uint8_t)(1u << slot);
}

static void snapshot(void)
{
	if (mutant != NO_MINOR_AT_SNAPSHOT)
		minor();
	expect(!s.marked, "marks of the last cycle are left");
	s.scanned = s.gray = 0;
	s.phase = MARKING;
	for (unsigned int i = 0; i < LOCALS; i++)
		reach(s.local[i]);
}

/* Returns the set of objects that the tracer may take. */
static uint8_t work(void)
{
	uint8_t found;

	if (order != ADDRESS)
		return s.gray;
	found = s.marked & (uint8_t)~s.scanned & s.allocated;
	return mutant == FINGER_READS_YOUNG ? found : found & s.old;
}

static void finish(void)
{
	if (s.log) {
		for (uint8_t i = 0; i < SLOTS; i++)
			if (has(s.log, i))
				reach(i);
		s.log = 0;
		if (work())
			return;
	}
	if (s.weak != NONE && !has(s.marked, s.weak))
		s.weak = NONE;
	minor();
	s.phase = SWEEPING;
	s.unswept = (1u << SLOTS) - 1;
	s.gray = s.scanned = 0;
}

static void sweep(uint8_t slot)
{
	uint8_t bit = (uint8_t)(1u << slot);

	if (!has(s.marked, slot)) {
		s.allocated &= (uint8_t)~bit;
		if (mutant != OLD_BITS_STAY)
			s.old &= (uint8_t)~bit;
	}
	s.marked &= (uint8_t)~bit;
	s.unswept &= (uint8_t)~bit;
	if (!s.unswept)
		s.phase = IDLE;
}

/* --- the tracer: before it tests a loaded target's mark, the slot may be overwritten --------- */

static void trace(uint8_t slot)
{
	uint8_t bit = (uint8_t)(1u << slot);

	s.gray &= (uint8_t)~bit;
	s.scanned |= bit;
	if (order == MARKS_LATE) {
		if (has(s.marked, slot))
			return;
		s.marked |= bit;
	}
	expect(has(s.allocated, slot), "the tracer reads a free slot");
	expect(has(s.old, slot) || mutant == NO_MINOR_AT_SNAPSHOT,
	       "the tracer reads an object that may be freed meanwhile");
	s.found = s.field[slot];
	s.tracer = s.found == NONE ? FETCH : LOADED;
}

static void trace_end(void)
{
	reach(s.found);
	s.found = NONE;
	s.tracer = FETCH;
}

/* --- steps ---------------------------------------------------------------------------------- */

enum {
	ALLOCATE, LOAD = ALLOCATE + LOCALS, STORE = LOAD + LOCALS * LOCALS,
	DROP = STORE + LOCALS * (LOCALS + 1), WEAK_SET = DROP + LOCALS,
	WEAK_GET = WEAK_SET + LOCALS, STORE_END = WEAK_GET + LOCALS, MINOR, SNAPSHOT, FINISH,
	TRACE, TRACE_END = TRACE + SLOTS, SWEEP, STEPS = SWEEP + SLOTS,
};

/* Takes one of the thread's steps; returns false if it is not possible. */
static bool thread_step(int step)
{
	uint8_t value;

	if (step < LOAD)
		return allocate((uint8_t)step);
	if (step < STORE) {
		uint8_t to = (uint8_t)((step - LOAD) % LOCALS);
		uint8_t from = s.local[(step - LOAD) / LOCALS];

		if (from == NONE)
			return false;
		s.local[to] = s.field[from];
		return true;
	}
	if (step < DROP)
		return store_begin((uint8_t)((step - STORE) % LOCALS),
				   (uint8_t)((step - STORE) / LOCALS));
	if (step < WEAK_SET) {
		s.local[step - DROP] = NONE;
		return true;
	}
	if (step < WEAK_GET) {
		s.weak = s.local[step - WEAK_SET];
		return true;
	}
	value = s.weak;
	if (value == NONE)
		return false;
	if (mutant != WEAK_NOT_LOGGED)
		log_old(value);
	s.local[step - WEAK_GET] = value;
	return true;
}

static bool take(int step)
{
	bool stops = s.thread == RUNS || mutant == SAFEPOINT_IN_STORE;

	if (step < STORE_END) {
		if (s.thread != RUNS || !s.steps)
			return false;
		s.steps--;
		return thread_step(step);
	}
	if (step == STORE_END) {
		if (s.thread != STORED)
			return false;
		store_end();
		return true;
	}
	if (step == MINOR) {
		/* What remains to be swept is swept first. */
		if (!stops || !s.minors || s.phase == SWEEPING)
			return false;
		s.minors--;
		minor();
		return true;
	}
	if (step == SNAPSHOT) {
		if (!stops || !s.cycles || s.phase != IDLE)
			return false;
		s.cycles--;
		snapshot();
		return true;
	}
	if (step == FINISH) {
		if (!stops || s.phase != MARKING || s.tracer != FETCH || work())
			return false;
		finish();
		return true;
	}
	if (step < TRACE_END) {
		if (s.phase != MARKING || s.tracer != FETCH ||
		    !has(work(), (uint8_t)(step - TRACE)))
			return false;
		trace((uint8_t)(step - TRACE));
		return true;
	}
	if (step == TRACE_END) {
		if (s.tracer != LOADED)
			return false;
		trace_end();
		return true;
	}
	if (s.phase != SWEEPING || !has(s.unswept, (uint8_t)(step - SWEEP)))
		return false;
	sweep((uint8_t)(step - SWEEP));
	return true;
}

/* Whatever the program can reach exists. */
static void check(void)
{
	for (unsigned int i = 0; i < LOCALS; i++) {
		uint8_t visited = 0;

		for (uint8_t at = s.local[i]; at != NONE && !has(visited, at); at = s.field[at]) {
			expect(has(s.allocated, at), "a reachable object was freed");
			visited |= (uint8_t)(1u << at);
		}
	}
	expect(s.weak == NONE || has(s.allocated, s.weak), "the weak slot refers to a free slot");
	expect(!(s.old & (uint8_t)~s.allocated) || mutant == OLD_BITS_STAY ||
	       s.phase == SWEEPING, "a free slot is old");
	expect(s.phase == MARKING || !(s.marked & (uint8_t)~s.unswept), "a swept slot is marked");
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

static void explore(void)
{
	const struct state here = s;

	for (int step = 0; step < STEPS && !wrong; step++) {
		s = here;
		if (!take(step))
			continue;
		check();
		for (uint8_t i = 0; i < SLOTS; i++)
			if (!has(s.allocated, i))
				s.field[i] = NONE;
		if (!wrong && is_new())
			explore();
	}
	s = here;
}

struct budget {
	uint8_t steps;		/* of the thread */
	uint8_t minors, cycles;
	uint32_t states;	/* at least */
};

static const struct budget budgets[] = {
	{ 3, 2, 2, 10000 }, { 4, 2, 2, 50000 }, { 5, 2, 2, 500000 }, { 6, 1, 1, 500000 },
};

#define BUDGETS (sizeof(budgets) / sizeof(*budgets))

static void explore_all(enum order how, enum mutant which, const struct budget *b)
{
	memset(seen, 0, SEEN * sizeof(*seen));
	memset(&s, 0, sizeof(s));
	memset(s.field, NONE, sizeof(s.field));
	memset(s.local, NONE, sizeof(s.local));
	s.weak = s.found = s.holder = s.was = NONE;
	s.steps = b->steps;
	s.minors = b->minors;
	s.cycles = b->cycles;
	states = 0;
	wrong = NULL;
	order = how;
	mutant = which;
	explore();
}

static void every_interleaving(void **state)
{
	static const char *const names[] = { "depth first", "marks late", "by address" };

	for (enum order o = 0; o < ORDERS; o++) {
		for (size_t i = 0; i < BUDGETS; i++) {
			explore_all(o, MUTANT_NONE, &budgets[i]);
			printf("%s, %u steps: %u states\n", names[o], budgets[i].steps, states);
			if (wrong)
				fail_msg("%s: %s", names[o], wrong);
			assert_true(states > budgets[i].states);
		}
	}
}

static void every_mutant_is_found(void **state)
{
	for (enum mutant m = 1; m < MUTANTS; m++) {
		unsigned int found = 0;

		/* The shortest program first. */
		for (size_t i = 0; i < BUDGETS && !found; i++) {
			for (enum order o = 0; o < ORDERS && !found; o++) {
				explore_all(o, m, &budgets[i]);
				found += wrong != NULL;
			}
			if (found)
				printf("%s, %u steps: %s\n", mutant_names[m], budgets[i].steps,
				       wrong);
		}
		if (!found)
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
