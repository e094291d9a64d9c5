/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_DEVICE_CREATE_H
#define EBB_DEVICE_CREATE_H

#include "lib/control/device.h"
#include "plan.h"

/*
 * Makes the swap device @name and switches it on.  On failure nothing of it is
 * left, but of one that was there before; @d is its record.  @e says what was wrong.
 */
int device_create(const char *name, const struct device_plan *plan, struct device_record *d,
		  struct error *e);

#endif
