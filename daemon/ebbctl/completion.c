// SPDX-License-Identifier: GPL-2.0-or-later
#include <string.h>

#include "completion.h"

#define LOWER_CASE "abcdefghijklmnopqrstuvwxyz"

/* Shell functions that complete the value of an option or an argument. */
static const struct {
	const char *word, *function;
} sources[] = {
	{ "CGROUP", "_ebb_cgroups" },
	{ "POLICY", "_ebb_policies" },
	{ "NAME", "_ebb_devices" },
	{ "DONOR", "_ebb_donors" },
	{ "FILE", "_ebb_files" },
	{ "DIR", "_ebb_dirs" },
	{ "PROGRAM", "_ebb_commands" },
};

const char *completion_function(const char *word, size_t len)
{
	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++)
		if (strlen(sources[i].word) == len && !strncmp(sources[i].word, word, len))
			return sources[i].function;
	return NULL;
}

bool completion_literal(const char *word, size_t len)
{
	return len > 0 && strspn(word, LOWER_CASE) >= len;
}

const char *completion_value_function(const struct option_spec *s)
{
	/* NAME as the value of an option is a new name. */
	return s->metavar && strcmp(s->metavar, "NAME") ?
	       completion_function(s->metavar, strlen(s->metavar)) : NULL;
}

const char *completion_value_choices(const struct option_spec *s)
{
	return s->type == OPTION_STRING && s->metavar && strchr(s->metavar, '|') ? s->metavar :
										   NULL;
}

bool completion_argument_next(const char **at, struct completion_argument *a)
{
	const char *p = *at + strspn(*at, " ");

	if (!strncmp(p, "-- ", 3))
		p += 3;
	*a = (struct completion_argument){ .optional = *p == '[' };
	p += a->optional;
	a->text = p;
	a->len = strcspn(p, " ");
	*at = p + a->len;
	while (a->len && p[a->len - 1] == ']')
		a->len--;
	if (a->len > 3 && !strncmp(p + a->len - 3, "...", 3)) {
		a->repeated = true;
		a->len -= 3;
	}
	return a->len > 0;
}

bool completion_choice_next(struct completion_argument *a, const char **word, size_t *len)
{
	const char *bar = a->len ? memchr(a->text, '|', a->len) : NULL;

	*word = a->text;
	*len = bar ? (size_t)(bar - a->text) : a->len;
	a->text += *len + (bar != NULL);
	a->len -= *len + (bar != NULL);
	return *len > 0;
}
