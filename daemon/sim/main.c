// SPDX-License-Identifier: GPL-2.0-or-later
/* ebb-sim: policies without a kernel, clusters without machines. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

#define PROGRAM "ebb-sim"

static const struct command *const commands[] = {
	&sim_command_show, &sim_command_plot, &sim_command_report, &sim_command_advise,
	&sim_command_trace, &sim_command_policies, &sim_command_cluster,
	&sim_command_extents, &sim_command_heap, NULL,
};

static void usage(FILE *to)
{
	fprintf(to, "Usage: " PROGRAM " COMMAND [OPTION...] [ARGUMENT...]\n"
		"Analyse traces, simulate prefetch policies, clusters and heaps.\n\n");
	for (const struct command *const *c = commands; *c; c++)
		fprintf(to, "  %-10s  %s\n", (*c)->object, (*c)->help);
	fprintf(to, "\n" PROGRAM " COMMAND --help prints the options.\n");
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	struct error e = { 0 };

	if (!strcmp(word, "--version")) {
		puts(PROGRAM " " EBB_VERSION);
		return EXIT_OK;
	}
	if (!strcmp(word, "--help") || !strcmp(word, "-h") || !strcmp(word, "help")) {
		usage(stdout);
		return EXIT_OK;
	}
	for (const struct command *const *c = commands; *c; c++)
		if (!strcmp((*c)->object, word))
			return command_end(
				PROGRAM, command_execute(*c, PROGRAM, argc - 2, argv + 2, &e), &e);
	if (argc < 2) {
		usage(stderr);
		return EXIT_USAGE;
	}
	return command_end(PROGRAM, fail_exit(&e, EXIT_USAGE, EINVAL,
					      "'%.64s': no such command; see ebb-sim --help", word), &e);
}
