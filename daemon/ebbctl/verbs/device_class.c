// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>

#include "ebbctl/device/class.h"
#include "lib/base/text.h"
#include "verbs.h"

struct class_options {
	bool json, remove;
	struct class_plan plan;
};

static const char *sealed(struct json_object *o)
{
	return json_object_get_boolean(json_member(o, "sealed")) ? "yes" : "no";
}

static void print_list(struct json_object *o)
{
	static const struct column columns[] = {
		{ "cgroup", "CGROUP", COLUMN_TEXT }, { "class", "CLASS", COLUMN_COUNT },
		{ "durability", "DURABILITY", COLUMN_TEXT }, { "sealed", "SEALED", COLUMN_TEXT },
		{ "live", "LIVE", COLUMN_BYTES },
		{ "mapped", "LENT", COLUMN_BYTES }, { "donors", "DONORS", COLUMN_TEXT },
		{ NULL },
	};

	struct json_object *rows = json_member(o, "classes");

	for (size_t i = 0; i < json_object_array_length(rows); i++)
		json_add_text(json_object_array_get_idx(rows, i), "sealed",
			      sealed(json_object_array_get_idx(rows, i)));
	output_table(rows, columns, "no cgroup has a class");
}

static void print_given(struct json_object *o)
{
	const char *cgroup = json_text(o, "cgroup", ""), *donors = json_text(o, "donors", NULL);

	if (json_member(o, "removed"))
		printf("cgroup %s: class removed\n", cgroup);
	else
		printf("cgroup %s: class %d, durability %s, sealed: %s, %s\n", cgroup,
		       (int)json_int(o, "class", 0), json_text(o, "durability", ""),
		       sealed(o), donors ?: "backup only");
}

/* Whether to set a class, rather than to show classes or to remove one. */
static bool sets(const struct class_options *o)
{
	return o->plan.donors.n || o->plan.durability || o->plan.seal;
}

static int check_words(const struct class_options *o, int argc, struct error *e)
{
	bool told = sets(o);

	if ((argc == 1 && (told || o->remove)) || (told && o->remove))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "device class: invalid combination; give NAME [CGROUP], NAME CGROUP with --donors, --durability or --seal, or NAME CGROUP with --remove");
	return 0;
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *answer = json_object_new_object();
	const struct class_options *o = options;
	bool shows = !sets(o) && !o->remove;
	int r = check_words(o, argc, e);

	if (r)
		return r;
	if (shows)
		r = device_class_list(argv[0], argv[1], answer, e);
	else if (o->remove)
		r = device_class_remove(argv[0], argv[1], answer, e);
	else
		r = device_class_set(argv[0], argv[1], &o->plan, answer, e);
	if (!r)
		output(o->json, answer, shows ? print_list : print_given);
	return r;
}

static const struct option_spec specs[] = {
	OPTION(class_options, plan.donors, "donors", OPTION_LIST, "ADDRESS,...",
	       .help = "donors of the cgroup's pages; without, --durability disk keeps them on the backup only"),
	OPTION(class_options, plan.durability, "durability", OPTION_STRING, "disk|replicas=2|none",
	       .help = "redundancy if a donor is lost [disk, with a backup]"),
	OPTION(class_options, plan.seal, "seal", OPTION_STRING, "on|off",
	       .help = "encrypt stored pages, also on the backup [as the device]"),
	OPTION(class_options, remove, "remove", OPTION_FLAG, NULL,
	       .help = "treat new pages as those of the parent cgroup"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_device_class = {
	.object = "device", .action = "class", .arguments = "NAME [CGROUP]",
	.help = "Set donors, durability and seals of a cgroup's pages, or show them",
	.example = "  ebbctl device class ebb0 /spark.slice --durability none \\\n"
		   "      --donors rdma:10.9.0.8:7070\n",
	.options = specs, .options_size = sizeof(struct class_options), .run = run, .min_args = 1,
	.max_args = 2,
};
