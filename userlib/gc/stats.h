/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
#ifndef EBBGC_STATS_H
#define EBBGC_STATS_H

#include <stdint.h>

struct ebbgc_heap;
struct mutator;

/* Lock held: counts a pause of @ns. */
void stats_count_pause(struct ebbgc_heap *h, uint64_t ns);
/* Lock held, world stopped by the collector: adds its counts to the statistics. */
void stats_add(struct ebbgc_heap *h);
/* Lock held: adds the counts of a thread that leaves. */
void stats_add_thread(struct ebbgc_heap *h, const struct mutator *m);

#endif
