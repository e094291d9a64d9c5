// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "options.h"
#include "size.h"

#define USAGE_COLUMNS 68

static const struct option_spec *find_long(const struct option_spec *specs, const char *name,
					   size_t len)
{
	for (; specs && specs->name; specs++)
		if (strlen(specs->name) == len && !strncmp(specs->name, name, len))
			return specs;
	return NULL;
}

static const struct option_spec *find_removed(const struct option_spec *specs, const char *name,
					      size_t len)
{
	while (specs && specs->name)
		specs++;
	return specs && specs->letter ? find_long(specs + 1, name, len) : NULL;
}

static const struct option_spec *find_letter(const struct option_spec *specs, char letter)
{
	for (; specs && specs->name; specs++)
		if (specs->letter == letter)
			return specs;
	return NULL;
}

/* Returns whether @value is one of the words of "a|b|c". */
static bool is_choice(const char *choices, const char *value)
{
	size_t len = strlen(value);

	for (const char *c = strchr(value, '|') ? NULL : choices; c; c = strchr(c, '|')) {
		c += *c == '|';
		if (!strncmp(c, value, len) && (c[len] == '|' || !c[len]))
			return len > 0;
	}
	return false;
}

struct unit {
	uint64_t of;
	const char *name;
};

static const struct unit sizes[] = { { 1ull << 40, "T" }, { 1 << 30, "G" }, { 1 << 20, "M" },
				     { 1 << 10, "K" }, { 1, "" } };
/* Limits are multiples of 1 us. */
static const struct unit durations[] = { { 3600000000000, "h" }, { 60000000000, "m" },
					 { 1000000000, "s" }, { 1000000, "ms" }, { 1000, "us" },
					 { 1, "" } };
static const struct unit one[] = { { 1, "" } };

/* Formats a limit exactly, and so that it can be given as a value. */
static void limit_text(const struct option_spec *s, uint64_t n, char *buf, size_t len)
{
	const struct unit *unit = s->type == OPTION_SIZE     ? sizes :
				  s->type == OPTION_DURATION ? durations :
							       one;

	while (unit->of > 1 && (!n || n % unit->of))
		unit++;
	snprintf(buf, len, "%llu%s", (unsigned long long)(n / unit->of), unit->name);
}

static int check_range(const struct option_spec *s, const char *what, const char *value,
		       uint64_t n, struct error *e)
{
	char min[32], max[32];

	if (n >= s->min && (!s->max || n <= s->max))
		return 0;
	limit_text(s, s->min, min, sizeof(min));
	limit_text(s, s->max, max, sizeof(max));
	if (s->type == OPTION_DURATION && n < s->min)
		return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%s' is too short; give at least %s", what,
				 value, min);
	if (s->type == OPTION_DURATION)
		return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%s' is too long; give at most %s", what,
				 value, max);
	if (!s->max)
		return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%s' is out of range; give at least %s",
				 what, value, min);
	return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%s' is out of range; give %s to %s",
			 what, value, min, max);
}

static int parse_uint(const char *what, const char *value, uint64_t *n, struct error *e)
{
	unsigned long long v;
	char *end;

	errno = 0;
	v = strtoull(value, &end, 10);
	/* strtoull() takes a sign and leading blanks. */
	if (*value < '0' || *value > '9' || *end)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: '%s' is not a whole number; give one such as 10",
				 what, value);
	if (errno)
		return fail_exit(e, EXIT_USAGE, ERANGE, "%s: '%s' is too large; give a smaller number",
				 what, value);
	*n = v;
	return 0;
}

static int append(struct option_list *list, const char *what, const char *value, struct error *e)
{
	if (list->n == OPTION_LIST_MAX)
		return fail_exit(e, EXIT_USAGE, E2BIG, "%s: given too often; give it at most %d times", what,
				 OPTION_LIST_MAX);
	list->v[list->n++] = value;
	return 0;
}

static int store(const struct option_spec *s, const char *value, void *into, struct error *e)
{
	void *field = (char *)into + s->offset;
	char what[64];
	uint64_t n;
	int r;

	snprintf(what, sizeof(what), "--%s", s->name);
	switch (s->type) {
	case OPTION_FLAG:
		*(bool *)field = true;
		return 0;
	case OPTION_STRING:
		if (s->metavar && strchr(s->metavar, '|') && !is_choice(s->metavar, value))
			return fail_exit(e, EXIT_USAGE, EINVAL, "%s: '%s' is not a valid value; give one of %s",
					 what, value, s->metavar);
		*(const char **)field = value;
		return 0;
	case OPTION_LIST:
		return append(field, what, value, e);
	case OPTION_DURATION:
		r = duration_parse(value, what, &n, e);
		break;
	case OPTION_SIZE:
		r = size_parse(value, what, &n, e);
		break;
	default:
		r = parse_uint(what, value, &n, e);
		break;
	}
	if (!r)
		r = check_range(s, what, value, n, e);
	if (!r)
		*(uint64_t *)field = n;
	return r;
}

