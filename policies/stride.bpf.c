// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plain stride prefetcher, for comparison: accepts a stride after two equal deltas
 * and drops it after as many others.
 */
#include <ebb/policy.h>

enum { WINDOW };

EBB_POLICY(stride, "one stride per process; the window doubles while the stride holds",
	EBB_PARAM(WINDOW, "window", 64, 1, 1024, "limit of pages requested ahead of the process"))

#define TRUST 2                 /* equal deltas before the first request */
#define TRUST_MAX 8             /* bounds how long an ended stride is followed */

struct stride {
	__u64 last;             /* page of the last fault */
	__s64 stride;
	__u64 frontier;         /* last page requested; 0 = none */
	__u32 trust;
	__u32 window;
	__u32 cluster;          /* pages around last that the kernel read with it */
};

/* Returns whether faults still follow the stride; a new stride starts without confidence. */
static __always_inline int stride_holds(struct stride *s, __s64 delta)
{
	if (delta == s->stride) {
		if (s->trust < TRUST_MAX)
			s->trust++;
		return 1;
	}
	s->window /= 2;
	if (s->trust > 1) {
		s->trust--;
		return 0;
	}
	s->stride = delta;
	s->trust = 1;
	s->window = 0;
	s->frontier = 0;
	return 0;
}

static __always_inline void stride_fault(const struct ebb_fault *f, struct stride *s,
					 const struct ebb_params *p)
{
	__u64 max = p->v[WINDOW];
	__s64 delta = ebb_unhide(f->vpn - s->last, s->cluster);
	__u64 from = s->frontier;
	__s64 left;

	if (!delta)
		return;
	s->last = f->vpn;
	s->cluster = f->cluster;
	if (!stride_holds(s, delta) || s->trust < TRUST)
		return;

	left = ebb_steps(f->vpn, s->frontier, s->stride);
	if (left > (__s64)max)
		left = -1;
	if (left >= 0 && 2 * left > s->window)
		return;
	/* Not requested, or requested and missing: start at this page. */
	if (left < 0 || f->kind == EBB_MISS) {
		left = 0;
		from = f->vpn;
	}
	s->window = s->window ? 2 * s->window : 2;
	if (s->window > max)
		s->window = max;
	if (left < s->window)
		s->frontier = from + s->stride *
			ebb_prefetch(f, from + s->stride, s->stride, s->window - left);
}
EBB_POLICY_ENTRY(stride, struct stride, stride_fault)
