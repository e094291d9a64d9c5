// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl top: live rates. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/live/snapshot.h"
#include "ebbctl/live/top_model.h"
#include "ebbctl/live/top_screen.h"
#include "ebbctl/live/top_view.h"
#include "ebbctl/process.h"
#include "lib/base/text.h"
#include "lib/base/clock.h"
#include "verbs.h"

#define MS 1000000ull
/* Interval at which the live view checks for a signal. */
#define SLICE_MS 100
#define INTERVAL_LEAST (100 * MS)
#define INTERVAL_MOST (3600 * 1000 * MS)

#define CTRL(letter) ((letter)&31)
#define ESCAPE CTRL('[')

struct top_options {
	struct common_options common;
	bool batch, reverse;
	uint64_t count, interval;
	const char *sort, *filter;
};

static const char keys[] =
	"q quit  s sort  r reverse  / filter  p pause  d devices  o donors  + - interval  arrows scroll";

/* --- batch --------------------------------------------------------------------------- */

static void print_frame(struct json_object *frame)
{
	top_write(stdout, frame, TOP_ALL, TOP_PLAIN);
}

static int run_batch(const struct top_options *o, const struct top_wish *wish, struct error *e)
{
	_cleanup_json_ struct json_object *before = NULL;
	int r = snapshot_take(&before, e);

	for (uint64_t n = 0; !r && (!o->count || n < o->count); n++) {
		struct json_object *now, *frame;

		poll(NULL, 0, (int)(o->interval / MS));
		r = snapshot_take(&now, e);
		if (r)
			break;
		frame = top_frame(before, now, wish);
		if (n && !o->common.json)
			printf("\n");
		output(o->common.json, frame, print_frame);
		json_object_put(frame);
		json_object_put(before);
		before = now;
		if (fflush(stdout))
			return fail(e, errno, "stdout: %m");
	}
	return r;
}

/* --- live ------------------------------------------------------------------------------ */

struct live {
	struct top_screen *screen;
	struct top_wish wish;
	char filter[128];
	uint64_t interval;
	uint64_t next;              /* ns: time of the next snapshot */
	enum top_parts parts;
	bool paused, typing, ending;
	int first;                  /* first line shown */
	struct json_object *before, *now;
};

static void draw(struct live *l)
{
	struct json_object *frame = top_frame(l->before, l->now, &l->wish);
	char *text = NULL, bottom[512];
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	if (f)
		top_write(f, frame, l->parts, TOP_MARKED);
	if (f && fclose(f) == 0) {
		if (l->typing)
			snprintf(bottom, sizeof(bottom), "filter: %s_", l->filter);
		else
			snprintf(bottom, sizeof(bottom), "%sby %s%s%s%s, every %.1f s | %s",
				 l->paused ? "PAUSED, " : "", l->wish.sort,
				 l->wish.order == TOP_REVERSED ? " reversed" : "",
				 *l->filter ? ", only " : "", l->filter, (double)l->interval / 1e9, keys);
		top_screen_draw(l->screen, text, &l->first, bottom);
	}
	free(text);
	json_object_put(frame);
}

static int look(struct live *l, struct error *e)
{
	struct json_object *fresh;
	int r = snapshot_take(&fresh, e);

	if (r)
		return r;
	json_object_put(l->before);
	l->before = l->now;
	l->now = fresh;
	l->next = now_ns() + l->interval;
	return 0;
}

static void type(struct live *l, int key)
{
	size_t len = strlen(l->filter);

	if (key == '\n' || key == '\r') {
		l->typing = false;
	} else if (key == ESCAPE || key == CTRL('C')) {
		l->typing = false;
		l->filter[0] = '\0';
	} else if (key == TOP_KEY_BACK && len) {
		l->filter[len - 1] = '\0';
	} else if (key >= ' ' && key < 127 && len < sizeof(l->filter) - 1) {
		l->filter[len] = (char)key;
		l->filter[len + 1] = '\0';
	}
}

