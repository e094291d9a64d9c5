/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Decides by benefit which sources of prefetch requests a program may use.
 *
 * A prefetched page costs CPU time on machines that have none to spare, and may evict a page that
 * is needed; accuracy shows neither.  So the program's progress is compared: in a trial, one source
 * is switched over (paused, or resumed if it backs off) for one period, and the progress of that
 * period is compared with the mean of the periods before and after it, which cancels a steady
 * change.  Trials begin at random times, because programs have periods of their own.
 *
 * The mean of a source's trials over its standard error decides: a source that clearly slows the
 * program down backs off, one that clearly speeds it up again returns.  The error is taken
 * from the changes between periods without a trial, which are many more.  Trials grow rare as the
 * answer gets clear, and frequent while it seems to change.
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
	GOVERNOR_GAINS,         /* runs, and the program is faster by it */
	GOVERNOR_BACKS_OFF,     /* slows the program down: paused but for trials */
};

struct governor_source {
	enum governor_state state;
	uint32_t interval;      /* mean periods between two trials; 0 = not chosen yet */
	uint32_t due;           /* periods until the next one */
	uint32_t trials;
	/* Of ln(progress with the source / progress without), older trials having less weight. */
	double weight, square, sum;
};

/* State of one program; starts as zeroes but for .seed, which is not 0. */
struct governor {
	uint64_t seed;
	struct governor_source source[GOVERNOR_SOURCES];
	uint32_t tried;         /* source of the trial, or GOVERNOR_SOURCES */
	uint32_t phase;         /* periods since the trial's began */
	bool running;           /* false: the first period */
	double before, during;  /* ln(progress) of the last period, and of the trial's */
	double change;          /* mean square of changes between periods; 0 = not known */
};

/* Measurements of the last period; periods are of equal length, 0.1 s. */
struct governor_sample {
	/*
	 * Work done, in any unit; 0: none, or not comparable.  The caller leaves out the
	 * beginning of a period for which the sources were changed.
	 */
	double progress;
	uint32_t used;          /* bit i: source i requested pages lately; others have no trials */
	uint32_t plain;         /* bit i: it saves more time than the program runs: few trials */
};

/* Returns the sources that may request pages in the next period, one bit each. */
uint32_t governor_step(struct governor *g, const struct governor_sample *s);

/* Returns the gain by a source, 0.05 = 5 % more progress, and its standard error in *@error. */
double governor_gain(const struct governor *g, uint32_t source, double *error);

#endif
