// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/command.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

struct values {
	bool force, json;
	const char *name, *scope;
	uint64_t mem, timeout, priority;
	struct option_list donors;
};

#define AT(field) .offset = offsetof(struct values, field)

static const struct option_spec specs[] = {
	{ .name = "force", .letter = 'f', .type = OPTION_FLAG, AT(force), .help = "h" },
	{ .name = "json", .letter = 'j', .type = OPTION_FLAG, AT(json), .help = "h" },
	{ .name = "name", .letter = 'n', .type = OPTION_STRING, AT(name), .metavar = "NAME",
	  .help = "h" },
	{ .name = "scope", .type = OPTION_STRING, AT(scope), .metavar = "any|attached", .help = "h" },
	{ .name = "mem", .letter = 'm', .type = OPTION_SIZE, AT(mem), .metavar = "SIZE", .help = "h",
	  .min = 4096, .max = 1ULL << 30 },
	{ .name = "timeout", .type = OPTION_DURATION, AT(timeout), .metavar = "TIME", .help = "h",
	  .min = 1000, .max = 90000000000ULL },
	{ .name = "priority", .type = OPTION_UINT, AT(priority), .metavar = "N", .help = "h",
	  .min = 1, .max = 32767 },
	{ .name = "donor", .type = OPTION_LIST, AT(donors), .metavar = "HOST:PORT", .help = "h" },
	OPTIONS_END
};

static struct values taken;

static int parse(struct values *v, bool stop, char **argv, int *nargs, struct error *e)
{
	int argc = 0;

	memset(v, 0, sizeof(*v));
	memset(e, 0, sizeof(*e));
	while (argv[argc])
		argc++;
	return options_parse(specs, argc, argv, v, stop, nargs, e);
}

#define PARSE(stop, ...) ({ \
	static char *copy[32]; \
	const char *words[] = { __VA_ARGS__, NULL }; \
	memcpy(copy, words, sizeof(words)); \
	argv = copy; \
	(void)argv; \
	parse(&v, stop, copy, &nargs, &e); })

static void all_types(void **state)
{
	struct values v;
	struct error e;
	char **argv;
	int nargs;

	assert_int_equal(PARSE(false, "one", "--mem=64K", "-fj", "two", "--timeout", "250ms", "-nfoo",
			       "--priority", "7", "--scope", "attached", "--donor", "a:1",
			       "--donor=b:2", "-"), 0);
	assert_int_equal(nargs, 3);
	assert_string_equal(argv[0], "one");
	assert_string_equal(argv[1], "two");
	assert_string_equal(argv[2], "-");
	assert_null(argv[3]);
	assert_true(v.force && v.json);
	assert_int_equal(v.mem, 65536);
	assert_int_equal(v.timeout, 250000000);
	assert_string_equal(v.name, "foo");
	assert_int_equal(v.priority, 7);
	assert_string_equal(v.scope, "attached");
	assert_int_equal(v.donors.n, 2);
	assert_string_equal(v.donors.v[1], "b:2");
	/* Of a value that begins with dashes. */
	assert_int_equal(PARSE(false, "--name=--force", "--scope", "any"), 0);
	assert_string_equal(v.name, "--force");
	assert_false(v.force);
	assert_int_equal(PARSE(false, "-n--", "-n", "-"), 0);
	assert_string_equal(v.name, "-");
}

static void program_keeps_its_options(void **state)
{
	struct values v;
	struct error e;
	char **argv;
	int nargs;

	assert_int_equal(PARSE(true, "--mem", "1M", "sort", "--force", "-n", "--", "x"), 0);
	assert_int_equal(nargs, 5);
	assert_string_equal(argv[0], "sort");
	assert_string_equal(argv[1], "--force");
	assert_string_equal(argv[3], "--");
	assert_false(v.force);

	assert_int_equal(PARSE(true, "--force", "--", "-n", "--help"), 0);
	assert_int_equal(nargs, 2);
	assert_string_equal(argv[0], "-n");
	assert_true(v.force);
	assert_null(v.name);
}

static void bad_input(void **state)
{
	struct values v;
	struct error e;
	char **argv;
	int nargs;

#define REFUSED(code, says, ...) do { \
		assert_int_equal(PARSE(false, __VA_ARGS__), -(code)); \
		assert_int_equal(e.exit_status, EXIT_USAGE); \
		if (!strstr(e.text, says)) \
			fail_msg("'%s' does not say '%s'", e.text, says); \
	} while (0)
	REFUSED(EINVAL, "--mem: '12Q'", "--mem", "12Q");
	REFUSED(ERANGE, "--mem: '12' is out of range; give 4K to 1G", "--mem=12");
	REFUSED(ERANGE, "out of range", "--mem=2G");
	REFUSED(ERANGE, "--timeout: '0' is too short; give at least 1us", "--timeout=0");
	REFUSED(ERANGE, "--timeout: '2m' is too long; give at most 90s", "--timeout=2m");
	REFUSED(EINVAL, "--bogus", "--bogus=1");
	REFUSED(EINVAL, "--me:", "--me", "1M");
	REFUSED(EINVAL, "-x", "-fx");
	REFUSED(EINVAL, "value missing", "--mem");
	REFUSED(EINVAL, "value missing", "-n");
	REFUSED(EINVAL, "--name: value missing; give --name NAME", "--name", "--mem", "1M");
	REFUSED(EINVAL, "--name: value missing", "-n", "--");
	REFUSED(EINVAL, "--donor: value missing", "--donor", "--force");
	REFUSED(EINVAL, "takes no value", "--force=yes");
	REFUSED(ERANGE, "give 1 to 32767", "--priority", "0");
	REFUSED(ERANGE, "give 1 to 32767", "--priority", "32768");
	REFUSED(EINVAL, "'-1'", "--priority", "-1");
	REFUSED(EINVAL, "'1x'", "--priority", "1x");
	REFUSED(ERANGE, "too large", "--priority", "99999999999999999999999");
	REFUSED(EINVAL, "any|attached", "--scope", "att");
	REFUSED(EINVAL, "any|attached", "--scope", "any|attached");
	REFUSED(EINVAL, "any|attached", "--scope", "");
}

