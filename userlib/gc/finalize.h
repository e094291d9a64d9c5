/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Finalizers: dead objects are kept until the program has run their finalizers. */
#ifndef EBBGC_FINALIZE_H
#define EBBGC_FINALIZE_H

#include <stddef.h>

struct ebbgc_heap;

/*
 * World stopped: makes the finalizers of unmarked objects ready, and only then marks the objects,
 * so that all objects that died together are found.  Returns the number of finalizers.
 */
size_t finalizers_collect(struct ebbgc_heap *h);

void finalizers_destroy(struct ebbgc_heap *h);

#endif
