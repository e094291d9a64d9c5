/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Composition of the memory of a cgroup and its descendants. */
#ifndef EBB_CGROUP_MEMORY_H
#define EBB_CGROUP_MEMORY_H

#include <stdint.h>

/* Bytes. */
struct cgroup_memory {
	uint64_t anon;    /* anonymous, resident */
	uint64_t mapped;  /* file pages that a process maps */
	uint64_t kernel;  /* page tables, stacks, slab */
	uint64_t swapped; /* swapped out, without pages in the swap cache */
};

/*
 * Reads the directory @dir of the memory hierarchy, version 1 or 2; 0 for what the
 * kernel does not report.  Returns 0 or -errno.
 */
int cgroup_memory_read(const char *dir, struct cgroup_memory *m);

#endif
