// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Semeru's tracing of evicted regions (OSDI'20, section 4.2), every interleaving of two worlds:
 *
 * Tags: the CPU server evicts two pages of a region, again and again, while a memory server traces
 * them (daemon/sim/semeru_tags.h).  A trace that is used has seen both pages of one time.
 *
 * Closure: a mutator loads, stores and clears references, pages of a region are written back at any
 * time, and its server traces it, object by object, from the roots of the last collection.  What
 * the next collection frees is dead.  As the paper describes it, it is not: what is missing are the
 * references that were overwritten since, and pages that were not written back before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/sim/semeru_tags.h"

#include <cmocka.h>

enum { MODEL_STEPS = 48 };

/* A region has three objects, each on a page of its own; the last place is a slot elsewhere. */
enum { OBJECTS = 3, STACK = 2, NONE = 0xff };

struct rule {
	bool no_dirty, no_version;  /* tags that are not looked at */
	bool no_first;              /* no tag is written before pages are */
	bool log;                   /* overwritten references are roots */
	bool write_back;            /* a collection ends with all pages written back */
	bool roots;                 /* of the stack and of the remembered set, as they are now */
	bool tags_alone;            /* the first world */
};

static struct world {
	/* Tags: pages hold the number of their eviction. */
	struct semeru_tags tags, before;
	uint8_t page[2], seen[2];
	uint8_t evictor, tracer, evictions, traces;
	/* Closure: the reference of each object, object + 1, here and at the server. */
	uint8_t here[OBJECTS], there[OBJECTS];
	bool dirty[OBJECTS];
	uint8_t stack[STACK], outside; /* object + 1 */
	uint8_t roots, log;            /* at the last collection; since */
	uint8_t marked, grey;
	bool tracing, traced, collected;
	uint8_t stores, loads, writes, clears;
} w;

static struct rule rule;
static char semeru_wrong[160];
static void *const semeru_world = &w;

enum { EVICTOR, TRACER, LOAD, LOAD_OUTSIDE, STORE, CLEAR, STORE_OUTSIDE, FORGET, WRITE_BACK, BEGIN,
       VISIT, COLLECT };

struct semeru_step {
	uint8_t kind, who, what;
};

static size_t semeru_world_size(void)
{
	return sizeof(w);
}

static void wrong(const char *what, int object)
{
	if (!*semeru_wrong)
		snprintf(semeru_wrong, sizeof(semeru_wrong), "%s %d", what, object);
}

/* --- tags ------------------------------------------------------------------------- */

/* Tag, first page, second page, tag. */
static void evict(void)
{
	switch (w.evictor++) {
	case 0:
		if (!rule.no_first)
			w.tags = semeru_evict(w.tags);
		break;
	case 1:
	case 2:
		w.page[w.evictor - 2] = w.evictions;
		break;
	case 3:
		w.tags = semeru_evicted(w.tags);
		w.evictor = 0;
		w.evictions--;
		break;
	}
}

static bool is_used(void)
{
	return rule.no_version || semeru_traced(w.before, w.tags);
}

/* Tags, first page, second page, tags. */
static void trace(void)
{
	switch (w.tracer++) {
	case 0:
		w.before = w.tags;
		if (!semeru_may_trace(w.before) && !rule.no_dirty)
			w.tracer = 0;
		break;
	case 1:
	case 2:
		w.seen[w.tracer - 2] = w.page[w.tracer - 2];
		break;
	case 3:
		if (is_used() && w.seen[0] != w.seen[1])
			wrong("a trace has seen two pages of different times, of eviction", w.seen[0]);
		w.tracer = 0;
		w.traces--;
		w.seen[0] = w.seen[1] = 0;
		w.before = (struct semeru_tags){ 0, 0 };
		break;
	}
}

/* --- closure ---------------------------------------------------------------------- */

static uint8_t bit(uint8_t reference)
{
	return reference ? (uint8_t)(1u << (reference - 1)) : 0;
}

static uint8_t closure(uint8_t set, const uint8_t *slots)
{
	uint8_t before = 0;

	while (set != before) {
		before = set;
		for (int o = 0; o < OBJECTS; o++)
			if (set & 1u << o)
				set |= bit(slots[o]);
	}
	return set;
}

static uint8_t roots_now(void)
{
	return bit(w.stack[0]) | bit(w.stack[1]) | bit(w.outside);
}

static uint8_t reachable(void)
{
	return closure(roots_now(), w.here);
}

