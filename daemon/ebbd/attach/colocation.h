/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Placement: a thread that makes programs of attached cgroups and the prefetch executor share one
 * CPU where that pays (lib/rules/colocate.h decides, affinity.h acts).
 *
 * Four times a second it measures each cgroup that pages.  Each cgroup has a CPU of its own where
 * there are enough; the executor moves to the CPU of the cgroup whose request it executes next, so
 * that one thread still executes all requests in their order.
 */
#ifndef EBB_COLOCATION_H
#define EBB_COLOCATION_H

#include "ebbd/prefetch/executor.h"
#include "lib/base/error.h"
#include "table.h"

struct colocation;

/* Restores first what an ebbd that crashed left.  The arguments outlive it. */
int colocation_start(struct colocation **c, struct attachments *a, const struct executor *x,
		     struct error *e);
/* Restores the affinity of all programs. */
void colocation_stop(struct colocation **c);
/* Returns "together", "no gain", ..., as in reports. */
const char *colocation_state_name(enum colocation_state state);

#endif
