// SPDX-License-Identifier: GPL-2.0-only
/*
 * For managed runtimes: streams per thread, so that the collector's threads do
 * not spoil the program's, and what the collector drags in is made cold behind it.
 * Which threads collect is told by their names; see policies/algorithms.md.
 */
#include "collector.h"

enum { WINDOW, COLD };

EBB_POLICY(gcaware, "streams; what a collector's threads drag in is made cold again",
	EBB_PARAM(WINDOW, "window", 256, 4, EBB_REQUEST_MAX, "most pages a stream has ahead of it"),
	EBB_PARAM(COLD, "cold", 1, 0, 1, "0: the collector's pages are left where they are"))

struct gcaware {
	struct streams streams;
	struct collector collector;
};

static __always_inline void gcaware_fault(const struct ebb_fault *f, struct gcaware *s,
					  const struct ebb_params *p)
{
	enum stream_match match = streams_fault(f, &s->streams, p->v[WINDOW]);

	if (f->role == EBB_ROLE_GC && p->v[COLD])
		collector_fault(f, &s->streams, match, &s->collector);
}
EBB_POLICY_ENTRY(gcaware, struct gcaware, gcaware_fault)
