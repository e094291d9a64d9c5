/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Roots: references from outside of the heap that keep objects alive. */
#ifndef EBBGC_ROOTS_H
#define EBBGC_ROOTS_H

#include "ebbgc.h"

/* World stopped: calls fn for each precise root. */
void roots_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg);

/* World stopped: calls fn with a copied reference to each object that a stack word points into. */
void stacks_each(struct ebbgc_heap *h, ebbgc_visit_fn fn, void *arg);

void roots_destroy(struct ebbgc_heap *h);

#endif
