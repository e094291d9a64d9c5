// SPDX-License-Identifier: GPL-2.0-or-later
#include "gc_graph.h"

static void random_programs(void **state)
{
	const char *options = *state;
	const bool thorough = getenv("EBB_TEST_LONG");
	unsigned int steps = thorough ? 100000 : 10000;

	for (uint64_t seed = 1; seed <= (thorough ? 3 : 2); seed++) {
		struct ebbgc_stats s = graph_run(options, seed * 1000003, steps);

		assert_true(s.weak_cleared && s.ephemerons_cleared && s.finalizers_ready);
		assert_true(strstr(options, "mode=stop") || s.cycles - s.full_cycles > 3);
		assert_true(s.cycles > 3);
		if (strstr(options, "nursery"))
			assert_true(s.promoted_bytes && s.reclaimed_bytes && s.remembered &&
				    (strstr(options, "mode=stop") || s.minor_concurrent));
		if (strstr(options, "+move"))
			assert_true(s.moved_objects && s.pinned_objects);
		/* A cycle that never waits may be over before another thread has run. */
		assert_true(!strstr(options, "arrivals,hints") || s.arrivals > 0);
	}
}

int main(void)
{
	struct CMUnitTest tests[GRAPH_OPTIONS];

	for (size_t i = 0; i < GRAPH_OPTIONS; i++)
		tests[i] = (struct CMUnitTest){
			.name = graph_options[i], .test_func = random_programs,
			.initial_state = (void *)graph_options[i],
		};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
