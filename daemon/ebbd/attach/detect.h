/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The perf events of attached cgroups: which cgroup has them, and when hit detection is on.
 *
 * Events are scoped to the cgroup's directory in the v2 hierarchy, so that other tasks pay
 * nothing.  Nested cgroup events would fire once each, so only the outermost attached
 * cgroup has events; the BPF side finds the nearest.
 *
 * All functions: main thread, with the attachments' lock held.  The executor switches detection
 * on by itself (budget_detect()).
 */
#ifndef EBB_DETECT_H
#define EBB_DETECT_H

#include "table.h"

/* Opens missing events, and closes those that an ancestor has. */
int detect_rebalance(struct attachments *a, struct error *e);
/* The same at and below the path @rel, where an attachment was added, changed or removed. */
int detect_rebalance_below(struct attachments *a, const char *rel, struct error *e);
/* Closes the events of @t; on return the executor uses them no more. */
void detect_close(struct attachments *a, struct attachment *t);
/* Ten times a second: switches detection off after 2 s without need. */
void detect_tick(struct attachments *a);
/* Returns whether hit detection is on for @t. */
bool attachment_detecting(const struct attachment *t);

#endif
