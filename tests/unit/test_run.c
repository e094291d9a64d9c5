// SPDX-License-Identifier: GPL-2.0-or-later
/* The sequence of what `ebbctl run` does before its program starts. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "ebbctl/run/run.h"
#include "lib/base/json.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static char steps[128];
static int attach_result;

static void step(const char *what)
{
	snprintf(steps + strlen(steps), sizeof(steps) - strlen(steps), "%s ", what);
}

int __wrap_program_block_signals(struct program *p, struct error *e) { return 0; }
bool __wrap_program_interrupted(struct program *p) { return false; }

int __wrap_program_fork(struct program *p, char **argv, enum program_user user, struct error *e)
{
	return 0;
}

int __wrap_program_go(struct program *p, const struct cgroup_ref *c, struct error *e)
{
	step("go");
	return 0;
}

int __wrap_program_wait(struct program *p, struct program_end *end, struct error *e)
{
	return 0;
}

int __wrap_cgroup_create(const char *rel, uint64_t limit, struct cgroup_ref *c, struct error *e)
{
	return 0;
}

int __wrap_daemon_call(struct json_object *request, struct json_object **answer, struct error *e)
{
	json_object_put(request);
	*answer = NULL;
	return -ENOENT;
}

int __wrap_daemon_tell(struct json_object *request, struct error *e)
{
	step(json_text(request, "verb", ""));
	json_object_put(request);
	return attach_result;
}

void __wrap_scope_apply_all(const char *extra)
{
	step("scope");
}

static void begin(void)
{
	const struct run_options o = { .policy = "leap", .keep = true };
	char *argv[] = { "true", NULL };
	struct run run = { .o = &o };
	struct error e = { 0 };

	*steps = '\0';
	assert_int_equal(run_begin(&run, argv, &e), attach_result);
	json_object_put(run.summary);
}

/*
 * Attached first: then another ebbctl that applies the scope meanwhile either knows the cgroup, or
 * is followed by this one.  The program would start without swap before the scope is applied.
 */
static void scope_is_applied_once_attached_and_before_the_start(void **state)
{
	attach_result = 0;
	begin();
	assert_string_equal(steps, "policy.attach scope go ");
}

static void program_does_not_start_unattached(void **state)
{
	attach_result = -EIO;
	begin();
	assert_string_equal(steps, "policy.attach ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(scope_is_applied_once_attached_and_before_the_start),
		cmocka_unit_test(program_does_not_start_unattached),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
