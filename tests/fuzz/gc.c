// SPDX-License-Identifier: GPL-2.0-or-later
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "gc.h"
#include "tests/unit/gc_graph.h"

#define STEPS 1500		/* of each thread */
#define RUN_SECONDS 120

const char *fuzz_gc_options(uint64_t seed)
{
	_Static_assert(GRAPH_OPTIONS == FUZZ_GC_KINDS, "options");

	return graph_options[seed % GRAPH_OPTIONS];
}

void fuzz_gc(uint64_t seed, struct fuzz_gc_result *result)
{
	struct ebbgc_stats s;

	schedule_begin(seed);
	s = graph_run(fuzz_gc_options(seed), (seed + 1) * UINT64_C(0x9e3779b97f4a7c15), STEPS);
	result->digest = schedule_end();
	result->cycles = s.cycles;
}

/* Handing on the turn is cheapest where everybody is. */
static void one_processor(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((unsigned int)sched_getcpu(), &set);
	sched_setaffinity(0, sizeof(set), &set);
}

int fuzz_apart(void (*fn)(uint64_t seed, struct fuzz_gc_result *result), uint64_t seed,
	       struct fuzz_gc_result *result)
{
	struct fuzz_gc_result *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
					     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status = -1;
	pid_t child = fork();

	if (!child) {
		alarm(RUN_SECONDS);
		one_processor();
		fn(seed, shared);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		status = -1;
	*result = *shared;
	munmap(shared, sizeof(*shared));
	return status;
}
