/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Streams: several concurrent strided scans of one process, distinguished by thread and
 * position.  The algorithm of the policy streams, and part of gcaware and auto.
 *
 * A fault continues the stream of its thread behind it, if it is on the stride and within
 * reach; otherwise it trains a stream that has no stride yet and whose last page is near;
 * otherwise it replaces the stream that was idle longest.  Deltas are within a stream, so
 * that no vote has to find one scan among many.
 */
#ifndef EBB_STREAMS_H
#define EBB_STREAMS_H

#include <ebb/policy.h>

#define STREAMS 32
#define GUESSES 16
#define STREAM_NEAR 1024        /* pages: longest first stride */
#define STREAM_FIRST 4          /* pages of the first request */
#define STREAM_TRAINS 256       /* most faults of the process between two that train a stream */
#define STREAM_COARSER 3        /* equal steps over pages of a stream that start another stream */
#define STREAM_AGAIN 32         /* consecutive misses on requested pages before a new request */
#define STREAM_REACH 8          /* strides past the window that still continue a stream */
#define STREAM_LEAP 8192        /* most further ones for a long stream: resident pages are unseen */
#define STREAM_AGE_SHIFT 6      /* a stream with a stride ages 64 times as slowly */
#define STREAM_IDLE 2048        /* faults after which an idle stream has no share in room */
#define STREAM_SPAN 1024        /* faults between two counts of those that continue a stream */
#define STREAM_RARE 64          /* if fewer do, a search per fault does not pay: */
#define STREAM_REST 512         /* then, out of this many faults, */
#define STREAM_BURST 64         /* only this many in a row search for a stream */
#define STREAM_JUDGE 256        /* pages requested between two checks of the used share */

struct stream {
	__u64 last;             /* newest page */
	__s64 stride;           /* 0 = not known yet */
	/* For stream_on(): the stride is (low + 1) * odd. */
	__u64 inverse;          /* of odd, modulo 2^64 */
	__u64 low;
	__u64 reach;            /* pages ahead of last that still belong to it, over odd */
	__u64 frontier;         /* last page requested */
	struct ebb_walk walk;
	__s64 delta[3];         /* newest deltas, while there is no stride */
	__u32 tid;              /* 0 = unused */
	__u32 used;             /* clock of its newest fault */
	__u32 seen;             /* faults since it got its stride */
	__u32 window;           /* pages to keep in flight */
	__u32 lost;             /* consecutive misses on the stream */
	__u32 cluster;          /* pages around last that the kernel read with it */
	__u32 step, same;       /* newest step in strides, and equal steps before it */
};

struct streams {
	struct stream stream[STREAMS];
	__u32 clock;            /* faults */
	__u32 active;           /* 1 + streams with a stride that moved recently */
	__u32 kin; /* the faulting thread's newest stream with a stride, or STREAMS */
	__u32 asked, used;      /* pages since the last check (STREAM_JUDGE) */
	__u32 doubt;            /* 1: few requested pages are used; require more proof */
	__u32 continued;        /* faults that continued a stream in this STREAM_SPAN */
	__u32 rare;             /* 1: fewer than STREAM_RARE do */
	/* Streams to try before searching all, by thread and by address. */
	__u8 by_thread[GUESSES], by_place[GUESSES];
	/* Pages passed by the stream that requested at this fault, and its stride; 0 = none. */
	__u32 passed;
	__s64 passed_stride;
	/* For strides longer than STREAM_NEAR: the last fault that belonged to no stream. */
	__u32 far_tid;
	__u64 far_last;
	__s64 far_delta;
};

/* Relation of a fault to the streams. */
enum stream_match { STREAM_NONE, STREAM_TRAINING, STREAM_CONTINUED };

static __always_inline __u64 stream_ahead(const struct stream *st, __u64 vpn)
{
	return st->stride < 0 ? st->last - vpn : vpn - st->last;
}

static __always_inline void stream_grow(struct stream *st, __u64 max)
{
	__u64 window = st->window ? 2 * (__u64)st->window : STREAM_FIRST;

	/* Bounded by the stream's faults: a short scan must not take a long one's window. */
	if (window > 2 * (__u64)st->seen)
		window = 2 * (__u64)st->seen;
	st->window = window < max ? window : max;
}

