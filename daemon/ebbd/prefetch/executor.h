/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The prefetch executor: a thread that reads the policies' requests from the
 * ring buffer and carries them out in their order (prefetch.h).
 */
#ifndef EBB_EXECUTOR_H
#define EBB_EXECUTOR_H

#include "ebbd/attach/attachment.h"

struct executor;

struct executor_config {
	uint32_t batch;        /* pages a call, at most 64 */
	uint32_t headroom;     /* outstanding pages stay below limit / headroom */
	uint32_t inflight;     /* pages the devices may have to read before more is requested */
	uint32_t beside;       /* the same, those asked for included, while another cgroup misses */
	uint64_t stale_ns;     /* a request older than this is dropped */
	uint64_t expire_ns;    /* a prefetched page nobody asks for is given up after this */
};

struct executor_stats {
	uint64_t requests;     /* taken from the ring */
	uint64_t stale;        /* dropped: too old, or the process is gone */
	uint64_t full;         /* dropped or cut: enough is outstanding, or no room was to be had */
	uint64_t throttled;    /* requests of cgroups that use little of what came in (throttle.h) */
	uint64_t calls;        /* process_madvise */
	uint64_t pages;        /* asked of the kernel */
	uint64_t not_swapped;  /* skipped: resident, never touched or not ours */
	uint64_t repeated;     /* skipped or not read again: outstanding already */
	uint64_t failed;       /* the kernel refused */
	uint64_t cold_pages;   /* advised cold */
	uint64_t paged_out;    /* paged out behind streams */
	uint64_t call_ns;      /* time in process_madvise */
	uint64_t waits;        /* pauses because the devices had enough to do */
};

int executor_start(struct executor **x, struct attachments *a, const struct executor_config *config,
		   struct error *e);
void executor_stop(struct executor **x);
void executor_read_stats(const struct executor *x, struct executor_stats *s);

#endif
