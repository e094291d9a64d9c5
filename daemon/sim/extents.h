/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Clients that allocate and free 4 KiB extents of one arena at the same time: with the words of far
 * memory (lib/rules/far_step.c, the source that members run) and with the bitmaps of FineMem
 * (OSDI'25).
 *
 * A client has one verb in flight.  A verb takes a round trip with a jitter, and all its parts take
 * effect at one time; so images are as old as the round trips since.  The time of an operation of
 * the adapter, and queueing for it, are not modelled.
 */
#ifndef EBB_EXTENTS_H
#define EBB_EXTENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ebb/far.h"
#include "lib/base/error.h"

#define EXTENTS_CLIENTS (EBB_FAR_MEMBERS * 2) /* clients share the numbers of members */

struct extents_config {
	uint32_t clients, sections;
	/* part of the extents that are in use at most, between bursts: each client has its part */
	double fill;
	uint32_t burst;	 /* a client frees so many, at random, then allocates as many */
	uint32_t rounds; /* bursts of each client that are measured */
	bool blind;	 /* a client learns nothing from its own frees, as if others freed */
	uint64_t seed;	 /* not 0 */
};

/* What operations of one kind cost. */
struct extents_cost {
	uint64_t operations, refused;
	uint64_t swaps, most_swaps;	      /* compare-and-swaps; most of one operation */
	uint64_t last_swaps, most_last_swaps; /* of them, on the word that gave the extent */
	uint64_t trips, most_trips;	      /* round trips */
	uint64_t bytes;			      /* operands and results of all verbs */
	uint64_t posted;		      /* verbs whose replies the client does not wait for */
};

struct extents_result {
	struct extents_cost allocate, free;
	double used; /* part of the extents that are in use while an allocation ends, on average */
};

/* The cost of one operation so far. */
struct extents_meter {
	uint32_t swaps, last_swaps, trips, posted, bytes;
};

/* A way to allocate.  A client has at most one operation. */
struct extents_scheme {
	const char *name;
	/* Returns a world with all extents free, or NULL without memory. */
	void *(*new)(const struct extents_config *);
	void (*delete)(void *world);
	/* The client forgets its images, and begins at random. */
	void (*forget)(void *world, uint32_t client);
	void (*allocate)(void *world, uint32_t client);
	void (*free)(void *world, uint32_t client, const struct ebb_far_name *extent);
	/*
	 * The next verb of the client's operation takes effect.  Returns true when the operation
	 * has ended, with its result and, after an allocation, *@extent.
	 */
	bool (*step)(void *world, uint32_t client, struct extents_meter *m, int *result,
		     struct ebb_far_name *extent);
};

extern const struct extents_scheme extents_words, extents_bitmap, extents_scattered;

/* Number of the stream of random numbers of client @i; the run itself has stream 0. */
static inline uint64_t extents_stream(uint32_t i)
{
	return 1ull + i;
}

int extents_run(const struct extents_config *c, const struct extents_scheme *scheme,
		struct extents_result *result, struct error *e);

#endif
