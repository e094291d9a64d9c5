/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Streams: several concurrent strided scans of one process, distinguished by thread,
 * instruction and position.  The algorithm of the policy streams, and part of gcaware and auto.
 *
 * A fault continues the stream of its thread behind it, if it is on the stride and within
 * reach; otherwise it trains a stream that has no stride yet and whose last page is near;
 * otherwise it replaces the stream that was idle longest.  Deltas are within a stream, so
 * that no vote has to find one scan among many.
 *
 * A scan may be several instructions', and several scans may be within a few pages of each
 * other.  So both are tried: any instruction of the thread trains a stream, which then belongs
 * to the one that trained it or, after several, to any; and each instruction (its site) keeps
 * its own deltas, which begin a stream of its own where the nearby faults together show no
 * stride.  Another site's fault continues such a stream only within its window, and then it
 * belongs to any.
 *
 * A site remembers the length of its runs and the distance from one to the next: a scan of a
 * matrix by columns or blocks begins and ends as the ones before.
 */
#ifndef EBB_STREAMS_H
#define EBB_STREAMS_H

#include <ebb/policy.h>

#define STREAMS 32
#define SITES 32
#define SITE_SHIFT 27           /* a site's key over 2^this is its index */
#define SITE_NEW 64             /* faults in which another site must not take a new one's place */
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
#define RUN_MIN 8               /* pages: shorter runs are not remembered */
#define RUN_SURE 2              /* equal ones in a row that predict the next */
#define JUMPS_MAX 65535

struct stream {
	__u64 last;             /* newest page */
	__s64 stride;           /* 0 = not known yet */
	__u64 inverse;          /* for stream_steps() */
	__u64 frontier;         /* last page requested */
	__u64 end;              /* last page of the run as its site predicts; 0 = not known */
	struct ebb_walk walk;
	__s64 delta[3];         /* newest deltas, while there is no stride */
	__u32 tid;              /* 0 = unused */
	__u32 key;              /* of its site; 0 = any instruction of the thread */
	__u32 used;             /* clock of its newest fault */
	__u32 seen;             /* faults since it got its stride */
	__u32 window;           /* pages to keep in flight */
	__u32 lost;             /* consecutive misses on the stream */
	__u32 cluster;          /* pages around last that the kernel read with it */
	__u32 reach;            /* strides ahead of last that still belong to it */
	__u32 near;             /* those that do for another site's fault */
	__u16 step, same;       /* newest step in strides, and equal steps before it */
	__u16 shift;            /* for stream_steps() */
};

/* An instruction of a thread.  Its faults on one stream, until it moves elsewhere, are a run. */
struct site {
	__u64 last;             /* newest page */
	__u64 first;            /* page at which the current run began */
	__s64 stride;           /* of the last complete run */
	/* Distances from one run's first page to the next one's: `turn` times jump, then leap. */
	__s64 jump, leap;
	__u32 key;              /* 0 = unused */
	__u32 begun;            /* clock at the first fault of the run */
	__u32 run;              /* pages of the last complete run */
	__u32 ahead;            /* pages of the next run that were requested */
	__s32 delta;            /* newest one; 0 = longer than STREAM_NEAR */
	__u8 stream;            /* the run's */
	__u8 before;            /* that of the last run that had a stride */
	__u8 runs;              /* equal ones in a row; saturates at RUN_SURE */
	__u8 right;             /* whether the newest run began where it was expected */
	__u8 same;              /* equal deltas before the newest; saturates */
	__u8 cluster;           /* pages around last that the kernel read with it; saturates */
	__u16 jumps, turn;      /* equal jumps in a row; 0 = not known */
};

