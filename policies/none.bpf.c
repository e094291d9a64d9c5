// SPDX-License-Identifier: GPL-2.0-only
/* Counts and times faults like any policy, but requests nothing: the baseline. */
#include <ebb/policy.h>

EBB_POLICY(none, "counts faults, prefetches nothing")

static __always_inline void none_fault(const struct ebb_fault *f, const struct ebb_params *p)
{
}
EBB_POLICY_STATELESS(none, none_fault)
