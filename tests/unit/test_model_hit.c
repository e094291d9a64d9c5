// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of Mako's evacuation of one region (daemon/sim/mako_hit.h): two threads that
 * load, write and forget references to its two objects, the collector's thread, the region's
 * server, and local memory that writes pages back at any time.  A thread that uses a reference
 * finds what was written last.
 *
 * Pages are the units of local memory: one of the region, one with what threads have moved to the
 * to-space, one with what the server has moved, and one with the entries.  With `.shared` the last
 * two are one page: the paper evicts the to-space before the server starts, and does not say that
 * the server begins a page.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/sim/mako_hit.h"

#include <cmocka.h>

enum { THREADS = 2, OBJECTS = 2, MODEL_STEPS = 32, GARBAGE = 0xff };
enum { FROM, MOVED, SERVED, ENTRIES, PAGES, NONE = 0xff };

/* Deviations. */
struct rule {
	bool shared;         /* threads and server move objects to one page */
	bool announce_late;  /* a thread is accessing only after the test */
	bool no_write_back, no_invalidate, no_wait, no_evict, no_entries, no_validate;
	bool no_move;        /* the barrier uses objects of waiting regions where they are */
};

struct thread {
	uint8_t at;          /* of a load: step */
	uint8_t object, copy; /* being loaded; its copy */
	uint8_t page[OBJECTS]; /* of its reference to each, or NONE */
	bool accessing;
};

enum { IDLE, ANNOUNCED, TESTED_USE, TESTED_MOVE, COPIED };

static struct world {
	struct thread t[THREADS];
	uint8_t here[PAGES][OBJECTS], there[PAGES][OBJECTS]; /* contents, as versions */
	bool cached[PAGES], dirty[PAGES];
	uint8_t latest[OBJECTS];
	uint8_t state, step;
	bool running, moving; /* moving: the server is */
	uint8_t loads, writes, evictions;
} w;

static struct rule rule;
static char hit_wrong[160];
static void *const hit_world = &w;

enum { LOAD, GO_ON, WRITE, FORGET, EVICT, COLLECT, SERVER };

struct hit_step_taken {
	uint8_t kind, who, object;
};

static size_t hit_world_size(void)
{
	return sizeof(w);
}

static uint8_t moved_page(void)
{
	return MOVED;
}

static uint8_t served_page(void)
{
	return rule.shared ? MOVED : SERVED;
}

/* --- local memory ----------------------------------------------------------------- */

static void fetch(uint8_t page)
{
	if (w.cached[page])
		return;
	memcpy(w.here[page], w.there[page], OBJECTS);
	w.cached[page] = true;
}

static void clean(uint8_t page, bool evict)
{
	if (w.cached[page] && w.dirty[page])
		memcpy(w.there[page], w.here[page], OBJECTS);
	w.dirty[page] = false;
	if (evict && w.cached[page]) {
		w.cached[page] = false;
		memset(w.here[page], 0, OBJECTS);
	}
}

static void set(uint8_t page, uint8_t object, uint8_t version)
{
	fetch(page);
	w.here[page][object] = version;
	w.dirty[page] = true;
}

static uint8_t entry(uint8_t object)
{
	fetch(ENTRIES);
	return w.here[ENTRIES][object];
}

/* --- threads ---------------------------------------------------------------------- */

static void use(uint8_t i, uint8_t object)
{
	uint8_t page = w.t[i].page[object];

	fetch(page);
	if (w.here[page][object] != w.latest[object] && !*hit_wrong)
		snprintf(hit_wrong, sizeof(hit_wrong), "thread %u finds another content of object %u",
			 i + 1u, object);
}

static void end_load(struct thread *t, uint8_t page)
{
	t->page[t->object] = page;
	t->at = IDLE;
	t->copy = 0;
	t->object = 0;
	t->accessing = false;
}

static void test(struct thread *t)
{
	bool moved = w.running && w.state == HIT_WAITING && entry(t->object) != FROM;
	enum hit_load l = hit_load(w.running, (enum hit_state)w.state, moved);

	if (l == HIT_MOVE && rule.no_move)
		l = HIT_USE;
	/* While it waits, it is not accessing. */
	t->accessing = l != HIT_WAIT && !rule.announce_late;
	if (l == HIT_WAIT)
		return;
	t->at = l == HIT_USE ? TESTED_USE : TESTED_MOVE;
}

