// SPDX-License-Identifier: GPL-2.0-only
/* Several concurrent strided streams; see streams.h. */
#include "streams.h"

enum { WINDOW };

EBB_POLICY(streams, "several concurrent strided streams, by thread and position",
	EBB_PARAM(WINDOW, "window", 256, 4, EBB_REQUEST_MAX, "limit of pages requested ahead of a stream"))

static __always_inline void streams_policy_fault(const struct ebb_fault *f, struct streams *s,
						 const struct ebb_params *p)
{
	streams_fault(f, s, p->v[WINDOW]);
}
EBB_POLICY_ENTRY(streams, struct streams, streams_policy_fault)
