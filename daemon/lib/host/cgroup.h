/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Cgroups with a memory controller, version 1 or 2.  Creation and limits go
 * through libcgroup; what it does not offer is read from the files.
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
	char twin[PATH_MAX];  /* directory of the same name in the v2 hierarchy, "" if none;
			       * on a v2 machine the same as path */
	uint64_t id;          /* inode of path = kernfs id = what BPF sees */
	bool v2;              /* the memory controller is on cgroup v2 */
};

/*
 * Resolves @name: an absolute directory below the memory hierarchy's mount (or
 * below the v2 hierarchy's, meaning its namesake), or a path relative to it
 * ("/spark.slice", "spark.slice").  -ENOENT says where it looked, -EINVAL when
 * the directory is no memory cgroup, EXIT_UNSUPPORTED without a controller.
 */
int cgroup_resolve(const char *name, struct cgroup_ref *c, struct error *e);

/* The memory cgroup with that id; -ENOENT, without a message, if there is none. */
int cgroup_by_id(uint64_t id, struct cgroup_ref *c, struct error *e);

/*
 * Creates @rel ("/a/b", parents included) below the memory hierarchy and, on
 * v1, its twin in the v2 hierarchy when one is mounted (perf events can be
 * scoped to it).  Limits memory to @limit bytes (0 = none).  -EEXIST if it is
 * there.  Leaves nothing behind on failure but parents.
 */
int cgroup_create(const char *rel, uint64_t limit, struct cgroup_ref *c, struct error *e);

/* Sets the limit of memory, in bytes; 0 = none. */
int cgroup_limit_set(const struct cgroup_ref *c, uint64_t limit, struct error *e);

/* Moves the calling process in, twin included. */
int cgroup_enter(const struct cgroup_ref *c, struct error *e);

/*
 * Removes directory and twin, with cgroups the program made below them; waits
 * up to a second for processes on their way out, then -EBUSY names those still
 * inside.  No error when it is gone already.
 */
int cgroup_remove(const struct cgroup_ref *c, struct error *e);

/* The first process inside, 0 when there is none; its command goes to @comm. */
int cgroup_first_process(const struct cgroup_ref *c, char *comm, size_t size);

/*
 * Bytes: smallest limit of the cgroup and its ancestors, on v2 memory.high as
 * well as memory.max; UINT64_MAX = none.
 */
uint64_t cgroup_limit(const struct cgroup_ref *c);
uint64_t cgroup_usage(const struct cgroup_ref *c);
uint64_t cgroup_peak(const struct cgroup_ref *c);      /* 0 where the kernel does not tell */
uint64_t cgroup_oom_kills(const struct cgroup_ref *c);

/*
 * Calls @each for every memory cgroup, parents first, with its directory; stops
 * when it returns non-zero and returns that.
 */
int cgroup_each(int (*each)(const char *dir, void *data), void *data);

/*
 * Mount points, NULL when there is none: memory controller (@v2 may be NULL),
 * and the v2 hierarchy.  In static buffers, read from the mount table each time.
 */
const char *cgroup_memory_mount(bool *v2);
const char *cgroup_unified_mount(void);

#endif
