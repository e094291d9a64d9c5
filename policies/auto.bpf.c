// SPDX-License-Identifier: GPL-2.0-only
/*
 * The default: streams where a fault belongs to one, replay where it does not,
 * the rest of a block where the program goes round in it, a collector's threads
 * kept apart, and quiet where a miss costs next to nothing.
 *
 * Each part proves itself before it asks: a stream by equal steps, replay by
 * what it foresaw, a block by how much of those before was visited.  What none
 * foresees is left to the kernel.
 */
#include "collector.h"
#include "near.h"
#include "replay.h"

enum { WINDOW, AHEAD, KEEP, PAYS, COLD, NEAR };

EBB_POLICY(auto, "streams, replay, near or nothing, by what pays; collectors apart",
	EBB_PARAM(WINDOW, "window", 256, 4, EBB_REQUEST_MAX, "most pages a stream has ahead of it"),
	EBB_PARAM(AHEAD, "ahead", 512, 16, 4096, "most pages replay asks for ahead of a thread"),
	EBB_PARAM(KEEP, "keep", 2, 0, REPLAY_KEEP_MAX,
		  "times in a row that a page may go unseen before replay forgets it"),
	EBB_PARAM(PAYS, "pays", 4000, 0, 1000000, "ns: where a miss takes less, nothing is asked for"),
	EBB_PARAM(COLD, "cold", 1, 0, 1, "0: a collector's pages are left where they are"),
	EBB_PARAM(NEAR, "near", 1, 0, 1, "0: what lies around a miss is left to the kernel"))

#define MISSES_MIN 64           /* before their time is believed */
#define MISS_SHIFT 4            /* weight of a new one in the mean: 1/16 */

struct automatic {
	struct streams streams;
	struct collector collector;
	struct near near;
	__u32 misses;           /* that were timed; saturates */
	__u64 miss_ns;          /* their mean */
};

/* Whether a miss is so quick that bringing its page in ahead could gain nothing. */
static __always_inline int auto_quiet(const struct ebb_fault *f, struct automatic *s, __u64 pays)
{
	if (f->kind == EBB_MISS && f->duration_ns) {
		if (s->misses < MISSES_MIN)
			s->misses++;
		s->miss_ns += ((__s64)(f->duration_ns - s->miss_ns)) >> MISS_SHIFT;
	}
	return s->misses >= MISSES_MIN && s->miss_ns < pays;
}

/* Whether the fault before was what replay had foreseen: then so is this one, more often than not. */
static __always_inline int auto_replays(const struct ebb_fault *f)
{
	const struct replay_thread *t = replay_threads_at(f->tid);

	return t && t->foreseen && t->tid == f->tid && t->owner == replay_owner(f);
}

static __always_inline void auto_fault(const struct ebb_fault *f, struct automatic *s,
				       const struct ebb_params *p)
{
	enum stream_match match = STREAM_NONE;
	struct replay_thread *t;

	if (auto_quiet(f, s, p->v[PAYS]))
		return;
	if (!auto_replays(f) || streams_guess(&s->streams, f) < STREAMS)
		match = streams_fault(f, &s->streams, p->v[WINDOW]);
	if (f->role == EBB_ROLE_GC) {
		if (p->v[COLD])
			collector_fault(f, &s->streams, match, &s->collector);
		return;
	}
	if (match == STREAM_CONTINUED)
		return;
	t = replay_observe(f, p->v[KEEP], p->v[AHEAD]);
	if (t)
		replay_ask(f, t, p->v[AHEAD]);
	if (p->v[NEAR] && !(t && t->foreseen))
		near_fault(f, &s->near);
}
EBB_POLICY_ENTRY(auto, struct automatic, auto_fault)
