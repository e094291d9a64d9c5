/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_CREATE_H
#define EBB_DEVICE_CREATE_H

#include "lib/control/device.h"
#include "plan.h"

/*
 * Creates the swap device @name, switches it on and sets @d to its record.  A failure
 * removes everything that was created, and leaves an existing device unchanged.
 */
int device_create(const char *name, const struct device_plan *plan, struct device_record *d,
		  struct error *e);

#endif
