/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Deactivates pages that garbage collectors swap in.
 *
 * Tracing touches every live object once: its pages are less likely to be used again
 * than the program's pages that they evict (MemLiner, OSDI 2022, section 2).  So
 * pages that a collector's thread faults on are deactivated some faults later, when
 * the thread has finished with them.
 */
#ifndef EBB_COLLECTOR_H
#define EBB_COLLECTOR_H

#include "streams.h"

#define COLLECTOR_LAG 16        /* pages behind a collector's stream that are left alone */

/* Two lists: when one is full, the other is old enough. */
struct collector {
	__u64 page[2][EBB_LIST_MAX];
	__u32 n; /* next free entry, 0 to 2 * EBB_LIST_MAX - 1 over both lists */
	__u32 full;             /* whether the other list holds pages */
};

/* Called after streams_fault(), for a fault with EBB_ROLE_GC. */
static __always_inline void collector_fault(const struct ebb_fault *f, const struct streams *s,
					    enum stream_match match, struct collector *c)
{
	__u32 list = c->n / EBB_LIST_MAX & 1, other = 1 - list;

	if (match == STREAM_CONTINUED) {
		if (s->passed)
			/* Unsigned, because differences of arbitrary page numbers may wrap. */
			ebb_cold(f, f->vpn - (__u64)s->passed_stride * (s->passed + COLLECTOR_LAG),
				 s->passed_stride, s->passed);
		return;
	}
	if (!f->vpn || f->vpn >= EBB_VPN_END)
		return;
	c->page[list][c->n % EBB_LIST_MAX] = f->vpn;
	c->n = (c->n + 1) % (2 * EBB_LIST_MAX);
	if (c->n % EBB_LIST_MAX)
		return;
	if (c->full)
		ebb_cold_list(f, c->page[other], EBB_LIST_MAX);
	c->full = 1;
}

#endif
