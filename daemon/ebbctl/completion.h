/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_COMPLETION_H
#define EBB_COMPLETION_H

#include <stdbool.h>
#include <stdio.h>

#include "lib/base/options.h"

/* Writes a completion for @program from its tables (which end with NULL). */
void completion_bash(const char *program, const struct command *const *commands, FILE *out);
void completion_zsh(const char *program, const struct command *const *commands, FILE *out);

/* --- for both shells ------------------------------------------------------ */

/* Shell commands that print existing names, one per line. */
#define COMPLETION_DEVICES \
	"ebbctl device list --json 2>/dev/null |\n\tsed -n 's/^      \"name\": *\"\\(.*\\)\".*/\\1/p'"
#define COMPLETION_DONORS \
	"ebbctl donor list 2>/dev/null |\n\tsed -n 's/^\\([^ ]*:[^ ]*\\)  .*/\\1/p'"
#define COMPLETION_POLICIES \
	"ebbctl policy list 2>/dev/null |\n\tsed -n 's/^\\([a-z0-9_-]*\\)  .*/\\1/p'"

/* One of the arguments "POLICY [CGROUP] [KEY=NUMBER...]", without brackets and dots. */
struct completion_argument {
	const char *text;
	size_t len;
	bool optional, repeated;
};

/* Reads the next argument at *@at and advances it, past "--"; false at the end. */
bool completion_argument_next(const char **at, struct completion_argument *a);

/* Cuts the next choice off the front of @a ("POLICY|CGROUP"); false at the end. */
bool completion_choice_next(struct completion_argument *a, const char **word, size_t *len);

/* Returns the shell function that completes such a word ("_ebb_policies"), or NULL. */
const char *completion_function(const char *word, size_t len);
/* Returns whether the word is literal: "local". */
bool completion_literal(const char *word, size_t len);

/* Returns the shell function for the value of @s, or NULL. */
const char *completion_value_function(const struct option_spec *s);
/* Returns the only values of @s, "any|attached", or NULL. */
const char *completion_value_choices(const struct option_spec *s);

#endif
