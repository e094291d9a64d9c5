/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Data that was altered on its way to or from a donor, by times of its connections that ended for
 * that.  A single one costs a reconnection; repeated ones mean a faulty network, or an attacker
 * on it.
 */
#ifndef EBB_ALTERATIONS_H
#define EBB_ALTERATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* Connections that ended so within this time are too many. */
#define ALTERATIONS_MOST 3
#define ALTERATIONS_WINDOW_NS 600000000000ull

/* Starts as zeroes. */
struct alterations {
	uint64_t at[ALTERATIONS_MOST - 1]; /* ns: the last ones before the next, oldest first */
};

/* Another connection has ended so at @now, which is not 0; returns whether they are too many. */
static inline bool alterations_add(struct alterations *a, uint64_t now)
{
	uint64_t first = a->at[0];

	for (int i = 0; i < ALTERATIONS_MOST - 2; i++)
		a->at[i] = a->at[i + 1];
	a->at[ALTERATIONS_MOST - 2] = now;
	return first && now - first <= ALTERATIONS_WINDOW_NS;
}

#endif
