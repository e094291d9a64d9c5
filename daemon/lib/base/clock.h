/* SPDX-License-Identifier: GPL-2.0-or-later */
/* CLOCK_MONOTONIC, the only clock for intervals and deadlines. */
#ifndef EBB_CLOCK_H
#define EBB_CLOCK_H

#include <stdint.h>
#include <time.h>

/* For interfaces that take a clock. */
#define CLOCK_INTERVALS CLOCK_MONOTONIC

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline int64_t now_ms(void)
{
	return (int64_t)(now_ns() / 1000000);
}

/* Returns the time in @ms, for pthread_cond_timedwait() with a CLOCK_MONOTONIC condition. */
static inline struct timespec clock_in_ms(uint32_t ms)
{
	uint64_t at = now_ns() + ms * 1000000ull;

	return (struct timespec){ .tv_sec = (time_t)(at / 1000000000),
				  .tv_nsec = (long)(at % 1000000000) };
}

#endif