static void list_is_bounded(void **state)
{
	char *argv[OPTION_LIST_MAX + 2] = { NULL };
	struct values v;
	struct error e;
	int nargs;

	for (int i = 0; i < OPTION_LIST_MAX; i++)
		argv[i] = "--donor=a:1";
	assert_int_equal(parse(&v, false, argv, &nargs, &e), 0);
	assert_int_equal(v.donors.n, OPTION_LIST_MAX);
	for (int i = 0; i <= OPTION_LIST_MAX; i++)
		argv[i] = "--donor=a:1";
	assert_int_equal(parse(&v, false, argv, &nargs, &e), -E2BIG);
}

static void help(void **state)
{
	struct values v;
	struct error e;
	char **argv;
	int nargs;

	assert_int_equal(PARSE(false, "--help"), OPTIONS_HELP);
	assert_int_equal(PARSE(false, "-fh"), OPTIONS_HELP);
	assert_int_equal(e.code, 0);
	assert_int_equal(options_parse(NULL, 1, (char *[]){ "-f", NULL }, &v, false, &nargs, &e),
			 -EINVAL);
}

static int keep(int argc, char **argv, void *options, struct error *e)
{
	taken = *(const struct values *)options;
	taken.name = argc ? argv[0] : taken.name;
	return 0;
}

static void whole_command(void **state)
{
	static const struct values defaults = { .mem = 8192, .name = "anon" };
	static const struct command command = {
		.object = "keep", .help = "Does nothing", .options = specs, .run = keep,
		.options_size = sizeof(struct values), .defaults = &defaults, .max_args = 1,
	};
	char *good[] = { "-f", "file", NULL }, *many[] = { "a", "b", NULL };
	struct error e = { 0 };

	assert_int_equal(command_execute(&command, "prog", 2, good, &e), 0);
	assert_true(taken.force);
	assert_int_equal(taken.mem, 8192);
	assert_string_equal(taken.name, "file");
	assert_int_equal(command_end("prog", 0, &e), EXIT_OK);
	assert_int_equal(command_execute(&command, "prog", 2, many, &e), -EINVAL);
	assert_non_null(strstr(e.text, "keep: unexpected argument 'b'"));
	assert_int_equal(command_end("prog", -EINVAL, &e), EXIT_USAGE);
}

/* For one release a removed option is accepted, with its value, and ignored. */
static void removed_options_are_ignored(void **state)
{
	static const struct option_spec specs[] = {
		{ .name = "name", .type = OPTION_STRING },
		OPTIONS_REMOVED,
		{ .name = "old", .type = OPTION_UINT, .help = "use --name" },
		{ .name = "flag", .type = OPTION_FLAG, .help = "use --name" },
		OPTIONS_END
	};
	char *argv[] = { "--old", "20", "--old=x", "--flag", "--name", "a", "rest", NULL };
	char *lacks[] = { "--old", NULL }, *unknown[] = { "--older", "1", NULL };
	int err = dup(STDERR_FILENO), nargs, r;
	const char *name = NULL;
	char told[256] = "";
	struct error e = { 0 };
	FILE *log = tmpfile();

	dup2(fileno(log), STDERR_FILENO);
	r = options_parse(specs, 7, argv, &name, false, &nargs, &e);
	dup2(err, STDERR_FILENO);
	close(err);
	assert_int_equal(r, 0);
	assert_string_equal(name, "a");
	assert_int_equal(nargs, 1);
	rewind(log);
	assert_true(fread(told, 1, sizeof(told) - 1, log) > 0);
	assert_non_null(strstr(told, "warning: --old: removed and ignored; use --name"));
	assert_non_null(strstr(told, "warning: --flag: removed and ignored; use --name"));
	fclose(log);
	assert_int_equal(options_parse(specs, 1, lacks, &name, false, &nargs, &e), -EINVAL);
	assert_int_equal(options_parse(specs, 2, unknown, &name, false, &nargs, &e), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_types), cmocka_unit_test(program_keeps_its_options),
		cmocka_unit_test(bad_input), cmocka_unit_test(list_is_bounded),
		cmocka_unit_test(help), cmocka_unit_test(whole_command),
		cmocka_unit_test(removed_options_are_ignored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