/*
 * Fills the window ahead of @f once half of it is used.  After a whole window of
 * misses on requested pages (requests dropped, or pages evicted before use), it
 * requests only occasionally.
 */
static __always_inline void stream_ask(const struct ebb_fault *f, struct streams *s,
				       struct stream *st, __u64 max)
{
	__s64 left = ebb_steps(f->vpn, st->frontier, st->stride);
	__u64 from = st->frontier, n, passed;

	/* Misses during a pause say nothing of its requests. */
	if (ebb_paused(f, EBB_SOURCE_STREAMS)) {
		st->lost = 0;
		return;
	}
	if (left < 0 || left > 4 * EBB_REQUEST_MAX)
		left = 0;
	/*
	 * The stream misses despite pages in flight: request again, but not each
	 * time, because a program that outruns ebbd misses queued pages.
	 */
	if (2 * left > st->window && st->lost % STREAM_AGAIN != STREAM_AGAIN - 1)
		return;
	if (st->lost > max) {
		if (st->lost < 8 * max)
			return;
		st->lost = 0;
		st->window = 0;
	}
	stream_grow(st, max);
	if (!left || f->kind == EBB_MISS) {
		from = f->vpn;
		left = 0;
	}
	if (left >= st->window)
		return;
	passed = ebb_walk_to(&st->walk, f->vpn, st->stride);
	s->passed = passed;
	s->passed_stride = st->stride;
	n = ebb_prefetch_stream(f, (struct ebb_range){ from + st->stride, st->stride,
						       st->window - left },
				ebb_walk_run(&st->walk), passed);
	st->frontier = from + st->stride * (__s64)n;
	st->reach = (st->low + 1) *
		    (st->window + STREAM_REACH + (st->seen < STREAM_LEAP ? st->seen : STREAM_LEAP));
	s->asked += n;
}

static __always_inline void stream_begin(struct stream *st, __s64 stride, __u32 seen)
{
	__u64 step = stride ? ebb_magnitude(stride) : 1, odd, inverse;

	st->low = (step & -step) - 1;
	/* Newton's iteration doubles the right bits; an odd number is its own inverse mod 8. */
	odd = step / (st->low + 1);
	inverse = odd;
	for (int bits = 3; bits < 64; bits *= 2)
		inverse *= 2 - odd * inverse;
	st->inverse = inverse;
	st->stride = stride;
	st->seen = seen;
	st->window = 0;
	st->lost = 0;
	st->frontier = 0;
	st->step = 0;
	st->same = 0;
}

/*
 * Adds a delta to a stream without a stride, whose newest fault was at `before`;
 * returns whether it now has one.  A scan that has moved here since then needs only one
 * matching step; it keeps its length, and its old position must not match other faults.
 */
static __always_inline int stream_train(struct streams *s, struct stream *st, __s64 delta,
					__u32 before)
{
	__u32 same = (delta == st->delta[0]) + (delta == st->delta[1]) + (delta == st->delta[2]);
	/* Masked: the verifier of Linux 6.1 loses the bound of a comparison. */
	struct stream *kin = &s->stream[s->kin % STREAMS];
	__u32 moved = s->kin < STREAMS && kin->stride == delta && (__s32)(kin->used - before) < 0;

	st->delta[2] = st->delta[1];
	st->delta[1] = st->delta[0];
	st->delta[0] = delta;
	/* Among random nearby pages, two equal deltas are common, except deltas of one page. */
	if (!moved && same < 1 + (ebb_magnitude(delta) > 1) + s->doubt)
		return 0;
	stream_begin(st, delta, 1 + same);
	st->walk = (struct ebb_walk){ 0 };
	if (moved) {
		st->walk = kin->walk;
		st->seen += kin->seen / 4;
		kin->tid = 0;
	}
	return 1;
}

static __always_inline void streams_judge(struct streams *s, __u32 kind)
{
	if (kind != EBB_MISS)
		s->used++;
	if (s->asked < STREAM_JUDGE)
		return;
	s->doubt = 2 * s->used < s->asked;
	s->asked = 0;
	s->used = 0;
}

