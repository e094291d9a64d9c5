/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Mount points of the cgroup hierarchies, and the memory of a cgroup by its files. */
#ifndef EBB_CGROUP_FILES_H
#define EBB_CGROUP_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Mount points of the memory controller and of the v2 hierarchy; NULL where there is none.  *@v2
 * (may be NULL) says whether the memory controller is on v2.  Any thread may call
 * them.  A mount point, once found, stays the same until the program ends.
 */
const char *cgroup_memory_mount(bool *v2);
const char *cgroup_unified_mount(void);

/* Memory of a cgroup, bytes. */
struct cgroup_memory {
	uint64_t anon;    /* anonymous, resident */
	uint64_t shared;  /* tmpfs and shared anonymous memory, resident */
	uint64_t mapped;  /* file pages that a process maps */
	uint64_t kernel;  /* page tables, stacks, slab */
	uint64_t cached;  /* in the swap cache */
	uint64_t swapped; /* swapped out, without pages in the swap cache */
};

/*
 * Reads the directory @dir of the memory hierarchy, version 1 or 2; values that the kernel does not
 * report are 0.  Returns 0 or -errno.
 */
int cgroup_memory_read(const char *dir, struct cgroup_memory *m);

/*
 * Stores the CPUs that the cpuset of process @pid allows in @list, such as "0-3,8".  -ENOENT: no
 * cpuset restricts it.
 */
int cgroup_cpus(int pid, char *list, size_t size);

/* Returns the number after @key at the start of a line of @text, or 0. */
uint64_t cgroup_stat(const char *text, const char *key);

#endif
