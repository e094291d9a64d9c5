// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <sys/utsname.h>

#include "doctor_check.h"
#include "lib/base/text.h"
#include "lib/base/privilege.h"
#include "verbs.h"

static void print_checks(struct json_object *o)
{
	struct json_object *checks = json_member(o, "checks");

	for (size_t i = 0; i < json_object_array_length(checks); i++) {
		struct json_object *c = json_object_array_get_idx(checks, i);
		const char *remedy = json_text(c, "remedy", NULL);

		printf("%-9s %-26s %s\n", json_text(c, "state", ""), json_text(c, "name", ""),
		       json_text(c, "found", ""));
		if (remedy)
			printf("%36s -> %s\n", "", remedy);
	}
	printf("\n%d missing: %s\n", (int)json_int(o, "missing", 0),
	       json_int(o, "missing", 0) ? "ebb does not work here yet" : "ebb works here");
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	struct doctor d = { .checks = json_object_new_array() };
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct common_options *c = options;
	struct utsname u;
	int r = need_root("doctor", e);

	json_object_object_add(o, "checks", d.checks);
	if (r)
		return r;
	uname(&u);
	doctor_add(&d, HAVE, "kernel", NULL, "%s %s", u.release, u.machine);
	doctor_bpf(&d);
	doctor_perf(&d);
	doctor_memory(&d);
	doctor_device(&d);
	doctor_running(&d);
	json_add_int(o, "missing", d.missing);
	output(c->json, o, print_checks);
	/* The table has the details. */
	return d.missing ? fail_exit(e, EXIT_UNSUPPORTED, EOPNOTSUPP, "%s", "") : 0;
}

const struct command command_doctor = {
	.object = "doctor", .help = "Check the prerequisites on this machine and print remedies",
	JSON_OPTIONS, .run = run,
};
