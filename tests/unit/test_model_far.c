// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Every interleaving of members, donor, crashes and losses in the world of model_far/world.h.  With
 * the argument "long": larger bounds (make model-far).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_far/world.h"
#include "daemon/lib/rules/far_step.h"

#include <cmocka.h>

#define MODEL(name) far_##name
#define MODEL_STEP struct far_world_step
#define MODEL_STEPS FAR_WORLD_STEPS
#include "model_search.h"

static bool large;

static uint32_t explore_all(const struct far_model *model)
{
	far_world_begin(model);
	return search_all();
}

static const struct far_model models[] = {
	{ .name = "two formats, two crashes",
	  .members = 2,
	  .budget = { .slots = 2, .formats = 2, .crashes = 2 },
	  .states = 100000 },
	{ .name = "three members",
	  .members = 3,
	  .opened = 1,
	  .budget = { .slots = 2, .writes = 1, .crashes = 1 },
	  .states = 10000 },
	{ .name = "two open sections",
	  .members = 2,
	  .opened = 2,
	  .budget = { .slots = 3 },
	  .states = 10000 },
	{ .name = "hand-over, lost and duplicated",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 1,
		      .offers = 2,
		      .withdrawals = 1,
		      .duplicates = 1,
		      .writes = 1,
		      .crashes = 1 },
	  .states = 20000 },
	{ .name = "hand-over, a number is reused",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 2, .offers = 1, .duplicates = 1, .crashes = 1, .rejoins = 1 },
	  .states = 10000 },
	{ .name = "two sections",
	  .members = 2,
	  .budget = { .pairs = 2, .runs = 1, .crashes = 1 },
	  .states = 30000 },
	{ .name = "two sections are handed over",
	  .members = 3,
	  .budget = { .pairs = 1, .offers = 1, .withdrawals = 1, .writes = 1, .crashes = 2 },
	  .states = 5000 },
	{ .name = "slots against sections",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 2, .formats = 1, .runs = 1, .trims = 1 },
	  .states = 10000 },
	{ .name = "trim",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 2, .trims = 1, .crashes = 1 },
	  .states = 50000 },
	{ .name = "two trims",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 1, .trims = 2, .cuts = 1, .crashes = 1 },
	  .states = 5000 },
	{ .name = "replies lost",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 2, .cuts = 1, .stale = 1, .lies = 1, .crashes = 1 },
	  .states = 20000 },
	{ .name = "replies lost, two sections",
	  .members = 2,
	  .budget = { .pairs = 1, .runs = 1, .offers = 1, .cuts = 1 },
	  .states = 7000 },
	{ .name = "a number is reused",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 2, .writes = 1, .crashes = 1, .rejoins = 1 },
	  .states = 9000 },
	{ .name = "last generations",
	  .members = 2,
	  .opened = 1,
	  .late = true,
	  .budget = { .slots = 2, .runs = 1, .trims = 1 },
	  .states = 100000 },
	{ .name = "last generations, hand-over",
	  .members = 2,
	  .opened = 1,
	  .late = true,
	  .budget = { .slots = 1, .runs = 1, .offers = 2, .withdrawals = 1 },
	  .states = 10000 },
};

/* Of `make model-far`, by the sizes that it is built with. */
static const struct far_model large_models[] = {
#if FAR_MODEL_SECTIONS > 2
	{ .name = "pairs that overlap",
	  .members = 3,
	  .budget = { .pairs = 2, .runs = 1, .crashes = 1 },
	  .states = 100000 },
	{ .name = "pairs that overlap, replies lost",
	  .members = 2,
	  .budget = { .pairs = 2, .runs = 1, .cuts = 2, .crashes = 1 },
	  .states = 100000 },
	{ .name = "pairs that overlap are handed over",
	  .members = 3,
	  .budget = { .pairs = 2, .offers = 1, .withdrawals = 1, .writes = 1, .crashes = 1 },
	  .states = 100000 },
	{ .name = "pairs that overlap, slots and trim",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 1, .formats = 1, .pairs = 1, .trims = 1, .crashes = 1 },
	  .states = 100000 },
