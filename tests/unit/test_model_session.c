// SPDX-License-Identifier: GPL-2.0-or-later
/* Every interleaving of a session of the kernel module, in the world of model_session/world.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_session/world.h"

#include <cmocka.h>

enum { DEPTH = 400, SEEN = 1 << 21 };

static struct {
	uint8_t *saved;
	uint64_t *seen;
	uint32_t states;
	struct session_step path[DEPTH];
	int deepest;
} search;

/* True the first time. */
static bool is_new(uint64_t print)
{
	uint32_t at = (uint32_t)(print >> 20) % SEEN;

	while (search.seen[at] && search.seen[at] != print)
		at = (at + 1) % SEEN;
	if (search.seen[at])
		return false;
	search.seen[at] = print;
	assert_true(++search.states < SEEN / 4 * 3);
	return true;
}

static void explore(int depth)
{
	struct session_step steps[SESSION_STEPS];
	uint8_t *here = search.saved + (size_t)depth * session_size();
	int n = session_possible(steps);

	if (depth == DEPTH - 1) {
		snprintf(session_wrong, sizeof(session_wrong), "it goes on without end");
		return;
	}
	search.deepest = depth;
	if (!n)
		session_end();
	session_save(here);
	for (int i = 0; i < n && !*session_wrong; i++) {
		search.path[depth] = steps[i];
		session_take(&steps[i]);
		search.deepest = depth + 1;
		if (*session_wrong)
			return;
		if (is_new(session_fingerprint()))
			explore(depth + 1);
		if (*session_wrong)
			return;
		session_restore(here);
	}
}

static uint32_t explore_all(const struct session_model *model)
{
	memset(search.seen, 0, SEEN * sizeof(*search.seen));
	search.states = 0;
	session_begin(model);
	explore(0);
	return search.states;
}

static const struct session_model models[] = {
	{ .name = "two breaks and a command",
	  .budget = { .breaks = 2, .commands = 2 },
	  .states = 50000 },
	{ .name = "a break, a late call",
	  .budget = { .breaks = 1, .lates = 1, .commands = 2 },
	  .states = 40000 },
	{ .name = "a restart, a crime",
	  .budget = { .breaks = 1, .restarts = 1, .crimes = 1, .commands = 1 },
	  .states = 10000 },
	{ .name = "writes",
	  .budget = { .breaks = 2, .writes = 2, .commands = 1 },
	  .states = 20000 },
	{ .name = "time",
	  .budget = { .breaks = 2, .ticks = 2, .commands = 1 },
	  .states = 30000 },
	{ .name = "two slabs, two breaks",
	  .mapped = 2,
	  .budget = { .breaks = 2, .commands = 1 },
	  .states = 150000 },
	{ .name = "two late calls",
	  .mapped = 1,
	  .budget = { .lates = 2, .commands = 2 },
	  .states = 8000 },
	{ .name = "preemption",
	  .mapped = 1,
	  .budget = { .breaks = 1, .commands = 1 },
	  .preempt = true,
	  .states = 300000 },
};

enum { MODELS = sizeof(models) / sizeof(*models) };

static void every_interleaving(void **state)
{
	session_mutant = MUTANT_NONE;
	for (int i = 0; i < MODELS; i++) {
		uint32_t states = explore_all(&models[i]);

		printf("%s: %u states\n", models[i].name, states);
		for (int k = 0; *session_wrong && k < search.deepest; k++)
			printf("%3d %s %d\n", k, session_step_name(&search.path[k]),
			       search.path[k].which);
		assert_string_equal(session_wrong, "");
		assert_true(states >= models[i].states);
	}
}

/* The search is worth something: it finds each fault. */
static void mutants_are_found(void **state)
{
	for (int which = MUTANT_NONE + 1; which < MUTANTS; which++) {
		session_mutant = (enum session_mutant)which;
		*session_wrong = 0;
		const char *found = "nothing";

		for (int i = 0; i < MODELS && !*session_wrong; i++) {
			explore_all(&models[i]);
			found = models[i].name;
		}
		printf("mutant %d: %s (%s)\n", which, session_wrong, found);
		assert_string_not_equal(session_wrong, "");
	}
	session_mutant = MUTANT_NONE;
}

static void every_state(void **state)
{
	uint32_t states = session_states(0);

	printf("%u states\n", states);
	assert_string_equal(session_wrong, "");
	assert_true(states > 20);
	for (int which = 1; which <= STATE_MUTANTS; which++) {
		session_states(which);
		printf("mutant %d: %s\n", which, session_wrong);
		assert_string_not_equal(session_wrong, "");
	}
}

static int allocate(void **state)
{
	search.saved = malloc(DEPTH * session_size());
	search.seen = malloc(SEEN * sizeof(*search.seen));
	return search.saved && search.seen ? 0 : -1;
}

static int release(void **state)
{
	free(search.saved);
	free(search.seen);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_state),
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(mutants_are_found),
	};

	return cmocka_run_group_tests_name("session model", tests, allocate, release);
}
