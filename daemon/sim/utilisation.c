// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "svg.h"
#include "utilisation.h"

#define PS 1e12
#define SHORTEST 1e-5 /* seconds */

/* Pixels. */
#define WIDTH 1000
#define HEIGHT 560
#define LEFT 76
#define TOP 84
#define ACROSS 880
#define DOWN 410

/* Returns the stopped time before @at; @before: of all pauses before each. */
static double stopped_until(const struct heap_result *r, const double *before, double at)
{
	uint32_t low = 0, high = r->pauses;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if ((double)r->pause[middle].start < at)
			low = middle + 1;
		else
			high = middle;
	}
	if (!low)
		return 0;
	return before[low - 1] + fmin((double)r->pause[low - 1].length,
				      at - (double)r->pause[low - 1].start);
}

/* The worst window begins with a pause or ends with one. */
static double mmu(const struct heap_result *r, const double *before, double window)
{
	double most = 0, all = (double)r->time;

	for (uint32_t i = 0; i < r->pauses; i++) {
		double from = (double)r->pause[i].start, to = from + (double)r->pause[i].length;
		double begin = fmin(from, all - window), end = fmax(to, window);

		most = fmax(most, stopped_until(r, before, begin + window) -
					  stopped_until(r, before, begin));
		most = fmax(most, stopped_until(r, before, end) -
					  stopped_until(r, before, end - window));
	}
	return fmax(0, 1 - most / window);
}

void utilisation_of(const struct heap_result *r, struct utilisation *u)
{
	double *before = heap_zeroed(r->pauses + 1, sizeof(*before)), all = (double)r->time / PS;

	u->count = 0;
	for (uint32_t i = 0; i < r->pauses; i++)
		before[i + 1] = before[i] + (double)r->pause[i].length;
	while (u->count < UTILISATION_MOST) {
		double window = SHORTEST * pow(10, (double)u->count / UTILISATION_DECADE);
		bool last = window >= all || u->count == UTILISATION_MOST - 1;

		u->window[u->count] = last ? all : window;
		u->mmu[u->count] = all > 0 ? mmu(r, before, u->window[u->count] * PS) : 1;
		u->count++;
		if (last)
			break;
	}
	for (uint32_t i = u->count; i--;)
		u->bmu[i] = i + 1 < u->count ? fmin(u->mmu[i], u->bmu[i + 1]) : u->mmu[i];
	free(before);
}

static double x_of(double window, double longest)
{
	return LEFT + ACROSS * log10(window / SHORTEST) / log10(fmax(longest, 1e-4) / SHORTEST);
}

static double y_of(double part)
{
	return TOP + DOWN * (1 - part);
}

static void draw_axes(double longest, FILE *to)
{
	static const char *const units[] = { "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s",
					     "10 s", "100 s" };
	char label[16];

	fprintf(to, "<path fill=\"none\" stroke=\"" SVG_FAINT "\" d=\"M%d %dV%d.5H%d\"/>\n", LEFT, TOP,
		TOP + DOWN, LEFT + ACROSS);
	for (uint32_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
		double x = x_of(SHORTEST * pow(10, i), longest);

		if (x <= LEFT + ACROSS)
			svg_text(to, x, TOP + DOWN + 18, "middle", SVG_FAINT, units[i]);
	}
	for (double v = 0; v <= 100; v += svg_tick_step(100, 5)) {
		snprintf(label, sizeof(label), "%.0f %%", v);
		svg_text(to, LEFT - 8, y_of(v / 100) + 4, "end", SVG_FAINT, label);
	}
	svg_text(to, LEFT + ACROSS, TOP + DOWN + 38, "end", SVG_FAINT, "window");
	svg_text(to, LEFT - 8, TOP - 12, "start", SVG_FAINT,
		 "bounded minimum mutator utilisation (modelled)");
}

void utilisation_svg(const struct utilisation_curve *curves, uint32_t n, const char *title,
		     FILE *to)
{
	double longest = 0;

	for (uint32_t i = 0; i < n; i++)
		longest = fmax(longest, curves[i].u->window[curves[i].u->count - 1]);
	svg_begin(to, WIDTH, HEIGHT);
	fprintf(to, "<g font-size=\"15\" font-weight=\"bold\">\n");
	svg_text(to, LEFT, 24, "start", SVG_INK, title);
	fprintf(to, "</g>\n");
	draw_axes(longest, to);
	for (uint32_t i = 0; i < n; i++) {
		const struct utilisation *u = curves[i].u;
		uint32_t x = LEFT + i * 180;

		fprintf(to, "<rect x=\"%u\" y=\"37\" width=\"9\" height=\"9\" fill=\"%s\"/>\n", x,
			curves[i].colour);
		svg_text(to, x + 14, 46, "start", SVG_INK, curves[i].name);
		fprintf(to, "<path fill=\"none\" stroke-width=\"2\" stroke=\"%s\" d=\"",
			curves[i].colour);
		for (uint32_t k = 0; k < u->count; k++)
			fprintf(to, "%c%.1f %.1f", k ? 'L' : 'M', x_of(u->window[k], longest),
				y_of(u->bmu[k]));
		fprintf(to, "\"/>\n");
	}
	fprintf(to, "</svg>\n");
}
