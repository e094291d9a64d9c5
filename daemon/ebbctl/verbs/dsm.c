// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl dsm: processes that share objects by libebbdsm. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ebbctl/far/pools.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "verbs.h"

struct dsm_options {
	bool json;
	const char *key;
};

/* What is counted of all processes. */
struct sums {
	uint64_t boxes[DESK_DONORS], bytes[DESK_DONORS];
	uint64_t waiting, running;
};

static uint32_t count_waiting(const struct desk *d)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < d->seats; i++)
		n += (d->seat[i] & SEAT_BITS) == SEAT_TAKEN;
	return n;
}

static void put_member(struct json_object *rows, const char *donor, const struct far_desk *f,
		       struct sums *sums)
{
	struct json_object *row = json_object_new_object();
	const struct desk_load *l = &f->desk.load;
	uint32_t waiting = count_waiting(&f->desk);
	uint64_t boxes = 0, bytes = 0;

	for (uint32_t i = 0; i < DESK_DONORS; i++) {
		boxes += l->boxes[i];
		bytes += l->bytes[i];
		sums->boxes[i] += l->boxes[i];
		sums->bytes[i] += l->bytes[i];
	}
	sums->waiting += waiting;
	sums->running += l->running;
	json_add_text(row, "donor", donor);
	json_add_int(row, "member", f->member);
	json_add_text(row, "host", f->desk.host);
	json_add_int(row, "pid", f->desk.pid);
	json_add_text(row, "build", f->desk.build);
	json_add_double(row, "cpu", l->cpu / 1000.0);
	json_add_double(row, "memory", l->memory / 1000.0);
	json_add_int(row, "seats", f->desk.seats);
	json_add_int(row, "waiting", waiting);
	json_add_int(row, "running", l->running);
	json_add_int(row, "executed", l->executed);
	json_add_int(row, "boxes", boxes);
	json_add_int(row, "bytes", bytes);
	json_add_int(row, "bare", l->bare);
	json_add_int(row, "at_twins", l->at_twins);
	json_add_int(row, "lost", l->lost);
	json_object_array_add(rows, row);
}

/* Boxes count by the position of their donor in the lists of the programs. */
static int check_order(const struct far_desk *f, const char *address, uint32_t i, uint32_t n,
		       struct error *e)
{
	if (f->desk.donors == n && f->desk.home == i)
		return 0;
	return fail_exit(e, EXIT_USAGE, EINVAL,
			 "donor %s: it is number %u of %u donors of process %llu, and here number %u of %u; give all donors in the order of the programs",
			 address, f->desk.home + 1, f->desk.donors,
			 (unsigned long long)f->desk.pid, i + 1, n);
}

/* --- reading ---------------------------------------------------------------------- */

struct reading {
	const char *pool, *key;
	struct far_desks *desks;
	struct sums sums;
	struct json_object *donors, *members;
};

/* Reads the processes of donor @i of @n. */
static int read_donor(struct reading *r, const char *address, uint32_t i, uint32_t n,
		      struct error *e)
{
	struct json_object *row = json_object_new_object();
	struct far_donor d;
	int error = far_donor_open(&d, address, r->key, e);

	json_object_array_add(r->donors, row);
	if (error)
		return error;
	error = far_pool_desks(&d, r->pool, r->desks, e);
	for (uint32_t k = 0; !error && k < r->desks->n; k++) {
		error = check_order(&r->desks->desks[k], address, i, n, e);
		put_member(r->members, address, &r->desks->desks[k], &r->sums);
	}
	json_add_text(row, "donor", address);
	json_add_int(row, "total", r->desks->total);
	json_add_int(row, "free", r->desks->free);
	json_add_int(row, "pool_bytes", r->desks->pool);
	json_add_int(row, "members", r->desks->n);
	far_donor_close(&d);
	return error;
}

