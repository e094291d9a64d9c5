// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdio.h>
#include <string.h>

#include "ebbctl/device/create.h"
#include "ebbctl/device/swaps.h"
#include "lib/base/text.h"
#include "lib/base/size.h"
#include "lib/control/device.h"
#include "verbs.h"

struct create_options {
	bool json;
	struct device_plan plan;
};

static void print_created(struct json_object *o)
{
	struct json_object *others = json_member(o, "other_swap");
	char size[16];

	printf("device %s: %s of swap on %s, priority %d\n", json_text(o, "name", ""),
	       size_format(json_int(o, "size", 0), size, sizeof(size)), json_text(o, "block", ""),
	       (int)json_int(o, "priority", 0));
	for (size_t i = 0; i < json_object_array_length(others); i++) {
		struct json_object *a = json_object_array_get_idx(others, i);
		int other = (int)json_int(a, "priority", 0);

		printf("  %s %s (priority %d)\n",
		       other < json_int(o, "priority", 0) ? "used before" :
							       "NOT used before",
		       json_text(a, "path", ""), other);
	}
}

static int run(int argc, char **argv, void *options, struct error *e)
{
	const struct create_options *opt = options;
	_cleanup_json_ struct json_object *o = NULL;
	struct swap_area areas[SWAPS_MAX];
	struct json_object *others;
	struct device_record d;
	int n, r = device_create(argv[0], &opt->plan, &d, e);

	if (r)
		return r;
	o = device_record_json(&d);
	others = json_object_new_array();
	json_object_object_add(o, "other_swap", others);
	n = swaps_read(areas);
	for (int i = 0; i < n; i++) {
		struct json_object *a = json_object_new_object();

		json_add_text(a, "path", areas[i].path);
		json_add_int(a, "priority", areas[i].priority);
		if (strcmp(areas[i].path, d.block))
			json_object_array_add(others, a);
		else
			json_object_put(a);
	}
	output(opt->json, o, print_created);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(create_options, plan.size, "size", OPTION_SIZE, "SIZE", .help = "size of the device; required",
	       .min = 4 << 20, .max = 1ULL << 44),
	OPTION(create_options, plan.donors, "donors", OPTION_LIST, "ADDRESS,...",
	       .help = "donor addresses: HOST:PORT, rdma:HOST:PORT or unix:/PATH [donors known to ebbd]"),
	OPTION(create_options, plan.donors, "donor", OPTION_LIST, "ADDRESS",
	       .help = "one donor address; may be repeated"),
	OPTION(create_options, plan.frontend, "frontend", OPTION_STRING, "fuse|ublk|kmod",
	       .help = "block device: loop over FUSE, /dev/ublkbN, or /dev/ebbN (kernel module, RDMA) [fuse]"),
	OPTION(create_options, plan.durability, "durability", OPTION_STRING, "disk|replicas=2|replicas=3|none",
	       .help = "redundancy if a donor is lost: local disk, replicas or none [disk]"),
	OPTION(create_options, plan.slab, "slab", OPTION_SIZE, "SIZE",
	       .help = "unit of placement, a power of two from 1M to 1G [64M]", .min = 1 << 20, .max = 1 << 30),
	OPTION(create_options, plan.backup, "backup", OPTION_STRING, "DIR",
	       .help = "directory of the local backup, block device with kmod [" DEVICE_BACKUP_DIR "]"),
	OPTION(create_options, plan.extras.key, "key", OPTION_STRING, "FILE",
	       .help = "key of this borrower, from which donors' keys are derived; see ebbctl key create"),
	OPTION(create_options, plan.extras.connections, "connections", OPTION_UINT, "N",
	       .help = "with --key: data connections to each donor, 1 to 8 [1]", .min = 1, .max = 8),
	OPTION(create_options, plan.extras.seal, "seal", OPTION_STRING, "auto|on|off",
	       .help = "encrypt pages before they leave the machine; auto: unless all donors are unix: [auto]"),
	OPTION(create_options, plan.extras.overcommit, "overcommit", OPTION_FLAG, NULL,
	       .help = "with replicas or none: reserve no capacity; writes fail when the donors are full"),
	OPTION(create_options, plan.priority, "priority", OPTION_UINT, "N",
	       .help = "swap priority, 1 to 32767 [above all others]", .min = 1, .max = DEVICE_PRIORITY_MAX),
	OPTION(create_options, plan.scope, "scope", OPTION_STRING, "any|attached",
	       .help = "processes that may swap there; attached: cgroups with a policy, best effort [any]"),
	OPTION(create_options, plan.adopt, "adopt", OPTION_FLAG, NULL,
	       .help = "succeed if a working device with this name and these options exists"),
	OPTION_JSON,
	OPTIONS_REMOVED,
	{ .name = "hot-slab", .type = OPTION_STRING,
	  .help = "each slab is placed on a donor at its first page" },
	OPTIONS_END
};

static const struct create_options defaults = { .plan = DEVICE_PLAN_DEFAULTS };

const struct command command_device_create = {
	.object = "device", .action = "create", .arguments = "NAME",
	.help = "Create a swap device backed by donors and enable swap on it",
	.example = "  ebbctl device create ebb0 --size 8G --durability replicas=2 \\\n"
		   "      --donors 10.0.0.7:7070,10.0.0.8:7070,10.0.0.9:7070 --key /etc/ebb/spark.key\n",
	.options = specs, .options_size = sizeof(struct create_options), .defaults = &defaults,
	.run = run, .min_args = 1, .max_args = 1,
};
