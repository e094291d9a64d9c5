// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "declaration.h"
#include "lib/base/log.h"
#include "lib/base/size.h"

static int take_number(const char *key, const char *value, uint64_t *number, struct error *e)
{
	char *end;

	errno = 0;
	*number = strtoull(value, &end, 10);
	if (errno || *end || end == value || *value < '0' || *value > '9')
		return fail_exit(e, EXIT_USAGE, EINVAL, "%.64s: '%.64s' is not a whole number", key,
				 value);
	return 0;
}

static int check_place(struct declaration *d, const char *value, int line, struct error *e)
{
	d->in_daemon = !strcmp(value, "daemon");
	if (d->in_daemon && line)
		log_warn("%s:%d: run = daemon: no longer supported and ignored: the policy runs in the "
			 "kernel; remove it", d->file, line);
	else if (!d->in_daemon && strcmp(value, "kernel"))
		return fail_exit(e, EXIT_USAGE, EINVAL, "run: '%.64s' is not kernel", value);
	return 0;
}

int declaration_key(struct declaration *d, const char *key, const char *value, int line,
		    struct error *e)
{
	uint64_t number;
	uint32_t i;
	int r;

	if (!strcmp(key, "policy")) {
		if (!*value || strlen(value) >= sizeof(d->policy))
			return fail_exit(e, EXIT_USAGE, EINVAL,
					 "policy: '%.64s' is not a policy name; see ebbctl policy list", value);
		snprintf(d->policy, sizeof(d->policy), "%s", value);
		d->policy_line = line;
		return 0;
	}
	if (!strcmp(key, "run"))
		return check_place(d, value, line, e);
	if (!strcmp(key, "slowdown")) {
		uint32_t tenths = 0;

		r = percent_parse(value, key, OFFLOAD_TARGET_MAX, &tenths, e);
		number = tenths;
	} else if (!strcmp(key, "placement")) {
		r = placement_parse(value, key, &number, e);
	} else if (!strcmp(key, "benefit")) {
		r = switch_parse(value, key, &number, e);
	} else {
		r = take_number(key, value, &number, e);
		if (!r && !strcmp(key, "detect") && number > 1)
			r = fail_exit(e, EXIT_USAGE, ERANGE, "detect: '%.64s' is out of range; give 0 or 1",
				      value);
	}
	if (r)
		return r;
	if (strlen(key) >= sizeof(d->name[0]))
		return fail_exit(e, EXIT_USAGE, EINVAL, "%.64s: no policy has such a parameter", key);
	for (i = 0; i < d->n && strcmp(d->name[i], key) != 0; i++)
		;
	if (i == DECLARATION_PARAMS)
		return fail_exit(e, EXIT_USAGE, E2BIG, "%.64s: more parameters than a policy can have (%d)",
				 key, DECLARATION_PARAMS);
	snprintf(d->name[i], sizeof(d->name[i]), "%s", key);
	d->value[i] = number;
	d->value_line[i] = line;
	if (i == d->n)
		d->n++;
	return 0;
}

int declaration_parse(struct declaration *d, const char *text, struct error *e)
{
	char copy[512], *save = NULL, *word, *equals;
	int r;

	snprintf(d->file, sizeof(d->file), "%s", DECLARATION_XATTR);
	if ((size_t)snprintf(copy, sizeof(copy), "%s", text) >= sizeof(copy))
		return fail_exit(e, EXIT_USAGE, E2BIG, "its value is longer than %zu bytes",
				 sizeof(copy) - 1);
	word = strtok_r(copy, " \t\n", &save);
	if (!word)
		return fail_exit(e, EXIT_USAGE, EINVAL, "is empty; write POLICY [KEY=NUMBER...]");
	r = declaration_key(d, "policy", word, 0, e);
	while (!r && (word = strtok_r(NULL, " \t\n", &save))) {
		equals = strchr(word, '=');
		if (!equals || equals == word)
			return fail_exit(e, EXIT_USAGE, EINVAL, "'%.64s' is not KEY=NUMBER", word);
		*equals = '\0';
		r = declaration_key(d, word, equals + 1, 0, e);
	}
	return r;
}

bool declaration_matches(const struct declaration *d, const char *mount, const char *rel)
{
	char path[PATH_MAX];

	/* The root stands for the whole machine, so only its name matches it, no wildcard. */
	if (!strcmp(rel, "/"))
		return !strcmp(d->glob, "/") || !strcmp(d->glob, mount);
	if (!fnmatch(d->glob, rel, FNM_PATHNAME))
		return true;
	return (size_t)snprintf(path, sizeof(path), "%s%s", mount, rel) <
		       sizeof(path) &&
	       !fnmatch(d->glob, path, FNM_PATHNAME);
}

const char *declaration_where(const struct declaration *d, const char *parameter, char *buf,
			      size_t size)
{
	int line = d->policy_line;

	for (uint32_t i = 0; parameter && i < d->n; i++)
		if (!strcmp(d->name[i], parameter))
			line = d->value_line[i];
	if (d->line)
		snprintf(buf, size, "%.100s:%d", d->file, line);
	else
		snprintf(buf, size, "%.100s", d->file);
	return buf;
}

void declaration_wish(struct declaration *d, struct attach_wish *wish)
{
	for (uint32_t i = 0; i < d->n; i++)
		d->names[i] = d->name[i];
	declaration_where(d, NULL, d->source, sizeof(d->source));
	*wish = (struct attach_wish){
		.policy = d->policy, .by = BY_DECLARATION, .source = d->source,
		.n = d->n, .names = d->names, .values = d->value,
	};
}

int declaration_check(struct declaration *d, struct attachments *a, struct error *e)
{
	const char *parameter = NULL;
	struct error inner = { 0 };
	struct attach_wish wish;
	char where[128];

	declaration_wish(d, &wish);
	if (!attach_check(a, &wish, &inner))
		return 0;
	/* The error text begins with the name of the parameter. */
	for (uint32_t i = 0; i < d->n; i++) {
		size_t n = strlen(d->name[i]);

		if (!strncmp(inner.text, d->name[i], n) && inner.text[n] == ':')
			parameter = d->name[i];
	}
	return fail_exit(e, EXIT_USAGE, inner.code, "%s: %s%.360s",
			 declaration_where(d, parameter, where, sizeof(where)),
			 parameter ? "" : "policy: ", inner.text);
}

int declaration_load(struct declaration *d, struct attachments *a, struct error *e)
{
	struct attach_wish wish;

	declaration_wish(d, &wish);
	return attach_load(a, &wish, e);
}
