/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Waiting for words of other members (ebbfar_notify()).  A word wakes all that wait: it says that
 * something has changed, not what, since the donor may drop all but the last one.
 */
#ifndef EBBDSM_BELL_H
#define EBBDSM_BELL_H

#include <ebbfar.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct bell {
	pthread_mutex_t lock;
	pthread_cond_t rung;
	uint32_t rings; /* how many words have come */
	bool listens;   /* a thread waits for the donor, others for that thread */
};

void bell_begin(struct bell *b);
void bell_end(struct bell *b);

/* A word has come.  Returns whether a thread listens, which only a word from the donor wakes. */
bool bell_ring(struct bell *b);

/* Returns b->rings: to be read before what another member changes, and then rings. */
uint32_t bell_rings(struct bell *b);

/*
 * Waits until b->rings is not @rings, or until @until, a time of bell_now().  0; a negative errno
 * of ebbfar_wait(): the handle has failed.
 */
int bell_wait(struct bell *b, ebbfar_t *far, uint32_t rings, int64_t until);

/* Returns the time in ms. */
int64_t bell_now(void);

#endif
