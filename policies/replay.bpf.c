// SPDX-License-Identifier: GPL-2.0-only
/* Follows what each thread did the last time it was here; see replay.h. */
#include "replay.h"

enum { AHEAD, KEEP };

EBB_POLICY(replay, "repeats the order of faults that was seen before, whatever it is",
	EBB_PARAM(AHEAD, "ahead", 512, 16, 4096, "most pages asked for ahead of a thread"),
	EBB_PARAM(KEEP, "keep", 2, 0, REPLAY_KEEP_MAX,
		  "times in a row that a page may go unseen before it is forgotten"))

static __always_inline void replay_fault(const struct ebb_fault *f, const struct ebb_params *p)
{
	struct replay_thread *t = replay_observe(f, p->v[KEEP], p->v[AHEAD]);

	if (t)
		replay_ask(f, t, p->v[AHEAD]);
}
EBB_POLICY_STATELESS(replay, replay_fault)
