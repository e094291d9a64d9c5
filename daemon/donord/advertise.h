/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The options by which a donor makes itself known in etcd. */
#ifndef EBB_ADVERTISE_H
#define EBB_ADVERTISE_H

#include "lib/base/options.h"
#include "lib/discovery/registration.h"

struct advertise_options {
	struct option_list etcd;  /* URLs */
	const char *address;      /* where borrowers reach us */
	const char *prefix, *ca, *cert, *key, *user, *password_file; /* or NULL */
};

#define ADVERTISE_OPTION(of, member, option, kind, field, meta, text) \
	{ .name = option, .type = kind, .offset = offsetof(struct of, member.field), \
	  .metavar = meta, .help = text }

/* Their rows in the table of struct @of, whose member @member they are. */
#define ADVERTISE_OPTIONS(of, member) \
	ADVERTISE_OPTION(of, member, "etcd", OPTION_LIST, etcd, "URL", \
			 "register in the etcd there; may be repeated for the members of a cluster"), \
	ADVERTISE_OPTION(of, member, "advertise", OPTION_STRING, address, "HOST:PORT", \
			 "where borrowers reach this donor: what is registered"), \
	ADVERTISE_OPTION(of, member, "etcd-prefix", OPTION_STRING, prefix, "KEY", \
			 "of the donors' keys [" ETCD_PREFIX "]"), \
	ADVERTISE_OPTION(of, member, "etcd-ca", OPTION_STRING, ca, "FILE", \
			 "who may have signed etcd's certificate [the system's]"), \
	ADVERTISE_OPTION(of, member, "etcd-cert", OPTION_STRING, cert, "FILE", \
			 "our certificate for etcd"), \
	ADVERTISE_OPTION(of, member, "etcd-key", OPTION_STRING, key, "FILE", "its key"), \
	ADVERTISE_OPTION(of, member, "etcd-user", OPTION_STRING, user, "NAME", "our user in etcd"), \
	ADVERTISE_OPTION(of, member, "etcd-password-file", OPTION_STRING, password_file, "FILE", \
			 "a file whose first line is its password")

/*
 * Checks @o without asking anybody (EXIT_USAGE in @e) and makes the registration of
 * a donor of @memory bytes in slabs of @slab bytes; *@out stays NULL without --etcd.
 */
int advertise_begin(const struct advertise_options *o, uint64_t slab, uint64_t memory,
		    struct registration **out, struct error *e);

#endif
