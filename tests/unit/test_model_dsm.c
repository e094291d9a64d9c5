// SPDX-License-Identifier: GPL-2.0-or-later
/* Every interleaving of members with boxes, crashes and recoveries, in model_dsm/world.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_dsm/world.h"

#include <cmocka.h>

#define MODEL(name) dsm_##name
#define MODEL_STEP struct dsm_world_step
#define MODEL_STEPS DSM_WORLD_STEPS
#include "model_search.h"

/* Models of more states than LARGE are left to `make check-all`. */
enum { LARGE = 900000 };

static const struct dsm_model models[] = {
	{ .name = "readers, a box that changes",
	  .members = 3, .places = 2,
	  .budget = { .boxes = 1, .changes = 2, .views = 2, .reads = 3 },
	  .states = 360000 },
	{ .name = "readers, memory is used again",
	  .members = 2, .places = 1,
	  .budget = { .boxes = 2, .drops = 1, .releases = 1, .views = 2, .reads = 3, .crashes = 1,
		      .rejoins = 1 },
	  .states = 48000 },
	{ .name = "readers, a place is used again",
	  .members = 2, .places = 1,
	  .budget = { .boxes = 2, .changes = 1, .drops = 1, .views = 3, .reads = 3 },
	  .states = 33000 },
	{ .name = "a move, two receivers",
	  .members = 3, .places = 3,
	  .budget = { .boxes = 1, .moves = 1, .takes = 2, .reclaims = 2, .crashes = 1 },
	  .states = 160000 },
	{ .name = "a move, memory is used again",
	  .members = 2, .places = 2,
	  .budget = { .boxes = 2, .moves = 1, .takes = 2, .reclaims = 1, .crashes = 1,
		      .rejoins = 1 },
	  .states = 17000 },
	{ .name = "two moves of a box",
	  .members = 2, .places = 4,
	  .budget = { .boxes = 1, .moves = 2, .takes = 2, .reclaims = 2, .crashes = 1 },
	  .states = 18000 },
	{ .name = "a mutable borrow",
	  .members = 2, .places = 4,
	  .budget = { .boxes = 2, .loans = 1, .takes = 1, .reclaims = 3, .crashes = 1 },
	  .states = 100000 },
	{ .name = "a mutable borrow, two borrowers",
	  .members = 3, .places = 4,
	  .budget = { .boxes = 1, .loans = 1, .takes = 2, .reclaims = 2, .crashes = 1 },
	  .states = 970000 },
	{ .name = "a mutable borrow, readers",
	  .members = 2, .places = 4,
	  .budget = { .boxes = 1, .changes = 1, .loans = 1, .takes = 1, .reclaims = 1, .views = 2,
		      .reads = 2 },
	  .states = 50000 },
	{ .name = "mutable borrows, numbers and memory are used again",
	  .members = 2, .places = 4,
	  .budget = { .boxes = 1, .loans = 2, .takes = 2, .reclaims = 3, .crashes = 1,
		      .rejoins = 1 },
	  .states = 150000 },
	{ .name = "twins, a reader",
	  .members = 2, .places = 2, .second = 1,
	  .budget = { .boxes = 1, .changes = 1, .drops = 1, .views = 2, .reads = 2, .cuts = 1 },
	  .states = 150000 },
	{ .name = "twins, readers",
	  .members = 2, .places = 2, .second = 1,
	  .budget = { .boxes = 1, .changes = 2, .drops = 1, .views = 2, .reads = 2, .cuts = 2 },
	  .states = 1200000 },
	{ .name = "twins, a place is used again",
	  .members = 2, .places = 2, .second = 1,
	  .budget = { .boxes = 2, .drops = 1, .releases = 1, .views = 2, .reads = 1, .cuts = 1,
		      .crashes = 1 },
	  .states = 1330000 },
	{ .name = "twins, a move",
	  .members = 2, .places = 4, .second = 1,
	  .budget = { .boxes = 1, .moves = 1, .takes = 1, .reclaims = 2, .views = 1, .reads = 1,
		      .cuts = 2 },
	  .states = 99000 },
	{ .name = "twins, a mutable borrow",
	  .members = 2, .places = 5, .second = 1,
	  .budget = { .boxes = 1, .changes = 1, .loans = 1, .takes = 1, .reclaims = 2, .cuts = 1,
		      .crashes = 1 },
	  .states = 255000 },
};

