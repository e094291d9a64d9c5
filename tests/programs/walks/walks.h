/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Small programs with a known order in memory, each checking what it reads.  A
 * kind fills its memory once; a pass is the work that is timed.
 */
#ifndef EBB_TESTS_WALKS_H
#define EBB_TESTS_WALKS_H

#include <stddef.h>
#include <stdint.h>

struct walks {
	uint64_t bytes;         /* of anonymous memory, all arrays of a kind together */
	uint64_t param;         /* the kind's own, see its help */
	uint64_t seed;          /* not 0 */
	uint64_t bad;           /* words that were wrong so far */
	void *data;             /* the kind's own */
};

struct walk_kind {
	const char *name, *help;
	uint64_t param;         /* unless given; 0: takes none */
	/* 0 or -errno, with a word on stderr. */
	int (*prepare)(struct walks *w);
	/* @number counts from 0. */
	void (*pass)(struct walks *w, uint64_t number);
};

extern const struct walk_kind walk_sum, walk_threads, walk_column, walk_multiply;
extern const struct walk_kind walk_pagerank;
extern const struct walk_kind walk_join, walk_zipf;

/* A private anonymous mapping, or NULL with a word on stderr.  Lives as long as the program. */
void *walks_map(size_t bytes);

#endif
