/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Ways to see which memory processes access. */
#ifndef EBB_IDLE_SOURCE_H
#define EBB_IDLE_SOURCE_H

#include <stdint.h>

#include "lib/base/error.h"
#include "lib/host/cgroup.h"

#define IDLE_TIMES_MAX 8
/* The first reading, one for each time, and the last one. */
#define IDLE_READINGS_MAX (IDLE_TIMES_MAX + 2)
#define IDLE_UNKNOWN UINT64_MAX

/* Memory at one reading, bytes. */
struct idle_counts {
	uint64_t total; /* memory that the source sees */
	/* Without an access since reading number [i]; IDLE_UNKNOWN if the source cannot tell. */
	uint64_t since[IDLE_READINGS_MAX];
};

struct idle_source {
	const char *name;
	/* Stores its state for @c, or says in @e why this machine or cgroup has no such source. */
	int (*open)(const struct cgroup_ref *c, void **state, struct error *e);
	/*
	 * Takes reading number @n, from 0 on: fills in the total, and [0] to [@n - 1] where known.
	 * -EAGAIN: the kernel's own reclaim interferes.
	 */
	int (*read)(void *state, uint32_t n, struct idle_counts *counts, struct error *e);
	void (*close)(void *state);
};

#endif
