/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Estimates whether an object is in memory, by the epoch in which its reference was last used
 * (dissertation, section 4.3.2.2) or by the kernel's page residency, and how long to wait until
 * the program swaps it in.
 */
#ifndef EBBGC_LOCATION_H
#define EBBGC_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;

int location_create(struct ebbgc_heap *h);
void location_destroy(struct ebbgc_heap *h);

/* Updates epoch and residency if an update is due.  Any thread of the collector. */
void location_update(struct ebbgc_heap *h);

/* Returns ns until an update is due; 0 if none will be. */
uint64_t location_wait(const struct ebbgc_heap *h);

/* Would touching the target of this work probably wait for a read? */
bool location_is_far(struct ebbgc_heap *h, uint64_t work);

/* Returns how many times work may be postponed now: MAX_DL. */
unsigned int location_max_delays(const struct ebbgc_heap *h);

/* At the last update, was enough of the heap swapped out for the marking order to matter? */
bool location_is_scarce(const struct ebbgc_heap *h);

#endif
