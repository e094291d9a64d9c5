/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Where the cgroup hierarchies are mounted. */
#ifndef EBB_CGROUP_MOUNT_H
#define EBB_CGROUP_MOUNT_H

#include <stdbool.h>

/*
 * Mount points of the memory controller and of the v2 hierarchy; NULL where there is none.  *@v2
 * (may be NULL) says whether the memory controller is on v2.  Both return static buffers that
 * the next call overwrites, and read the mount table each time.
 */
const char *cgroup_memory_mount(bool *v2);
const char *cgroup_unified_mount(void);

#endif
