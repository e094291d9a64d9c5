/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a call of a policy costs, measured before it meets a program.
 *
 * The kernel has no test run for perf_event programs, and keeps no statistics
 * for those entered by a tail call.  So a second instance with maps of its own
 * is attached to a perf event of the calling thread, which takes page faults for
 * that purpose; each is a made-up fault to the policy, of regular and
 * irregular walks.  The clock is BPF_STATS_RUN_TIME, its own cost included.
 */
#ifndef EBB_POLICY_TRIAL_H
#define EBB_POLICY_TRIAL_H

#include "plane.h"

/* The static part, of a loaded program. */
void policy_cost_read(int program, struct policy_cost *cost);

/*
 * Measures @object, loaded with maps of its own, with @params in force; at most
 * some 100 ms.  -errno where the kernel does not allow measuring.
 */
int policy_trial(struct bpf_object *object, const struct ebb_params *params,
		 struct policy_cost *cost);

#endif
