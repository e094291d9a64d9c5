/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Drop-behind by huge pages: collects the windows of 2 MiB that a dense stream has passed, several
 * for a call, collapses them, and pages them out before the next call, for which they are the free
 * capacity.  lib/rules/collapse.h decides, by what this file measures.
 *
 * Where nothing is collapsed (setting, kernel, limit, stride, switched off) the same pages leave at
 * the same time as small ones.  All functions belong to the executor's thread.
 */
#ifndef EBB_COLLAPSER_H
#define EBB_COLLAPSER_H

#include <ebb/abi.h>

#include "budget.h"
#include "leaf.h"
#include "settings.h"
#include "target.h"

struct collapser;

/* @counted and @stats outlive it.  Logs if @wish cannot be fulfilled.  NULL without memory. */
struct collapser *collapser_new(enum collapse_wish wish, const struct ebb_executor *counted,
				struct executor_stats *stats);
void collapser_free(struct collapser **c);

/* A process that a stream belongs to; @target stays at its address, with changing content. */
struct collapse_job {
	struct target *target;
	struct budget *budget;
	struct leaf *leaf;
};

/* Pages out what is due behind the stream of @r; returns the number of pages. */
uint64_t collapser_behind(struct collapser *c, const struct collapse_job *j,
			  const struct ebb_request *r, uint64_t now);
/* Twice a second: pages out what streams have left that no longer advance. */
void collapser_sweep(struct collapser *c, uint64_t now);

#endif
