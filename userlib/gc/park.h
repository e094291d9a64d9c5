/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Work whose page is swapped out, parked by page: a bit an object and two a page, so that parking
 * never needs memory and an object is parked once.  A page that comes in wakes its work.  When
 * nothing wakes for a while, pages are fetched in batches, by one call each, in the order of
 * addresses: while one batch is read, the one before is traced.
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
/* Parks the part on this page of a marked object that began before. */
void park_slice(struct tracer *t, size_t page);
/* Work of a page that is known to be in memory becomes the tracer's. */
void park_wake(struct tracer *t, size_t page);

/*
 * Wakes what the last scan of residency found to have come in, unless that has been done: red
 * objects by the program's page faults, without a note.
 */
void park_wake_scanned(struct tracer *t);

/* Is any work parked? */
bool park_has_work(const struct ebbgc_heap *h);

enum park_step {
	PARK_EMPTY,		/* nothing is parked */
	PARK_MOVED,		/* work was woken or fetched */
	PARK_WAIT,		/* wait for a page, then call again */
};

/* For a tracer that has nothing else to do. */
enum park_step park_step(struct tracer *t);
/* A page came in during the wait that park_step() called for: it was not in vain. */
void park_woke(struct ebbgc_heap *h);

#endif
