// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "config_donors.h"

int config_donors_key(struct donors_config *c, const char *name, const char *value,
		      struct error *e)
{
	const struct { const char *name; char *to; size_t size; } texts[] = {
		{ "prefix", c->etcd.prefix, sizeof(c->etcd.prefix) },
		{ "etcd_ca", c->etcd.ca, sizeof(c->etcd.ca) },
		{ "etcd_cert", c->etcd.cert, sizeof(c->etcd.cert) },
		{ "etcd_key", c->etcd.key, sizeof(c->etcd.key) },
		{ "etcd_user", c->etcd.user, sizeof(c->etcd.user) },
		{ "etcd_password_file", c->etcd.password_file, sizeof(c->etcd.password_file) },
	};

	if (!strcmp(name, "list") && !*value)
		donor_list_free(&c->list);
	else if (!strcmp(name, "list"))
		return donor_list_parse(&c->list, value, "list", e);
	else if (!strcmp(name, "etcd") && !*value)
		c->etcd.endpoints = 0;
	else if (!strcmp(name, "etcd"))
		return etcd_config_add(&c->etcd, value, "etcd", e);
	else {
		for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
			if (!strcmp(name, texts[i].name))
				return snprintf(texts[i].to, texts[i].size, "%s", value) <
				       (int)texts[i].size ? 0 :
				       fail_exit(e, EXIT_USAGE, ENAMETOOLONG,
						 "%s: longer than %zu characters", name,
						 texts[i].size - 1);
		return -ENOENT;
	}
	return 0;
}
