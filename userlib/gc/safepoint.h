/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Safepoints: mutator threads stop for the collector, and wait without delaying it.  They are
 * cooperative: a thread that waits for a page would take a signal late.
 */
#ifndef EBBGC_SAFEPOINT_H
#define EBBGC_SAFEPOINT_H

#include "heap.h"

/* Lock held: from here on the collector treats the thread as stopped. */
void mutator_block(struct mutator *m);
/* Lock held, released while waiting: ends mutator_block() once the world runs. */
void mutator_unblock(struct mutator *m);
/* Lock held, released while waiting; m is blocked: waits until the world runs. */
void mutator_stop_wait(struct mutator *m);

/*
 * Lock held, released meanwhile.  Called before m's thread waits, below with_stack().  From here to
 * mutator_unblock(), the thread is at a safepoint in every other heap that it is attached to.
 */
void mutator_lend(struct mutator *m);

/* Adds m to the calling thread's mutators, one for each heap that it is attached to. */
void mutator_enlist(struct mutator *m);
/* Drops the frames of the thread's running mutators: its functions have returned. */
void mutators_drop_frames(void);
/* Removes m from the list and frees it; m is the calling thread's or an exited thread's. */
void mutator_free(struct mutator *m);

/* Lock held: pthread_cond_wait() by a mutator's thread; not a cancellation point. */
void mutator_wait(struct ebbgc_heap *h, pthread_cond_t *cond);

/* Returns fn(arg), called so that stack scans include the thread's registers and all frames. */
void *with_stack(struct mutator *m, void *(*fn)(void *), void *arg);

#endif
