/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Objects that reach over several pages, traced page by page: the part on a page that is swapped
 * out is parked alone.  A page's first byte belongs to one object at most, so a slice is known by
 * its page.
 */
#ifndef EBBGC_SLICE_H
#define EBBGC_SLICE_H

#include <stdint.h>

struct tracer;

/* Traces a marked object, and parks what lies on pages that are swapped out. */
void slice_trace_object(struct tracer *t, uint64_t object);

/* Traces the part on the page at @from of an object that began before. */
void slice_trace(struct tracer *t, uint64_t from);

#endif
