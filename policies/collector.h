/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a garbage collector drags in, made cold again behind it.
 *
 * Tracing touches every live object once: the pages it brings in are no more
 * likely to be used again than those they push out, and the program's own are
 * (MemLiner, OSDI 2022, section 2).  A stock kernel takes advice about pages, so
 * what a collector's thread faulted in is made the first to be reclaimed, some
 * faults later, when the thread is done with it.
 */
#ifndef EBB_COLLECTOR_H
#define EBB_COLLECTOR_H

#include "streams.h"

#define COLLECTOR_LAG 16        /* pages behind a collector's stream that are left alone */

/* Two lists: while one fills, the other is old enough by the time it is full. */
struct collector {
	__u64 page[2][EBB_LIST_MAX];
	__u32 n;                /* in the list that fills, from 0 to 2 * EBB_LIST_MAX - 1 for both */
	__u32 full;             /* whether the other one holds pages */
};

/* After streams_fault(), for a fault with EBB_ROLE_GC. */
static __always_inline void collector_fault(const struct ebb_fault *f, const struct streams *s,
					    enum stream_match match, struct collector *c)
{
	__u32 list = c->n / EBB_LIST_MAX & 1, other = 1 - list;

	if (match == STREAM_CONTINUED) {
		if (s->passed)
			/* Unsigned: page numbers from anywhere may wrap. */
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
