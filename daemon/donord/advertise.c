// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>

#include "advertise.h"
#include "lib/wire/address.h"
#include "lib/wire/local.h"

static int copy(char *to, size_t size, const char *from, const char *option, struct error *e)
{
	if (from && snprintf(to, size, "%s", from) >= (int)size)
		return fail_exit(e, EXIT_USAGE, ENAMETOOLONG, "--%s: longer than %zu characters", option,
				 size - 1);
	return 0;
}

static int check_address(const struct advertise_options *o, struct donor_entry *d, struct error *e)
{
	int r;

	if (!o->address)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--etcd: needs to know where borrowers reach this donor; add --advertise HOST:PORT");
	r = local_is(o->address) ? -EINVAL :
	    address_check(o->address, "--advertise", d->address, sizeof(d->address), e);
	if (r)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--advertise: %s is for this machine only; give HOST:PORT", o->address);
	if (address_is_any(d->address))
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--advertise: %s is no address that borrowers could reach; give the machine's own",
				 o->address);
	return 0;
}

static int check(const struct advertise_options *o, struct etcd_config *c, struct donor_entry *d,
		 struct error *e)
{
	int r = 0;

	etcd_config_defaults(c);
	if (!o->etcd.n)
		return o->address || o->prefix || o->ca || o->cert || o->key || o->user ||
				       o->password_file ?
			       fail_exit(
				       e, EXIT_USAGE, EINVAL,
				       "--%s: needs etcd to be registered in; add --etcd https://HOST:2379",
				       o->address ? "advertise" : "etcd-...") :
			       0;
	for (int i = 0; !r && i < o->etcd.n; i++)
		r = etcd_config_add(c, o->etcd.v[i], "--etcd", e);
	if (!r)
		r = check_address(o, d, e);
	if (!r)
		r = copy(c->prefix, sizeof(c->prefix), o->prefix, "etcd-prefix", e);
	if (!r)
		r = copy(c->ca, sizeof(c->ca), o->ca, "etcd-ca", e);
	if (!r)
		r = copy(c->cert, sizeof(c->cert), o->cert, "etcd-cert", e);
	if (!r)
		r = copy(c->key, sizeof(c->key), o->key, "etcd-key", e);
	if (!r)
		r = copy(c->user, sizeof(c->user), o->user, "etcd-user", e);
	if (!r)
		r = copy(c->password_file, sizeof(c->password_file), o->password_file,
			 "etcd-password-file", e);
	return r;
}

int advertise_begin(const struct advertise_options *o, uint64_t slab, uint64_t memory,
		    struct registration **out, struct error *e)
{
	struct donor_entry d = { .slab = slab, .total = memory - memory % slab };
	struct etcd_config c;
	int r = check(o, &c, &d, e);

	return r || !c.endpoints ? r : registration_start(out, &c, &d, e);
}
