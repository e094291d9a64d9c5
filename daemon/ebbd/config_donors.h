/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The [donors] section of ebb.conf. */
#ifndef EBB_CONFIG_DONORS_H
#define EBB_CONFIG_DONORS_H

#include "lib/discovery/discovery.h"

/*
 * Sets @name to @value.  `list` and `etcd` append, because lines are short; an empty
 * value clears the list.  Returns -ENOENT for an unknown key.
 */
int config_donors_key(struct donors_config *c, const char *name, const char *value,
		      struct error *e);

#endif
