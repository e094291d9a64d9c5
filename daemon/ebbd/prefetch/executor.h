/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The prefetch executor: a thread that reads the policies' requests from the
 * ring buffer and executes them in sequence (prefetch.h).
 */
#ifndef EBB_EXECUTOR_H
#define EBB_EXECUTOR_H

#include "budget.h"
#include "lib/rules/liveness.h"
#include "settings.h"

struct executor;

/* @plane and @budgets outlive it. */
int executor_start(struct executor **x, struct plane *plane, struct budget_table *budgets,
		   const struct executor_config *config, struct error *e);
void executor_stop(struct executor **x);
/* Its thread's progress: at least twice a second, unless a call does not return. */
struct liveness *executor_liveness(struct executor *x);
/* Returns the process that the thread prefetched for last; 0 = none. */
uint32_t executor_at(const struct executor *x);
/* Returns how prefetches from device @dev, major << 20 | minor, are limited. */
struct device_view executor_pace(const struct executor *x, uint32_t dev);
void executor_read_stats(const struct executor *x, struct executor_stats *s);

#endif
