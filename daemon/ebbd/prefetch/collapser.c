// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include <ebb/page.h>
#include "collapser.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "page_out.h"
#include "window.h"

#define TRAILS 32               /* streams; those of others leave small pages at once */
#define OUT 64                  /* windows paged out lately, for free capacity */
#define ENOUGH (2 * COLLAPSE_BYTES) /* freeable bytes for a call, or outgoing ones to wait for */
#define WATCHED 64              /* windows paged out that may return */
#define GAP 1024                /* pages: a stream may skip so many, as requests can be lost */
#define IDLE_NS 1000000000ULL
/*
 * Small pages that leave with a request: 8 ms, as long as a call.  Fewer would not make room: what
 * they free, the stream would use up meanwhile.
 */
#define SMALL_LEAST COLLAPSE_PAGES
#define SMALL_SWEPT (2 * COLLAPSE_PAGES) /* and in a sweep */
/*
 * A window returns early before limit / this was swapped in.  Not more: of a loop a little longer
 * than the memory, drop-behind rightly takes the same windows in each pass, and little else is
 * swapped in between.
 */
#define RETURN_SHARE 8

struct range {
	uint64_t first, pages;
};

/* What a dense stream has passed, and is still to leave. */
struct trail {
	struct target *target;  /* NULL = unused */
	uint32_t tgid, exec;
	int step;               /* 1 or -1 */
	bool ended;             /* nothing is added; the rest leaves as small pages */
	uint64_t low, high;     /* pages low to high - 1: not decided about yet */
	struct range small[COLLAPSE_WINDOWS + 2]; /* the first one leaves first */
	uint32_t smalls;
	uint64_t leaving;       /* the window that leaves as small pages; 0 = none */
	struct window before;   /* what it was before */
	uint64_t huge[COLLAPSE_WINDOWS]; /* collapsed windows, by first page */
	uint32_t huges;
	uint32_t waiting;       /* windows ready when there was no free capacity, nor soon */
	uint64_t used_ns;
};

/* A window that was paged out lately. */
struct out {
	uint64_t cgroup;        /* 0 = unused */
	uint64_t frame[WINDOW_FRAMES];
	uint32_t frames;        /* 1 of a huge page, which is freed as a whole */
};

/* A window that was paged out, to see whether the program uses it again. */
struct watched {
	struct target *target;  /* NULL = unused */
	uint32_t tgid, exec;
	uint64_t vpn;
	uint64_t swapped_in;    /* pages by the cgroup before */
};

struct collapser {
	struct windows windows;
	enum collapse_wish wish;
	bool works;
	const struct ebb_executor *counted;
	struct executor_stats *stats;
	struct trail trail[TRAILS];
	struct out out[OUT];
	struct watched watched[WATCHED];
	uint32_t next_out, next_watched, turn;
};

static bool target_is(const struct target *t, uint32_t tgid, uint32_t exec)
{
	return t && t->tgid == tgid && t->exec == exec && t->pagemap >= 0;
}

struct collapser *collapser_new(enum collapse_wish wish, const struct ebb_executor *counted,
				struct executor_stats *stats)
{
	struct collapser *c = calloc(1, sizeof(*c));
	struct error e = { 0 };

	if (!c)
		return NULL;
	c->windows = (struct windows){ -1, -1, -1, -1 };
	c->counted = counted;
	c->stats = stats;
	c->wish = wish;
	if (wish == COLLAPSE_NEVER)
		return c;
	c->works = !windows_open(&c->windows, &e);
	if (!c->works)
		log_warn("collapse: off: %s", e.text);
	else if (!windows_allowed(&c->windows))
		log_warn("collapse: off while transparent_hugepage/enabled is never; write "
			 "\"madvise\" to it");
	return c;
}

void collapser_free(struct collapser **pc)
{
	if (*pc)
		windows_close(&(*pc)->windows);
	free(*pc);
	*pc = NULL;
}

/* --- what leaves ------------------------------------------------------------- */

static void note_out(struct collapser *c, const struct collapse_job *j, const struct window *w)
{
	struct out *o = &c->out[c->next_out++ % OUT];

	o->cgroup = j->target->leaf;
	o->frames = w->huge ? 1 : WINDOW_FRAMES;
	memcpy(o->frame, w->frame, sizeof(o->frame));
}

