// SPDX-License-Identifier: GPL-2.0-or-later
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lib/base/utf8.h"
#include "svg.h"

void svg_begin(FILE *to, int width, int height)
{
	fprintf(to, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"DejaVu Sans, Helvetica, sans-serif\" font-size=\"12\">\n",
		width, height, width, height);
	fprintf(to, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
}

/* U+FFFE and U+FFFF, which XML forbids besides control characters. */
static bool noncharacter(const unsigned char *c)
{
	return !strncmp((const char *)c, "\xef\xbf\xbe", 3) || !strncmp((const char *)c, "\xef\xbf\xbf", 3);
}

/*
 * Writes text that may come from a program's name, which the kernel cuts within a character, or
 * from a file's, which may be any bytes: replaces what XML forbids.
 */
static void put_text(const char *text, FILE *to)
{
	const unsigned char *c = (const unsigned char *)text;

	while (*c) {
		int len = utf8_length(c);

		if (!len || utf8_control(c) || noncharacter(c))
			fputc('?', to);
		else if (*c == '<')
			fputs("&lt;", to);
		else if (*c == '>')
			fputs("&gt;", to);
		else if (*c == '&')
			fputs("&amp;", to);
		else
			fwrite(c, 1, (size_t)len, to);
		c += len ?: 1;
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
