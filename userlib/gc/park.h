/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Work whose page is out, parked by page: a bit an object and two a page, so that parking never
 * needs memory and an object is parked once.  A page that comes in wakes its work; when nothing
 * wakes for a while, pages are fetched in batches, by one call each, in the order of addresses:
 * while one batch is read, the one before is traced.
 */
#ifndef EBBGC_PARK_H
#define EBBGC_PARK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ebbgc_heap;
struct tracer;

#define FETCH_PAGES 64u		/* in one call: the kernel holds mmap_lock meanwhile */

struct park {
	uint64_t *objects, *pages;	/* bitmaps; atomic */
	uint64_t *slices;		/* pages, of objects that began before; atomic */
	uint64_t count;			/* pages; atomic */
	uint64_t scan;			/* of residency, whose pages have been woken; atomic */
	pthread_mutex_t lock;		/* what follows */
	unsigned int idle;		/* scans in a row that were waited for and woke no page */
	uint64_t idle_scan;		/* the last of them */
	size_t cursor;			/* page where the next batch begins */
	uint32_t asked[FETCH_PAGES];	/* pages on their way */
	uint32_t traced[FETCH_PAGES];	/* pages whose work was taken in the last step */
	unsigned int asked_count, traced_count;
	int pidfd;			/* of this process, or -1 */
	bool one_by_one;		/* atomic; the kernel wants one madvise() a run of pages */
};

int park_create(struct ebbgc_heap *h);
void park_destroy(struct ebbgc_heap *h);

void park_object(struct tracer *t, uint64_t object);
/* The part on this page of an object that began before, and is marked. */
void park_slice(struct tracer *t, size_t page);
/* Work of a page that is known to be in becomes the tracer's. */
void park_wake(struct tracer *t, size_t page);

/*
 * Wakes what the last scan of residency found to have come in, unless that has been done: red
 * objects by the program's page faults, without a note.
 */
void park_look(struct tracer *t);

/*
 * Gives the kernel advice about at most FETCH_PAGES pages of the heap in ascending order; by how
 * many calls.  Any thread.
 */
size_t pages_advise(struct ebbgc_heap *h, const uint32_t *pages, unsigned int n, int advice);

/*
 * For a tracer that has nothing else to do: wakes, waits or fetches, all a little.  False when
 * nothing is parked.
 */
bool park_step(struct tracer *t);

#endif
