/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* The marking threads, and how they detect the end of a phase. */
#ifndef EBBGC_MARK_PHASE_H
#define EBBGC_MARK_PHASE_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;

int marker_create(struct ebbgc_heap *h);
void marker_destroy(struct ebbgc_heap *h);

/* World stopped: chooses this cycle's order and clears its counts. */
void marking_begin(struct ebbgc_heap *h);

/* Marks with all tracers until the work is done or abandoned.  The coordinator. */
void mark_all(struct ebbgc_heap *h);

/* Marks on the coordinator only, until the deadline (ns); returns true if the work is done. */
bool mark_until(struct ebbgc_heap *h, uint64_t deadline);

/* World stopped, lock held: adds the tracers' counts of this cycle to the statistics. */
void marking_count(struct ebbgc_heap *h);

#endif
