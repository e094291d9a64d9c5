// SPDX-License-Identifier: GPL-2.0-only
/* Many strided walks at once; see streams.h. */
#include "streams.h"

enum { WINDOW };

EBB_POLICY(streams, "many strided walks at once, told apart by thread and place",
	EBB_PARAM(WINDOW, "window", 256, 4, EBB_REQUEST_MAX, "most pages a stream has ahead of it"))

static __always_inline void streams_policy_fault(const struct ebb_fault *f, struct streams *s,
						 const struct ebb_params *p)
{
	streams_fault(f, s, p->v[WINDOW]);
}
EBB_POLICY_ENTRY(streams, struct streams, streams_policy_fault)
