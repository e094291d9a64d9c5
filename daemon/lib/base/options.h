/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One declarative table per command.  Parsing, usage text, completion and the check of
 * the man page read it, so that help cannot drift from code.
 */
#ifndef EBB_OPTIONS_H
#define EBB_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

enum option_type {
	OPTION_FLAG,     /* bool, no argument */
	OPTION_STRING,   /* const char *, points into argv */
	OPTION_SIZE,     /* uint64_t bytes, size_parse() */
	OPTION_DURATION, /* uint64_t nanoseconds, duration_parse() */
	OPTION_UINT,     /* uint64_t, between min and max */
	OPTION_LIST,     /* struct option_list: may be repeated */
};

#define OPTION_LIST_MAX 16

struct option_list {
	const char *v[OPTION_LIST_MAX]; /* point into argv */
	int n;
};

struct option_spec {
	/* "mem": given as --mem VALUE or --mem=VALUE; only after "=", VALUE may begin with "--" */
	const char *name;
	char letter;         /* short form, or 0 */
	enum option_type type;
	size_t offset;       /* of the field in the command's own struct */
	/*
	 * "SIZE", NULL for flags.  A string's "any|attached" lists the only
	 * values it takes; completion knows the words CGROUP, DEVICE, DIR,
	 * FILE, POLICY and PROGRAM.
	 */
	const char *metavar;
	const char *help;    /* one line, no full stop */
	/* OPTION_UINT, OPTION_SIZE, OPTION_DURATION (ns, multiples of 1000); max 0 = no limit */
	uint64_t min, max;
};

#define OPTIONS_END { .name = NULL }
/*
 * Later entries, up to OPTIONS_END, are accepted and ignored with a warning that quotes their help:
 * what applies instead.  Neither usage text nor completion shows them.
 */
#define OPTIONS_REMOVED { .name = NULL, .letter = '-' }

struct command {
	const char *object, *action; /* "device", "create"; action NULL for one-word commands;
				      * both NULL for a program that is one command */
	const char *arguments;       /* "NAME", "[CGROUP]", "-- PROGRAM [ARG...]" */
	const char *help;            /* one line */
	const char *example;         /* one or more lines, or NULL */
	const struct option_spec *options; /* ends with OPTIONS_END; may be NULL */
	/*
	 * @argv holds the positional arguments, @options points to the parsed
	 * struct of @options_size bytes (zeroed, then @defaults copied in).
	 */
	int (*run)(int argc, char **argv, void *options, struct error *e);
	size_t options_size;
	const void *defaults;        /* or NULL */
	int min_args, max_args;      /* max_args -1 = any */
};

/* --help (or -h) was given and @specs has no such option: print the usage. */
#define OPTIONS_HELP 1

/*
 * Parses @argv (without program and command words) by @specs (may be NULL) into
 * @into.  Moves positional arguments to the front of @argv and counts them in
 * @nargs; everything after "--" is positional.  With @stop_at_positional, parsing ends
 * at the first of them ("run" passes on the options of its program).
 * Returns 0, OPTIONS_HELP, or -errno with EXIT_USAGE in @e.
 */
int options_parse(const struct option_spec *specs, int argc, char **argv, void *into,
		  bool stop_at_positional, int *nargs, struct error *e);

/* Prints the usage of one command on stdout, at most one screen. */
void options_usage(const char *program, const struct command *command);

#endif
