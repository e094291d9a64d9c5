// SPDX-License-Identifier: GPL-2.0-or-later
/* Where programs look for policies: this one, copied to several places, prints it. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/files.h"
#include "lib/base/paths.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char dir[] = "/tmp/ebb-test-paths-XXXXXX";

__attribute__((format(printf, 1, 2))) static void shell(const char *format, ...)
{
	char command[512];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
	return mkdtemp(dir) && !unsetenv("EBB_POLICY_DIR") ? 0 : -1;
}

static int teardown(void **state)
{
	shell("rm -r %s", dir);
	return 0;
}

/* The program in directory @place of @dir finds its policies in @expected. */
static void finds(const char *place, const char *expected)
{
	char own[PATH_MAX] = "", command[256], path[PATH_MAX] = "";
	FILE *f;

	assert_true(readlink("/proc/self/exe", own, sizeof(own) - 1) > 0);
	shell("mkdir -p %s/%s && cp '%s' %s/%s/program", dir, place, own, dir, place);
	snprintf(command, sizeof(command), "%s/%s/program policies", dir, place);
	f = popen(command, "re");
	assert_non_null(f);
	assert_non_null(fgets(path, sizeof(path), f));
	assert_int_equal(pclose(f), 0);
	assert_string_equal(path, expected);
}

/* The PREFIX of `make install` may differ from that of the build. */
static void policies_of_the_own_prefix(void **state)
{
	char expected[128];

	shell("mkdir -p %s/local/lib/ebb/policies", dir);
	snprintf(expected, sizeof(expected), "%s/local/lib/ebb/policies", dir);
	finds("local/sbin", expected);
	finds("local/bin", expected);
}

static void policies_of_the_build_tree(void **state)
{
	char expected[128];

	shell("mkdir -p %s/build/policies", dir);
	snprintf(expected, sizeof(expected), "%s/build/policies", dir);
	finds("build/bin", expected);
}

/* As with SBINDIR= outside PREFIX. */
static void policies_of_the_prefix_of_the_build(void **state)
{
	finds("elsewhere/sbin", EBB_LIBDIR "/policies");
}

static void policies_of_the_environment(void **state)
{
	setenv("EBB_POLICY_DIR", "/some/where", 1);
	finds("local/sbin", "/some/where");
	unsetenv("EBB_POLICY_DIR");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(policies_of_the_own_prefix),
		cmocka_unit_test(policies_of_the_build_tree),
		cmocka_unit_test(policies_of_the_prefix_of_the_build),
		cmocka_unit_test(policies_of_the_environment),
	};

	if (argc > 1)
		return fputs(ebb_policy_dir(), stdout) < 0;
	return cmocka_run_group_tests(tests, setup, teardown);
}
