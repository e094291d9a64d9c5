/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The prefetch executor: a thread that reads the policies' requests from the
 * ring buffer and executes them in sequence (prefetch.h).
 */
#ifndef EBB_EXECUTOR_H
#define EBB_EXECUTOR_H

#include "budget.h"
#include "settings.h"
#include "worker.h"

struct executor;

/* @plane and @budgets outlive it. */
int executor_start(struct executor **x, struct plane *plane, struct budget_table *budgets,
		   const struct executor_config *config, struct error *e);
void executor_stop(struct executor **x);
struct worker *executor_worker(struct executor *x);
/* Returns how prefetches from device @dev, major << 20 | minor, are limited. */
struct device_view executor_pace(const struct executor *x, uint32_t dev);
void executor_read_stats(const struct executor *x, struct executor_stats *s);

#endif
