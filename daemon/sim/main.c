// SPDX-License-Identifier: GPL-2.0-or-later
/* ebb-sim: policies without a kernel, clusters without machines. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "lib/base/cleanup.h"
#include "lib/base/text.h"

#define PROGRAM "ebb-sim"

static const struct command *const commands[] = {
	&sim_command_show, &sim_command_plot, &sim_command_report, &sim_command_advise,
	&sim_command_trace, &sim_command_policies, &sim_command_cluster, NULL,
};

static void usage(FILE *to)
{
	fprintf(to, "Usage: " PROGRAM " COMMAND [OPTION...] [ARGUMENT...]\n"
		"Analyse recordings, simulate prefetch policies and clusters.\n\n");
	for (const struct command *const *c = commands; *c; c++)
		fprintf(to, "  %-10s  %s\n", (*c)->object, (*c)->help);
	fprintf(to, "\n" PROGRAM " COMMAND --help prints the options.\n");
}

static int run(const struct command *c, int argc, char **argv, struct error *e)
{
	_cleanup_free_ char *options = calloc(1, c->options_size + 1);
	int nargs, r;

	if (!options)
		return fail(e, ENOMEM, PROGRAM ": out of memory");
	if (c->defaults)
		memcpy(options, c->defaults, c->options_size);
	r = options_parse(c->options, argc, argv, options, false, &nargs, e);
	if (r == OPTIONS_HELP) {
		options_usage(PROGRAM, c);
		return 0;
	}
	if (!r && (nargs < c->min_args || nargs > c->max_args))
		r = fail_exit(e, EXIT_USAGE, EINVAL, "%s: %s; give %s", c->object,
			      nargs < c->min_args ? "argument missing" : "too many arguments",
			      c->arguments ? c->arguments : "none");
	if (!r)
		r = c->run(nargs, argv, options, e);
	output_error(c, options, e);
	return r;
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	struct error e = { 0 };
	int r = -EINVAL;

	if (!strcmp(word, "--version")) {
		puts(PROGRAM " " EBB_VERSION);
		return EXIT_OK;
	}
	if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
		usage(stdout);
		return EXIT_OK;
	}
	for (const struct command *const *c = commands; *c; c++)
		if (!strcmp((*c)->object, word)) {
			r = run(*c, argc - 2, argv + 2, &e);
			word = NULL;
			break;
		}
	if (argc < 2) {
		usage(stderr);
		return EXIT_USAGE;
	}
	if (word)
		fail_exit(&e, EXIT_USAGE, EINVAL, "'%.64s': no such command; see ebb-sim --help", word);
	if (!r && fflush(stdout))
		r = fail(&e, errno, "stdout: %s", strerror(errno));
	if (r)
		fprintf(stderr, PROGRAM ": %s\n", e.text);
	return r ? (e.code ? e.exit_status : EXIT_FAILED) : EXIT_OK;
}
