/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The contents of `top`, computed from two snapshots (snapshot.h): pure functions. */
#ifndef EBB_TOP_MODEL_H
#define EBB_TOP_MODEL_H

#include <json-c/json.h>

/* The names of --sort, in the order of the key s. */
#define TOP_SORTS "misses|hits|late|wasted|in|out|coverage|accuracy|lateness|p50|p99|some|full|memory|policy|name"

enum top_order { TOP_USUAL, TOP_REVERSED };

struct top_wish {
	const char *sort;     /* one of TOP_SORTS */
	enum top_order order; /* default: largest number first, text from a to z */
	const char *filter;   /* part of a cgroup's name; "": all */
};

/*
 * Returns {"seconds", "wall_s", "ebbd", "cgroups", "devices", "donors"}; the caller owns it.
 * Rates are per second between the snapshots; null without @before, after a counter was
 * reset, and for a ratio with denominator 0.
 *
 *	ebbd     version, uptime_s, cgroups, calls_s, pages_s (prefetched), failed_s; or null
 *	cgroups  name, policy, misses_s, hits_s, late_s, wasted_s, in_s, out_s, coverage =
 *	         used/(used+misses), accuracy = used/(used+wasted), lateness = late/used with
 *	         used = hits+late, miss_p50_ns, miss_p99_ns, some, full (share of the time),
 *	         memory; sorted and filtered by @wish
 *	devices  name, state, used, size, io_s (requests), read_s, written_s (pages),
 *	         failed_s, live, mapped, missing (copies), donors ("2/3": up of all), waiting,
 *	         queue ("12/4096": backlog of the backup and its limit), read_p99_ns
 *	donors   address, device, transport, state, slabs, free, total, read_ns, losses
 */
struct json_object *top_frame(struct json_object *before, struct json_object *now,
			      const struct top_wish *wish);

/* Returns the sort name after @name, cyclically; a literal. */
const char *top_next_sort(const char *name);

#endif
