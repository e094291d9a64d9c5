/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_SWEEP_H
#define EBBGC_SWEEP_H

#include <stdint.h>

struct ebbgc_heap;

/* Without the lock: decides whether this cycle's sweep drops pages of garbage. */
void sweep_decide(struct ebbgc_heap *h);

/* World stopped: makes all regions unswept. */
void sweep_begin(struct ebbgc_heap *h);

/* Lock held, released meanwhile: returns a swept region with free slots, or REGION_NONE. */
uint32_t sweep_for(struct ebbgc_heap *h, uint8_t kind);

/* Without the lock: returns when all regions are swept. */
void sweep_all(struct ebbgc_heap *h);

#endif