static void go_on(uint8_t i)
{
	struct thread *t = &w.t[i];

	switch (t->at) {
	case ANNOUNCED:
		test(t);
		break;
	case TESTED_USE:
		end_load(t, entry(t->object));
		break;
	case TESTED_MOVE:
		t->accessing = true;
		fetch(FROM);
		t->copy = w.here[FROM][t->object];
		t->at = COPIED;
		break;
	case COPIED:
		/* One thread alone updates the entry. */
		if (entry(t->object) == FROM) {
			set(moved_page(), t->object, t->copy);
			set(ENTRIES, t->object, moved_page());
		}
		end_load(t, entry(t->object));
		break;
	}
}

static void begin_load(uint8_t i, uint8_t object)
{
	w.loads--;
	w.t[i].object = object;
	w.t[i].at = ANNOUNCED;
	w.t[i].accessing = !rule.announce_late;
}

static void write(uint8_t i, uint8_t object)
{
	use(i, object);
	w.writes--;
	set(w.t[i].page[object], object, ++w.latest[object]);
}

/* --- the collector ---------------------------------------------------------------- */

static bool is_accessed(void)
{
	for (int i = 0; i < THREADS; i++)
		if (w.t[i].accessing)
			return true;
	return false;
}

static bool may_collect(void)
{
	switch ((enum hit_step)w.step) {
	case HIT_WAIT_THREADS:
		return rule.no_wait || !is_accessed();
	case HIT_VALIDATE:
		return !w.moving;
	case HIT_DONE:
		return false;
	default:
		return true;
	}
}

static void collect(void)
{
	switch ((enum hit_step)w.step) {
	case HIT_WRITE_BACK:
		if (!rule.no_write_back)
			clean(FROM, false);
		break;
	case HIT_INVALIDATE:
		if (!rule.no_invalidate)
			w.state = HIT_EVACUATING;
		break;
	case HIT_WAIT_THREADS:
		break;
	case HIT_EVICT:
		if (!rule.no_evict)
			clean(moved_page(), true);
		if (!rule.no_entries)
			clean(ENTRIES, true);
		break;
	case HIT_START:
		w.moving = true;
		break;
	case HIT_VALIDATE:
		/* The region is free: what was in it is overwritten. */
		memset(w.there[FROM], GARBAGE, OBJECTS);
		memset(w.here[FROM], GARBAGE, OBJECTS);
		w.dirty[FROM] = false;
		if (rule.no_validate)
			break;
		w.state = HIT_NORMAL;
		w.running = false;
		break;
	case HIT_DONE:
		break;
	}
	w.step = (uint8_t)hit_next((enum hit_step)w.step);
}

static void serve(void)
{
	for (uint8_t o = 0; o < OBJECTS; o++)
		if (w.there[ENTRIES][o] == FROM) {
			w.there[served_page()][o] = w.there[FROM][o];
			w.there[ENTRIES][o] = served_page();
			return;
		}
	w.moving = false;
}

/* --- the world -------------------------------------------------------------------- */

static int hit_world_possible(struct hit_step_taken out[static MODEL_STEPS])
{
	int n = 0;

	for (uint8_t i = 0; i < THREADS; i++) {
		if (w.t[i].at)
			out[n++] = (struct hit_step_taken){ GO_ON, i, 0 };
		for (uint8_t o = 0; o < OBJECTS; o++) {
			if (!w.t[i].at && w.loads && w.t[i].page[o] == NONE)
				out[n++] = (struct hit_step_taken){ LOAD, i, o };
			if (w.t[i].page[o] != NONE)
				out[n++] = (struct hit_step_taken){ FORGET, i, o };
			if (w.t[i].page[o] != NONE && w.writes)
				out[n++] = (struct hit_step_taken){ WRITE, i, o };
		}
	}
	for (uint8_t p = 0; p < PAGES; p++)
		if (w.evictions && w.cached[p])
			out[n++] = (struct hit_step_taken){ EVICT, p, 0 };
	if (may_collect())
		out[n++] = (struct hit_step_taken){ COLLECT, 0, 0 };
	if (w.moving)
		out[n++] = (struct hit_step_taken){ SERVER, 0, 0 };
	return n;
}

static uint32_t hit_world_take(const struct hit_step_taken *s, uint32_t choice)
{
	switch (s->kind) {
	case LOAD:
		begin_load(s->who, s->object);
		break;
	case GO_ON:
		go_on(s->who);
		break;
	case WRITE:
		write(s->who, s->object);
		break;
	case FORGET:
		use(s->who, s->object);
		w.t[s->who].page[s->object] = NONE;
		break;
	case EVICT:
		w.evictions--;
		clean(s->who, true);
		break;
	case COLLECT:
		collect();
		break;
	case SERVER:
		serve();
		break;
	}
	return 1;
}

