/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Walks of cgroups, without recursion: a user with a delegated one may nest thousands. */
#ifndef EBB_CGROUP_WALK_H
#define EBB_CGROUP_WALK_H

#include <limits.h>

/* What @each returns so that the cgroups below are left out. */
#define CGROUP_SKIP INT_MAX

/*
 * Calls @each with the directory @dir and those below it, parents first.  The children are listed
 * after the call: if @each adds a watch, a child that is created meanwhile is announced or listed.
 * Ends with the first result that is neither 0 nor CGROUP_SKIP, and returns that; or -ENOMEM,
 * -EMFILE or -ENFILE.
 */
int cgroup_walk(const char *dir, int (*each)(const char *dir, void *data), void *data);

#endif
