/* SPDX-License-Identifier: GPL-2.0-only */
/* All devices. */
#ifndef EBB_DEVICES_H
#define EBB_DEVICES_H

#include <linux/mutex.h>

#include "device.h"

extern struct mutex ebb_control_lock; /* one command at a time */
extern struct list_head ebb_devices;  /* ebb_control_lock */

/* NULL = there is none with this number; ebb_control_lock. */
struct ebb_device *ebb_device_find(u32 index);

#endif
