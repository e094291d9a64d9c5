/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Faults over time as an SVG: pages in order of address from bottom to top,
 * unused stretches of address space cut short.
 *
 * The drawing is a grid of cells; a cell takes the colour of most of its
 * faults, so that the file stays below a megabyte however long the trace is.
 */
#ifndef EBB_PLOT_H
#define EBB_PLOT_H

#include <stdio.h>

#include "trace_load.h"

enum plot_by { PLOT_BY_KIND, PLOT_BY_THREAD };

/* Writes the whole file to @to; @title goes above it.  -ENOMEM, or 0. */
int plot_svg(const struct loaded_trace *t, enum plot_by by, const char *title, FILE *to);

#endif
