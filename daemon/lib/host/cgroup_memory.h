/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the memory of a cgroup and all below it consists of right now. */
#ifndef EBB_CGROUP_MEMORY_H
#define EBB_CGROUP_MEMORY_H

#include <stdint.h>

/* Bytes. */
struct cgroup_memory {
	uint64_t anon;    /* anonymous, local */
	uint64_t mapped;  /* of files, mapped by a process */
	uint64_t kernel;  /* page tables, stacks, slab */
	uint64_t swapped; /* out; a page in memory whose copy on swap is still good is not */
};

/*
 * Reads it for the directory @dir of the memory hierarchy, version 1 or 2; what
 * the kernel does not tell is 0.  0, or -errno.
 */
int cgroup_memory_read(const char *dir, struct cgroup_memory *m);

#endif
