// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "page_axis.h"
#include "plot.h"
#include "svg.h"

/* Pixels. */
#define WIDTH 1200
#define HEIGHT 680
#define LEFT 76
#define TOP 84
#define CELL 2
#define COLUMNS 540
#define ROWS 266
#define CLASSES 8
#define NOTHING UINT8_MAX

/* Swap-outs come last: they are plotted only in otherwise empty cells. */
static const char *const kind_colour[TRACE_KINDS] = { "#d1495b", "#2a9d8f", "#edae49", "#c9d1d9" };
static const char *const kind_label[TRACE_KINDS] = {
	"misses: waited for the page", "hits: prefetched in time", "late: still on its way",
	"swap-outs",
};
static const char *const thread_colour[CLASSES] = {
	"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#e28743", "#8a97a5",
};

struct plot {
	const struct loaded_trace *t;
	enum plot_by by;
	struct page_axis axis;
	uint32_t (*cell)[CLASSES];
	uint8_t *class;         /* of each cell */
};

/* Returns the colour of a record by its thread: those with most faults have their own. */
static uint32_t thread_class(const struct plot *p, const struct trace_record *r)
{
	for (uint32_t i = 0; i < CLASSES - 1 && i < p->t->threads; i++)
		if (p->t->thread[i].tid == r->tid && p->t->thread[i].tgid == r->tgid)
			return i;
	return CLASSES - 1;
}

static int fill_cells(struct plot *p)
{
	double span = p->t->span_ns ? (double)p->t->span_ns : 1;

	p->cell = calloc(COLUMNS * ROWS, sizeof(*p->cell));
	p->class = malloc(COLUMNS * ROWS);
	if (!p->cell || !p->class)
		return -ENOMEM;
	for (size_t i = 0; i < p->t->records; i++) {
		const struct trace_record *r = &p->t->record[i];
		uint32_t x = (uint32_t)((double)r->time_ns / span * (COLUMNS - 1));
		uint32_t y = (uint32_t)((double)page_axis_height(&p->axis, r) /
				 (double)p->axis.top * ROWS);

		if (p->by == PLOT_BY_KIND)
			p->cell[y * COLUMNS + x][r->kind]++;
		else if (r->kind != TRACE_OUT)
			p->cell[y * COLUMNS + x][thread_class(p, r)]++;
	}
	for (uint32_t i = 0; i < COLUMNS * ROWS; i++) {
		uint32_t last = p->by == PLOT_BY_KIND ? TRACE_OUT : CLASSES, most = 0;

		p->class[i] = p->by == PLOT_BY_KIND && p->cell[i][TRACE_OUT] ? TRACE_OUT : NOTHING;
		for (uint32_t k = 0; k < last; k++)
			if (p->cell[i][k] > most) {
				most = p->cell[i][k];
				p->class[i] = (uint8_t)k;
			}
	}
	return 0;
}

/* Draws one path per colour; neighbours in a row are one stroke. */
static void draw_class(const struct plot *p, uint8_t class, const char *colour, FILE *to)
{
	bool any = false;

	for (uint32_t y = 0; y < ROWS; y++)
		for (uint32_t x = 0; x < COLUMNS; x++) {
			uint32_t from = x;

			if (p->class[y * COLUMNS + x] != class)
				continue;
			while (x + 1 < COLUMNS && p->class[y * COLUMNS + x + 1] == class)
				x++;
			if (!any)
				fprintf(to, "<path stroke=\"%s\" d=\"", colour);
			any = true;
			fprintf(to, "M%u %uh%u", LEFT + CELL * from,
				TOP + CELL * (ROWS - 1 - y) + CELL / 2, CELL * (x + 1 - from));
		}
	if (any)
		fprintf(to, "\"/>\n");
}

