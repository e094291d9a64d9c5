// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "command.h"
#include "text.h"

const struct option_spec json_options[] = { OPTION_JSON, OPTIONS_END };

static const struct option_spec *json_flag(const struct command *c)
{
	const struct option_spec *s = c->options;

	while (s && s->name && (strcmp(s->name, "json") || s->type != OPTION_FLAG))
		s++;
	return s && s->name ? s : NULL;
}

bool command_wants_json(int argc, char **argv)
{
	for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
		if (!strcmp(argv[i], "--json") || !strcmp(argv[i], "-j"))
			return true;
	return false;
}

void command_error_json(const struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();

	json_add_text(o, "error", e->text);
	json_add_int(o, "exit", e->exit_status);
	output(true, o, NULL);
}

static int check_arguments(const struct command *c, int n, char **argv, struct error *e)
{
	const char *last = c->action ?: c->object, *action = c->action ?: "";
	const char *wanted = c->arguments && *c->arguments ? c->arguments : "none";

	if (n < c->min_args)
		return fail_exit(e, EXIT_USAGE, EINVAL, "%s%s%s: argument missing after '%.64s'; give %s",
				 c->object, *action ? " " : "", action, n ? argv[n - 1] : last, wanted);
	if (c->max_args >= 0 && n > c->max_args)
		return fail_exit(e, EXIT_USAGE, EINVAL, "%s%s%s: unexpected argument '%.64s'; give %s",
				 c->object, *action ? " " : "", action, argv[c->max_args], wanted);
	return 0;
}

int command_execute(const struct command *c, const char *program, int argc, char **argv,
		struct error *e)
{
	_cleanup_free_ void *options = calloc(1, c->options_size ?: 1);
	/* Arguments after the first one belong to another program. */
	bool stops = c->arguments && strstr(c->arguments, "-- ");
	const struct option_spec *json = json_flag(c);
	/* Parsing ends at the first error, and moves words. */
	bool wants_json = command_wants_json(argc, argv);
	int n, r;

	if (!options)
		return fail(e, ENOMEM, "%s: out of memory", program);
	if (c->defaults)
		memcpy(options, c->defaults, c->options_size);
	r = options_parse(c->options, argc, argv, options, stops, &n, e);
	if (r == OPTIONS_HELP) {
		options_usage(program, c);
		return 0;
	}
	wants_json = json && ((r && wants_json) || *((const bool *)options + json->offset));
	if (!r)
		r = check_arguments(c, n, argv, e);
	if (!r)
		r = c->run(n, argv, options, e);
	if (*e->text && wants_json)
		command_error_json(e);
	return r;
}

int command_end(const char *program, int r, struct error *e)
{
	if (fflush(stdout) && !r)
		r = fail(e, errno, "stdout: %m");
	/* Without a text, the program that was run has failed and reported it. */
	if (r && *e->text)
		fprintf(stderr, "%s: %s\n", program, e->text);
	return r ? (e->code ? e->exit_status : EXIT_FAILED) : EXIT_OK;
}
