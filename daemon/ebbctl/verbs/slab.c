// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl slab: placement of the slabs of a device. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/control/device.h"
#include "lib/base/privilege.h"
#include "ebbctl/call.h"
#include "lib/base/text.h"
#include "lib/control/control.h"
#include "device_view.h"
#include "verbs.h"
#include "lib/kmod/donor_address.h"

static void add_rows(const char *device, struct json_object *answer, struct json_object *rows)
{
	struct json_object *slabs = json_member(answer, "slabs");

	for (size_t i = 0; slabs && i < json_object_array_length(slabs); i++) {
		struct json_object *row = json_object_array_get_idx(slabs, i);

		json_add_text(row, "device", device);
		json_object_array_add(rows, json_object_get(row));
	}
}

/* Reads all slabs of one device, one answer after another. */
static int list_device(const char *device, struct json_object *rows, struct error *e)
{
	/* Guards against a server that does not advance. */
	for (int64_t from = -1, next = 0; next > from;) {
		_cleanup_json_ struct json_object *answer = NULL;
		struct json_object *request = control_request("slab.list");
		int r;

		from = next;
		json_add_int(request, "from", from);
		r = server_call(device, request, &answer, e);
		if (r)
			return r;
		add_rows(device, answer, rows);
		next = json_int(answer, "next", 0);
	}
	return 0;
}

static int list_one(const struct device_record *d, void *rows)
{
	struct error e = { 0 };

	if (list_device(d->name, rows, &e))
		fprintf(stderr, "ebbctl: %s\n", e.text);
	return 0;
}

/* Lists the replicas, "10.0.0.7:7070", with the state of incomplete ones. */
static void put_holders(struct json_object *row)
{
	struct json_object *copies = json_member(row, "copies");
	char text[640] = "";
	size_t len = 0;

	for (size_t i = 0; copies && i < json_object_array_length(copies); i++) {
		struct json_object *c = json_object_array_get_idx(copies, i);
		const char *state = json_text(c, "state", "");
		bool plain = !strcmp(state, "complete");

		if (len < sizeof(text))
			len += snprintf(text + len, sizeof(text) - len, "%s%s%s%s%s", len ? " " : "",
					json_text(c, "donor", "?"), plain ? "" : "(",
					plain ? "" : state_word(state), plain ? "" : ")");
	}
	json_add_text(row, "holders", *text ? text : NULL);
}

static void print_list(struct json_object *o)
{
	static const struct column columns[] = {
		{ "device", "DEVICE", COLUMN_TEXT }, { "slab", "SLAB", COLUMN_COUNT },
		{ "state", "STATE", COLUMN_TEXT }, { "live", "LIVE PAGES", COLUMN_COUNT },
		{ "activity", "PAGES/S", COLUMN_COUNT }, { "holders", "DONORS", COLUMN_TEXT },
		{ NULL },
	};
	struct json_object *rows = json_member(o, "slabs");

	for (size_t i = 0; i < json_object_array_length(rows); i++)
		put_holders(json_object_array_get_idx(rows, i));
	output_table(rows, columns, "no slab has a replica or a live page");
}

static int run_list(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	struct json_object *rows = json_object_new_array();
	const struct common_options *c = options;
	struct device_record d;
	int r = 0;

	json_object_object_add(o, "slabs", rows);
	if (!argc) {
		device_record_each(list_one, rows);
	} else {
		r = device_record_read(argv[0], &d, e);
		if (!r)
			r = list_device(d.name, rows, e);
	}
	if (!r)
		output(c->json, o, print_list);
	return r;
}

struct migrate_options {
	bool json;
	const char *to;
};

static void print_migrate(struct json_object *o)
{
	const char *to = json_text(o, "to", NULL);

	printf("device %s: slab %lld migrates%s%s; see \"ebbctl slab list %s\"\n",
	       json_text(o, "device", ""), (long long)json_int(o, "slab", 0), to ? " to " : "",
	       to ?: "", json_text(o, "device", ""));
}

static int run_migrate(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct migrate_options *m = options;
	struct json_object *request;
	struct device_record d;
	char to[128] = "", *end;
	unsigned long index;
	int r = need_root("slab migrate", e);

	if (!r)
		r = device_record_read(argv[0], &d, e);
	if (r)
		return r;
	errno = 0;
	index = strtoul(argv[1], &end, 10);
	if (errno || *end || *argv[1] < '0' || *argv[1] > '9' || index > UINT32_MAX)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "slab '%.32s': not a slab number; see \"ebbctl slab list %s\"",
				 argv[1], d.name);
	if (index >= (d.size + d.slab - 1) / d.slab)
		return fail_exit(e, EXIT_USAGE, ERANGE, "slab %lu: out of range; device %s has slabs 0 to %llu", index,
				 d.name, (unsigned long long)((d.size + d.slab - 1) / d.slab - 1));
	r = m->to ? kmod_donor_check(m->to, "--to", to, sizeof(to), e) : 0;
	if (r)
		return r;
	json_add_text(o, "device", d.name);
	json_add_int(o, "slab", (int64_t)index);
	json_add_text(o, "to", *to ? to : NULL);
	request = control_request("slab.migrate");
	json_add_int(request, "slab", (int64_t)index);
	if (*to)
		json_add_text(request, "to", to);
	r = server_tell(d.name, request, e);
	if (!r)
		output(m->json, o, print_migrate);
	return r;
}

static const struct option_spec migrate_specs[] = {
	OPTION(migrate_options, to, "to", OPTION_STRING, "ADDRESS",
	       .help = "target donor [chosen by placement]"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_slab_list = {
	.object = "slab", .action = "list", .arguments = "[NAME]",
	.help = "List the slabs of one device or of all, and their donors",
	JSON_OPTIONS, .run = run_list,
	.max_args = 1,
};

const struct command command_slab_migrate = {
	.object = "slab",
	.action = "migrate",
	.arguments = "NAME INDEX",
	.help = "Migrate a slab to another donor while it is in use",
	.example = "  ebbctl slab migrate ebb0 17 --to 10.0.0.8:7070\n",
	.options = migrate_specs,
	.options_size = sizeof(struct migrate_options),
	.run = run_migrate,
	.min_args = 2,
	.max_args = 2,
};
