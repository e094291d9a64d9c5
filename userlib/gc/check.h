/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The checking mode: what marking found is compared with a traversal of the graph that shares no
 * code with it but type_visit(), at the end of each cycle and before threads run again.
 *
 * A full cycle must have marked exactly what is reachable.  A concurrent one must have marked all
 * that is reachable at its end, and of what existed at its beginning nothing that was not
 * reachable then by some path, weak ones included.
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
