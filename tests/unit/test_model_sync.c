// SPDX-License-Identifier: GPL-2.0-or-later
/* Every interleaving of members with a mutex, a channel or counts, in model_sync/world.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_sync/world.h"

#include <cmocka.h>

#define MODEL(name) sync_##name
#define MODEL_STEP struct sync_world_step
#define MODEL_STEPS SYNC_WORLD_STEPS
#include "model_search.h"

static const struct sync_model models[] = {
	{ .name = "three lock", .members = 3, .joined = 3,
	  .budget = { .locks = 3 },
	  .states = 15000 },
	{ .name = "time-outs and tries", .members = 2, .joined = 2,
	  .budget = { .locks = 3, .tries = 1, .timeouts = 2 },
	  .states = 62000 },
	{ .name = "a holder dies", .members = 3, .joined = 3,
	  .budget = { .locks = 2, .tries = 1, .crashes = 1 },
	  .states = 310000 },
	{ .name = "two die", .members = 3, .joined = 3,
	  .budget = { .locks = 2, .looks = 1, .crashes = 2 },
	  .states = 31000 },
	{ .name = "not repaired", .members = 2, .joined = 2,
	  .budget = { .locks = 2, .tries = 1, .looks = 1, .crashes = 1, .spoils = 1 },
	  .states = 36000 },
	{ .name = "joins", .members = 2, .strangers = 1,
	  .budget = { .locks = 2, .tries = 1, .leaves = 1 },
	  .states = 80000 },
	{ .name = "no room", .members = 2, .joined = 1, .strangers = 2,
	  .budget = { .locks = 2, .leaves = 1, .crashes = 1 },
	  .states = 3100 },
	{ .name = "an entry is used again", .members = 2, .joined = 2, .strangers = 1,
	  .budget = { .locks = 2, .tries = 1, .crashes = 1, .rejoins = 1 },
	  .states = 43000 },
	{ .name = "the maker dies", .members = 2, .joined = 1,
	  .budget = { .locks = 3, .looks = 1, .ends = 1 },
	  .states = 27000 },
	{ .name = "a channel", .members = 2, .joined = 2, .kind = CHANNEL,
	  .budget = { .sends = 2, .receives = 2 },
	  .states = 24000 },
	{ .name = "a channel, three", .members = 3, .joined = 3, .kind = CHANNEL,
	  .budget = { .sends = 1, .receives = 2 },
	  .states = 110000 },
	{ .name = "a channel, one dies", .members = 2, .joined = 2, .kind = CHANNEL,
	  .budget = { .sends = 2, .receives = 2, .crashes = 1 },
	  .states = 100000 },
	{ .name = "references", .members = 3, .joined = 1, .kind = COUNTS,
	  .budget = { .holds = 2, .sweeps = 1 },
	  .states = 22000 },
	{ .name = "references, an entry is used again", .members = 2, .joined = 1, .strangers = 1,
	  .kind = COUNTS,
	  .budget = { .holds = 2, .sweeps = 1, .crashes = 1, .rejoins = 1 },
	  .states = 6700 },
};

enum { MODELS = sizeof(models) / sizeof(*models) };

static void print_path(void)
{
	for (int k = 0; k < search.deepest; k++)
		printf("%3d %s %d\n", k, sync_world_name(&search.path[k]),
		       search.path[k].member + 1);
}

static void every_interleaving(void **state)
{
	uint64_t sum = 0;

	sync_mutant = SYNC_MUTANT_NONE;
	for (int i = 0; i < MODELS; i++) {
		sync_world_begin(&models[i]);
		uint32_t states = search_all();

		printf("%s: %u states\n", models[i].name, states);
		fflush(stdout);
		if (*sync_wrong)
			print_path();
		assert_string_equal(sync_wrong, "");
		assert_true(states >= models[i].states);
		sum += states;
	}
	printf("%llu states\n", (unsigned long long)sum);
}

/* Each result occurs: what is checked is not true for want of cases. */
static void all_is_reached(void **state)
{
	const char *what = sync_unreached();

	if (what)
		fail_msg("no model has %s", what);
}

/* What each fault leads to, and where the search finds that. */
static const struct {
	enum sync_mutant mutant;
	const char *model, *wrong;
} faults[] = {
	{ SYNC_NO_MASK, "the maker dies", "a word of another member changed" },
	{ SYNC_NO_VERSION, "an entry is used again",
	  "a mutex was taken from a member that is not fenced" },
	{ SYNC_NO_FENCE, "a holder dies", "the content was changed without the mutex" },
	{ SYNC_ENTRY_FIRST, "an entry is used again",
	  "a mutex was taken from a member that is not fenced" },
	{ SYNC_NO_AGAIN, "no room", "an entry that the state names was freed" },
	{ SYNC_BELL_LATE, "three lock", "a sleeper is not woken" },
	{ SYNC_STORE_LATE, "three lock", "a content is old or torn" },
	{ SYNC_NO_DAMAGE, "not repaired", "what was not repaired is used" },
	{ SYNC_PLAIN, "three lock", "two members have the mutex" },
	{ SYNC_PLAIN, "references", "a reference to what was freed" },
	{ SYNC_NO_VERSION, "references, an entry is used again",
	  "an object with references is freed" },
	{ SYNC_COMMIT_FIRST, "a channel, one dies",
	  "a message is lost, torn or received twice" },
	{ SYNC_NO_WAKE, "a channel", "a sleeper is not woken" },
};

static const struct sync_model *find(const char *name)
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
		sync_mutant = faults[i].mutant;
		sync_only = faults[i].wrong;
		sync_world_begin(find(faults[i].model));
		search_all();
		printf("fault %d, %s: %s (%u states)\n", (int)faults[i].mutant, faults[i].model,
		       *sync_wrong ? sync_wrong : "nothing", search.states);
		missed += !*sync_wrong;
		found |= 1u << faults[i].mutant;
	}
	sync_mutant = SYNC_MUTANT_NONE;
	sync_only = NULL;
	assert_int_equal(missed, 0);
	assert_int_equal(found, (1u << SYNC_MUTANTS) - 2);
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

	return cmocka_run_group_tests_name("sync model", tests, allocate, release);
}