/* A window is judged when the cgroup has swapped in so many pages since it left. */
static uint64_t return_pages(const struct collapse_job *j)
{
	return (leaf_limit(j->leaf) >> EBB_PAGE_SHIFT) / RETURN_SHARE;
}

/*
 * Tells which of the process's watched windows the program used again early, by @swapped_in.  One
 * that was not looked at in time tells nothing: it may have returned later.
 */
static void judge_watched(struct collapser *c, const struct collapse_job *j, uint64_t swapped_in)
{
	for (struct watched *w = c->watched; w < c->watched + WATCHED; w++) {
		uint64_t since = swapped_in - w->swapped_in;

		if (w->target != j->target || !target_is(w->target, w->tgid, w->exec) ||
		    since < return_pages(j))
			continue;
		if (since < 2 * return_pages(j))
			collapse_tell_return(budget_collapse(j->budget),
					     window_look(w->target, w->vpn).present >
						     COLLAPSE_PAGES / 4, now_ns());
		w->target = NULL;
	}
}

/*
 * Watches as many windows as are needed to judge by, until they have had time to return.  A watched
 * one that leaves once more has returned.
 */
static void watch(struct collapser *c, const struct collapse_job *j, uint64_t vpn,
		  uint64_t swapped_in)
{
	struct watched new = { j->target, j->target->tgid, j->target->exec, vpn, swapped_in };
	uint64_t windows = return_pages(j) >> COLLAPSE_SHIFT;

	for (struct watched *w = c->watched; w < c->watched + WATCHED; w++)
		if (w->target == new.target && w->tgid == new.tgid && w->exec == new.exec &&
		    w->vpn == vpn) {
			collapse_tell_return(budget_collapse(j->budget), true, now_ns());
			*w = new;
			return;
		}
	if (c->turn++ % (1 + windows / (WATCHED / 2)) == 0)
		c->watched[c->next_watched++ % WATCHED] = new;
}

static uint64_t out_small(struct collapser *c, const struct collapse_job *j, uint64_t first,
			  int64_t stride, uint64_t count)
{
	uint64_t written = c->counted->written, start = now_ns(), pages, end;

	pages = page_out_pages(j->target, first, stride, count);
	end = now_ns();
	collapse_tell_small(budget_collapse(j->budget), pages, c->counted->written - written,
			    end - start, end);
	return pages;
}

static uint64_t out_huge(struct collapser *c, const struct collapse_job *j, struct trail *t)
{
	uint64_t pages = 0, ns = 0, start, swapped_in = budget_swapped_in(j->budget);
	uint32_t whole = 0;

	judge_watched(c, j, swapped_in);
	for (uint32_t i = 0; i < t->huges; i++) {
		struct window before = window_look(j->target, t->huge[i]);

		start = now_ns();
		pages += window_page_out(j->target, t->huge[i]);
		ns += now_ns() - start;
		note_out(c, j, &before);
		whole += window_look(j->target, t->huge[i]).whole;
		watch(c, j, t->huge[i], swapped_in);
	}
	collapse_tell_out(budget_collapse(j->budget), t->huges, whole, ns, now_ns());
	t->huges = 0;
	return pages;
}

/* --- streams ----------------------------------------------------------------- */

static uint64_t round_up(uint64_t vpn)
{
	return (vpn + COLLAPSE_PAGES - 1) & ~(uint64_t)(COLLAPSE_PAGES - 1);
}

static uint64_t round_down(uint64_t vpn)
{
	return vpn & ~(uint64_t)(COLLAPSE_PAGES - 1);
}

/* Returns the windows passed as a whole. */
static uint32_t ready(const struct trail *t)
{
	uint64_t low = round_up(t->low), high = round_down(t->high);

	return high > low ? (uint32_t)((high - low) >> COLLAPSE_SHIFT) : 0;
}

/* Takes the @pages oldest pages; returns the lowest one. */
static uint64_t take(struct trail *t, uint64_t pages)
{
	if (t->step > 0) {
		t->low += pages;
		return t->low - pages;
	}
	t->high -= pages;
	return t->high;
}

