/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Measures the cost of a call of a policy before it is attached.
 *
 * The kernel has no test run for perf_event programs, and keeps no statistics for
 * programs entered by a tail call.  So a second instance with its own maps is attached
 * to a perf event of the calling thread, which causes page faults; for the policy each
 * is a generated fault of a regular or irregular access pattern.  The clock is
 * BPF_STATS_RUN_TIME, its own cost included.
 */
#ifndef EBB_POLICY_TRIAL_H
#define EBB_POLICY_TRIAL_H

#include "plane.h"

/* Fills in the static part, from a loaded program. */
void policy_cost_read(int program, struct policy_cost *cost);

/*
 * Measures @object, loaded with its own maps, under @params, for at most some 100 ms.
 * Returns -errno if the kernel does not allow the measurement.
 */
int policy_trial(struct bpf_object *object, const struct ebb_params *params,
		 struct policy_cost *cost);

#endif