/* Without other steps the collection ends, and all threads have what they load. */
static void hit_world_end(void)
{
	for (int k = 0; k < 100; k++) {
		if (w.moving)
			serve();
		else if (may_collect())
			collect();
		for (uint8_t i = 0; i < THREADS; i++)
			if (w.t[i].at)
				go_on(i);
	}
	if (w.step != HIT_DONE && !*hit_wrong)
		snprintf(hit_wrong, sizeof(hit_wrong), "the evacuation does not end");
	for (uint8_t i = 0; i < THREADS; i++) {
		if (w.t[i].at && !*hit_wrong)
			snprintf(hit_wrong, sizeof(hit_wrong), "thread %u waits for ever", i + 1u);
		for (uint8_t o = 0; o < OBJECTS; o++)
			if (w.t[i].page[o] != NONE)
				use(i, o);
	}
}

static uint64_t hit_world_fingerprint(void)
{
	const unsigned char *bytes = (const unsigned char *)&w;
	uint64_t x = 1;

	for (size_t i = 0; i < sizeof(w); i++) {
		x = (x ^ bytes[i]) * 0x9E3779B97F4A7C15ull;
		x ^= x >> 32;
	}
	return x ? x : 1;
}

static uint64_t hit_world_end_fingerprint(void)
{
	return hit_world_fingerprint();
}

#define MODEL(name) hit_##name
#define MODEL_STEP struct hit_step_taken
#include "model_search.h"

/* The region is in the evacuation set; its pages are dirty.  Object 0 was thread 1's root. */
static uint32_t explore_from(uint8_t loads, uint8_t writes, uint8_t evictions)
{
	memset(&w, 0, sizeof(w));
	*hit_wrong = 0;
	w.state = HIT_WAITING;
	w.running = true;
	w.loads = loads;
	w.writes = writes;
	w.evictions = evictions;
	memset(w.there, GARBAGE, sizeof(w.there));
	for (uint8_t o = 0; o < OBJECTS; o++) {
		w.latest[o] = 1;
		set(FROM, o, 1);
	}
	memset(w.t[0].page, NONE, OBJECTS);
	memset(w.t[1].page, NONE, OBJECTS);
	set(moved_page(), 0, 1);
	set(ENTRIES, 0, moved_page());
	set(ENTRIES, 1, FROM);
	w.t[0].page[0] = moved_page();
	return search_all();
}

static void print_path(void)
{
	static const char *const names[] = { "loads", "goes on", "writes", "forgets", "page evicted",
					     "collector", "server" };

	for (int k = 0; k < search.deepest; k++)
		printf("%3d %s %d %d\n", k, names[search.path[k].kind], search.path[k].who,
		       search.path[k].object);
}

static void every_interleaving(void **state)
{
	uint32_t states;

	rule = (struct rule){ 0 };
	states = explore_from(2, 2, 2);
	printf("%u states%s%s\n", states, *hit_wrong ? ", " : "", hit_wrong);
	if (*hit_wrong)
		print_path();
	assert_false(*hit_wrong);
	assert_true(states >= 150000);
}

static const struct {
	const char *name;
	struct rule rule;
} mutants[] = {
	{ "threads and server move objects to one page", { .shared = true } },
	{ "a thread is accessing only after the test", { .announce_late = true } },
	{ "the region is not written back", { .no_write_back = true } },
	{ "the tablet stays valid", { .no_invalidate = true } },
	{ "threads are not waited for", { .no_wait = true } },
	{ "the to-space is not evicted", { .shared = true, .no_evict = true } },
	{ "entries are not evicted", { .no_entries = true } },
	{ "the tablet stays invalid", { .no_validate = true } },
	{ "objects of waiting regions are used in place", { .no_move = true } },
};

static void mutants_are_found(void **state)
{
	for (size_t k = 0; k < sizeof(mutants) / sizeof(*mutants); k++) {
		rule = mutants[k].rule;
		explore_from(2, 2, 1);
		printf("%s: %s\n", mutants[k].name, *hit_wrong ? hit_wrong : "not found");
		assert_true(*hit_wrong);
	}
}

static void more_steps(void **state)
{
	uint32_t states;

	rule = (struct rule){ 0 };
	search_free();
	assert_true(search_new(1u << 25));
	states = explore_from(4, 3, 2);
	printf("%u states%s%s\n", states, *hit_wrong ? ", " : "", hit_wrong);
	assert_false(*hit_wrong);
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

/* `long` takes more steps. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(mutants_are_found),
		cmocka_unit_test(more_steps),
	};
	const struct CMUnitTest shorter[] = { tests[0], tests[1] };

	if (argc > 1 && !strcmp(argv[1], "long"))
		return cmocka_run_group_tests_name("Mako's tablet, long", tests, allocate, release);
	return cmocka_run_group_tests_name("Mako's tablet", shorter, allocate, release);
}
