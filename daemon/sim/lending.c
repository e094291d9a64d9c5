// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "lending.h"
#include "lib/base/draw.h"

#define NS_PER_SECOND 1e9
#define PROGRAM_CPUS 6 /* at most */
#define LOW 0.05       /* quantile */

struct run {
	uint32_t at;
	uint16_t pages;
};

/* The swapped-out pages of a program. */
struct away {
	struct run *runs;
	uint32_t count, room;
	uint64_t pages;
	uint32_t cpus[PROGRAM_CPUS]; /* of this second */
};

struct lending {
	const struct lending_config *config;
	struct lending_result *result;
	struct store *store;
	uint64_t seed;
	uint64_t away_pages; /* swapped out, stored at donors or not */
	uint64_t unstored;  /* pages that could not be swapped out this second */
	double *ratio;      /* live / lent of each second; negative: nothing was lent */
	uint32_t room;
	double wanted_sum, live_sum, lent_sum;
	struct away away[MIX_PROGRAMS]; /* of each program */
	struct mix mix;
};

static void free_run(struct lending *l, const struct mix_program *p, struct away *a, uint32_t i)
{
	struct run r = a->runs[i];

	l->store->ops->put(l->store, p->node, r.at, r.pages);
	a->runs[i] = a->runs[--a->count];
	a->pages -= r.pages;
	l->away_pages -= r.pages;
}

/* Frees random runs of the program until it has at most @pages. */
static void shrink(struct lending *l, const struct mix_program *p, struct away *a, uint64_t pages)
{
	while (a->pages > pages)
		free_run(l, p, a, draw_below(&l->seed, a->count));
}

static int add_run(struct away *a, uint32_t at, uint32_t pages)
{
	if (a->count == a->room) {
		uint32_t room = a->room ? 2 * a->room : 1024;
		struct run *runs = realloc(a->runs, room * sizeof(*runs));

		if (!runs)
			return -ENOMEM;
		a->runs = runs;
		a->room = room;
	}
	a->runs[a->count++] = (struct run){ at, (uint16_t)pages };
	a->pages += pages;
	return 0;
}

static uint32_t draw_run(struct lending *l)
{
	double u = (draw32(&l->seed) + 0.5) / 4294967296.0;

	return (uint32_t)exp(u * log(l->config->run + 1.0));
}

/* Stores a run of at most @most pages.  Returns how many, 0 when it was refused, or -ENOMEM. */
static int store_run(struct lending *l, const struct mix_program *p, struct away *a, uint64_t most)
{
	uint32_t run = draw_run(l), stored = 0;
	uint32_t cpu = a->cpus[draw_below(&l->seed, p->kind->cpus)];

	if (run > most)
		run = (uint32_t)most;
	while (stored < run) {
		uint32_t at, n = l->store->ops->take(l->store, p->node, cpu, run - stored, &at);

		if (!n)
			break;
		if (add_run(a, at, n))
			return -ENOMEM;
		stored += n;
		l->away_pages += n;
	}
	return (int)stored;
}

/* Returns @pages as a part of donors' memory. */
static double of_donors(double pages)
{
	const uint64_t all = STORE_PAGES;

	return pages / (double)all;
}

static void note_refusal(struct lending *l, uint32_t now, bool unit)
{
	struct lending_result *x = l->result;

	if (x->refused_at)
		return;
	x->refused_at = now;
	x->unit_refused = unit;
	x->refusal = of_donors((double)l->store->live);
}

static uint64_t wanted(const struct mix_program *p)
{
	return p->state == MIX_RUNNING ? p->away / EBB_PAGE : 0;
}

/* Pages that are swapped in in a second: what makes the program slower, by the cost of a page. */
static uint64_t paged_in(const struct lending *l, const struct mix_program *p)
{
	double whole = mix_seconds(p->kind, 1), now = mix_seconds(p->kind, p->ratio);

	if (!l->config->miss || p->state != MIX_RUNNING || now <= whole)
		return 0;
	return (uint64_t)(p->kind->cpus * (1 - whole / now) * NS_PER_SECOND /
			  (double)l->config->miss);
}

static void shrink_all(struct lending *l)
{
	for (uint32_t i = 0; i < l->mix.count; i++) {
		const struct mix_program *p = &l->mix.programs[i];
		struct away *a = &l->away[i];
		uint64_t in = paged_in(l, p), most = wanted(p);

		if (most > a->pages)
			most = a->pages;
		shrink(l, p, a, most > in ? most - in : 0);
		for (uint32_t k = 0; k < p->kind->cpus; k++)
			a->cpus[k] = draw_below(&l->seed, MIX_CPUS);
	}
}

