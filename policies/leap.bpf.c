// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leap: majority-trend prefetching, after Al Maruf and Chowdhury, "Effectively
 * Prefetching Remote Memory with Leap", ATC 2020.  Reconstructed from the paper
 * and published accounts; policies/algorithms.md lists their ambiguities.
 * Names are the paper's: Hsize, Nsplit, PWsize, Chit.
 */
#include <ebb/policy.h>

enum { PW_MAX, AHEAD, SPECULATE, COLD };

#define HSIZE 32                /* deltas in AccessHistory */
#define NSPLIT 4                /* the first vote is over HSIZE / NSPLIT of them */

EBB_POLICY(leap, "follows the majority of recent address differences (Leap, reconstructed)",
	EBB_PARAM(PW_MAX, "pw_max", 256, 1, EBB_REQUEST_MAX,
		  "limit of pages per request (PWsize_max; paper: 8)"),
	EBB_PARAM(AHEAD, "ahead", 1, 0, 1,
		  "1: hits request pages, too, once half of the window is used; paper: 0, misses only"),
	EBB_PARAM(SPECULATE, "speculate", 0, 0, 1,
		  "1: without a majority, follow the last trend, as in the paper"),
	EBB_PARAM(COLD, "cold", 0, 0, 1, "1: deactivate pages behind a stream"))

struct leap {
	__s64 delta[HSIZE];     /* ring, newest at head - 1 */
	__u64 last;             /* page of the newest */
	__s64 trend;            /* last majority found */
	__u32 head;
	__u32 logged;           /* deltas in the ring; unused entries are 0, which is no delta */
	__u32 window;           /* PWsize(t-1) */
	__u32 hits;             /* Chit: hits since the last decision */
	/* For ahead = 1, not in the paper. */
	__u64 frontier;         /* last page requested along the trend; 0 = none */
	__u64 mark;             /* first page whose fault requests more */
	struct ebb_walk walk;   /* scan along this trend */
	__u32 lost;             /* requested pages that missed since the last hit */
	__u32 cluster;          /* pages around last that the kernel read with it */
};

static __always_inline void leap_log(struct leap *s, __s64 delta)
{
	s->delta[s->head % HSIZE] = delta;
	s->head++;
	if (s->logged < HSIZE)
		s->logged++;
}

/*
 * Returns the majority of the w newest deltas (of fewer, at first), or 0.  Boyer-Moore
 * vote, then a counting pass; without branches, because the verifier would follow
 * every combination of them.
 */
static __always_inline __s64 leap_majority(const struct leap *s, const __u32 w)
{
	__u32 n = s->logged < w ? s->logged : w;
	__u64 votes = 0, seen = 0, candidate = 0;

	EBB_ROLLED
	for (__u32 i = 0; i < w; i++) {
		__u64 d = s->delta[(s->head - 1 - i) % HSIZE];

		if (!d)
			break;  /* nothing older was logged */
		/* At 0 votes d becomes the candidate; otherwise it votes for or against. */
		candidate ^= (candidate ^ d) & (ebb_differ(votes, 0) - 1);
		votes += 1 - 2 * ebb_differ(d, candidate);
	}
	EBB_ROLLED
	for (__u32 i = 0; i < w; i++)
		seen += 1 - ebb_differ(s->delta[(s->head - 1 - i) % HSIZE], candidate);
	return seen > n / 2 ? (__s64)candidate : 0;
}

/*
 * FindTrend: returns the majority of the shortest window that has one, out of
 * hsize / nsplit, twice that, ..., hsize.  One delta is no trend.  hsize and nsplit
 * are constants: the verifier must know the length of each loop.
 */
static __always_inline __s64 leap_trend(const struct leap *s, const __u32 hsize,
					const __u32 nsplit)
{
	__s64 trend = 0;

	if (s->logged < 2)
		return 0;
	EBB_UNROLLED
	for (__u32 i = 0; i < 6; i++)
		if (!trend && (hsize / nsplit) << i <= hsize)
			trend = leap_majority(s, (hsize / nsplit) << i);
	return trend;
}

