/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How much of its time a mutator has beside a collector: minimum mutator utilisation (Cheng and
 * Blelloch, PLDI'01) and its bounded form (Sachindran et al., OOPSLA'04).  MMU(w) is the least part
 * of a window of length w in which the mutator runs; BMU(w) is the least MMU of w and of all longer
 * windows, here of those that are sampled: UTILISATION_DECADE in each power of ten.
 */
#ifndef EBB_SIM_UTILISATION_H
#define EBB_SIM_UTILISATION_H

#include <stdio.h>

#include "heap_world.h"

#define UTILISATION_DECADE 10
#define UTILISATION_MOST 80

struct utilisation {
	uint32_t count;
	double window[UTILISATION_MOST]; /* seconds, ascending */
	double mmu[UTILISATION_MOST], bmu[UTILISATION_MOST]; /* 0 .. 1 */
};

/* From 10 us to the whole time. */
void utilisation_of(const struct heap_result *r, struct utilisation *u);

struct utilisation_curve {
	const char *name, *colour;
	const struct utilisation *u;
};

/* Draws BMU by window, a line for each of @n curves. */
void utilisation_svg(const struct utilisation_curve *curves, uint32_t n, const char *title,
		     FILE *to);

#endif