static void add_small(struct trail *t, uint64_t first, uint64_t pages)
{
	if (pages)
		t->small[t->smalls++] = (struct range){ first, pages };
}

/* Takes the next small pages of @r, at most @most and of one window; returns the first. */
static uint64_t take_small(const struct trail *t, struct range *r, uint64_t most, uint64_t *pages)
{
	uint64_t end = r->first + r->pages, n = r->pages < most ? r->pages : most, left;

	left = t->step > 0 ? round_down(r->first) + COLLAPSE_PAGES - r->first :
			     end - round_down(end - 1);
	*pages = n < left ? n : left;
	r->pages -= *pages;
	if (t->step < 0)
		return r->first + r->pages;
	r->first += *pages;
	return r->first - *pages;
}

/*
 * Pages out at most @most small pages; returns their number.  @j: whose measurements and free
 * capacity they are, or NULL.
 */
static uint64_t leave_small(struct collapser *c, const struct collapse_job *j, struct trail *t,
			    uint64_t most)
{
	uint64_t pages = 0, first, n, window;

	while (most && t->smalls) {
		struct range all = t->small[0], *r = &t->small[0];

		first = take_small(t, r, most, &n);
		window = round_down(first);
		if (j && t->leaving != window && all.first <= window &&
		    window + COLLAPSE_PAGES <= all.first + all.pages) {
			t->leaving = window;
			t->before = window_look(t->target, window);
		}
		pages += j ? out_small(c, j, first, 1, n) :
			     page_out_pages(t->target, first, 1, n);
		most -= n;
		/* All of it has left. */
		if (t->leaving == window &&
		    (t->step > 0 ? first + n == window + COLLAPSE_PAGES : first == window)) {
			if (j)
				note_out(c, j, &t->before);
			t->leaving = 0;
		}
		if (!r->pages)
			memmove(r, r + 1, --t->smalls * sizeof(*r));
	}
	return pages;
}

/*
 * Ends a trail: its huge pages leave now, and small ones until *@most are 0.  Returns the number of
 * pages.  Without a rest, or if the process has executed another program, the trail is unused then.
 */
static uint64_t trail_end(struct collapser *c, struct trail *t, uint64_t *most)
{
	uint64_t pages = 0, small;

	if (!target_is(t->target, t->tgid, t->exec) || !target_current(t->target)) {
		t->target = NULL;
		return 0;
	}
	t->ended = true;
	for (uint32_t i = 0; i < t->huges; i++)
		pages += window_page_out(t->target, t->huge[i]);
	t->huges = 0;
	add_small(t, t->low, t->high - t->low);
	t->low = t->high;
	small = leave_small(c, NULL, t, *most);
	*most -= small < *most ? small : *most;
	if (!t->smalls)
		t->target = NULL;
	return pages + small;
}

static uint64_t trails_end(struct collapser *c, const struct target *target, uint64_t most)
{
	uint64_t pages = 0;

	for (struct trail *t = c->trail; t < c->trail + TRAILS; t++)
		if (t->target == target)
			pages += trail_end(c, t, &most);
	return pages;
}

/*
 * Adds pages @low to @high - 1 to the trail that they continue, or to a new one; NULL if there are
 * too many.
 */
static struct trail *trail_add(struct collapser *c, struct target *target, int step, uint64_t low,
			       uint64_t high)
{
	struct trail *unused = NULL, *t;

	for (t = c->trail; t < c->trail + TRAILS; t++) {
		if (!t->target)
			unused = t;
		if (t->target != target || t->ended || t->step != step ||
		    !target_is(target, t->tgid, t->exec) ||
		    (step > 0 ? high <= t->high || low > t->high + GAP :
				low >= t->low || high + GAP < t->low))
			continue;
		if (step > 0)
			t->high = high;
		else
			t->low = low;
		return t;
	}
	if (unused)
		*unused = (struct trail){ .target = target, .tgid = target->tgid,
					  .exec = target->exec, .step = step, .low = low,
					  .high = high };
	return unused;
}

/* --- collapsing -------------------------------------------------------------- */

/*
 * Collapses @n windows from @vpn on, which are private, in one call; the others will leave as small
 * pages.  @ns: spent to make room for them.
 */
