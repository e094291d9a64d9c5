/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Semeru's remembered sets (OSDI'20, section 4.1): references from one region to another, as pairs
 * of source and target.  In Semeru the source is a card; here it is the object.  The set of a
 * region is that of its objects.
 */
#ifndef EBB_SIM_SEMERU_REMSET_H
#define EBB_SIM_SEMERU_REMSET_H

#include <stdbool.h>
#include <stdint.h>

struct remset {
	uint64_t *pair;       /* source << 32 | target, + 1; 0 = none */
	uint32_t room, count; /* room: a power of two */
	uint32_t *targets;    /* of each object, pairs with it as target */
};

void remset_init(struct remset *r, uint32_t objects);
void remset_free(struct remset *r);
/* Returns true if the pair is new. */
bool remset_add(struct remset *r, uint32_t source, uint32_t target);
/* Keeps the pairs for which @keep returns true. */
void remset_clean(struct remset *r, bool (*keep)(void *arg, uint32_t source, uint32_t target),
		  void *arg);

/* Bytes of a pair: card and target. */
#define REMSET_PAIR 16

#endif