struct streams {
	struct stream stream[STREAMS];
	struct site site[SITES];
	__u32 clock;            /* faults */
	__u32 active;           /* 1 + streams with a stride that moved recently */
	__u32 asked, used;      /* pages since the last check (STREAM_JUDGE) */
	__u32 doubt;            /* 1: few requested pages are used; require more proof */
	__u32 continued;        /* faults that continued a stream in this STREAM_SPAN */
	__u32 rare;             /* 1: fewer than STREAM_RARE do */
	/* Streams to try before searching all, by address; that a thread continued last. */
	__u8 by_place[GUESSES], by_thread[GUESSES];
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

static __always_inline __u64 stream_ahead(const struct stream *st, __u64 from, __u64 to)
{
	return st->stride < 0 ? from - to : to - from;
}

/*
 * Returns how many strides a distance is, without a division; more than any reach if it is no
 * multiple.  The stride is odd << shift: times the inverse of odd (modulo 2^64), a multiple of odd
 * is the quotient and any other number a huge one; rotated, so is one that is no multiple of
 * 1 << shift.
 */
static __always_inline __u64 stream_steps(const struct stream *st, __u64 distance)
{
	__u64 quotient = distance * st->inverse;

	return quotient >> st->shift | quotient << (-st->shift & 63);
}

/* Returns 1 if a distance is at most reach strides, else 0. */
static __always_inline __u64 stream_on(const struct stream *st, __u64 ahead, __u64 reach)
{
	__u64 steps = stream_steps(st, ahead);

	return (1 - (steps >> 63)) & ebb_less(steps, reach + 1);
}

/* Returns the pages requested ahead of vpn, 0 if it has passed them. */
static __always_inline __u64 stream_left(const struct stream *st, __u64 vpn)
{
	__u64 steps = stream_steps(st, stream_ahead(st, vpn, st->frontier));

	return steps <= 4 * EBB_REQUEST_MAX ? steps : 0;
}

static __always_inline void stream_grow(struct stream *st, __u64 max)
{
	__u64 window = st->window ? 2 * (__u64)st->window : STREAM_FIRST;

	/* Bounded by the stream's faults: a short scan must not take a long one's window. */
	if (window > 2 * (__u64)st->seen)
		window = 2 * (__u64)st->seen;
	st->window = window < max ? window : max;
}

/* Returns the expected distance to the next run. */
static __always_inline __s64 site_jump(const struct site *t)
{
	return t->turn && t->jumps == t->turn ? t->leap : t->jump;
}

/* Learns the distance from one run to the next: loops around a loop. */
static __always_inline void site_jumped(struct site *t, __s64 jump)
{
	t->right = jump == site_jump(t);
	if (t->turn && t->jumps == t->turn && t->right) {
		t->jumps = 0;
	} else if (jump == t->jump) {
		t->jumps += t->jumps < JUMPS_MAX;
	} else if (t->jumps > 1) {
		t->leap = jump;
		t->turn = t->jumps;
		t->jumps = 0;
	} else {
		t->jump = jump;
		t->jumps = 1;
		t->turn = 0;
	}
}

/* Returns the share of the cgroup's room of a stream, at most max. */
static __always_inline __u64 streams_share(const struct ebb_fault *f, const struct streams *s,
					   __u64 max)
{
	if (f->room && s->active && max > f->room / s->active)
		max = f->room / s->active;
	return max < STREAM_FIRST ? STREAM_FIRST : max;
}

/*
 * Requests the first pages of the site's next run, at most max: until it begins, the stream
 * may not fault at all.
 */
static __always_inline void stream_ask_next(const struct ebb_fault *f, struct streams *s,
					    const struct stream *st, struct site *t, __u64 max)
{
	__u64 first = t->first + site_jump(t);

	/* The site may have become another's while the stream rested. */
	if (!t->right || t->ahead || t->key != st->key)
		return;
	t->ahead = ebb_prefetch(f, first, st->stride, t->run < max ? t->run : max);
	s->asked += t->ahead;
}

/*
 * Fills the window ahead of @f once half of it is used.  After a whole window of
 * misses on requested pages (requests dropped, or pages evicted before use), it
 * requests only occasionally.
 */
static __always_inline void stream_ask(const struct ebb_fault *f, struct streams *s,
				       struct stream *st, struct site *t, __u64 window)
{
	__u64 left = stream_left(st, f->vpn), from = st->frontier, max, n, passed;
	__s64 on;

