/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/* Which pages of a heap are in memory, behind one interface so that there can be several sources. */
#ifndef EBBGC_RESIDENCY_H
#define EBBGC_RESIDENCY_H

#include <stddef.h>
#include <stdint.h>

struct residency;

struct residency_provider {
	const char *name;
	/* Bytes resident of [start, start + bytes), both multiples of a page; or -errno. */
	int64_t (*resident)(struct residency *r, const void *start, size_t bytes);
};

struct residency {
	const struct residency_provider *provider;
};

/* mincore(2): works everywhere; counts what is in the swap cache as resident. */
extern const struct residency_provider residency_mincore;

#endif
