// SPDX-License-Identifier: GPL-2.0-or-later
/* The table of policies when it is full; before the kernel sees a policy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebbd/plane/policy_store.h"
#include "lib/base/error.h"

/* Stores the path of a policy of ebb in @path: this program is in BUILD/tests/unit. */
static void object_path(const char *name, char *path, size_t size)
{
	char here[PATH_MAX / 2];
	ssize_t n = readlink("/proc/self/exe", here, sizeof(here) - 1);

	assert_true(n > 0);
	here[n] = '\0';
	*strrchr(here, '/') = '\0';
	snprintf(path, size, "%s/../../policies/%s", here, name);
}

static void one_more_is_refused(void **unused)
{
	struct plane *p = calloc(1, sizeof(*p)), *before = calloc(1, sizeof(*p));
	struct policy_change change;
	struct error e = { 0 };
	char path[PATH_MAX];

	assert_true(p && before);
	object_path("stride.bpf.o", path, sizeof(path));
	p->policies = EBB_MAX_POLICIES;
	for (uint32_t i = 0; i < EBB_MAX_POLICIES; i++)
		snprintf(p->policy[i].name, sizeof(p->policy[i].name), "other%u", i);
	*before = *p;
	assert_int_not_equal(policies_load(p, NULL, path, &change, &e), 0);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_int_equal(e.code, -ENOSPC);
	assert_non_null(strstr(e.text, "stride.bpf.o: limit of 31 policies reached; unload one"));
	assert_memory_equal(p, before, sizeof(*p));
	free(p);
	free(before);
}

static void a_name_of_ebb_is_refused_first(void **unused)
{
	struct plane *p = calloc(1, sizeof(*p));
	struct policy_change change;
	struct error e = { 0 };
	char path[PATH_MAX];

	assert_non_null(p);
	object_path("stride.bpf.o", path, sizeof(path));
	p->policies = EBB_MAX_POLICIES;
	for (uint32_t i = 0; i < EBB_MAX_POLICIES; i++)
		snprintf(p->policy[i].name, sizeof(p->policy[i].name), "other%u", i);
	snprintf(p->policy[7].name, sizeof(p->policy[7].name), "stride");
	p->policy[7].origin = POLICY_BUILTIN;
	assert_int_not_equal(policies_load(p, NULL, path, &change, &e), 0);
	assert_int_equal(e.code, -EEXIST);
	assert_non_null(strstr(e.text, "a policy 'stride' comes with ebb"));
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_more_is_refused),
		cmocka_unit_test(a_name_of_ebb_is_refused_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
