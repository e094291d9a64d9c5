/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * What the kernel can still back: with memory, or with swap that makes room there.  It refuses no
 * page of a heap that grows beyond that; it kills.  So the heap asks before it grows.
 */
#ifndef EBBGC_BACKING_H
#define EBBGC_BACKING_H

#include <stdbool.h>
#include <stdint.h>

/* Kept free for what is not the heap's: side tables, page tables, other threads' pages. */
#define BACKING_RESERVE (UINT64_C(4) << 20)
/* Of what is left, what the heap takes before it looks again; but no less, and no more than this. */
#define BACKING_SHARE 8
#define BACKING_STEP (UINT64_C(1) << 20)
#define BACKING_MOST (UINT64_C(64) << 20)

struct backing {
	uint64_t bytes;		/* that may be taken before the next look */
	/* That the kernel may have, and says are left, but the heap will use again without asking. */
	uint64_t dropped;
	bool off;		/* nobody looks: EBBGC_OVERCOMMIT */
};

/*
 * Bytes that can be had by the calling process, by the files below @proc and @cgroups (/proc and
 * /sys/fs/cgroup): of the machine, and in each memory cgroup around it, v1 or v2.  UINT64_MAX if
 * nothing tells.
 */
uint64_t backing_left(const char *proc, const char *cgroups);

/* May so many bytes more be touched?  If so, they are taken. */
bool backing_take(struct backing *b, uint64_t bytes);

#endif
