/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A device that is there already, for who would make the same. */
#ifndef EBB_DEVICE_ADOPT_H
#define EBB_DEVICE_ADOPT_H

#include "lib/control/device.h"
#include "plan.h"

/*
 * Whether @found, by device_find(), works and was made by @plan.  Goes in with what the plan alone says of
 * the device in @d, and comes out with its record.  -EEXIST names the first difference.
 */
int device_adopt(const struct device_plan *plan, const struct device_record *found,
		 struct device_record *d, struct error *e);

#endif
