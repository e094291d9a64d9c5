/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Cgroups with a memory controller, version 1 or 2.  libcgroup creates and limits
 * them; everything else is read from their files.
 */
#ifndef EBB_CGROUP_H
#define EBB_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/error.h"

struct cgroup_ref {
	char path[PATH_MAX];  /* canonical directory in the memory hierarchy */
	char rel[PATH_MAX];   /* path below that hierarchy's mount, "/..." */
	char twin[PATH_MAX];  /* directory of this name in the v2 hierarchy, "" if none;
			       * equals path on a v2 machine */
	uint64_t id;          /* inode of path, which is the kernfs id that BPF reads */
	bool v2;              /* the memory controller is on cgroup v2 */
};

/*
 * Resolves @name: an absolute directory below the memory hierarchy's mount (or
 * below the v2 hierarchy's, meaning its namesake), or a path relative to it
 * ("/spark.slice", "spark.slice").  Returns -ENOENT with the path that does not exist,
 * -EINVAL when the directory is no memory cgroup, EXIT_UNSUPPORTED without a controller.
 */
int cgroup_resolve(const char *name, struct cgroup_ref *c, struct error *e);

/* Finds the memory cgroup of a process; -ESRCH if it does not exist. */
int cgroup_of_process(int pid, struct cgroup_ref *c, struct error *e);

/*
 * Stores in @path the directories, which the caller frees, of the memory cgroups with the @n @ids;
 * NULL where no cgroup has the id.  One search of the hierarchy for all.
 */
void cgroup_find_ids(const uint64_t *ids, char **path, uint32_t n);

/*
 * Creates @rel ("/a/b", parents included) below the memory hierarchy and, on
 * v1, its twin in the v2 hierarchy when one is mounted (perf events can be
 * scoped to it).  Limits memory to @limit bytes (0 = none).  Returns -EEXIST if it
 * exists.  A failure leaves only parents behind.
 */
int cgroup_create(const char *rel, uint64_t limit, struct cgroup_ref *c, struct error *e);

/* Sets the limit of memory, in bytes; 0 = none. */
int cgroup_limit_set(const struct cgroup_ref *c, uint64_t limit, struct error *e);

/* Moves the calling process into @c and its twin. */
int cgroup_enter(const struct cgroup_ref *c, struct error *e);

/*
 * Removes directory and twin, with the cgroups that the program created below them.
 * Waits up to a second for exiting processes, then returns -EBUSY and names one that
 * still runs.  Succeeds when the cgroup does not exist.
 */
int cgroup_remove(const struct cgroup_ref *c, struct error *e);

/* Returns a process of the cgroup and its command in @comm, or 0 when it is empty. */
int cgroup_first_process(const struct cgroup_ref *c, char *comm, size_t size);

/*
 * Returns the smallest limit of the cgroup and its ancestors in bytes, of memory.max
 * and on v2 memory.high; UINT64_MAX = none.
 */
uint64_t cgroup_limit(const struct cgroup_ref *c);
/* Returns the limit of one directory alone, of the controller of version 2 if @v2. */
uint64_t cgroup_own_limit(const char *dir, bool v2);
/*
 * The limit of cgroup @dir itself on swap, or in version 1 on memory and swap together, and what
 * counts against it, bytes.  UINT64_MAX: no limit.
 */
uint64_t cgroup_own_swap_limit(const char *dir, bool v2);
uint64_t cgroup_swap_usage(const char *dir, bool v2);
uint64_t cgroup_usage(const struct cgroup_ref *c);
uint64_t cgroup_peak(const struct cgroup_ref *c);      /* 0 if the kernel does not report it */
uint64_t cgroup_oom_kills(const struct cgroup_ref *c);

/*
 * Calls @each with the directory of every memory cgroup, parents first.  Returns like
 * cgroup_walk().
 */
int cgroup_each(int (*each)(const char *dir, void *data), void *data);

#endif
