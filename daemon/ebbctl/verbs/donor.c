// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl donor: donors of this machine and their drain. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device_view.h"
#include "lib/control/control.h"
#include "lib/base/privilege.h"
#include "lib/base/size.h"
#include "lib/base/paths.h"
#include "ebbctl/call.h"
#include "lib/base/text.h"
#include "verbs.h"
#include "lib/kmod/donor_address.h"

#define LOCAL "local"
#define LOCAL_MS 5000

/* Sends @request, which it frees, to the donor on this machine. */
static int local_call(struct json_object *request, struct json_object **answer, struct error *e)
{
	struct error inner = { 0 };
	int r = control_call(ebb_donor_socket(), request, LOCAL_MS, answer, &inner);

	if (r && inner.exit_status == EXIT_NO_DAEMON)
		return fail_exit(e, EXIT_NO_DAEMON, r,
				 "donor " LOCAL ": cannot connect to ebb-donord at %s; start it, or name a donor of a device",
				 ebb_donor_socket());
	if (r)
		return fail_exit(e, inner.exit_status, r, "%s", inner.text);
	return 0;
}

static int add_rows(const char *device, struct json_object *status, void *rows)
{
	struct json_object *donors = json_member(status, "donors");

	for (size_t i = 0; donors && i < json_object_array_length(donors); i++) {
		struct json_object *row = json_object_array_get_idx(donors, i);

		json_add_text(row, "device", device);
		json_object_array_add(rows, json_object_get(row));
	}
	return 0;
}

/* Returns the number of @rows with @address; marks them when etcd lacks the donor. */
static int mark(struct json_object *rows, const char *address, bool missing)
{
	int n = 0;

	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		if (strcmp(json_text(row, "address", ""), address))
			continue;
		n++;
		if (missing)
			json_add_bool(row, "missing", true);
	}
	return n;
}

/* Adds donors that ebbd knows and no device uses, and marks donors missing in etcd. */
static void add_known(struct json_object *rows, struct json_object *known)
{
	for (size_t i = 0; known && i < json_object_array_length(known); i++) {
		struct json_object *row = json_object_array_get_idx(known, i);

		if (mark(rows, json_text(row, "address", ""),
			 json_object_get_boolean(json_member(row, "missing"))))
			continue;
		json_add_text(row, "device", NULL);
		json_add_text(row, "state", "not used");
		json_object_array_add(rows, json_object_get(row));
	}
}

static void print_far(struct json_object *o)
{
	static const struct column columns[] = {
		{ "name", "POOL", COLUMN_TEXT }, { "key", "KEY", COLUMN_TEXT },
		{ "bytes", "HOLDS", COLUMN_BYTES }, { "extents", "EXTENTS", COLUMN_COUNT },
		{ "extent_bytes", "IN USE", COLUMN_BYTES }, { "live", "MEMBERS", COLUMN_COUNT },
		{ "away", "AWAY", COLUMN_COUNT }, { "dead", "DEAD", COLUMN_COUNT },
		{ "recovering", "RECOVERING", COLUMN_COUNT }, { NULL },
	};
	char used[16], limit[16];

	printf("\nfar memory: %s of %s in use, %lld members fenced, %lld of them recovered\n",
	       size_format((uint64_t)json_int(o, "used", 0), used, sizeof(used)),
	       size_format((uint64_t)json_int(o, "limit", 0), limit, sizeof(limit)),
	       (long long)json_int(o, "fences", 0), (long long)json_int(o, "recovered", 0));
	output_table(json_member(o, "pools"), columns, "no pools; see \"ebbctl far create\"");
}

static void print_local(struct json_object *o)
{
	static const struct column columns[] = {
		{ "name", "BORROWER", COLUMN_TEXT }, { "peer", "FROM", COLUMN_TEXT },
		{ "transport", "BY", COLUMN_TEXT }, { "slabs", "SLABS", COLUMN_COUNT },
		{ "bytes", "HOLDS", COLUMN_BYTES }, { "asked_back", "RECALLED", COLUMN_COUNT },
		{ NULL },
	};
	int64_t withdrawn = json_int(json_member(o, "slabs"), "withdrawn", 0);
	const char *etcd = json_text(o, "etcd", NULL);
	int64_t promised = json_int(o, "promised", 0);
	char total[16], free_text[16], size[16], kept[32] = "", lost[32] = "";

	if (withdrawn)
		snprintf(lost, sizeof(lost), ", %lld slabs withdrawn", (long long)withdrawn);
	if (promised)
		snprintf(kept, sizeof(kept), ", %s promised",
			 size_format((uint64_t)promised, size, sizeof(size)));
	printf("this machine lends %s, %s of it free%s%s%s%s%s\n",
	       size_format(json_int(o, "total", 0), total, sizeof(total)),
	       size_format(json_int(o, "free", 0), free_text, sizeof(free_text)), kept, lost,
	       json_object_get_boolean(json_member(o, "draining")) ? ", draining" : "",
	       etcd ? "; etcd: " : "", etcd ?: "");
	output_table(json_member(o, "borrowers"), columns, "no borrowers");
	if (json_member(o, "far"))
		print_far(json_member(o, "far"));
}

