// SPDX-License-Identifier: GPL-2.0-only
#include "devices.h"

DEFINE_MUTEX(ebb_control_lock);
LIST_HEAD(ebb_devices);

struct ebb_device *ebb_device_find(u32 index)
{
	struct ebb_device *d;

	list_for_each_entry(d, &ebb_devices, node)
		if (d->index == index)
			return d;
	return NULL;
}
