// SPDX-License-Identifier: GPL-2.0-only
/* Repeats recorded access patterns per thread; see replay.h. */
#include "replay.h"

enum { AHEAD, KEEP };

EBB_POLICY(replay, "learns and repeats any access pattern",
	EBB_PARAM(AHEAD, "ahead", 512, 16, 4096, "limit of pages requested ahead of a thread"),
	EBB_PARAM(KEEP, "keep", 2, 0, REPLAY_KEEP_MAX,
		  "consecutive passes without a fault on a page before replay forgets it"))

static __always_inline void replay_fault(const struct ebb_fault *f, const struct ebb_params *p)
{
	struct replay_thread *t = replay_observe(f, p->v[KEEP], p->v[AHEAD]);

	if (t)
		replay_ask(f, t, p->v[AHEAD]);
}
EBB_POLICY_STATELESS(replay, replay_fault)
