/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Decides by trials which sources of prefetch requests (such as streams or replay) a program may
 * use.
 *
 * A prefetched page costs CPU time, which may be short, and may evict a page that is needed;
 * accuracy shows neither.  So the program's progress is measured: a trial pauses one source for
 * one period (or resumes it, if it backs off), and compares the progress of that period with the
 * mean of the periods before and after it, which cancels a steady trend.  Trials begin at random
 * times while the source is in use, because programs have periods of their own.
 *
 * A source's mean over its trials, divided by the standard error, decides: a source that clearly
 * slows the program down backs off, and returns once it clearly speeds the program up.  The error
 * is estimated from the changes between periods without a trial, which are many more.  Trials
 * become rare once the answer is clear, and frequent while it seems to change.
 *
 * A trial shows what changes within its period: CPU time and late pages.  What a source evicts is
 * missed later, in part after the trial, so losses by that are underestimated.
 *
 * Pure: no clock and no kernel, so that tests can simulate programs.
 */
#ifndef EBB_GOVERNOR_H
#define EBB_GOVERNOR_H

#include <stdbool.h>
#include <stdint.h>

#define GOVERNOR_SOURCES 4

/* Where a source stands. */
enum governor_state {
	GOVERNOR_UNKNOWN,       /* runs; too few trials to tell */
	GOVERNOR_GAINS,         /* runs, and speeds the program up */
	GOVERNOR_BACKS_OFF,     /* slows the program down: paused except in trials */
};

struct governor_source {
	enum governor_state state;
	uint32_t interval;      /* mean periods of use between two trials; 0 = not chosen yet */
	uint32_t due;           /* periods of use until the next one */
	uint32_t trials;
	/* Of ln(progress with the source / progress without), older trials having less weight. */
	double weight, square, sum;
	double found;           /* gain that decided its state last; 0 = none did */
};

/* State of one program; starts as zeroes but for .seed, which is not 0. */
struct governor {
	uint64_t seed;
	struct governor_source source[GOVERNOR_SOURCES];
	uint32_t tried;         /* source of the trial, or GOVERNOR_SOURCES */
	uint32_t phase;         /* 0 in the trial's period, 1 in the one after it */
	bool running;           /* false: the first period */
	double before, during;  /* ln(progress) of the last period, and of the trial's */
	uint32_t used;          /* sources used in the trial's period */
	uint32_t changes;       /* between periods that .change covers */
	double change;          /* mean square of these */
};

/* Measurements of the last period; periods are of equal length, 0.1 s. */
struct governor_sample {
	/*
	 * Work done, in any unit; 0: none, or not comparable.  The caller leaves out the
	 * beginning of a period for which the sources were changed.
	 */
	double progress;
	uint32_t used;          /* bit i: pages that source i requested were read in the period */
	uint32_t plain;         /* bit i: source i obviously gains: begin with rare trials */
};

/* Returns the sources that may request pages in the next period, one bit each. */
uint32_t governor_step(struct governor *g, const struct governor_sample *s);

/* Returns the gain by a source, 0.05 = 5 % more progress, and its standard error in *@error. */
double governor_gain(const struct governor *g, uint32_t source, double *error);

#endif