static void change_interval(struct live *l, uint64_t ns)
{
	l->interval = ns < INTERVAL_LEAST ? INTERVAL_LEAST :
		      ns > INTERVAL_MOST  ? INTERVAL_MOST :
					    ns;
	l->next = now_ns() + l->interval;
}

static void obey(struct live *l, int key)
{
	if (l->typing) {
		type(l, key);
		return;
	}
	switch (key) {
	case 'q': case CTRL('C'): case ESCAPE: l->ending = true; break;
	case 's': l->wish.sort = top_next_sort(l->wish.sort); break;
	case 'r': l->wish.order = l->wish.order == TOP_USUAL ? TOP_REVERSED : TOP_USUAL; break;
	case '/': l->typing = true; break;
	case 'p': case ' ': l->paused = !l->paused; break;
	case 'd': l->parts ^= TOP_DEVICES; break;
	case 'o': l->parts ^= TOP_DONORS; break;
	case CTRL('L'): top_screen_redraw(l->screen); break;
	case '+': change_interval(l, l->interval * 2); break;
	case '-': change_interval(l, l->interval / 2); break;
	case TOP_KEY_UP: l->first--; break;
	case TOP_KEY_DOWN: l->first++; break;
	}
}

static int run_live(const struct top_options *o, const struct top_wish *wish, struct error *e)
{
	struct live l = { .wish = *wish, .interval = o->interval, .parts = TOP_ALL };
	uint64_t left = o->count;
	bool changed = true;        /* since the last draw() */
	int r;

	snprintf(l.filter, sizeof(l.filter), "%s", wish->filter);
	l.wish.filter = l.filter;
	r = look(&l, e);
	if (!r)
		r = top_screen_open(&l.screen, e);
	process_defer_signals();
	while (!r && !l.ending && !process_interrupted()) {
		int key;

		if (changed)
			draw(&l);
		key = top_screen_key(l.screen, SLICE_MS);
		/* A resize is a key. */
		changed = key != TOP_KEY_NONE;
		if (changed)
			obey(&l, key);
		if (l.paused || now_ns() < l.next)
			continue;
		r = look(&l, e);
		changed = true;
		l.ending |= left && !--left;
	}
	top_screen_close(&l.screen);
	json_object_put(l.before);
	json_object_put(l.now);
	return r;
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	const struct top_options *o = options;
	struct top_wish wish = { o->sort, o->reverse ? TOP_REVERSED : TOP_USUAL, o->filter };

	if (o->interval < INTERVAL_LEAST || o->interval > INTERVAL_MOST)
		return fail_exit(e, EXIT_USAGE, ERANGE, "--interval: out of range; give 100ms to 1h");
	return o->batch || o->common.json ? run_batch(o, &wish, e) : run_live(o, &wish, e);
}

static const struct option_spec specs[] = {
	OPTION_JSON,
	OPTION(top_options, batch, "batch", OPTION_FLAG, NULL, .letter = 'b',
	       .help = "print tables to standard output, without a terminal"),
	OPTION(top_options, count, "count", OPTION_UINT, "N", .letter = 'n',
	       .help = "exit after N updates; 0: never [0]"),
	OPTION(top_options, interval, "interval", OPTION_DURATION, "TIME", .letter = 'i',
	       .help = "time between updates [2s]"),
	OPTION(top_options, sort, "sort", OPTION_STRING, TOP_SORTS, .letter = 's',
	       .help = "sort key, largest first [misses]"),
	OPTION(top_options, reverse, "reverse", OPTION_FLAG, NULL, .letter = 'r',
	       .help = "reverse the order"),
	OPTION(top_options, filter, "filter", OPTION_STRING, "TEXT", .letter = 'f',
	       .help = "show only cgroups whose path contains TEXT"),
	OPTIONS_END
};

static const struct top_options defaults = {
	.interval = 2000 * MS, .sort = "misses", .filter = "",
};

const struct command command_top = {
	.object = "top", .help = "Show rates of misses and hits, and latency, live",
	.example = "  ebbctl top --batch --count 1 --sort p99\n", .options = specs,
	.options_size = sizeof(struct top_options), .defaults = &defaults, .run = run,
};
