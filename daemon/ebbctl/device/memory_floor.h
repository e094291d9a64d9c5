/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Less memory for a cgroup while it is recorded, so that touches of all but its
 * most used pages are faults, which a recording sees (docs/trace.md).
 */
#ifndef EBB_MEMORY_FLOOR_H
#define EBB_MEMORY_FLOOR_H

#include <limits.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/host/cgroup.h"

struct memory_floor {
	int hold;               /* closed to give the memory back */
	pid_t keeper;           /* does so also when this process is killed; 0 = none */
};

/*
 * Limits @c to @bytes: on version 2 by memory.high, which kills nobody; on version 1
 * by memory.limit_in_bytes.  Refused (EXIT_REFUSED) when what it holds beyond that
 * does not fit on free swap, or when it has no more than that anyway.
 */
int memory_floor_set(struct memory_floor *f, const struct cgroup_ref *c, uint64_t bytes,
		     struct error *e);

/* As it was before; nothing for a zeroed one. */
void memory_floor_end(struct memory_floor *f);

#endif
