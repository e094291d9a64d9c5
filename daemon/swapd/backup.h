/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The backup file: a copy of every page on the local disk, written behind the
 * donor's back by a thread of its own.
 *
 * Jobs on the same pages are done in the order they are handed over; that is what
 * makes a read see the newest acknowledged write.  Others may overtake each other, but
 * come back in that order.
 */
#ifndef EBB_BACKUP_H
#define EBB_BACKUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/error.h"
#include "slot.h"

struct backup {
	int fd;
	char path[4096];
	bool created;      /* by us, so removed by us */
	bool direct;       /* O_DIRECT */
	struct slots *slots;
	pthread_t thread;
	bool running;
	int wake_fd;       /* to the thread */
	int done_fd;       /* to the loop */
	/* Ring of slot indices; each slot is on it once at most. */
	uint16_t jobs[SLOT_COUNT];
	bool through[SLOT_COUNT]; /* thread: job i % SLOT_COUNT is; of completed..taken */
	struct io_context *aio;   /* NULL = none: one transfer at a time */
	struct transfer *transfers;
	uint32_t in_flight; /* thread: transfers */
	uint32_t submitted; /* loop */
	uint32_t taken;     /* thread: begun */
	uint32_t completed; /* thread; results are visible up to here */
	uint32_t reaped;    /* loop */
	uint32_t sleeping;  /* the thread waits for wake_fd */
	uint32_t notify;    /* the loop wants done_fd at the next completion */
	uint32_t stop;
};
_Static_assert((SLOT_COUNT & (SLOT_COUNT - 1)) == 0, "the ring's counters wrap at 2^32");

/*
 * Opens or creates the file at @path and preallocates @size bytes.  An error
 * says how much is needed and how much there is; a file created here is removed
 * again.  -EBUSY when another server uses it.
 */
int backup_open(struct backup *b, const char *path, uint64_t size, struct error *e);

/* Starts the thread.  Its stack is small: everything is locked. */
int backup_start(struct backup *b, struct slots *slots, struct error *e);

/* Whether there is one; else fd is -1 and nothing else is called. */
static inline bool backup_there(const struct backup *b)
{
	return b->fd >= 0;
}

/* Ends the thread, closes, and removes a file that backup_open() made. */
void backup_close(struct backup *b);

/*
 * Loop thread.  Hands @slot over: a WRITE whole, pages cursor..cursor + run of a
 * READ or FILL (to be written if they are fetched), or an ALONE, for its place in the queue.  The thread owns the payload
 * until backup_reap() returns the slot.
 */
void backup_submit(struct backup *b, struct slot *slot);
/* Wakes the thread if it sleeps and @jobs are waiting for it; call once after some submits. */
void backup_kick(struct backup *b, uint32_t jobs);
/* The next finished slot, with backup_result set, or NULL. */
struct slot *backup_reap(struct backup *b);
/* Loop thread.  Whether a WRITE of any of these pages is not reaped yet. */
bool backup_holds(const struct backup *b, uint32_t first, uint32_t count);
/*
 * Asks for done_fd to become readable at the next completion.  True when one
 * has come in between: reap before sleeping.
 */
bool backup_notify(struct backup *b);

/* Loop thread.  Jobs whose result it has not seen. */
static inline uint32_t backup_pending(const struct backup *b)
{
	return b->submitted - b->reaped;
}

static inline uint32_t backup_queued(const struct backup *b)
{
	return __atomic_load_n(&b->submitted, __ATOMIC_RELAXED) -
	       __atomic_load_n(&b->completed, __ATOMIC_RELAXED);
}

#endif
