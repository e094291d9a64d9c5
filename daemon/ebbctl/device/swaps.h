/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Active swap. */
#ifndef EBB_SWAPS_H
#define EBB_SWAPS_H

#include <limits.h>
#include <stdint.h>

#include "lib/base/error.h"

struct swap_area {
	char path[256];      /* below /dev for block devices, regardless of the listed form */
	uint64_t size, used; /* bytes */
	int priority;
};

#define SWAPS_MAX 32

/* Reads /proc/swaps into @areas (SWAPS_MAX); returns their number or -errno. */
int swaps_read(struct swap_area *areas);

/* Finds the active swap @path, or returns -ENOENT. */
int swaps_find(const char *path, struct swap_area *area);

/* Returns the highest priority in use, INT_MIN without swap. */
int swaps_top_priority(void);

/* Formats @block, of the device @name, as a swap area and switches it on. */
int swaps_on(const char *name, const char *block, int priority, struct error *e);

/*
 * Checks that the pages in the @n areas @leaving, of @devices, fit into free memory and other
 * swap, and into the limits of their cgroups (else swapoff would invoke the OOM killer).
 * EXIT_REFUSED otherwise, with the numbers in @e and @otherwise as the last remedy.
 */
int swaps_can_leave(const char *devices, const struct swap_area *leaving, int n,
		    const char *otherwise, struct error *e);

/* Returns MemAvailable in bytes. */
uint64_t memory_available(void);

#endif
