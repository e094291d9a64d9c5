// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * `make fuzz-gc`: one random program after the other, each under another schedule, until the time
 * is up; ends with the first that goes wrong and says how to see it again.
 *
 *	fuzz_gc SECONDS [FIRST]
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#define SCHEDULER		/* nothing here is scheduled */
#include "schedule.h"
#include "gc.h"

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 60);
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, first = seed, cycles = 0;

	setenv("CMOCKA_TEST_ABORT", "1", 1);
	do {
		struct fuzz_gc_result r;
		int status = fuzz_apart(fuzz_gc, seed, &r);

		if (status) {
			fprintf(stderr, "\nschedule %llu, %s: %s %d; again: %s 0 %llu\n",
				(unsigned long long)seed, fuzz_gc_options(seed),
				WIFSIGNALED(status) ? "signal" : "status",
				WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
				argv[0], (unsigned long long)seed);
			return 1;
		}
		cycles += r.cycles;
		if (argc > 2 && first == seed)
			printf("schedule %llu, %s: %016llx\n", (unsigned long long)seed,
			       fuzz_gc_options(seed), (unsigned long long)r.digest);
		seed++;
	} while (time(NULL) < end);
	printf("schedules %llu to %llu, %llu cycles: nothing wrong\n", (unsigned long long)first,
	       (unsigned long long)seed - 1, (unsigned long long)cycles);
	return 0;
}
