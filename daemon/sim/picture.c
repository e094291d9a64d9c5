// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/base/process_run.h"
#include "picture.h"

static bool ends_with(const char *name, const char *suffix)
{
	size_t n = strlen(name), k = strlen(suffix);

	return n > k && !strcmp(name + n - k, suffix);
}

int picture_check(const char *command, const char *output, struct error *e)
{
	if (!output)
		return fail_exit(e, EXIT_USAGE, EINVAL, "%s: file missing; give -o OUT.svg or OUT.png",
				 command);
	if (!ends_with(output, ".svg") && !ends_with(output, ".png"))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: unknown format; give a name that ends in .svg or .png",
				 output);
	return 0;
}

/* librsvg draws PNG from the SVG, in a staging file beside the result. */
static int write_png(const char *svg, const char *output, struct error *e)
{
	char from[PATH_MAX], to[PATH_MAX];
	const char *const argv[] = { "rsvg-convert", "--format", "png", "--output", to, from, NULL };
	struct error why = { 0 };
	int r;

	if (snprintf(from, sizeof(from), "%s.svg~", output) >= (int)sizeof(from) ||
	    snprintf(to, sizeof(to), "%s.png~", output) >= (int)sizeof(to))
		return fail(e, ENAMETOOLONG, "%.200s...: name too long; give a shorter one", output);
	r = file_replace(from, svg);
	if (r)
		return fail(e, r, "%s: cannot write: %s; give a file in an existing directory",
			    output, strerror(-r));
	r = process_run(argv, NULL, 0, &why);
	unlink(from);
	if (!r && rename(to, output) < 0)
		r = fail(e, errno, "%s: cannot write: %s", output, strerror(errno));
	if (r) {
		unlink(to);
		return fail(e, r, "%s: cannot draw: %s; install librsvg2-bin, or give a name that ends in .svg",
			    output, why.text);
	}
	return 0;
}

int picture_write(const char *svg, const char *output, struct error *e)
{
	int r;

	if (ends_with(output, ".png"))
		return write_png(svg, output, e);
	r = file_replace(output, svg);
	return r ? fail(e, r, "%s: cannot write: %s; give a file in an existing directory",
			output, strerror(-r)) : 0;
}
