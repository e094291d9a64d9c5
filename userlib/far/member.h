/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* A member of a pool, and the arenas that it knows. */
#ifndef EBBFAR_MEMBER_H
#define EBBFAR_MEMBER_H

#include <pthread.h>

#include "client.h"
#include "ebbfar.h"
#include "kept.h"
#include "small.h"

/* Arenas that a member can map, or allocate from. */
#define MEMBER_ARENAS 4096u

/* What allocations of a class remember. */
struct member_view {
	bool used;
	uint32_t arena;
	uint32_t turn; /* modulo the number of arenas: the other one that is tried next */
	uint32_t next; /* word of .view.line that is tried next */
	struct far_view view;
};

/* Requests of batches, the oldest first. */
struct batch {
	struct ebbfar_request *first, *last;
};

struct ebbfar {
	pthread_mutex_t lock; /* of all but .memory[] and what is constant */
	const uint32_t *alive; /* a page that is zero in a child of fork(2) */
	bool maps;
	char name[WIRE_FAR_NAME];
	uint64_t identity, seed;
	uint32_t member, sections;
	uint64_t table; /* bytes of each arena's table: the donor's, no extent begins there */
	uint32_t arenas; /* known so far */
	uint32_t trims;  /* modulo .arenas: where empty sections are looked for next */
	int64_t search_at; /* ms, of now_ms(): when all words may be searched for memory again */
	struct client client;
	struct far_op op;
	struct member_view views[EBB_FAR_WHOLE_CLASS + 1]; /* by class */
	struct kept kept[KEPT_CLASSES]; /* by class; of mapped arenas */
	struct small small;
	struct batch waiting, complete;
	uint32_t submitted; /* requests, until the program has their results */
	uint8_t *memory[MEMBER_ARENAS]; /* of mapped arenas; set once */
};

/*
 * Returns whether the fields of @options, of @size bytes, behind the first @known are zero, as in
 * programs that were built for a later release and do not use them.
 */
static inline bool member_knows(const void *options, size_t size, size_t known)
{
	const uint8_t *bytes = (const uint8_t *)options;

	for (size_t i = known; i < size; i++)
		if (bytes[i])
			return false;
	return true;
}

/* Returns 0, or -ECHILD in a child of fork(2). */
int member_check(const ebbfar_t *far);

/* Returns the memory of a mapped arena, or NULL. */
static inline uint8_t *member_memory(const ebbfar_t *far, uint32_t arena)
{
	return __atomic_load_n(&far->memory[arena], __ATOMIC_ACQUIRE);
}

/* With the lock held: */

/* Adds an arena; far->arenas counts it.  -ENOSPC: there is no memory. */
int member_grow(ebbfar_t *far);
/* Maps an arena that another member has added.  -EINVAL: there is none. */
int member_reach(ebbfar_t *far, uint32_t arena);

#endif
