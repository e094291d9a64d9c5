/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_TESTS_CHECKER_H
#define EBB_TESTS_CHECKER_H

#include <stdbool.h>
#include <stdint.h>

#include "history.h"
#include "target.h"

#define CHECKER_PAGES 64   /* the longest request */
#define CHECKER_CLUSTER 512 /* what swap discards at a time */
#define CHECKER_THREADS 32

struct checker_options {
	uint32_t seconds;      /* 0: until SIGTERM */
	uint32_t threads;
	uint32_t pause_us;     /* between two operations of a thread */
	uint32_t progress;     /* seconds between lines; 0: none */
	uint64_t seed;
	bool tolerate_errors;  /* a failed read or write is counted, not the end */
};

struct checker_counts {
	uint64_t reads, writes, discards;    /* requests */
	uint64_t pages_read, pages_written, pages_discarded;
	uint64_t same_filled;                /* of pages_written */
	uint64_t read_errors, write_errors;  /* requests; only where tolerated */
	uint64_t skipped;                    /* too much was open at a page */
	uint64_t verified;                   /* pages in the last pass */
};

struct checker {
	struct checker_options options;
	struct target target;
	struct history history;
	struct checker_counts count;
	bool no_discard;                     /* the target has none */
	bool stop;
};

/* Starts the threads, waits for their end, then reads every page once more. */
int checker_run(struct checker *c);

/* One line of JSON: {"bad":@bad,...}. */
void checker_print(const struct checker *c, int bad, double seconds);

#endif
