/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Active swap, and taking it off without hanging. */
#ifndef EBB_SWAPS_H
#define EBB_SWAPS_H

#include <limits.h>
#include <stdint.h>

#include "ebbctl/process.h"
#include "lib/base/error.h"

struct swap_area {
	char path[256];      /* that of a block device below /dev, however it is listed */
	uint64_t size, used; /* bytes */
	int priority;
};

#define SWAPS_MAX 32

/* Reads /proc/swaps; the number of areas in @areas (of SWAPS_MAX), or -errno. */
int swaps_read(struct swap_area *areas);

/* -ENOENT when @path is not on. */
int swaps_find(const char *path, struct swap_area *area);

/* The highest priority in use, INT_MIN when there is no swap. */
int swaps_top_priority(void);

/* Formats @block as a swap area and switches it on. */
int swaps_on(const char *block, const char *label, int priority, struct error *e);

/*
 * Whether what @area holds fits elsewhere: in free memory and other swap, and
 * in the limits of the cgroups it belongs to (swapoff would set the OOM killer
 * on them).  Says the numbers in @e, with EXIT_REFUSED.
 */
int swaps_can_leave(const char *device, const struct swap_area *area, struct error *e);

/*
 * swapoff(2) in a child, given up after @timeout_ms or, as @patience says, when
 * interrupted: then swap stays on and works, or, when not even that ends,
 * -ETIMEDOUT with a last word in @e.
 */
int swaps_off(const char *device, const char *block, int timeout_ms,
	      enum process_patience patience, struct error *e);

/* MemAvailable in bytes. */
uint64_t memory_available(void);

#endif
