/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Traces objects on several pages page by page, and parks only the parts on swapped-out pages.  A
 * page's first byte belongs to one object at most, so a page identifies a slice.
 */
#ifndef EBBGC_SLICE_H
#define EBBGC_SLICE_H

#include <stdint.h>

struct tracer;

/* Traces a marked object, and parks its parts on swapped-out pages. */
void slice_trace_object(struct tracer *t, uint64_t object);

/* Traces the part on the page at @from of an object that begins on an earlier page. */
void slice_trace(struct tracer *t, uint64_t from);

#endif
