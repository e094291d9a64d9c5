// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl far: pools of far memory at a donor. */
#include <stdio.h>

#include "ebbctl/far/pools.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "verbs.h"

struct far_options {
	bool json, shared, force;
	const char *key;
};

#define OPTION_KEY \
	OPTION(far_options, key, "key", OPTION_STRING, "FILE", \
	       .help = "this machine's key (ebbctl key create), which owns the pools; the donor needs one derived from it")

static void put_pool(struct json_object *o, const struct far_donor *d,
		     const struct wire_far_listed *l)
{
	json_add_text(o, "name", l->name);
	json_add_int(o, "bytes", l->arenas * d->arena);
	json_add_bool(o, "shared", l->flags & WIRE_FAR_SHARED);
	json_add_int(o, "live", l->live);
	json_add_int(o, "away", l->away);
	json_add_int(o, "dead", l->dead);
}

/* --- list ------------------------------------------------------------------------- */

static void print_list(struct json_object *o)
{
	static const struct column columns[] = {
		{ "name", "POOL", COLUMN_TEXT }, { "bytes", "HOLDS", COLUMN_BYTES },
		{ "access", "ACCESS", COLUMN_TEXT }, { "live", "MEMBERS", COLUMN_COUNT },
		{ "away", "AWAY", COLUMN_COUNT }, { "dead", "DEAD", COLUMN_COUNT }, { NULL },
	};
	struct json_object *rows = json_member(o, "pools");

	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		json_add_text(row, "access",
			      json_object_get_boolean(json_member(row, "shared")) ? "shared" :
										    "owner");
	}
	output_table(rows, columns, "no pools of this key; see \"ebbctl far create\"");
}

static int run_list(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	struct json_object *rows = json_object_new_array();
	struct wire_far_listed list[WIRE_FAR_POOLS];
	const struct far_options *f = options;
	struct far_donor d;
	uint32_t n = 0;
	int r = far_donor_open(&d, argv[0], f->key, e);

	json_add_text(o, "donor", argv[0]);
	json_object_object_add(o, "pools", rows);
	if (r)
		return r;
	r = far_pool_list(&d, list, &n, e);
	for (uint32_t i = 0; i < n; i++) {
		struct json_object *row = json_object_new_object();

		put_pool(row, &d, &list[i]);
		json_object_array_add(rows, row);
	}
	far_donor_close(&d);
	if (!r)
		output(f->json, o, print_list);
	return r;
}

/* --- show ------------------------------------------------------------------------- */

static const char *state_text(uint8_t state)
{
	static const char *const texts[] = {
		[EBB_FAR_LIVE] = "live", [EBB_FAR_AWAY] = "away", [EBB_FAR_DEAD] = "dead",
	};

	return state < sizeof(texts) / sizeof(*texts) && texts[state] ? texts[state] : "unknown";
}

static void put_counts(struct json_object *o, const struct far_count *c)
{
	json_add_int(o, "extents", far_count_extents(c));
	json_add_int(o, "extent_bytes", far_count_bytes(c));
}

static void put_contents(struct json_object *o, const struct far_contents *c)
{
	struct json_object *members = json_object_new_array(), *sizes = json_object_new_array();
	struct far_count sum = { 0 };

	for (uint32_t i = 1; i <= EBB_FAR_MEMBERS; i++) {
		struct json_object *row;

		far_count_add(&sum, &c->members[i]);
		if (i == c->self || (!c->state[i] && !far_count_extents(&c->members[i])))
			continue;
		row = json_object_new_object();
		json_add_int(row, "member", i);
		json_add_text(row, "state", state_text(c->state[i]));
		put_counts(row, &c->members[i]);
		json_object_array_add(members, row);
	}
	for (uint32_t i = 0; i <= EBB_FAR_WHOLE_CLASS; i++) {
		struct json_object *row;

		if (!sum.extents[i])
			continue;
		row = json_object_new_object();
		json_add_int(row, "size", ebb_far_bytes(i));
		json_add_int(row, "extents", sum.extents[i]);
		json_object_array_add(sizes, row);
	}
	put_counts(o, &sum);
	json_object_object_add(o, "members", members);
	json_object_object_add(o, "sizes", sizes);
}

