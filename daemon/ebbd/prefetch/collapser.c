// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdlib.h>
#include <string.h>

#include <ebb/page.h>
#include "collapser.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "page_out.h"
#include "window.h"

#define TRAILS 32
#define OUT 64                  /* windows paged out lately, for free capacity */
#define ENOUGH (2 * COLLAPSE_BYTES) /* freeable bytes that allow a call */
#define WATCHED 64              /* windows paged out that may return */
#define GAP 1024                /* pages: a stream may skip so many, as requests can be lost */
#define IDLE_NS 1000000000ULL
/*
 * A window returns early before limit / this was swapped in.  Not more: of a loop a little longer
 * than the memory, drop-behind rightly takes the same windows in each pass, and little else is
 * swapped in between.
 */
#define RETURN_SHARE 8

/* What a dense stream has passed, and is still to leave. */
struct trail {
	struct target *target;  /* NULL = unused */
	uint32_t tgid, exec;
	int step;               /* 1 or -1 */
	uint64_t low, high;     /* small pages low to high - 1 */
	uint64_t huge[COLLAPSE_WINDOWS]; /* collapsed windows, by first page */
	uint32_t huges;
	uint64_t used_ns;
};

struct out {
	uint64_t cgroup;        /* 0 = unused */
	uint64_t frame[WINDOW_FRAMES];
	uint32_t frames;        /* 1 of a huge page, which is freed as a whole */
};

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
	c->windows = (struct windows){ -1, -1, -1 };
	c->counted = counted;
	c->stats = stats;
	c->wish = wish;
	c->works = wish == COLLAPSE_AUTO && !windows_open(&c->windows, &e);
	if (wish == COLLAPSE_AUTO && !c->works)
		log_warn("collapse: off: %s", e.text);
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

