/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Options of the donor's registration in etcd. */
#ifndef EBB_ADVERTISE_H
#define EBB_ADVERTISE_H

#include "lib/base/options.h"
#include "lib/discovery/registration.h"

struct advertise_options {
	struct option_list etcd;  /* URLs */
	const char *address;      /* at which borrowers reach this donor */
	const char *prefix, *ca, *cert, *key, *user, *password_file; /* or NULL */
};

#define ADVERTISE_OPTION(of, member, option, kind, field, meta, text) \
	{ .name = option, .type = kind, .offset = offsetof(struct of, member.field), \
	  .metavar = meta, .help = text }

/* Rows of the option table of struct @of; its member @member holds these options. */
#define ADVERTISE_OPTIONS(of, member) \
	ADVERTISE_OPTION(of, member, "etcd", OPTION_LIST, etcd, "URL", \
			 "register in etcd; may be repeated for the members of a cluster"), \
	ADVERTISE_OPTION(of, member, "advertise", OPTION_STRING, address, "HOST:PORT", \
			 "address to register, where borrowers reach this donor"), \
	ADVERTISE_OPTION(of, member, "etcd-prefix", OPTION_STRING, prefix, "KEY", \
			 "prefix of the donors' keys [" ETCD_PREFIX "]"), \
	ADVERTISE_OPTION(of, member, "etcd-ca", OPTION_STRING, ca, "FILE", \
			 "CA certificates for etcd [the system's]"), \
	ADVERTISE_OPTION(of, member, "etcd-cert", OPTION_STRING, cert, "FILE", \
			 "client certificate for etcd"), \
	ADVERTISE_OPTION(of, member, "etcd-key", OPTION_STRING, key, "FILE", "key of the client certificate"), \
	ADVERTISE_OPTION(of, member, "etcd-user", OPTION_STRING, user, "NAME", "user in etcd"), \
	ADVERTISE_OPTION(of, member, "etcd-password-file", OPTION_STRING, password_file, "FILE", \
			 "file with the password of that user in its first line")

/*
 * Checks @o without a request (EXIT_USAGE in @e) and makes the registration of
 * a donor of @memory bytes in slabs of @slab bytes; *@out stays NULL without --etcd.
 */
int advertise_begin(const struct advertise_options *o, uint64_t slab, uint64_t memory,
		    struct registration **out, struct error *e);

#endif