static void store(uint8_t o, uint8_t value)
{
	w.log |= bit(w.here[o]);
	w.here[o] = value;
	w.dirty[o] = true;
}

static void visit(void)
{
	uint8_t o = (uint8_t)__builtin_ctz(w.grey);
	uint8_t found = bit(w.there[o]) & (uint8_t)~w.marked;

	w.grey = (uint8_t)((w.grey & ~(1u << o)) | found);
	w.marked |= found;
	w.tracing = w.grey != 0;
	w.traced = !w.grey;
}

/* The world is stopped; the region is evicted, and what is not in the closure is freed. */
static void collect(void)
{
	uint8_t live = w.marked, more = 0;

	if (rule.log)
		more |= w.log;
	if (rule.roots)
		more |= roots_now();
	/* What is marked is not traced again. */
	for (int k = 0; k < OBJECTS; k++)
		for (int o = 0; o < OBJECTS; o++)
			if (more & ~live & 1u << o) {
				live |= (uint8_t)(1u << o);
				more |= bit(w.here[o]);
			}
	w.collected = true;
	if (reachable() & ~live)
		wrong("a collection frees live object", __builtin_ctz(reachable() & ~live));
}

/* --- the world -------------------------------------------------------------------- */

static int tag_steps(struct semeru_step *out)
{
	int n = 0;

	if (w.evictions)
		out[n++] = (struct semeru_step){ EVICTOR, 0, 0 };
	if (w.traces)
		out[n++] = (struct semeru_step){ TRACER, 0, 0 };
	return n;
}

static int semeru_world_possible(struct semeru_step out[static MODEL_STEPS])
{
	int n = 0;

	if (rule.tags_alone)
		return tag_steps(out);
	if (w.collected)
		return 0;
	for (uint8_t o = 0; o < OBJECTS; o++)
		if (w.dirty[o] && w.writes)
			out[n++] = (struct semeru_step){ WRITE_BACK, 0, o };
	for (uint8_t s = 0; s < STACK; s++) {
		uint8_t o = (uint8_t)(w.stack[s] - 1);

		if (w.outside && w.loads)
			out[n++] = (struct semeru_step){ LOAD_OUTSIDE, s, 0 };
		if (!w.stack[s])
			continue;
		out[n++] = (struct semeru_step){ FORGET, s, 0 };
		if (w.here[o] && w.loads)
			out[n++] = (struct semeru_step){ LOAD, s, (uint8_t)(1 - s) };
		if (w.here[o] && w.clears)
			out[n++] = (struct semeru_step){ CLEAR, s, 0 };
		if (w.stores)
			out[n++] = (struct semeru_step){ STORE_OUTSIDE, s, 0 };
		if (w.stores && w.stack[1 - s])
			out[n++] = (struct semeru_step){ STORE, s, (uint8_t)(1 - s) };
	}
	if (!w.tracing && !w.traced)
		out[n++] = (struct semeru_step){ BEGIN, 0, 0 };
	if (w.tracing)
		out[n++] = (struct semeru_step){ VISIT, 0, 0 };
	if (w.traced)
		out[n++] = (struct semeru_step){ COLLECT, 0, 0 };
	return n;
}

static void begin_trace(void)
{
	w.marked = w.grey = w.roots;
	w.tracing = w.grey != 0;
	w.traced = !w.grey;
}

static uint32_t semeru_world_take(const struct semeru_step *s, uint32_t choice)
{
	uint8_t o = (uint8_t)(w.stack[s->who] - 1);

	switch (s->kind) {
	case EVICTOR:
		evict();
		break;
	case TRACER:
		trace();
		break;
	case LOAD:
		w.loads--;
		w.stack[s->what] = w.here[o];
		break;
	case LOAD_OUTSIDE:
		w.loads--;
		w.stack[s->who] = w.outside;
		break;
	case STORE:
		w.stores--;
		store(o, w.stack[s->what]);
		break;
	case CLEAR:
		w.clears--;
		store(o, 0);
		break;
	case STORE_OUTSIDE:
		w.stores--;
		w.log |= bit(w.outside);
		w.outside = w.stack[s->who];
		break;
	case FORGET:
		w.stack[s->who] = 0;
		break;
	case WRITE_BACK:
		w.writes--;
		w.there[s->what] = w.here[s->what];
		w.dirty[s->what] = false;
		break;
	case BEGIN:
		begin_trace();
		break;
	case VISIT:
		visit();
		break;
	case COLLECT:
		collect();
		break;
	}
	return 1;
}

