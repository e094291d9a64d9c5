/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Drop-behind by huge pages: collects the windows (window.h) that a dense stream has passed until
 * there are enough for a call, collapses them, and pages them out before the next call, for which
 * they are the free capacity.  lib/rules/collapse.h decides, by what this file measures.
 *
 * Where nothing is collapsed (setting, kernel, limit, stride, switched off), each page is paged out
 * with the request that reports it as passed.  All functions belong to the executor's thread.
 */
#ifndef EBB_COLLAPSER_H
#define EBB_COLLAPSER_H

#include <ebb/abi.h>

#include "budget.h"
#include "leaf.h"
#include "settings.h"
#include "target.h"

struct collapser;

/*
 * @counted and @stats outlive it.  Logs why nothing is collapsed, if @wish is COLLAPSE_AUTO.  NULL
 * without memory.
 */
struct collapser *collapser_new(enum collapse_wish wish, const struct ebb_executor *counted,
				struct executor_stats *stats);
void collapser_free(struct collapser **c);

/* A process that a stream belongs to. */
struct collapse_job {
	struct target *target; /* used until collapser_forget() */
	struct budget *budget;
	struct leaf *leaf;
};

/* Pages out what is due behind the stream of @r, now or later; returns how many pages now. */
uint64_t collapser_behind(struct collapser *c, const struct collapse_job *j,
			  const struct ebb_request *r, uint64_t now);
/* Before @target is closed: pages out what its streams have passed, within limits. */
void collapser_forget(struct collapser *c, const struct target *target);
/* @target hangs: forgets it, without a call on it. */
void collapser_leave(struct collapser *c, const struct target *target);
/* Twice a second: pages out what streams have passed that no longer advance. */
void collapser_sweep(struct collapser *c, uint64_t now);

#endif
