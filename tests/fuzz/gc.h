/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Random programs on libebbgc (tests/unit/gc_graph.h) under random schedules (schedule.h). */
#ifndef FUZZ_GC_H
#define FUZZ_GC_H

#include <stdint.h>

#define FUZZ_GC_KINDS 24	/* seeds after which the same options come again */

struct fuzz_gc_result {
	uint64_t digest;	/* of the schedule */
	uint64_t cycles;
};

/* The heap's options, which the seed chooses. */
const char *fuzz_gc_options(uint64_t seed);

/* The program and the schedule that the seed says, in this process. */
void fuzz_gc(uint64_t seed, struct fuzz_gc_result *result);

/* fn() in a process of its own: 0, or what waitpid() says of one that failed. */
int fuzz_apart(void (*fn)(uint64_t seed, struct fuzz_gc_result *result), uint64_t seed,
	       struct fuzz_gc_result *result);

#endif
