// SPDX-License-Identifier: GPL-2.0-or-later
/* [cgroup "/path/glob"] sections and the xattr that says the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_text.h"

static void sections_and_their_lines(void **unused)
{
	const struct declaration *d;
	struct config c;
	struct error e;

	assert_int_equal(load(&c, "# first\n"
				  "[cgroup \"/spark.slice\"]\n"
				  "policy = leap\n"
				  "pw_max = 64\n"
				  "[prefetch]\n"
				  "batch = 32\n"
				  "  [cgroup \"/db.slice/*.scope/\"]   \n"
				  "  pw_max = 1\n"
				  "  run=daemon\n"
				  "  policy = stride\n"
				  "  pw_max = 2\n", &e), 0);
	assert_int_equal(c.executor.batch, 32);
	assert_int_equal(c.declared.n, 2);
	d = &c.declared.item[0];
	assert_string_equal(d->glob, "/spark.slice");
	assert_string_equal(d->policy, "leap");
	assert_int_equal(d->line, 2);
	assert_int_equal(d->policy_line, 3);
	assert_int_equal(d->n, 1);
	assert_string_equal(d->name[0], "pw_max");
	assert_int_equal(d->value[0], 64);
	d = &c.declared.item[1];
	assert_string_equal(d->glob, "/db.slice/*.scope");
	assert_string_equal(d->policy, "stride");
	/* The later value of a key. */
	assert_int_equal(d->n, 1);
	assert_int_equal(d->value[0], 2);
	assert_int_equal(d->value_line[0], 11);
	config_free(&c);
}

/* The INI library alone would cut it at 50 characters. */
static void long_paths_are_whole(void **unused)
{
	static const char path[] = "/kubepods.slice/kubepods-burstable.slice/"
		"kubepods-burstable-pod0123456789abcdef.slice/cri-containerd-0123456789abcdef.scope";
	struct config c;
	struct error e;
	char text[512];

	snprintf(text, sizeof(text), "[cgroup \"%s\"]\npolicy=leap\n", path);
	assert_int_equal(load(&c, text, &e), 0);
	assert_string_equal(c.declared.item[0].glob, path);
	config_free(&c);
}

static void errors_name_file_and_line(void **unused)
{
	static const struct refused_text bad[] = {
		{ "[cgroup \"/a\"]\npw_max = 1\n", ":1:", "policy" },
		{ "[cgroup \"/a\"]\n[cgroup \"/b\"]\npolicy=leap\n", ":1:", "/a" },
		{ "[cgroup \"/a\"]\npolicy = leap\npw_max = many\n", ":3:", "many" },
		{ "[cgroup \"/a\"]\npolicy = leap\npw_max = -1\n", ":3:", "-1" },
		{ "[cgroup \"/a\"]\npolicy = leap\npw_max =\n", ":3:", "pw_max" },
		{ "[cgroup \"/a\"]\npolicy = leap\npw_max = 99999999999999999999\n", ":3:", "pw_max" },
		{ "[cgroup \"/a\"]\npolicy = leap\nrun = moon\n", ":3:", "moon" },
		{ "[cgroup \"/a\"]\npolicy = leap\nslowdown = abc\n", ":3:", "slowdown: 'abc'" },
		{ "[cgroup \"/a\"]\npolicy = leap\nslowdown = 50.1%\n", ":3:", "0 to 50%" },
		{ "[cgroup \"/a\"]\npolicy = leap\nslowdown = -2\n", ":3:", "slowdown: '-2'" },
		{ "[cgroup \"/a\"]\npolicy = leap\nplacement = 1\n", ":3:", "placement: '1' is not auto" },
		{ "[cgroup \"/a\"]\npolicy = leap\nbenefit = 2\n", ":3:", "benefit: '2' is not on or off" },
		{ "[cgroup \"/a\"]\npolicy = leap\ndetect = 2\n", ":3:", "detect: '2' is out of range; give 0 or 1" },
		{ "[cgroup \"/a\"] policy = leap\n", ":1:", "'policy = leap' follows" },
		{ "[cgroup \"/x[\"]\npolicy = leap\n", ":1:", "a [ of the glob has no ]" },
		{ "[cgroup \"/x[]\"]\npolicy = leap\n", ":1:", "a [ of the glob has no ]" },
		{ "[cgroup \"/x[!]\"]\npolicy = leap\n", ":1:", "a [ of the glob has no ]" },
		{ "[cgroup \"/[a]/x[b\"]\npolicy = leap\n", ":1:", "a [ of the glob has no ]" },
		{ "[cgroup \"/a\"]\npolicy =\n", ":2:", "policy" },
		{ "[cgroup \"/a\"]\npolicy = a-name-that-no-policy-can-have\n", ":2:", "policy" },
		{ "[cgroup /a]\npolicy = leap\n", ":1:", "quotes" },
		{ "[cgroup \"/a]\npolicy = leap\n", ":1:", "quotes" },
		{ "[cgroup \"/a\"\npolicy = leap\n", ":1:", "quotes" },
		{ "[cgroup]\npolicy = leap\n", ":1:", "quotes" },
		{ "\n[cgroup \"a\"]\npolicy = leap\n", ":2:", "begin with /" },
		{ "[cgroup \"\"]\npolicy = leap\n", ":1:", "begin with /" },
		{ "[cgroup \"/a\"]\npolicy = leap\n[prefetch]\nbatch = 0\n", ":4:", "batch" },
	};

	assert_refused(bad, sizeof(bad) / sizeof(bad[0]));
}

