/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A way to see which memory processes access. */
#ifndef EBB_IDLE_SOURCE_H
#define EBB_IDLE_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"
#include "lib/host/cgroup.h"

/* Memory at one reading, bytes. */
struct idle_counts {
	uint64_t total; /* memory that the source sees */
	uint64_t idle;  /* of it, without an access since the first reading, of which 0 */
};

struct idle_source {
	const char *name;
	/* Stores its state for @c, or says in @e why this machine or cgroup has no such source. */
	int (*open)(const struct cgroup_ref *c, void **state, struct error *e);
	/* Takes a reading; the @first begins the time from which accesses count. */
	int (*read)(void *state, bool first, struct idle_counts *counts, struct error *e);
	void (*close)(void *state);
};

#endif