enum { MODELS = sizeof(models) / sizeof(*models) };

static void print_path(void)
{
	for (int k = 0; k < search.deepest; k++)
		printf("%3d %s %d %d\n", k, dsm_world_name(&search.path[k]),
		       search.path[k].member + 1, search.path[k].what);
}

static void every_interleaving(void **state)
{
	uint64_t sum = 0;

	dsm_mutant = DSM_MUTANT_NONE;
	for (int i = 0; i < MODELS; i++) {
		if (models[i].states > LARGE && !getenv("EBB_TEST_LONG"))
			continue;
		dsm_world_begin(&models[i]);
		uint32_t states = search_all();

		printf("%s: %u states\n", models[i].name, states);
		fflush(stdout);
		if (*dsm_wrong)
			print_path();
		assert_string_equal(dsm_wrong, "");
		assert_true(states >= models[i].states);
		sum += states;
	}
	printf("%llu states\n", (unsigned long long)sum);
}

/* Each result occurs: what is checked is not true for want of cases. */
static void all_is_reached(void **state)
{
	const char *what = dsm_unreached();

	if (what)
		fail_msg("no model has %s", what);
}

/*
 * What each fault leads to, and where the search finds that.  Other violations on the way are
 * ignored, so that no fault is found for another reason than the one that is claimed.
 */
static const struct {
	enum dsm_mutant mutant;
	const char *model, *wrong;
} faults[] = {
	{ DSM_COLOUR_RESET, "readers, a place is used again", "a cached read returned an old value" },
	{ DSM_ASYNC_OWNER, "a mutable borrow", "a box is still borrowed after its return" },
	{ DSM_CACHE_SURVIVES, "readers, a box that changes", "a cached read returned an old value" },
	{ DSM_NO_ZERO, "readers, memory is used again", "a read returned a torn or old value" },
	{ DSM_ONE_CHECK, "readers, a box that changes", "a read returned a torn or old value" },
	{ DSM_NO_MARK, "readers, a box that changes", "a read returned a torn or old value" },
	{ DSM_EARLY_FREE, "a move, two receivers", "a box is lost" },
	{ DSM_LATE_CLAIM, "a mutable borrow", "a box was reclaimed from a live borrower" },
	{ DSM_NO_FENCE, "readers, memory is used again", "a byte of another member changed" },
	{ DSM_PLAIN_WRITE, "a mutable borrow", "a hold word of another member changed" },
	{ DSM_NO_REREAD, "a mutable borrow", "a hold word is left" },
	{ DSM_EARLY_CLAIM, "a mutable borrow", "a box was reclaimed from a live borrower" },
	{ DSM_TWIN_LATE, "twins, readers", "a value that a twin has was not read" },
	{ DSM_TWIN_STALE, "twins, readers", "a read returned a torn or old value" },
	{ DSM_TWO_PRIMARIES, "twins, a move", "a box has two owners" },
	{ DSM_HEAD_AFTER, "twins, readers", "a read returned a torn or old value" },
	{ DSM_OLD_PRIMARY, "twins, readers", "a value that a twin has was not read" },
	{ DSM_MAPPED_FIRST, "twins, readers", "a value that is over was read" },
	{ DSM_TWIN_STAYS, "twins, readers", "a value that is over was read" },
};

static const struct dsm_model *find(const char *name)
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
	int missed = 0;

	for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
		dsm_mutant = faults[i].mutant;
		dsm_only = faults[i].wrong;
		dsm_world_begin(find(faults[i].model));
		search_all();
		printf("fault %d, %s: %s (%u states)\n", (int)faults[i].mutant, faults[i].model,
		       *dsm_wrong ? dsm_wrong : "nothing", search.states);
		missed += !*dsm_wrong;
		found |= 1u << faults[i].mutant;
	}
	dsm_mutant = DSM_MUTANT_NONE;
	dsm_only = NULL;
	assert_int_equal(missed, 0);
	assert_int_equal(found, (1u << DSM_MUTANTS) - 2);
}

static int allocate(void **state)
{
	return search_new(1u << 23) ? 0 : -1;
}

static int release(void **state)
{
	search_free();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving),
		cmocka_unit_test(all_is_reached),
		cmocka_unit_test(faults_are_found),
	};

	return cmocka_run_group_tests_name("dsm model", tests, allocate, release);
}
