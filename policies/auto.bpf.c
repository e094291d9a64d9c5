// SPDX-License-Identifier: GPL-2.0-only
/*
 * The default policy.  A fault goes to streams if it belongs to one, else to replay.
 * Misses that neither predicts may request the rest of their block (near.h).
 * Threads of collectors are separate.  While misses are cheap, it requests nothing.
 *
 * Each part must prove itself before it requests: a stream by equal steps, replay
 * by predicted faults, a block by the used share of earlier blocks.  Unpredicted
 * faults are left to the kernel.
 */
#include "collector.h"
#include "near.h"
#include "replay.h"

enum { WINDOW, AHEAD, KEEP, PAYS, COLD, NEAR };

EBB_POLICY(auto, "streams, learned patterns, nearby pages or nothing; treats collectors separately",
	EBB_PARAM(WINDOW, "window", 256, 4, EBB_REQUEST_MAX, "limit of pages requested ahead of a stream"),
	EBB_PARAM(AHEAD, "ahead", 512, 16, 4096, "limit of pages that replay requests ahead of a thread"),
	EBB_PARAM(KEEP, "keep", 2, 0, REPLAY_KEEP_MAX,
		  "consecutive passes without a fault on a page before replay forgets it"),
	EBB_PARAM(PAYS, "pays", 4000, 0, 1000000, "ns: request nothing while misses take less"),
	EBB_PARAM(COLD, "cold", 1, 0, 1, "1: deactivate pages of garbage collectors"),
	EBB_PARAM(NEAR, "near", 1, 0, 1, "1: request nearby pages of unpredicted misses"))

#define MISSES_MIN 64           /* samples before the mean is used */
#define MISS_SHIFT 4            /* weight of a new miss in the mean: 1/16 */

struct automatic {
	struct streams streams;
	struct collector collector;
	struct near near;
	__u32 misses;           /* timed misses; saturates */
	__u64 miss_ns;          /* mean duration of a miss, ns */
};

/* Returns whether misses are so fast that prefetching gains nothing. */
static __always_inline int auto_quiet(const struct ebb_fault *f, struct automatic *s, __u64 pays)
{
	if (f->kind == EBB_MISS && f->duration_ns) {
		if (s->misses < MISSES_MIN)
			s->misses++;
		s->miss_ns += ((__s64)(f->duration_ns - s->miss_ns)) >> MISS_SHIFT;
	}
	return s->misses >= MISSES_MIN && s->miss_ns < pays;
}

/* Returns whether replay predicted the previous fault: it then mostly predicts the next, too. */
EBB_SUBPROGRAM int auto_replays(__u32 tid, __u64 owner)
{
	__u32 at = replay_slot(tid, owner);
	const struct replay_thread *t = at < REPLAY_THREADS ? replay_threads_at(at) : NULL;

	return t && t->foreseen;
}

static __always_inline void auto_fault(const struct ebb_fault *f, struct automatic *s,
				       const struct ebb_params *p)
{
	enum stream_match match = STREAM_NONE;
	struct replay_thread *t;

	if (auto_quiet(f, s, p->v[PAYS]))
		return;
	if (!auto_replays(f->tid, replay_owner(f)) || streams_guess(&s->streams, f) < STREAMS)
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