/*
 * Returns 1 if ahead is a multiple of the stride and within reach, else 0, without a
 * division: a multiple of odd times the inverse is the quotient, any other number
 * becomes a huge one.
 */
static __always_inline __u64 stream_on(const struct stream *st, __u64 ahead)
{
	__u64 quotient = ahead * st->inverse;

	return (1 - ebb_differ(ahead & st->low, 0)) & (1 - (quotient >> 63)) &
	       ebb_less(quotient, st->reach + 1);
}

/* Flag of a score: the fault is not on this stream, but may replace it. */
#define SCORE_IDLE (1ULL << 62)

/*
 * Returns a score, lower is better: first streams that the fault may continue or train,
 * by distance, then the others, longest idle first, then index.  Without branches: the
 * verifier would follow every combination of them.
 */
static __always_inline __u64 stream_score(const struct stream *st, __u32 i, __u64 vpn, __u32 tid,
					  __u32 clock)
{
	__s64 d = vpn - st->last;
	__u64 mine = 1 - ebb_differ(st->tid, tid), known = ebb_differ(st->stride, 0);
	__u64 backward = -((__u64)st->stride >> 63), below = -((__u64)d >> 63);
	__u64 ahead = (d ^ backward) - backward, distance = (d ^ below) - below;
	__u32 age = clock - st->used;
	__u64 proven = ebb_less(STREAMS, st->seen) * STREAM_AGE_SHIFT;
	__u64 youth = (__u32)~(age >> proven) & -ebb_differ(st->tid, 0);
	__u64 continued = mine & known & stream_on(st, ahead);
	__u64 near = mine & ~known & ebb_less(distance, STREAM_NEAR + 1);

	return (-(continued | near) & distance << 8) |
	       (-(1 - continued - near) & (SCORE_IDLE | youth << 8)) | i;
}

/* Returns age and index of the thread's streams with a stride; a larger value for others. */
static __always_inline __u64 stream_age(const struct stream *st, __u32 i, __u32 tid, __u32 clock)
{
	__u64 other = ebb_differ(st->tid, tid) | (1 - ebb_differ(st->stride, 0));

	return (__u64)(__u32)(clock - st->used) << 8 | i | -other >> 2;
}

/* Returns the best score; counts the streams with a share in room. */
EBB_SUBPROGRAM __u64 streams_best(struct streams *s, __u64 vpn, __u32 tid)
{
	__u64 best = ~0ULL >> 1, kin = ~0ULL >> 1;
	__u32 active = 1;

	if (!s)
		return best;
	EBB_ROLLED
	for (__u32 i = 0; i < STREAMS; i++) {
		const struct stream *st = &s->stream[i];

		best = ebb_min(stream_score(st, i, vpn, tid, s->clock), best);
		kin = ebb_min(stream_age(st, i, tid, s->clock), kin);
		active += ebb_differ(st->stride, 0) & ebb_less(s->clock - st->used, STREAM_IDLE);
	}
	s->active = active;
	s->kin = kin & 0xff;
	return best;
}

/* Returns whether a thread's last unassigned faults are one long stride apart, twice. */
static __always_inline int stream_far(struct streams *s, const struct ebb_fault *f)
{
	__s64 delta = s->far_tid == f->tid ? f->vpn - s->far_last : 0;
	int far = delta && delta == s->far_delta && ebb_magnitude(delta) > STREAM_NEAR;

	s->far_tid = f->tid;
	s->far_last = f->vpn;
	s->far_delta = delta;
	return far;
}

/*
 * Detects a scan with longer strides on the grid of an old stream: each of its pages
 * continues that stream, and most requested pages are never touched.  Strides over
 * pages that the kernel read with a miss are not the program's.
 */
static __always_inline int stream_coarser(struct stream *st, __u64 steps)
{
	if (steps < 2 || (st->cluster > 1 && steps < 2 * (__u64)st->cluster) || steps != st->step) {
		st->step = steps < STREAM_NEAR ? steps : 0;
		st->same = 0;
		return 0;
	}
	if (++st->same < STREAM_COARSER)
		return 0;
	st->walk = (struct ebb_walk){ 0 };
	stream_begin(st, (__s64)((__u64)st->stride * steps), STREAM_COARSER);
	st->same = 0;
	return 1;
}

