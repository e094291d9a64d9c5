// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbctl key: keys that a borrower and its donors share. */
#include <errno.h>
#include <stdio.h>

#include "lib/base/text.h"
#include "lib/wire/address.h"
#include "lib/wire/key.h"
#include "verbs.h"

struct key_options {
	bool json;
	const char *name;
};

static struct json_object *describe(const struct key *k, const char *file)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "file", file);
	json_add_text(o, "name", k->name);
	if (*k->donor)
		json_add_text(o, "donor", k->donor);
	json_add_text(o, "fingerprint", k->fingerprint);
	return o;
}

static void print_key(struct json_object *o)
{
	const char *donor = json_text(o, "donor", NULL);

	printf("key %s, fingerprint %s, in %s%s%s\n", json_text(o, "name", ""),
	       json_text(o, "fingerprint", ""), json_text(o, "file", ""),
	       donor ? ", for donor " : "", donor ?: "");
}

static int run_create(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	const struct key_options *opt = options;
	struct key k;
	int r;

	if (!opt->name)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "key create: name missing; give --name NAME, such as the borrower's");
	r = key_name_check(opt->name, "--name", e);
	if (!r)
		r = key_make(&k, opt->name, e);
	if (!r)
		r = key_save(&k, argv[0], e);
	if (!r) {
		o = describe(&k, argv[0]);
		output(opt->json, o, print_key);
	}
	key_forget(&k);
	return r;
}

static int run_derive(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	const struct common_options *opt = options;
	struct key k = { .name = "" }, derived = { .name = "" };
	char donor[KEY_DONOR];
	int r = key_donor_name(argv[1], "donor", donor, e);

	if (!r && address_is_any(donor))
		r = fail_exit(e, EXIT_USAGE, EINVAL,
			      "key derive: %s means all addresses of a machine; give the address that borrowers use",
			      donor);
	if (!r)
		r = key_load_own(&k, argv[0], e);
	if (!r && key_derive(&derived, &k, donor))
		r = fail(e, EIO, "key %s: OpenSSL has no HMAC-SHA256 here; see openssl.cnf(5)", argv[0]);
	if (!r)
		r = key_save(&derived, argv[2], e);
	if (!r) {
		o = describe(&derived, argv[2]);
		output(opt->json, o, print_key);
	}
	key_forget(&k);
	key_forget(&derived);
	return r;
}

static int run_show(int argc, char **argv, void *options, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;
	const struct common_options *opt = options;
	struct key k;
	int r = key_show(&k, argv[0], e);

	if (r)
		return r;
	o = describe(&k, argv[0]);
	key_forget(&k);
	output(opt->json, o, print_key);
	return 0;
}

static const struct option_spec create_specs[] = {
	OPTION(key_options, name, "name", OPTION_STRING, "NAME",
	       .help = "name of the borrower, for logs and quotas; required"),
	OPTION_JSON,
	OPTIONS_END
};

const struct command command_key_create = {
	.object = "key", .action = "create", .arguments = "FILE",
	.help = "Create a borrower's key, from which its donors' keys are derived",
	.example = "  ebbctl key create /etc/ebb/spark.key --name spark\n",
	.options = create_specs, .options_size = sizeof(struct key_options), .run = run_create,
	.min_args = 1, .max_args = 1,
};

const struct command command_key_derive = {
	.object = "key", .action = "derive", .arguments = "KEY DONOR FILE",
	.help = "Derive a key for one donor, by the address that borrowers use",
	.example = "  ebbctl key derive /etc/ebb/spark.key 10.0.0.7:7070 donor7.key\n",
	JSON_OPTIONS, .run = run_derive,
	.min_args = 3, .max_args = 3,
};

const struct command command_key_show = {
	.object = "key", .action = "show", .arguments = "FILE",
	.help = "Show name, fingerprint and donor of a key, never the key",
	JSON_OPTIONS, .run = run_show,
	.min_args = 1, .max_args = 1,
};
