/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A thread that makes system calls on the memory of other processes, and is replaced if one hangs.
 *
 * Such a call waits for the process's mmap_lock, or for the end of its execve().  A thread of the
 * process may hold that for as long as a file server does not answer: mmap() of a file on NFS or
 * FUSE asks the server while it holds the mmap_lock, and execve() closes files.  Only SIGKILL ends
 * the wait, and it would end all of ebbd.
 *
 * So the thread that hangs is abandoned: another one continues with its state, and leaves the
 * process and its attached cgroup alone until the call returns, at which the abandoned thread ends,
 * and for a while longer, twice as long after each time: each time delays all other cgroups.
 */
#ifndef EBB_WORKER_H
#define EBB_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

#define WORKER_HUNG 64           /* abandoned threads at a time; a further one is not replaced */
#define WORKER_HUNG_TICKS 50     /* 5 s */
#define WORKER_REST_NS 10000000000ULL       /* after the first call that hung, */
#define WORKER_REST_MOST_NS 3600000000000ULL /* and at most; forgotten when as long has passed */

struct worker;

struct worker_kind {
	const char *thread;      /* its name */
	const char *work;        /* what it does, for messages */
	/* Works until worker_wake() becomes readable.  A later thread calls it again. */
	void (*run)(struct worker *w, void *data);
	/*
	 * Called while no thread executes .run: a call on process @tgid of the attached cgroup
	 * @owner hangs.  Has to forget that process, and may free all but the stack of the call.
	 */
	void (*hung)(void *data, uint32_t tgid, uint64_t owner);
	uint64_t rest_ns;        /* WORKER_REST_NS, but in tests */
};

/* --- main thread ------------------------------------------------------------ */

/* @kind and @data outlive it. */
int worker_start(struct worker **w, const struct worker_kind *kind, void *data, size_t stack,
		 struct error *e);
/* Waits until .run has returned, unless a call hangs.  NULL is fine. */
void worker_stop(struct worker **w);
/*
 * Ten times a second: replaces a thread that hangs, and logs that; returns the number of successive
 * calls without progress of the thread, 0 after a replacement.
 */
uint32_t worker_tick(struct worker *w);
const char *worker_work(const struct worker *w);
/* Returns the process of the last call; 0 = none yet. */
uint32_t worker_at(const struct worker *w);

/* --- the thread ------------------------------------------------------------- */

/* Returns an eventfd to poll. */
int worker_wake(const struct worker *w);
/* Call at least twice a second; worker_call_begin() does, too. */
void worker_beat(struct worker *w);
/* Returns whether process @tgid, or the attached cgroup @owner, is left alone now. */
bool worker_excludes(const struct worker *w, uint32_t tgid, uint64_t owner);

/*
 * Enclose each system call that may hang.  @owner: the attached cgroup, 0 = not known.
 * worker_call_end() keeps errno and, if the thread was abandoned, ends it.
 *
 * Threads that are no workers may call both, without effect.
 */
void worker_call_begin(uint32_t tgid, uint64_t owner);
void worker_call_end(void);
/*
 * Like worker_call_end(), for a caller that holds resources: returns false if the thread was
 * abandoned.  Then it has to release them, touch nothing else, and call worker_quit().
 */
bool worker_call_returned(void);
_Noreturn void worker_quit(void);

#endif