static void collapse_run(struct collapser *c, const struct collapse_job *j, struct trail *t,
			 uint64_t vpn, uint32_t n, uint64_t ns)
{
	uint64_t start = now_ns(), called;
	uint32_t huge = 0;

	window_collapse(j->target, vpn, n);
	called = now_ns() - start;
	for (uint32_t i = 0; i < n; i++, vpn += COLLAPSE_PAGES) {
		if (!window_look(j->target, vpn).huge) {
			add_small(t, vpn, COLLAPSE_PAGES);
			continue;
		}
		t->huge[t->huges++] = vpn;
		huge++;
	}
	c->stats->collapsed += (uint64_t)huge << COLLAPSE_SHIFT;
	c->stats->collapse_ns += called;
	collapse_tell_collapsed(budget_collapse(j->budget), n, huge, ns + called, now_ns());
}

/* Collapses those of @n windows from @vpn on that are private; as collapse_run(). */
static void collapse_windows(struct collapser *c, const struct collapse_job *j, struct trail *t,
			     uint64_t vpn, uint32_t n, uint64_t ns)
{
	uint64_t first = vpn, end = vpn + ((uint64_t)n << COLLAPSE_SHIFT);
	uint32_t run;

	for (; vpn < end; vpn += COLLAPSE_PAGES) {
		if (window_look(j->target, vpn).private)
			continue;
		run = (uint32_t)((vpn - first) >> COLLAPSE_SHIFT);
		if (run) {
			collapse_run(c, j, t, first, run, ns);
			ns = 0;
		}
		collapse_tell_collapsed(budget_collapse(j->budget), 1, 0, 0, now_ns());
		add_small(t, vpn, COLLAPSE_PAGES);
		first = vpn + COLLAPSE_PAGES;
	}
	run = (uint32_t)((end - first) >> COLLAPSE_SHIFT);
	if (run)
		collapse_run(c, j, t, first, run, ns);
}

/*
 * Counts what the cgroup paged out lately, as far as it matters, and forgets windows that are
 * reclaimed.  What left first is written first.
 */
static void look_at_outgoing(struct collapser *c, uint64_t cgroup, struct collapse_facts *f)
{
	for (uint32_t k = 0; k < OUT && f->freeable < ENOUGH && f->outgoing < ENOUGH; k++) {
		struct out *o = &c->out[(c->next_out + k) % OUT];
		uint64_t freeable = 0, outgoing = 0;

		if (!o->cgroup || o->cgroup != cgroup)
			continue;
		for (uint32_t i = 0; i < o->frames; i++) {
			enum frame_state s = windows_frame(&c->windows, o->frame[i],
							   o->frames == 1 ? COLLAPSE_PAGES : 1,
							   cgroup);

			freeable += s == FRAME_FREEABLE;
			outgoing += s == FRAME_OUTGOING;
		}
		f->freeable += freeable * COLLAPSE_BYTES / o->frames;
		f->outgoing += outgoing * COLLAPSE_BYTES / o->frames;
		if (!freeable && !outgoing)
			o->cgroup = 0;
	}
}

/* Decides about the windows ready in @t, of which the others have left. */
static void decide(struct collapser *c, const struct collapse_job *j, struct trail *t,
		   struct collapse_facts *f)
{
	struct collapse *rule = budget_collapse(j->budget);
	uint64_t start = now_ns(), vpn;
	struct collapse_plan plan;

	f->unused = leaf_unused(j->leaf);
	look_at_outgoing(c, j->target->leaf, f);
	if (!windows_allowed(&c->windows))
		collapse_exclude(rule, COLLAPSE_UNSUPPORTED, f->now);
	else if (collapse_has_room(f) &&
		 !leaf_make_room(j->leaf, COLLAPSE_PAGES + (COLLAPSE_MARGIN >> EBB_PAGE_SHIFT)))
		f->unused = f->freeable = 0;
	plan = collapse_plan(rule, f);
	t->waiting = plan.action == COLLAPSE_WAIT && !f->outgoing ? f->ready : 0;
	if (plan.action == COLLAPSE_WAIT)
		return;
	vpn = take(t, (uint64_t)plan.windows << COLLAPSE_SHIFT);
	if (plan.action == COLLAPSE_HUGE)
		collapse_windows(c, j, t, vpn, plan.windows, now_ns() - start);
	else
		add_small(t, vpn, (uint64_t)plan.windows << COLLAPSE_SHIFT);
}

