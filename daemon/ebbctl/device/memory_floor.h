/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Less memory for a cgroup while it is recorded, so that accesses to all but its hottest
 * pages fault and are recorded (docs/trace.md).
 */
#ifndef EBB_MEMORY_FLOOR_H
#define EBB_MEMORY_FLOOR_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/host/cgroup.h"

struct memory_floor {
	int hold;               /* closing it restores the limit */
	pid_t keeper;           /* restores it even when this process is killed; 0 = none */
};

/*
 * Limits @c to @bytes: on version 2 by memory.high, which does not invoke the OOM killer,
 * on version 1 by memory.limit_in_bytes.  EXIT_REFUSED when its memory beyond that does
 * not fit into free swap, or when it uses no more.
 */
int memory_floor_set(struct memory_floor *f, const struct cgroup_ref *c, uint64_t bytes,
		     struct error *e);

/* Restores the limit; nothing for a zeroed one. */
void memory_floor_end(struct memory_floor *f);

#endif
