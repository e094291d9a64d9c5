/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Paces the prefetches from each of ebb's devices: how many pages may be in flight there, by what
 * misses take (lib/rules/pace.h) and by the reads that the block layer reports as completed.
 *
 * Pages in flight are known only while there is a limit: after each batch the number of reads is
 * noted that the device will have completed with it, if it serves them in order.
 *
 * Belongs to the executor's thread.
 */
#ifndef EBB_PACING_H
#define EBB_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbd/plane/plane.h"
#include "settings.h"

#define PACING_UNKNOWN UINT32_MAX /* a swap type that is not known */

struct pacing;

/* The arguments must outlive it.  NULL without memory. */
struct pacing *pacing_new(const struct plane *plane, const struct executor_config *config);
void pacing_free(struct pacing **p);

/* Opens the devices of the present records; call again when these may have changed. */
void pacing_refresh(struct pacing *p);
/* Adapts the limits every 0.1 s, if called at least as often; @waiting: a cgroup mostly misses. */
void pacing_adapt(struct pacing *p, bool waiting, uint64_t now);

/* Returns whether prefetches from the device of swap type @type have a limit. */
bool pacing_limits(const struct pacing *p, uint32_t type);
/*
 * Returns how many of @wanted pages may be requested now from the device, which has a limit: 0 =
 * after some have arrived.
 */
uint32_t pacing_take(struct pacing *p, uint32_t type, uint32_t wanted, uint64_t now);
/* @pages were requested from the device. */
void pacing_requested(struct pacing *p, uint32_t type, uint32_t pages, uint64_t now);

/* Counts block reads in flight on all devices. */
uint64_t pacing_reads(const struct pacing *p);

/* The limits, approximate; any thread may read them. */
const struct pace_view *pacing_view(const struct pacing *p);

#endif