/* Swaps out, a run of a random program at a time. */
static int grow_all(struct lending *l, uint32_t now)
{
	uint32_t growing[MIX_PROGRAMS], n = 0;

	l->unstored = 0;
	for (uint32_t i = 0; i < l->mix.count; i++)
		if (wanted(&l->mix.programs[i]) > l->away[i].pages)
			growing[n++] = i;
	while (n) {
		uint32_t k = draw_below(&l->seed, n), i = growing[k];
		const struct mix_program *p = &l->mix.programs[i];
		uint64_t lacking = wanted(p) - l->away[i].pages;
		int r = lacking ? store_run(l, p, &l->away[i], lacking) : 0;

		if (r < 0)
			return r;
		if (l->store->refused)
			note_refusal(l, now, true);
		if (!r)
			l->unstored += lacking;
		if (!r)
			growing[k] = growing[--n];
	}
	return 0;
}

static int count_second(struct lending *l, uint32_t now)
{
	if (now >= l->room) {
		uint32_t room = l->room ? 2 * l->room : 4096;
		double *ratio = realloc(l->ratio, room * sizeof(*ratio));

		if (!ratio)
			return -ENOMEM;
		l->ratio = ratio;
		l->room = room;
	}
	l->ratio[now - 1] = l->store->lent ? (double)l->store->live / (double)l->store->lent : -1;
	l->live_sum += (double)l->store->live;
	l->lent_sum += (double)l->store->lent;
	l->wanted_sum += (double)(l->away_pages + l->unstored);
	return 0;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void sum_up(struct lending *l, uint32_t seconds)
{
	struct lending_result *x = l->result;
	uint32_t part_n[LENDING_PARTS] = { 0 }, n = 0;

	x->seconds = seconds;
	if (!seconds)
		return;
	x->use = of_donors(l->live_sum / seconds);
	x->lent = l->lent_sum / seconds * EBB_PAGE;
	x->maps = (double)l->store->maps / seconds;
	x->unmaps = (double)l->store->unmaps / seconds;
	x->on_disk = l->wanted_sum > 0 ? 1 - l->live_sum / l->wanted_sum : 0;
	for (uint32_t i = 0; i < seconds; i++) {
		uint32_t part = (uint32_t)((uint64_t)i * LENDING_PARTS / seconds);

		if (l->ratio[i] < 0)
			continue;
		x->parts[part] += l->ratio[i];
		part_n[part]++;
		x->live_lent += l->ratio[i];
		l->ratio[n++] = l->ratio[i];
	}
	for (int i = 0; i < LENDING_PARTS; i++)
		x->parts[i] = part_n[i] ? x->parts[i] / part_n[i] : -1;
	if (!n)
		return;
	x->live_lent /= n;
	x->live_lent_sum = l->lent_sum > 0 ? l->live_sum / l->lent_sum : 0;
	qsort(l->ratio, n, sizeof(*l->ratio), by_value);
	x->live_lent_low = l->ratio[(uint32_t)(LOW * n)];
}

static int new_store(const struct lending_config *c, uint64_t seed, struct store **out)
{
	const struct store_slabs_config slabs = {
		.slab = c->unit == LENDING_SLABS ? c->slab : STORE_RUN * EBB_PAGE,
		.device = c->device, .columns = c->columns, .seed = seed,
		.pages = c->unit == LENDING_DISCARD,
	};

	switch (c->unit) {
	case LENDING_SHARES:
	case LENDING_BYTES:
		return store_bytes_new(out, c->unit == LENDING_SHARES);
	case LENDING_SLABS:
	case LENDING_DISCARD:
		return store_slabs_new(out, &slabs);
	case LENDING_ROUNDED:
		return store_extents_new(out, STORE_ROUNDED, seed);
	case LENDING_SPLIT:
		return store_extents_new(out, STORE_SPLIT, seed);
	default:
		return store_extents_new(out, STORE_SINGLE, seed);
	}
}

static int run(struct lending *l)
{
	uint32_t now = 0;
	int r = 0;

	while (!r && l->mix.ended < l->mix.count) {
		mix_second(&l->mix, ++now);
		if (l->store->ops->second)
			l->store->ops->second(l->store, now);
		shrink_all(l);
		r = grow_all(l, now);
		if (l->mix.refused)
			note_refusal(l, now, false);
		if (!r)
			r = count_second(l, now);
		if (l->config->to_refusal && l->result->refused_at)
			break;
	}
	if (!r)
		sum_up(l, now);
	return r;
}

int lending_run(const struct lending_config *config, struct lending_result *result)
{
	struct lending *l = calloc(1, sizeof(*l));
	struct lending_result x = { 0 };
	int r;

	if (!l)
		return -ENOMEM;
	l->config = config;
	l->result = &x;
	/* Never 0, and not close to the mix's. */
	l->seed = (config->seed + 1) * 0xD1B54A32D192ED03ull | 1;
	mix_make(&l->mix, (config->seed + 1) * 0x9E3779B97F4A7C15ull | 1,
		 config->unit == LENDING_SHARES);
	r = new_store(config, draw_stream(config->seed, 0), &l->store);
	if (!r)
		r = run(l);
	if (!r)
		*result = x;
	store_free(&l->store);
	for (int i = 0; i < MIX_PROGRAMS; i++)
		free(l->away[i].runs);
	free(l->ratio);
	free(l);
	return r;
}
