/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Runs one command of a program that has several. */
#ifndef EBB_COMMAND_H
#define EBB_COMMAND_H

#include "options.h"

/* The value of --@option_name goes to the member @field_name of struct @of. */
#define OPTION(of, field_name, option_name, kind, meta, ...) \
	{ .name = option_name, .type = kind, .offset = offsetof(struct of, field_name), \
	  .metavar = meta, __VA_ARGS__ }
/* For a struct whose first member is bool json. */
#define OPTION_JSON \
	{ .name = "json", .letter = 'j', .type = OPTION_FLAG, .help = "print JSON" }

/* First member of every option struct. */
struct common_options {
	bool json;
};

/* Options of a command that has --json alone. */
extern const struct option_spec json_options[];
#define JSON_OPTIONS .options = json_options, .options_size = sizeof(struct common_options)

/*
 * Parses @argv (without program and command words) into the defaults of @c, checks the number of
 * arguments and calls @c->run; --help prints the usage instead.  An error is also printed as
 * {"error", "exit"} when the options ask for JSON, also by a word after the wrong one.
 */
int command_execute(const struct command *c, const char *program, int argc, char **argv,
		struct error *e);

/* Returns whether one of @argv before "--" is --json or -j. */
bool command_wants_json(int argc, char **argv);

/* Prints {"error", "exit"}. */
void command_error_json(const struct error *e);

/* Flushes stdout, prints the error of result @r, if any, and returns the exit status. */
int command_end(const char *program, int r, struct error *e);

#endif