/* Does what is next, with at most @most small pages; returns the number of pages that left. */
static uint64_t step(struct collapser *c, const struct collapse_job *j, struct trail *t,
		     uint64_t most, uint64_t now)
{
	struct collapse *rule = budget_collapse(j->budget);
	struct collapse_facts f = { .limit = leaf_limit(j->leaf), .ready = ready(t), .now = now };
	uint32_t n = collapse_batch(rule, f.limit);
	uint64_t pages, fragment;

	/* The pages before the stream's first window, once it has passed that. */
	if (f.ready) {
		fragment = t->step > 0 ? round_up(t->low) - t->low : t->high - round_down(t->high);
		add_small(t, take(t, fragment), fragment);
	}
	pages = leave_small(c, j, t, most);
	if (t->smalls || f.ready < n)
		return pages;
	/* What was collapsed before leaves now, and is written before the next request. */
	if (t->huges)
		return pages + out_huge(c, j, t);
	/* Until another window is ready, too little changes to read the state again. */
	if (f.ready == t->waiting && f.ready < 3 * n)
		return pages;
	decide(c, j, t, &f);
	return pages + leave_small(c, j, t, most - pages);
}

/* @count pages were added to @t; returns the number of pages that left. */
static uint64_t advance(struct collapser *c, const struct collapse_job *j, struct trail *t,
			uint64_t count, uint64_t now)
{
	uint64_t most = 2 * count > SMALL_LEAST ? 2 * count : SMALL_LEAST, pages = 0;

	/* Usually once.  More often if a stream passes more with a request than leaves with one. */
	do
		pages += step(c, j, t, most, now);
	while (ready(t) >= 4 * collapse_batch(budget_collapse(j->budget), leaf_limit(j->leaf)));
	return pages;
}

uint64_t collapser_behind(struct collapser *c, const struct collapse_job *j,
			  const struct ebb_request *r, uint64_t now)
{
	struct collapse *rule = budget_collapse(j->budget);
	uint64_t first, count, limit = leaf_limit(j->leaf), low;
	struct trail *t;

	count = page_out_due(r, limit, &first);
	if (!count)
		return 0;
	if (c->wish == COLLAPSE_NEVER || (r->stride != 1 && r->stride != -1))
		return page_out_pages(j->target, first, r->stride, count);
	if (!c->works)
		collapse_exclude(rule, COLLAPSE_UNSUPPORTED, now);
	if (!c->works || !collapse_is_on(rule, limit, now)) {
		uint64_t most = count > SMALL_LEAST ? count : SMALL_LEAST;

		return trails_end(c, j->target, most) +
		       (collapse_batch(rule, limit) ? out_small(c, j, first, r->stride, count) :
						      page_out_pages(j->target, first, r->stride,
								     count));
	}
	low = r->stride > 0 ? first : first - (count - 1);
	t = trail_add(c, j->target, r->stride > 0 ? 1 : -1, low, low + count);
	if (!t)
		return out_small(c, j, first, r->stride, count);
	t->used_ns = now;
	return advance(c, j, t, count, now);
}

void collapser_leave(struct collapser *c, const struct target *target)
{
	for (struct trail *t = c->trail; t < c->trail + TRAILS; t++)
		if (t->target == target)
			t->target = NULL;
	for (struct watched *w = c->watched; w < c->watched + WATCHED; w++)
		if (w->target == target)
			w->target = NULL;
}

void collapser_forget(struct collapser *c, const struct target *target)
{
	c->stats->paged_out += trails_end(c, target, SMALL_SWEPT);
	collapser_leave(c, target);
}

void collapser_sweep(struct collapser *c, uint64_t now)
{
	uint64_t most = SMALL_SWEPT;

	for (struct trail *t = c->trail; t < c->trail + TRAILS; t++)
		if (t->target && (t->ended || t->used_ns + IDLE_NS < now))
			c->stats->paged_out += trail_end(c, t, &most);
}
