/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The checking mode compares the mark bits with a traversal of the graph that shares only
 * type_visit() with marking, at the end of each cycle and before threads run again.
 *
 * A full cycle must have marked exactly the reachable objects.  A concurrent cycle must have marked
 * all objects reachable at its end, and no object that existed at its beginning and was then not
 * reachable by any path, weak ones included.
 */
#ifndef EBBGC_CHECK_H
#define EBBGC_CHECK_H

#include <stdbool.h>
#include <stdint.h>

struct ebbgc_heap;

int check_create(struct ebbgc_heap *h);
void check_destroy(struct ebbgc_heap *h);

/* World stopped, a concurrent cycle begins.  Nothing without the checking mode. */
void check_snapshot(struct ebbgc_heap *h);
/*
 * World stopped, a minor cycle is about to free young objects: roots and old objects refer to old
 * ones only.  Nothing without the checking mode.
 */
void check_minor(struct ebbgc_heap *h);
/* A tracer reads an object, which no minor cycle may free.  Only in checking mode. */
void check_traced(struct ebbgc_heap *h, uint64_t object);
/* World stopped: no root names where an object was.  Nothing without the checking mode. */
void check_roots(struct ebbgc_heap *h);
/*
 * World stopped, objects are about to move, or have moved: no root names an old place, and what
 * can be reached is what could be.  Nothing without the checking mode.
 */
void check_move(struct ebbgc_heap *h);
void check_moved(struct ebbgc_heap *h);
/* World stopped, marking has ended; @exact: of a full cycle.  Nothing without the checking mode. */
void check_marks(struct ebbgc_heap *h, bool exact);

/* World stopped: the program learns of all objects, and may keep any. */
void check_listed(struct ebbgc_heap *h);

#endif
