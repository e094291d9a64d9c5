/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Offloading: a thread that pages out idle pages of attached cgroups with a slowdown
 * target, until page faults cost them that share of their time.
 *
 * Twice a second it measures, for each such cgroup, the time that its threads lost,
 * gets the next amount from the controller (offload_control.h), and pages that out
 * by process_madvise() (offload_pages.h).  It pauses while the swap area with the
 * highest priority is not ebb's or is nearly full, and for a while after the device
 * lost a donor.
 *
 * It does not use memory.reclaim: the kernel's LRU treats every written page as used
 * and first evicts the oldest pages, often a program's busiest.  docs/offload.md has
 * figures.
 *
 * Time lost is what ebb counts itself: misses, late prefetches, and 3 us for every
 * hit and every page touched during its trial.  PSI counts only pages of the kernel's
 * working set, without those paged out by advice, and is off on some machines; if it
 * is on, its "some" time is a lower bound.
 */
#ifndef EBB_OFFLOAD_H
#define EBB_OFFLOAD_H

#include "ebbd/prefetch/worker.h"
#include "lib/base/error.h"
#include "table.h"

struct offload;

int offload_start(struct offload **out, struct attachments *a, struct error *e);
/* Waits for the end of the current round. */
void offload_stop(struct offload **o);
struct worker *offload_worker(struct offload *o);

#endif
