/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * placement=together and auto: a thread that makes programs of attached cgroups and the prefetch
 * executor share one CPU (affinity.h).
 *
 * It waits for placement=together, or for a cgroup with placement=auto that swaps, and then looks
 * four times a second.  Each cgroup has a CPU of
 * its own where there are enough; the executor moves to the CPU of the cgroup whose request it
 * executes next, so that one thread still executes all requests in their order.
 */
#ifndef EBB_COLOCATION_H
#define EBB_COLOCATION_H

#include "lib/base/error.h"
#include "table.h"

struct colocation;

/* Before the BPF programs are loaded: restores the affinities that an ebbd that crashed has set. */
void colocation_recover(void);
/* The arguments outlive it. */
int colocation_start(struct colocation **c, struct attachments *a, struct error *e);
/* Restores the affinity of all programs. */
void colocation_stop(struct colocation **c);
/* Returns "together", "apart", ..., as in reports. */
const char *colocation_state_name(enum colocation_state state);

#endif