static void draw_axes(const struct plot *p, FILE *to)
{
	double seconds = p->t->span_ns ? (double)p->t->span_ns / 1e9 : 1e-9;
	double mib = (double)(p->axis.top << p->t->info.page_shift) / (1 << 20);
	double right = LEFT + CELL * COLUMNS, bottom = TOP + CELL * ROWS, step;
	char label[32];

	fprintf(to, "<path fill=\"none\" stroke=\"" SVG_FAINT "\" stroke-width=\"1\" d=\"M%d %dV%.0fH%.0f\"/>\n",
		LEFT, TOP, bottom + 0.5, right);
	step = svg_tick_step(seconds, 8);
	for (double v = 0; v <= seconds; v += step) {
		snprintf(label, sizeof(label), "%.6g", v);
		svg_text(to, LEFT + v / seconds * CELL * COLUMNS, bottom + 18, "middle", SVG_FAINT, label);
	}
	step = svg_tick_step(mib, 8);
	for (double v = 0; v <= mib; v += step) {
		snprintf(label, sizeof(label), "%.6g", v);
		svg_text(to, LEFT - 8, bottom - v / mib * CELL * ROWS + 4, "end", SVG_FAINT, label);
	}
	svg_text(to, right, bottom + 38, "end", SVG_FAINT, "seconds since the recording began");
	svg_text(to, LEFT - 8, TOP - 12, "start", SVG_FAINT, "MiB of addresses in use (holes cut short)");
}

static void legend_entry(FILE *to, uint32_t i, const char *colour, const char *words)
{
	uint32_t x = LEFT + i % 4 * 270, y = 46 + i / 4 * 16;

	fprintf(to, "<rect x=\"%u\" y=\"%u\" width=\"9\" height=\"9\" fill=\"%s\"/>\n", x, y - 9,
		colour);
	svg_text(to, x + 14, y, "start", SVG_INK, words);
}

static void draw_legend(const struct plot *p, FILE *to)
{
	const struct loaded_trace *t = p->t;
	char words[96];

	for (uint32_t i = 0; p->by == PLOT_BY_KIND && i < TRACE_KINDS; i++) {
		snprintf(words, sizeof(words), "%" PRIu64 " %s", t->count[i], kind_label[i]);
		legend_entry(to, i, kind_colour[i], words);
	}
	for (uint32_t i = 0; p->by == PLOT_BY_THREAD && i < CLASSES - 1 && i < t->threads; i++) {
		const struct loaded_thread *thread = &t->thread[i];

		snprintf(words, sizeof(words), "%.15s %u: %" PRIu64 " faults", thread->comm, thread->tid,
			 thread->count[TRACE_MISS] + thread->count[TRACE_HIT] +
				 thread->count[TRACE_LATE]);
		legend_entry(to, i, thread_colour[i], words);
	}
	if (p->by == PLOT_BY_THREAD && t->threads >= CLASSES) {
		snprintf(words, sizeof(words), "%zu other threads", t->threads - CLASSES + 1);
		legend_entry(to, CLASSES - 1, thread_colour[CLASSES - 1], words);
	}
}

static void draw(const struct plot *p, const char *title, FILE *to)
{
	uint8_t classes = p->by == PLOT_BY_KIND ? TRACE_KINDS : CLASSES;

	svg_begin(to, WIDTH, HEIGHT);
	fprintf(to, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f5f7f9\"/>\n", LEFT, TOP,
		CELL * COLUMNS, CELL * ROWS);
	fprintf(to, "<g font-size=\"15\" font-weight=\"bold\">\n");
	svg_text(to, LEFT, 24, "start", SVG_INK, title);
	fprintf(to, "</g>\n");
	draw_legend(p, to);
	draw_axes(p, to);
	fprintf(to, "<g fill=\"none\" stroke-width=\"%d\" shape-rendering=\"crispEdges\">\n", CELL);
	for (uint8_t k = 0; k < classes; k++)
		draw_class(p, k, p->by == PLOT_BY_KIND ? kind_colour[k] : thread_colour[k], to);
	fprintf(to, "</g>\n</svg>\n");
}

int plot_svg(const struct loaded_trace *t, enum plot_by by, const char *title, FILE *to)
{
	struct plot p = { .t = t, .by = by };
	int r = page_axis_init(&p.axis, t);

	if (!r)
		r = fill_cells(&p);
	if (!r)
		draw(&p, title, to);
	page_axis_free(&p.axis);
	free(p.cell);
	free(p.class);
	return r;
}
