/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The [donors] section of ebb.conf. */
#ifndef EBB_CONFIG_DONORS_H
#define EBB_CONFIG_DONORS_H

#include "lib/discovery/discovery.h"

/*
 * Takes @name = @value.  `list` and `etcd` add to what was there, for lines are
 * short; an empty value clears the list.  -ENOENT when there is no such key.
 */
int config_donors_key(struct donors_config *c, const char *name, const char *value,
		      struct error *e);

#endif
