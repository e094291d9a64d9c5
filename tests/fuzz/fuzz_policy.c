// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * `make fuzz-policy`: programs for tests/fuzz/policy.c, one after the other, for
 * every policy.  With libFuzzer it makes them from what is covered; without it
 * they come from a counter, so that a number tells which one it was.
 *
 *	fuzz_policy SECONDS [FIRST]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "policies/native.h"
#include "policy.h"

#define MOST_FAULTS 20000

static void run(const struct ebb_policy *policy, const uint8_t *program, size_t size, uint64_t seed)
{
	struct fuzz_result r;

	fuzz_policy(policy, program, size, MOST_FAULTS, &r);
	if (*r.wrong) {
		fprintf(stderr, "%s (program %llu, %zu bytes)\n", r.wrong, (unsigned long long)seed,
			size);
		abort();
	}
}

#ifdef FUZZ_BY_COVERAGE

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (const struct ebb_policy *const *p = ebb_policies; *p; p++)
		run(*p, data, size, 0);
	return 0;
}

#else

int main(int argc, char **argv)
{
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 60);
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, first = seed;
	uint8_t program[1024];

	do {
		size_t size = 1 + seed * 37 % sizeof(program);

		fuzz_program(seed, program, size);
		for (const struct ebb_policy *const *p = ebb_policies; *p; p++)
			run(*p, program, size, seed);
		seed++;
	} while (time(NULL) < end);
	printf("programs %llu to %llu: nothing wrong\n", (unsigned long long)first,
	       (unsigned long long)seed - 1);
	return 0;
}

#endif
