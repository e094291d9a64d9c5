// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>

#include "demand.h"
#include "lib/base/draw.h"

/* Within (0, 1). */
static double uniform(uint64_t *seed)
{
	return (draw32(seed) + 0.5) / 4294967296.0;
}

double demand_lognormal(uint64_t *seed, double median, double sigma)
{
	double r = sqrt(-2 * log(uniform(seed)));

	/* Box and Muller, 1958. */
	return median * exp(sigma * r * cos(2 * M_PI * uniform(seed)));
}

/* Returns the seconds to the next event of a Poisson process, at least 1. */
static uint32_t wait(uint64_t *seed, double rate)
{
	double s = ceil(-log(uniform(seed)) / rate);

	return s < 1 ? 1 : s < UINT32_MAX / 2 ? (uint32_t)s : UINT32_MAX / 2;
}

/* Returns the bound below which a part @p of the standard normal distribution lies. */
static double normal_quantile(double p)
{
	double low = -9, high = 9;

	for (int i = 0; i < 60; i++) {
		double middle = (low + high) / 2;

		if (erfc(-middle / M_SQRT2) / 2 < p)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static void swap_bases(struct demand *a, struct demand *b)
{
	double base = a->base;

	a->base = b->base;
	b->base = base;
}

/* An exchange changes two machines: each begins half of those it takes part in. */
static void draw_next_base(struct demand *d, uint32_t now, uint64_t *seed)
{
	d->next_base = now + wait(seed, 0.5 / DEMAND_LIFETIME);
}

static void draw_factor(struct demand *d, uint32_t now, uint64_t *seed)
{
	/* A log-normal's mean is median * exp(sigma^2 / 2). */
	double median = exp(-DEMAND_FLICKER * DEMAND_FLICKER / 2);

	d->factor = demand_lognormal(seed, median, DEMAND_FLICKER);
	d->next_factor = now + wait(seed, DEMAND_RATE);
}

void demand_start(struct demand *d, uint32_t n, uint64_t *seed)
{
	for (uint32_t i = 0; i < n; i++) {
		double z = normal_quantile((i + uniform(seed)) / n);
		double base = DEMAND_MEDIAN * exp(DEMAND_SIGMA * z);

		d[i].base = fmin(fmax(base, DEMAND_LEAST), DEMAND_MOST);
		draw_next_base(&d[i], 0, seed);
		draw_factor(&d[i], 0, seed);
	}
	/* Fisher and Yates. */
	for (uint32_t i = n; i > 1; i--)
		swap_bases(&d[i - 1], &d[draw_below(seed, i)]);
}

void demand_step(struct demand *d, uint32_t n, uint32_t now, uint64_t *seed)
{
	for (uint32_t i = 0; i < n; i++) {
		if (now >= d[i].next_base) {
			swap_bases(&d[i], &d[draw_below(seed, n)]);
			draw_next_base(&d[i], now, seed);
		}
		if (now >= d[i].next_factor)
			draw_factor(&d[i], now, seed);
	}
}

double demand_now(const struct demand *d)
{
	return fmin(fmax(d->base * d->factor, DEMAND_LEAST), DEMAND_MOST);
}
