/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Accepts an existing device in place of a new one (--adopt). */
#ifndef EBB_DEVICE_ADOPT_H
#define EBB_DEVICE_ADOPT_H

#include "lib/control/device.h"
#include "plan.h"

/*
 * Checks that @found, a result of device_find(), works and has the properties of @plan.
 * @d has the plan's properties at the call and the device's record at the return.
 * -EEXIST names the first difference.
 */
int device_adopt(const struct device_plan *plan, const struct device_record *found,
		 struct device_record *d, struct error *e);

#endif
