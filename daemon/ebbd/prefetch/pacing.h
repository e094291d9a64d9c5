/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Limits the prefetched pages in flight on each of ebb's devices while misses of other cgroups wait
 * there: lib/rules/pace.h chooses the limit by the latency of misses.
 *
 * The block layer counts reads, but not their purpose.  So each batch is stored with the count of
 * completed reads at which the device, if it serves reads in order, has completed the batch: then
 * its pages are no longer in flight.  A device that serves misses first reaches the count early.
 *
 * Belongs to the executor's thread.
 */
#ifndef EBB_PACING_H
#define EBB_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbd/plane/plane.h"
#include "settings.h"

#define PACING_UNKNOWN UINT32_MAX /* an unknown swap type */

struct pacing;

/* The arguments must outlive it.  NULL without memory. */
struct pacing *pacing_new(const struct plane *plane, const struct executor_config *config);
void pacing_free(struct pacing **p);

/* Finds the devices of the present records; call again when these may have changed. */
void pacing_refresh(struct pacing *p);
/* Adapts the limits every 0.1 s, if called at least as often. */
void pacing_adapt(struct pacing *p, uint64_t now);

/* Returns whether prefetches from the device of swap type @type have a limit. */
bool pacing_limits(const struct pacing *p, uint32_t type);
/*
 * Returns how many of @wanted pages may be requested from the device now: 0 = none until some in
 * flight have arrived; @wanted where there is no limit.
 */
uint32_t pacing_take(struct pacing *p, uint32_t type, uint32_t wanted, uint64_t now);
/*
 * @pages were requested from the device; @beside: another cgroup mostly misses.  Misses of the
 * prefetching cgroup alone limit nothing: the program would gain and lose by it.
 */
void pacing_requested(struct pacing *p, uint32_t type, uint32_t pages, bool beside, uint64_t now);

/* Counts block reads in flight on all devices. */
uint64_t pacing_reads(const struct pacing *p);

/* Returns the limits; any thread may read them, possibly amid a change. */
const struct pace_view *pacing_view(const struct pacing *p);

#endif
