/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* What keeps objects alive from outside of the heap. */
#ifndef EBBGC_ROOTS_H
#define EBBGC_ROOTS_H

#include "ebbgc.h"

/* World stopped: calls fn for each precise root. */
void roots_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg);

/* World stopped: calls fn for each object that a word of a stack points into, by a copy of it. */
void stacks_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg);

void roots_destroy(struct ebbgc_heap *h);

#endif
