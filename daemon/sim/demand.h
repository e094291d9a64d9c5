/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory demand of the programs of machines, second by second.
 *
 *	demand = base * factor
 *
 * The base is a machine's share of the load.  Over the machines it is log-normal,
 * one value from each of as many equal slices of the distribution, so that few
 * machines are as skewed as many; never below what a machine needs to run at all.
 * It lasts DEMAND_LIFETIME on average (exponential), then the machine exchanges
 * its load with another one.  The factor varies from second to
 * second: log-normal with mean 1, sampled again at DEMAND_RATE.
 * docs/placement.md says which published figures the constants reproduce.
 */
#ifndef EBB_SIM_DEMAND_H
#define EBB_SIM_DEMAND_H

#include <stdint.h>

#define DEMAND_MEDIAN 0.27   /* of a machine's memory */
#define DEMAND_SIGMA 1.4
#define DEMAND_LEAST 0.045
#define DEMAND_MOST 4.0      /* with the factor, too: a swap device is limited */
#define DEMAND_LIFETIME 1800 /* seconds */
#define DEMAND_RATE 0.051    /* a second */
#define DEMAND_FLICKER 0.30  /* sigma of the factor */

struct demand {
	double base, factor;
	uint32_t next_base, next_factor; /* seconds */
};

/* Sets the demand of @n machines at second 0; @seed as in lib/base/draw.h. */
void demand_start(struct demand *d, uint32_t n, uint64_t *seed);

/* Advances all @n machines to second @now. */
void demand_step(struct demand *d, uint32_t n, uint32_t now, uint64_t *seed);

/* Returns the demand in machines: 1 is all of its memory. */
double demand_now(const struct demand *d);

/* Returns a log-normal number with this median. */
double demand_lognormal(uint64_t *seed, double median, double sigma);

#endif
