/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Names that objects in the store hold: see far.h. */
#ifndef EBBGC_NAMED_H
#define EBBGC_NAMED_H

#include <stdint.h>

struct ebbgc_heap;
struct tracer;

/*
 * The thread that makes a region leave, which is read-only by now, while no cycle marks: replaces
 * old names in it, and names all that it refers to.
 */
void named_add_region(struct ebbgc_heap *h, uint32_t region);

/* A cycle has begun: adds the objects that are named as work. */
void named_mark(struct ebbgc_heap *h, struct tracer *t);

#endif
