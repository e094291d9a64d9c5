/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_CLOCK_H
#define EBB_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of the clock that nobody sets. */
static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

#endif
