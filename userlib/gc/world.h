/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_WORLD_H
#define EBBGC_WORLD_H

#include <stdint.h>

struct ebbgc_heap;

/* Returns when no mutator runs.  The collector, without the lock. */
void world_stop(struct ebbgc_heap *h);

/* Ends the pause that was requested at @since (ns); barriers change here. */
void world_resume(struct ebbgc_heap *h, uint64_t since);

#endif
