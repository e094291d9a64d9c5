/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Pauses: the collector's threads stop all mutators, one of them at a time. */
#ifndef EBBGC_WORLD_H
#define EBBGC_WORLD_H

#include <stdint.h>

struct ebbgc_heap;

/*
 * Without the heap's lock: from begin to end, no other thread of the collector stops the world.
 * These threads may wait for one that sweeps, but sweeping never waits for them.
 */
void pause_begin(struct ebbgc_heap *h);
void pause_end(struct ebbgc_heap *h);

/* Between pause_begin() and pause_end(): stops the world; returns when no mutator runs. */
void world_stop(struct ebbgc_heap *h);
/* Ends the pause that was requested at @since (ns); barriers change here. */
void world_resume(struct ebbgc_heap *h, uint64_t since);

#endif
