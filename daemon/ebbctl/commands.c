// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "completion.h"
#include "ebbctl/verbs/verbs.h"
#include "lib/base/text.h"

#define PROGRAM "ebbctl"

static int run_version(int argc, char **argv, void *options, struct error *e);
static int run_help(int argc, char **argv, void *options, struct error *e);
static int run_completion(int argc, char **argv, void *options, struct error *e);

const struct command command_version = {
	.object = "version", .help = "Print the version", JSON_OPTIONS, .run = run_version,
};

const struct command command_help = {
	.object = "help", .arguments = "[OBJECT [ACTION]]", .help = "Print this overview, or the help of a command",
	.run = run_help, .max_args = 2,
};

const struct command command_completion = {
	.object = "completion", .arguments = "bash|zsh", .help = "Print a completion script",
	.example = "  source <(ebbctl completion bash)\n", .run = run_completion, .min_args = 1,
	.max_args = 1,
};

const struct command *const commands[] = {
	&command_doctor, &command_run, &command_device_create, &command_device_list,
	&command_device_destroy, &command_device_abort, &command_device_class,
	&command_device_sleep, &command_device_wake,
	&command_donor_list, &command_donor_drain, &command_donor_undrain, &command_donor_trust,
	&command_donor_forget,
	&command_far_create, &command_far_list, &command_far_show, &command_far_destroy,
	&command_dsm_status,
	&command_slab_list, &command_slab_migrate, &command_policy_list,
	&command_policy_load, &command_policy_unload, &command_policy_show, &command_policy_attach,
	&command_policy_detach, &command_policy_set, &command_status, &command_stats,
	&command_top, &command_metrics,
	&command_record, &command_report, &command_advise, &command_trace_show, &command_trace_plot,
	&command_key_create, &command_key_derive, &command_key_show, &command_completion,
	&command_version, &command_help,
	NULL,
};

static bool same(const char *a, const char *b)
{
	return a == b || (a && b && !strcmp(a, b));
}

const struct command *command_find(const char *object, const char *action)
{
	for (const struct command *const *c = commands; *c; c++)
		if (same((*c)->object, object) && same((*c)->action, action))
			return *c;
	return NULL;
}

static void print_overview(void)
{
	printf("Usage: " PROGRAM " OBJECT [ACTION] [OPTION...] [ARGUMENT...]\n"
	       "Swap to the memory of other machines, with prefetching.\n\n");
	for (const struct command *const *c = commands; *c; c++) {
		char words[64];

		snprintf(words, sizeof(words), "%s%s%s", (*c)->object, (*c)->action ? " " : "",
			 (*c)->action ?: "");
		printf("  %-16s  %s\n", words, (*c)->help);
	}
	printf("\n" PROGRAM " OBJECT ACTION --help prints the options.  Exit status: 0 done, 1 failed,\n"
	       "2 wrong usage, 3 not supported, 4 a daemon does not answer, 5 refused.\n");
}

/* Prints the usage of every command of @object; returns their number. */
static int print_object(const char *object)
{
	int n = 0;

	for (const struct command *const *c = commands; *c; c++)
		if (!strcmp((*c)->object, object)) {
			if (n++)
				printf("\n");
			options_usage(PROGRAM, *c);
		}
	return n;
}

static int unknown(const char *object, const char *action, struct error *e)
{
	char actions[256] = "";
	size_t len = 0;

	for (const struct command *const *c = commands; *c; c++)
		if (!strcmp((*c)->object, object) && (*c)->action && len < sizeof(actions))
			len += snprintf(actions + len, sizeof(actions) - len, "%s%s", len ? ", " : "",
					(*c)->action);
	if (command_find(object, NULL))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "%s: takes no action; see \"ebbctl help %s\"", object, object);
	if (!len)
		return fail_exit(e, EXIT_USAGE, EINVAL, "%.64s: no such command; see \"ebbctl help\"",
				 object);
	return fail_exit(e, EXIT_USAGE, EINVAL, "%s: %s%.64s%s; give one of %s", object,
			 action ? "'" : "", action ?: "action missing", action ? "': no such action" : "",
			 actions);
}

static int run_help(int argc, char **argv, void *options, struct error *e)
{
	const struct command *c = argc == 2 ? command_find(argv[0], argv[1]) : NULL;

	if (!argc)
		print_overview();
	else if (c)
		options_usage(PROGRAM, c);
	else if (argc == 2 || !print_object(argv[0]))
		return unknown(argv[0], argc == 2 ? argv[1] : NULL, e);
	return 0;
}

static void print_version(struct json_object *o)
{
	printf(PROGRAM " %s\n", EBB_VERSION);
}

static int run_version(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct common_options *c = options;

	json_add_text(o, "version", EBB_VERSION);
	output(c->json, o, print_version);
	return 0;
}

static int run_completion(int argc, char **argv, void *options, struct error *e)
{
	if (!strcmp(argv[0], "bash"))
		completion_bash(PROGRAM, commands, stdout);
	else if (!strcmp(argv[0], "zsh"))
		completion_zsh(PROGRAM, commands, stdout);
	else
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "completion: '%.64s': unknown shell; give bash or zsh", argv[0]);
	return 0;
}

static int dispatch(int argc, char **argv, struct error *e)
{
	const struct command *c;
	const char *object = argc > 1 ? argv[1] : "help", *action = argc > 2 ? argv[2] : NULL;

	if (!strcmp(object, "--help") || !strcmp(object, "-h"))
		object = "help";
	if (!strcmp(object, "--version"))
		object = "version";
	c = command_find(object, NULL);
	if (c)
		return command_execute(c, PROGRAM, argc > 2 ? argc - 2 : 0,
				       argv + (argc > 2 ? 2 : argc), e);
	if (action && (!strcmp(action, "--help") || !strcmp(action, "-h")) && print_object(object))
		return 0;
	c = action ? command_find(object, action) : NULL;
	if (c)
		return command_execute(c, PROGRAM, argc - 3, argv + 3, e);
	unknown(object, action, e);
	if (command_wants_json(argc - 1, argv + 1))
		command_error_json(e);
	return -EINVAL;
}

int ebbctl(int argc, char **argv)
{
	struct error e = { 0 };

	return command_end(PROGRAM, dispatch(argc, argv, &e), &e);
}