/* Sets the state, such as "up, draining, stuck, unlisted, missing in etcd". */
static void put_whole_state(struct json_object *row)
{
	const char *leaving = json_text(row, "leaving", NULL);
	bool missing = json_object_get_boolean(json_member(row, "missing"));
	bool unlisted = json_object_get_boolean(json_member(row, "unlisted"));
	char text[96];

	snprintf(text, sizeof(text), "%s%s%s%s%s%s", state_word(json_text(row, "state", "?")),
		 leaving ? ", " : "", leaving ?: "", donor_stuck(row) ? ", stuck" : "",
		 unlisted ? ", unlisted" : "",
		 missing ? ", missing in etcd" : "");
	json_add_text(row, "state", text);
}

static void print_list(struct json_object *o)
{
	static const struct column columns[] = {
		{ "address", "DONOR", COLUMN_TEXT }, { "device", "DEVICE", COLUMN_TEXT },
		{ "state", "STATE", COLUMN_TEXT }, { "transport", "BY", COLUMN_TEXT },
		{ "slabs", "SLABS", COLUMN_COUNT }, { "free", "FREE", COLUMN_BYTES },
		{ "total", "LENDS", COLUMN_BYTES }, { "losses", "LOST", COLUMN_COUNT },
		{ NULL },
	};
	struct json_object *local = json_member(o, LOCAL), *rows = json_member(o, "donors");
	const char *error = json_text(o, "error", NULL);

	for (size_t i = 0; i < json_object_array_length(rows); i++)
		put_whole_state(json_object_array_get_idx(rows, i));
	output_table(rows, columns,
		     "no donors; see \"ebbctl device create\" and [donors] in ebb.conf(5)");
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		donor_print_stuck(json_text(row, "address", "?"), json_text(row, "device", "?"),
				  row);
	}
	if (error)
		printf("\nebbd: %s\n", error);
	if (json_object_get_boolean(json_member(o, "frozen")))
		printf("\nebbd: the list is frozen: etcd lacks too many donors at once\n");
	if (local) {
		printf("\n");
		print_local(local);
	}
}

static int run_list(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object(), *known = NULL;
	struct json_object *rows = json_object_new_array(), *local = NULL;
	const struct common_options *c = options;

	json_object_object_add(o, "donors", rows);
	servers_ask("status", add_rows, rows);
	if (!daemon_call(control_request("donors"), &known, NULL)) {
		add_known(rows, json_member(known, "donors"));
		json_add_text(o, "source", json_text(known, "source", NULL));
		json_add_text(o, "error", json_text(known, "error", NULL));
		json_add_bool(o, "frozen", json_object_get_boolean(json_member(known, "frozen")));
	}
	if (!local_call(control_request("status"), &local, NULL))
		json_object_object_add(o, LOCAL, local);
	output(c->json, o, print_list);
	return 0;
}

/* Sends one verb to every device that has a donor of one address. */
struct telling {
	const char *verb, *address;
	struct json_object *devices; /* notified */
	struct json_object *moves;   /* drain estimates: {device, "outlook"} */
	struct error *e;
};

static void keep_outlook(struct telling *t, const char *device, struct json_object *answer)
{
	struct json_object *outlook = json_member(answer, "outlook"), *row;

	if (!outlook)
		return;
	row = json_object_new_object();
	json_add_text(row, "device", device);
	json_object_object_add(row, "outlook", json_object_get(outlook));
	json_object_array_add(t->moves, row);
}

static int tell_user(const char *device, struct json_object *status, void *data)
{
	_cleanup_json_ struct json_object *answer = NULL;
	struct json_object *rows = json_member(status, "donors"), *request;
	struct telling *t = data;
	int r;

	if (!rows || !mark(rows, t->address, false))
		return 0;
	request = control_request(t->verb);
	json_add_text(request, "donor", t->address);
	r = server_call(device, request, &answer, t->e);
	if (r)
		return r;
	json_object_array_add(t->devices, json_object_new_string(device));
	keep_outlook(t, device, answer);
	return 0;
}

static int tell_devices(const char *verb, const char *address, struct json_object *o,
			struct error *e)
{
	struct telling t = { verb, address, json_object_new_array(), json_object_new_array(), e };
	int r;

	json_object_object_add(o, "devices", t.devices);
	r = servers_ask("status", tell_user, &t);
	if (json_object_array_length(t.moves))
		json_object_object_add(o, "moves", t.moves);
	else
		json_object_put(t.moves);
	if (r || json_object_array_length(t.devices))
		return r;
	return fail_exit(e, EXIT_USAGE, ENOENT,
			 "donor %s: not used by a device of this machine; see \"ebbctl donor list\"", address);
}

