/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* madvise(2) for many pages at once. */
#ifndef EBBGC_ADVICE_H
#define EBBGC_ADVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADVICE_PAGES 64u	/* most per call, which holds mmap_lock */

struct advice {
	int pidfd;		/* of this process, or -1 */
	bool one_by_one;	/* atomic; the kernel needs one madvise() per run of pages */
};

void advice_open(struct advice *a);
void advice_close(struct advice *a);

/*
 * Gives the kernel advice about at most ADVICE_PAGES pages of the mapping at @base, in ascending
 * order.  Returns the number of system calls.  Any thread.
 */
size_t advice_give(struct advice *a, char *base, const uint32_t *pages, unsigned int n,
		   int advice);

#endif
