// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of members, donor, crashes and losses in the world of model_far/world.h.  With
 * the argument "long": larger bounds (make model-far).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_far/world.h"

#include <cmocka.h>

enum { DEPTH = 500 };

static struct {
	uint8_t *saved;
	uint64_t *seen;
	uint32_t size, states;
	struct far_world_step path[DEPTH];
	int deepest;
	bool large;
} search;

/* True the first time. */
static bool is_new(uint64_t print)
{
	uint32_t at = (uint32_t)(print >> 20) & (search.size - 1);

	while (search.seen[at] && search.seen[at] != print)
		at = (at + 1) & (search.size - 1);
	if (search.seen[at])
		return false;
	search.seen[at] = print;
	assert_true(++search.states < search.size / 4 * 3);
	return true;
}

static uint8_t *saved(int depth)
{
	return search.saved + (size_t)depth * far_world_size();
}

static void explore(int depth);

/* Takes a step with each result of its draws. */
static void explore_step(int depth, const struct far_world_step *step)
{
	uint32_t choices = 1;

	search.path[depth] = *step;
	for (uint32_t choice = 0; choice < choices; choice++) {
		choices = far_world_take(step, choice);
		search.deepest = depth + 1;
		if (*far_wrong)
			return;
		if (is_new(far_world_fingerprint()))
			explore(depth + 1);
		if (*far_wrong)
			return;
		memcpy(far_world, saved(depth), far_world_size());
	}
}

static void explore(int depth)
{
	struct far_world_step steps[FAR_WORLD_STEPS];
	int n = far_world_possible(steps);

	if (depth == DEPTH - 1) {
		snprintf(far_wrong, sizeof(far_wrong), "it goes on without end");
		return;
	}
	memcpy(saved(depth), far_world, far_world_size());
	search.deepest = depth;
	/* From here, all may crash at once. */
	far_world_end();
	if (*far_wrong)
		return;
	memcpy(far_world, saved(depth), far_world_size());
	for (int i = 0; i < n && !*far_wrong; i++)
		explore_step(depth, &steps[i]);
}

static uint32_t explore_all(const struct far_model *model)
{
	memset(search.seen, 0, search.size * sizeof(*search.seen));
	search.states = 0;
	far_world_begin(model);
	explore(0);
	return search.states;
}

static const struct far_model models[] = {
	{ .name = "two formats, two crashes",
	  .members = 2,
	  .budget = { .slots = 2, .formats = 2, .crashes = 2 },
	  .states = 100000 },
	{ .name = "three members",
	  .members = 3,
	  .opened = true,
	  .budget = { .slots = 2, .crashes = 1 },
	  .states = 10000 },
	{ .name = "hand-over, lost and duplicated",
	  .members = 2,
	  .opened = true,
	  .budget = { .slots = 1, .offers = 2, .withdrawals = 1, .duplicates = 1, .crashes = 1 },
	  .states = 20000 },
	{ .name = "two sections",
	  .members = 2,
	  .budget = { .pairs = 2, .runs = 1, .crashes = 1 },
	  .states = 30000 },
	{ .name = "two sections are handed over",
	  .members = 3,
	  .budget = { .pairs = 1, .offers = 1, .withdrawals = 1, .crashes = 2 },
	  .states = 5000 },
	{ .name = "trim",
	  .members = 2,
	  .opened = true,
	  .budget = { .slots = 2, .trims = 1, .crashes = 1 },
	  .states = 90000 },
	{ .name = "replies lost",
	  .members = 2,
	  .opened = true,
	  .budget = { .slots = 2, .cuts = 1, .stale = 1, .lies = 1, .crashes = 1 },
	  .states = 20000 },
	{ .name = "replies lost, two sections",
	  .members = 2,
	  .budget = { .pairs = 1, .runs = 1, .offers = 1, .cuts = 1 },
	  .states = 7000 },
	{ .name = "a number is reused",
	  .members = 2,
	  .opened = true,
	  .budget = { .slots = 2, .crashes = 1, .rejoins = 1 },
	  .states = 9000 },
	{ .name = "last generations",
	  .members = 2,
	  .opened = true,
	  .late = true,
	  .budget = { .slots = 2, .runs = 1, .trims = 1 },
	  .states = 100000 },
};

