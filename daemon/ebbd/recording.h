/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Recordings: every swap fault and swap-out of one cgroup into a trace
 * (daemon/lib/trace, docs/trace.md), until told to stop.  The only time that events
 * leave the kernel one by one.
 *
 * A thread of its own takes them from the ring and writes them, so that a slow
 * disk delays neither prefetches nor the heartbeat; it sleeps while nothing is
 * recorded.  A disk that is full ends the recording and nothing else.
 */
#ifndef EBB_RECORDING_H
#define EBB_RECORDING_H

#include "ebbd/attach/attachment.h"

struct recordings;

int recordings_new(struct recordings **r, struct attachments *a, struct error *e);
/* Ends all that run, in good order. */
void recordings_free(struct recordings **r);

/*
 * Records the attached @cgroup into @file, which is replaced.  -EBUSY when it is
 * recorded already.  It ends when the cgroup is attached no more, and when
 * recording_check() was not called for @watch_ns (0: that does not matter);
 * recording_stop() tells what came of it then too.
 */
int recording_start(struct recordings *r, const char *cgroup, const char *file, uint64_t watch_ns,
		    struct error *e);

/* What came of one. */
struct recording_end {
	uint64_t records, lost;
};

/* Fails with the reason when the recording had ended by itself. */
int recording_stop(struct recordings *r, const char *cgroup, struct recording_end *end,
		   struct error *e);

/* 0 while @cgroup is being recorded, else why not. */
int recording_check(struct recordings *r, const char *cgroup, struct error *e);

#endif
