// SPDX-License-Identifier: GPL-2.0-only
/*
 * For managed runtimes: streams per thread, so that the collector's threads do not
 * disturb the program's; pages that the collector swaps in are deactivated behind it.
 * Collector threads are recognized by name; see policies/algorithms.md.
 */
#include "collector.h"

enum { WINDOW, COLD };

EBB_POLICY(gcaware, "streams; deactivates pages that garbage collector threads swap in",
	EBB_PARAM(WINDOW, "window", 256, 4, EBB_REQUEST_MAX, "limit of pages requested ahead of a stream"),
	EBB_PARAM(COLD, "cold", 1, 0, 1, "1: deactivate pages of garbage collectors"))

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
