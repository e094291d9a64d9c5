/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The initial donors of a device. */
#ifndef EBB_DEVICE_DONORS_H
#define EBB_DEVICE_DONORS_H

#include "lib/base/options.h"
#include "lib/control/device.h"
#include "lib/discovery/donor_list.h"

/*
 * Fills the empty list @l with the @given donors, which must all accept connections, or, without
 * any, with donors of ebbd's configuration, one of which must.  Reads @d's name and slab, sets its
 * donor and donors_from.
 */
int device_donors(const struct option_list *given, struct donor_list *l, struct device_record *d,
		  struct error *e);

#endif