	/*
	 * The stream misses despite pages in flight: request again, but not each
	 * time, because a program that outruns ebbd misses queued pages.
	 */
	if (2 * left > st->window && st->lost % STREAM_AGAIN != STREAM_AGAIN - 1)
		return;
	/* All of the run is requested. */
	if (from == st->end && f->kind != EBB_MISS && (left || f->vpn == from)) {
		stream_ask_next(f, s, st, t, streams_share(f, s, 2 * window));
		return;
	}
	max = streams_share(f, s, window);
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
	n = st->window - left;
	if (st->end) {
		on = ebb_steps(from, st->end, st->stride);
		if (on < 0)
			st->end = 0;
		else if (n > (__u64)on)
			n = on;
	}
	passed = ebb_walk_to(&st->walk, f->vpn, st->stride);
	s->passed = passed;
	s->passed_stride = st->stride;
	n = ebb_prefetch_stream(f, (struct ebb_range){ from + st->stride, st->stride, n },
				ebb_walk_run(&st->walk), passed);
	st->frontier = from + st->stride * (__s64)n;
	st->near = st->window + STREAM_REACH;
	st->reach = st->near + (st->seen < STREAM_LEAP ? st->seen : STREAM_LEAP);
	s->asked += n;
}

EBB_SUBPROGRAM int stream_begin(struct stream *st, __s64 stride, __u32 seen)
{
	__u64 odd = stride ? ebb_magnitude(stride) : 1, inverse;
	__u32 shift = 0;

	if (!st)
		return 0;
	EBB_UNROLLED
	for (__u32 bits = 32; bits; bits /= 2) {
		__u32 zeroes = bits & (__u32)(ebb_differ(odd & ((1ULL << bits) - 1), 0) - 1);

		odd >>= zeroes;
		shift += zeroes;
	}
	/* Newton's iteration doubles the right bits; an odd number is its own inverse mod 8. */
	inverse = odd;
	EBB_UNROLLED
	for (int bits = 3; bits < 64; bits *= 2)
		inverse *= 2 - odd * inverse;
	st->inverse = inverse;
	st->shift = shift;
	st->near = stride ? STREAM_REACH : STREAM_NEAR;
	st->reach = st->near;
	st->stride = stride;
	st->seen = seen;
	st->window = 0;
	st->lost = 0;
	st->frontier = 0;
	st->end = 0;
	st->step = 0;
	st->same = 0;
	return 0;
}

/* Makes a stream the continuation of the run before it, whose stream ends. */
static __always_inline void stream_inherit(struct stream *st, struct stream *before)
{
	st->walk = before->walk;
	st->seen += before->seen / 4;
	before->tid = 0;
}

/* The run is as long as those before it. */
static __always_inline void stream_bound(const struct ebb_fault *f, const struct streams *s,
					 struct stream *st, const struct site *t, __u64 max)
{
	max = streams_share(f, s, max);
	st->end = t->first + (__u64)t->stride * (t->run - 1);
	st->window = t->run < max ? t->run / 2 : max / 2;
	if (st->seen < t->run)
		st->seen = t->run;
}

/* Returns whether an earlier scan of the thread had that stride, and ended before `since`. */
static __always_inline int stream_follows(const struct stream *before, __u32 tid, __s64 stride,
					  __u32 since)
{
	return before->tid == tid && before->stride == stride && (__s32)(before->used - since) < 0;
}

/*
 * Adds a delta to a stream without a stride, whose newest fault was at `since`;
 * returns whether it now has one.  @mine: t is the fault's site, not one that has its place.
 * A scan that has moved here since then needs only one matching step; it keeps its length,
 * and its old position must not match other faults.
 */
static __always_inline int stream_train(const struct ebb_fault *f, struct streams *s,
					struct stream *st, const struct site *t, int mine,
					__s64 delta, __u32 since, __u64 max)
{
	__u32 same = (delta == st->delta[0]) + (delta == st->delta[1]) + (delta == st->delta[2]);
	/* Masked: the verifier of Linux 6.1 loses the bound of a comparison. */
	struct stream *before = &s->stream[t->before % STREAMS];
	struct stream *newest = &s->stream[s->by_thread[f->tid % GUESSES] % STREAMS];
	int moved = mine && before != st && stream_follows(before, f->tid, delta, since);
	/* Two scans in turn: their deltas alternate. */
	int two = delta == st->delta[1] && st->delta[0] == st->delta[2] &&
		  delta != st->delta[0] && delta != -st->delta[0] && !s->doubt;

	/* The thread's newest stream, unless another instruction's: that is another scan. */
	if (!moved && newest != st && newest->key == st->key &&
	    stream_follows(newest, f->tid, delta, since)) {
		moved = 1;
		before = newest;
	}
	if (two && st->delta[0]) {
		stream_begin(st, delta + st->delta[0], 2);
		st->walk = (struct ebb_walk){ 0 };
		return 1;
	}
	st->delta[2] = st->delta[1];
	st->delta[1] = st->delta[0];
	st->delta[0] = delta;
	/* Among random nearby pages, two equal deltas are common, except deltas of one page. */
	if (!moved && same < 1 + (ebb_magnitude(delta) > 1) + s->doubt)
		return 0;
	stream_begin(st, delta, 1 + same);
	st->walk = (struct ebb_walk){ 0 };
	if (moved) {
		stream_inherit(st, before);
		if (t->runs && t->key == st->key && t->stride == delta)
			stream_bound(f, s, st, t, max);
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

/* Flags of a score: the fault is not on this stream, but may replace it; it is another site's. */
#define SCORE_IDLE (1ULL << 62)
#define SCORE_OTHER 61

/*
 * Returns a score, lower is better: first streams that the fault may continue or train,
 * its site's before others', by distance, then the others, longest idle first, then index.
 * Without branches: the verifier would follow every combination of them.
 */
static __always_inline __u64 stream_score(const struct stream *st, __u32 i, __u64 vpn, __u32 tid,
					  __u32 key, __u32 clock)
{
	__s64 d = vpn - st->last;
	__u64 known = -ebb_differ(st->stride, 0);
	__u64 backward = -((__u64)st->stride >> 63), below = -((__u64)d >> 63) & ~known;
	/* Ahead on the stride; without one, the distance in either direction. */
	__u64 ahead = (d ^ (backward | below)) - (backward | below);
	__u64 other = ebb_differ(st->key, key) & ebb_differ(st->key, 0) & known;
	__u64 on = (1 - ebb_differ(st->tid, tid)) &
		   stream_on(st, ahead, st->near + ((st->reach - st->near) & (other - 1)));
	__u32 age = clock - st->used;
	__u64 proven = ebb_less(STREAMS, st->seen) * STREAM_AGE_SHIFT;
	__u64 youth = (__u32)~(age >> proven) & -ebb_differ(st->tid, 0);

	return (-on & (ahead << 8 | other << SCORE_OTHER)) |
	       (-(1 - on) & (SCORE_IDLE | youth << 8)) | i;
}

/* Returns the best score; counts the streams with a share in room. */
EBB_SUBPROGRAM __u64 streams_best(struct streams *s, __u64 vpn, __u32 tid, __u32 key)
{
	__u64 best = ~0ULL >> 1;
	__u32 active = 1;

	if (!s)
		return best;
	EBB_ROLLED
	for (__u32 i = 0; i < STREAMS; i++) {
		const struct stream *st = &s->stream[i];

		best = ebb_min(stream_score(st, i, vpn, tid, key, s->clock), best);
		active += ebb_differ(st->stride, 0) & ebb_less(s->clock - st->used, STREAM_IDLE);
	}
	s->active = active;
	return best;
}

/* Returns the site with that key; if there is none, one that may become it. */
static __always_inline struct site *streams_site(struct streams *s, __u32 key)
{
	__u32 i = key >> SITE_SHIFT;

	i ^= ebb_differ(s->site[i].key, key) & (1 - ebb_differ(s->site[i ^ 1].key, key));
	return &s->site[i % SITES];
}

/* Returns whether a site is new, or its stream moves: another one must not take its place. */
static __always_inline int site_busy(const struct streams *s, const struct site *t)
{
	const struct stream *st = &s->stream[t->stream % STREAMS];

	if (!t->key)
		return 0;
	return s->clock - t->begun <= SITE_NEW ||
	       (st->key == t->key && st->stride && s->clock - st->used <= STREAM_TRAINS);
}

/*
 * Adds a fault to its site's deltas; returns the stride that they prove, or 0.  Unlike
 * stream_train(), it sees through the faults of other instructions nearby.
 */
static __always_inline __s64 site_step(const struct streams *s, struct site *t,
				       const struct ebb_fault *f)
{
	__s64 delta = ebb_unhide(f->vpn - t->last, t->cluster);

	if (ebb_magnitude(delta) > STREAM_NEAR)
		delta = 0;
	t->same = delta == t->delta ? t->same + (t->same < 255) : 0;
	t->delta = delta;
	t->last = f->vpn;
	t->cluster = f->cluster < 255 ? f->cluster : 255;
	return t->same > (ebb_magnitude(delta) > 1) + s->doubt ? delta : 0;
}

/* Remembers the stream of a run that ends. */
static __always_inline void site_ends(struct site *t, const struct stream *st)
{
	if (st->key == t->key && st->stride)
		t->before = t->stream;
}

static __always_inline void site_begin(struct site *t, __u32 i, __u64 vpn, __u32 clock)
{
	t->first = vpn;
	t->stream = i;
	t->begun = clock;
}

/*
 * A fault of a site is not on the stream of its newest one: its run is over, and another begins at
 * vpn on stream i.  Returns whether the site predicts it.  Called before the stream of the old run
 * may become another.
 */
EBB_SUBPROGRAM int streams_turn(struct streams *s, __u32 key, __u32 i, __u64 vpn)
{
	struct stream *before;
	struct site *t;
	__u64 run = 0;

	if (!s)
		return 0;
	t = streams_site(s, key);
	if (t->key != key && site_busy(s, t))
		t = &s->site[(key >> SITE_SHIFT ^ 1) % SITES];
	before = &s->stream[t->stream % STREAMS];
	if (t->key != key) {
		if (site_busy(s, t))
			return 0;
		__builtin_memset(t, 0, sizeof(*t));
		t->key = key;
	} else {
		if ((before->key == key || !before->key) && before->stride) {
			t->before = t->stream;
			if (before->key && s->clock - t->begun >= RUN_MIN)
				run = ebb_steps(t->first, before->last, before->stride) + 1;
		}
		if (run < RUN_MIN || before->stride != t->stride ||
		    run - t->run + t->run / 8 > t->run / 4)
			t->runs = 0;
		else if (t->runs < RUN_SURE)
			t->runs++;
		if (run >= RUN_MIN) {
			t->run = run < EBB_VPN_END >> 32 ? run : EBB_VPN_END >> 32;
			t->stride = before->stride;
		}
		site_jumped(t, vpn - t->first);
	}
	site_begin(t, i, vpn, s->clock);
	if (t->right && t->runs >= RUN_SURE && !s->doubt)
		return 1;
	t->ahead = 0;
	return t->runs >= RUN_SURE && !s->doubt;
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
static __always_inline int stream_coarser(struct stream *st, __u64 steps, __u32 cluster)
{
	if (steps < 2 || (cluster > 1 && steps < 2 * (__u64)cluster) || steps != st->step) {
		st->step = steps < STREAM_NEAR ? steps : 0;
		st->same = 0;
		return 0;
	}
	if (++st->same < STREAM_COARSER)
		return 0;
	st->walk = (struct ebb_walk){ 0 };
	stream_begin(st, (__s64)((__u64)st->stride * steps), STREAM_COARSER);
	return 1;
}

/* Returns the key of the fault's site, never 0. */
static __always_inline __u32 streams_key(const struct ebb_fault *f)
{
	return ((__u32)f->ip + f->tid * 0x85ebca6bU) * 0x9e3779b1U | 1;
}

/* Returns whether the fault is one of the next few steps of stream i. */
static __always_inline int stream_next(const struct streams *s, __u32 i, const struct ebb_fault *f)
{
	const struct stream *st = &s->stream[i % STREAMS];
	__u64 ahead = stream_ahead(st, st->last, f->vpn);

	return st->tid == f->tid && st->stride &&
	       stream_on(st, ahead, STREAM_REACH);
}

/* Guesses the stream that the fault continues; returns its index, or STREAMS. */
static __always_inline __u64 streams_guess(struct streams *s, const struct ebb_fault *f)
{
	__u32 i = streams_site(s, streams_key(f))->stream;

	if (stream_next(s, i, f))
		return i % STREAMS;
	i = s->by_thread[f->tid % GUESSES];
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

/* Begins the run that its site predicts at the fault. */
static __always_inline void stream_predict(const struct ebb_fault *f, struct streams *s,
					   struct stream *st, struct site *t, __u64 max)
{
	struct stream *before = &s->stream[t->before % STREAMS];

	stream_begin(st, t->stride, 0);
	if (before != st && stream_follows(before, f->tid, t->stride, s->clock))
		stream_inherit(st, before);
	stream_bound(f, s, st, t, max);
	if (t->ahead)
		st->frontier = f->vpn + (__u64)t->stride * (t->ahead - 1);
	t->ahead = 0;
	st->key = t->key;
}

/* @guess is streams_guess(). */
static __always_inline enum stream_match streams_follow(const struct ebb_fault *f,
							struct streams *s, __u64 max, __u64 guess)
{
	__u32 key = streams_key(f), i, since, cluster;
	struct site *t = streams_site(s, key);
	__u64 best = guess, steps, before;
	int predicted = 0;
	struct stream *st;
	__s64 delta, own = 0;

	streams_tick(s);
	s->passed = 0;
	if (best >= STREAMS) {
		if (!streams_search(s))
			return STREAM_NONE;
		best = streams_best(s, f->vpn, f->tid, key);
	}
	i = best & 0xff;
	if (i >= STREAMS)
		return STREAM_NONE;
	st = &s->stream[i];
	streams_judge(s, f->kind);
	if (guess >= STREAMS || t->stream != i) {
		if (t->key != key) {
			if (guess >= STREAMS)
				predicted = streams_turn(s, key, i, f->vpn);
		} else if (t->stream != i && s->clock - t->begun < RUN_MIN) {
			site_ends(t, &s->stream[t->stream % STREAMS]);
			site_begin(t, i, f->vpn, s->clock);
			t->runs = 0;
			t->right = 0;
		} else if (t->stream != i || best >= SCORE_IDLE) {
			predicted = streams_turn(s, key, i, f->vpn);
		}
		t = streams_site(s, key);
	}
	if (t->key == key)
		own = site_step(s, t, f);
	since = st->used;
	st->used = s->clock;
	cluster = st->cluster;
	st->cluster = f->cluster;
	before = st->last;
	st->last = f->vpn;
	if (best >= SCORE_IDLE) {
		st->walk = (struct ebb_walk){ 0 };
		stream_begin(st, 0, 0);
		st->delta[0] = st->delta[1] = st->delta[2] = 0;
		st->tid = f->tid;
		st->key = key;
		if (predicted)
			stream_predict(f, s, st, t, max);
		else if (own)
			stream_begin(st, own, 2);
		else if (stream_far(s, f))
			stream_begin(st, s->far_delta, 2);
		else
			return STREAM_NONE;
	} else if (!st->stride) {
		delta = ebb_unhide(f->vpn - before, cluster);
		if (st->key != key)
			st->key = 0;
		/* The stream's last fault is too old to train with. */
		if (s->clock - since > STREAM_TRAINS)
			delta = st->delta[0] = st->delta[1] = st->delta[2] = 0;
		if (!delta || !stream_train(f, s, st, t, t->key == key, delta, since, max)) {
			if (!own)
				return STREAM_TRAINING;
			stream_begin(st, own, 2);
			st->walk = (struct ebb_walk){ 0 };
			st->key = key;
		}
	} else {
		steps = stream_steps(st, stream_ahead(st, before, f->vpn));
		st->lost = f->kind == EBB_MISS ? st->lost + 1 : 0;
		if (st->key != key) {
			st->key = 0;
			st->end = 0;
		}
		/* A long step jumps over resident pages or is chance: the next faults decide. */
		if (predicted)
			stream_predict(f, s, st, t, max);
		else if (!stream_coarser(st, steps, cluster))
			st->seen = steps > st->window + STREAM_REACH ? st->seen / 2 : st->seen + 1;
		s->continued++;
		s->by_thread[f->tid % GUESSES] = i;
		s->by_place[f->vpn / STREAM_NEAR % GUESSES] = i;
	}
	stream_ask(f, s, st, t, max);
	return STREAM_CONTINUED;
}

static __always_inline enum stream_match streams_fault(const struct ebb_fault *f,
						       struct streams *s, __u64 max)
{
	return streams_follow(f, s, max, streams_guess(s, f));
}

#endif