static void semeru_world_end(void)
{
}

static uint64_t semeru_world_fingerprint(void)
{
	const unsigned char *bytes = (const unsigned char *)&w;
	uint64_t x = 1;

	for (size_t i = 0; i < sizeof(w); i++) {
		x = (x ^ bytes[i]) * 0x9E3779B97F4A7C15ull;
		x ^= x >> 32;
	}
	return x ? x : 1;
}

static uint64_t semeru_world_end_fingerprint(void)
{
	return semeru_world_fingerprint();
}

#define MODEL(name) semeru_##name
#define MODEL_STEP struct semeru_step
#include "model_search.h"

static uint32_t explore_tags(struct rule r)
{
	memset(&w, 0, sizeof(w));
	*semeru_wrong = 0;
	rule = r;
	rule.tags_alone = true;
	w.evictions = w.page[0] = w.page[1] = 4;
	w.traces = 3;
	return search_all();
}

/*
 * At the last collection: the stack has object 0, which refers to 1, which refers to 2.  @stale: of
 * the pages with objects 0 and 1 the server has older ones, without references; then object 2 was
 * reached another way.
 */
static uint32_t explore_closure(struct rule r, bool stale)
{
	memset(&w, 0, sizeof(w));
	*semeru_wrong = 0;
	rule = r;
	w.stack[0] = 1;
	w.here[0] = 2;
	w.here[1] = 3;
	if (!stale || r.write_back)
		memcpy(w.there, w.here, sizeof(w.here));
	else
		w.dirty[0] = w.dirty[1] = true;
	w.roots = roots_now();
	w.stores = w.clears = 2;
	w.loads = 3;
	w.writes = 3;
	return search_all();
}

static void print_path(void)
{
	static const char *const names[] = { "evicts", "traces", "load to stack", "load from outside",
		"store", "clear", "store outside", "forget", "write back", "begin to trace", "visit",
		"collect" };

	for (int k = 0; k < search.deepest; k++)
		printf("%3d %s %d %d\n", k, names[search.path[k].kind], search.path[k].who,
		       search.path[k].what);
}

static void a_trace_sees_one_time(void **state)
{
	static const struct {
		const char *name;
		struct rule rule;
	} mutants[] = {
		{ "dirty is not looked at", { .no_dirty = true } },
		{ "the version is not looked at", { .no_version = true } },
		{ "no tag before", { .no_first = true } },
	};
	uint32_t states = explore_tags((struct rule){ 0 });

	printf("tags: %u states %s\n", states, semeru_wrong);
	if (*semeru_wrong)
		print_path();
	assert_false(*semeru_wrong);
	assert_true(states >= 1200);
	for (size_t k = 0; k < sizeof(mutants) / sizeof(*mutants); k++) {
		explore_tags(mutants[k].rule);
		printf("%s: %s\n", mutants[k].name, *semeru_wrong ? semeru_wrong : "not found");
		assert_true(*semeru_wrong);
	}
}

static void what_is_freed_is_dead(void **state)
{
	static const struct {
		const char *name;
		struct rule rule;
		bool stale, wrong;
	} rules[] = {
		{ "as the paper describes it", { 0 }, false, true },
		{ "... with the roots of now", { .roots = true }, false, true },
		{ "... with overwritten references", { .log = true }, false, false },
		{ "... and pages that the server lacks", { .log = true, .roots = true }, true, true },
		{ "... which are written back first", { .log = true, .write_back = true }, true, false },
		{ "... without overwritten references", { .roots = true, .write_back = true }, true, true },
	};

	for (size_t k = 0; k < sizeof(rules) / sizeof(*rules); k++) {
		uint32_t states = explore_closure(rules[k].rule, rules[k].stale);

		printf("%s: %u states%s%s\n", rules[k].name, states, *semeru_wrong ? ", " : "",
		       semeru_wrong);
		if (!*semeru_wrong != !rules[k].wrong)
			print_path();
		assert_true(!*semeru_wrong == !rules[k].wrong);
		assert_true(rules[k].wrong || states > 100000);
	}
}

static int allocate(void **state)
{
	return search_new(1u << 22) ? 0 : -1;
}

static int release(void **state)
{
	search_free();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_trace_sees_one_time),
		cmocka_unit_test(what_is_freed_is_dead),
	};

	return cmocka_run_group_tests_name("Semeru's tracing", tests, allocate, release);
}
