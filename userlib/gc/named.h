/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Names that regions of a far generation hold: see far.h. */
#ifndef EBBGC_NAMED_H
#define EBBGC_NAMED_H

#include <stdint.h>

struct ebbgc_heap;
struct tracer;

/*
 * The thread that makes a region leave, which is read-only by now, in its turn: replaces old names
 * in it, and names all that it refers to.
 */
void named_add_region(struct ebbgc_heap *h, uint32_t region);

/*
 * The collector, at the end of a cycle: the region holds no names any more.  The names of another
 * region are withdrawn together, once no region holds any of them.
 */
void named_withdraw(struct ebbgc_heap *h, uint32_t region);

/* A cycle has begun: adds the objects that are named as work. */
void named_mark(struct ebbgc_heap *h, struct tracer *t);

#endif
