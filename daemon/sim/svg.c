// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>

#include "svg.h"

void svg_begin(FILE *to, int width, int height)
{
	fprintf(to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"DejaVu Sans, Helvetica, sans-serif\" font-size=\"12\">\n",
		width, height, width, height);
	fprintf(to, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
}

/* Writes text that may come from a program's name. */
static void put_text(const char *text, FILE *to)
{
	for (; *text; text++)
		switch (*text) {
		case '<':
			fputs("&lt;", to);
			break;
		case '>':
			fputs("&gt;", to);
			break;
		case '&':
			fputs("&amp;", to);
			break;
		default:
			fputc((unsigned char)*text < ' ' ? '?' : *text, to);
		}
}

void svg_text(FILE *to, double x, double y, const char *anchor, const char *colour,
	      const char *words)
{
	fprintf(to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"%s\">", x, y, anchor,
		colour);
	put_text(words, to);
	fprintf(to, "</text>\n");
}

double svg_tick_step(double range, int n)
{
	double step = pow(10, floor(log10(range / n)));

	return range / step > 5 * n ? 10 * step : range / step > 2 * n ? 5 * step :
	       range / step > n ? 2 * step : step;
}
