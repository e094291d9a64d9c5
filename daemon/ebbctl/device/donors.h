/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The initial donors of a device. */
#ifndef EBB_DEVICE_DONORS_H
#define EBB_DEVICE_DONORS_H

#include "lib/base/options.h"
#include "lib/control/device.h"
#include "lib/discovery/donor_list.h"

/* Returns the number of donors that --durability requires at least; 0: any. */
int device_replicas(const char *durability);

/*
 * Fills the empty list @l with the @given donors, which must all accept connections, or, without
 * any, with those donors of ebbd's configuration that do: at least one, and as many as the
 * durability requires.  Reads @d's name, slab and durability, sets its donor and donors_from.
 * The exit status is EXIT_USAGE only if the command or the configuration is wrong, not while ebbd
 * or donors are still to start.
 */
int device_donors(const struct option_list *given, struct donor_list *l, struct device_record *d,
		  struct error *e);

#endif
