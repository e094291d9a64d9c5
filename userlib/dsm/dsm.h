/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* A process's part of a space. */
#ifndef EBBDSM_DSM_H
#define EBBDSM_DSM_H

#include <errno.h>
#include <pthread.h>

#include "cache.h"
#include "check.h"
#include "ebbdsm.h"
#include "heap.h"
#include "queue.h"
#include "tasks.h"

/* A place that more is known of than its slot has. */
struct pending {
	struct queue_entry entry; /* its key is .loan_at, or, of what is no loan, .at */
	uint64_t at;
	uint64_t loan_at, loan, claim; /* GUEST, RETURNED: whose object it is */
	uint64_t stamp, ticket;        /* GUEST: of its return */
	struct copy *copy;             /* GUEST, BORROWED, without a mapped home: the content */
	bool looked;                   /* which asks its donor what has become of it */
};

/* A parcel that was received from a channel, and for which there was no memory. */
struct received {
	struct received *next;
	uint64_t at, stamp; /* of the channel */
	struct ebbdsm_parcel parcel;
};

/* A word of atomics, as this process saw it last. */
struct seen_word {
	uint64_t at, stamp, value;
	uint32_t i;
};

#define DSM_SEEN 64u

/* What else ebbdsm_settle() does, without the lock. */
typedef void dsm_settle_more(ebbdsm_t *dsm);

struct ebbdsm {
	/*
	 * Of all below but the links; not held while a call waits for a donor, or for a lock of a
	 * link, except for memory.
	 */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a copy is loaded, or ebbdsm_settle() has looked at a place */
	const uint32_t *alive; /* a page that is zero in a child of fork(2) */
	uint32_t donors, turn;
	struct link link[EBBDSM_DONORS];
	struct link *home;
	struct heap heap;
	struct cache cache;
	struct queue pending;
	uint64_t hits, misses;
	struct cells *cells; /* NULL = none was used */
	struct received *received; /* the oldest first */
	dsm_settle_more *settle_more; /* or NULL */
	struct seen_word seen[DSM_SEEN];
	struct dsm_tasks tasks; /* has locks of its own */
	uint64_t twin_reads, lost;
	pthread_mutex_t lists_lock; /* of the following; not held while a donor is waited for */
	struct dsm_lists {
		struct dsm_list *list; /* of twins, of all processes, as they were read last */
		uint32_t n;
	} lists[EBBDSM_DONORS];
	int64_t looked_at;          /* when all were read; bell_now(), 0 = never */
	struct check *check; /* NULL without EBBDSM_CHECK */
};

/* Returns NULL with errno. */
static inline void *dsm_fail(int r)
{
	errno = -r;
	return NULL;
}

/* Returns the donor of place @at, which is this process's. */
static inline struct link *dsm_link(ebbdsm_t *dsm, uint64_t at)
{
	return &dsm->link[at >> 61];
}

/* Takes the lock.  Returns 0, or -ECHILD without it. */
int dsm_enter(ebbdsm_t *dsm);
/* Gives it up; returns @result. */
int dsm_leave(ebbdsm_t *dsm, int result);

/* As ebbdsm_settle(), but makes no twins.  Without the lock. */
int dsm_settle(ebbdsm_t *dsm);

/* --- with the lock held: --- */

#define DSM_ANY UINT32_MAX

/* Makes a place as heap_new() at home, perhaps of memory that others have taken objects from. */
int dsm_place(ebbdsm_t *dsm, size_t size, uint64_t *at, struct slot **slot);
/* ... at the home donor, or where ebbdsm_task.h says if that is full. */
int dsm_place_best(ebbdsm_t *dsm, size_t size, uint64_t *at, struct slot **slot);
/* ... at donor @donor. */
int dsm_place_at(ebbdsm_t *dsm, uint32_t donor, size_t size, uint64_t *at, struct slot **slot);
/* Sets *@donor to that of @where: of a name, or EBBDSM_EMPTIEST. */
int dsm_donor_of(ebbdsm_t *dsm, uint64_t where, uint32_t *donor);

/* Sets *@slot to the box's.  -ESTALE: it is not this process's. */
int dsm_own(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct slot **slot);

/* Moves the box to a block that has numbers left, if its own has few. */
int dsm_refresh(ebbdsm_t *dsm, struct ebbdsm_box *box, struct slot **slot);

/*
 * Makes @copy, whose header's size is right, the content of the WORKING place @at, with @stamp: the
 * box's.  Without a mapped home, gives the lock up meanwhile, and keeps the copy in the cache.  The
 * copy is the function's.
 */
int dsm_store(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, struct copy *copy,
	      struct ebbdsm_box *box);

/*
 * Writes the value named @at, @stamp, which is @c, to the twins of the WORKING place, between
 * heap_begin_write() and heap_end_write().  Gives the lock up meanwhile.  -EIO: it is at none.
 */
int dsm_save(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, const struct content *c);

/* @loan_at: of a loan that this process borrows, or 0.  NULL: -ENOMEM. */
struct pending *dsm_pending_new(ebbdsm_t *dsm, uint64_t at, uint64_t loan_at);
/* Returns that of an own object, or NULL. */
struct pending *dsm_pending(ebbdsm_t *dsm, uint64_t at);
/* ... of a loan that this process has borrowed: .loan is set. */
struct pending *dsm_pending_loan(ebbdsm_t *dsm, uint64_t loan_at, uint64_t loan);
void dsm_pending_end(ebbdsm_t *dsm, struct pending *p);

/*
 * What was returned is taken, or never will be: frees its place, which is WORKING, and its claim.
 * Gives the lock up meanwhile.
 */
void dsm_end_loan(ebbdsm_t *dsm, struct pending *p);

/*
 * As ebbdsm_reclaim(), but DSM_RETURNED if the borrower had returned the box; without @withdraws,
 * -EAGAIN if it is not taken.
 */
int dsm_take_back(ebbdsm_t *dsm, struct ebbdsm_box *box, bool withdraws);

/* Runs an operation on this process's own place.  Gives the lock up meanwhile. */
int dsm_run_home(ebbdsm_t *dsm, struct dsm_op *op);

/*
 * Without the lock: reads the value from a twin.  -ESTALE, -EIO: it is at none, -EINVAL, -ENOMEM.
 */
int dsm_read_saved(ebbdsm_t *dsm, uint64_t at, uint64_t stamp, struct content *to, uint64_t *size);

/* The content of the mapped place @at is complete: gives it its header. */
void dsm_publish(struct content *c, uint64_t at, uint64_t stamp, uint64_t size, uint64_t hold);

/* Returns whether a header's size can be that of place @at. */
bool dsm_size_fits(uint64_t at, uint64_t size);

#endif