static void long_lines_are_refused(void **unused)
{
	char text[1024] = "[cgroup \"/a\"]\npolicy = leap\n[cgroup \"/", *p = text + strlen(text);
	struct config c;
	struct error e;

	memset(p, 'x', 300);
	strcpy(p + 300, "\"]\npolicy = leap\n");
	assert_true(load(&c, text, &e) < 0);
	assert_non_null(strstr(e.text, ":3:"));
	assert_non_null(strstr(e.text, "longer"));
	config_free(&c);
	/* A long comment is none of our business, and lines after it keep their numbers. */
	memset(text, '#', 400);
	strcpy(text + 400, "\n[cgroup \"/a\"]\npolicy = leap\n");
	assert_int_equal(load(&c, text, &e), 0);
	assert_int_equal(c.declared.item[0].line, 2);
	config_free(&c);
}

static void too_many(void **unused)
{
	char *text = calloc(CONFIG_DECLARATIONS + 1, 64);
	struct config c;
	struct error e;
	size_t len = 0;

	for (int i = 0; i <= CONFIG_DECLARATIONS; i++)
		len += sprintf(text + len, "[cgroup \"/a%d\"]\npolicy = leap\n", i);
	assert_true(load(&c, text, &e) < 0);
	assert_non_null(strstr(e.text, "glob"));
	config_free(&c);
	free(text);
}

static void globs(void **unused)
{
	static const struct { const char *glob, *rel; bool matches; } g[] = {
		{ "/a", "/a", true }, { "/a", "/a/b", false }, { "/a", "/ab", false },
		{ "/a/*", "/a/b", true }, { "/a/*", "/a", false }, { "/a/*", "/a/b/c", false },
		{ "/*/b", "/a/b", true }, { "/a-[0-9]", "/a-7", true }, { "/a-[0-9]", "/a-x", false },
		{ "/a?", "/ab", true }, { "/", "/", true }, { "/*", "/", false },
		{ "/sys/fs/cgroup/a", "/a", true }, { "/sys/fs/cgroup/a/*", "/a/b", true },
		{ "/sys/fs/cgroup", "/", true }, { "/sys/fs/cgroup/b", "/a", false },
	};
	struct declaration d = { 0 };

	for (size_t i = 0; i < sizeof(g) / sizeof(g[0]); i++) {
		strcpy(d.glob, g[i].glob);
		assert_int_equal(declaration_matches(&d, "/sys/fs/cgroup", g[i].rel), g[i].matches);
	}
}

static void xattrs(void **unused)
{
	static const char *const bad[] = {
		"", "  \n", "leap pw_max", "leap =4", "leap pw_max=x", "leap pw_max=-1", "leap run=moon",
		"a-name-that-no-policy-can-have", "leap a=1 b=1 c=1 d=1 e=1 f=1 g=1 h=1 i=1 j=1 k=1 l=1 m=1",
		"leap slowdown=", "leap slowdown=51%", "leap slowdown=-1%", "leap placement=",
		"leap placement=Apart", "leap benefit=", "leap detect=2",
	};
	struct declaration d = { 0 };
	struct attach_wish wish;
	struct error e = { 0 };

	assert_int_equal(declaration_parse(&d, "leap pw_max=64  run=daemon\n", &e), 0);
	assert_true(d.in_daemon);
	declaration_wish(&d, &wish);
	assert_string_equal(wish.policy, "leap");
	assert_int_equal(wish.by, BY_DECLARATION);
	assert_string_equal(wish.source, "user.ebb.policy");
	assert_int_equal(wish.n, 1);
	assert_string_equal(wish.names[0], "pw_max");
	assert_int_equal(wish.values[0], 64);
	d = (struct declaration){ 0 };
	assert_int_equal(declaration_parse(&d, "leap slowdown=2.5%", &e), 0);
	declaration_wish(&d, &wish);
	assert_string_equal(wish.names[0], "slowdown");
	assert_int_equal(wish.values[0], 25);
	d = (struct declaration){ 0 };
	assert_int_equal(declaration_parse(&d, "leap placement=together", &e), 0);
	declaration_wish(&d, &wish);
	assert_string_equal(wish.names[0], "placement");
	assert_int_equal(wish.values[0], PLACEMENT_TOGETHER);
	d = (struct declaration){ 0 };
	assert_int_equal(declaration_parse(&d, "leap benefit=on", &e), 0);
	declaration_wish(&d, &wish);
	assert_string_equal(wish.names[0], "benefit");
	assert_int_equal(wish.values[0], 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		d = (struct declaration){ 0 };
		e = (struct error){ 0 };
		assert_true(declaration_parse(&d, bad[i], &e) < 0);
		assert_int_equal(e.exit_status, EXIT_USAGE);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sections_and_their_lines),
		cmocka_unit_test(long_paths_are_whole),
		cmocka_unit_test(errors_name_file_and_line),
		cmocka_unit_test(long_lines_are_refused),
		cmocka_unit_test(too_many),
		cmocka_unit_test(globs),
		cmocka_unit_test(xattrs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
