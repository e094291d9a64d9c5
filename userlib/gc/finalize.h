/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Finalizers: dead objects are kept until the program has run their finalizers. */
#ifndef EBBGC_FINALIZE_H
#define EBBGC_FINALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ebbgc_heap;

/*
 * World stopped: makes the finalizers of objects ready of which lives() is false, and only then
 * calls revive() for the objects, so that all objects that died together are found.  Returns the
 * number of finalizers.  @first: of those to examine.
 */
size_t finalizers_collect(struct ebbgc_heap *h, size_t first,
			  bool (*lives)(const struct ebbgc_heap *h, uint64_t object),
			  void (*revive)(void *arg, uint64_t object), void *arg);

/* World stopped: objects have moved, or were brought. */
void finalizers_moved(struct ebbgc_heap *h);

void finalizers_destroy(struct ebbgc_heap *h);

#endif
