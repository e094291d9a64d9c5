/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Work whose page is swapped out, parked by page: one bit per object and two per page, so that
 * parking never needs memory and an object is parked once.  A swapped-in page wakes its work.  When
 * nothing wakes for a while, pages are fetched in batches, by one call each, in ascending address
 * order: while one batch is read, the previous one is traced.
 */
#ifndef EBBGC_PARK_H
#define EBBGC_PARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ebbgc_heap;
struct tracer;

int park_create(struct ebbgc_heap *h);
void park_destroy(struct ebbgc_heap *h);

/* World stopped. */
void park_begin(struct ebbgc_heap *h);

void park_object(struct tracer *t, uint64_t object);
/* Parks the part on this page of a marked object that begins on an earlier page. */
void park_slice(struct tracer *t, size_t page);
/* Moves the work of a page that is in memory to the tracer. */
void park_wake(struct tracer *t, size_t page);

/*
 * Wakes work of the pages that the last residency scan found swapped in, once per scan: red objects
 * by the program's page faults, without a note.
 */
void park_wake_scanned(struct tracer *t);

/* Is any work parked? */
bool park_has_work(const struct ebbgc_heap *h);

enum park_step {
	PARK_EMPTY,		/* nothing is parked */
	PARK_MOVED,		/* work was woken or fetched */
	PARK_WAIT,		/* wait for a page, then call again */
};

/* Advances parked work on an idle tracer. */
enum park_step park_step(struct tracer *t);
/* Reports that a page was swapped in during a PARK_WAIT: the wait was not in vain. */
void park_woke(struct ebbgc_heap *h);

#endif
