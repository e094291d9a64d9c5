// SPDX-License-Identifier: GPL-2.0-or-later
#include "colocate.h"

int colocate_choose(const struct colocate_cpus *c)
{
	int best = -1;

	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, &c->allowed) || CPU_ISSET(i, &c->confined))
			continue;
		if (best < 0 || c->sharers[i] < c->sharers[best] ||
		    (i == c->busiest && c->sharers[i] == c->sharers[best]))
			best = i;
	}
	return best;
}

/* A CPU's interrupts for fewer pages a second cost less than a hundredth of its time. */
#define PAGES_A_SECOND 2000
/*
 * Share, 1/x, of the busiest thread's time that the others may run.  Not of a CPU's time: on a busy
 * machine, threads that share one run little.
 */
#define OTHERS_SHARE 4
#define PREFETCHED_SHARE 4      /* of the pages swapped in, at least, is prefetched */
#define CALM 4                  /* looks of one thread before an attempt */
#define TRIAL 5                 /* looks of an attempt before its rate is judged */
#define LEAST 97                /* percent of the earlier rate below which an attempt has failed */
#define QUIET 16                /* looks without swapping after which an attempt ends */
/* Looks between an attempt that failed and the next one; doubles each time. */
#define PAUSE 16
#define DOUBLINGS 6
#define FORGIVEN 240            /* looks of an attempt after which the pause is short again */

/* Whether programs swap, and not by themselves: the executor's pages are those that interrupt. */
static bool swaps(const struct colocate_look *l)
{
	return l->pages * 1000000000ull >= PAGES_A_SECOND * l->wall_ns &&
	       l->prefetched * PREFETCHED_SHARE >= l->pages;
}

static bool alone(const struct colocate_look *l)
{
	return l->others_ns * OTHERS_SHARE <= l->busiest_ns;
}

static void add(struct colocate_rate *r, const struct colocate_look *l)
{
	r->pages += l->pages;
	r->ns += l->wall_ns;
}

/* Newer looks count more. */
static void add_recent(struct colocate_rate *r, const struct colocate_look *l)
{
	r->pages -= r->pages / CALM;
	r->ns -= r->ns / CALM;
	add(r, l);
}

/* Whether the programs swapped in fewer pages a second than before. */
static bool slower(const struct colocate_auto *a)
{
	return a->trial.pages * a->apart.ns / LEAST < a->apart.pages * a->trial.ns / 100;
}

static void separate(struct colocate_auto *a)
{
	a->together = false;
	a->streak = a->kept = 0;
	a->apart = a->trial = (struct colocate_rate){ 0 };
}

static void keep_together(struct colocate_auto *a, const struct colocate_look *l)
{
	a->kept++;
	if (a->kept == FORGIVEN)
		a->losses = 0;
	a->streak = swaps(l) ? 0 : a->streak + 1;
	/* The first look is in part from before. */
	if (a->kept > 1 && a->kept <= TRIAL && swaps(l))
		add(&a->trial, l);
	if (!alone(l) || (a->kept == TRIAL && slower(a))) {
		a->pause = PAUSE << a->losses;
		a->losses += a->losses < DOUBLINGS;
		separate(a);
	} else if (a->streak == QUIET) {
		separate(a);
	}
}

bool colocate_auto_step(struct colocate_auto *a, const struct colocate_look *l)
{
	if (a->together) {
		keep_together(a, l);
		return a->together;
	}
	a->pause -= a->pause > 0;
	a->streak = alone(l) && swaps(l) ? a->streak + 1 : 0;
	if (a->streak)
		add_recent(&a->apart, l);
	else
		a->apart = (struct colocate_rate){ 0 };
	if (a->streak >= CALM && !a->pause) {
		a->together = true;
		a->streak = 0;
	}
	return a->together;
}