/* GetPrefetchWindowSize; at most halves the window each time: 8, 4, 2, 1, 0. */
static __always_inline __u64 leap_window(struct leap *s, __u64 hits, int follows, __u64 max)
{
	__u64 window = follows;

	if (hits) {
		/* Returns hits + 1, rounded up to a power of two. */
		window = hits | hits >> 1;
		window |= window >> 2;
		window |= window >> 4;
		window |= window >> 8;
		window++;
	}
	if (window > max)
		window = max;
	if (window < s->window / 2)
		window = s->window / 2;
	s->window = window;
	s->hits = 0;
	return window;
}

/* Handles a miss as in the paper. */
static __always_inline void leap_paper(const struct ebb_fault *f, struct leap *s, __s64 delta,
				       __s64 trend, const struct ebb_params *p)
{
	__u64 window = leap_window(s, s->hits, trend && delta == trend, p->v[PW_MAX]);

	if (trend)
		s->trend = trend;
	else if (!p->v[SPECULATE])
		return;
	ebb_prefetch(f, f->vpn + s->trend, s->trend, window);
}

/* Returns whether at most half a window is left before a page. */
static __always_inline int leap_due(const struct leap *s, __u64 vpn)
{
	return s->trend > 0 ? vpn >= s->mark : vpn <= s->mark;
}

/*
 * Keeps a window of pages in flight ahead of the process, and requests more, beyond
 * the frontier, once half of them are used.  Not in the paper: here requests are
 * asynchronous.  Pages in flight count as future hits, and a requested page continues
 * the trend even without a majority.
 */
static __always_inline void leap_ahead(const struct ebb_fault *f, struct leap *s, __s64 delta,
				       __s64 trend, const struct ebb_params *p)
{
	__u64 max = p->v[PW_MAX], from, hits, window, passed;
	__s64 left;

	if (trend && trend != s->trend) {
		s->trend = trend;
		s->frontier = 0;
		s->walk = (struct ebb_walk){ 0 };
	}
	from = s->frontier;
	left = from ? ebb_steps(f->vpn, from, s->trend) : -1;
	if (left > 2 * (__s64)max)
		left = -1;

	if (left < 0 && trend && delta != trend)
		return;         /* an unrelated page: the stream will continue */
	if (f->kind == EBB_MISS && (left >= 0 || s->lost > max)) {
		/*
		 * Predicted, but late: count a hit, or the window could never outgrow
		 * the latency.  If a whole window is lost, latency is not the cause:
		 * request less and less, and retry later.
		 */
		s->hits++;
		if (++s->lost > 8 * max)
			s->lost = 0;
		if (left >= 0 && !leap_due(s, f->vpn))
			return;
	}

	hits = s->hits;
	if (s->lost > max)
		window = leap_window(s, 0, 0, max);
	else
		window = leap_window(s, hits + (left > 0 ? left : 0), trend || left >= 0, max);
	if (!trend && left < 0 && !p->v[SPECULATE])
		return;
	if (p->v[COLD] && hits)
		ebb_cold(f, f->vpn - s->trend, -s->trend, hits);
	if (left < 0 || f->kind == EBB_MISS) {
		from = f->vpn;
		left = 0;
	}
	passed = ebb_walk_to(&s->walk, f->vpn, s->trend);
	if (left < (__s64)window)
		from += s->trend * ebb_prefetch_stream(f,
			(struct ebb_range){ from + s->trend, s->trend, window - left },
			ebb_walk_run(&s->walk), passed);
	s->frontier = from;
	s->mark = from - (__u64)s->trend * (window / 2);
}

static __always_inline void leap_fault(const struct ebb_fault *f, struct leap *s,
				       const struct ebb_params *p)
{
	__s64 seen = f->vpn - s->last, delta, trend;

	if (!seen)
		return;
	delta = ebb_unhide(seen, s->cluster);
	if (delta != seen) /* hits of the kernel's readahead are hits */
		s->hits += ebb_magnitude(seen) - 1;
	s->last = f->vpn;
	s->cluster = f->cluster;
	leap_log(s, delta);
	if (f->kind != EBB_MISS) {
		s->hits++;
		s->lost = 0;
		if (!p->v[AHEAD] || !leap_due(s, f->vpn))
			return;
	}
	trend = leap_trend(s, HSIZE, NSPLIT);
	if (p->v[AHEAD])
		leap_ahead(f, s, delta, trend, p);
	else
		leap_paper(f, s, delta, trend, p);
}
EBB_POLICY_ENTRY(leap, struct leap, leap_fault)