static void print_show(struct json_object *o)
{
	static const struct column members[] = {
		{ "member", "MEMBER", COLUMN_COUNT }, { "state", "STATE", COLUMN_TEXT },
		{ "extents", "EXTENTS", COLUMN_COUNT }, { "extent_bytes", "HOLDS", COLUMN_BYTES },
		{ NULL },
	};
	static const struct column sizes[] = {
		{ "size", "SIZE", COLUMN_BYTES }, { "extents", "EXTENTS", COLUMN_COUNT }, { NULL },
	};
	char holds[16], used[16];

	printf("pool %s: %s of %s in %lld extents%s; %lld members, %lld away, %lld dead\n\n",
	       json_text(o, "name", "?"),
	       size_format((uint64_t)json_int(o, "extent_bytes", 0), used, sizeof(used)),
	       size_format((uint64_t)json_int(o, "bytes", 0), holds, sizeof(holds)),
	       (long long)json_int(o, "extents", 0),
	       json_object_get_boolean(json_member(o, "shared")) ? ", shared" : "",
	       (long long)json_int(o, "live", 0), (long long)json_int(o, "away", 0),
	       (long long)json_int(o, "dead", 0));
	output_table(json_member(o, "members"), members, "no members with memory");
	printf("\n");
	output_table(json_member(o, "sizes"), sizes, "no extents");
}

static int run_show(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct far_options *f = options;
	struct far_contents contents;
	struct wire_far_listed l;
	struct far_donor d;
	int r = far_donor_open(&d, argv[0], f->key, e);

	if (r)
		return r;
	r = far_pool_find(&d, argv[1], &l, e);
	if (!r)
		r = far_pool_read(&d, argv[1], &contents, e);
	json_add_text(o, "donor", argv[0]);
	if (!r) {
		put_pool(o, &d, &l);
		put_contents(o, &contents);
		output(f->json, o, print_show);
	}
	far_donor_close(&d);
	return r;
}

/* --- create and destroy ------------------------------------------------------------ */

static void print_created(struct json_object *o)
{
	printf("pool %s: created at donor %s%s\n", json_text(o, "name", "?"),
	       json_text(o, "donor", "?"),
	       json_object_get_boolean(json_member(o, "shared")) ? ", shared" : "");
}

static int run_create(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct far_options *f = options;
	struct far_donor d;
	int r = far_donor_open(&d, argv[0], f->key, e);

	if (r)
		return r;
	r = far_pool_create(&d, argv[1], f->shared ? WIRE_FAR_SHARED : 0, e);
	far_donor_close(&d);
	json_add_text(o, "donor", argv[0]);
	json_add_text(o, "name", argv[1]);
	json_add_bool(o, "shared", f->shared);
	if (!r)
		output(f->json, o, print_created);
	return r;
}

static void print_destroyed(struct json_object *o)
{
	int64_t ended = json_int(o, "ended", 0);

	printf("pool %s: destroyed at donor %s", json_text(o, "name", "?"),
	       json_text(o, "donor", "?"));
	if (ended)
		printf("; %lld members ended", (long long)ended);
	printf("\n");
}

static int run_destroy(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct far_options *f = options;
	uint32_t ended = 0;
	int r = far_pool_destroy(argv[0], f->key, argv[1],
				 f->force ? FAR_END_MEMBERS : FAR_UNUSED_ONLY, &ended, e);

	json_add_text(o, "donor", argv[0]);
	json_add_text(o, "name", argv[1]);
	json_add_int(o, "ended", ended);
	if (!r)
		output(f->json, o, print_destroyed);
	return r;
}

static const struct option_spec key_specs[] = { OPTION_KEY, OPTION_JSON, OPTIONS_END };

static const struct option_spec create_specs[] = {
	OPTION(far_options, shared, "shared", OPTION_FLAG, NULL,
	       .help = "allow members to access the extents of others"),
	OPTION_KEY,
	OPTION_JSON,
	OPTIONS_END
};

static const struct option_spec destroy_specs[] = {
	OPTION(far_options, force, "force", OPTION_FLAG, NULL,
	       .help = "end the pool's members; what they have there is lost"),
	OPTION_KEY,
	OPTION_JSON,
	OPTIONS_END
};

#define FAR_OPTIONS(specs) .options = specs, .options_size = sizeof(struct far_options)

const struct command command_far_create = {
	.object = "far", .action = "create", .arguments = "DONOR POOL",
	.help = "Create a pool of far memory at a donor, for programs that use libebbfar",
	.example = "  ebbctl far create 10.0.0.7:7070 index --shared --key /etc/ebb/spark.key\n",
	FAR_OPTIONS(create_specs), .run = run_create, .min_args = 2, .max_args = 2,
};

const struct command command_far_list = {
	.object = "far", .action = "list", .arguments = "DONOR",
	.help = "List the pools of a key at a donor", FAR_OPTIONS(key_specs), .run = run_list,
	.min_args = 1, .max_args = 1,
};

const struct command command_far_show = {
	.object = "far", .action = "show", .arguments = "DONOR POOL",
	.help = "Show the members of a pool and the extents that they have",
	FAR_OPTIONS(key_specs), .run = run_show, .min_args = 2, .max_args = 2,
};

const struct command command_far_destroy = {
	.object = "far", .action = "destroy", .arguments = "DONOR POOL",
	.help = "Destroy a pool without members: its memory returns to the donor",
	FAR_OPTIONS(destroy_specs), .run = run_destroy, .min_args = 2, .max_args = 2,
};