static int tell(const char *verb, const char *local_verb, const char *what, const char *text,
		void *options, void (*print)(struct json_object *o), struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object(), *answer = NULL;
	const struct common_options *c = options;
	char address[128];
	int r = need_root(what, e);

	if (r)
		return r;
	if (!strcmp(text, LOCAL) && local_verb) {
		json_add_text(o, "donor", LOCAL);
		r = local_call(control_request(local_verb), &answer, e);
	} else {
		r = kmod_donor_check(text, "donor", address, sizeof(address), e);
		json_add_text(o, "donor", r ? "" : address);
		if (!r)
			r = tell_devices(verb, address, o, e);
	}
	if (!r)
		output(c->json, o, print);
	return r;
}

static void print_drain(struct json_object *o)
{
	const char *donor = json_text(o, "donor", "");
	struct json_object *moves = json_member(o, "moves");

	for (size_t i = 0; moves && i < json_object_array_length(moves); i++) {
		struct json_object *row = json_object_array_get_idx(moves, i);
		struct json_object *outlook = json_member(row, "outlook");
		long long disk = json_int(outlook, "to_disk", 0);

		printf("donor %s: %lld slabs of device %s are migrating", donor,
		       (long long)json_int(outlook, "move", 0) + disk,
		       json_text(row, "device", "?"));
		if (disk)
			printf(", %lld of them to its disk only: no other donor has free capacity", disk);
		printf("; see \"ebbctl donor list\"\n");
		donor_print_stuck(donor, json_text(row, "device", "?"), row);
	}
	if (!moves)
		printf("donor %s: slabs are migrating; see \"ebbctl donor list\"\n", donor);
}

static void print_used(struct json_object *o)
{
	printf("donor %s: in use again\n", json_text(o, "donor", ""));
}

static int run_drain(int argc, char **argv, void *options, struct error *e)
{
	return tell("donor.drain", "drain", "donor drain", argv[0], options, print_drain, e);
}

static int run_undrain(int argc, char **argv, void *options, struct error *e)
{
	return tell("donor.undrain", "undrain", "donor undrain", argv[0], options, print_used, e);
}

static int run_trust(int argc, char **argv, void *options, struct error *e)
{
	return tell("donor.trust", NULL, "donor trust", argv[0], options, print_used, e);
}

struct forget_options {
	bool json, force;
};

static void print_forgotten(struct json_object *o)
{
	printf("donor %s: declared lost; %lld pages of device %s are lost\n", json_text(o, "donor", ""),
	       (long long)json_int(o, "pages_lost", 0), json_text(o, "device", ""));
}

static int run_forget(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object(), *answer = NULL;
	const struct forget_options *f = options;
	struct json_object *request;
	struct device_record d;
	char address[128];
	int r = need_root("donor forget", e);

	/* A server started without ebbctl has no record, a device of the module no server. */
	if (!r && access(ebb_device_socket(argv[0]), F_OK) < 0)
		r = device_record_read(argv[0], &d, e);
	if (!r)
		r = kmod_donor_check(argv[1], "donor", address, sizeof(address), e);
	if (r)
		return r;
	request = control_request("donor.forget");
	json_add_text(request, "donor", address);
	json_add_bool(request, "force", f->force);
	r = server_call(argv[0], request, &answer, e);
	if (r)
		return r;
	json_add_text(o, "device", argv[0]);
	json_add_text(o, "donor", address);
	json_add_int(o, "pages_lost", json_int(answer, "pages_lost", 0));
	output(f->json, o, print_forgotten);
	return 0;
}

static const struct option_spec forget_specs[] = {
	OPTION(forget_options, force, "force", OPTION_FLAG, NULL,
	       .help = "lose pages of which the donor has the only copy"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_donor_forget = {
	.object = "donor", .action = "forget", .arguments = "NAME DONOR",
	.help = "Stop waiting for a donor that is away: it counts as lost",
	.example = "  ebbctl donor forget ebb0 10.0.0.7:7070\n",
	.options = forget_specs, .options_size = sizeof(struct forget_options), .run = run_forget,
	.min_args = 2, .max_args = 2,
};

const struct command command_donor_list = {
	.object = "donor", .action = "list",
	.help = "List the donors that this machine uses, and the memory that it lends",
	JSON_OPTIONS, .run = run_list,
};

const struct command command_donor_drain = {
	.object = "donor", .action = "drain", .arguments = "DONOR|" LOCAL,
	.help = "Migrate all slabs away from a donor, or all slabs that this machine lends",
	.example = "  ebbctl donor drain 10.0.0.7:7070\n  ebbctl donor drain local\n",
	JSON_OPTIONS, .run = run_drain,
	.min_args = 1, .max_args = 1,
};

const struct command command_donor_undrain = {
	.object = "donor", .action = "undrain", .arguments = "DONOR|" LOCAL,
	.help = "Allow new slabs on a donor again", JSON_OPTIONS, .run = run_undrain, .min_args = 1,
	.max_args = 1,
};

const struct command command_donor_trust = {
	.object = "donor", .action = "trust", .arguments = "DONOR",
	.help = "Release a donor from quarantine", JSON_OPTIONS, .run = run_trust, .min_args = 1,
	.max_args = 1,
};
