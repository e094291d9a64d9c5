/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Settings and counters of the prefetch executor. */
#ifndef EBB_PREFETCH_SETTINGS_H
#define EBB_PREFETCH_SETTINGS_H

#include <stdint.h>

#include <ebb/abi.h>

#define PREFETCH_BATCH_MAX EBB_BATCH_MAX  /* a call holds the target's mmap_lock */

struct executor_config {
	uint32_t batch;        /* pages a call, at most PREFETCH_BATCH_MAX */
	uint32_t headroom;     /* outstanding pages stay below limit / headroom */
	uint32_t inflight;     /* pages in flight on all devices before more are requested */
	uint32_t beside;       /* least limit of a device while others' misses wait: pace.h */
	uint64_t stale_ns;     /* a request older than this is dropped */
	uint64_t expire_ns;    /* an unread prefetched page expires after this */
	uint32_t collapse;     /* drop-behind by huge pages: enum collapse_wish */
};

enum collapse_wish { COLLAPSE_NEVER, COLLAPSE_AUTO };

struct executor_stats {
	uint64_t requests;     /* taken from the ring */
	uint64_t stale;        /* dropped: malformed, too old, or the process exited */
	uint64_t unknown;      /* dropped: no recent fault told the process (targets.h) */
	uint64_t full;         /* pages cut: no free capacity in cgroup, set, swap or queue */
	uint64_t throttled;    /* dropped requests of cgroups with low accuracy (throttle.h) */
	uint64_t calls;        /* process_madvise */
	uint64_t pages;        /* requested from the kernel */
	uint64_t shared;       /* of .pages: of shared memory */
	uint64_t not_swapped;  /* skipped: resident or never touched */
	uint64_t not_memory;   /* skipped: not in a mapping of memory that faulted lately */
	uint64_t held_back;    /* skipped: on a device that waits for a donor (absence.h) */
	uint64_t zswapped;     /* skipped: zswap holds them (zswap.h) */
	uint64_t repeated;     /* skipped or not read again: outstanding already */
	uint64_t failed;       /* rejected by the kernel, or not entered in the set */
	uint64_t cold_pages;   /* deactivated */
	uint64_t paged_out;    /* by drop-behind */
	uint64_t collapsed;    /* collapsed into huge pages, before they are paged out */
	uint64_t collapse_ns;  /* time in MADV_COLLAPSE */
	uint64_t call_ns;      /* time in process_madvise */
	uint64_t waits;        /* pauses because the devices had enough to read */
	uint64_t paced;        /* of .pages: delayed by the limit of their device */
	uint32_t zswap;        /* enum zswap_state */
};

/* Prefetching from one device. */
struct device_view {
	uint32_t dev;          /* major << 20 | minor; 0 = unused */
	uint32_t limit;        /* of pages in flight; UINT32_MAX = none */
	uint64_t miss_ns;      /* median latency of recent misses; 0 = unknown */
	uint64_t idle_miss_ns; /* median latency without prefetches in flight; 0 = unknown */
};

struct pace_view {
	struct device_view device[EBB_MAX_DEVICES];
};

#endif
