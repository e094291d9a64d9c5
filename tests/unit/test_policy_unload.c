// SPDX-License-Identifier: GPL-2.0-or-later
/* A policy stays while the configuration names it: without it, ebbd would not start. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ebbd/server_policy.h"
#include "lib/base/json.h"
#include "lib/control/control.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

static int removed;

int __wrap_policy_remove(struct attachments *a, const char *name, struct error *e)
{
	removed++;
	return 0;
}

static int unload(struct ebbd *d, const char *name, struct error *e)
{
	struct json_object *request = control_request("policy.unload");
	struct json_object *answer = json_object_new_object();
	int r;

	removed = 0;
	*e = (struct error){ 0 };
	json_add_text(request, "policy", name);
	r = policy_unload(d, request, answer, e);
	json_object_put(request);
	json_object_put(answer);
	return r;
}

static void configured_policy_stays(void **state)
{
	struct ebbd *d = calloc(1, sizeof(*d));
	struct declaration *section = calloc(1, sizeof(*section));
	struct error e;

	assert_non_null(d);
	assert_non_null(section);
	d->plane.policies = 3;
	strcpy(d->plane.policy[1].name, "mine");
	strcpy(d->plane.policy[2].name, "leap");
	d->plane.policy[1].origin = POLICY_LOADED;
	d->plane.policy[2].origin = POLICY_BUILTIN;
	strcpy(section->policy, "mine");
	strcpy(section->glob, "/future.slice");
	strcpy(section->file, "/etc/ebb/ebb.conf");
	section->line = 7;
	section->policy_line = 8;
	d->config.declared = (struct declarations){ .item = section, .n = 1 };

	assert_int_equal(unload(d, "mine", &e), -EBUSY);
	assert_int_equal(e.exit_status, EXIT_REFUSED);
	assert_non_null(strstr(e.text, "/etc/ebb/ebb.conf:8"));
	assert_non_null(strstr(e.text, "/future.slice"));
	assert_int_equal(removed, 0);
	/* policy_remove() says that it comes with ebb. */
	strcpy(section->policy, "leap");
	assert_int_equal(unload(d, "leap", &e), 0);
	assert_int_equal(removed, 1);
	assert_int_equal(unload(d, "mine", &e), 0);
	assert_int_equal(removed, 1);
	free(section);
	free(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(configured_policy_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
