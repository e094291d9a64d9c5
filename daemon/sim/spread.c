// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spread.h"

#define BINS 1024      /* of use, for percentiles */
#define SPREAD_EVERY 10 /* seconds between percentiles, as in the paper */
#define STABLE_EVERY 40 /* seconds between snapshots */

struct extent { double low, high, sum, squares; uint32_t n; };
struct series { double *v; uint32_t n; };

enum { ALONE_MAX_MIN, ALL_MAX_MIN, DONORS_MAX_MEAN, DONORS_DEVIATION, SERIES };

struct spread {
	uint32_t nodes, warmup, now, at;
	struct extent alone, all, donors;
	uint32_t bins[BINS];
	double *snapshot;      /* local use at the last multiple of STABLE_EVERY */
	uint32_t snapshot_at;  /* 0 = none */
	uint64_t same[3], compared[3];
	struct series series[SERIES];
	double wanted, local, used, away, served;
	uint64_t pressed, node_seconds, seconds, looks, severe;
};

int spread_new(struct spread **out, uint32_t nodes, uint32_t seconds, uint32_t warmup)
{
	struct spread *s = calloc(1, sizeof(*s));
	int missing;

	if (!s)
		return -ENOMEM;
	s->nodes = nodes;
	s->warmup = warmup;
	s->snapshot = calloc(nodes, sizeof(*s->snapshot));
	missing = !s->snapshot;
	for (int i = 0; i < SERIES; i++) {
		s->series[i].v = calloc(seconds, sizeof(double));
		missing |= !s->series[i].v;
	}
	if (missing) {
		spread_free(&s);
		return -ENOMEM;
	}
	*out = s;
	return 0;
}

void spread_free(struct spread **s)
{
	if (!*s)
		return;
	for (int i = 0; i < SERIES; i++)
		free((*s)->series[i].v);
	free((*s)->snapshot);
	free(*s);
	*s = NULL;
}

static void include(struct extent *e, double v)
{
	if (!e->n || v < e->low)
		e->low = v;
	if (!e->n || v > e->high)
		e->high = v;
	e->sum += v;
	e->squares += v * v;
	e->n++;
}

void spread_begin(struct spread *s, uint32_t now)
{
	s->now = now;
	s->at = 0;
	s->alone = s->all = s->donors = (struct extent){ 0 };
	memset(s->bins, 0, sizeof(s->bins));
}

/* Checks after 10, 20 and 40 s whether the use is within 10 % of the earlier one. */
static void compare(struct spread *s, double local)
{
	static const uint32_t after[3] = { 10, 20, 40 };

	for (int i = 0; s->snapshot_at && i < 3; i++)
		if (s->now - s->snapshot_at == after[i]) {
			double was = s->snapshot[s->at];

			s->same[i] += fabs(local - was) <= 0.1 * was;
			s->compared[i]++;
		}
	if (s->now % STABLE_EVERY == 0)
		s->snapshot[s->at] = local;
}

void spread_add(struct spread *s, const struct spread_node *n)
{
	double used = n->local + n->hosted;

	if (s->now < s->warmup)
		return;
	compare(s, n->local);
	s->at++;
	s->pressed += used > 1 + 1e-9;
	used = fmin(used, 1);
	s->bins[(int)(n->local * (BINS - 1))]++;
	include(&s->alone, n->local);
	include(&s->all, used);
	if (n->hosted > 0)
		include(&s->donors, used);
	s->wanted += n->wanted;
	s->local += n->local;
	s->used += used;
	s->away += n->away;
	s->served += n->served;
	s->node_seconds++;
}

static double percentile(const struct spread *s, double part)
{
	double want = part * s->nodes, seen = 0;
	int i = 0;

	while (i < BINS - 1 && (seen += s->bins[i]) < want)
		i++;
	return (i + 0.5) / BINS;
}

static void append(struct spread *s, int which, double v)
{
	struct series *to = &s->series[which];

	to->v[to->n++] = v;
}

/* Standard deviation / mean. */
static double deviation(const struct extent *e)
{
	double mean = e->sum / e->n;

	return sqrt(fmax(e->squares / e->n - mean * mean, 0)) / mean;
}

void spread_end(struct spread *s)
{
	const struct extent *d = &s->donors;

	if (s->now < s->warmup)
		return;
	if (s->now % STABLE_EVERY == 0)
		s->snapshot_at = s->now;
	append(s, ALONE_MAX_MIN, s->alone.high / s->alone.low);
	append(s, ALL_MAX_MIN, s->all.high / s->all.low);
	if (d->n) {
		append(s, DONORS_MAX_MEAN, d->high * d->n / d->sum);
		append(s, DONORS_DEVIATION, deviation(d));
	}
	s->seconds++;
	if (s->now % SPREAD_EVERY == 0) {
		s->looks++;
		s->severe += percentile(s, 0.99) >= CLUSTER_SEVERE * percentile(s, 0.5);
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(struct series *s)
{
	if (!s->n)
		return 0;
	qsort(s->v, s->n, sizeof(double), by_value);
	return s->v[s->n / 2];
}

static double part(double of, double all)
{
	return all > 0 ? of / all : 0;
}

void spread_result(struct spread *s, struct cluster_result *x)
{
	double n = (double)s->node_seconds;

	x->alone_use = part(s->local, n);
	x->demand = part(s->wanted, n);
	x->use = part(s->used, n);
	x->served = part(s->served, s->away);
	x->pressed = part((double)s->pressed, n);
	x->severe = part((double)s->severe, (double)s->looks);
	for (int i = 0; i < 3; i++)
		x->stable[i] = part((double)s->same[i], (double)s->compared[i]);
	x->alone_max_min = median(&s->series[ALONE_MAX_MIN]);
	x->max_min = median(&s->series[ALL_MAX_MIN]);
	x->donors_max_mean = median(&s->series[DONORS_MAX_MEAN]);
	x->donors_deviation = median(&s->series[DONORS_DEVIATION]);
}