static uint64_t out_small_window(struct collapser *c, const struct collapse_job *j, uint64_t vpn)
{
	struct window before = window_look(j->target, vpn);

	note_out(c, j, &before);
	return out_small(c, j, vpn, 1, COLLAPSE_PAGES);
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

/* --- collapsing -------------------------------------------------------------- */

/* Collapses @n windows from @vpn on, which are private, in one call; the others leave small. */
static uint64_t collapse_run(struct collapser *c, const struct collapse_job *j, struct trail *t,
			     uint64_t vpn, uint32_t n)
{
	uint64_t start = now_ns(), ns, pages = 0;
	uint32_t huge = 0;

	window_collapse(j->target, vpn, n);
	ns = now_ns() - start;
	for (uint32_t i = 0; i < n; i++, vpn += COLLAPSE_PAGES) {
		if (!window_look(j->target, vpn).huge) {
			pages += out_small_window(c, j, vpn);
			continue;
		}
		t->huge[t->huges++] = vpn;
		huge++;
	}
	c->stats->collapsed += (uint64_t)huge << COLLAPSE_SHIFT;
	c->stats->collapse_ns += ns;
	collapse_tell_collapsed(budget_collapse(j->budget), n, huge, ns, now_ns());
	return pages;
}

/* Collapses those of @n windows from @vpn on that are private; the others leave small. */
static uint64_t collapse_windows(struct collapser *c, const struct collapse_job *j,
				 struct trail *t, uint64_t vpn, uint32_t n)
{
	uint64_t pages = 0, first = vpn, end = vpn + ((uint64_t)n << COLLAPSE_SHIFT);
	uint32_t run;

	for (; vpn < end; vpn += COLLAPSE_PAGES) {
		if (window_look(j->target, vpn).private)
			continue;
		run = (uint32_t)((vpn - first) >> COLLAPSE_SHIFT);
		if (run)
			pages += collapse_run(c, j, t, first, run);
		collapse_tell_collapsed(budget_collapse(j->budget), 1, 0, 0, now_ns());
		pages += out_small_window(c, j, vpn);
		first = vpn + COLLAPSE_PAGES;
	}
	run = (uint32_t)((end - first) >> COLLAPSE_SHIFT);
	return run ? pages + collapse_run(c, j, t, first, run) : pages;
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

/* Takes the @n oldest windows; returns the lowest page. */
static uint64_t take(struct trail *t, uint32_t n)
{
	uint64_t pages = (uint64_t)n << COLLAPSE_SHIFT;

	if (t->step > 0) {
		t->low += pages;
		return t->low - pages;
	}
	t->high -= pages;
	return t->high;
}

/* Pages out the pages before the stream's first window, once it has reached that. */
static uint64_t out_fragment(struct collapser *c, const struct collapse_job *j, struct trail *t)
{
	uint64_t low = t->low, high = t->high;

	if (t->step > 0)
		t->low = high = round_up(low);
	else
		t->high = low = round_down(high);
	return low < high ? out_small(c, j, low, 1, high - low) : 0;
}

static uint64_t out_all(const struct trail *t, const struct target *target)
{
	uint64_t pages = page_out_pages(target, t->low, 1, t->high - t->low);

	for (uint32_t i = 0; i < t->huges; i++)
		pages += window_page_out(target, t->huge[i]);
	return pages;
}

/* Ends a trail; its pages leave now, as they would have without collapsing. */
static uint64_t trail_end(struct trail *t)
{
	uint64_t pages = target_is(t->target, t->tgid, t->exec) ? out_all(t, t->target) : 0;

	t->target = NULL;
	t->huges = 0;
	return pages;
}

static uint64_t trails_end(struct collapser *c, const struct target *target)
{
	uint64_t pages = 0;

	for (struct trail *t = c->trail; t < c->trail + TRAILS; t++)
		if (t->target == target)
			pages += trail_end(t);
	return pages;
}

/* Adds pages @low to @high - 1 to the trail that they continue, or to a new one. */
static struct trail *trail_add(struct collapser *c, struct target *target, int step, uint64_t low,
			       uint64_t high, uint64_t *pages)
{
	struct trail *oldest = c->trail, *t;

	for (t = c->trail; t < c->trail + TRAILS; t++) {
		if (t->target == target && target_is(target, t->tgid, t->exec) && t->step == step &&
		    (step > 0 ? high > t->high && low <= t->high + GAP :
				low < t->low && high + GAP >= t->low)) {
			if (step > 0)
				t->high = high;
			else
				t->low = low;
			return t;
		}
		if (!t->target || (oldest->target && t->used_ns < oldest->used_ns))
			oldest = t;
	}
	*pages += trail_end(oldest);
	*oldest = (struct trail){ .target = target, .tgid = target->tgid, .exec = target->exec,
				  .step = step, .low = low, .high = high };
	return oldest;
}

/* Counts what the cgroup paged out lately, and forgets windows that are reclaimed. */
static void look_at_outgoing(struct collapser *c, uint64_t cgroup, struct collapse_facts *f)
{
	for (struct out *o = c->out; o < c->out + OUT && f->freeable < ENOUGH; o++) {
		uint64_t freeable = 0, outgoing = 0;

		if (!o->cgroup || o->cgroup != cgroup)
			continue;
		for (uint32_t i = 0; i < o->frames; i++) {
			enum frame_state s = windows_frame(&c->windows, o->frame[i], cgroup);

			freeable += s == FRAME_FREEABLE;
			outgoing += s == FRAME_OUTGOING;
		}
		f->freeable += freeable * COLLAPSE_BYTES / o->frames;
		f->outgoing += outgoing * COLLAPSE_BYTES / o->frames;
		if (!freeable && !outgoing)
			o->cgroup = 0;
	}
}

static uint64_t advance(struct collapser *c, const struct collapse_job *j, struct trail *t,
			uint64_t now)
{
	struct collapse *rule = budget_collapse(j->budget);
	struct collapse_facts f = { .limit = leaf_limit(j->leaf), .now = now };
	uint64_t pages = 0, vpn;
	struct collapse_plan plan;

	f.ready = ready(t);
	if (f.ready)
		pages = out_fragment(c, j, t);
	if (f.ready < collapse_batch(rule, f.limit))
		return pages;
	/* What was collapsed before leaves now, and is written before the next request. */
	if (t->huges)
		return pages + out_huge(c, j, t);
	f.unused = leaf_unused(j->leaf);
	look_at_outgoing(c, j->target->leaf, &f);
	plan = collapse_plan(rule, &f);
	if (plan.action == COLLAPSE_WAIT)
		return pages;
	vpn = take(t, plan.windows);
	if (plan.action == COLLAPSE_HUGE && windows_allowed(&c->windows) &&
	    leaf_make_room(j->leaf, COLLAPSE_PAGES))
		return pages + collapse_windows(c, j, t, vpn, plan.windows);
	for (uint32_t i = 0; i < plan.windows; i++, vpn += COLLAPSE_PAGES)
		pages += out_small_window(c, j, vpn);
	return pages;
}

uint64_t collapser_behind(struct collapser *c, const struct collapse_job *j,
			  const struct ebb_request *r, uint64_t now)
{
	struct collapse *rule = budget_collapse(j->budget);
	uint64_t first, count, pages = 0, low;
	struct trail *t;

	count = page_out_due(r, leaf_limit(j->leaf), &first);
	if (!count)
		return 0;
	if (c->wish == COLLAPSE_NEVER || (r->stride != 1 && r->stride != -1))
		return page_out_pages(j->target, first, r->stride, count);
	if (!c->works)
		collapse_exclude(rule, COLLAPSE_UNSUPPORTED, now);
	if (!c->works || !collapse_is_on(rule, leaf_limit(j->leaf), now))
		return trails_end(c, j->target) + out_small(c, j, first, r->stride, count);
	low = r->stride > 0 ? first : first - (count - 1);
	t = trail_add(c, j->target, r->stride > 0 ? 1 : -1, low, low + count, &pages);
	t->used_ns = now;
	return pages + advance(c, j, t, now);
}

void collapser_sweep(struct collapser *c, uint64_t now)
{
	for (struct trail *t = c->trail; t < c->trail + TRAILS; t++)
		if (t->target && t->used_ns + IDLE_NS < now)
			c->stats->paged_out += trail_end(t);
}
