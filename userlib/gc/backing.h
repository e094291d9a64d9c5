/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Bytes that the kernel can still back with memory or swap.  If a heap grows beyond that, the
 * kernel refuses no page but kills the process: the heap must ask before it grows.
 */
#ifndef EBBGC_BACKING_H
#define EBBGC_BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Left for side tables, page tables and other threads' pages. */
#define BACKING_RESERVE (UINT64_C(4) << 20)
/* The heap takes this share of the available bytes, within limits, between reads of the files. */
#define BACKING_SHARE 8
#define BACKING_STEP (UINT64_C(1) << 20)
#define BACKING_MOST (UINT64_C(64) << 20)

struct backing {
	uint64_t bytes;		/* may be taken before the files are read again */
	/* Bytes of MADV_FREE pages: free to the kernel, but the heap reuses them without asking. */
	uint64_t dropped;
	bool off;		/* EBBGC_OVERCOMMIT */
};

/*
 * Returns the bytes that the calling process can still get: the least of the machine and of each
 * memory cgroup around the process, v1 or v2, by the files below @proc and @cgroups (/proc and
 * /sys/fs/cgroup).  UINT64_MAX if unknown.
 */
uint64_t backing_left(const char *proc, const char *cgroups);

/* Takes @bytes; returns false if the kernel cannot back them. */
bool backing_take(struct backing *b, uint64_t bytes);

#endif