/* Of `make model-far`. */
static const struct far_model large_models[] = {
	{ .name = "three members, two formats, two crashes",
	  .members = 3,
	  .budget = { .slots = 2, .formats = 2, .crashes = 2 },
	  .states = 100000 },
#if EBB_FAR_SECTION_ORDER == 1
	{ .name = "three members, three slots",
	  .members = 3,
	  .opened = true,
	  .budget = { .slots = 3, .crashes = 1 },
	  .states = 100000 },
	{ .name = "three members, hand-over, lost and duplicated",
	  .members = 3,
	  .opened = true,
	  .budget = { .slots = 2, .offers = 2, .withdrawals = 1, .duplicates = 1, .crashes = 1 },
	  .states = 100000 },
	{ .name = "three members, two sections",
	  .members = 3,
	  .budget = { .pairs = 2, .runs = 1, .crashes = 2 },
	  .states = 100000 },
	{ .name = "three members, two sections are handed over",
	  .members = 3,
	  .budget = { .pairs = 1, .runs = 1, .offers = 2, .withdrawals = 1, .duplicates = 1,
		      .crashes = 2 },
	  .states = 100000 },
#endif
	{ .name = "trim, two crashes",
	  .members = EBB_FAR_SECTION_ORDER == 1 ? 3 : 2,
	  .opened = true,
	  .budget = { .slots = 2, .trims = 1, .crashes = 2 },
	  .states = 100000 },
	{ .name = "two formats, a reply lost, a number reused",
	  .members = 2,
	  .budget = { .slots = 2, .formats = 2, .cuts = 1, .crashes = 1, .rejoins = 1 },
	  .states = 100000 },
	{ .name = "slots, sections and trim",
	  .members = 2,
	  .budget = { .slots = 2, .formats = 1, .pairs = 1, .trims = 1, .crashes = 1 },
	  .states = 100000 },
	{ .name = "two replies lost, stale frees, a number reused",
	  .members = EBB_FAR_SECTION_ORDER == 1 ? 3 : 2,
	  .opened = true,
	  .budget = { .slots = 2, .cuts = 2, .stale = 1, .lies = 1, .crashes = 1, .rejoins = 1 },
	  .states = 100000 },
#if EBB_FAR_SECTION_ORDER > 1
	{ .name = "slots of two classes",
	  .members = 2,
	  .budget = { .slots = 1, .big = 1, .formats = 2, .trims = 1, .crashes = 1 },
	  .states = 100000 },
#endif
};

enum { MODELS = sizeof(models) / sizeof(*models),
       LARGE_MODELS = sizeof(large_models) / sizeof(*large_models) };

static void print_path(void)
{
	for (int k = 0; k < search.deepest; k++)
		printf("%3d %s %d %d %d\n", k, far_world_name(&search.path[k]),
		       search.path[k].member + 1, search.path[k].what, search.path[k].other);
}

static void check_all(const struct far_model *list, int n)
{
	uint64_t sum = 0;

	far_mutant = FAR_MUTANT_NONE;
	for (int i = 0; i < n; i++) {
		uint32_t states = explore_all(&list[i]);

		printf("%s: %u states\n", list[i].name, states);
		fflush(stdout);
		if (*far_wrong)
			print_path();
		assert_string_equal(far_wrong, "");
		assert_true(states >= list[i].states);
		sum += states;
	}
	printf("%llu states\n", (unsigned long long)sum);
}

static void every_interleaving(void **state)
{
	check_all(models, MODELS);
}

static void every_interleaving_of_more(void **state)
{
	check_all(large_models, LARGE_MODELS);
}

/* The search is worth something: it finds each fault. */
static void mutants_are_found(void **state)
{
	for (int which = FAR_MUTANT_NONE + 1; which < FAR_MUTANTS; which++) {
		far_mutant = (enum far_mutant)which;
		*far_wrong = 0;
		const char *found = "nothing";

		for (int i = 0; i < MODELS && !*far_wrong; i++) {
			explore_all(&models[i]);
			found = models[i].name;
		}
		printf("mutant %d: %s (%s, %u states)\n", which, far_wrong, found, search.states);
		assert_string_not_equal(far_wrong, "");
	}
	far_mutant = FAR_MUTANT_NONE;
}

static int allocate(void **state)
{
	search.size = search.large ? 1u << 26 : 1u << 22;
	search.saved = malloc(DEPTH * far_world_size());
	search.seen = malloc(search.size * sizeof(*search.seen));
	return search.saved && search.seen ? 0 : -1;
}

static int release(void **state)
{
	free(search.saved);
	free(search.seen);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(mutants_are_found),
	};
	const struct CMUnitTest large_tests[] = {
		cmocka_unit_test(every_interleaving_of_more),
	};

	search.large = argc > 1 && !strcmp(argv[1], "long");
	if (search.large)
		return cmocka_run_group_tests_name("far model", large_tests, allocate, release);
	return cmocka_run_group_tests_name("far model", tests, allocate, release);
}
