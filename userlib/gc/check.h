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

struct ebbgc_heap;

int check_create(struct ebbgc_heap *h);
void check_destroy(struct ebbgc_heap *h);

/* World stopped, a concurrent cycle begins.  Nothing without the checking mode. */
void check_snapshot(struct ebbgc_heap *h);
/* World stopped, marking has ended; @exact: of a full cycle.  Nothing without the checking mode. */
void check_marks(struct ebbgc_heap *h, bool exact);

#endif
