/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Safepoints: how a mutator's thread stops for the collector, and waits without holding it up.
 * Cooperative: no signal is sent, as a thread that waits for a page would take it late.
 */
#ifndef EBBGC_SAFEPOINT_H
#define EBBGC_SAFEPOINT_H

#include "heap.h"

/* Lock held: the thread does not run, as far as the collector is concerned. */
void mutator_block(struct mutator *m);
/* Lock held, released meanwhile: waits until the world runs; the thread runs again. */
void mutator_unblock(struct mutator *m);
/* Lock held, released meanwhile; m does not run: waits until the world runs. */
void mutator_stop_wait(struct mutator *m);

/*
 * Lock held, released meanwhile; before m's thread waits, below with_stack().  From here to
 * mutator_unblock() the thread is at a safepoint in every other heap that it is attached to.
 */
void mutator_lend(struct mutator *m);

/* The calling thread's mutators, one of each heap that it is attached to. */
void mutator_enlist(struct mutator *m);
/* Drops the frames of those that run: the thread's functions have returned. */
void mutators_drop_frames(void);
/* Takes m, which is the calling thread's or of a thread that has exited, off the list; frees it. */
void mutator_free(struct mutator *m);

/* Lock held: pthread_cond_wait() by a mutator's thread; not a point of cancellation. */
void mutator_wait(struct ebbgc_heap *h, pthread_cond_t *cond);

/* Returns fn(arg), called with the thread's registers and the end of its stack within a scan. */
void *with_stack(struct mutator *m, void *(*fn)(void *), void *arg);

#endif
