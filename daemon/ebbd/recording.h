/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Recordings: every swap fault and swap-out of one cgroup into a trace
 * (daemon/lib/trace, docs/trace.md), until it is stopped.  Only recordings pass
 * single events to user space.
 *
 * A separate thread reads them from the ring and writes them, so that a slow disk
 * delays neither prefetches nor the heartbeat; without recordings it sleeps.  A full
 * disk ends the recording only.
 */
#ifndef EBB_RECORDING_H
#define EBB_RECORDING_H

#include "ebbd/attach/attachment.h"

struct recordings;

int recordings_new(struct recordings **r, struct attachments *a, struct error *e);
/* Ends all recordings and completes their files. */
void recordings_free(struct recordings **r);

/*
 * Records the attached @cgroup into @file, which recording_file() creates.  Returns -EBUSY if
 * it is recorded already.  The recording ends when the cgroup is detached, and after
 * @watch_ns (0: never) without recording_check(); recording_stop() returns its result
 * in these cases, too.
 */
int recording_start(struct recordings *r, const char *cgroup, const char *file, uint64_t watch_ns,
		    struct error *e);

/* Result of a recording. */
struct recording_end {
	uint64_t records, lost;
};

/* Fails with the reason if the recording ended before. */
int recording_stop(struct recordings *r, const char *cgroup, struct recording_end *end,
		   struct error *e);

/* Returns 0 while @cgroup is being recorded, else an error with the reason. */
int recording_check(struct recordings *r, const char *cgroup, struct error *e);

#endif
