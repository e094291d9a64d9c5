/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What drawings as SVG share. */
#ifndef EBB_SIM_SVG_H
#define EBB_SIM_SVG_H

#include <stdio.h>

#define SVG_INK "#1c2733"
#define SVG_FAINT "#8a97a5"

/* Opens the drawing, of so many pixels; "</svg>" ends it. */
void svg_begin(FILE *to, int width, int height);
/* Writes @words, which may be any, at a place; @anchor: start, middle, end. */
void svg_text(FILE *to, double x, double y, const char *anchor, const char *colour,
	      const char *words);
/* Returns 1, 2 or 5 times a power of ten, so that about @n of them make @range. */
double svg_tick_step(double range, int n);

#endif