/* State of one pass over @argv. */
struct cursor {
	const struct option_spec *specs;
	int argc, at;
	char **argv;
	void *into;
};

static int take_value(struct cursor *c, const struct option_spec *s, const char *value,
		      bool ignored, struct error *e)
{
	if (s->type != OPTION_FLAG && !value) {
		/* Not the next option: a value that begins with "--" must follow "=". */
		if (c->at >= c->argc || !strncmp(c->argv[c->at], "--", 2))
			return fail_exit(e, EXIT_USAGE, EINVAL, "--%s: value missing; give --%s %s",
					 s->name, s->name, s->metavar ?: "VALUE");
		value = c->argv[c->at++];
	}
	return ignored ? 0 : store(s, value, c->into, e);
}

static int parse_long(struct cursor *c, const char *word, struct error *e)
{
	const char *equals = strchr(word, '=');
	size_t len = equals ? (size_t)(equals - word) : strlen(word);
	const struct option_spec *s = find_long(c->specs, word, len), *removed = NULL;

	if (!s && !strcmp(word, "help"))
		return OPTIONS_HELP;
	if (!s)
		s = removed = find_removed(c->specs, word, len);
	if (!s)
		return fail_exit(e, EXIT_USAGE, EINVAL, "--%.*s: no such option; see --help",
				 (int)len, word);
	if (s->type == OPTION_FLAG && equals)
		return fail_exit(e, EXIT_USAGE, EINVAL, "--%s: takes no value; drop it",
				 s->name);
	if (removed)
		log_warn("--%s: removed and ignored; %s", s->name, s->help);
	return take_value(c, s, equals ? equals + 1 : NULL, removed, e);
}

static int parse_letters(struct cursor *c, const char *word, struct error *e)
{
	while (*word) {
		const struct option_spec *s = find_letter(c->specs, *word++);
		const char *value = NULL;
		int r;

		if (!s && word[-1] == 'h')
			return OPTIONS_HELP;
		if (!s)
			return fail_exit(e, EXIT_USAGE, EINVAL, "-%c: no such option; see --help",
					 word[-1]);
		if (s->type != OPTION_FLAG && *word) {
			value = word;
			word = "";
		}
		r = take_value(c, s, value, false, e);
		if (r)
			return r;
	}
	return 0;
}

int options_parse(const struct option_spec *specs, int argc, char **argv, void *into,
		  bool stop_at_positional, int *nargs, struct error *e)
{
	struct cursor c = { .specs = specs, .argc = argc, .argv = argv, .into = into };
	int n = 0, r;

	while (c.at < argc) {
		char *word = argv[c.at++];

		if (!strcmp(word, "--"))
			break;
		if (word[0] != '-' || !word[1]) {
			argv[n++] = word;
			if (stop_at_positional)
				break;
			continue;
		}
		r = word[1] == '-' ? parse_long(&c, word + 2, e) : parse_letters(&c, word + 1, e);
		if (r)
			return r;
	}
	while (c.at < argc)
		argv[n++] = argv[c.at++];
	if (n < argc)
		argv[n] = NULL;
	*nargs = n;
	return 0;
}

/* Prints @left on its own line, a long list of choices on several. */
static void print_left(const char *left)
{
	for (const char *indent = "  "; *left; indent = "          ") {
		size_t len = strlen(left), cut = len < USAGE_COLUMNS ? len : USAGE_COLUMNS;

		while (cut < len && cut > 1 && left[cut - 1] != '|')
			cut--;
		if (cut == 1)
			cut = len;
		printf("%s%.*s\n", indent, (int)cut, left);
		left += cut;
	}
}

static void print_option(const struct option_spec *s)
{
	char left[192];

	snprintf(left, sizeof(left), "%c%c%c --%s%s%s", s->letter ? '-' : ' ',
		 s->letter ?: ' ', s->letter ? ',' : ' ', s->name, s->metavar ? " " : "",
		 s->metavar ?: "");
	if (strlen(left) > 28) {
		print_left(left);
		printf("  %28s  %s\n", "", s->help);
	} else {
		printf("  %-28s  %s\n", left, s->help);
	}
}

void options_usage(const char *program, const struct command *c)
{
	const struct option_spec *s = c->options;

	printf("Usage: %s%s%s%s%s%s%s%s\n%s.\n", program, c->object ? " " : "", c->object ?: "",
	       c->action ? " " : "", c->action ?: "", s && s->name ? " [OPTION...]" : "",
	       c->arguments && *c->arguments ? " " : "", c->arguments ?: "", c->help);
	if (s && s->name)
		printf("\n");
	for (; s && s->name; s++)
		print_option(s);
	if (c->example)
		printf("\nExample:\n%s%s", c->example,
		       c->example[strlen(c->example) - 1] == '\n' ? "" : "\n");
}
