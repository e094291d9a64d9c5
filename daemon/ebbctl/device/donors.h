/* SPDX-License-Identifier: GPL-2.0-or-later */
/* With which donors a new device begins. */
#ifndef EBB_DEVICE_DONORS_H
#define EBB_DEVICE_DONORS_H

#include "lib/base/options.h"
#include "lib/control/device.h"
#include "lib/discovery/donor_list.h"

/*
 * Fills @l, which must own nothing yet: with those of @given, each of which must
 * take connections; or, where none is given, with those that ebbd knows from its
 * configuration, of which one must.  Reads @d's name and slab, sets its donor and donors_from.
 */
int device_donors(const struct option_list *given, struct donor_list *l, struct device_record *d,
		  struct error *e);

#endif