#elif EBB_FAR_WINDOW == 1
	{ .name = "two windows, three slots",
	  .members = 3,
	  .opened = 2,
	  .budget = { .slots = 3, .lies = 1, .crashes = 1 },
	  .states = 100000 },
	{ .name = "two windows, two formats, two crashes",
	  .members = 3,
	  .budget = { .slots = 2, .formats = 2, .crashes = 2 },
	  .states = 100000 },
	{ .name = "two windows, slots, sections and trim",
	  .members = 2,
	  .opened = 1,
	  .budget = { .slots = 2, .formats = 1, .runs = 2, .trims = 1, .crashes = 1 },
	  .states = 100000 },
#else
	{ .name = "three members, two formats, two crashes",
	  .members = 3,
	  .budget = { .slots = 2, .formats = 2, .crashes = 2 },
	  .states = 100000 },
	{ .name = "trim, two crashes",
	  .members = EBB_FAR_SECTION_ORDER == 1 ? 3 : 2,
	  .opened = 1,
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
	  .opened = 1,
	  .budget = { .slots = 2, .cuts = 2, .stale = 1, .lies = 1, .crashes = 1, .rejoins = 1 },
	  .states = 100000 },
#if EBB_FAR_SECTION_ORDER == 1
	{ .name = "three members, three slots",
	  .members = 3,
	  .opened = 1,
	  .budget = { .slots = 3, .crashes = 1 },
	  .states = 100000 },
	{ .name = "three members, hand-over, lost and duplicated",
	  .members = 3,
	  .opened = 1,
	  .budget = { .slots = 2, .offers = 2, .withdrawals = 1, .duplicates = 1, .crashes = 1 },
	  .states = 100000 },
	{ .name = "three members, hand-over, two crashes, a number reused",
	  .members = 3,
	  .opened = 1,
	  .budget = { .slots = 2, .offers = 1, .writes = 1, .crashes = 2, .rejoins = 1 },
	  .states = 100000 },
	{ .name = "three members, hand-over and trim",
	  .members = 3,
	  .opened = 1,
	  .budget = { .slots = 1, .offers = 2, .trims = 1, .cuts = 1, .crashes = 2 },
	  .states = 100000 },
	{ .name = "three members, two sections",
	  .members = 3,
	  .budget = { .pairs = 2, .runs = 1, .crashes = 2 },
	  .states = 100000 },
	{ .name = "three members, two sections are handed over",
	  .members = 3,
	  .budget = { .pairs = 1,
		      .runs = 1,
		      .offers = 2,
		      .withdrawals = 1,
		      .duplicates = 1,
		      .crashes = 2 },
	  .states = 100000 },
	{ .name = "all together",
	  .members = 3,
	  .budget = { .slots = 1, .formats = 1, .pairs = 1, .offers = 1, .lies = 1, .crashes = 2 },
	  .states = 100000 },
#else
	{ .name = "slots of two classes",
	  .members = 2,
	  .budget = { .slots = 1, .big = 1, .formats = 2, .trims = 1, .crashes = 1 },
	  .states = 100000 },
#endif
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

/* Each phase and each result occurs: what is checked is not true for want of cases. */
static void all_is_reached(void **state)
{
	static const struct {
		int kind, result;
	} results[] = {
		{ FAR_ALLOCATE, 0 },   { FAR_ALLOCATE, -ENOSPC }, { FAR_ALLOCATE, -EBUSY },
		{ FAR_FREE, 0 },       { FAR_FREE, -ESTALE },	  { FAR_TAKE, 0 },
		{ FAR_TAKE, -ESTALE }, { FAR_WITHDRAW, 0 },	  { FAR_WITHDRAW, -ESTALE },
		{ FAR_TRIM, 0 },       { FAR_TRIM, -EBUSY },
	};

	assert_int_equal(far_all_phases & ~far_reached_phases, 0);
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
		uint64_t reached = far_reached_results[results[i].kind];

		assert_true(reached & far_result_bit(results[i].result));
	}
}

static void every_interleaving_of_more(void **state)
{
	check_all(large_models, LARGE_MODELS);
}

/*
 * What each fault leads to, and where the search finds that.  Other violations on the way are
 * ignored, so that no fault is found for another reason than the one that is claimed.
 */
