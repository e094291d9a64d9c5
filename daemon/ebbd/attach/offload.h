/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Offloading: a thread that pages out what attached cgroups with a slowdown
 * target hardly use, until swapping it in again costs them as much as they may be
 * slowed down.
 *
 * Twice a second and for each such cgroup it measures the time its threads
 * lost, asks the controller (offload_control.h) how much to take next, and
 * takes it by advice to its processes (offload_pages.h).  Nothing is taken while
 * the swap device pages would go to is not ebb's or is nearly full, and for a
 * while after it lost a donor.
 *
 * Not by memory.reclaim, where there is one: the kernel's LRU takes all that was
 * written once for used, and at the first demand evicts what is oldest, which is
 * what a program wrote first and often its busiest part.  docs/offload.md has
 * figures.
 *
 * Time lost is what ebb counts itself: misses, late prefetches, and 3 us for every
 * hit and every page that was touched while on trial.  PSI counts only pages that
 * the kernel takes for part of the working set, which pages paged out by advice
 * are not, and is off on some machines; where it is on, its "some" time is a
 * lower bound.
 */
#ifndef EBB_OFFLOAD_H
#define EBB_OFFLOAD_H

#include "lib/base/error.h"
#include "table.h"

struct offload;

int offload_start(struct offload **out, struct attachments *a, struct error *e);
/* Waits for the round it is in. */
void offload_stop(struct offload **o);

#endif
