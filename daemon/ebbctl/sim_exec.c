// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/paths.h"
#include "sim_exec.h"

#define PROGRAM "ebb-sim"
#define OPTIONS_MOST 8

/* Writes "--name=value" of the option if it is set; returns whether it is. */
static bool write_word(const struct option_spec *s, const void *options, char *word, size_t size)
{
	const void *field = (const char *)options + s->offset;
	uint64_t number = 0;

	if (s->type == OPTION_FLAG) {
		snprintf(word, size, "--%s", s->name);
		return *(const bool *)field;
	}
	if (s->type == OPTION_STRING) {
		const char *text = *(const char *const *)field;

		snprintf(word, size, "--%s=%s", s->name, text ?: "");
		return text;
	}
	number = *(const uint64_t *)field;
	if (s->type == OPTION_DURATION)
		snprintf(word, size, "--%s=%.9fs", s->name, (double)number / 1e9);
	else
		snprintf(word, size, "--%s=%llu", s->name, (unsigned long long)number);
	return number;
}

int sim_exec(const char *command, const struct option_spec *specs, const void *options,
	     const char *file, struct error *e)
{
	char words[OPTIONS_MOST][PATH_MAX + 32];
	const char *path = ebb_program(PROGRAM), *argv[OPTIONS_MOST + 5] = { PROGRAM, command };
	int n = 0;

	for (const struct option_spec *s = specs; s->name && n < OPTIONS_MOST; s++)
		if (write_word(s, options, words[n], sizeof(words[n]))) {
			argv[2 + n] = words[n];
			n++;
		}
	argv[2 + n] = "--";
	argv[3 + n] = file;
	fflush(stdout);
	/* Not by PATH, which may be another user's. */
	if (!strchr(path, '/'))
		return fail(e, ENOENT, PROGRAM ": not found; install it beside ebbctl");
	execv(path, (char *const *)argv);
	return fail(e, errno, PROGRAM ": cannot run: %s; install it beside ebbctl", strerror(errno));
}