static int read_donors(struct reading *r, char *list, struct error *e)
{
	char *address[DESK_DONORS], *rest = list;
	uint32_t n = 0;
	int error = 0;

	while (rest && n < DESK_DONORS)
		address[n++] = strsep(&rest, ",");
	if (rest)
		return fail_exit(e, EXIT_USAGE, EINVAL, "donors: more than %u; a space has up to %u",
				 DESK_DONORS, DESK_DONORS);
	for (uint32_t i = 0; i < n && !error; i++)
		error = read_donor(r, address[i], i, n, e);
	for (uint32_t i = 0; i < n && !error; i++) {
		struct json_object *row = json_object_array_get_idx(r->donors, i);

		json_add_int(row, "boxes", r->sums.boxes[i]);
		json_add_int(row, "bytes", r->sums.bytes[i]);
	}
	return error;
}

/* --- status ----------------------------------------------------------------------- */

static void print_status(struct json_object *o)
{
	static const struct column donors[] = {
		{ "donor", "DONOR", COLUMN_TEXT }, { "members", "MEMBERS", COLUMN_COUNT },
		{ "boxes", "BOXES", COLUMN_COUNT }, { "bytes", "IN USE", COLUMN_BYTES },
		{ "pool_bytes", "POOL", COLUMN_BYTES }, { "free", "FREE", COLUMN_BYTES },
		{ NULL },
	};
	static const struct column members[] = {
		{ "donor", "DONOR", COLUMN_TEXT }, { "member", "MEMBER", COLUMN_COUNT },
		{ "host", "HOST", COLUMN_TEXT }, { "pid", "PID", COLUMN_COUNT },
		{ "cpu", "CPU", COLUMN_PERCENT }, { "memory", "MEMORY", COLUMN_PERCENT },
		{ "boxes", "BOXES", COLUMN_COUNT }, { "waiting", "WAITING", COLUMN_COUNT },
		{ "running", "RUNNING", COLUMN_COUNT }, { "bare", "NO TWIN", COLUMN_BYTES },
		{ "shown", "BUILD", COLUMN_TEXT },
		{ NULL },
	};
	struct json_object *rows = json_member(o, "members");

	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);
		char build[16];

		snprintf(build, sizeof(build), "%.12s", json_text(row, "build", ""));
		json_add_text(row, "shown", *build ? build : "-");
	}
	printf("pool %s: %zu processes; %lld tasks waiting, %lld running\n\n",
	       json_text(o, "pool", "?"), json_object_array_length(rows),
	       (long long)json_int(o, "waiting", 0), (long long)json_int(o, "running", 0));
	output_table(json_member(o, "donors"), donors, "no donors");
	printf("\n");
	output_table(rows, members, "no processes of libebbdsm");
}

static int run_status(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = json_object_new_object();
	const struct dsm_options *f = options;
	struct reading r = { .pool = argv[1], .key = f->key,
			     .desks = malloc(sizeof(*r.desks)),
			     .donors = json_object_new_array(),
			     .members = json_object_new_array() };
	int error;

	json_add_text(o, "pool", argv[1]);
	json_object_object_add(o, "donors", r.donors);
	json_object_object_add(o, "members", r.members);
	error = r.desks ? read_donors(&r, argv[0], e) : fail(e, ENOMEM, "out of memory");
	free(r.desks);
	if (error)
		return error;
	json_add_int(o, "waiting", r.sums.waiting);
	json_add_int(o, "running", r.sums.running);
	output(f->json, o, print_status);
	return 0;
}

static const struct option_spec specs[] = {
	OPTION(dsm_options, key, "key", OPTION_STRING, "FILE",
	       .help = "this machine's key (ebbctl key create), which owns the pool; each donor needs one derived from it"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_dsm_status = {
	.object = "dsm", .action = "status", .arguments = "DONOR[,DONOR...] POOL",
	.help = "Show the processes that share objects by libebbdsm, and their tasks",
	.example = "  ebbctl dsm status 10.0.0.7:7070,10.0.0.8:7070 p --key /etc/ebb/spark.key\n",
	.options = specs, .options_size = sizeof(struct dsm_options), .run = run_status,
	.min_args = 2, .max_args = 2,
};
