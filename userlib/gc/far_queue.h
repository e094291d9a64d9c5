/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The regions in which a far cycle's marks wait (far_mark.h), so that no step looks at all regions.
 * A region is in it at most once.
 */
#ifndef EBBGC_FAR_QUEUE_H
#define EBBGC_FAR_QUEUE_H

#include <stdint.h>

struct ebbgc_heap;

/* Any thread, while marking: the region's .waits has been set. */
void far_queue_add(struct ebbgc_heap *h, uint32_t region);

/* The collector: takes all regions off; returns the first, or REGION_NONE. */
uint32_t far_queue_take(struct ebbgc_heap *h);

/*
 * Returns the region behind, or REGION_NONE.  From here on the region may be added again: the
 * caller looks at .waits only now.
 */
uint32_t far_queue_next(struct ebbgc_heap *h, uint32_t region);

#endif