static const struct {
	enum far_mutant mutant;
	const char *model, *wrong;
} faults[] = {
	{ FAR_NO_FENCE, "three members", "a byte of another member changed" },
	{ FAR_NO_FENCE, "three members", "a slot is leaked" },
	{ FAR_LATE_FENCE, "three members", "a byte of another member changed" },
	{ FAR_LATE_FENCE, "three members", "a slot is leaked" },
	{ FAR_EARLY_REUSE, "a number is reused", "a live member's extent was recovered" },
	{ FAR_NO_GENERATION, "replies lost", "a stale free took effect" },
	{ FAR_NO_GENERATION, "three members", "two allocations have one name" },
	{ FAR_FORMAT_GENERATION, "replies lost", "a stale free took effect" },
	{ FAR_FORMAT_GENERATION, "three members", "two allocations have one name" },
	{ FAR_MOVE_GENERATION, "hand-over, lost and duplicated",
	  "an extent was taken that was not offered" },
	{ FAR_WITHDRAW_GENERATION, "hand-over, lost and duplicated",
	  "an extent was taken that was not offered" },
	{ FAR_RECOVER_GENERATION, "hand-over, a number is reused",
	  "an extent was taken that was not offered" },
	{ FAR_GIVER_MOVES, "hand-over, lost and duplicated", "a member does not know its slot" },
	{ FAR_GIVER_WRITES, "hand-over, lost and duplicated", "a byte of another member changed" },
	{ FAR_CARELESS_TAKE, "hand-over, lost and duplicated", "a live member lost an extent" },
	{ FAR_PLAIN_WRITE, "slots against sections", "an extent was taken that was not offered" },
	{ FAR_LAST_FREE, "slots against sections",
	  "extents overlap: a slot of a section that is not open" },
	{ FAR_CARELESS_TRIM, "slots against sections",
	  "extents overlap: a slot of a section that is not open" },
	{ FAR_UNKNOWN_IS_LOST, "replies lost", "a member does not know its slot" },
	{ FAR_UNKNOWN_IS_WON, "replies lost, two sections", "a live member lost an extent" },
	{ FAR_LATE_REPEAT, "two trims", "a section is neither open nor closed" },
	{ FAR_NO_UNDO, "two sections", "a member does not know its section" },
	{ FAR_NO_TAKE_UNDO, "two sections are handed over", "a member does not know its section" },
	{ FAR_NO_ROLL, "two formats, two crashes", "a section is leaked" },
	{ FAR_SHORT_RECOVERY, "trim", "a slot is leaked" },
	{ FAR_WRAP, "last generations", "two allocations have one name" },
};

static const struct far_model *find(const char *name)
{
	for (int i = 0; i < MODELS; i++)
		if (!strcmp(models[i].name, name))
			return &models[i];
	fail_msg("no model \"%s\"", name);
	return NULL;
}

static void faults_are_found(void **state)
{
	uint32_t found = 0;

	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		far_mutant = faults[i].mutant;
		far_only = faults[i].wrong;
		explore_all(find(faults[i].model));
		printf("fault %d, %s: %s (%u states)\n", (int)faults[i].mutant, faults[i].model,
		       *far_wrong ? far_wrong : faults[i].wrong, search.states);
		assert_string_not_equal(far_wrong, "");
		found |= 1u << faults[i].mutant;
	}
	far_mutant = FAR_MUTANT_NONE;
	far_only = NULL;
	assert_int_equal(found, (1u << FAR_MUTANTS) - 2);
}

static int allocate(void **state)
{
	return search_new(large ? 1u << 26 : 1u << 22) ? 0 : -1;
}

static int release(void **state)
{
	search_free();
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(all_is_reached),
		cmocka_unit_test(faults_are_found),
	};
	const struct CMUnitTest large_tests[] = {
		cmocka_unit_test(every_interleaving_of_more),
	};

	large = argc > 1 && !strcmp(argv[1], "long");
	if (large)
		return cmocka_run_group_tests_name("far model", large_tests, allocate, release);
	return cmocka_run_group_tests_name("far model", tests, allocate, release);
}
