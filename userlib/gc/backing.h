/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * What the kernel can still back with memory or swap.  It refuses no page of a heap that grows
 * beyond that; it kills the process.  So the heap asks before it grows.
 */
#ifndef EBBGC_BACKING_H
#define EBBGC_BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Left for the rest: side tables, page tables, other threads' pages. */
#define BACKING_RESERVE (UINT64_C(4) << 20)
/* The heap takes this share of what is left, within limits, before it reads the files again. */
#define BACKING_SHARE 8
#define BACKING_STEP (UINT64_C(1) << 20)
#define BACKING_MOST (UINT64_C(64) << 20)

struct backing {
	uint64_t bytes;		/* that may be taken before the files are read again */
	/* MADV_FREE pages: the kernel counts them as left, the heap uses them without asking. */
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