/* Returns whether the fault is one of the next few steps of stream i. */
static __always_inline int stream_next(const struct streams *s, __u32 i, const struct ebb_fault *f)
{
	const struct stream *st = &s->stream[i % STREAMS];
	__u64 ahead = stream_ahead(st, f->vpn);

	return st->tid == f->tid && st->stride &&
	       ahead <= STREAM_REACH * ebb_magnitude(st->stride) && stream_on(st, ahead);
}

/* Guesses the stream that the fault continues; returns its index, or STREAMS. */
static __always_inline __u64 streams_guess(const struct streams *s, const struct ebb_fault *f)
{
	__u32 i = s->by_thread[f->tid % GUESSES];

	if (stream_next(s, i, f))
		return i % STREAMS;
	i = s->by_place[f->vpn / STREAM_NEAR % GUESSES];
	return stream_next(s, i, f) ? i % STREAMS : STREAMS;
}

/* Returns whether to search all streams: for random accesses that costs more than it gains. */
static __always_inline int streams_search(const struct streams *s)
{
	return !s->rare || s->clock % STREAM_REST < STREAM_BURST;
}

static __always_inline void streams_tick(struct streams *s)
{
	if (++s->clock % STREAM_SPAN)
		return;
	s->rare = s->continued < STREAM_RARE;
	s->continued = 0;
}

static __always_inline enum stream_match streams_fault(const struct ebb_fault *f, struct streams *s,
						       __u64 max)
{
	struct stream *st;
	__u64 best, steps;
	__s64 delta;
	__u32 i;

	streams_tick(s);
	s->passed = 0;
	best = streams_guess(s, f);
	if (best >= STREAMS) {
		if (!streams_search(s))
			return STREAM_NONE;
		best = streams_best(s, f->vpn, f->tid);
	}
	i = best & 0xff;
	if (i >= STREAMS)
		return STREAM_NONE;
	st = &s->stream[i];
	if (f->room && s->active && max > f->room / s->active)
		max = f->room / s->active;
	if (max < STREAM_FIRST)
		max = STREAM_FIRST;
	streams_judge(s, f->kind);

	if (best < SCORE_IDLE && st->stride) {
		steps = stream_ahead(st, f->vpn) / ebb_magnitude(st->stride);
		st->lost = f->kind == EBB_MISS ? st->lost + 1 : 0;
		st->last = f->vpn;
		st->used = s->clock;
		/* A long step jumps over resident pages or is chance: the next faults decide. */
		if (!stream_coarser(st, steps))
			st->seen = steps > st->window + STREAM_REACH ? st->seen / 2 : st->seen + 1;
		st->cluster = f->cluster;
		s->by_thread[f->tid % GUESSES] = i;
		s->by_place[f->vpn / STREAM_NEAR % GUESSES] = i;
		s->continued++;
		stream_ask(f, s, st, max);
		return STREAM_CONTINUED;
	}
	if (best < SCORE_IDLE) {
		__u32 before = st->used;

		delta = ebb_unhide(f->vpn - st->last, st->cluster);
		st->last = f->vpn;
		st->used = s->clock;
		st->cluster = f->cluster;
		/* The stream's last fault is too old to train with. */
		if (s->clock - before > STREAM_TRAINS)
			delta = st->delta[0] = st->delta[1] = st->delta[2] = 0;
		if (!delta || !stream_train(s, st, delta, before))
			return STREAM_TRAINING;
		stream_ask(f, s, st, max);
		return STREAM_CONTINUED;
	}
	st->walk = (struct ebb_walk){ 0 };
	stream_begin(st, 0, 0);
	st->last = f->vpn;
	st->reach = 0;
	st->delta[0] = st->delta[1] = st->delta[2] = 0;
	st->tid = f->tid;
	st->used = s->clock;
	st->cluster = f->cluster;
	if (!stream_far(s, f))
		return STREAM_NONE;
	stream_begin(st, s->far_delta, 2);
	stream_ask(f, s, st, max);
	return STREAM_CONTINUED;
}

#endif
