/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Near: requests the block around a miss, for programs that access nearby pages at
 * random: objects allocated together, clusters of a graph.  The simplest case of
 * spatial memory streaming (Somogyi et al., ISCA 2006): a whole block or nothing.
 *
 * Measurement does not depend on requests.  A miss in a block without a recent miss
 * begins a visit; a group of the block's pages counts as used if a fault touches it
 * before the visit is old.  A group has as many pages as the kernel reads with a
 * miss: the kernel reads all of a touched group anyway, so prefetching it adds no
 * I/O.  Blocks are requested while at least half of the groups are used.
 */
#ifndef EBB_NEAR_H
#define EBB_NEAR_H

#include <ebb/policy.h>

#define NEAR_BLOCK 32           /* pages */
#define NEAR_GROUP 8            /* pages */
#define NEAR_VISITS 64          /* blocks watched at once, and visits after which one is old */
#define NEAR_PROOF 96           /* awaited groups before the used share counts */
#define NEAR_MEMORY 384         /* awaited groups after which older ones count half */

struct near_visit {
	__u64 block;            /* 1 + its number in the address space; 0 = unused */
	__u32 touched;          /* bitmap of groups */
	__u32 begun;            /* value of near.visits at its start */
};

struct near {
	struct near_visit visit[NEAR_VISITS];
	__u32 visits;
	__u32 awaited;          /* groups that could have been used */
	__u32 came;             /* used ones of them */
};

/* Learns from a fault that neither streams nor replay predicts; only misses begin a visit. */
static __always_inline void near_fault(const struct ebb_fault *f, struct near *s)
{
	__u64 block = f->vpn / NEAR_BLOCK + 1;
	__u32 group = 1u << (f->vpn % NEAR_BLOCK / NEAR_GROUP);
	struct near_visit *v = &s->visit[(block ^ block / NEAR_VISITS) % NEAR_VISITS];

	if (v->block == block && s->visits - v->begun < NEAR_VISITS) {
		s->came += !(v->touched & group);
		v->touched |= group;
		return;
	}
	if (f->kind != EBB_MISS)
		return;
	v->block = block;
	v->touched = group;
	v->begun = ++s->visits;
	s->awaited += NEAR_BLOCK / NEAR_GROUP - 1;
	if (s->awaited > NEAR_MEMORY) {
		s->awaited /= 2;
		s->came /= 2;
	}
	if (s->awaited < NEAR_PROOF || 2 * s->came < s->awaited)
		return;
	if (f->room && f->room < NEAR_BLOCK)
		return;
	ebb_prefetch_from(f, EBB_SOURCE_NEAR,
			  (struct ebb_range){ (block - 1) * NEAR_BLOCK, 1, NEAR_BLOCK });
}

#endif
