/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The backup file: a copy of every page on the local disk, written asynchronously by a separate
 * thread.
 *
 * Writes wait in a queue, which a slow disk makes long.  Jobs on common pages are done there in
 * order of submission.  Reads do not wait behind it: they have a separate lane, for pages without a
 * queued write; pages with one are copied from its buffer.  So a read sees the newest acknowledged
 * write.  In each lane, jobs on different pages may overtake each other, but return in order.
 */
#ifndef EBB_BACKUP_H
#define EBB_BACKUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "request.h"

/* Slots on their way to the thread and back; each is in one lane, once. */
struct backup_lane {
	uint16_t jobs[SLOT_COUNT]; /* ring of slot indices */
	bool through[SLOT_COUNT];  /* thread: job i % SLOT_COUNT has ended; of completed..taken */
	uint32_t submitted;        /* loop */
	uint32_t taken;            /* thread: begun */
	uint32_t completed;        /* thread; results are visible up to here */
	uint32_t reaped;           /* loop */
};

struct backup {
	int fd;            /* this process's own since backup_start(), or the shared one */
	int shared_fd;     /* as opened, for all processes of a device; -1 = fd is that one */
	char path[4096];
	bool created;      /* by us, so removed by us */
	bool direct;       /* O_DIRECT */
	struct slots *slots;
	pthread_t thread;
	bool running;
	int wake_fd;       /* to the thread, also from the kernel when a transfer ends */
	int done_fd;       /* to the loop */
	struct backup_lane queue; /* all jobs except */
	struct backup_lane reads;
	struct io_context *aio;   /* NULL = none: one transfer at a time */
	struct disk_io *ios;
	struct iocb **ready; /* thread: begun, not submitted to the kernel yet */
	uint32_t ready_count;
	uint32_t in_flight; /* thread: transfers */
	uint32_t wakers;    /* thread: those of them that wake it by wake_fd */
	uint32_t silent;    /* thread: writes since the last waking one */
	uint64_t writing;   /* thread: bytes of writes among them */
	uint32_t sleeping;  /* the thread waits for wake_fd: enum in backup.c */
	bool fresh;         /* loop: a read was handed over since the last kick */
	uint32_t notify;    /* the loop wants done_fd at the next completion */
	uint32_t stop;
};
_Static_assert((SLOT_COUNT & (SLOT_COUNT - 1)) == 0, "the ring's counters wrap at 2^32");

/*
 * Opens or creates the file at @path and preallocates @size bytes.  An error names the required and
 * the available space; a file created here is removed again.  -EBUSY when another server uses it.
 */
int backup_open(struct backup *b, const char *path, uint64_t size, struct error *e);

/*
 * Opens the file again for this process alone, if possible, and starts the thread, whose stack is
 * small because it is locked.
 */
int backup_start(struct backup *b, struct slots *slots, struct error *e);

/*
 * For the next server: returns -EAGAIN while the kernel still reads and writes for a predecessor.
 * The kernel waits for that before a process has exited, unless another process holds its memory,
 * as a reader of /proc/PID/smaps or a user of process_vm_readv(2) does for a while; late I/O would
 * change the file or a slot.
 *
 * Transfers hold their open file, whose lock therefore stays until the last of them has ended.
 * Returns 0, too, for a process without its own open file.  If it fails before there is a
 * predecessor, as on NFS, where flock(2) is such a lock and the supervisor's, it says nothing.
 */
int backup_claim(struct backup *b);

/* Returns whether there is a backup; else fd is -1, and no other function is called. */
static inline bool backup_there(const struct backup *b)
{
	return b->fd >= 0;
}

/* Stops the thread, closes the file, and removes it if backup_open() created it. */
void backup_close(struct backup *b);

/*
 * Loop thread.  Fills the payload of @slot, a READ or RESYNC, from cursor on with queued writes of
 * its pages, and cuts @slot->run to those.  Returns false when the first page is not queued: the
 * run is then cut to pages that are not.
 */
bool backup_take_queued(const struct backup *b, struct slot *slot);

/*
 * Loop thread.  Submits @slot: a WRITE as a whole; pages cursor..cursor + run of a READ or RESYNC
 * (written if they are fetched, else read, after backup_take_queued() has not found them); or an
 * EXCLUSIVE, for its place in the queue.  The thread owns the payload until backup_reap() returns
 * the slot.
 */
void backup_submit(struct backup *b, struct slot *slot);
/* Wakes the thread if it sleeps and @jobs are waiting for it; call once after some submits. */
void backup_kick(struct backup *b, uint32_t jobs);
/* Returns the next finished slot, with backup_result set, or NULL. */
struct slot *backup_reap(struct backup *b);
/* Loop thread.  Returns whether a WRITE of any of these pages is not reaped yet. */
bool backup_holds(const struct backup *b, uint32_t first, uint32_t count);
/*
 * Requests that done_fd becomes readable at the next completion.  Returns true when one has
 * happened in between: reap before sleeping.
 */
bool backup_notify(struct backup *b);

/* Loop thread.  Counts jobs of the queue that are not reaped yet. */
static inline uint32_t backup_pending(const struct backup *b)
{
	return b->queue.submitted - b->queue.reaped;
}

static inline uint32_t backup_lane_queued(const struct backup_lane *l)
{
	return __atomic_load_n(&l->submitted, __ATOMIC_RELAXED) -
	       __atomic_load_n(&l->completed, __ATOMIC_RELAXED);
}

static inline uint32_t backup_queued(const struct backup *b)
{
	return backup_lane_queued(&b->queue) + backup_lane_queued(&b->reads);
}

#endif
